"""The control endpoint: hints and questions over HTTP, carried out by the scheduler thread.

An HTTP thread turns a request into a command (:mod:`~radixtier.control.requests`) and lays it on the
:class:`~radixtier.control.desk.Desk`; the scheduler thread picks it up in its tick. Knows neither SGLang nor torch.
"""

from radixtier.control.address import Address, parse_address
from radixtier.control.commands import Command, ExplainNode, ExplainRequests, GiveHint, ReadState, Refusal, Target
from radixtier.control.desk import Desk
from radixtier.control.server import ControlServer

__all__ = [
    "Address",
    "Command",
    "ControlServer",
    "Desk",
    "ExplainNode",
    "ExplainRequests",
    "GiveHint",
    "ReadState",
    "Refusal",
    "Target",
    "parse_address",
]
