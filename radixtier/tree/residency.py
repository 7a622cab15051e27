"""Residency table: for every handle, where its bytes are and who is using them.

Owns the handles (logical page numbers held by SGLang's tree), the DRAM frames, and the landing frames: places in GPU
memory where pages that go straight on to HBM are read to. Knows NVMe slots by number only. Scheduler thread only: I/O
threads report completions, and the scheduler's tick applies them here.

Invariants, checked by :meth:`ResidencyTable.check`:

- a frame belongs to at most one handle; ``free frames + owned frames == n_frames``, and so for landing frames, which
  are numbered from ``n_frames`` on;
- a page in a landing frame is on NVMe as well, and stays there only while it is read, leased or held: its last user's
  release gives the frame back, so that it is never a victim of anything;
- a handle that somebody still uses (a lease, a read or a write in flight) is never given out again, and
  neither are its frame and its slot: ``free`` on it only marks it, the last user's release frees it;
- state and places agree: see :class:`State`.

A handle costs 51 bytes of metadata, whatever the page size and wherever its bytes are; 59 with landing frames.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

Pages = npt.NDArray[np.int64]
"""Handles, one per page, unique within a call."""
NO_PAGES: Pages = np.empty(0, np.int64)
Slots = npt.NDArray[np.int32]
"""Slot numbers."""
Sums = npt.NDArray[np.uint64]
"""One checksum per page."""
Flags = npt.NDArray[np.bool_]
"""One truth per page."""


class State(IntEnum):
    """Where the bytes of a handle are."""

    FREE = 0
    FILLING = 1
    """A frame is taken and the copy from HBM has not been acknowledged."""
    DIRTY = 2
    """In a frame only."""
    CLEAN = 3
    """In a frame and in a slot."""
    COLD = 4
    """In a slot only."""
    LOST = 5
    """Nowhere: the tree still has the node, the bytes must be computed again."""


_DIRTY, _CLEAN, _COLD = int(State.DIRTY), int(State.CLEAN), int(State.COLD)
# Comparing an array with an enum member takes 2 us, a third of a short match; with a plain integer 0.8.

WRITE, READ, DOOMED, VERIFY, COPY = 1, 2, 4, 8, 16
"""Bits of ``flight``: frame -> slot in flight, slot -> frame in flight, freed by the tree while in use, slot is read
for its checksum only, HBM -> frame in flight for a page that is on NVMe."""

HBM, PARKED = 1, 2
"""Bits of ``mark``, which decide what leaves DRAM and never what may be delivered: the page was seen in HBM since it
last left it; it may not be written to NVMe (yet), so DRAM has its only copy below HBM (of ``DIRTY`` pages only)."""

NONE = -1


class ResidencyTable:
    """State, frame and slot of ``n_handles`` pages over ``n_frames`` DRAM frames.

    Parameters
    ----------
    n_handles
        Pages the tree may hold at once, over all tiers below HBM.
    n_frames
        Pages that fit in the DRAM pool.
    n_landing
        Landing frames beside them; with any, a handle costs 8 bytes more.
    """

    def __init__(self, n_handles: int, n_frames: int, n_landing: int = 0) -> None:
        if n_handles < n_frames or n_frames < 1:
            raise ValueError(f"need at least one frame and a handle per frame, got {n_handles=} {n_frames=}")
        self.n_handles = n_handles
        self.n_frames = n_frames
        self.n_landing = n_landing
        self.state = np.zeros(n_handles, np.uint8)
        self.flight = np.zeros(n_handles, np.uint8)
        self.mark = np.zeros(n_handles, np.uint8)
        self.lease = np.zeros(n_handles, np.uint32)
        self.hold = np.zeros(n_handles, np.uint32)
        self.frame = np.zeros(n_handles, np.int32)
        self.slot = np.zeros(n_handles, np.int32)
        self.run = np.zeros(n_handles, np.int32)
        self.checksum = np.zeros(n_handles, np.uint64)
        self.weighted = np.zeros(n_handles if n_landing else 0, np.uint64)
        """What reads to landing frames are checked against; 0 where it is not known. Empty without landing frames."""
        self.key = np.zeros((n_handles, 2), np.uint64)
        """Key digest of each page (16 bytes); the first 8 seed its checksum."""
        self._free_handles = np.zeros(n_handles, np.int32)
        self._free_frames = np.zeros(n_frames, np.int32)
        self._free_landing = np.zeros(n_landing, np.int32)
        self.epoch = 0
        """Grows whenever what a path can deliver may have changed; a cached verdict is valid for one epoch."""
        self.clear()

    def clear(self) -> None:
        """Forget everything. Nothing may be in flight (the caller drains first)."""
        self.state[:] = State.FREE
        self.flight[:] = 0
        self.mark[:] = 0
        self.lease[:] = 0
        self.hold[:] = 0
        for array in (self.frame, self.slot, self.run):
            array[:] = NONE
        self._free_handles[:] = np.arange(self.n_handles - 1, -1, -1)
        self._free_frames[:] = np.arange(self.n_frames - 1, -1, -1)
        self.free_handles = self.n_handles
        self.free_frames = self.n_frames
        self._free_landing[:] = np.arange(self.n_frames + self.n_landing - 1, self.n_frames - 1, -1)
        self.free_landing = self.n_landing
        self.held = 0
        self.copying = 0
        """Pages on their way from HBM that are on NVMe as well."""
        self.count = np.zeros(len(State), np.int64)
        self.count[State.FREE] = self.n_handles
        self.epoch += 1

    # ---- handles and frames -------------------------------------------------------------------------

    def alloc(self, n: int) -> Pages | None:
        """Take ``n`` handles with a free frame each (``FILLING``), or None when either is short."""
        if n > self.free_handles or n > self.free_frames:
            return None
        self.free_handles -= n
        pages = self._free_handles[self.free_handles : self.free_handles + n][::-1].astype(np.int64)
        self.frame[pages] = self._take_frames(n)
        self.slot[pages] = NONE
        self.run[pages] = NONE
        self._set(pages, State.FILLING)
        return pages

    def adopt(
        self, slots: npt.NDArray[np.int64], checksums: Sums, keys: npt.NDArray[np.uint8], weighted: Sums | None = None
    ) -> Pages | None:
        """Take a handle for each page that an earlier run left in ``slots`` (``COLD``), or None when they are short.

        ``keys`` are the pages' digests, shape ``(n, 16)``; ``weighted`` their weighted sums, where that run knew them.
        """
        n = len(slots)
        if n > self.free_handles:
            return None
        self.free_handles -= n
        pages = self._free_handles[self.free_handles : self.free_handles + n][::-1].astype(np.int64)
        self.slot[pages] = slots
        self._set_sums(pages, checksums, weighted)
        self.key[pages] = np.ascontiguousarray(keys).view("<u8")
        self.run[pages] = NONE
        self._set(pages, State.COLD)
        return pages

    def _set_sums(self, pages: Pages, checksums: Sums, weighted: Sums | None) -> None:
        self.checksum[pages] = checksums
        if self.n_landing:
            self.weighted[pages] = 0 if weighted is None else weighted

    def adopt_slots(
        self, pages: Pages, slots: npt.NDArray[np.int64], checksums: Sums, weighted: Sums | None = None
    ) -> None:
        """Give ``DIRTY`` pages that nobody writes the slots that hold their bytes already: ``CLEAN`` then."""
        assert (self.state[pages] == State.DIRTY).all() and (self.flight[pages] == 0).all()
        self.set_mark(pages, PARKED, False)
        self.slot[pages] = slots
        self._set_sums(pages, checksums, weighted)
        self._set(pages, State.CLEAN)

    def _take_frames(self, n: int) -> Slots:
        self.free_frames -= n
        frames: Slots = self._free_frames[self.free_frames : self.free_frames + n][::-1].copy()
        return frames

    def _take_landing(self, n: int) -> Slots:
        self.free_landing -= n
        frames: Slots = self._free_landing[self.free_landing : self.free_landing + n][::-1].copy()
        return frames

    def _give_frames(self, pages: Pages) -> None:
        frames = self.frame[pages]
        frames = frames[frames != NONE]
        if self.n_landing and len(landing := frames[frames >= self.n_frames]):
            self._free_landing[self.free_landing : self.free_landing + len(landing)] = landing[::-1]
            self.free_landing += len(landing)
            frames = frames[frames < self.n_frames]
        self._free_frames[self.free_frames : self.free_frames + len(frames)] = frames[::-1]
        self.free_frames += len(frames)
        self.frame[pages] = NONE

    def _set(self, pages: Pages, state: State) -> None:
        """Change state and keep the counts; ``pages`` are unique."""
        before = np.bincount(self.state[pages], minlength=len(State))
        self.count -= before
        self.count[state] += len(pages)
        self.state[pages] = state

    def free(self, pages: Pages) -> Slots:
        """Release handles the tree dropped; returns the slots that are free now.

        A page in use stays taken and is released by its last user instead.

        Raises
        ------
        AssertionError
            On a handle that is not allocated (double free), as SGLang's own pools do.
        """
        doomed = (self.flight[pages] & DOOMED) != 0
        assert not (self.state[pages] == State.FREE).any() and not doomed.any(), f"double free of {pages}"
        self.epoch += 1
        self.flight[pages] |= DOOMED
        return self._reap(pages)

    def _reap(self, pages: Pages) -> Slots:
        """Free those of ``pages`` that are doomed and no longer used; returns their slots."""
        if self.free_landing < self.n_landing:
            self._leave_landing(pages)
        idle = (self.flight[pages] == DOOMED) & (self.lease[pages] == 0) & (self.hold[pages] == 0)
        idle &= self.state[pages] != State.FILLING
        pages = pages[idle]
        slots: Slots = self.slot[pages]
        slots = slots[slots != NONE]
        self._give_frames(pages)
        self.slot[pages] = NONE
        self.run[pages] = NONE
        self.flight[pages] = 0
        self.mark[pages] = 0
        self._set(pages, State.FREE)
        self._free_handles[self.free_handles : self.free_handles + len(pages)] = pages[::-1]
        self.free_handles += len(pages)
        return slots

    def _leave_landing(self, pages: Pages) -> None:
        """Give back the landing frames of pages that nobody uses any more: these are on NVMe only, as before."""
        over = (self.frame[pages] >= self.n_frames) & (self.flight[pages] & READ == 0)
        over &= (self.lease[pages] == 0) & (self.hold[pages] == 0)
        if over.any():
            self._give_frames(pages[over])
            self._set(pages[over], State.COLD)
            self.epoch += 1

    # ---- what may be used ---------------------------------------------------------------------------

    def in_dram(self, pages: Pages) -> Flags:
        """Whether each page can be loaded to HBM right now: it is in a frame, or in a landing frame."""
        state = self.state[pages]
        resident: Flags = (state == _DIRTY) | (state == _CLEAN)
        return resident

    def is_cold(self, pages: Pages) -> Flags:
        """Whether each page is on NVMe only."""
        cold: Flags = self.state[pages] == _COLD
        return cold

    def landed(self, pages: Pages) -> Flags:
        """Whether each page is in a landing frame, or on its way there."""
        there: Flags = self.frame[pages] >= self.n_frames
        return there

    def only_on_nvme(self, pages: Pages) -> Flags:
        """Whether each page is on NVMe, and as far as anybody knows not in HBM either."""
        cold: Flags = (self.state[pages] == _COLD) & (self.mark[pages] & HBM == 0)
        return cold

    def unused(self, pages: Pages, state: State) -> Flags:
        """Whether each page is in ``state`` and nobody uses it: of ``CLEAN`` ones, the frame is free for the asking."""
        ok: Flags = (self.state[pages] == state) & (self.flight[pages] == 0)
        ok &= (self.lease[pages] == 0) & (self.hold[pages] == 0)
        return ok

    def droppable(self, pages: Pages) -> Flags:
        """Whether each page's frame is free for the asking: its bytes are on NVMe as well, or may not be kept there."""
        state = self.state[pages]
        ok: Flags = (state == _CLEAN) | ((state == _DIRTY) & (self.mark[pages] & PARKED != 0))
        ok &= (self.flight[pages] == 0) & (self.lease[pages] == 0) & (self.hold[pages] == 0)
        return ok

    def marked(self, pages: Pages, bit: int) -> Flags:
        """Whether each page has a bit of ``mark``."""
        there: Flags = self.mark[pages] & bit != 0
        return there

    def set_mark(self, pages: Pages, bit: int, on: bool) -> None:
        """Set or clear a bit of ``mark``."""
        if on:
            self.mark[pages] |= np.uint8(bit)
        else:
            self.mark[pages] &= np.uint8(~bit & 0xFF)

    # ---- users --------------------------------------------------------------------------------------

    def acquire(self, pages: Pages) -> None:
        """Lease pages for a transfer: frame, slot and handle stay theirs until :meth:`release`."""
        self.lease[pages] += 1

    def release(self, pages: Pages) -> Slots:
        """End a lease; returns slots of pages that were freed meanwhile."""
        assert (self.lease[pages] > 0).all(), "lease released twice"
        self.lease[pages] -= 1
        return self._reap(pages)

    def acquire_hold(self, pages: Pages) -> None:
        """Keep pages for a waiting request; holds are counted apart, since they are capped."""
        self.held += int((self.hold[pages] == 0).sum())
        self.hold[pages] += 1

    def release_hold(self, pages: Pages) -> Slots:
        """End a hold; returns slots of pages that were freed meanwhile."""
        assert (self.hold[pages] > 0).all(), "hold released twice"
        self.held -= int((self.hold[pages] == 1).sum())
        self.hold[pages] -= 1
        return self._reap(pages)

    # ---- transitions --------------------------------------------------------------------------------

    def filled(self, pages: Pages) -> Slots:
        """The copy from HBM was acknowledged: ``FILLING`` -> ``DIRTY``."""
        pages = pages[self.state[pages] == State.FILLING]
        self._set(pages, State.DIRTY)
        self.epoch += 1
        return self._reap(pages)

    def refill(self, pages: Pages) -> bool:
        """Give ``LOST`` pages fresh frames, to be filled from HBM again; False when frames are short."""
        assert (self.state[pages] == State.LOST).all()
        if len(pages) > self.free_frames:
            return False
        self.frame[pages] = self._take_frames(len(pages))
        self._set(pages, State.FILLING)
        return True

    def begin_write(self, pages: Pages, slots: npt.NDArray[np.int64]) -> None:
        """Start copying ``DIRTY`` pages into fresh slots."""
        assert (self.state[pages] == State.DIRTY).all() and (self.flight[pages] == 0).all()
        self.set_mark(pages, PARKED, False)
        self.slot[pages] = slots
        self.flight[pages] |= WRITE

    def placed(self, pages: Pages, slots: npt.NDArray[np.int64]) -> None:
        """Learn where pages are being written: among ranks that share a store, one chooses the slots."""
        assert (self.flight[pages] & WRITE).all()
        self.slot[pages] = slots

    def end_write(self, pages: Pages, ok: Flags, checksums: Sums, weighted: Sums | None = None) -> Slots:
        """Finish writes: ``CLEAN`` where ``ok``, else still ``DIRTY``; returns slots that are free now."""
        self.flight[pages] &= ~np.uint8(WRITE)
        good, bad = pages[ok], pages[~ok]
        self._set_sums(good, checksums[ok], None if weighted is None else weighted[ok])
        self._set(good, State.CLEAN)
        freed = self.slot[bad].copy()
        self.slot[bad] = NONE
        return np.concatenate([freed, self._reap(pages)])

    def begin_read(self, pages: Pages, landing: bool = False) -> bool:
        """Take frames, or landing frames, for ``COLD`` pages that are being read; False when these are short."""
        assert (self.state[pages] == State.COLD).all() and (self.flight[pages] == 0).all()
        if len(pages) > (self.free_landing if landing else self.free_frames):
            return False
        self.frame[pages] = self._take_landing(len(pages)) if landing else self._take_frames(len(pages))
        self.flight[pages] |= READ
        return True

    def end_read(self, pages: Pages, ok: Flags, cancelled: Flags) -> Slots:
        """Finish reads: ``CLEAN`` where ``ok``, ``COLD`` again where cancelled, else ``LOST``.

        What landed is ``COLD`` again, too, where nobody wants it any more.
        """
        self.flight[pages] &= ~np.uint8(READ)
        self._set(pages[ok], State.CLEAN)
        self._give_frames(pages[~ok])
        freed = self._lose(pages[~ok & ~cancelled])
        self.epoch += 1
        return np.concatenate([freed, self._reap(pages)])

    def _lose(self, pages: Pages) -> Slots:
        freed: Slots = self.slot[pages].copy()
        self.slot[pages] = NONE
        self._set(pages, State.LOST)
        return freed

    def begin_verify(self, pages: Pages) -> None:
        """Start reading the slots of ``COLD`` pages for their checksums."""
        assert (self.state[pages] == State.COLD).all() and (self.flight[pages] == 0).all()
        self.flight[pages] |= VERIFY

    def end_verify(self, pages: Pages, bad: Flags) -> Slots:
        """Finish: pages whose slots are ``bad`` are ``LOST``; returns slots that are free now."""
        self.flight[pages] &= ~np.uint8(VERIFY)
        freed = self._lose(pages[bad])
        self.epoch += 1
        return np.concatenate([freed, self._reap(pages)])

    def begin_copy(self, pages: Pages) -> bool:
        """Take frames for ``COLD`` pages that are being copied from HBM; False when frames are short."""
        assert (self.state[pages] == State.COLD).all() and (self.flight[pages] == 0).all()
        if len(pages) > self.free_frames:
            return False
        self.frame[pages] = self._take_frames(len(pages))
        self.flight[pages] |= COPY
        self.copying += len(pages)
        return True

    def end_copy(self, pages: Pages, ok: bool) -> Slots:
        """Finish copies from HBM: ``CLEAN`` where they were made, ``COLD`` as before where not."""
        pages = pages[(self.flight[pages] & COPY) != 0]
        self.flight[pages] &= ~np.uint8(COPY)
        self.copying -= len(pages)
        if ok:
            self._set(pages, State.CLEAN)
        else:
            self._give_frames(pages)
        self.epoch += 1
        return self._reap(pages)

    def drop_frames(self, pages: Pages) -> None:
        """Give up the frames of unused ``CLEAN`` pages: they are ``COLD`` then."""
        assert self.unused(pages, State.CLEAN).all()
        self._give_frames(pages)
        self._set(pages, State.COLD)
        self.epoch += 1

    def lose_frames(self, pages: Pages) -> None:
        """Give up the frames of unused ``DIRTY`` pages, and with them the bytes: they are ``LOST`` then."""
        assert self.unused(pages, State.DIRTY).all()
        self.set_mark(pages, PARKED, False)
        self._give_frames(pages)
        self._set(pages, State.LOST)
        self.epoch += 1

    def fill_failed(self, pages: Pages) -> Slots:
        """The copy from HBM did not happen: ``FILLING`` -> ``LOST``."""
        pages = pages[self.state[pages] == State.FILLING]
        self._give_frames(pages)
        self._set(pages, State.LOST)
        self.epoch += 1
        return self._reap(pages)

    # ---- accounting ---------------------------------------------------------------------------------

    def nbytes(self) -> int:
        """Bytes of metadata that grow with the number of handles."""
        arrays = [a for name, a in vars(self).items() if isinstance(a, np.ndarray) and len(a) == self.n_handles]
        return sum(a.nbytes for a in arrays)

    def check(self) -> None:
        """Verify every invariant from scratch; for tests.

        Raises
        ------
        AssertionError
            Naming the invariant that does not hold.
        """
        state, frame, slot = self.state, self.frame, self.slot
        assert (np.bincount(state, minlength=len(State)) == self.count).all(), "state counts drifted"
        owned = frame[(frame != NONE) & (frame < self.n_frames)]
        every = np.sort(np.concatenate([owned, self._free_frames[: self.free_frames]]))
        assert (every == np.arange(self.n_frames)).all(), "frames: free + owned != capacity"
        landed = frame >= self.n_frames
        every = np.sort(np.concatenate([frame[landed], self._free_landing[: self.free_landing]]))
        assert (every == self.n_frames + np.arange(self.n_landing)).all(), "landing frames: free + owned != capacity"
        used = (self.flight & READ != 0) | (self.lease > 0) | (self.hold > 0)
        assert used[landed].all(), "a landing frame that nobody uses"
        assert ((state[landed] == State.CLEAN) | (state[landed] == State.COLD)).all(), "landed and not on NVMe"
        free = np.sort(self._free_handles[: self.free_handles])
        assert (free == np.flatnonzero(state == State.FREE)).all(), "handles: free list and states disagree"
        slots = slot[slot >= 0]  # Of several ranks, one may not know a slot, or not have one.
        assert len(np.unique(slots)) == len(slots), "a slot has two owners"
        reading, writing = (self.flight & (READ | COPY)) != 0, (self.flight & WRITE) != 0
        has_frame, has_slot = frame != NONE, slot != NONE
        resident = (state == State.FILLING) | (state == State.DIRTY) | (state == State.CLEAN)
        assert (has_frame == (resident | reading)).all(), "frame without residency"
        assert (has_slot == ((state == State.CLEAN) | (state == State.COLD) | writing)).all(), "slot without residency"
        verifying = (self.flight & VERIFY) != 0
        assert (state[reading | verifying] == State.COLD).all() and not (reading & verifying).any(), "flight on state"
        assert (state[writing] == State.DIRTY).all(), "flight against state"
        assert (state[self.mark & PARKED != 0] == State.DIRTY).all(), "parked against state"
        idle = state == State.FREE
        for users in (self.flight, self.mark, self.lease, self.hold):
            assert not users[idle].any(), "a free handle is in use"
        assert self.held == int((self.hold > 0).sum()), "held pages drifted"
        assert self.copying == int((self.flight & COPY != 0).sum()), "copied pages drifted"
