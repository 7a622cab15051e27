"""What clients know about the future of a prefix: hints, how they are read, and what is answered.

A hint is about a span of tokens of one path: that of the request which carries it (SGLang's ``kv_hints``), or the one
that a call to the control endpoint names. It is advice, and cannot make an output wrong or a request fail.

========  ===========================================================================================  ==============
kind      meaning                                                                                      fields
========  ===========================================================================================  ==============
share     many requests use the span: keep it in DRAM, not in HBM alone, and never filter it from NVMe  ``ttl_s``
prefetch  it is needed soon: bring the path up to DRAM now, or by the time ``by_s`` from now            ``by_s``
demote    it is not needed soon: write it to NVMe, then give up its DRAM frames, and with ``hbm`` HBM     ``hbm``
pin       keep it in ``tier`` (``dram`` unless ``nvme`` is asked for)                                  ``ttl_s, tier``
retain    do not forget it: keep it on NVMe                                                            ``ttl_s``
release   end pins, retains and shares of the span
========  ===========================================================================================  ==============

All take ``start_token`` and ``end_token``, the span as a half-open range within the path; the whole path without them.
Times are seconds. A time to live is :data:`TTL_S` unless given, and cut to :data:`LONGEST_S`. Nothing lasts for ever,
and every hint gets an :class:`Outcome`.

Owns this vocabulary. Reads SGLang's structures by their attributes and JSON by its keys; whatever is in there, reading
never raises but for :func:`read_hint`, which raises `BadValue` only. Pure functions; any thread.
"""

from __future__ import annotations

import difflib
import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from radixtier.policy.pins import Tier
from radixtier.units import BadValue

VERSION = "1"
"""Of the fields above, as ``action_version`` names it."""

TTL_S = 600.0
"""A coffee, a long tool call, a slow reader."""

LONGEST_S = 86400.0
"""A day; who wants more says so again."""

MOST_ACTIONS = 32
"""Actions that are read of one envelope."""

MOST_ID = 128
"""Characters of an action's id that are kept."""

MOST_TOKEN = (1 << 31) - 1
"""Largest token position."""


class Kind(Enum):
    """What a hint asks for."""

    SHARE = "share"
    PREFETCH = "prefetch"
    DEMOTE = "demote"
    PIN = "pin"
    RETAIN = "retain"
    RELEASE = "release"


class Status(Enum):
    """What became of a hint."""

    ACCEPTED = "accepted"
    CLIPPED = "clipped"
    DEFERRED = "deferred"
    REJECTED = "rejected"


_SPAN = ("start_token", "end_token")
_FIELDS: dict[Kind, tuple[str, ...]] = {
    Kind.SHARE: ("ttl_s", *_SPAN),
    Kind.PREFETCH: ("by_s", *_SPAN),
    Kind.DEMOTE: ("hbm", *_SPAN),
    Kind.PIN: ("ttl_s", "tier", *_SPAN),
    Kind.RETAIN: ("ttl_s", *_SPAN),
    Kind.RELEASE: _SPAN,
}
_TIER = {Kind.DEMOTE: Tier.NVME, Kind.RETAIN: Tier.NVME}


@dataclass(frozen=True)
class Outcome:
    """The answer to one action.

    Attributes
    ----------
    action_id : str
        As the client named the action; may be empty.
    kind : str
        What was asked for, known or not.
    status : Status
        What became of it.
    asked, granted : int
        Tokens.
    reason : str
        Why not everything, empty when accepted.
    """

    action_id: str
    kind: str
    status: Status
    asked: int = 0
    granted: int = 0
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "action_id": self.action_id,
            "kind": self.kind,
            "status": self.status.value,
            "tokens_asked": self.asked,
            "tokens_granted": self.granted,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Hint:
    """One action, checked.

    Attributes
    ----------
    kind : Kind
        What it asks for.
    action_id : str
        As the client named it; may be empty.
    ttl_s : float
        Seconds that it holds; more than 0, at most :data:`LONGEST_S`.
    tier : Tier
        Where the span is to be.
    start_token, end_token : int or None
        Half-open span; no end means that of the path.
    by_s : float
        Seconds from now until it is needed; 0 for now.
    hbm : bool
        Whether the span is to leave HBM as well.
    note : str
        What was cut when it was read; empty when nothing was.
    """

    kind: Kind
    action_id: str = ""
    ttl_s: float = TTL_S
    tier: Tier = Tier.DRAM
    start_token: int = 0
    end_token: int | None = None
    by_s: float = 0.0
    hbm: bool = False
    note: str = ""

    def span(self, length: int) -> tuple[int, int]:
        """Return the span within a path of ``length`` tokens; empty where it lies behind the end."""
        end = length if self.end_token is None else min(self.end_token, length)
        return min(self.start_token, end), end

    def granted(self, asked: int, granted: int, reason: str = "") -> Outcome:
        """Answer with what was done: accepted when it was all, clipped when less, rejected when nothing.

        ``reason`` says why not all; what was cut when the hint was read is added.
        """
        if granted <= 0:
            return self.rejected(reason or "nothing of this span is known", asked)
        reasons = [reason] if granted < asked and reason else []
        reasons += [self.note] if self.note else []
        status = Status.CLIPPED if granted < asked or self.note else Status.ACCEPTED
        return Outcome(self.action_id, self.kind.value, status, asked, granted, "; ".join(reasons))

    def deferred(self, asked: int, reason: str) -> Outcome:
        """Answer that it will be done later."""
        reason = "; ".join(filter(None, (reason, self.note)))
        return Outcome(self.action_id, self.kind.value, Status.DEFERRED, asked, 0, reason)

    def rejected(self, reason: str, asked: int = 0) -> Outcome:
        """Answer that nothing will be done."""
        return Outcome(self.action_id, self.kind.value, Status.REJECTED, asked, 0, reason)


