"""Answers as JSON, in pieces: encoding a long list at a stretch would keep the interpreter from the scheduler thread.

Pure functions; any thread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

PIECE = 64
"""Elements of a list that are encoded at a stretch; some 0.3 ms."""


DEPTH = 2
"""Objects within objects whose long lists are looked for."""


def encode(answer: Mapping[str, Any]) -> bytes:
    """Encode an answer.

    Raises
    ------
    TypeError, ValueError
        For what is not JSON, infinity and NaN included.
    """
    return _text(answer, DEPTH).encode()


def _text(value: Any, depth: int) -> str:
    if depth and isinstance(value, Mapping):
        return f"{{{', '.join(f'{_dumps(str(name))}: {_text(each, depth - 1)}' for name, each in value.items())}}}"
    if isinstance(value, list) and len(value) > PIECE:
        pieces = (_dumps(value[at : at + PIECE])[1:-1] for at in range(0, len(value), PIECE))
        return f"[{', '.join(pieces)}]"
    return _dumps(value)


def _dumps(value: Any) -> str:
    return json.dumps(value, default=_plain, allow_nan=False)


def _plain(value: Any) -> Any:
    """Numbers of numpy, as Python's."""
    item = getattr(value, "item", None)
    if item is None:
        raise TypeError(f"{type(value).__name__} is not plain data")
    return item()
