"""After a restart of several ranks: what all of them have stored goes back into their trees, the same on each.

Owns what is on its way between reading the journals and the trees. The first rank reads its journals, parents first and
hottest first, and tells the others row by row; each looks up the same pages in its own journals, in its own time. A row
goes back when all have answered, as far as every rank has its pages, in the order in which the rows were told. So the
trees stay alike whatever a crash left on which rank. What not all ranks have is given up. Where the first rank stores
for all, it tells places and checksums as well, and nobody looks anything up. Scheduler thread only; journals are read
by threads of the store.
"""

from __future__ import annotations

import logging
import pickle
from collections import OrderedDict, deque
from typing import Any, NamedTuple

import numpy as np

from radixtier.identity import Space, Stretch, Tokens, namespace_seed
from radixtier.ranks import Agreement, Completion, Completions, SharedStore, Words
from radixtier.ranks.completions import CANCELLED, FAILED, OK
from radixtier.sglang.restore import FIRST_S
from radixtier.sglang.restore_insert import Inserter
from radixtier.store.finder import Finder, Found
from radixtier.store.jobs import Ints, Sums
from radixtier.store.restorer import WARM_ROWS, Restorer, Stored

logger = logging.getLogger(__name__)

MESSAGE_BYTES = 64 << 10
"""Of rows told at once, if one row is not larger."""

MOST_ROWS = 256
"""Told and not put back yet."""

PATHS_BYTES = 32 << 20
"""Of paths that every rank remembers, so that they are told once."""

TOUCHES = 64
"""Paths per step, in the end."""

WAIT_S = 0.02
"""Until the first rank looks again for rows, before there are requests."""

END = b"end"

UNSUMMED = CANCELLED
"""Of a page: it is there, and its weighted sum is not known."""


class _Row(NamedTuple):
    stretch: Stretch
    path: Tokens | None
    """Tokens in front; None where they are not known."""


class _Place(NamedTuple):
    slots: Ints
    checksums: Sums
    weighted: Sums


def _place(stored: Stored) -> _Place:
    weighted = np.zeros_like(stored.checksums) if stored.weighted is None else stored.weighted
    return _Place(stored.slots, stored.checksums, weighted)


class Paths:
    """Paths by the key of their last page, the least recently used forgotten first."""

    def __init__(self, most_bytes: int = PATHS_BYTES) -> None:
        self._most = most_bytes
        self._paths: OrderedDict[bytes, Tokens] = OrderedDict()
        self._bytes = 0

    def get(self, key: bytes) -> Tokens | None:
        """Return a path, None for one that is forgotten."""
        path = self._paths.get(key)
        if path is not None:
            self._paths.move_to_end(key)
        return path

    def put(self, key: bytes, path: Tokens) -> None:
        """Remember a path."""
        before = self._paths.pop(key, None)
        self._bytes += path.nbytes - (0 if before is None else before.nbytes)
        self._paths[key] = path
        while self._bytes > self._most:
            self._bytes -= self._paths.popitem(last=False)[1].nbytes


