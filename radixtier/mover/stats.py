"""What a mover counted since its start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class MoverStats:
    """Counters in pages."""

    demoted: int = 0
    """Left DRAM for NVMe."""
    lost: int = 0
    """Left DRAM with no other copy, since nothing could be written."""
    promoted: int = 0
    written: int = 0
    write_failures: int = 0
    read_failures: int = 0
    """Could not be promoted, the corrupt ones among them."""
    corrupt: int = 0
    scrubbed: int = 0
    scrubbed_bad: int = 0
    restored: int = 0
    """Taken over from an earlier run."""
    backups_declined: int = 0
    refilled: int = 0
