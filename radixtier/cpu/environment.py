"""What must be in the environment of a ``--device cpu`` server before it starts.

Owns the variables, and the question whether the installed `sgl_kernel` can serve a CPU. Invariant: returns a new
mapping, never changes this process; a variable the user has set keeps its value. Imports nothing heavy; the probe runs
in a process of its own, since a failed import of `sgl_kernel` leaves half-loaded libraries behind. Any thread.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

STUBS = Path(__file__).parent / "stubs"

# The two kernels a CPU server calls on every run; a GPU build of sgl_kernel may import and still lack them.
_PROBE = """
import torch, sgl_kernel
raise SystemExit(not all(hasattr(torch.ops.sgl_kernel, name)
                         for name in ("assign_req_to_token_pool_cpu", "copy_all_layer_kv_cache_cpu")))
"""


@functools.lru_cache(maxsize=1)
def sgl_kernel_serves_cpu() -> bool:
    """Tell whether the installed `sgl_kernel` imports and holds the kernels of a CPU server (takes seconds)."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    search = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry != str(STUBS)]
    clean["PYTHONPATH"] = os.pathsep.join(filter(None, search))
    probe = subprocess.run([sys.executable, "-c", _PROBE], env=clean, capture_output=True, check=False)
    return probe.returncode == 0


def environment(base_env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a server with ``--device cpu``.

    Parameters
    ----------
    base_env
        Usually ``os.environ``. What it sets is kept.

    Returns
    -------
    dict
        `base_env` with ``SGLANG_USE_CPU_ENGINE=1`` (without it SGLang looks for a GPU) and, if the installed
        `sgl_kernel` cannot serve a CPU, the stand-in in front of ``PYTHONPATH``: SGLang's processes import it before
        any plugin is loaded.
    """
    env = dict(base_env)
    env.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    search = [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if str(STUBS) not in search and not sgl_kernel_serves_cpu():
        env["PYTHONPATH"] = os.pathsep.join([str(STUBS), *search])
    return env
