"""A client of the control endpoint, for the command line and for scripts.

Owns the names of the questions and what an answer that is none becomes; follows a server whose drain gives up the
socket that it was asked at (:mod:`~radixtier.control.endpoint`). Needs neither SGLang nor torch. Any thread.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from radixtier.control.address import Address
from radixtier.control.endpoint import Answer, Endpoint
from radixtier.control.requests import ROOT
from radixtier.policy.hints import Kind

TIMEOUT_S = 35.0
"""Longer than the server takes to say that it has no time, also for a picture of the tree."""


class ControlError(Exception):
    """The server cannot be reached, or says no.

    Attributes
    ----------
    status : int
        HTTP status, 0 when there was no answer.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class ControlClient:
    """Talks to the server at ``address``, with ``key`` if one is given.

    Attributes
    ----------
    endpoint : Endpoint
        The way there, for whoever passes on what it does not look into.
    """

    def __init__(self, address: Address, key: str | None = None, timeout: float = TIMEOUT_S) -> None:
        self.endpoint = Endpoint(address, key, timeout)

    def give_hint(self, kind: Kind, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Send a hint; return its outcome. Raises `ControlError`, as all of these do."""
        return self.call("POST", f"{ROOT}/{kind.value}", fields)

    def explain(self, rid: str | None = None, limit: int | None = None) -> dict[str, Any]:
        """Return the record of a request, or those of the last ``limit``."""
        return self.call("GET", f"{ROOT}/explain{_query(limit=limit, request=rid)}")

    def explain_node(self, target: Mapping[str, Any]) -> dict[str, Any]:
        """Return where the path or node that ``target`` names is, and what was decided about it."""
        return self.call("POST", f"{ROOT}/explain/node", target)

    def state(self) -> dict[str, Any]:
        """Return the figures of the tiers."""
        return self.call("GET", f"{ROOT}/state")

    def nodes(self, after: int | None = None, limit: int | None = None) -> dict[str, Any]:
        """Return some nodes of the tree with numbers above ``after``, and what to give as that for the next ones."""
        return self.call("GET", f"{ROOT}/nodes{_query(after=after, limit=limit)}")

    def tree(self, root: int | None = None, most: int | None = None) -> dict[str, Any]:
        """Return the tree, or what is below the node ``root``, in at most ``most`` items."""
        return self.call("GET", f"{ROOT}/tree{_query(root=root, most=most)}")

    def history(self, seconds: int | None = None) -> dict[str, Any]:
        """Return the figures of the last ``seconds``."""
        return self.call("GET", f"{ROOT}/history{_query(seconds=seconds)}")

    def events(self, limit: int | None = None) -> dict[str, Any]:
        """Return the last lines of the server's log, newest first."""
        return self.call("GET", f"{ROOT}/events{_query(limit=limit)}")

    def drain(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Have the server give its directories on NVMe up; call it again until the answer's status is "drained"."""
        return self.call("POST", f"{ROOT}/drain", {} if timeout_s is None else {"timeout_s": timeout_s})

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Make one request and return the answer's JSON object."""
        endpoint = self.endpoint
        try:
            answer = endpoint.exchange(method, path, None if body is None else json.dumps(body).encode())
        except (OSError, http.client.HTTPException) as error:
            raise ControlError(0, f"no answer from {endpoint.address}: {str(error) or type(error).__name__}") from None
        return _object(answer, endpoint.address)


def _query(**fields: object) -> str:
    given = {name: str(value) for name, value in fields.items() if value is not None}
    return f"?{urlencode(given, quote_via=quote)}" if given else ""


def _object(given: Answer, address: Address) -> dict[str, Any]:
    try:
        answer = json.loads(given.body)
    except ValueError:
        answer = None
    status = given.status
    if not isinstance(answer, dict):
        raise ControlError(status, f"{address} answered {status} without JSON; is it radixtier's control endpoint?")
    if status != 200:
        raise ControlError(status, str(answer.get("error", f"status {status}")))
    return answer
