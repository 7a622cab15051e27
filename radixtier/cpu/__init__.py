"""Lets stock SGLang 0.5.23 serve on any x86-64 or Arm CPU, fast enough that a cached prefix pays off.

Owns everything that is special about ``--device cpu`` and nothing else: `environment` (what must be set before a
server starts), `activate` (what is replaced inside its processes), the kernels behind both. Invariant: without
``--device cpu`` nothing here has any effect; no file of an installation is ever changed. Importable without torch and
sglang.

``radixtier serve --device cpu ...`` does it all. ``python -m sglang.launch_server --device cpu ...`` alone does not get
far where no GPU is: without ``SGLANG_USE_CPU_ENGINE=1`` the scheduler fails when it builds the model (the rotary
embedding of a device that SGLang does not know wants vLLM); with it the main process fails on `sgl_kernel` while it
resolves its arguments, and so would every other process. SGLang asks for both while it is imported, so they must be in
the environment when Python starts: `environment` says what. With that, the stock command works, plugin included.
"""

from __future__ import annotations

from radixtier.cpu.activate import activate
from radixtier.cpu.environment import environment

__all__ = ["activate", "environment"]
