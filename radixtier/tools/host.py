"""Whether this machine and this Python environment can serve with the tier.

Owns the checks that have nothing to do with a directory. Invariant: nothing heavy is imported and nothing is changed;
SGLang need not be installed. Any thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import platform
import re
import resource
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

from radixtier import SGLANG_VERSION, __version__
from radixtier.machine import Machine
from radixtier.seams.contract import look
from radixtier.seams.installed import package_directory
from radixtier.seams.patch import read_patch, states, versions, whole
from radixtier.tools.findings import Finding
from radixtier.units import format_bytes

PLUGINS, PLUGIN = "sglang.srt.plugins", "radixtier"

_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

LEAST_RAM = 4 << 30
"""Bytes below which DRAM hardly holds one long prefix of a small model beside the server itself."""

LEAST_FILES = 4096
"""Open files: a server's connections, and a handful per directory of the store."""

LEAST_LOCKED = 64 << 20
"""Bytes of locked memory below which the limit is a distribution's default and nobody's choice."""


def check_host() -> list[Finding]:
    """Run every check."""
    gpu = check_gpu()
    has_gpu = not gpu.found.startswith("none")
    limits = [check_locked(has_gpu), check_files()]
    return [check_sglang(), check_plugin(), gpu, check_ram(), check_huge_pages(), *limits]


def check_sglang() -> Finding:
    """Say whether the installed SGLang is the tested one, and if not, what moved in it."""
    ours = f"Python {platform.python_version()}, radixtier {__version__}"
    fix = f"pip install sglang=={SGLANG_VERSION}"
    release = look()
    if release.version is None:
        return Finding("warning", "software", f"{ours}; SGLang is not installed in this environment", fix)
    if not release.tested:
        fix += "" if release.moved else ", or start with --radix-tier-allow-untested to try it"
        return Finding("problem", "software", f"{ours}; {release}", fix)
    return Finding("ok", "software", f"{ours}, SGLang {release.version}{_patched()}")


def _patched() -> str:
    """Return a word about the patch, where there is something to say."""
    package = package_directory()
    if package is None or SGLANG_VERSION not in versions():
        return ""
    with contextlib.suppress(OSError):
        state = whole(states(read_patch(SGLANG_VERSION), package))
        return {"stock": "", "patched": ", patched"}.get(state, ", with files changed: see radixtier patch status")
    return ""


def check_plugin() -> Finding:
    """Look for the entry point by which SGLang finds the tier."""
    if any(point.name == PLUGIN for point in metadata.entry_points(group=PLUGINS)):
        return Finding("ok", "plugin", f"registered as {PLUGIN} in {PLUGINS}")
    fix = "pip install radixtier in SGLang's environment (a copied directory has no entry points)"
    return Finding("problem", "plugin", f"no entry point {PLUGIN} in {PLUGINS}: SGLang will not find the tier", fix)


def check_gpu() -> Finding:
    """Ask nvidia-smi, else the driver's library, whether there is a GPU."""
    if smi := shutil.which("nvidia-smi"):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            found = subprocess.run([smi, "-L"], capture_output=True, text=True, timeout=30, check=False)
            names = [line.split(" (")[0] for line in found.stdout.splitlines() if line.startswith("GPU ")]
            if found.returncode == 0 and names:
                return Finding("ok", "GPU", "; ".join(names))
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Finding("ok", "GPU", "none: no nvidia-smi and no libcuda.so.1; serve with --device cpu")
    return Finding("ok", "GPU", "libcuda.so.1 is there; nvidia-smi lists no GPU")


def check_ram() -> Finding:
    """Say how much RAM can still be allocated."""
    room = Machine.probe().ram_bytes
    found = f"{format_bytes(room)} can be allocated, within every cgroup limit"
    if room >= LEAST_RAM:
        return Finding("ok", "RAM", found)
    return Finding(
        "warning", "RAM", found, "Free some, raise the cgroup's limit, or give a small --radix-tier-dram-size"
    )


def check_huge_pages(setting: Path = _HUGE_PAGES) -> Finding:
    """See whether memory may lie in huge pages: direct transfers of small pages can be half as fast."""
    try:
        chosen = re.search(r"\[(\w+)\]", setting.read_text())
    except OSError:
        chosen = None
    if chosen and chosen[1] != "never":
        return Finding("ok", "huge pages", chosen[1])
    fix = f"echo madvise > {setting}"
    return Finding("warning", "huge pages", "never: direct transfers can take twice as long", fix)


def check_locked(has_gpu: bool) -> Finding:
    """Compare the limit on locked memory with what pinning needs; without a GPU nothing is pinned."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return Finding("ok", "memlock", "unlimited")
    found = f"at most {format_bytes(soft)} of locked memory"
    if soft >= LEAST_LOCKED or not has_gpu:
        return Finding("ok", "memlock", found)
    fix = "ulimit -l unlimited, or LimitMEMLOCK=infinity: drivers that pin the DRAM pool may be refused"
    return Finding("warning", "memlock", found, fix)


def check_files() -> Finding:
    """Compare the limit on open files with what a server needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{soft} (hard limit {hard})"
    if soft == resource.RLIM_INFINITY or soft >= LEAST_FILES:
        return Finding("ok", "open files", found)
    return Finding("warning", "open files", found, f"ulimit -n {LEAST_FILES} or more")
