"""The order in which things become durable: bytes, their row, and no reuse of a slot before its row is gone."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from store_rig import IDENTITY, Rig, path_of

from radixtier.footprint import HEADER_BYTES
from radixtier.io.faults import FaultEngine
from radixtier.store import ledger
from radixtier.store.journal import Batch, Journal

MakeRig = Callable[..., Rig]

N_SLOTS = 24


class Seen(NamedTuple):
    what: str
    drive: int
    slots: frozenset[int]
    """Local."""


class Witness:
    """Notes what reaches the devices and the journals, in order: writes as they begin and as they end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[Seen] = []
        self.rig: Rig
        self._lock = threading.Lock()
        write, sync, apply, clear = FaultEngine.writev, FaultEngine.sync, Journal.apply, Journal.clear

        def writev(engine: FaultEngine, buffers: list[memoryview], offset: int) -> int:
            n = sum(buffer.nbytes for buffer in buffers)
            slots = {(at - HEADER_BYTES) // self.rig.store.slot_bytes for at in range(offset, offset + n, 4096)}
            self.note("write", engine, slots)
            count = write(engine, buffers, offset)
            self.note("written", engine, slots)
            return count

        def synced(engine: FaultEngine) -> None:
            # What had ended when the sync began is durable when it ends.
            self.note("sync", engine, set())
            sync(engine)

        def applied(journal: Journal, batch: Batch) -> None:
            drive = self.drive_of(journal)
            # Deletions count once they are durable; rows may be durable as soon as the call begins.
            self.note("rows", drive, {s for row in batch.adds for s in range(row.slot, row.slot + len(row.stretch))})
            apply(journal, batch)
            self.note("gone", drive, {s for start, n in batch.frees for s in range(start, start + n)})

        def cleared(journal: Journal) -> None:
            clear(journal)
            self.note("gone", self.drive_of(journal), set(range(N_SLOTS)))

        monkeypatch.setattr(FaultEngine, "writev", writev)
        monkeypatch.setattr(FaultEngine, "sync", synced)
        monkeypatch.setattr(Journal, "apply", applied)
        monkeypatch.setattr(Journal, "clear", cleared)

    def drive_of(self, journal: Journal) -> int:
        return next(i for i in range(len(self.rig.directories)) if self.rig.files(i).db == journal.path)

    def note(self, what: str, where: FaultEngine | int, slots: set[int]) -> None:
        if not isinstance(where, int):
            where = list(self.rig.engines.values()).index(where)
        with self._lock:
            self.events.append(Seen(what, where, frozenset(slots)))

    def check(self) -> dict[str, int]:
        """Go through the events; return how many of each kind were held against the rules."""
        seen = {"writes of slots that had rows": 0, "rows": 0, "gone": 0}
        named: dict[int, set[int]] = {}
        had: dict[int, set[int]] = {}
        ended: dict[int, set[int]] = {}
        durable: dict[int, set[int]] = {}
        for what, drive, slots in self.events:
            rows = named.setdefault(drive, set())
            if what == "write":
                assert not slots & rows, f"slots {slots & rows} of drive {drive} are written while rows name them"
                seen["writes of slots that had rows"] += bool(slots & had.setdefault(drive, set()))
                ended.setdefault(drive, set()).difference_update(slots)
                durable.setdefault(drive, set()).difference_update(slots)
            elif what == "written":
                ended.setdefault(drive, set()).update(slots)
            elif what == "sync":
                durable.setdefault(drive, set()).update(ended.get(drive, set()))
            elif what == "rows":
                assert slots <= durable.get(drive, set()), f"rows of drive {drive} name bytes that are not durable"
                rows |= slots
                had.setdefault(drive, set()).update(slots)
                seen["rows"] += bool(slots)
            else:
                rows -= slots
                seen["gone"] += bool(slots)
        return seen


@pytest.mark.parametrize("drives", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_no_slot_is_reused_before_its_row_is_gone(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch, quick: None, drives: int, seed: int
) -> None:
    witness = Witness(monkeypatch)
    rig = witness.rig = make_rig(identity=IDENTITY, drives=drives, n_slots=N_SLOTS, pages_per_transfer=2)
    rng = random.Random(seed)
    owned: list[np.ndarray] = []
    for step in range(400):
        rig.store.poll()
        n = rng.randint(1, 6)
        slots = rig.store.alloc(n)
        if slots is None and owned:
            slots = owned.pop(rng.randrange(len(owned)))
            keep = rng.randint(0, len(slots) - 1)
            if rng.random() < 0.1:
                rig.damage(int(slots[-1]), 1)
                rig.store.verify(slots[-1:], np.zeros(1, np.uint64), np.zeros(1, np.uint64), "v")
                rig.settle()
            rig.store.free(slots[keep:])
            if keep:
                owned.append(slots[:keep])
        elif slots is not None:
            rig.put(path_of(n, name=step), slots=slots, record=rng.random() < 0.8)
            owned.append(slots)
        if rng.random() < 0.01:
            assert rig.store.clear(20)
    assert rig.store.close(20)
    seen = witness.check()
    assert min(seen.values()) > 5, f"else this proves little: {seen}"


def test_slots_are_freed_sooner_while_somebody_waits_for_them(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(ledger, "COMMIT_S", 1000.0)
    rig = make_rig(identity=IDENTITY)
    # The last batch is committed at once by a restart, so that the rows are there.
    puts = [rig.put(path_of(32))]
    rig.reopen()
    puts = rig.restored()
    rig.store.free(np.concatenate([put.slots for put in puts]))
    assert rig.store.free_slots == 0
    assert rig.store.alloc(1) is None
    rig.until(lambda: rig.store.free_slots == 32)
