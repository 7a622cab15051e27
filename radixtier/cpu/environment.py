"""What must be in the environment of a ``--device cpu`` server before it starts.

Owns the variables, and the question whether the installed `sgl_kernel` can serve a CPU. Invariant: returns a new
mapping, never changes this process; a variable the user has set keeps its value. Imports nothing heavy; the probe runs
in a process of its own, since a failed import of `sgl_kernel` leaves half-loaded libraries behind. Any thread.
"""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

STUBS = Path(__file__).parent / "stubs"

NO_NCCL = "/dev/null/none"
"""A path that no file can have."""

# The kernels a CPU server calls on every run; a GPU build of sgl_kernel may import and still lack them.
_PROBE = """
import torch, sgl_kernel
wanted = "assign_req_to_token_pool_cpu", "copy_all_layer_kv_cache_cpu"
raise SystemExit(not all(hasattr(torch.ops.sgl_kernel, name) for name in wanted))
"""
_PROBE_SECONDS = 300


def environment(base_env: Mapping[str, str], ranks: int = 1) -> dict[str, str]:
    """Return the environment for a server with ``--device cpu``.

    Parameters
    ----------
    base_env
        Usually ``os.environ``; what it sets is kept.
    ranks
        Processes that compute, as ``--tp`` says.

    Returns
    -------
    dict
        `base_env` and, where absent,

        - ``SGLANG_USE_CPU_ENGINE=1``: without it SGLang looks for a GPU;
        - ``OMP_NUM_THREADS``: all cores but one, shared out over the ranks, and ``OMP_WAIT_POLICY=PASSIVE``. Torch runs
          a layer as fast as its slowest thread, and threads that spin for each other on a core that somebody else uses
          are ten times slower; the tokenizer, the I/O threads and the client are such neighbours;
        - with more than one rank, ``SGLANG_NCCL_SO_PATH`` pointing at nothing: an installed NCCL would be tried, and
          fail for want of a GPU; collectives go over gloo;
        - with more ranks than NUMA nodes, ``SGLANG_CPU_OMP_THREADS_BIND``: which cores are whose, without which SGLang
          gives each rank a node and does not start;
        - in front of ``PYTHONPATH`` the stand-in for `sgl_kernel`, if the installed one cannot serve a CPU. SGLang's
          processes import it before any plugin is loaded.
    """
    env = dict(base_env)
    env.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    env.setdefault("OMP_NUM_THREADS", str(max(1, (usable_cores() - 1) // ranks)))
    env.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if ranks > 1:
        env.setdefault("SGLANG_NCCL_SO_PATH", NO_NCCL)
        if ranks > numa_nodes():
            env.setdefault("SGLANG_CPU_OMP_THREADS_BIND", "|".join(_shares(sorted(os.sched_getaffinity(0)), ranks)))
    search = [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if str(STUBS) not in search and not sgl_kernel_serves_cpu():
        env["PYTHONPATH"] = os.pathsep.join([str(STUBS), *search])
    return env


def numa_nodes(sys_nodes: Path = Path("/sys/devices/system/node")) -> int:
    """Count the NUMA nodes with cores that this process may use; 1 where the kernel does not tell."""
    mine = os.sched_getaffinity(0)
    found = sum(not mine.isdisjoint(_cores_in(file)) for file in sys_nodes.glob("node[0-9]*/cpulist"))
    return max(1, found)


def _cores_in(cpulist: Path) -> set[int]:
    """Read a list as the kernel writes it: ``0-3,8``."""
    spans = (part.partition("-") for part in cpulist.read_text(encoding="ascii").strip().split(",") if part)
    return {core for first, _, last in spans for core in range(int(first), int(last or first) + 1)}


def _shares(cores: Sequence[int], ranks: int) -> list[str]:
    """Deal cores out in runs, as SGLang writes them: ``0,1``; with more ranks than cores, some share one."""
    if ranks > len(cores):
        return [str(cores[rank % len(cores)]) for rank in range(ranks)]
    bounds = [rank * len(cores) // ranks for rank in range(ranks + 1)]
    return [",".join(map(str, cores[lo:hi])) for lo, hi in itertools.pairwise(bounds)]


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Count the cores this process may use: its affinity, and the CPU quota of its container (cgroup v2)."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


@functools.lru_cache(maxsize=1)
def sgl_kernel_serves_cpu() -> bool:
    """Tell whether the installed `sgl_kernel` imports and holds the kernels of a CPU server (takes seconds)."""
    env = dict(os.environ)
    search = [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry not in ("", str(STUBS))]
    env["PYTHONPATH"] = os.pathsep.join(search)
    command = [sys.executable, "-c", _PROBE]
    try:
        probe = subprocess.run(command, env=env, capture_output=True, check=False, timeout=_PROBE_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return probe.returncode == 0
