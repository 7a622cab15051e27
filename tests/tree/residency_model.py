"""An obviously right model of the residency table: one record per handle, checked against the table after each step.

The model never looks into the table but to learn which handle, frame or slot it was given; it then insists that
nobody else had it. Slots come from a pool of the model's own, and each must come back exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from radixtier.tree.residency import (
    COPY,
    DOOMED,
    HBM,
    NONE,
    PARKED,
    READ,
    VERIFY,
    WRITE,
    Pages,
    ResidencyTable,
    Slots,
    State,
)  # fmt: skip

FREE, FILLING, DIRTY, CLEAN, COLD, LOST = State


@dataclass
class Page:
    state: State
    frame: int = NONE
    slot: int = NONE
    flight: int = 0
    """READ, WRITE, VERIFY, COPY or 0."""
    doomed: bool = False
    leases: int = 0
    holds: int = 0
    hbm: bool = False
    parked: bool = False

    @property
    def idle(self) -> bool:
        return not self.flight and not self.leases and not self.holds


class Model:
    """Drives a table and the records side by side."""

    def __init__(self, n_handles: int, n_frames: int, n_slots: int, n_landing: int = 0) -> None:
        self.table = ResidencyTable(n_handles, n_frames, n_landing)
        self.n_slots = n_slots
        self.pages: dict[int, Page] = {}
        self.slots = set(range(n_slots))
        self.writes: list[list[int]] = []
        self.reads: list[list[int]] = []
        self.verifies: list[list[int]] = []
        self.epoch = self.table.epoch
        self.deliverable = self._deliverable()

    # ---- candidates ---------------------------------------------------------------------------------

    def those(self, *states: State, idle: bool = False, live: bool = True) -> list[int]:
        return sorted(
            h
            for h, p in self.pages.items()
            if (not states or p.state in states) and (not idle or p.idle) and not (live and p.doomed)
        )

    def frames_left(self) -> int:
        return self.table.n_frames - sum(NONE < p.frame < self.table.n_frames for p in self.pages.values())

    def landing_left(self) -> int:
        return self.table.n_landing - sum(p.frame >= self.table.n_frames for p in self.pages.values())

    # ---- operations ---------------------------------------------------------------------------------

    def alloc(self, n: int) -> None:
        fits = n <= self.table.n_handles - len(self.pages) and n <= self.frames_left()
        got = self.table.alloc(n)
        assert (got is not None) == fits
        if got is not None:
            assert got.dtype == np.int64 and len(set(got.tolist())) == n
            for handle in got.tolist():
                assert handle not in self.pages, "a handle in use was given out"
                self.pages[handle] = Page(FILLING, self._new_frame(handle))
        self.check()

    def _new_frame(self, handle: int, landing: bool = False) -> int:
        frame = int(self.table.frame[handle])
        assert (frame >= self.table.n_frames) == landing, "a frame of the other kind"
        assert frame not in {p.frame for p in self.pages.values()}, "a frame in use was given out"
        return frame

    def _expect(self, handles: list[int], returned: Slots, freed: set[int]) -> None:
        """Reap in the model; slots that the table returned must be those and ``freed``, each once."""
        for handle in handles:
            page = self.pages[handle]
            if page.frame >= self.table.n_frames and page.idle:
                page.state, page.frame = COLD, NONE
            if page.doomed and page.idle and page.state is not FILLING:
                freed |= {page.slot} - {NONE}
                del self.pages[handle]
        back = returned.tolist()
        assert len(back) == len(set(back)) and set(back) == freed, f"slots {back} came back, not {sorted(freed)}"
        assert not freed & self.slots, "a slot came back twice"
        self.slots |= freed
        self.check()

    def free(self, handles: list[int]) -> None:
        for handle in handles:
            self.pages[handle].doomed = True
        self._expect(handles, self.table.free(_array(handles)), set())

    def filled(self, handles: list[int]) -> None:
        for handle in handles:
            if self.pages[handle].state is FILLING:
                self.pages[handle].state = DIRTY
        self._expect(handles, self.table.filled(_array(handles)), set())

    def fill_failed(self, handles: list[int]) -> None:
        for handle in handles:
            if self.pages[handle].state is FILLING:
                self.pages[handle].state, self.pages[handle].frame = LOST, NONE
        self._expect(handles, self.table.fill_failed(_array(handles)), set())

    def acquire(self, handles: list[int]) -> None:
        for handle in handles:
            self.pages[handle].leases += 1
        self.table.acquire(_array(handles))
        self.check()

    def release(self, handles: list[int]) -> None:
        for handle in handles:
            self.pages[handle].leases -= 1
        self._expect(handles, self.table.release(_array(handles)), set())

    def hold(self, handles: list[int]) -> None:
        for handle in handles:
            self.pages[handle].holds += 1
        self.table.acquire_hold(_array(handles))
        self.check()

    def release_hold(self, handles: list[int]) -> None:
        for handle in handles:
            self.pages[handle].holds -= 1
        self._expect(handles, self.table.release_hold(_array(handles)), set())

    def refill(self, handles: list[int]) -> None:
        fits = len(handles) <= self.frames_left()
        assert self.table.refill(_array(handles)) == fits
        if fits:
            for handle in handles:
                self.pages[handle].frame = self._new_frame(handle)
                self.pages[handle].state = FILLING
        self.check()

    def begin_write(self, handles: list[int]) -> None:
        handles = handles[: len(self.slots)]
        slots = [self.slots.pop() for _ in handles]
        for handle, slot in zip(handles, slots, strict=True):
            self.pages[handle].slot, self.pages[handle].flight = slot, WRITE
            self.pages[handle].parked = False
        self.table.begin_write(_array(handles), _array(slots))
        self.writes.append(handles)
        self.check()

    def end_write(self, job: int, good: list[bool]) -> None:
        handles = self.writes.pop(job)
        ok = np.array((good + [True] * len(handles))[: len(handles)], np.bool_)
        sums = np.array([1000 + h for h in handles], np.uint64)
        freed = set()
        for handle, fine in zip(handles, ok.tolist(), strict=True):
            page = self.pages[handle]
            page.flight = 0
            if fine:
                page.state = CLEAN
            else:
                freed.add(page.slot)
                page.slot = NONE
        self._expect(handles, self.table.end_write(_array(handles), ok, sums), freed)
        for handle in handles:
            if handle in self.pages and self.pages[handle].state is CLEAN:
                assert self.table.checksum[handle] == 1000 + handle

    def begin_read(self, handles: list[int], landing: bool = False) -> None:
        fits = len(handles) <= (self.landing_left() if landing else self.frames_left())
        assert self.table.begin_read(_array(handles), landing) == fits
        if fits:
            for handle in handles:
                self.pages[handle].frame = self._new_frame(handle, landing)
                self.pages[handle].flight = READ
            self.reads.append(handles)
        self.check()

    def end_read(self, job: int, fates: list[str]) -> None:
        """``fates`` are "ok", "cancelled" or anything else for a failure."""
        handles = self.reads.pop(job)
        fates = (fates + ["ok"] * len(handles))[: len(handles)]
        freed = set()
        for handle, fate in zip(handles, fates, strict=True):
            page = self.pages[handle]
            page.flight = 0
            if fate == "ok":
                page.state = CLEAN
                continue
            page.frame = NONE
            if fate != "cancelled":
                freed.add(page.slot)
                page.state, page.slot = LOST, NONE
        ok = np.array([f == "ok" for f in fates], np.bool_)
        cancelled = np.array([f == "cancelled" for f in fates], np.bool_)
        self._expect(handles, self.table.end_read(_array(handles), ok, cancelled), freed)

    def drop_frames(self, handles: list[int]) -> None:
        for handle in handles:
            self.pages[handle].state, self.pages[handle].frame = COLD, NONE
        self.table.drop_frames(_array(handles))
        self.check()

    def begin_verify(self, handles: list[int]) -> None:
        for handle in handles:
            self.pages[handle].flight = VERIFY
        self.table.begin_verify(_array(handles))
        self.verifies.append(handles)
        self.check()

    def end_verify(self, job: int, bad: list[bool]) -> None:
        handles = self.verifies.pop(job)
        gone = np.array((bad + [False] * len(handles))[: len(handles)], np.bool_)
        freed = set()
        for handle, lost in zip(handles, gone.tolist(), strict=True):
            page = self.pages[handle]
            page.flight = 0
            if lost:
                freed.add(page.slot)
                page.state, page.slot = LOST, NONE
        self._expect(handles, self.table.end_verify(_array(handles), gone), freed)

    def begin_copy(self, handles: list[int]) -> None:
        fits = len(handles) <= self.frames_left()
        assert self.table.begin_copy(_array(handles)) == fits
        if fits:
            for handle in handles:
                self.pages[handle].frame = self._new_frame(handle)
                self.pages[handle].flight = COPY
        self.check()

    def end_copy(self, handles: list[int], ok: bool) -> None:
        """Of any pages: those that are not being copied are left alone."""
        copied = [h for h in handles if self.pages[h].flight == COPY]
        for handle in copied:
            page = self.pages[handle]
            page.flight = 0
            if ok:
                page.state = CLEAN
            else:
                page.frame = NONE
        self._expect(copied, self.table.end_copy(_array(handles), ok), set())

    def adopt_slots(self, handles: list[int]) -> None:
        handles = handles[: len(self.slots)]
        slots = [self.slots.pop() for _ in handles]
        for handle, slot in zip(handles, slots, strict=True):
            page = self.pages[handle]
            page.state, page.slot, page.parked = CLEAN, slot, False
        self.table.adopt_slots(_array(handles), _array(slots), np.zeros(len(handles), np.uint64))
        self.check()

    def mark_hbm(self, handles: list[int], there: bool) -> None:
        for handle in handles:
            self.pages[handle].hbm = there
        self.table.set_mark(_array(handles), HBM, there)
        self.check()

    def mark_parked(self, handles: list[int], parked: bool) -> None:
        for handle in handles:
            self.pages[handle].parked = parked
        self.table.set_mark(_array(handles), PARKED, parked)
        self.check()

    def lose_frames(self, handles: list[int]) -> None:
        for handle in handles:
            self.pages[handle].state, self.pages[handle].frame = LOST, NONE
            self.pages[handle].parked = False
        self.table.lose_frames(_array(handles))
        self.check()

    def clear(self) -> None:
        self.pages.clear()
        self.writes.clear()
        self.reads.clear()
        self.verifies.clear()
        self.slots = set(range(self.n_slots))
        self.table.clear()
        self.check()

    # ---- comparison ---------------------------------------------------------------------------------

    def _deliverable(self) -> dict[int, tuple[bool, bool]]:
        """Of each handle that the tree holds: whether it can be delivered, and at once."""
        return {
            h: (p.state in (DIRTY, CLEAN, COLD), p.state in (DIRTY, CLEAN))
            for h, p in self.pages.items()
            if not p.doomed
        }

    def check(self) -> None:
        table = self.table
        table.check()
        handles = np.arange(table.n_handles)
        none = Page(FREE)
        want = [self.pages.get(h, none) for h in handles.tolist()]
        assert table.state.tolist() == [p.state for p in want]
        assert table.frame.tolist() == [p.frame for p in want]
        assert table.slot.tolist() == [p.slot for p in want]
        assert table.lease.tolist() == [p.leases for p in want]
        assert table.hold.tolist() == [p.holds for p in want]
        assert table.flight.tolist() == [p.flight | (DOOMED if p.doomed else 0) for p in want]
        assert table.mark.tolist() == [HBM * p.hbm | PARKED * p.parked for p in want]
        assert table.held == sum(p.holds > 0 for p in want)
        assert table.free_handles == table.n_handles - len(self.pages)
        assert table.free_frames == self.frames_left()
        assert table.free_landing == self.landing_left()
        assert table.landed(handles).tolist() == [p.frame >= table.n_frames for p in want]
        for state in (CLEAN, DIRTY):
            unused = [p.state is state and p.idle and not p.doomed for p in want]
            assert table.unused(handles, state).tolist() == unused
        spare = [(p.state is DIRTY and p.parked) or p.state is CLEAN for p in want]
        assert table.droppable(handles).tolist() == [
            there and p.idle and not p.doomed for there, p in zip(spare, want, strict=True)
        ]
        assert table.is_cold(handles).tolist() == [p.state is COLD for p in want]
        assert table.only_on_nvme(handles).tolist() == [p.state is COLD and not p.hbm for p in want]
        for bit, flags in ((HBM, [p.hbm for p in want]), (PARKED, [p.parked for p in want])):
            assert table.marked(handles, bit).tolist() == flags
        assert table.in_dram(handles).tolist() == [p.state in (DIRTY, CLEAN) for p in want]
        assert sum(p.slot != NONE for p in want) + len(self.slots) == self.n_slots
        self._check_epoch()

    def _check_epoch(self) -> None:
        """A verdict on a path is cached for one epoch: no change of what is deliverable may go unnoticed."""
        before, self.deliverable = self.deliverable, self._deliverable()
        common = before.keys() & self.deliverable.keys()
        gone = before.keys() - self.deliverable.keys()
        if gone or any(before[h] != self.deliverable[h] for h in common):
            assert self.table.epoch > self.epoch, "deliverability changed within one epoch"
        self.epoch = self.table.epoch


def _array(values: list[int]) -> Pages:
    return np.array(values, np.int64)
