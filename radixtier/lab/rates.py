"""How fast the machine is that the lab imagines: prefill, decode, and the bytes between tiers.

Owns nothing. Seconds and bytes; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from radixtier.policy.bandwidth import PRIOR_COPY_RATE, PRIOR_LATENCY_S
from radixtier.policy.prefill import FAST, Machine


@dataclass(frozen=True)
class Rates:
    """What a server of the lab takes for what it does."""

    prefill: Machine = FAST
    """Of one batch; see :mod:`radixtier.policy.prefill`."""
    decode_s: float = 0.02
    """Per token of an answer, seconds."""
    copy: float = PRIOR_COPY_RATE
    """DRAM to HBM and back, bytes/s."""
    read: float = 5e9
    """NVMe to DRAM, bytes/s."""
    read_latency_s: float = PRIOR_LATENCY_S
    """Of one read, seconds."""
    write: float = 2e9
    """DRAM to NVMe, bytes/s."""
