"""TierTree: runs of pages that were inserted together, their parents, and how warm they are.

Owns what the policies need to know and SGLang's tree does not offer: which pages form a path below HBM, how often and
when it was used, and when it is expected again. It never mirrors which node exists in HBM, what is locked, or where a
node was split: it learns of new runs when a backup is acknowledged and of freed pages when the tree frees their
handles. Scheduler thread only.

Invariant: ``table.run[page]`` is the run of every page that was added and not freed since, and a run exists as
long as one of its pages does. A parent may go before its child only by failure (a lost backup); the child then
hangs from the root.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from radixtier.explain import Forgotten, NodeEvents
from radixtier.policy.admission import FANOUT
from radixtier.policy.eviction import SCAN_LIMIT, EvictionOrder, Shape, make_order
from radixtier.tree.residency import HBM, NO_PAGES, NONE, PARKED, Flags, Pages, ResidencyTable, State

ROOT = NONE

PASS_LIMIT = 128
"""Runs too warm to give way that are passed over in one search for a path that nobody waits for."""

LRU = "lru"

FREED = "freed"
"""The rule by which pages are forgotten that SGLang's tree frees."""


class Warmth(NamedTuple):
    """How soon a run is wanted again, as far as anybody knows; the lesser is the warmer."""

    expected: float
    """Predicted next use, seconds of the tree's clock; infinite without a prediction."""
    unused_since: float
    """Negative time of the last use."""


COLDEST = Warmth(math.inf, math.inf)


@dataclass(slots=True)
class Run:
    """Pages of one path segment, root-side first."""

    parent: int
    pages: Pages
    live: int
    """Pages of the run that still exist."""
    depth: int
    """Pages in front of the run."""
    lead: int = 0
    """A key that a path has in common: the first children of a run have its, the others the first of their own."""
    children: int = 0
    """Runs that ever hung from it."""
    node: int = NONE
    """SGLang's node that ends with the run's last page: it keeps that page for as long as it exists."""
    uses: int = 0
    """Requests that used it since it is known, the one that computed it included."""
    used: float = -math.inf
    """Last use."""
    expected: float | None = None
    """Predicted next use."""

    @property
    def warmth(self) -> Warmth:
        """How soon it is wanted again."""
        return Warmth(math.inf if self.expected is None else self.expected, -self.used)


