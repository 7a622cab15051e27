"""Lets stock SGLang 0.5.23 serve on any x86-64 or Arm CPU, fast enough that a cached prefix pays off.

Owns everything that is special about ``--device cpu`` and nothing else: `environment` (what must be set before a server
starts), `activate` (what is replaced inside its processes), the kernels behind both. Invariant: without ``--device cpu``
nothing here has any effect; no file of an installation is ever changed. Importable without torch and sglang.
"""

from __future__ import annotations

from radixtier.cpu.activate import activate
from radixtier.cpu.environment import environment

__all__ = ["activate", "environment"]
