"""What a mover counted since its start."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class MoverStats:
    """Counters in pages."""

    demoted: int = 0
    """Left DRAM for NVMe."""
    lost: int = 0
    """Left DRAM with no other copy, since it could not or might not be written."""
    staged: int = 0
    """Copied from HBM once more, since they were about to leave it and DRAM had given them up."""
    promoted: int = 0
    promoted_by: Counter[str] = field(default_factory=Counter)
    """The same, by trigger."""
    landed: int = 0
    """Of those, the ones that went straight to HBM, through the landing zone."""
    landing_failed: int = 0
    """Could not be read straight to HBM, and were left to come through DRAM."""
    landing_full: int = 0
    """Were to go straight to HBM and came through DRAM, since the landing zone was full by then."""
    in_time: int = 0
    """Promoted for a request and up when it was admitted."""
    late: int = 0
    """Promised to a request and not up when it was admitted: computed instead."""
    ahead_used: Counter[str] = field(default_factory=Counter)
    """Came up ahead of a request that then used them, by trigger."""
    ahead_wasted: Counter[str] = field(default_factory=Counter)
    """Came up ahead of requests and left again unused, by trigger."""
    written: int = 0
    write_failures: int = 0
    writes_rejected: int = 0
    """Answers of the admission policy; a page that is asked for again counts again."""
    writes_throttled: int = 0
    read_failures: int = 0
    """Could not be promoted, the corrupt ones among them."""
    corrupt: int = 0
    scrubbed: int = 0
    scrubbed_bad: int = 0
    restored: int = 0
    """Taken over from an earlier run."""
    backups_declined: int = 0
    refilled: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in vars(self).items()}
