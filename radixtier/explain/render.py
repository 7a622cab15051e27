"""Records as plain data, for JSON, and plain data as text, for people.

Owns both forms: the server sends the data, and the command line makes the text from what it received, so that a field
that is missing or of another type is left out and not an error. Pure functions; any thread.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from radixtier.explain.history import RequestRecord
from radixtier.explain.nodes import NodeReport

_TIERS = (("hbm", "from HBM"), ("dram", "from DRAM"), ("nvme", "from NVMe"), ("recomputed", "computed"))


def request_json(record: RequestRecord) -> dict[str, Any]:
    """Return a record as plain data."""
    return {
        "request": record.rid,
        "session": record.session,
        "arrived": record.arrived,
        "waited_s": record.waited_s,
        "prompt_tokens": record.prompt_tokens,
        "served": {"hbm": record.hbm, "dram": record.dram, "nvme": record.nvme},
        "recomputed": record.recomputed,
        "causes": [cause._asdict() | {"reason": cause.reason.value} for cause in record.causes],
        "hints": [dict(hint) for hint in record.hints],
    }


def node_json(report: NodeReport) -> dict[str, Any]:
    """Return a report as plain data."""
    return asdict(report) | {
        "places": dict(report.places),
        "pinned": dict(report.pinned),
        "events": [event._asdict() for event in report.events],
    }


def request_text(data: Mapping[str, Any]) -> str:
    """Return what :func:`request_json` says, in lines."""
    head = f"request {_word(data.get('request'))}"
    head += f", session {_word(data['session'])}" if data.get("session") is not None else ""
    head += f", arrived {_clock(data.get('arrived'))}, waited {_number(data.get('waited_s')):.3f} s"
    amounts = dict(_mapping(data.get("served"))) | {"recomputed": data.get("recomputed")}
    lines = [head, f"  {'prompt':<10} {_count(data.get('prompt_tokens')):>9} tokens"]
    lines += [f"  {label:<10} {_count(amounts.get(name)):>9}" for name, label in _TIERS]
    causes = [_mapping(cause) for cause in _list(data.get("causes"))]
    lines += [f"    {_count(cause.get('tokens')):>9} {_cause(cause)}" for cause in causes]
    told = sum(_count(cause.get("tokens")) for cause in causes)
    untold = _count(data.get("recomputed")) - told
    lines += [f"    {untold:>9} without a record of why"] if untold > 0 else []
    lines += [f"  hint {outcome_text(_mapping(hint))}" for hint in _list(data.get("hints"))]
    return "\n".join(lines)


def request_line(data: Mapping[str, Any]) -> str:
    """Return the figures of a request in one line, for a list; see :data:`REQUEST_HEAD`."""
    served = _mapping(data.get("served"))
    columns = [data.get("prompt_tokens"), *(served.get(name) for name in ("hbm", "dram", "nvme"))]
    figures = " ".join(f"{_count(value):>8}" for value in (*columns, data.get("recomputed")))
    waited = f"{_number(data.get('waited_s')):>8.3f}"
    return f"{_clock(data.get('arrived')):<19} {figures} {waited}  {_word(data.get('request'))}"


REQUEST_HEAD = (
    f"{'arrived (UTC)':<19} {'prompt':>8} {'HBM':>8} {'DRAM':>8} {'NVMe':>8} {'computed':>8} {'waited':>8}  request"
)
"""Heads the lines of :func:`request_line`."""


def node_text(data: Mapping[str, Any]) -> str:
    """Return what :func:`node_json` says, in lines."""
    start, tokens = _count(data.get("start_token")), _count(data.get("tokens"))
    parent = data.get("parent")
    front = "the root" if parent is None else f"node {_count(parent)}"
    lines = [f"node {_count(data.get('node'))}: tokens {start} to {start + tokens}, behind {front}"]
    places = _mapping(data.get("places"))
    lines += [f"  {_word(place):<14} {_count(n):>9} tokens" for place, n in places.items()]
    used = data.get("last_used")
    lines.append(f"  used by {_count(data.get('hits'))} requests" + (f", last {_clock(used)}" if used else ""))
    if data.get("session") is not None:
        lines.append(f"  session {_word(data['session'])}")
    if data.get("expected") is not None:
        lines.append(f"  expected again {_clock(data['expected'])}")
    for tier, left in _mapping(data.get("pinned")).items():
        lines.append(f"  pinned in {_word(tier)} for another {_number(left):.0f} s")
    for event in map(_mapping, _list(data.get("events"))):
        why = f" ({_word(event['why'])})" if event.get("why") else ""
        lines.append(f"  {_clock(event.get('when'))}  {_word(event.get('what'))}{why}")
    return "\n".join(lines)


def outcome_text(data: Mapping[str, Any]) -> str:
    """Return the outcome of a hint, as plain data, in a line."""
    name = " ".join(filter(None, (_word(data.get("kind")), _word(data.get("action_id")))))
    amount = f"{_count(data.get('tokens_granted'))} of {_count(data.get('tokens_asked'))} tokens"
    reason = f": {_word(data['reason'])}" if data.get("reason") else ""
    return f"{name}: {_word(data.get('status'))}, {amount}{reason}"


def _cause(cause: Mapping[str, Any]) -> str:
    text = _word(cause.get("reason"))
    text += f" {_clock(cause['when'])}" if cause.get("when") is not None else ""
    text += f" by {_word(cause['rule'])}" if cause.get("rule") else ""
    return text + (f": {_word(cause['detail'])}" if cause.get("detail") else "")


def _clock(seconds: object) -> str:
    try:
        return datetime.fromtimestamp(_number(seconds), timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return "unknown"


def _word(value: object) -> str:
    """Text from elsewhere, fit for a terminal."""
    return "" if value is None else "".join(c if c.isprintable() else "?" for c in str(value))


def _number(value: object) -> float:
    try:
        return float(value) if isinstance(value, (int, float)) else 0.0
    except OverflowError:
        return math.inf


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _mapping(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()
