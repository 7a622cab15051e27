"""What an HTTP request asks for: finds its route, reads its query and its body.

Invariant: whatever arrives becomes a valid command or a :class:`Refusal` that names field, value and fix. Pure
functions; any thread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.parse import parse_qsl, urlsplit

from radixtier.control.commands import Command, Refusal
from radixtier.control.routes import ROOT, ROUTES, Route
from radixtier.units import BadValue

__all__ = ["ROOT", "find_route", "read_command", "read_json", "split"]

_BY_PATH: dict[str, dict[str, Route]] = {}
for _route in ROUTES:
    _BY_PATH.setdefault(_route.path, {})[_route.method] = _route


def split(target: str) -> tuple[str, dict[str, str]]:
    """Return path and query of a request line's target.

    Raises
    ------
    Refusal
        400 for a query that cannot be read.
    """
    try:
        parts = urlsplit(target)
        pairs = parse_qsl(parts.query, keep_blank_values=True, max_num_fields=16, errors="strict")
    except ValueError:
        raise Refusal(400, "the query cannot be read; give a few NAME=VALUE pairs in UTF-8") from None
    query = dict(pairs)
    if len(query) < len(pairs):
        raise Refusal(400, "the query gives a name twice; give each once")
    return parts.path.rstrip("/") or "/", query


def find_route(method: str, path: str) -> Route:
    """Find what a method of a path means; raises `Refusal` with status 404 or 405."""
    methods = _BY_PATH.get(path)
    if methods is None:
        raise Refusal(404, f"no such path; there are {', '.join(_BY_PATH)}")
    route = methods.get(method)
    if route is None:
        raise Refusal(405, f"not with {method[:16]}; use {' or '.join(methods)}", {"Allow": ", ".join(methods)})
    return route


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
