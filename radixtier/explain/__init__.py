"""What happened to a request and to a node, and why: bounded records, and their text."""

from radixtier.explain.forgotten import Forgotten, Found
from radixtier.explain.history import Cause, History, Reason, RequestRecord
from radixtier.explain.nodes import Event, NodeEvents, NodeReport
from radixtier.explain.totals import Totals

__all__ = [
    "Cause",
    "Event",
    "Forgotten",
    "Found",
    "History",
    "NodeEvents",
    "NodeReport",
    "Reason",
    "RequestRecord",
    "Totals",
]
