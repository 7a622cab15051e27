"""The ceiling for one tier: Belady's choice, leaves only, and a block may pass without being kept.

The law: after each request, blocks whose next use is farthest leave first, the deepest of equal ones before the
others; those of the request itself are no exception (bypass), and what is never used again is not kept at all. A
block is used whenever a block behind it is, so its next use is never later and farthest-first is leaf-first by itself.
No policy that keeps prefixes can have more hits.

All kept blocks whose next use is by one request lie on its path, and all kept blocks on its path are found by it. So
the tier is a count of blocks per future request, the farthest of which loses its blocks first: O(stretches of a path
that are next used together), whatever the depth. An answer puts blocks there like a path, but finding them there is no
hit; a block that an answer makes anew before it is needed is not kept until then, and if some block behind it is, the
ceiling is a little too high. One thread.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from radixtier.lab.tape import Tape
from radixtier.lab.traces.trace import Nodes, Request

Ints = npt.NDArray[np.int64]


class Needs:
    """For each request on a tape, which later ones need its blocks next, and how many blocks."""

    def __init__(self, tape: Tape, nodes: Nodes) -> None:
        self.requests = len(tape)
        used = np.asarray(tape.nodes, np.int32)
        paths, answers = np.asarray(tape.paths, np.int32), np.asarray(tape.answers, np.int32)
        position = np.repeat(np.arange(self.requests, dtype=np.int32), paths + answers)
        following, again = _followers(used, ~_marked(paths, answers))
        # The stretches: consecutive blocks of one request that the same request needs next.
        asker, needed, by = used[again], position[again], position[following]
        begins = np.ones(len(asker), bool)
        begins[1:] = (needed[1:] != needed[:-1]) | (by[1:] != by[:-1])
        starts = np.flatnonzero(begins)
        pages = np.asarray(nodes.pages, np.int64)[asker]
        self._by: list[int] = by[starts].tolist()
        self._pages: list[int] = np.add.reduceat(pages, starts).tolist() if len(starts) else []
        bounds = np.searchsorted(needed[starts], np.arange(self.requests + 1))
        self._bounds: list[int] = bounds.tolist()

    def hits(self, blocks: int) -> list[int]:
        """Return how many blocks each request finds in a tier of ``blocks`` blocks."""
        kept: dict[int, int] = {}
        farthest: list[int] = []
        """Requests that find something, negated; those before the present one stay at the bottom."""
        used = 0
        hits: list[int] = []
        for position in range(self.requests):
            found = kept.pop(position, 0)
            hits.append(found)
            used -= found
            for at in range(self._bounds[position], self._bounds[position + 1]):
                by, pages = self._by[at], self._pages[at]
                if by not in kept:
                    kept[by] = 0
                    heapq.heappush(farthest, -by)
                kept[by] += pages
                used += pages
            while used > blocks:
                by = -farthest[0]
                gone = min(kept[by], used - blocks)
                used -= gone
                kept[by] -= gone
                if not kept[by]:
                    del kept[by]
                    heapq.heappop(farthest)
        return hits


def belady(requests: Iterable[Request], nodes: Nodes, blocks: int) -> tuple[int, int]:
    """Return hits and references, in blocks, of a tier of ``blocks`` blocks."""
    tape = Tape()
    references = 0
    for request in requests:
        tape.add(request, 0)
        references += sum(nodes.pages[node] for node in request.path)
    return sum(Needs(tape, nodes).hits(blocks)), references


def _marked(paths: npt.NDArray[np.int32], answers: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Mark the nodes on a tape that belong to answers."""
    lengths = np.stack((paths, answers), axis=1).ravel()
    marks: npt.NDArray[np.bool_] = np.repeat(np.tile([False, True], len(paths)), lengths)
    return marks


def _followers(used: npt.NDArray[np.int32], counts: npt.NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Return places on the tape whose node comes again at a place that ``counts``, and these places.

    Both in the order of the former: ``(following, again)``.
    """
    order = np.argsort(used, kind="stable")
    same = (used[order[1:]] == used[order[:-1]]) & counts[order[1:]]
    following = np.full(len(used), -1, np.int64)
    following[order[:-1][same]] = order[1:][same]
    again = np.flatnonzero(following >= 0)
    return following[again], again
