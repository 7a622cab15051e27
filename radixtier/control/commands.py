"""What can be asked of a server, and how it says no.

Owns the types only: immutable, plain data, valid whoever made them. Any thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from radixtier.policy.hints import Hint


@dataclass(frozen=True)
class Target:
    """What a command is about; exactly one of `tokens`, `text`, `session` and `node` is given.

    Attributes
    ----------
    tokens : array of int64 or None
        Token ids of a path from the root of its namespace on; not empty.
    text : str or None
        The same before the tokenizer; not empty.
    session : str or None
        Session whose paths are meant; not empty.
    node : int or None
        Number of a node; for :class:`ExplainNode` only.
    extra_key, cache_salt : str or None
        Namespace of `tokens` and `text`.
    """

    tokens: array[int] | None = None
    text: str | None = None
    session: str | None = None
    node: int | None = None
    extra_key: str | None = None
    cache_salt: str | None = None


@dataclass(frozen=True)
class GiveHint:
    """Carry out a hint; answered with its outcome as plain data."""

    hint: Hint
    target: Target


@dataclass(frozen=True)
class ExplainRequests:
    """Explain the request ``rid``, or without it the last ``limit``; answered with ``{"requests": [...]}``."""

    rid: str | None = None
    limit: int = 1


@dataclass(frozen=True)
class ExplainNode:
    """Explain where a path ends, or a node; answered with ``{"nodes": [...]}``, root-side first."""

    target: Target


@dataclass(frozen=True)
class ReadState:
    """Tell the figures of the tiers; answered with plain data."""


@dataclass(frozen=True)
class ListNodes:
    """List up to ``limit`` nodes with numbers above ``after``, in their order.

    Answered with ``{"rows": Rows, "next": int | None, "total": int}``: see :class:`~radixtier.control.rows.Rows`. There
    may be fewer rows than asked for, also none, before the end; only a `next` of None says that it is reached.
    """

    after: int = -1
    limit: int = 100


@dataclass(frozen=True)
class ReadRows:
    """List nodes with numbers above ``after``, as many as the step of the scheduler has time for.

    Answered with ``{"parts": [Rows, ...], "next": int | None, "total": int}``, otherwise as :class:`ListNodes`.
    """

    after: int = -1


@dataclass(frozen=True)
class Drain:
    """Give the directories on NVMe up, with ``timeout_s`` seconds for what is still to be written; plain data."""

    timeout_s: float = 30.0


@dataclass(frozen=True)
class ReadTree:
    """Tell the tree below the node ``root``, or all of it, in at most ``most`` items; plain data."""

    root: int | None = None
    most: int = 1500


@dataclass(frozen=True)
class ReadHistory:
    """Tell the figures of the last ``seconds``; plain data."""

    seconds: int = 600


@dataclass(frozen=True)
class ReadEvents:
    """Tell the last ``limit`` lines of the log; plain data."""

    limit: int = 100


@dataclass(frozen=True)
class ReadSchema:
    """Tell what can be asked and how: the OpenAPI document."""


Command: TypeAlias = (
    GiveHint
    | ExplainRequests
    | ExplainNode
    | ReadState
    | ListNodes
    | ReadRows
    | Drain
    | ReadTree
    | ReadHistory
    | ReadEvents
    | ReadSchema
)


class Refusal(Exception):
    """A command that is not carried out.

    Attributes
    ----------
    status : int
        HTTP status.
    error : str
        For the client: what is wrong and what to do about it.
    headers : mapping of str to str
        For the client, besides.
    """

    def __init__(self, status: int, error: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.headers = dict(headers or {})
