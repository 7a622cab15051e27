"""radixtier: virtual memory for SGLang's RadixAttention.

SGLang's prefix tree owns what exists; radixtier owns where its bytes live: HBM, DRAM or NVMe.
Importing this package imports neither torch nor sglang.
"""

from __future__ import annotations

__version__ = "0.1.0"

SGLANG_VERSION = "0.5.23"
"""The SGLang release that this version of radixtier is made for and tested with."""
