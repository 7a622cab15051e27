"""What an HTTP request asks for: routes, bodies and queries.

======  ================================  ==============================================================
POST    ``/radix_tier/KIND``              a hint; KIND as in :mod:`radixtier.policy.hints`
GET     ``/radix_tier/explain``           ``?request=RID`` for one request, ``?limit=N`` for the last ones
GET     ``/radix_tier/explain/node``      ``?node=N``, ``?tokens=1,2,3`` or ``?session=S``
POST    ``/radix_tier/explain/node``      the same as a body, which may have ``text`` as well
GET     ``/radix_tier/state``             the figures of the tiers
======  ================================  ==============================================================

A body is a JSON object with one of ``tokens`` (ids), ``text`` and ``session``, and optionally ``extra_key`` and
``cache_salt``; a hint takes ``action_id`` and the fields of its kind as well.

Owns this table. Invariant: whatever arrives becomes a valid command or a :class:`Refusal` that names field, value and
fix. Pure functions; any thread.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn
from urllib.parse import parse_qsl, urlsplit

from radixtier.control.commands import Command, ExplainNode, ExplainRequests, GiveHint, ReadState, Refusal, Target
from radixtier.policy.hints import Kind, read_hint, shown
from radixtier.units import BadValue

ROOT = "/radix_tier"

MOST_REQUESTS = 1000
"""Requests explained at once."""

REQUESTS = 20
"""The same when no limit is given."""

MOST_NAME = 4096
"""Characters of a session, an action id, an extra key or a salt."""

MOST_NODE = (1 << 63) - 1

_WHICH = ("tokens", "text", "session")
_SPACE = ("extra_key", "cache_salt")
_TOKEN = "Give a list of token ids, whole numbers from 0 to 2147483647"


class Route(NamedTuple):
    """One method of one path."""

    read: Callable[[Mapping[str, Any]], Command]
    """Turns the body, or the query of a GET, into a command; raises `BadValue`."""
    body: bool


def find_route(method: str, target: str) -> tuple[Route, dict[str, str]]:
    """Find what a request line means.

    Parameters
    ----------
    method, target : str
        ``GET`` and ``/radix_tier/explain?limit=3``, for example.

    Returns
    -------
    tuple of Route and dict
        The route, and the query.

    Raises
    ------
    Refusal
        404, 405, or 400 for a query that cannot be read.
    """
    path, query = _split(target)
    methods = _ROUTES.get(path)
    if methods is None:
        raise Refusal(404, f"no such path; there are {', '.join(_ROUTES)}")
    route = methods.get(method)
    if route is None:
        raise Refusal(405, f"not with {method[:16]}; use {' or '.join(methods)}")
    return route, query


def read_command(route: Route, fields: Mapping[str, Any]) -> Command:
    """Turn the fields of a request into a command; raises `Refusal` with status 400."""
    try:
        return route.read(fields)
    except BadValue as bad:
        raise Refusal(400, str(bad)) from None


def read_json(body: bytes) -> Mapping[str, Any]:
    """Parse a body; raises `Refusal` with status 400 for anything but a JSON object."""
    try:
        value = json.loads(body.decode(), parse_constant=_no_constant)
    except RecursionError:
        raise Refusal(400, "the body is nested too deeply; send a flat JSON object") from None
    except ValueError as error:  # not UTF-8, not JSON, or a number of thousands of digits
        raise Refusal(400, f"the body is not JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise Refusal(400, 'the body is not a JSON object; send one such as {"session": "s1"}')
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _split(target: str) -> tuple[str, dict[str, str]]:
    try:
        parts = urlsplit(target)
        pairs = parse_qsl(parts.query, keep_blank_values=True, max_num_fields=16)
    except ValueError:
        raise Refusal(400, "the query cannot be read; give a few NAME=VALUE pairs") from None
    query = dict(pairs)
    if len(query) < len(pairs):
        raise Refusal(400, "the query gives a name twice; give each once")
    return parts.path.rstrip("/"), query


# Commands


def _hint(kind: Kind) -> Callable[[Mapping[str, Any]], Command]:
    def read(fields: Mapping[str, Any]) -> Command:
        rest = dict(fields)
        target = _target({name: rest.pop(name, None) for name in (*_WHICH, *_SPACE)})
        action_id = _name(rest, "action_id") or ""
        rest.pop("action_id", None)
        return GiveHint(read_hint(kind, action_id, rest), target)

    return read


def _requests(query: Mapping[str, Any]) -> Command:
    _only(query, ("request", "limit"))
    if "request" in query:
        return ExplainRequests(query["request"], 1)
    return ExplainRequests(None, min(MOST_REQUESTS, _number("limit", query.get("limit", str(REQUESTS)))))


def _node_of_query(query: Mapping[str, Any]) -> Command:
    _only(query, ("node", "tokens", "session", *_SPACE))
    fields: dict[str, Any] = dict(query)
    if "tokens" in fields:
        fields["tokens"] = [_number("tokens", part) for part in fields["tokens"].split(",")]
    if "node" in fields:
        fields["node"] = _number("node", fields["node"])
    return _node(fields)


def _node(fields: Mapping[str, Any]) -> Command:
    _only(fields, (*_WHICH, "node", *_SPACE))
    return ExplainNode(_target(fields, "node"))


def _state(query: Mapping[str, Any]) -> Command:
    _only(query, ())
    return ReadState()


# Fields


def _target(fields: Mapping[str, Any], *more: str) -> Target:
    which = (*_WHICH, *more)
    given = [name for name in which if fields.get(name) is not None]
    if len(given) != 1:
        what = f"{' and '.join(given)} are given" if given else "nothing says which path is meant"
        raise BadValue(what, f"Give one of {', '.join(which)}")
    extra_key, cache_salt = _name(fields, "extra_key"), _name(fields, "cache_salt")
    name = given[0]
    if name in ("session", "node") and (extra_key is not None or cache_salt is not None):
        raise BadValue(f"extra_key and cache_salt say nothing beside a {name}", "Leave them out")
    return Target(
        tokens=_tokens(fields["tokens"]) if name == "tokens" else None,
        text=_string(fields, "text") if name == "text" else None,
        session=_name(fields, "session") if name == "session" else None,
        node=_node_number(fields["node"]) if name == "node" else None,
        extra_key=extra_key,
        cache_salt=cache_salt,
    )


def _tokens(value: Any) -> array[int]:
    if not isinstance(value, list):
        raise BadValue(f"tokens {shown(value)}: not a list", _TOKEN)
    if not value:
        raise BadValue("tokens []: empty", _TOKEN)
    # The common case at the speed of C: bodies of a megabyte are parsed beside the scheduler thread.
    if set(map(type, value)) != {int} or not 0 <= min(value) <= max(value) < 1 << 31:
        bad = next(each for each in value if type(each) is not int or not 0 <= each < 1 << 31)
        raise BadValue(f"tokens: {shown(bad)} is not a token id", _TOKEN)
    return array("q", value)


def _node_number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MOST_NODE:
        raise BadValue(f"node {shown(value)}: not a number of a node", "Give a whole number")
    return value


def _string(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise BadValue(f"{name} {shown(value)}: not a text", "Give a string that is not empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadValue(f"{name}: not valid Unicode", "Send surrogates in pairs") from None
    return value


def _name(fields: Mapping[str, Any], name: str) -> str | None:
    value = _string(fields, name)
    if value is not None and len(value) > MOST_NAME:
        raise BadValue(f"{name}: {len(value)} characters", f"Give at most {MOST_NAME}")
    return value


def _number(name: str, text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise BadValue(f"{name} {shown(text)}: not a whole number", "Write digits")
    return int(text)


def _only(fields: Mapping[str, Any], names: tuple[str, ...]) -> None:
    for name in fields:
        if name not in names:
            raise BadValue(f"no such field: {shown(name)}", f"It takes {', '.join(names) or 'none'}")


_ROUTES: dict[str, dict[str, Route]] = {
    **{f"{ROOT}/{kind.value}": {"POST": Route(_hint(kind), True)} for kind in Kind},
    f"{ROOT}/explain": {"GET": Route(_requests, False)},
    f"{ROOT}/explain/node": {"GET": Route(_node_of_query, False), "POST": Route(_node, True)},
    f"{ROOT}/state": {"GET": Route(_state, False)},
}
