"""What the cache keeps of a request from arrival to its end.

Owns nothing. Scheduler thread only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from radixtier.explain import RequestRecord


@dataclass(slots=True)
class Request:
    """A request from arrival to its end."""

    record: RequestRecord
    arrived: float
    """Seconds of the monotonic clock."""
    hints: Any = None
    """SGLang's ``kv_hints`` envelope."""
    node: int = -1
    """Where its path ended when it was last matched."""
    admitted: bool = False
