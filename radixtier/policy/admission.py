"""What may be written to NVMe: everything.

The law: every page that reached DRAM is written once. Where it loses: loads with little reuse wear the drive for
nothing; filters and a write budget answer to the same interface.
"""

from __future__ import annotations

from enum import Enum


class Verdict(Enum):
    """Answer to "may these pages be written?"."""

    ADMIT = "admit"
    REJECT = "reject"


class AdmitAll:
    """Admit every page."""

    def admit(self, n_pages: int, n_bytes: int) -> Verdict:
        """Decide on ``n_pages`` pages of one path, ``n_bytes`` in all."""
        return Verdict.ADMIT