class TierTree:
    """Runs by number, kept in step with a :class:`ResidencyTable`.

    Parameters
    ----------
    table
        Where the pages are.
    policy
        Name of the eviction policy of DRAM.
    clock
        Seconds.
    """

    def __init__(self, table: ResidencyTable, policy: str = "lru", clock: Callable[[], float] = time.monotonic) -> None:
        self.table = table
        self.policy = policy
        self.clock = clock
        self.runs: dict[int, Run] = {}
        self.order = make_order(policy, self.shape, table.n_frames)
        self.below = None if policy == LRU else make_order(policy, self.shape, table.n_handles)
        """Order in which runs are forgotten altogether; None for SGLang's own."""
        self.recency = None if policy == LRU else make_order(LRU, self.shape, table.n_handles)
        """SGLang's own, as far as it shows below HBM; None where nothing else is asked for."""
        self._orders: list[EvictionOrder] = [
            order for order in (self.order, self.below, self.recency) if order is not None
        ]
        self.touched: dict[int, float] = {}
        """Runs used since somebody last emptied this, and when (Unix seconds)."""
        self.in_both: OrderedDict[int, None] = OrderedDict()
        """Runs with frames whose bytes HBM has as well, least recently used first."""
        self.above: OrderedDict[int, None] = OrderedDict()
        """Runs with pages in HBM, least recently used first: the order in which they are likely to leave it."""
        self.cold: OrderedDict[int, None] = OrderedDict()
        """Runs that gave up frames or never had any, coldest first."""
        self.sunk: set[int] = set()
        """Runs that were demoted on request and not used since: an idle drive leaves them where they are."""
        self.pinned: Callable[[int], int] | None = None
        """How many leading pages of a run are to stay in DRAM as long as others can go."""
        self.events = NodeEvents()
        """The last decisions about each run."""
        self.forgotten = Forgotten()
        """When pages were given up for good, and by which rule."""
        self._next = 0

    def clear(self) -> None:
        """Forget every run."""
        self.runs.clear()
        self.touched.clear()
        for order in self._orders:
            order.clear()
        self.in_both.clear()
        self.above.clear()
        self.cold.clear()
        self.sunk.clear()
        self.events.clear()
        self.table.run[:] = NONE

    def shape(self, number: int) -> Shape:
        """Pages and depth of a run; no pages if there is no such run."""
        run = self.runs.get(number)
        return Shape(0, 0) if run is None else Shape(run.live, run.depth)

    def add(
        self, pages: Pages, parent_page: int | None, keys: npt.NDArray[np.uint8], *, used: bool = True, node: int = NONE
    ) -> int:
        """Learn of a new run.

        Parameters
        ----------
        pages
            Handles, root-side first; none of them is in another run.
        parent_page
            Handle of the page in front of the run, None at the root.
        keys
            Key digests of ``pages``, shape ``(len(pages), 16)``.
        used
            Whether its path counts as just used; a run that comes back from NVMe waits for its first use.
        node
            SGLang's node that ends with the run.
        """
        parent = ROOT if parent_page is None else int(self.table.run[parent_page])
        before = self.runs.get(parent)
        depth = 0 if before is None else before.depth + len(before.pages)
        number, self._next = self._next, self._next + 1
        self.table.run[pages] = number
        self.table.key[pages] = np.ascontiguousarray(keys).view("<u8")
        lead = int(self.table.key[pages[0], 0]) if before is None or before.children >= FANOUT else before.lead
        self.runs[number] = Run(parent, pages, len(pages), depth, lead, node=node, uses=int(used))
        if before is not None:
            before.children += 1
        if used:
            self.use(number)
        else:
            self.cold[number] = None
            self.cold.move_to_end(number, last=False)
            for order in self._orders[1:]:
                order.use([number], self.clock(), request=False)
        return number

    def key_of(self, page: int) -> bytes | None:
        """Return the key digest of a page, None when it is in no run."""
        return None if self.run_of(page) is None else self.table.key[page].tobytes()

    def run_of(self, page: int) -> int | None:
        """Return the run of a page, None when it is in none."""
        number = int(self.table.run[page])
        return number if number in self.runs else None

    def node_of(self, number: int) -> int | None:
        """Return the node of SGLang's tree that ends with a run, None where it is not known."""
        node = self.runs[number].node
        return None if node == NONE else node

    def ends(self, page: int, node: int) -> None:
        """Learn that a node of SGLang's tree ends with a page."""
        number = self.run_of(page)
        if number is not None and int(self.runs[number].pages[-1]) == page:
            self.runs[number].node = node

    def runs_of(self, pages: Pages) -> list[int]:
        """Return the runs of ``pages``, each once."""
        numbers = np.unique(self.table.run[pages])
        return [number for number in numbers.tolist() if number in self.runs]

    def path(self, number: int) -> list[int]:
        """Runs from ``number`` up to the root."""
        path = []
        while number != ROOT and number in self.runs:
            path.append(number)
            number = self.runs[number].parent
        return path

    def use(self, number: int, *, request: bool = False) -> None:
        """Mark a run and its ancestors as just used; ``request`` counts the use, which is due once per request."""
        path = self.path(number)
        self.touched.update(dict.fromkeys(path, time.time()))
        self.sunk.difference_update(path)
        now = self.clock()
        for each in path:
            run = self.runs[each]
            run.used = now
            run.uses += request
            if each in self.above:
                self.above.move_to_end(each)
            if each in self.in_both or (request and each in self.above):
                # What a request uses will not leave HBM soon, even if it was about to.
                _put_last(self.in_both, each)
        for order in self._orders:
            order.use(path, now, request=request)

    def enter(self, number: int) -> None:
        """Learn that pages of a run came to DRAM without anybody using them."""
        self.order.use(self.path(number), self.clock(), request=False)

    def use_page(self, page: int) -> None:
        """Mark the path that ends with ``page`` as just used."""
        number = self.run_of(page)
        if number is not None:
            self.use(number)

    def expect(self, number: int, when: float | None) -> None:
        """Predict the next use of the path that ends with a run, None to take it back."""
        for each in self.path(number):
            run = self.runs[each]
            if when is None or run.expected is None or run.expected < self.clock() or when < run.expected:
                run.expected = when
        for order in self._orders:
            order.expect(number, when)

    def came_to_hbm(self, pages: Pages) -> None:
        """Learn that HBM has pages: their frames may go before others."""
        self.table.set_mark(pages, HBM, True)
        for number in self.runs_of(pages):
            for place in (self.in_both, self.above):
                _put_last(place, number)

    def left_hbm(self, pages: Pages) -> None:
        """Learn that HBM does not have pages any more."""
        self.table.set_mark(pages, HBM, False)
        for number in self.runs_of(pages):
            self.in_both.pop(number, None)
            mine = self.pages_of(number)
            if not self.table.marked(mine, HBM).any():
                self.above.pop(number, None)
            if self.table.is_cold(mine).any():
                _put_last(self.cold, number)

    def stays(self, number: int) -> None:
        """HBM is about to lose a run: its frames are worth as much as others."""
        self.in_both.pop(number, None)

    def leaving_hbm(self, pages: int, scan: int) -> Iterator[int]:
        """Iterate over the runs that will leave HBM next, as far as ``pages`` pages, ``scan`` runs at most."""
        for number in list(islice(self.above, scan)):
            if pages <= 0:
                return
            there = int(self.table.marked(self.pages_of(number), HBM).sum())
            if not there:  # the tree freed those
                del self.above[number]
                continue
            pages -= there
            yield number

    def left_dram(self, pages: Pages) -> None:
        """Learn that pages gave up their frames."""
        for number in self.runs_of(pages):
            _put_last(self.cold, number)

    def sink(self, number: int) -> None:
        """Make a run the coldest in DRAM, as far as its children let it, and none that an idle drive brings up."""
        self.order.sink(number)
        self.sunk.add(number)

    def note(self, pages: Pages, what: str, why: str = "") -> None:
        """Enter a decision about pages, for their runs."""
        now = time.time()
        for number in self.runs_of(pages):
            self.events.note(number, now, what, why)

    def gave_up(self, pages: Pages, rule: str) -> None:
        """Enter that the bytes of pages are nowhere any more."""
        if len(pages):
            self.forgotten.add(self.table.key[pages, 0], time.time(), rule)

    def forget(self, pages: Pages) -> None:
        """Learn that the tree freed ``pages`` (call before the table frees them)."""
        self.gave_up(pages[self.table.run[pages] != NONE], FREED)
        numbers, counts = np.unique(self.table.run[pages], return_counts=True)
        self.table.run[pages] = NONE
        for number, gone in zip(numbers.tolist(), counts.tolist(), strict=True):
            run = self.runs.get(number)
            if run is None:
                continue
            run.live -= gone
            if int(self.table.run[run.pages[-1]]) != number:
                run.node = NONE
            if run.live == 0:
                del self.runs[number]
                self.touched.pop(number, None)
                self.in_both.pop(number, None)
                self.above.pop(number, None)
                self.cold.pop(number, None)
                self.sunk.discard(number)
                for order in self._orders:
                    order.forget(number)
                self.events.forget(number)
            elif 2 * run.live < len(run.pages):
                run.pages = self.pages_of(number)

    def pages_of(self, number: int) -> Pages:
        """Return the pages of a run that still exist, root-side first."""
        mine = self.runs[number].pages
        pages: Pages = mine[self.table.run[mine] == number]
        return pages

    def victims(self, need: int, warmer_than: Warmth | None = None) -> Pages:
        """Choose up to ``need`` pages that nobody uses and whose frames are free for the asking.

        First those that are in HBM as well, hottest first, since these will be there longest; then from the coldest
        subtree on, deepest pages first; pinned ones only when nothing else is left.

        Parameters
        ----------
        need
            Frames wanted.
        warmer_than
            Of pages that are not in HBM, take only runs that are less warm than this.
        """
        chosen = _Choice(need)
        self._from_both(chosen)
        pinned: list[int] = []
        passed = 0
        for number in self.order.coldest() if chosen.need > 0 else ():
            mine = self.pages_of(number)
            if not (self.table.frame[mine] != NONE).any():
                self.order.remove(number)
                continue
            if warmer_than is not None and self.runs[number].warmth <= warmer_than:
                # The order of eviction need not be that of warmth: who was used longest ago may be expected first.
                passed += 1
                if passed > PASS_LIMIT:
                    break
                continue
            may = self.table.droppable(mine)
            if self._spare_pinned(number, may):
                pinned.append(number)
            chosen.take(mine, may)
            if chosen.need <= 0:
                break
        for number in pinned if warmer_than is None else ():
            mine = self.pages_of(number)
            chosen.take(mine, self.table.droppable(mine))
        return chosen.pages

    def _spare_pinned(self, number: int, may: Flags) -> bool:
        """Take the pinned pages of a run out of those that may go; False if it has none."""
        pinned = 0 if self.pinned is None else self.pinned(number)
        if pinned:
            may[:pinned] = False
        return pinned > 0

    def _from_both(self, chosen: _Choice) -> None:
        idle: list[int] = []
        for number in reversed(self.in_both):
            if chosen.need <= 0 or len(idle) >= SCAN_LIMIT:
                break
            mine = self.pages_of(number)
            there = self.table.marked(mine, HBM) & (self.table.frame[mine] != NONE)
            if not there.any():
                idle.append(number)
            there &= self.table.droppable(mine)
            self._spare_pinned(number, there)
            chosen.take(mine, there)
        for number in idle:
            del self.in_both[number]

    def dirty_victims(self, need: int) -> Pages:
        """Choose up to ``need`` pages that nobody uses and whose only copy is in DRAM, the coldest first.

        Not those that are free for the asking: :meth:`victims` has these.
        """
        chosen = _Choice(need)
        for number in self.order.coldest():
            if chosen.need <= 0:
                break
            mine = self.pages_of(number)
            chosen.take(mine, self.table.unused(mine, State.DIRTY) & ~self.table.marked(mine, PARKED))
        return chosen.pages


class _Choice:
    """Pages taken so far, each once, and how many are still wanted."""

    def __init__(self, need: int) -> None:
        self.need = need
        self._parts: list[Pages] = []
        self._seen: set[int] = set()

    def take(self, pages: Pages, may: Flags) -> bool:
        """Take the deepest of those that may be taken; False if there was none."""
        if self.need <= 0:
            return False
        part = pages[may]
        if self._seen and len(part):
            part = part[[page not in self._seen for page in part.tolist()]]
        part = part[max(0, len(part) - self.need) :]
        if not len(part):
            return False
        self._seen.update(part.tolist())
        self._parts.append(part)
        self.need -= len(part)
        return True

    @property
    def pages(self) -> Pages:
        """All of them."""
        return np.concatenate(self._parts) if self._parts else NO_PAGES


def _put_last(place: OrderedDict[int, None], number: int) -> None:
    place[number] = None
    place.move_to_end(number)
