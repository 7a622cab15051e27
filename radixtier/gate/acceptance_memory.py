"""The memory's part of the acceptance: whether what the server may take fits, and how near its limits it is.

Owns the laws. Tiers, and on a CPU the weights, must fit into what is free now plus what the server has already;
descriptors must leave room. Limits of memory are those of this process: in a container, run the gate there. Any thread.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from radixtier.gate.acceptance_subject import Part, Subject
from radixtier.gate.result import Check, Verdict
from radixtier.live.processes import PROC, usage
from radixtier.machine import Machine
from radixtier.units import format_bytes

RAM, FILES, LOCKED = "RAM for tiers and model", "open files", "locked memory"

FILES_SHARE = 0.8
"""Of the limit of one process, that may be in use."""

_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")
_NO_PROCESS = "the server's processes are not on this machine, or not visible from here"


def memory(subject: Subject, proc: Path = PROC) -> Part:
    """Run the checks."""
    taken = {"dram": subject.tier_bytes("dram")}
    if subject.device == "cpu":
        taken |= {"hbm": subject.tier_bytes("hbm"), "weights": weights_bytes(subject.model)}
    group = subject.group
    resident = 0 if group is None else usage(group, proc).rss_bytes
    free = Machine.probe().ram_bytes
    checks = [ram(taken, resident, free), files(subject.pid, proc), locked(subject, taken["dram"], proc)]
    return Part(checks, {"memory": {**taken, "resident": resident, "free": free}})


def ram(taken: dict[str, int | None], resident: int, free: int) -> Check:
    """Compare the most that the server may take with what it has and what is free, in bytes."""
    if taken["dram"] is None:
        return Check(RAM, Verdict.SKIPPED, "the server does not tell the sizes of its tiers")
    told = ", ".join(f"{name} {format_bytes(size)}" for name, size in taken.items() if size is not None)
    needed = sum(size for size in taken.values() if size is not None)
    room = f"{format_bytes(free)} free within every limit, {format_bytes(resident)} in use by the server"
    if needed <= free + resident:
        return Check(RAM, Verdict.PASS, f"{format_bytes(needed)} ({told}); {room}")
    fix = "give a smaller --radix-tier-dram-size, or raise the container's limit"
    return Check(RAM, Verdict.FAIL, f"{format_bytes(needed)} ({told}) do not fit: {room}", fix)


def files(pid: int | None, proc: Path = PROC) -> Check:
    """Compare the open files of the server's process with its limit."""
    most, used = None if pid is None else limit_of(pid, "Max open files", proc), None
    with suppress(OSError):
        used = len(os.listdir(proc / str(pid) / "fd"))
    if most is None or used is None:
        return Check(FILES, Verdict.SKIPPED, _NO_PROCESS)
    if used <= FILES_SHARE * most:
        return Check(FILES, Verdict.PASS, f"{used} of {most:g} in use")
    fix = "start the server with a higher limit (ulimit -n)"
    return Check(FILES, Verdict.FAIL, f"{used} of {most:g} in use, at most {FILES_SHARE:.0%} are sound", fix)


def locked(subject: Subject, dram: int | None, proc: Path = PROC) -> Check:
    """Say whether the limit on locked memory may keep the DRAM tier from being pinned; that is a warning only."""
    if subject.device == "cpu":
        return Check(LOCKED, Verdict.PASS, "nothing is pinned on a CPU")
    most = None if subject.pid is None else limit_of(subject.pid, "Max locked memory", proc)
    if most is None:
        return Check(LOCKED, Verdict.SKIPPED, _NO_PROCESS)
    if most == float("inf") or (dram is not None and most >= dram):
        return Check(LOCKED, Verdict.PASS, "unlimited" if most == float("inf") else format_bytes(int(most)))
    reason = f"warning: at most {format_bytes(int(most))}: some drivers refuse to pin the DRAM tier"
    return Check(LOCKED, Verdict.PASS, reason, "ulimit -l unlimited, or LimitMEMLOCK=infinity")


def limit_of(pid: int, name: str, proc: Path = PROC) -> float | None:
    """Return a soft limit of a process; None where it cannot be read."""
    with suppress(OSError):
        text = (proc / str(pid) / "limits").read_text(encoding="utf-8")
        if found := re.search(rf"^{re.escape(name)}\s+(\S+)", text, re.MULTILINE):
            return float("inf") if found[1] == "unlimited" else float(found[1])
    return None


def weights_bytes(model: Path | None) -> int | None:
    """Return the bytes of the weights in a directory; None where it is not known."""
    if model is None or not model.is_dir():
        return None
    return sum(file.stat().st_size for file in model.iterdir() if file.suffix in _WEIGHTS)
