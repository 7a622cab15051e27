"""Slots where something failed: nobody gets them before they have been tested."""

from __future__ import annotations

import errno
from collections.abc import Callable

import numpy as np
import pytest
from store_rig import IDENTITY, Rig, path_of, seeds_of

from radixtier.store import quarantine
from radixtier.store.quarantine import TESTS_AT_ONCE, Quarantine

MakeRig = Callable[..., Rig]


@pytest.mark.parametrize("kind", ["read", "verify", "write"])
def test_a_slot_that_failed_is_tested_before_it_is_free(make_rig: MakeRig, kind: str, quick: None) -> None:
    rig = make_rig(pages_per_transfer=1)
    keys, where, sums = rig.stored(4)
    fault = rig.engine.error("write" if kind == "write" else "read", errno.EIO, within=rig.span(1), times=1)
    if kind == "read":
        rig.read(keys, where, sums)
    elif kind == "verify":
        rig.store.verify(where, seeds_of(keys), sums, "v")
        assert rig.settle()[0].ok.tolist() == [True, False, True, True]
    else:
        rig.write(keys, where)
    assert fault.hits == 1
    held = rig.engine.hold("write", within=rig.span(1))
    rig.store.free(where)
    assert (rig.store.free_slots, rig.store.used_slots, rig.store.quarantined) == (31, 0, 1)
    assert held.wait()
    everything = rig.store.alloc(31)
    assert everything is not None and 1 not in everything.tolist()
    held.release()
    rig.until(lambda: rig.store.free_slots == 1)
    assert rig.store.quarantined == 0
    again = rig.store.alloc(1)
    assert again is not None and again.tolist() == [1]


def test_a_corrupt_page_makes_a_slot_suspect(make_rig: MakeRig, quick: None) -> None:
    """CASES C8."""
    rig = make_rig()
    keys, where, sums = rig.stored(4)
    rig.damage(2, 17)
    assert rig.read(keys, where, sums).corrupt.tolist() == [False, False, True, False]
    assert rig.store.quarantined == 0, "it still has an owner"
    rig.store.free(where)
    assert rig.store.quarantined == 1
    rig.until(lambda: rig.store.free_slots == 32)


def test_what_worked_last_counts(make_rig: MakeRig) -> None:
    rig = make_rig(pages_per_transfer=1)
    keys, where, sums = rig.stored(3)
    rig.engine.flip("read", times=2)
    rig.read(keys[:2], where[:2], sums[:2])
    rig.read(keys[:1], where[:1], sums[:1])
    rig.write(keys[1:2], where[1:2])
    rig.store.free(where)
    assert rig.store.quarantined == 0


def test_what_was_only_cancelled_is_not_suspect(make_rig: MakeRig) -> None:
    rig = make_rig(threads=1, pages_per_transfer=1)
    keys, where, sums = rig.stored(3)
    held = rig.engine.hold("read", times=1)
    rig.store.read(np.arange(3), where, seeds_of(keys), sums, "r")
    assert held.wait()
    rig.store.cancel("r")
    held.release()
    assert rig.settle()[0].ok.tolist() == [True, False, False]
    rig.store.free(where)
    assert rig.store.quarantined == 0


@pytest.mark.parametrize("fault", ["error", "flip", "tear"])
def test_a_broken_slot_stays_out(make_rig: MakeRig, fault: str, quick: None) -> None:
    rig = make_rig(pages_per_transfer=1)
    _, where, _ = rig.stored(4)
    broken = rig.span(int(where[3]))
    hits = getattr(rig.engine, fault)("write", within=broken)
    written = rig.write("abcd", where)
    rig.read("abcd", where, written.checksums)
    rig.store.free(where)
    calls = rig.engine.calls["write"]
    rig.until(lambda: rig.engine.calls["write"] > calls + 4)  # it is tried every now and then
    assert hits.hits > 2
    assert rig.store.quarantined == 1 == rig.store.health()[0].quarantined
    assert (rig.store.free_slots, rig.store.used_slots) == (31, 0)
    rig.until(lambda: rig.store.writable)
    everything = rig.store.alloc(31)
    assert everything is not None and int(where[3]) not in everything.tolist()
    hits.times = 0
    rig.until(lambda: rig.store.quarantined == 0)


def test_the_row_goes_before_the_slot_is_tested(make_rig: MakeRig, quick: None) -> None:
    rig = make_rig(identity=IDENTITY)
    put = rig.put(path_of(4))
    rig.damage(int(put.slots[3]), 5)
    rig.get(put)
    rig.store.free(put.slots[3:])
    rig.until(lambda: rig.store.free_slots == 29)
    rig.reopen()
    [found] = rig.restored()
    assert found.slots.tolist() == put.slots[:3].tolist() and rig.get(found).ok.all()


def test_a_restart_remembers_broken_slots(make_rig: MakeRig, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = make_rig(identity=IDENTITY, pages_per_transfer=1)
    keys, where, sums = rig.stored(2)
    rig.engine.flip("write", within=rig.span(1))
    rig.write(keys, where)
    rig.read(keys, where, sums)
    rig.store.free(where)
    calls = rig.engine.calls["write"]
    rig.until(lambda: rig.engine.calls["write"] > calls + 4)
    monkeypatch.setattr(quarantine, "RETRY_S", 600.0)
    with monkeypatch.context() as patch:
        patch.setattr(Quarantine, "due", lambda self, now: [])
        rig.reopen()
        assert rig.store.quarantined == 1 and rig.store.free_slots == 31
    rig.until(lambda: rig.store.free_slots == 32)  # another drive by now, perhaps


def test_many_are_tested_a_few_at_a_time() -> None:
    aside = Quarantine(4096)
    aside.add(np.arange(100))
    assert len(aside) == 100 and aside.due(0.0) == list(range(TESTS_AT_ONCE)), "at once, whatever the time"
    assert sorted(aside.empty().tolist()) == list(range(100)) and len(aside) == 0
