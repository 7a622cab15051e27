"""The cache in virtual time: what :mod:`radixtier.sglang.cache` does between SGLang's tree and the mover.

Owns the tree above the mover, the backups on their way and the request records of the waiting room. What decides is
production code: mover, promotions, parking, write-behind, staging, sparing, waiting room, predicted returns, policies.
What is told again here is SGLang: the tree (:mod:`radixtier.lab.timed.radix`), and when it calls its cache. One
thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from radixtier.lab.rates import Rates
from radixtier.lab.timed.drive import Drive
from radixtier.lab.timed.radix import Node, RadixTree
from radixtier.lab.timed.turn import Turn
from radixtier.mover import Mover
from radixtier.mover.ahead import Ahead
from radixtier.mover.sparing import spared
from radixtier.mover.staging import Staging
from radixtier.mover.waiting import Path, Waiting
from radixtier.mover.waiting_room import BY_COST, WaitingRoom
from radixtier.policy.admission import Admission
from radixtier.policy.bandwidth import CopyRate
from radixtier.policy.draw import mixed
from radixtier.policy.prefill import PrefillCost
from radixtier.tree.residency import NO_PAGES, NONE, Flags, Pages, ResidencyTable, State
from radixtier.tree.tiertree import TierTree
from radixtier.tree.writequeue import Piece

LEAST_LOAD = 10
"""Tokens below which SGLang loads nothing from DRAM: it computes them again."""


class Learnt:
    """What prefill was seen to cost."""

    def __init__(self) -> None:
        self.cost = PrefillCost()


@dataclass(eq=False)
class _Backup:
    """A copy from HBM to DRAM; a node may have been split since it began."""

    number: int
    nodes: list[Node]
    locked: Node
    pages: Pages
    ends: float
    used: bool
    """Whether somebody used the node, or HBM is about to lose it."""


class TimedCache:
    """HBM, and DRAM and NVMe below it.

    Parameters
    ----------
    hbm, dram, nvme
        Pages.
    page_tokens, page_bytes
        Of a page.
    chunk
        Pages of a chunk of prefill.
    eviction
        Name of the policy of DRAM and NVMe.
    admission
        To NVMe.
    rates
        Of the machine.
    clock
        Virtual.
    law
        By which requests wait for NVMe; see :class:`radixtier.mover.waiting_room.WaitingRoom`.
    """

    def __init__(
        self,
        hbm: int,
        dram: int,
        nvme: int,
        *,
        page_tokens: int,
        page_bytes: int,
        chunk: int,
        eviction: str,
        admission: Admission,
        rates: Rates,
        clock: Callable[[], float],
        law: str = BY_COST,
    ) -> None:
        self.tree = RadixTree(hbm, self._left_hbm)
        self.tree.on_split = self._was_split
        self.held = 0
        """Pages of HBM that requests have and the tree does not."""
        self.page_tokens = page_tokens
        self.page_bytes = page_bytes
        self.prefill = Learnt()
        self.copies = CopyRate()
        self.bytes_down = self.bytes_up = 0
        """Copied from HBM to DRAM and back."""
        self._rates = rates
        self._clock = clock
        self._backups: deque[_Backup] = deque()
        self._loads: list[Pages] = []
        """Over, and not acknowledged."""
        self._numbers = 0
        self._copied_at = 0.0
        self._ended: dict[int, Turn] = {}
        """Turns by the node that they ended with, until it is backed up."""
        self.mover: Mover | None = None
        self.drive: Drive | None = None
        if not dram:
            return
        table = ResidencyTable(dram + nvme, dram)
        self.mover = Mover(
            table, TierTree(table, eviction, clock), None, page_bytes=page_bytes, admission=admission, clock=clock
        )
        if nvme:
            self.drive = Drive(nvme, page_bytes, rates, clock)
            self.mover.store = self.drive  # type: ignore[assignment]
        self.ahead = Ahead(self.mover.tree, self.mover.promotions, self.mover.rate, page_bytes=page_bytes, clock=clock)
        self.waiting = WaitingRoom(self.mover, self.prefill, self.copies, page_tokens=page_tokens, clock=clock, law=law)
        self._staging = Staging(self.mover, self, hbm, chunk, clock=clock)

    # ---- HBM ----------------------------------------------------------------------------------------

    @property
    def free_pages(self) -> int:
        """Pages of HBM that hold nothing."""
        return self.tree.capacity - self.tree.used_pages - self.held

    @property
    def evictable_pages(self) -> int:
        """Pages of HBM that could be evicted now."""
        return self.tree.evictable_pages

    def make_room(self, pages: int) -> bool:
        """See that so many pages of HBM are free."""
        missing = pages - self.free_pages
        if missing > 0:
            self.tree.evict_device(missing)
        return self.free_pages >= pages

    def _left_hbm(self, node: Node) -> None:
        if self.mover is not None and node.pages is not None:
            self.mover.left_hbm(node.pages)
        else:
            self._ended.pop(node.number, None)

    # ---- match --------------------------------------------------------------------------------------

    def _match(self, turn: Turn) -> tuple[Node, int, int]:
        """Match over all tiers, cut in front of the first page that cannot be delivered; pages in HBM and in all."""
        path = turn.matchable
        node, in_hbm, found = self.tree.match(path)
        turn.node = node
        if found == in_hbm or self.mover is None:
            return node, in_hbm, found
        below = (found - in_hbm) * self.page_tokens
        cut = self.waiting.cut(self.waiting.get(turn.number), node.number, below, lambda: self._below(node))
        if cut is None:
            return node, in_hbm, found
        turn.expired |= cut.final
        return self.tree.match(path[: in_hbm + cut.pages])

    def _below(self, node: Node) -> Path:
        """What the path to a node has below HBM."""
        assert self.mover is not None
        parts: list[Pages] = []
        for each in node.up():
            if each.hbm:
                break
            assert each.pages is not None
            parts.append(each.pages)
        return Path.of(np.concatenate(parts[::-1]) if parts else NO_PAGES, self.mover.table)

    # ---- arrival and admission ----------------------------------------------------------------------

    def arrive(self, turn: Turn) -> None:
        """A request arrives, or asks again: what its path has on NVMe starts to come up."""
        node, _, found = self._match(turn)
        turn.matched = found
        if self.mover is None or self.mover.store is None or (node.parent is not None and node.pages is None):
            return
        waiting = self.waiting.get(turn.number)
        if waiting is not None:
            if waiting.expired:
                return
            node, _, found = self.tree.match(turn.matchable)
        path = self._below(node)
        if path.known:
            tokens = found * self.page_tokens
            self.waiting.enter(turn.number, path, node.number, tokens, turn.input_tokens - tokens - 1)

    def admit(self, turn: Turn, reserved: int) -> bool | None:
        """Admit a request: its load is on its way then, and it has the room that its prompt takes.

        Parameters
        ----------
        turn
            The request.
        reserved
            Pages that those who run may still need.

        Returns
        -------
        bool or None
            False while it waits for pages from NVMe, None when HBM has no room for it.
        """
        if self.mover is not None and self.mover.store is not None and not self.waiting.may_admit(turn.number):
            return False
        node, in_hbm, found = self._match(turn)
        if turn.matched and found < turn.matched and not turn.expired:
            self.arrive(turn)
            return False
        # One page more than needed, as SGLang asks for.
        need = turn.pages_for(turn.input_tokens) + turn.pages_for(turn.output_tokens) + 1 - in_hbm + reserved
        self.tree.lock(node)
        if self.free_pages + self.tree.evictable_pages < need:
            self.tree.unlock(node)
            return None
        if found > in_hbm and not self._load(turn, node):
            self.tree.unlock(node)
            while not node.hbm and node.parent is not None:
                node = node.parent
            self.tree.lock(node)
            found = in_hbm
        turn.locked = node
        turn.hbm = in_hbm * self.page_tokens
        turn.inserted = found
        turn.computed = found * self.page_tokens
        turn.admitted = self._clock()
        if self.mover is not None:
            self._count(turn)
            waiting = self.waiting.get(turn.number)
            turn.waited_s = 0.0 if waiting is None else waiting.waited_s
            self.waiting.leave(turn.number)
        return True

    def give_up_waiting(self, turn: Turn) -> None:
        """A request takes what is there: it is admitted at the next try, if HBM has room for it."""
        waiting = self.waiting.get(turn.number) if self.mover is not None else None
        if waiting is not None:
            waiting.expired = waiting.admissible = True
        turn.expired = True

    def leave(self, turn: Turn) -> None:
        """A request is gone: nothing is held for it any more."""
        if self.mover is not None:
            self.waiting.leave(turn.number)

    def _load(self, turn: Turn, node: Node) -> bool:
        """Load a path from DRAM to HBM, all of it or nothing."""
        assert self.mover is not None
        path = self._below(node)
        if path.loadable < len(path.pages) or len(path.pages) * self.page_tokens < LEAST_LOAD:
            return False
        self.mover.acquire(path.pages)
        if not self.make_room(len(path.pages)):
            self.mover.release(path.pages)
            return False
        for each in list(node.up()):
            if each.hbm:
                break
            self.tree.set_hbm(each)
        turn.loading = path.pages
        waiting: Waiting | None = self.waiting.get(turn.number)
        cold = 0 if waiting is None else int(np.isin(path.pages, waiting.cold).sum())
        self.mover.parking.served(cold)
        turn.nvme = cold * self.page_tokens
        turn.dram = len(path.pages) * self.page_tokens - turn.nvme
        self.bytes_up += len(path.pages) * self.page_bytes
        return True

    def loaded(self, turn: Turn) -> None:
        """The load of a request is over; the next look acknowledges it."""
        if len(turn.loading):
            self._loads.append(turn.loading)
            turn.loading = NO_PAGES

    def _count(self, turn: Turn) -> None:
        """Count a request once on the path that it uses."""
        assert self.mover is not None and turn.node is not None
        for each in turn.node.up():
            if each.pages is not None:
                page = int(each.pages[-1])
                self.mover.tree.ends(page, each.number)
                self.mover.used_by_request(page)
                return

    # ---- prefill, decode and the end of a turn ------------------------------------------------------

    def extend(self, turn: Turn, tokens: int) -> None:
        """Give a request the pages of HBM for its first ``tokens`` tokens, if there is room."""
        more = max(0, turn.pages_for(tokens) - turn.inserted - turn.held)
        # SGLang asks for one page more than needed.
        if self.make_room(more + 1) or self.free_pages >= more:
            turn.held += more
            self.held += more

    def insert(self, turn: Turn, tokens: int, last: bool = False) -> None:
        """Put what was computed into the tree, ``tokens`` from the start; ``last`` when the answer is complete."""
        pages = min(tokens // self.page_tokens, len(turn.path))
        node = turn.locked
        if pages:
            node, walked = self.tree.insert(turn.path[:pages])
            self._back_up(turn, walked)
            if self.mover is not None and self.mover.table.count[State.LOST]:
                self._copy_again(node, self.mover.lost_of)
            prompt = turn.input_tokens // self.page_tokens
            if last and 0 < prompt < pages:
                # So that the answer can go without the prompt.
                self.tree.insert(turn.path[:prompt])
            if self.mover is not None:
                self.mover.reached_hbm(each.pages for each in node.up())
        assert node is not None
        self._hand_over(turn, max(pages, turn.inserted))
        self.tree.lock(node)
        if turn.locked is not None:
            self.tree.unlock(turn.locked)
        turn.locked = node
        if last:
            self._end(turn, node)

    def _hand_over(self, turn: Turn, pages: int) -> None:
        """Of a request's pages in HBM the tree has those it was given; what it had already is free again."""
        handed = min(turn.held, pages - turn.inserted)
        turn.inserted = pages
        turn.held -= handed
        self.held -= handed

    def _end(self, turn: Turn, node: Node) -> None:
        self.held -= turn.held
        turn.held = 0
        self.tree.unlock(node)
        turn.locked = None
        turn.ended = self._clock()
        if self.mover is not None and node.parent is not None:
            self._ended[node.number] = turn
            self._end_turn(node)

    def _end_turn(self, node: Node) -> None:
        """As soon as the end of a turn is backed up, its session is between two turns."""
        assert self.mover is not None
        if node.number not in self._ended or node.pages is None:
            return
        run = self.mover.tree.run_of(int(node.pages[-1]))
        if run is not None:
            turn = self._ended.pop(node.number)
            self.ahead.turn_ended(run, turn.session, turn.arrived)

    # ---- backup -------------------------------------------------------------------------------------

    def _back_up(self, turn: Turn, walked: list[Node]) -> None:
        """Back up what has no backup, root-side first, as far as there are handles and frames."""
        if self.mover is None:
            return
        at = 0
        for node in walked:
            at += len(node)
            if node.pages is None and at > turn.inserted:
                chain = [each for each in node.up() if each.pages is None]
                if not all(self._back_up_node(each) for each in reversed(chain)):
                    return

    def _back_up_node(self, node: Node) -> bool:
        assert self.mover is not None
        missing = len(node) - self.mover.table.free_handles
        if missing > 0 and self.tree.evict_host(missing, self.mover.free) < missing:
            return False
        pages = self.mover.alloc(len(node))
        if pages is None:
            return False
        node.pages = pages
        self._copy(node, pages, used=True)
        return True

    def _copy(self, node: Node, pages: Pages, *, used: bool) -> None:
        assert self.mover is not None
        self.mover.acquire(pages)
        self.tree.lock(node)
        self._numbers += 1
        node.pending = self._numbers
        nbytes = len(pages) * self.page_bytes
        self.bytes_down += nbytes
        self._copied_at = max(self._copied_at, self._clock()) + nbytes / self._rates.copy
        self._backups.append(_Backup(self._numbers, [node], node, pages, self._copied_at, used))

    def _was_split(self, front: Node, child: Node) -> None:
        if child.pending:
            for backup in self._backups:
                if backup.number == child.pending:
                    backup.nodes.insert(backup.nodes.index(child), front)

    def _reap(self) -> None:
        """Acknowledge the copies to DRAM, and the loads, that are over."""
        mover = self.mover
        assert mover is not None
        while self._backups and self._backups[0].ends <= self._clock():
            backup = self._backups.popleft()
            mover.release(backup.pages)
            mover.filled(backup.pages)
            self.tree.unlock(backup.locked)
            for node in backup.nodes:
                node.pending = 0
                self._learn(node, backup.used)
                self._end_turn(node)
        for pages in self._loads:
            mover.release(pages)
            mover.tree.came_to_hbm(pages)
        self._loads.clear()

    def _learn(self, node: Node, used: bool) -> None:
        """Add a backed-up node to the TierTree and queue what is not on NVMe yet."""
        assert self.mover is not None and node.pages is not None and node.parent is not None
        table, tree, pages = self.mover.table, self.mover.tree, node.pages
        if (table.run[pages] == NONE).all():
            front = node.parent.pages
            numbers = node.key.astype(np.uint64)
            keys = np.stack([mixed(numbers), numbers], axis=1).view(np.uint8)
            tree.add(pages, None if front is None else int(front[-1]), keys, node=node.number)
            self.mover.parking.computed(pages)
        elif used:
            tree.use_page(int(pages[-1]))
        if used:
            tree.came_to_hbm(pages)
        for piece in Piece(pages).where(table.state[pages] == State.DIRTY):
            self.mover.write_behind(piece)

    # ---- from HBM once more -------------------------------------------------------------------------

    def copy_down(self, run: int, pages: Pages) -> int:
        """Copy pages of a run that are in HBM to DRAM once more; returns how many are on their way."""
        assert self.mover is not None
        number = self.mover.tree.node_of(run)
        node = None if number is None else self.tree.nodes.get(number)
        return 0 if node is None else self._copy_again(node, lambda some: np.isin(some, pages), used=False)

    def copied_down(self) -> None:
        """Copies begin at once."""

    def _copy_again(self, end: Node, wanted: Callable[[Pages], Flags], *, used: bool = True) -> int:
        assert self.mover is not None
        copied = 0
        for node in reversed(list(end.up())):
            if not node.hbm or node.pending or node.pages is None:
                continue
            some = wanted(node.pages)
            chosen = self.mover.refill(node.pages[some]) if some.any() else NO_PAGES
            if len(chosen):
                self._copy(node, chosen, used=used)
                copied += len(chosen)
        return copied

    # ---- the scheduler's tick -----------------------------------------------------------------------

    def tick(self, idle: bool) -> None:
        """Once per scheduler step; ``idle`` says that no request waits or runs."""
        mover = self.mover
        if mover is None:
            return
        self._reap()
        self.waiting.step()
        mover.tick()
        if pages := mover.to_forget:
            self._forget(pages)
        self._staging.step()
        self.ahead.step(idle)

    def _forget(self, pages: int) -> None:
        """Forget leaves below HBM, those that the policy minds least as far as that goes."""
        assert self.mover is not None
        kept = spared(self.mover.tree, pages)
        self.tree.spare(kept, True)
        forgotten = self.tree.evict_host(pages, self.mover.free)
        self.tree.spare(kept, False)
        if not forgotten:
            self.tree.evict_host(pages, self.mover.free)

    @property
    def next_event(self) -> float:
        """When something below HBM will be over, infinity for nothing."""
        ends = self._backups[0].ends if self._backups else float("inf")
        return ends if self.drive is None else min(ends, self.drive.next_end)

    # ---- tests --------------------------------------------------------------------------------------

    def check(self) -> None:
        """Verify every account from scratch."""
        self.tree.check()
        assert 0 <= self.held <= self.tree.capacity - self.tree.used_pages
        if self.mover is None:
            return
        table = self.mover.table
        table.check()
        nodes = self.tree.nodes.values()
        held = sum(len(node.pages) for node in nodes if node.pages is not None)
        assert held == table.n_handles - table.free_handles, "a handle is nobody's"
        if self.drive is not None:
            assert int((table.slot >= 0).sum()) == self.drive.n_slots - self.drive.free_slots
