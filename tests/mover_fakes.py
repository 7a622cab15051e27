"""A mover with everything around it played by the test: SGLang's tree, the copies from and to HBM, the store.

The bytes of a page are a function of its key, hence of its namespace and token path, so that any wrong reuse of a
handle, a frame or a slot is seen as wrong bytes. :meth:`World.check` compares every account with what the test
knows to be true.
"""

from __future__ import annotations

import hashlib
import os
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from fake_store import PAGE_BYTES, FakeStore

from radixtier.identity import Space, Stretch, chain, namespace_seed
from radixtier.mover import Mover, Promotion, Trigger
from radixtier.policy.admission import AdmitAll, Candidate, Verdict
from radixtier.store.checksum import page_checksum
from radixtier.store.jobs import Priority
from radixtier.store.weighted import weighted_sum
from radixtier.tree.residency import DOOMED, HBM, NONE, PARKED, READ, VERIFY, WRITE, Pages, ResidencyTable, State
from radixtier.tree.tiertree import TierTree, Warmth
from radixtier.tree.writequeue import Piece

SCALE = int(os.environ.get("RADIXTIER_TEST_SCALE", "1"))
SPACE = Space("adapter", "tenant")
NAMESPACE = namespace_seed(*SPACE)
NOTHING = np.empty(0, np.int64)


def contents(key: bytes, nbytes: int) -> np.ndarray[Any, Any]:
    """Bytes of the page with this key."""
    return np.frombuffer(hashlib.shake_128(key).digest(nbytes), np.uint8)


def growth(churn: Callable[[int], None], steps: int) -> int:
    """Bytes that Python allocated and kept over ``steps`` steps, after a hundred that are not counted."""
    tracemalloc.start()
    try:
        churn(100)
        before = tracemalloc.get_traced_memory()[0]
        churn(steps)
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Answers(AdmitAll):
    """An admission policy that answers as the test says, and keeps accounts of what it granted."""

    def __init__(self, answer: Callable[[Candidate], Verdict] = lambda candidate: Verdict.ADMIT) -> None:
        self.answer = answer
        self.asked: list[Candidate] = []
        self.granted = 0
        """Bytes admitted and not given back."""
        self.left: list[int] = []
        """Keys of pages that are in no tier any more."""
        self.evictions: list[int] = []
        """Keys of pages that left NVMe to make room."""

    def admit(self, candidate: Candidate) -> Verdict:
        assert len(candidate.keys) and candidate.nbytes == candidate.pages * PAGE_BYTES
        assert 0 <= candidate.room <= 1 and candidate.uses >= 1
        self.asked.append(candidate)
        verdict = self.answer(candidate)
        self.granted += candidate.nbytes * (verdict is Verdict.ADMIT)
        return verdict

    def gone(self, keys: Any, now: float) -> None:
        self.left += keys.tolist()

    def evicted(self, keys: Any, now: float) -> None:
        self.evictions += keys.tolist()

    def refund(self, nbytes: int, now: float) -> None:
        assert 0 < nbytes <= self.granted, "more is given back than was granted"
        self.granted -= nbytes


@dataclass(eq=False)
class Backup:
    """A copy HBM -> DRAM that is on its way: new pages of a path, or lost and cold ones of an old."""

    pages: Pages
    keys: list[bytes]


