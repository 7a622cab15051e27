"""The fields of a request, from a body or a query: what each may be, and what is wrong with the others.

Invariant: whatever arrives becomes a valid value or a `BadValue` that names field, value and fix. Pure functions; any
thread.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Any

from radixtier.control.commands import Target
from radixtier.policy.hints import shown
from radixtier.units import BadValue

MOST_NAME = 4096
"""Characters of a session, an action id, an extra key or a salt."""

MOST_NODE = (1 << 63) - 1
MOST_TOKEN = (1 << 31) - 1

WHICH = ("tokens", "text", "session")
"""Ways to name a path."""

SPACE = ("extra_key", "cache_salt")
"""What names a namespace."""

_TOKEN = f"Give a list of token ids, whole numbers from 0 to {MOST_TOKEN}"


def only(fields: Mapping[str, Any], names: tuple[str, ...]) -> None:
    """See that there are no others."""
    for name in fields:
        if name not in names:
            raise BadValue(f"no such field: {shown(name)}", f"It takes {', '.join(names) or 'none'}")


def target(fields: Mapping[str, Any], *more: str) -> Target:
    """Read which path is meant; ``more`` are further ways to name one than :data:`WHICH`."""
    which = (*WHICH, *more)
    given = [name for name in which if fields.get(name) is not None]
    if len(given) != 1:
        what = f"{' and '.join(given)} are given" if given else "nothing says which path is meant"
        raise BadValue(what, f"Give one of {', '.join(which)}")
    extra_key, cache_salt = name(fields, "extra_key"), name(fields, "cache_salt")
    way = given[0]
    if way in ("session", "node") and (extra_key is not None or cache_salt is not None):
        raise BadValue(f"extra_key and cache_salt say nothing beside a {way}", "Leave them out")
    return Target(
        tokens=_tokens(fields["tokens"]) if way == "tokens" else None,
        text=_string(fields, "text") if way == "text" else None,
        session=name(fields, "session") if way == "session" else None,
        node=_node(fields["node"]) if way == "node" else None,
        extra_key=extra_key,
        cache_salt=cache_salt,
    )


def name(fields: Mapping[str, Any], field: str) -> str | None:
    """Read a name of at most :data:`MOST_NAME` characters; None where it is not given."""
    value = _string(fields, field)
    if value is not None and len(value) > MOST_NAME:
        raise BadValue(f"{field}: {len(value)} characters", f"Give at most {MOST_NAME}")
    return value


def digits(field: str, text: str) -> int:
    """Read a number from a query."""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise BadValue(f"{field} {shown(text)}: not a whole number", "Write digits")
    return int(text)


def whole(query: Mapping[str, Any], field: str, default: int, least: int, most: int) -> int:
    """Read a number from ``least`` to ``most`` from a query."""
    if field not in query:
        return default
    value = digits(field, query[field])
    if not least <= value <= most:
        raise BadValue(f"{field} {value}: not from {least} to {most}", "Write a number in that range")
    return value


def seconds(fields: Mapping[str, Any], field: str, default: float, most: float) -> float:
    """Read a number of seconds from a body, 0 to ``most``; a null counts as not given."""
    value = fields.get(field)
    if value is None:
        return default
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
    if not good or not 0 <= value <= most:
        raise BadValue(f"{field} {shown(value)}: not a number of seconds", f"Write 0 to {most:g}")
    return float(value)


def _tokens(value: Any) -> array[int]:
    if not isinstance(value, list):
        raise BadValue(f"tokens {shown(value)}: not a list", _TOKEN)
    if not value:
        raise BadValue("tokens []: empty", _TOKEN)
    # The common case at the speed of C: bodies of a megabyte are parsed beside the scheduler thread.
    if set(map(type, value)) != {int} or not 0 <= min(value) <= max(value) <= MOST_TOKEN:
        bad = next(each for each in value if type(each) is not int or not 0 <= each <= MOST_TOKEN)
        raise BadValue(f"tokens: {shown(bad)} is not a token id", _TOKEN)
    return array("q", value)


def _node(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MOST_NODE:
        raise BadValue(f"node {shown(value)}: not a number of a node", "Give a whole number")
    return value


def _string(fields: Mapping[str, Any], field: str) -> str | None:
    value = fields.get(field)
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise BadValue(f"{field} {shown(value)}: not a text", "Give a string that is not empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadValue(f"{field}: not valid Unicode", "Send surrogates in pairs") from None
    return value
