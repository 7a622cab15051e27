"""The routes of the control endpoint: what each takes, what it becomes, and what is answered.

======  ====================================  ========================================================================
POST    ``/radix_tier/KIND``                  a hint; KIND as in :mod:`radixtier.policy.hints`
GET     ``/radix_tier/explain``               ``?request=RID`` for one request, ``?limit=N`` for the last ones
GET     ``/radix_tier/explain/node``          ``?node=N``, ``?tokens=1,2,3`` or ``?session=S``
POST    ``/radix_tier/explain/node``          the same as a body, which may have ``text`` as well
GET     ``/radix_tier/state``                 the figures of the tiers
GET     ``/radix_tier/nodes``                 the nodes of the tree, some at a time
GET     ``/radix_tier/tree``                  the tree, with small subtrees put together
GET     ``/radix_tier/history``               figures over time
GET     ``/radix_tier/events``                the last lines of the log
POST    ``/radix_tier/drain``                 give the directories on NVMe up
GET     ``/radix_tier/openapi.json``          this table, as a schema
======  ====================================  ========================================================================

Owns this table, from which the schema is made. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from radixtier.control import schemas
from radixtier.control.commands import (
    Command,
    Drain,
    ExplainNode,
    ExplainRequests,
    GiveHint,
    ListNodes,
    ReadEvents,
    ReadHistory,
    ReadSchema,
    ReadState,
    ReadTree,
)
from radixtier.control.fields import MOST_NODE, MOST_TOKEN, SPACE, WHICH, digits, name, only, seconds, target, whole
from radixtier.control.picture import LEAST_ITEMS
from radixtier.control.schemas import Schema
from radixtier.policy.hints import Kind, read_hint

ROOT = "/radix_tier"

MOST_REQUESTS = 1000
"""Requests explained at once; a larger limit means this."""

REQUESTS = 20
"""The same when no limit is given."""

MOST_NODES = 1000
MOST_ITEMS = 5000
MOST_SECONDS = 6 * 3600
MOST_EVENTS = 512


@dataclass(frozen=True)
class Route:
    """One method of one path.

    Attributes
    ----------
    method, path : str
        As on the request line.
    summary : str
        What it is for.
    read : callable
        Turns the body, or the query of a GET, into a command; raises `BadValue`.
    answer : str
        Name of the answer's schema.
    query : mapping of str to Schema
        The parameters it takes, all optional.
    body : Schema or None
        Of the body; None where there is none.
    body_needed : bool
        Whether one has to come.
    refusals : tuple of int
        Statuses of its own, besides those of every route.
    """

    method: str
    path: str
    summary: str
    read: Callable[[Mapping[str, Any]], Command]
    answer: str
    query: Mapping[str, Schema] = field(default_factory=dict)
    body: Schema | None = None
    body_needed: bool = True
    refusals: tuple[int, ...] = ()


def _hint(kind: Kind) -> Callable[[Mapping[str, Any]], Command]:
    def read(fields: Mapping[str, Any]) -> Command:
        rest = dict(fields)
        path = target({each: rest.pop(each, None) for each in (*WHICH, *SPACE)})
        action_id = name(rest, "action_id") or ""
        rest.pop("action_id", None)
        return GiveHint(read_hint(kind, action_id, rest), path)

    return read


def _requests(query: Mapping[str, Any]) -> Command:
    only(query, ("request", "limit"))
    limit = whole(query, "limit", REQUESTS, 0, MOST_NODE)
    if "request" in query:
        return ExplainRequests(query["request"], 1)
    return ExplainRequests(None, min(MOST_REQUESTS, limit))


def _node_of_query(query: Mapping[str, Any]) -> Command:
    only(query, ("node", "tokens", "session", *SPACE))
    fields: dict[str, Any] = dict(query)
    if "tokens" in fields:
        fields["tokens"] = [digits("tokens", part.strip()) for part in fields["tokens"].split(",")]
    if "node" in fields:
        fields["node"] = digits("node", fields["node"])
    return _node(fields)


def _node(fields: Mapping[str, Any]) -> Command:
    only(fields, (*WHICH, "node", *SPACE))
    return ExplainNode(target(fields, "node"))


def _state(query: Mapping[str, Any]) -> Command:
    only(query, ())
    return ReadState()


def _nodes(query: Mapping[str, Any]) -> Command:
    only(query, ("after", "limit"))
    return ListNodes(whole(query, "after", -1, 0, MOST_NODE), whole(query, "limit", ListNodes.limit, 1, MOST_NODES))


def _tree(query: Mapping[str, Any]) -> Command:
    only(query, ("root", "most"))
    root = whole(query, "root", 0, 0, MOST_NODE) if "root" in query else None
    return ReadTree(root, whole(query, "most", ReadTree.most, LEAST_ITEMS, MOST_ITEMS))


def _history(query: Mapping[str, Any]) -> Command:
    only(query, ("seconds",))
    return ReadHistory(whole(query, "seconds", ReadHistory.seconds, 1, MOST_SECONDS))


def _events(query: Mapping[str, Any]) -> Command:
    only(query, ("limit",))
    return ReadEvents(whole(query, "limit", ReadEvents.limit, 1, MOST_EVENTS))


def _drain(fields: Mapping[str, Any]) -> Command:
    only(fields, ("timeout_s",))
    return Drain(seconds(fields, "timeout_s", Drain.timeout_s, schemas.LONGEST_DRAIN_S))


def _schema(query: Mapping[str, Any]) -> Command:
    only(query, ())
    return ReadSchema()


def _from_to(least: int, most: int, default: int | None, what: str) -> Schema:
    schema: Schema = {"type": "integer", "minimum": least, "maximum": most, "description": what}
    return schema if default is None else schema | {"default": default}


_HINTS = {
    Kind.SHARE: "Many requests use the path: keep it in DRAM even while HBM has it, and write it to NVMe",
    Kind.PREFETCH: "The path is needed soon: bring it up to DRAM",
    Kind.DEMOTE: "The path is not needed soon: write it to NVMe and give up its place in DRAM",
    Kind.PIN: "Keep the path in a tier",
    Kind.RETAIN: "Do not forget the path: it stays on NVMe while others go",
    Kind.RELEASE: "End pins, shares and retains of the path",
}

ROUTES: tuple[Route, ...] = (
    *(
        Route("POST", f"{ROOT}/{kind.value}", _HINTS[kind], _hint(kind), "Outcome", body=schemas.hint_body(kind))
        for kind in Kind
    ),
    Route(
        "GET", f"{ROOT}/explain", "What requests were served from, and why the rest was computed", _requests,
        "Requests",
        query={
            "request": {"type": "string", "description": "one request, by its id"},
            "limit": _from_to(0, MOST_NODE, REQUESTS, f"the last so many, {MOST_REQUESTS} at most"),
        },
        refusals=(404,),
    ),
    Route(
        "GET", f"{ROOT}/explain/node", "Where the nodes of a path are, and how they got there", _node_of_query, "Path",
        query={
            "node": _from_to(0, MOST_NODE, None, "number of the last node; this, tokens or session has to be given"),
            "tokens": schemas.array({"type": "integer", "minimum": 0, "maximum": MOST_TOKEN}, minItems=1),
            "session": {"type": "string", "minLength": 1},
            "extra_key": {"type": "string", "minLength": 1, "description": "namespace of the tokens"},
            "cache_salt": {"type": "string", "minLength": 1, "description": "salt of the tokens"},
        },
    ),
    Route(
        "POST", f"{ROOT}/explain/node", "Where the nodes of a path are, and how they got there", _node, "Path",
        body=schemas.path_body("node"),
    ),
    Route("GET", f"{ROOT}/state", "Figures of the tiers, the requests, the drives and the store", _state, "State"),
    Route(
        "GET", f"{ROOT}/nodes", "The nodes of the tree by number; give `next` as `after` for those behind", _nodes,
        "Rows",
        query={
            "after": _from_to(0, MOST_NODE, None, "only nodes with larger numbers"),
            "limit": _from_to(1, MOST_NODES, ListNodes.limit, "rows at most; there may be fewer before the end"),
        },
    ),
    Route(
        "GET", f"{ROOT}/tree", "The tree in a bounded number of items: the largest subtrees, the rest put together",
        _tree, "Tree",
        query={
            "root": _from_to(0, MOST_NODE, None, "only what is below this node"),
            "most": _from_to(LEAST_ITEMS, MOST_ITEMS, ReadTree.most, "items"),
        },
        refusals=(404,),
    ),
    Route(
        "GET", f"{ROOT}/history", "Figures over time", _history, "History",
        query={"seconds": _from_to(1, MOST_SECONDS, ReadHistory.seconds, "how far back")},
    ),
    Route(
        "GET", f"{ROOT}/events", "The last lines of the log", _events, "Events",
        query={"limit": _from_to(1, MOST_EVENTS, ReadEvents.limit, "lines")},
    ),
    Route(
        "POST", f"{ROOT}/drain", "Write what is waiting, close every file on NVMe and do without it from now on; ask "
        "again until `status` is drained", _drain, "Drain",
        body=schemas.DRAIN_BODY, body_needed=False, refusals=(409,),
    ),
    Route("GET", f"{ROOT}/openapi.json", "This document", _schema, "Schema"),
)  # fmt: skip