@dataclass
class World:
    """The mover under test and what SGLang would know: which pages exist, their parents, who uses them."""

    table: ResidencyTable
    mover: Mover
    store: Any
    memory: np.ndarray[Any, Any]
    clock: Clock
    page_size: int = 2
    key: dict[int, bytes] = field(default_factory=dict)
    """Of every page that the tree holds."""
    tokens: dict[int, list[int]] = field(default_factory=dict)
    parent: dict[int, int | None] = field(default_factory=dict)
    backups: list[Backup] = field(default_factory=list)
    loads: list[tuple[Pages, list[bytes]]] = field(default_factory=list)
    promotions: list[Promotion] = field(default_factory=list)
    """Those that their request has not dropped."""
    born: int = 0
    ranked: float = 0.0
    hbm: set[int] = field(default_factory=set)
    """Pages that HBM has, as far as the mover was told."""
    pins: dict[int, int] = field(default_factory=dict)
    """Leading pages of runs that are to stay in DRAM."""
    awaited: list[float] = field(default_factory=list)
    """What those were told that wait for promotions ahead."""

    def __post_init__(self) -> None:
        self.mover.tree.pinned = lambda run: self.pins.get(run, 0)
        promotions = self.mover.promotions
        promotions._make_room = partial(self._watched_room, promotions._make_room)
        if isinstance(self.store, FakeStore):
            self.store.on_read = self._watched_read

    # ---- SGLang's tree ------------------------------------------------------------------------------

    def backup(self, n: int, parent: int | None = None) -> Backup | None:
        """Insert a run of ``n`` pages behind ``parent`` and start its copy from HBM; None if declined."""
        pages = self.mover.alloc(n)
        if pages is None:
            return None
        first = self.born * self.page_size
        tokens = list(range(first, first + n * self.page_size))
        self.born += n
        before = NAMESPACE if parent is None else self.key[parent]
        keys = [row.tobytes() for row in chain(before, tokens, self.page_size)]
        for i, (page, key) in enumerate(zip(pages.tolist(), keys, strict=True)):
            assert page not in self.key, "a handle was given out while the tree still holds it"
            self.tokens[page] = tokens[i * self.page_size : (i + 1) * self.page_size]
            self.key[page], self.parent[page], parent = key, parent, page
        return self._submit(Backup(pages, keys))

    def refill(self, pages: Pages) -> Backup | None:
        """Start copying pages that HBM has, and DRAM does not, behind their old handles; None if declined."""
        pages = self.mover.refill(pages)
        return self._submit(Backup(pages, [self.key[p] for p in pages.tolist()])) if len(pages) else None

    def _submit(self, backup: Backup) -> Backup:
        self.mover.acquire(backup.pages)
        self.memory[self.table.frame[backup.pages]] = 0xBB  # half a copy
        self.backups.append(backup)
        return backup

    def finish_backup(self, backup: Backup, ok: bool = True) -> Pages:
        """The copy is over and acknowledged; returns its pages."""
        self.backups.remove(backup)
        pages = backup.pages
        if ok:
            rows = [contents(key, self.memory.shape[1]) for key in backup.keys]
            self.memory[self.table.frame[pages]] = np.stack(rows)
        self.mover.release(pages)
        (self.mover.filled if ok else self.mover.fill_failed)(pages)
        kept = np.array([p for p, k in zip(pages.tolist(), backup.keys, strict=True) if self.key.get(p) == k], np.int64)
        if ok and len(kept):
            self._learn(kept)
        return pages

    def _learn(self, pages: Pages) -> None:
        """Tell the TierTree of pages that it does not know, by runs, and queue all for the drive."""
        for run in self._paths(pages[self.table.run[pages] == NONE]):
            parent = self.parent[run[0]]
            known = None if parent is None else self.mover.tree.key_of(parent)
            assert known is None or known == self.key[parent]
            self.mover.tree.add(np.array(run, np.int64), parent, self._keys(run))
        for page in pages.tolist():
            self.mover.tree.use_page(page)
        self.queue(pages)

    def queue(self, pages: Pages) -> None:
        """Queue pages for the drive, by paths."""
        for path in self._paths(pages):
            parent = self.parent[path[0]]
            front = NAMESPACE if parent is None else self.key[parent]
            tokens = np.array([self.tokens[page] for page in path], np.int32)
            self.mover.write_behind(Piece(np.array(path, np.int64), Stretch(SPACE, front, self._keys(path), tokens)))

    def _keys(self, path: list[int]) -> np.ndarray[Any, Any]:
        return np.array([list(self.key[page]) for page in path], np.uint8)

    def _paths(self, pages: Pages) -> list[list[int]]:
        """Cut pages where one does not hang from the one before it, or is of another run."""
        paths: list[list[int]] = []
        run = self.table.run
        for page in pages.tolist():
            if not paths or self.parent[page] != paths[-1][-1] or run[page] != run[paths[-1][-1]]:
                paths.append([])
            paths[-1].append(page)
        return paths

    def add(self, n: int, parent: int | None = None) -> Pages:
        """Insert a run, copied at once."""
        backup = self.backup(n, parent)
        assert backup is not None, "declined"
        return self.finish_backup(backup)

    def on_disk(self, n: int, front: bytes) -> tuple[Stretch, Any, Any]:
        """Pages that an earlier run left on the drive: their stretch, slots and checksums (fake store)."""
        first = self.born * self.page_size
        self.born += n
        stretch = Stretch.chained(SPACE, front, range(first, first + n * self.page_size), self.page_size)
        slots = self.store.alloc(n)
        sums = []
        for i, slot in enumerate(slots.tolist()):
            self.store.disk[slot] = self.contents(stretch.keys[i].tobytes()).tobytes()
            sums.append(page_checksum([memoryview(self.store.disk[slot])], int(stretch.keys[i].view("<u8")[0])))
        return stretch, slots, np.array(sums, np.uint64)

    def restore(self, n: int, parent: int | None = None) -> Pages | None:
        """Take over ``n`` pages of an earlier run behind a page of the tree."""
        stretch, slots, sums = self.on_disk(n, NAMESPACE if parent is None else self.key[parent])
        weighted = None
        if self.table.n_landing and self.born % 2:  # every other row is of a run that knew no weighted sums
            rows = [memoryview(self.store.disk[slot]) for slot in slots.tolist()]
            weighted = np.array(
                [weighted_sum([row], int(key.view("<u8")[0])) for row, key in zip(rows, stretch.keys, strict=True)],
                np.uint64,
            )
        pages = self.mover.restore(stretch, slots, sums, parent, weighted)
        for i, page in enumerate([] if pages is None else pages.tolist()):
            self.key[page], self.parent[page], parent = stretch.keys[i].tobytes(), parent, page
            self.tokens[page] = stretch.tokens[i].tolist()
        return pages

    def path(self, page: int) -> Pages:
        """The pages from the root to ``page``."""
        path = []
        at: int | None = page
        while at is not None:
            path.append(at)
            at = self.parent[at]
        return np.array(path[::-1], np.int64)

    def leaves(self) -> list[int]:
        """Pages that nothing hangs from."""
        inner = {p for p in self.parent.values() if p is not None}
        return sorted(self.key.keys() - inner)

    def free(self, pages: Pages) -> None:
        """The tree drops pages, leaves first."""
        for page in pages.tolist():
            del self.key[page], self.parent[page]
            self.hbm.discard(page)
        self.mover.free(pages)

    def came_to_hbm(self, pages: Pages) -> None:
        self.hbm |= set(pages.tolist())
        self.mover.tree.came_to_hbm(pages)

    def left_hbm(self, pages: Pages) -> None:
        self.hbm -= set(pages.tolist())
        self.mover.left_hbm(pages)

    # ---- requests -----------------------------------------------------------------------------------

    def promote(self, pages: Pages, rank: float | None = None) -> Promotion:
        """A request waits for a path; without a rank it is the last in line."""
        self.ranked += 1
        promotion = self.mover.promotions.start(pages, self.ranked if rank is None else rank)
        self.promotions.append(promotion)
        return promotion

    def drop(self, promotion: Promotion) -> None:
        self.promotions.remove(promotion)
        self.mover.promotions.drop(promotion)

    def ahead(self, pages: Pages, trigger: Trigger = Trigger.RETURN) -> int:
        """Bring a path up for a request that is expected."""
        return self.mover.promotions.ahead(pages, trigger, self.awaited.append)

    def unwatched(self) -> None:
        """Do without the checks of what makes room, which cost more than the mover does."""
        self.mover.promotions._make_room = self.mover._make_some_room

    def _watched_read(self, priority: Priority) -> None:
        """Speculation gives way: see that nothing that a request waits for is on its way or to be read."""
        if priority is Priority.SPECULATIVE:
            demanded = [tag for tag, read in self.store.unreported_reads.items() if read[0] is Priority.DEMANDED]
            assert not demanded, "speculation beside a read that a request waits for"
            waiting = [
                each for each in self.promotions if each in self.mover.promotions._demanded
            ]  # not before a flush
            assert all(promotion.ready(self.table) for promotion in waiting), "speculation before a request"

    def _watched_room(self, make_room: Any, n: int, limit: Warmth | None) -> bool:
        """See that what makes room is free for the asking and no warmer than it may be."""
        table, tree = self.table, self.mover.tree
        runs = {number: (tree.pages_of(number), run.warmth) for number, run in tree.runs.items()}
        before = {number: table.droppable(pages) for number, (pages, _) in runs.items()}
        framed = {number: table.frame[pages] != NONE for number, (pages, _) in runs.items()}
        made: bool = make_room(n, limit)
        for number, (pages, warmth) in runs.items():
            left = framed[number] & (table.frame[pages] == NONE)
            assert not (left & ~before[number]).any(), "a page in use lost its frame"
            cold = left & ~np.isin(pages, list(self.hbm))
            assert limit is None or not cold.any() or warmth > limit, "something warmer had to go"
            if left[: self.pins.get(number, 0)].any():
                assert limit is None, "a pinned page went for speculation"
                others = ((p, self.pins.get(m, 0)) for m, (p, _) in runs.items())
                assert not any(table.droppable(p[pin:]).any() for p, pin in others), "a pinned page went before others"
        return made

    def load(self, pages: Pages) -> None:
        """Start a copy DRAM -> HBM of pages that are all in DRAM."""
        assert self.table.in_dram(pages).all()
        self.mover.acquire(pages)
        self.loads.append((pages, [self.key[p] for p in pages.tolist()]))

    def finish_load(self, number: int = 0) -> None:
        pages, keys = self.loads.pop(number)
        for page, key in zip(pages.tolist(), keys, strict=True):
            assert (self.memory[self.table.frame[page]] == self.contents(key)).all(), "wrong KV was loaded"
        self.mover.release(pages)

    def clear(self) -> None:
        """``flush_cache``: transfers to and from HBM are waited for, then everything is forgotten."""
        while self.loads:
            self.finish_load()
        while self.backups:
            self.mover.release(self.backups.pop().pages)
        self.key.clear()
        self.parent.clear()
        self.hbm.clear()
        self.mover.clear()

    # ---- time ---------------------------------------------------------------------------------------

    def settle(self, rounds: int = 30) -> None:
        """Let all I/O end well, and pauses pass (fake store)."""
        for _ in range(rounds):
            self.clock.now += 100.0
            self.mover.tick()
            self.store.finish_all()
        self.mover.tick()

    def wait(self, until: Callable[[], bool], rounds: int = 400) -> None:
        """Tick until something holds (real store); at most 20 s."""
        for _ in range(rounds):
            self.mover.tick()
            if until():
                return
            self.mover.io_done.wait(0.05)
            self.mover.io_done.clear()
        raise AssertionError("nothing happened within 20 s")

    def demote(self, n: int) -> None:
        """Make room for ``n`` pages as a backup would."""
        pages = self.mover.alloc(n)
        assert pages is not None
        self.mover.fill_failed(pages)
        self.mover.free(pages)

    # ---- what must hold -----------------------------------------------------------------------------

    def contents(self, key: bytes) -> np.ndarray[Any, Any]:
        return contents(key, self.memory.shape[1])

    def states(self, pages: Pages) -> list[State]:
        return [State(s) for s in self.table.state[pages].tolist()]

    def check(self) -> None:
        """Compare every account with the truth, and the bytes of every page that could be loaded."""
        table = self.table
        table.check()
        live = np.array(sorted(self.key), np.int64)
        alive = (table.state != State.FREE) & (table.flight & DOOMED == 0)
        assert np.flatnonzero(alive).tolist() == live.tolist(), "handles are not those of the tree"
        for page in live[table.in_dram(live)].tolist():
            assert (self.memory[table.frame[page]] == self.contents(self.key[page])).all(), f"wrong KV in page {page}"
        self._check_uses()
        self._check_tree()
        self._check_admission()
        if isinstance(self.store, FakeStore):
            self._check_store(self.store)

    def _check_uses(self) -> None:
        table = self.table
        leases = Counter(p for b in self.backups for p in b.pages.tolist())
        leases.update(p for pages, _ in self.loads for p in pages.tolist())
        holds = Counter(p for promotion in self.promotions if promotion.held for p in promotion.pages.tolist())
        assert {p: int(table.lease[p]) for p in np.flatnonzero(table.lease).tolist()} == dict(leases), "leases"
        assert {p: int(table.hold[p]) for p in np.flatnonzero(table.hold).tolist()} == dict(holds), "holds"
        assert table.held <= self.mover.promotions.hold_limit, "more is held than may be"
        landed = np.flatnonzero(table.frame >= table.n_frames)
        assert not landed.size or (table.slot[landed] != NONE).all(), "what landed is not on NVMe"
        for name, value in vars(self.mover.stats).items():
            counts = value.values() if isinstance(value, Counter) else [value]
            assert all(count >= 0 for count in counts), name

    def _check_tree(self) -> None:
        table, tree = self.table, self.mover.tree
        assert set(self._marked(HBM)) == self.hbm, "what HBM has"
        for number in tree.runs:
            pages = tree.pages_of(number)
            assert number in tree.above or not table.marked(pages, HBM).any(), "what is in HBM is not known to be there"
            assert number in tree.order or not table.droppable(pages).any(), "frames that nobody will ever take"
            assert number in tree.cold or not table.only_on_nvme(pages).any(), "pages that nobody will bring up"
        for order in (tree.in_both, tree.above, tree.cold):
            assert order.keys() <= tree.runs.keys(), "a run that does not exist"

    def _check_admission(self) -> None:
        table, parking, writes = self.table, self.mover.parking, self.mover.writes
        pieces = [(number, piece) for number, pieces in parking._parked.items() for piece in pieces]
        entries = [(number, page) for number, piece in pieces for page in piece.pages.tolist()]
        assert len(parking) == len(entries) == len({page for _, page in entries}), "parked twice"
        assert parking._throttled.keys() <= parking._parked.keys()
        parked = {(int(table.run[page]), page) for page in self._marked(PARKED)}
        assert parked <= set(entries), "parked and forgotten"
        if isinstance(parking.admission, Answers):
            pages = self.mover.stats.written + writes._queue.pages + writes._writing
            assert parking.admission.granted == pages * PAGE_BYTES, "granted, and neither spent nor given back"

    def _marked(self, bit: int) -> list[int]:
        table = self.table
        pages: list[int] = np.flatnonzero((table.mark & bit != 0) & (table.flight & DOOMED == 0)).tolist()
        return pages

    def _check_reads(self, store: FakeStore) -> None:
        promotions = self.mover.promotions
        reads = store.unreported_reads.items()
        demanded = {tag: PAGE_BYTES * n for tag, (priority, n) in reads if priority is Priority.DEMANDED}
        ahead = sum(PAGE_BYTES * n for _, (priority, n) in reads if priority is Priority.SPECULATIVE)
        assert {tag: reading.nbytes for tag, reading in promotions._reading.items()} == demanded, "reads of requests"
        assert promotions._reading_ahead == ahead, "reads ahead"
        assert all(promotion.tags <= demanded.keys() for promotion in promotions._demanded)
        brought = {number: brought.pages for number, brought in promotions._brought.items()}
        assert brought.keys() <= self.mover.tree.runs.keys(), "brought for a run that is no more"
        stats = self.mover.stats
        used_up = stats.ahead_used.total() + stats.ahead_wasted.total() + sum(brought.values())
        ahead = sum(stats.promoted_by[t.value] for t in Trigger if t is not Trigger.ARRIVAL)
        assert min(brought.values(), default=1) > 0 and used_up <= ahead and stats.promoted_by.total() == stats.promoted

    def _check_store(self, store: FakeStore) -> None:
        self._check_reads(store)
        table = self.table
        owned = table.slot[table.slot != NONE].tolist()
        assert store.used == set(owned), "slots without an owner, or owners of free slots"
        assert len(store.used) + store.free_slots + len(store.aside) == store.n_slots
        in_flight = np.flatnonzero(table.flight & (READ | WRITE | VERIFY))
        unreported = store.in_flight()
        assert sorted(table.slot[in_flight].tolist()) == unreported, "flight flags and jobs differ"
        assert self.mover.busy == bool(unreported)
        for page, key in self.key.items():
            slot = int(table.slot[page])
            assert slot not in store.rows or store.rows[slot] == (key, tuple(self.tokens[page])), "a wrong row"
        for page, key in self.key.items():
            slot = int(table.slot[page])
            if table.state[page] in (State.CLEAN, State.COLD) and slot not in store.rotten:
                assert store.disk[slot] == self.contents(key).tobytes(), f"wrong KV on NVMe of page {page}"

    def check_empty(self) -> None:
        """Every handle, frame, slot, lease and hold is back where it started."""
        table = self.table
        table.check()
        assert (table.free_handles, table.free_frames) == (table.n_handles, table.n_frames)
        assert table.free_landing == table.n_landing
        assert table.held == 0 and not self.mover.busy
        assert self.store is None or self.store.used_slots == 0
        tree, promotions = self.mover.tree, self.mover.promotions
        assert not tree.runs and len(tree.order) == 0
        assert not tree.in_both and not tree.above and not tree.cold
        assert not len(self.mover.parking) and not self.mover.writes.pending
        assert not promotions and promotions.idle and not promotions.demanded_bytes and not promotions._brought


def fake_world(n_handles: int, n_frames: int, n_slots: int | None, n_landing: int = 0, **options: Any) -> World:
    """A world over the fake store, or over none."""
    memory = np.zeros((n_frames + n_landing, PAGE_BYTES), np.uint8)
    store: Any = None if n_slots is None else FakeStore(n_slots, memory, n_landing)
    table = ResidencyTable(n_handles, n_frames, n_landing)
    clock = Clock()
    mover = Mover(table, TierTree(table), store, page_bytes=PAGE_BYTES, clock=clock, **options)
    return World(table, mover, store, memory, clock)


def on_nvme(world: World, *lengths: int) -> list[Pages]:
    """Insert runs of these lengths, each a path of its own, and take them all out of DRAM."""
    runs = []
    for n in lengths:
        runs.append(world.add(n))
        world.settle()
    world.demote(world.table.n_frames)
    assert all(world.states(run) == [State.COLD] * len(run) for run in runs)
    world.store.reads.clear()
    return runs
