"""The workloads by name."""

from __future__ import annotations

from typing import Any

from radixtier.load.workloads.long_document import LongDocument
from radixtier.load.workloads.multi_turn import MultiTurn
from radixtier.load.workloads.no_reuse import NoReuse
from radixtier.load.workloads.shared_prefix import SharedPrefix
from radixtier.load.workloads.trace import TraceReplay

WORKLOADS: dict[str, Any] = {
    "multi-turn": MultiTurn,
    "shared-prefix": SharedPrefix,
    "long-document": LongDocument,
    "trace": TraceReplay,
    "no-reuse": NoReuse,
}
"""Name -> frozen dataclass, each a :class:`radixtier.load.workloads.common.Workload`."""