def read_envelope(envelope: object) -> tuple[list[Hint], list[Outcome]]:
    """Read the ``kv_hints`` of a request.

    Parameters
    ----------
    envelope : object
        SGLang's ``KvHintsEnvelope``, the same as a mapping, or None.

    Returns
    -------
    tuple of list of Hint, list of Outcome
        What can be carried out, in order, and a rejection for each of the others. Never raises.
    """
    actions = _get(envelope, "actions")
    if actions is None:
        return [], []
    if not isinstance(actions, (list, tuple)):
        return [], [Outcome("", "", Status.REJECTED, reason="actions: not a list")]
    hints: list[Hint] = []
    refused: list[Outcome] = []
    for action in actions[:MOST_ACTIONS]:
        name, action_id = _text(_get(action, "action_type")), _text(_get(action, "action_id"))
        try:
            hints.append(_read_action(action, name, action_id))
        except BadValue as bad:
            refused.append(Outcome(action_id, name, Status.REJECTED, reason=str(bad)))
    if len(actions) > MOST_ACTIONS:
        reason = f"{len(actions)} actions; the first {MOST_ACTIONS} are read"
        refused.append(Outcome("", "", Status.REJECTED, reason=reason))
    return hints, refused


def read_kind(name: str) -> Kind:
    """Return the kind with a name, in any case; raises `BadValue` for others."""
    try:
        return Kind(name.lower())
    except ValueError:
        raise BadValue("unknown action type", f"Use one of {', '.join(kind.value for kind in Kind)}") from None


def read_hint(kind: Kind, action_id: str, fields: Mapping[str, Any]) -> Hint:
    """Check the fields of one action.

    Parameters
    ----------
    kind : Kind
        What it asks for.
    action_id : str
        What its outcome will name; cut to :data:`MOST_ID` characters.
    fields : mapping of str to JSON value
        Those of the kind; a null counts as not given.

    Returns
    -------
    Hint
        With times above :data:`LONGEST_S` cut to that, and a note about it.

    Raises
    ------
    BadValue
        Naming the field, its value and the fix.
    """
    for name in fields:
        if name not in _FIELDS[kind]:
            close = difflib.get_close_matches(str(name), _FIELDS[kind], 1)
            fix = f"Write {close[0]}" if close else f"It takes {', '.join(_FIELDS[kind])}"
            raise BadValue(f"{kind.value}: no such field: {shown(name)}", fix)
    ttl_s, cut_ttl = _seconds(fields, "ttl_s", TTL_S)
    if ttl_s <= 0:
        raise BadValue(f"ttl_s {ttl_s:g}: nothing would last", "Write more than 0, or use release")
    by_s, cut_by = _seconds(fields, "by_s", 0.0)
    start, end = _position(fields, "start_token") or 0, _position(fields, "end_token")
    if end is not None and end <= start:
        raise BadValue(f"end_token {end}: not behind start_token {start}", "Give a span of at least one token")
    tier = _tier(fields) or _TIER.get(kind, Tier.DRAM)
    note = "; ".join(filter(None, (cut_ttl, cut_by)))
    return Hint(kind, action_id[:MOST_ID], ttl_s, tier, start, end, by_s, _flag(fields, "hbm"), note)


def shown(value: object) -> str:
    """Return a value for a message, cut to a few dozen characters."""
    try:
        return reprlib.repr(value)
    except ValueError:  # an int of too many digits for Python to write out
        return "of thousands of digits"


def _read_action(action: object, name: str, action_id: str) -> Hint:
    kind = read_kind(name)
    version = _get(action, "action_version")
    if version != VERSION:
        raise BadValue(f"action_version {shown(version)} of {kind.value} is not known", f"Send {VERSION!r}")
    payload = _get(action, "payload")
    if payload is not None and not isinstance(payload, Mapping):
        raise BadValue("payload: not an object", "Send a JSON object")
    return read_hint(kind, action_id, payload or {})


def _seconds(fields: Mapping[str, Any], name: str, default: float) -> tuple[float, str]:
    value = fields.get(name)
    if value is None:
        return default, ""
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not good or not 0 <= value < math.inf:
        raise BadValue(f"{name} {shown(value)}: not a number of seconds", f"Write 0 to {LONGEST_S:.0f}")
    if value > LONGEST_S:
        return LONGEST_S, f"{name} cut to {LONGEST_S:.0f}"
    return float(value), ""


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise BadValue(f"{name} {shown(value)}: not true or false", "Write true or false")
    return bool(value)


def _position(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_TOKEN:
        raise BadValue(f"{name} {shown(value)}: not a token position", f"Write a whole number, 0 to {MOST_TOKEN}")
    return value


def _tier(fields: Mapping[str, Any]) -> Tier | None:
    value = fields.get("tier")
    if value is None:
        return None
    try:
        return Tier(value)
    except ValueError:
        names = " or ".join(tier.value for tier in Tier)
        raise BadValue(f"tier {shown(value)}: nothing can be kept there", f"Write {names}") from None


def _get(thing: object, name: str) -> Any:
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


def _text(value: object) -> str:
    return value[:MOST_ID] if isinstance(value, str) else ""
