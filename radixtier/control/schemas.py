"""JSON schemas (draft 2020-12) of what the control endpoint takes and answers.

Owns the form of bodies and answers; what a field may be is checked by :mod:`radixtier.control.fields` and
:mod:`radixtier.policy.hints`, and a test holds the two against each other. Objects that are answered may have fields
beyond those named here: a client ignores what it does not know. Pure data; any thread.
"""

from __future__ import annotations

from typing import Any

from radixtier.control.fields import MOST_NAME, MOST_NODE, MOST_TOKEN, SPACE, WHICH
from radixtier.policy.hints import Kind, Status
from radixtier.policy.pins import Tier

Schema = dict[str, Any]

LONGEST_DRAIN_S = 3600.0

COUNT: Schema = {"type": "integer", "minimum": 0}
TOKENS: Schema = {"type": "integer", "minimum": 0, "description": "tokens"}
NUMBER: Schema = {"type": "number"}
WHEN: Schema = {"type": ["number", "null"], "description": "Unix seconds"}
TEXT: Schema = {"type": "string"}
NAME: Schema = {"type": ["string", "null"], "minLength": 1, "maxLength": MOST_NAME}
NULL: Schema = {"type": "null"}


def array(items: Schema, **limits: int) -> Schema:
    """A list of these."""
    return {"type": "array", "items": items, **limits}


def mapping(values: Schema) -> Schema:
    """An object with any names and these values."""
    return {"type": "object", "additionalProperties": values}