class RankedRestoration:
    """Puts back what the ranks of ``cache`` have stored.

    Attributes
    ----------
    over : bool
        Whether nothing comes back any more; all ranks say the same.
    """

    def __init__(self, cache: Any, ranks: Agreement) -> None:
        self._ranks = ranks
        self._store = cache.mover.store
        self._stats = cache.mover.stats
        self._shared = isinstance(self._store, SharedStore)
        self._sums = cache.mover.table.n_landing > 0
        self._page_size: int = cache.page_size
        self._inserter = Inserter(cache)
        self._words = Words(first=ranks.rank == 0)
        self._jobs = Completions()
        ranks.join(self._words)
        ranks.join(self._jobs)
        self._restorer: Restorer | None = self._store.restorer() if ranks.rank == 0 else None
        self._finder: Finder | None = None if ranks.rank == 0 or self._shared else self._store.finder()
        self._mine: deque[Stored] = deque()
        """Rows of the first rank that were told and not heard yet."""
        self._told = Paths()
        """What the others will remember once they have heard all that was told."""
        self._paths = Paths()
        self._rows: dict[int, _Row] = {}
        self._answered: dict[int, Completion] = {}
        self._heard = self._next = self._last_told = 0
        self._warm: list[tuple[Space, bytes]] = []
        self._ended = self._end_told = self._cancelled = False
        self.over = False

    @classmethod
    def of(cls, cache: Any, ranks: Agreement) -> RankedRestoration | None:
        """Return one if any rank has something to bring back; every rank calls this at the same point."""
        return cls(cache, ranks) if ranks.agreed(-int(cache.mover.store.has_rows)) else None

    def first(self) -> None:
        """Restore for so long as one rank does, before there are requests."""
        self._ranks.reduce()
        end = self._ranks.now() + FIRST_S
        while not self.over and self._ranks.now() < end:
            self.step()
            if self._restorer is not None and not self._words.waiting and not self._end_told:
                self._restorer.wait(WAIT_S)
            self._ranks.reduce()

    def step(self, seconds: float = 0.0) -> None:
        """Go on with what the last reduction brought."""
        for message in self._words.hear():
            self._hear(message)
        for found in self._finder.take() if self._finder is not None else ():
            self._answer(found)
        self._answered.update((each.tag, each) for each in self._jobs.take())
        while self._next in self._answered:
            number, self._next = self._next, self._next + 1  # also where this row fails
            self._put_back(self._rows.pop(number), self._answered.pop(number))
        if not self._cancelled:
            self._tell()
        if not self.over and self._next == self._heard and not self._words.coming:
            self.over = self._cancelled or (self._ended and not self._touch_some())
            if self.over and self._finder is not None:
                self._finder.close()

    @property
    def finished(self) -> bool:
        """Whether it is over, and this rank has given back all that it has in excess; call it until it is so."""
        if not self.over:
            return False
        if self._restorer is not None:
            done = self._restorer.done
            for slots in self._restorer.take_dropped():
                self._store.free(slots)
            return done
        if self._finder is None or not self._finder.over:
            return self._finder is None
        for found in self._finder.take():
            self._store.free(found.slots)
        self._store.free(self._finder.rest())
        return True

    def cancel(self) -> None:
        """Give up what is not back yet; every rank calls this at the same point."""
        if self._cancelled or self.over:
            return
        self._cancelled = True
        if self._restorer is not None:
            self._restorer.cancel()
            for _ in range(self._last_told if self._words.drop() else 0):
                self._store.free(self._mine.pop().slots)

    def abandon(self) -> None:
        """Stop; what is not back yet stays on record for the next restart."""
        self.over = True
        if self._restorer is not None:
            self._restorer.cancel()
        if self._finder is not None:
            self._finder.close()

    # ---- telling -------------------------------------------------------------------------------------

    def _tell(self) -> None:
        if self._ranks.rank or self._end_told or self._words.waiting:
            return
        restorer = self._restorer
        if restorer is None:  # others have something on record, this rank has not
            self._say_end()
            return
        done = restorer.done
        for slots in restorer.take_dropped():
            self._store.free(slots)
        rows, nbytes = [], 0
        while nbytes < MESSAGE_BYTES and len(self._mine) + len(self._rows) < MOST_ROWS and (taken := restorer.take(1)):
            stretch, path = taken[0].stretch, taken[0].path
            known = self._told.get(stretch.front) is not None or not len(path)
            self._remember(self._told, stretch, path)
            place = _place(taken[0]) if self._shared else None
            rows.append((*stretch.space, stretch.front, None if known else path, stretch.tokens, place))
            nbytes += stretch.tokens.nbytes + (0 if known else path.nbytes)
            self._mine.append(taken[0])
        if rows:
            self._words.say(pickle.dumps(rows))
            self._last_told = len(rows)
        elif done:
            self._say_end()

    def _say_end(self) -> None:
        self._end_told = True
        self._last_told = 0
        self._words.say(END)

    def _remember(self, paths: Paths, stretch: Stretch, path: Tokens) -> None:
        paths.put(stretch.keys[-1].tobytes(), np.concatenate([path, stretch.tokens.reshape(-1)]))

    # ---- hearing -------------------------------------------------------------------------------------

    def _hear(self, message: bytes) -> None:
        if message == END:
            self._ended = True
            return
        for extra_key, cache_salt, front, path, tokens, place in pickle.loads(message):
            mine = self._mine.popleft() if self._mine else None
            if self._cancelled:
                if mine is not None:
                    self._store.free(mine.slots)
                continue
            space = Space(extra_key, cache_salt)
            stretch = Stretch.chained(space, front, tokens.reshape(-1), self._page_size)
            path = self._path_to(space, front) if path is None else path
            self._look_up(stretch, path, place if mine is None else _place(mine))

    def _path_to(self, space: Space, front: bytes) -> Tokens | None:
        return np.empty(0, np.int32) if front == namespace_seed(*space) else self._paths.get(front)

    def _look_up(self, stretch: Stretch, path: Tokens | None, place: _Place | None) -> None:
        number, self._heard = self._heard, self._heard + 1
        if path is not None:
            self._remember(self._paths, stretch, path)
        if len(self._warm) < WARM_ROWS:
            self._warm.append((stretch.space, stretch.keys[-1].tobytes()))
        self._rows[number] = _Row(stretch, path)
        self._jobs.begin(number, len(stretch), 0)
        if place is not None:
            self._answer(Found(number, np.ones(len(stretch), np.bool_), *place))
        elif self._finder is not None:
            self._finder.find(number, stretch.keys)

    def _answer(self, found: Found) -> None:
        # A page whose weighted sum one rank does not know goes through DRAM on all.
        codes = np.where(found.weighted != 0, OK, UNSUMMED) if self._sums else np.full(len(found.there), OK)
        codes[~found.there] = FAILED
        self._jobs.end(found.number, codes.astype(np.int8), (0.0, 0.0), found)

    def _put_back(self, row: _Row, answer: Completion) -> None:
        found: Found = answer.local
        bad = np.flatnonzero(answer.codes == FAILED)
        n = int(bad[0]) if len(bad) else len(row.stretch)
        if self._cancelled or row.path is None:
            n = 0
        rest = found.slots[n:]
        self._store.free(rest[rest >= 0])
        if n and row.path is not None:
            stretch = row.stretch.part(0, n)
            weighted = np.where(answer.codes == OK, found.weighted, 0)[:n].astype(np.uint64)
            self._inserter.insert(Stored(stretch, found.slots[:n], found.checksums[:n], 0.0, row.path, weighted))

    def _touch_some(self) -> bool:
        """Put the tree's order of last uses right, coldest path first; False once that is done."""
        for space, key in self._warm[-TOUCHES:][::-1]:
            path = self._paths.get(key)
            if path is not None:
                self._inserter.touch(space, path)
        del self._warm[-TOUCHES:]
        if not self._warm and self._restorer is not None:
            logger.info(
                "radixtier: %d of %d stored pages are back on all ranks",
                self._stats.restored,
                self._restorer.pages_total,
            )
        return bool(self._warm)
