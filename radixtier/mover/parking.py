"""Parking: dirty pages that may not be written to NVMe, or not yet.

Owns the answers of the admission policy. The laws: a page is asked for when its backup is acknowledged, and again each
time a request uses its run; one that was throttled also when time has passed. A page that is admitted takes along the
parked pages in front of it, for without these nobody could reach it. What is parked keeps its place in DRAM as long as
it is warm, and is lost when DRAM needs the frame. Bounded by the number of frames. Scheduler thread only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

import numpy as np

from radixtier.mover.stats import MoverStats
from radixtier.policy.admission import Admission, Candidate, Verdict
from radixtier.tree.residency import HBM, NONE, PARKED, Flags, Pages
from radixtier.tree.tiertree import TierTree
from radixtier.tree.writequeue import Piece

RETRY_RUNS = 8
"""Throttled runs that are asked for again in one step."""

RETRY_S = 1.0
"""Pause between two such steps."""


class Parking:
    """Pieces by run, oldest first.

    Parameters
    ----------
    tree
        Whose runs the pieces are of.
    admission
        The policy.
    page_bytes
        What a page takes on NVMe.
    room
        Share of the slots that are free, 0 to 1.
    still_dirty
        Which pages of a piece still have to be written.
    enqueue
        Takes what is admitted.
    """

    def __init__(
        self,
        tree: TierTree,
        admission: Admission,
        stats: MoverStats,
        *,
        page_bytes: int,
        room: Callable[[], float],
        still_dirty: Callable[[Piece], Flags],
        enqueue: Callable[[Piece], None],
        clock: Callable[[], float],
    ) -> None:
        self._tree = tree
        self._table = tree.table
        self.admission = admission
        self._stats = stats
        self._page_bytes = page_bytes
        self._room = room
        self._still_dirty = still_dirty
        self._enqueue = enqueue
        self._clock = clock
        self._parked: OrderedDict[int, list[Piece]] = OrderedDict()
        self._throttled: OrderedDict[int, None] = OrderedDict()
        self._pages = 0
        self._asked = clock()

    def __len__(self) -> int:
        """Pages parked, those included that were written for another reason since."""
        return self._pages

    def ask(self, piece: Piece, needed: bool = False) -> None:
        """Have consecutive dirty pages of one run written, or park them; those that are parked stay so.

        ``needed`` says that they are wanted for a reason of their own: only a budget stands against it.
        """
        for part in piece.where(self._still_dirty(piece) & ~self._table.marked(piece.pages, PARKED)):
            self._ask(part, needed)

    def _ask(self, piece: Piece, needed: bool) -> None:
        number = self._tree.run_of(int(piece.pages[0]))
        if number is None:
            return
        verdict = self._verdict(number, piece, needed)
        admitted = [(number, piece)]
        for each in self._tree.path(number) if verdict is Verdict.ADMIT and self._parked else ():
            for parked in reversed(self._take(each) if each in self._parked else ()):
                admitted.append((each, parked))
                verdict = self._verdict(each, parked, needed=True) if verdict is Verdict.ADMIT else verdict
                if verdict is not Verdict.ADMIT:
                    self._park(each, parked, verdict)
                    admitted.pop()
            if verdict is not Verdict.ADMIT:
                # Without what is in front of them, nobody could reach these.
                self.admission.refund(sum(len(part) for _, part in admitted) * self._page_bytes, self._clock())
                break
        if verdict is not Verdict.ADMIT:
            for each, part in admitted:
                self._park(each, part, verdict)
            return
        for _, part in reversed(admitted):
            self._table.set_mark(part.pages, PARKED, False)
            self._enqueue(part)

    def _park(self, number: int, piece: Piece, verdict: Verdict) -> None:
        self._table.set_mark(piece.pages, PARKED, True)
        self._tree.note(piece.pages, "not written to NVMe", verdict.value)
        self._leave(number, piece.pages)
        self._parked.setdefault(number, []).append(piece)
        self._pages += len(piece)
        if verdict is Verdict.THROTTLED:
            self._throttled[number] = None
            self._stats.writes_throttled += len(piece)
        else:
            self._stats.writes_rejected += len(piece)
        if self._pages > 2 * self._table.n_frames:
            self._compact()

    def _verdict(self, number: int, piece: Piece, needed: bool = False) -> Verdict:
        keys = self._table.key[piece.pages, 0]
        run = self._tree.runs[number]
        return self.admission.admit(
            Candidate(
                keys, len(piece) * self._page_bytes, max(1, run.uses), self._room(), self._clock(), run.lead, needed
            )
        )  # fmt: skip

    def _take(self, number: int) -> list[Piece]:
        """Take out what is parked of a run and still dirty."""
        self._throttled.pop(number, None)
        pieces = self._parked.pop(number, [])
        self._pages -= sum(map(len, pieces))
        return [part for piece in pieces for part in piece.where(self._still_dirty(piece))]

    def used(self, path: list[int]) -> None:
        """A request used runs (deepest first): ask again for what is parked of them."""
        if not self._parked:
            return
        for number in path:
            if number in self._parked:
                self._ask_again(number)

    def _ask_again(self, number: int, needed: bool = False) -> None:
        for piece in self._take(number):
            self._table.set_mark(piece.pages, PARKED, False)
            self.ask(piece, needed)

    def admit(self, runs: Iterable[int]) -> None:
        """Have what is parked of runs, and of those in front of them, written as far as a budget goes."""
        for run in runs:
            for number in self._tree.path(run):
                if number in self._parked:
                    self._ask_again(number, needed=True)

    def step(self) -> None:
        """Ask again for a few of those that were throttled, the oldest first."""
        now = self._clock()
        if not self._throttled or now - self._asked < RETRY_S:
            return
        self._asked = now
        for number in list(self._throttled)[:RETRY_RUNS]:
            self._ask_again(number)
            if number in self._throttled:
                return

    def computed(self, pages: Pages) -> None:
        """Pages were computed that were in no tier."""
        self.admission.wanted(self._table.key[pages, 0], self._clock())

    def served(self, n_pages: int) -> None:
        """A request loads pages that were on NVMe only."""
        self.admission.served(n_pages, self._clock())

    def written(self, n_pages: int) -> None:
        """Admitted pages were written."""
        self.admission.wrote(n_pages * self._page_bytes, self._clock())

    def forgotten(self, pages: Pages) -> None:
        """The tree is about to forget pages; those on NVMe leave it to make room."""
        stored = pages[self._table.slot[pages] != NONE]
        if len(stored):
            self.admission.evicted(self._table.key[stored, 0], self._clock())
        self.lost(pages)

    def unwritten(self, n_pages: int) -> None:
        """Pages were admitted and then not written."""
        if n_pages:
            self.admission.refund(n_pages * self._page_bytes, self._clock())

    def lost(self, pages: Pages) -> None:
        """Pages of runs are about to leave the last tier below HBM that has them."""
        for number in self._tree.runs_of(pages) if self._parked else ():
            self._leave(number, pages)
        # What HBM has still may be copied down again: that is no proof that anybody wanted it.
        self.nowhere(pages[~self._table.marked(pages, HBM)])

    def nowhere(self, pages: Pages) -> None:
        """No tier has pages any more."""
        if len(pages):
            self.admission.gone(self._table.key[pages, 0], self._clock())

    def _leave(self, number: int, gone: Pages) -> None:
        """Take pages out of what is parked of a run: what comes again is parked again, and not twice."""
        pieces = self._parked.get(number)
        if not pieces:
            return
        kept = [part for piece in pieces for part in piece.where(~np.isin(piece.pages, gone))]
        self._pages += sum(map(len, kept)) - sum(map(len, pieces))
        if kept:
            self._parked[number] = kept
        else:
            self._parked.pop(number, None)
            self._throttled.pop(number, None)

    def clear(self) -> None:
        """Forget everything."""
        self._parked.clear()
        self._throttled.clear()
        self._pages = 0

    def _compact(self) -> None:
        throttled = list(self._throttled)
        for number in list(self._parked):
            kept = self._take(number)
            if kept and number in self._tree.runs:
                self._parked[number] = kept
                self._pages += sum(map(len, kept))
        self._throttled = OrderedDict.fromkeys(number for number in throttled if number in self._parked)