def answer(**properties: Schema) -> Schema:
    """An object of an answer, which has at least these fields."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def named(name: str) -> Schema:
    """What stands under a name in :data:`COMPONENTS`."""
    return {"$ref": f"#/components/schemas/{name}"}


def either(schema: Schema) -> Schema:
    """This, or null."""
    return {"anyOf": [schema, NULL]}


# Bodies

_PATH: dict[str, Schema] = {
    "tokens": {
        **array({"type": "integer", "minimum": 0, "maximum": MOST_TOKEN}, minItems=1),
        "description": "token ids from the start of the prompt",
    },
    "text": {**TEXT, "minLength": 1, "description": "the same before the tokenizer, with the chat template applied"},
    "session": {
        **TEXT,
        "minLength": 1,
        "maxLength": MOST_NAME,
        "description": "the session_id that requests were sent with",
    },
    "node": {"type": "integer", "minimum": 0, "maximum": MOST_NODE, "description": "number of a node"},
}

_HINTS: dict[str, Schema] = {
    "ttl_s": {"type": ["number", "null"], "exclusiveMinimum": 0, "description": "seconds that it holds; a day at most"},
    "by_s": {"type": ["number", "null"], "minimum": 0, "description": "seconds from now until it is needed"},
    "tier": {"enum": [*(tier.value for tier in Tier), None]},
    "hbm": {"type": ["boolean", "null"], "description": "whether it leaves HBM as well"},
    "start_token": {"type": ["integer", "null"], "minimum": 0, "maximum": MOST_TOKEN},
    "end_token": {
        "type": ["integer", "null"],
        "minimum": 1,
        "maximum": MOST_TOKEN,
        "description": "behind start_token",
    },
}

TAKES: dict[Kind, tuple[str, ...]] = {
    Kind.SHARE: ("ttl_s",),
    Kind.PREFETCH: ("by_s",),
    Kind.DEMOTE: ("hbm",),
    Kind.PIN: ("ttl_s", "tier"),
    Kind.RETAIN: ("ttl_s",),
    Kind.RELEASE: (),
}
"""Fields of each hint besides the span."""


def path_body(*more: str, extra: dict[str, Schema] | None = None) -> Schema:
    """A body that names one path in one of the ways; ``more`` are further ones, ``extra`` are further fields."""
    which = (*WHICH, *more)
    ways = []
    for way in which:
        others = [name for name in which if name != way]
        others += SPACE if way in ("session", "node") else ()
        ways.append({"required": [way], "properties": {way: _PATH[way]} | dict.fromkeys(others, NULL)})
    return {
        "type": "object",
        "properties": {
            **{name: either(_PATH[name]) for name in which},
            "extra_key": {**NAME, "description": "namespace of tokens and text, as in the request"},
            "cache_salt": {**NAME, "description": "salt of tokens and text, as in the request"},
            **(extra or {}),
        },
        "additionalProperties": False,
        "oneOf": ways,
    }


def hint_body(kind: Kind) -> Schema:
    """The body of a hint."""
    own = {name: _HINTS[name] for name in (*TAKES[kind], "start_token", "end_token")}
    return path_body(extra={**own, "action_id": {**NAME, "description": "what the outcome will name"}})


DRAIN_BODY: Schema = {
    "type": "object",
    "properties": {
        "timeout_s": {
            "type": ["number", "null"],
            "minimum": 0,
            "maximum": LONGEST_DRAIN_S,
            "default": 30,
            "description": "seconds after which no further write begins",
        }
    },
    "additionalProperties": False,
}

# Answers

_AMOUNTS = dict.fromkeys(("tokens", "hbm", "dram", "nvme"), TOKENS)

_ROW: dict[str, Schema] = {
    "node": {"type": "integer", "description": "its number; numbers grow from parents to children"},
    "parent": {"type": ["integer", "null"], "description": "number of the node in front of it, null at the root"},
    "start_token": {**TOKENS, "description": "where it begins in its path"},
    **_AMOUNTS,
    "lost": {**TOKENS, "description": "tokens that are nowhere below HBM"},
    "last_used": WHEN,
    "hits": {**COUNT, "description": "requests that used it"},
    "session": {"type": ["string", "null"], "description": "whose last turn ended here"},
    "expected": {**WHEN, "description": "when its next use is predicted, Unix seconds"},
    "pinned": {**mapping(NUMBER), "description": "seconds that its pins have left, by tier"},
}

_CONTROL: Schema = {
    "type": ["string", "null"],
    "description": "where this endpoint listens once NVMe is drained: elsewhere if its socket lies on a drive",
}

_CAUSE = answer(reason=TEXT, tokens=TOKENS, detail=TEXT, when=WHEN, rule=TEXT)

COMPONENTS: dict[str, Schema] = {
    "Error": answer(error={**TEXT, "description": "what is wrong, and what to do about it"}),
    "Outcome": answer(
        action_id=TEXT,
        kind=TEXT,
        status={"enum": [status.value for status in Status]},
        tokens_asked=TOKENS,
        tokens_granted=TOKENS,
        reason=TEXT,
    ),
    "Request": answer(
        request=TEXT,
        session={"type": ["string", "null"]},
        arrived=NUMBER,
        waited_s=NUMBER,
        prompt_tokens=TOKENS,
        served=answer(hbm=TOKENS, dram=TOKENS, nvme=TOKENS),
        recomputed=TOKENS,
        causes=array(_CAUSE),
        hints=array({"type": "object"}),
    ),
    "Requests": answer(requests=array(named("Request"))),
    "Node": answer(
        node=_ROW["node"],
        parent=_ROW["parent"],
        start_token=_ROW["start_token"],
        tokens=TOKENS,
        places={**mapping(TOKENS), "description": "tokens by where their bytes are"},
        last_used=WHEN,
        hits=COUNT,
        session=_ROW["session"],
        expected=_ROW["expected"],
        pinned=_ROW["pinned"],
        events=array(answer(when=NUMBER, what=TEXT, why=TEXT)),
    ),
    "Path": answer(nodes=array(named("Node"))),
    "State": {
        "type": "object",
        "description": "figures of the tiers, the requests, the drives and the store; more than is named here",
        "properties": {
            "pid": COUNT,
            "version": TEXT,
            "sglang": TEXT,
            "model": {"type": ["string", "null"]},
            "started": NUMBER,
            "now": NUMBER,
            "page_tokens": COUNT,
            "page_bytes": COUNT,
            "tiers": mapping(mapping({"type": ["integer", "boolean"]})),
            "pages": mapping(COUNT),
            "nodes": COUNT,
            "requests": {"type": ["object", "null"]},
            "io": {"type": ["object", "null"]},
            "journal": {"type": ["object", "null"]},
            "landing": {"type": ["object", "null"]},
            "tick": {"type": ["object", "null"]},
            "promotions": {"type": ["object", "null"]},
            "health": answer(
                status={"enum": ["ok", "degraded", "draining", "drained"]},
                reasons=array(answer(what=TEXT, why={"type": ["string", "null"]}, since=WHEN, fix=TEXT)),
            ),
            "control": _CONTROL,
            "nvme_drained": {"enum": [None, "draining", "drained"]},
            "wear": {"type": ["object", "null"]},
            "policies": mapping(TEXT),
            "pins": {"type": "object"},
            "estimates": {"type": "object"},
            "counters": {"type": "object"},
            "parked_pages": COUNT,
            "store": {"type": ["object", "null"]},
            "directories": array(TEXT),
        },
        "required": ["pid", "page_tokens", "page_bytes", "tiers", "pages", "nodes", "policies", "counters"],
    },
    "Row": answer(**_ROW),
    "Rows": answer(
        nodes=array(named("Row")),
        next={"type": ["integer", "null"], "description": "what to give as `after` for those behind; null at the end"},
        total={**COUNT, "description": "nodes in the tree"},
    ),
    "Item": answer(
        **_ROW,
        below={**answer(nodes=COUNT, **_AMOUNTS), "description": "sums over the whole subtree, itself included"},
        merged={
            **COUNT,
            "description": "0 for a node; else this stands for so many small siblings: its number is negative, its own "
            "figures are their sums, and `below` has the sums over their subtrees",
        },
    ),
    "Tree": answer(
        taken={**NUMBER, "description": "when the tree was read, Unix seconds"},
        total_nodes=COUNT,
        root={"type": ["integer", "null"]},
        path={**array(named("Row")), "description": "from the root to `root`, itself included; of a long one, its end"},
        nodes={**array(named("Item")), "description": "parents before children; with a `root`, it is the first"},
        hottest={**array(named("Row")), "description": "used by most requests"},
        coldest={**array(named("Row")), "description": "not used for longest"},
    ),
    "History": answer(
        interval_s=NUMBER,
        at={**array(NUMBER), "description": "Unix seconds"},
        series={**mapping(array({"type": ["number", "null"]})), "description": "one value per time, by name"},
    ),
    "Events": answer(
        events={
            **array(
                {
                    **answer(at=NUMBER, level=TEXT, text=TEXT),
                    "description": "`times` says how often an equal line followed it",
                }
            ),
            "description": "newest first",
        }
    ),
    "Drain": answer(
        status={"enum": ["draining", "drained"]},
        unwritten_pages={
            **COUNT,
            "description": "while draining, pages that are still to be written; once drained, those that were not",
        },
        directories={**array(TEXT), "description": "what is given up"},
        reason={
            "type": ["string", "null"],
            "description": "what a drain that is not over waits for; once drained, what else of the server keeps these "
            "file systems from being unmounted, null for nothing",
        },
        control=_CONTROL,
    ),
    "Schema": {"type": "object", "description": "an OpenAPI 3.1 document"},
}
"""By name; see :func:`named`."""
