"""What can be asked of the scheduler thread, and how it says no.

Owns the types only: immutable, plain data, valid whoever made them. Any thread.
"""

from __future__ import annotations

from array import array
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


Command: TypeAlias = GiveHint | ExplainRequests | ExplainNode | ReadState


class Refusal(Exception):
    """A command that is not carried out.

    Attributes
    ----------
    status : int
        HTTP status.
    error : str
        For the client: what is wrong and what to do about it.
    """

    def __init__(self, status: int, error: str) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
