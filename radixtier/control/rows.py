"""Nodes of the tree as rows, kept by columns.

Owns the names and the form of a row. Invariant: the columns are equally long and ordered by node; they are not changed
once they are made. Any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

NONE = -1
"""No parent: the node hangs from the root."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Columns of shape ``(rows,)``; of the tokens, those in two tiers count in both.

    Attributes
    ----------
    node, parent : ndarray of int64
        Numbers, ascending, and those of the nodes in front of them; :data:`NONE` at the root.
    start_token, tokens : ndarray of int64
        Where a node begins in its path, and how long it is.
    hbm, dram, nvme, lost : ndarray of int64
        Its tokens in each tier, and those that are nowhere below HBM.
    last_used, expected : ndarray of float64
        Last use, and when the next one is predicted, Unix seconds; NaN where there is none.
    hits : ndarray of int64
        Requests that used it.
    session : mapping of int to str
        By node, the session whose last turn ended there.
    pinned : mapping of int to mapping
        By node, the seconds that its pins have left, by tier.
    """

    node: Ints
    parent: Ints
    start_token: Ints
    tokens: Ints
    hbm: Ints
    dram: Ints
    nvme: Ints
    lost: Ints
    last_used: Floats
    hits: Ints
    expected: Floats
    session: Mapping[int, str] = field(default_factory=dict)
    pinned: Mapping[int, Mapping[str, float]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.node)

    @classmethod
    def empty(cls) -> Rows:
        """No rows."""
        columns: dict[str, Any] = {name: np.empty(0, np.float64 if name in _FLOATS else np.int64) for name in _COLUMNS}
        return cls(**columns)

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """Put rows one after the other; each part begins behind the end of the one before."""
        if not parts:
            return cls.empty()
        columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
        session = {node: name for part in parts for node, name in part.session.items()}
        pinned = {node: pins for part in parts for node, pins in part.pinned.items()}
        return cls(**columns, session=session, pinned=pinned)

    def to_json(self, which: Sequence[int] | Ints | slice = slice(None)) -> list[dict[str, Any]]:
        """Return some rows as plain data, in the order given."""
        columns = [getattr(self, name)[which].tolist() for name in _COLUMNS]
        return [self._row(dict(zip(_COLUMNS, values, strict=True))) for values in zip(*columns, strict=True)]

    def _row(self, row: dict[str, Any]) -> dict[str, Any]:
        node = row["node"]
        row["parent"] = None if row["parent"] == NONE else row["parent"]
        for name in _FLOATS:
            row[name] = row[name] if row[name] == row[name] else None
        row["session"] = self.session.get(node)
        row["pinned"] = dict(self.pinned.get(node, {}))
        return row


_COLUMNS = tuple(column.name for column in fields(Rows) if column.name not in ("session", "pinned"))
_FLOATS = ("last_used", "expected")
