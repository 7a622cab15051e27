"""The control endpoint: hints and questions over HTTP, most of them answered by the scheduler thread.

An HTTP thread turns a request into a command (:mod:`~radixtier.control.requests`). It answers some itself
(:mod:`~radixtier.control.sources`) and lays the others on the :class:`~radixtier.control.desk.Desk`; the scheduler
thread picks them up in its tick. Knows neither SGLang nor torch.
"""

from radixtier.control.address import Address, parse_address
from radixtier.control.clerk import Clerk
from radixtier.control.commands import (
    Command,
    Drain,
    ExplainNode,
    ExplainRequests,
    GiveHint,
    ListNodes,
    ReadEvents,
    ReadHistory,
    ReadRows,
    ReadSchema,
    ReadState,
    ReadTree,
    Refusal,
    Target,
)
from radixtier.control.desk import Desk, Handler, Later
from radixtier.control.pace import Pace
from radixtier.control.rows import Rows
from radixtier.control.server import ControlServer

__all__ = [
    "Address",
    "Clerk",
    "Command",
    "ControlServer",
    "Desk",
    "Drain",
    "ExplainNode",
    "ExplainRequests",
    "GiveHint",
    "Handler",
    "Later",
    "ListNodes",
    "Pace",
    "ReadEvents",
    "ReadHistory",
    "ReadRows",
    "ReadSchema",
    "ReadState",
    "ReadTree",
    "Refusal",
    "Rows",
    "Target",
    "parse_address",
]
