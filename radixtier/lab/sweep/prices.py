"""What sizes cost.

The law: bytes of each tier times its price per GB (10^9 bytes); nothing else: no sockets, no drive bays, no power, and
not the whole modules and drives that one has to buy. The prices here are assumptions of an order of magnitude, not
quotes. Pure; any thread.
"""

from __future__ import annotations

from typing import NamedTuple

GB = 10**9


class Prices(NamedTuple):
    """Cost units per GB."""

    hbm: float = 0.0
    """The GPUs are there anyway."""
    dram: float = 8.0
    """An assumption: server memory with error correction."""
    nvme: float = 0.2
    """An assumption: a data-centre drive."""

    def of(self, hbm: int, dram: int, nvme: int) -> float:
        """Return the cost of so many bytes of each."""
        return (self.hbm * hbm + self.dram * dram + self.nvme * nvme) / GB
