"""What a restart finds: all that went on record, nothing else, and every byte right."""

from __future__ import annotations

import dataclasses
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from store_rig import ALIGNED, IDENTITY, ODD, PAGE_TOKENS, Put, Rig, page_seeds, path_of

from radixtier.footprint import footprint
from radixtier.identity import Space
from radixtier.store.journal import Journal, JournalError
from radixtier.store.paths import find_stores
from radixtier.store.slab import StoreError

MakeRig = Callable[..., Rig]


def pages(puts: list[Put]) -> dict[int, tuple[bytes, int]]:
    """Key and checksum by slot."""
    return {
        slot: (key.tobytes(), checksum)
        for put in puts
        for slot, key, checksum in zip(put.slots.tolist(), put.stretch.keys, put.sums.tolist(), strict=True)
    }


@pytest.mark.parametrize("drives", [1, 2, 3])
@pytest.mark.parametrize("layout", [ALIGNED, ODD], ids=["aligned", "odd"])
def test_what_is_on_record_comes_back(make_rig: MakeRig, drives: int, layout: tuple[int, int, int]) -> None:
    rig = make_rig(identity=IDENTITY, drives=drives, n_slots=36, layout=layout)
    puts = [rig.put(path_of(7)), rig.put(path_of(2, name=1, space=Space("lora", "salt")))]
    puts.append(rig.put(path_of(5, name=2, front=puts[0].stretch.keys[3].tobytes())))
    loose = rig.put(path_of(3, name=3), record=False)
    rig.reopen()
    assert rig.store.used_slots == 14 and rig.store.free_slots == 22
    found = rig.restored()
    assert pages(found) == pages(puts)
    assert not set(pages([loose])) & set(pages(found)), "what is not on record is free again"
    calls = {op: sum(engine.calls[op] for engine in rig.engines.values()) for op in ("read", "write")}
    assert calls == {"read": 0, "write": 0}
    assert all(rig.get(put).ok.all() for put in found)
    assert all(engine.calls["write"] == 0 for engine in rig.engines.values()), "nothing is written again"
    more = rig.store.alloc(22)
    assert more is not None and not set(more.tolist()) & set(pages(found))


def test_freed_pages_do_not_come_back(make_rig: MakeRig) -> None:
    rig = make_rig(identity=IDENTITY, drives=2)
    put, other = rig.put(path_of(8)), rig.put(path_of(6, name=1))
    rig.store.free(np.concatenate([put.slots[5:], other.slots]))
    rig.reopen()
    assert pages(rig.restored()) == pages([put.part(0, 5)])
    assert rig.store.free_slots == 27


def test_a_page_that_was_freed_before_its_row_was_written_has_none(make_rig: MakeRig) -> None:
    rig = make_rig(identity=IDENTITY)
    put = rig.put(path_of(6))
    rig.store.free(put.slots[2:3])
    assert rig.store.free_slots == 27, "no row names it yet, so it is free at once"
    again = rig.put(path_of(1, name=1))
    assert again.slots.tolist() == put.slots[2:3].tolist()
    rig.reopen()
    found = pages(rig.restored())
    assert {slot: found[slot] for slot in put.slots[:3].tolist()} == {**pages([put.part(0, 2)]), **pages([again])}


def test_restored_pages_can_be_freed_and_recorded_anew(make_rig: MakeRig, quick: None) -> None:
    rig = make_rig(identity=IDENTITY)
    rig.put(path_of(6))
    rig.reopen()
    [found] = rig.restored()
    rig.store.free(found.slots[2:])
    rig.until(lambda: rig.store.free_slots == 30)
    again = rig.put(path_of(4, name=1))
    rig.reopen()
    assert pages(rig.restored()) == pages([found.part(0, 2), again])


def test_touched_paths_come_first(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = make_rig(identity=IDENTITY, drives=2)
    puts = [rig.put(path_of(4, name=i), used=1000.0 + i) for i in range(3)]
    rig.store.touch(puts[0].slots, 2000.0)  # on the way, or waiting
    rig.reopen()
    rig.restored()
    rig.store.touch(puts[1].slots[2:], 3000.0)
    rig.reopen()
    found = [put.stretch.tokens[0, 0] // 1000 for put in rig.restored()]
    assert list(dict.fromkeys(found)) in ([1, 2, 0], [1, 0, 2]) and found[0] == 1
    rig.store.touch(puts[0].slots, 4000.0)
    rig.reopen()
    found = [put.stretch.tokens[0, 0] // 1000 for put in rig.restored()]
    assert list(dict.fromkeys(found)) == [0, 1, 2]


# Who may read it


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(IDENTITY)])
def test_another_identity_finds_nothing(make_rig: MakeRig, field: str, caplog: pytest.LogCaptureFixture) -> None:
    """CASES C16, C17."""
    rig = make_rig(identity=IDENTITY)
    rig.put(path_of(4))
    value = getattr(IDENTITY, field)
    other = dataclasses.replace(IDENTITY, **{field: f"{value}x" if isinstance(value, str) else value + 1})
    rig.reopen(identity=other)
    assert rig.restored() == [] and rig.store.free_slots == 32
    assert f"{field} {value} instead of {getattr(other, field)}" in caplog.text
    rig.reopen(identity=IDENTITY)
    assert rig.restored() == []


def test_other_stores_can_be_kept(make_rig: MakeRig) -> None:
    rig = make_rig(identity=IDENTITY)
    put = rig.put(path_of(4))
    other = dataclasses.replace(IDENTITY, weights="cd" * 32)
    assert rig.store.close(20)
    nbytes = sum(files.nbytes() for files in find_stores(rig.directory))
    capacity = nbytes + footprint(8, rig.page_bytes, PAGE_TOKENS)
    n = next(n for n in range(99, 0, -1) if footprint(n, rig.page_bytes, PAGE_TOKENS) <= capacity)
    rig.open(n, identity=other, keep_others=True)
    assert rig.store.n_slots < n and rig.restored() == []
    assert disk_usage(rig) <= capacity
    rig.put(path_of(4))
    rig.reopen(40, identity=IDENTITY)
    assert pages(rig.restored()) == pages([put])
    [found] = [put]
    assert rig.get(found).ok.all()


def disk_usage(rig: Rig) -> int:
    return sum(path.stat().st_blocks * 512 for d in rig.directories for path in d.iterdir())


def test_without_an_identity_nothing_is_left_behind(make_rig: MakeRig) -> None:
    rig = make_rig()
    put = rig.put(path_of(4))
    rig.store.touch(put.slots, 2000.0)
    assert rig.store.clear() and rig.store.restorer() is None
    rig.store.free(put.slots)
    assert rig.store.free_slots == 32
    assert rig.store.close(20)
    assert [path.name for path in rig.directory.iterdir()] == ["radixtier-r0.lock"]


@pytest.mark.parametrize("n", [8, 20, 60])
def test_another_capacity_keeps_what_still_fits(make_rig: MakeRig, n: int) -> None:
    rig = make_rig(identity=IDENTITY)
    first, second = rig.put(path_of(6)), rig.put(path_of(10, name=1))
    rig.reopen(n)
    assert rig.store.n_slots == n
    assert pages(rig.restored()) == {s: page for s, page in pages([first, second]).items() if s < n}
    assert rig.get(first).ok.all()
    rig.reopen(32)
    assert pages(rig.restored()) == {s: page for s, page in pages([first, second]).items() if s < n}


def test_a_drive_that_is_missing_takes_only_its_pages(make_rig: MakeRig) -> None:
    rig = make_rig(identity=IDENTITY, drives=2, pages_per_transfer=2)
    put, other = rig.put(path_of(8)), rig.put(path_of(2, name=1))
    assert rig.store.close(20)
    rig.directories = rig.directories[:1]
    rig.open(16)
    found = pages(rig.restored())
    lone = [p for p in (put.part(0, 2), other) if (p.slots < 16).all()]
    assert found == pages(lone), "what lies behind missing pages cannot be found"
    rig.until(lambda: rig.store.free_slots == 16 - len(found))


def test_the_order_of_directories_does_not_matter(make_rig: MakeRig) -> None:
    rig = make_rig(identity=IDENTITY, drives=2, pages_per_transfer=2)
    put = rig.put(path_of(8))
    assert rig.store.close(20)
    rig.directories.reverse()
    rig.open(32)
    found = rig.restored()
    assert {key for key, _ in pages(found).values()} == {key for key, _ in pages([put]).values()}
    assert all(rig.get(p).ok.all() for p in found)


# Files that do not fit together


@pytest.mark.parametrize("damage", ["slab", "journal", "journal of another slab", "rubbish"])
def test_slab_and_journal_must_belong_together(make_rig: MakeRig, damage: str, tmp_path: Path) -> None:
    rig = make_rig(identity=IDENTITY)
    rig.put(path_of(4))
    assert rig.store.close(20)
    files = rig.files()
    if damage == "slab":
        files.slab.unlink()
    elif damage == "journal":
        files.db.unlink()
    elif damage == "journal of another slab":
        other = Rig(tmp_path / "other", identity=IDENTITY)
        other.put(path_of(9, name=1))
        assert other.store.close(20)
        files.db.write_bytes(other.files().db.read_bytes())
    else:
        files.db.write_bytes(b"rubbish" * 1000)
    rig.open(32)
    assert rig.restored() == [] and rig.store.free_slots == 32
    put = rig.put(path_of(4))
    rig.reopen()
    assert pages(rig.restored()) == pages([put])


def test_a_journal_that_cannot_be_opened_is_an_error_at_start(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(identity=IDENTITY, drives=2)
    put = rig.put(path_of(8))
    assert rig.store.close(20)
    with monkeypatch.context() as patch:

        def fail(self: Journal) -> None:
            raise JournalError("disk I/O error")

        patch.setattr(Journal, "extents", fail)
        with pytest.raises(StoreError, match=r"--radix-tier-nvme-path.*drive0.*disk I/O error"):
            rig.open(32)
    rig.open(32)
    assert pages(rig.restored()) == pages([put])


# Clear and seal


@pytest.mark.parametrize("drives", [1, 2])
def test_clear_strikes_everything_and_slots_stay(make_rig: MakeRig, drives: int) -> None:
    rig = make_rig(identity=IDENTITY, drives=drives)
    put = rig.put(path_of(8))
    rig.store.free(put.slots[6:])
    assert rig.store.clear(20)
    rig.store.poll()
    assert (rig.store.used_slots, rig.store.free_slots) == (6, 26)
    assert rig.get(put.part(0, 6)).ok.all()
    rig.store.free(put.slots[4:6])
    assert rig.store.free_slots == 28, "no row names them any more"
    later = rig.put(path_of(3, name=1))
    rig.reopen()
    assert pages(rig.restored()) == pages([later])


def test_clear_without_a_working_journal_disowns_the_slab(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    rig = make_rig(identity=IDENTITY)
    put = rig.put(path_of(8))
    rig.until(rig.recorded)

    def fail(self: Journal, *args: object) -> None:
        raise JournalError("disk I/O error")

    with monkeypatch.context() as patch:
        for name in ("clear", "apply", "set_status"):
            patch.setattr(Journal, name, fail)
        assert rig.store.clear(20)
        assert rig.get(put).ok.all()
    rig.until(lambda: rig.store.writable)
    later = rig.put(path_of(3, name=1))
    rig.reopen()
    assert pages(rig.restored()) == pages([later])


def test_clear_that_cannot_be_certain_says_so_and_goes_on(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_rig(identity=IDENTITY)
    rig.put(path_of(8))
    slots = rig.store.alloc(2)
    slab = rig.store._drives[0].volume.slab

    def fail(*args: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "clear", lambda self: (_ for _ in ()).throw(JournalError("disk I/O error")))
        patch.setattr(slab, "disown", fail)
        assert not rig.store.clear(0.1)
        later = rig.put(path_of(2, name=1), slots=slots)
    rig.until(lambda: rig.store.writable and rig.recorded())
    assert caplog.text.count("cannot be emptied yet") == 1
    rig.reopen()
    assert pages(rig.restored()) == pages([later]), "what was recorded after it is not its business"


def test_a_sealed_store_records_nothing(make_rig: MakeRig, caplog: pytest.LogCaptureFixture) -> None:
    rig = make_rig(identity=IDENTITY)
    rig.put(path_of(4))
    assert rig.store.seal("the weights were updated", 20)
    assert rig.store.seal("the weights were updated again", 20)
    assert caplog.text.count("will be found after a restart: the weights were updated") == 1
    put = rig.put(path_of(5, name=1))
    assert rig.store.restorer() is None
    rig.store.touch(put.slots, 2000.0)
    rig.store.free(put.slots[3:])
    assert rig.store.free_slots == 32 - 7
    rig.reopen()
    assert rig.restored() == []
    later = rig.put(path_of(2, name=2))
    rig.reopen()
    assert pages(rig.restored()) == pages([later]), "a new run starts with weights of its own"


KILLED = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from store_rig import IDENTITY, Rig, path_of
rig = Rig(Path(sys.argv[2]), identity=IDENTITY, drives=2)
puts = [rig.put(path_of(6, name=i)) for i in range(3)]
what = sys.argv[3]
if what == "clear":
    assert rig.store.clear(20)
elif what == "seal":
    assert rig.store.seal("the weights were updated", 20)
    rig.put(path_of(6, name=9))
else:
    rig.until(rig.recorded)
    rig.store.free(puts[2].slots[4:])
    slots = rig.store.alloc(2)
    rig.store.write(slots * 0 + [7, 8], slots, slots.astype("u8"), "never over")
os._exit(9)
"""


@pytest.mark.parametrize("what", ["nothing", "clear", "seal"])
def test_a_killed_server(tmp_path: Path, what: str) -> None:
    """CASES C21, C22."""
    command = [sys.executable, "-c", KILLED, str(Path(__file__).parent), str(tmp_path / "store"), what]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 9, result.stderr
    rig = Rig(tmp_path / "store", identity=IDENTITY, drives=2)
    found = rig.restored()
    names = {int(put.stretch.tokens[0, 0]) // 1000 for put in found}
    assert names == (set(range(3)) if what == "nothing" else set())
    for put in found:
        assert rig.get(put).ok.all()
    assert rig.store.used_slots == sum(len(put.slots) for put in found)
    rig.close()


def test_what_happens_after_close_is_harmless(make_rig: MakeRig) -> None:
    rig = make_rig(identity=IDENTITY)
    put = rig.put(path_of(4))
    assert rig.store.close(20)
    rig.store.record(put.stretch, put.slots, put.sums, 1.0)
    rig.store.touch(put.slots, 2.0)
    assert not rig.store.clear(600), "nothing to wait for"
    rig.store.free(put.slots)
    assert rig.store.poll() == [] and not rig.store.writable and rig.store.alloc(1) is None
    rig.open(32)
    assert pages(rig.restored()) == pages([put])


def test_status_is_noted_for_tools(make_rig: MakeRig, caplog: pytest.LogCaptureFixture) -> None:
    rig = make_rig(identity=IDENTITY)
    with caplog.at_level(logging.WARNING):
        put = rig.put(path_of(4))
        rig.damage(int(put.slots[0]), 3)
        rig.get(put)
        assert rig.store.close(20)
        rig.open(32)
        journal = rig.store._drives[0].volume.journal
        assert journal is not None
        status = journal.status()
    assert status["write_pages"] == 4 and status["corrupt"] == 1 and status["reason"] is None
    assert status["quarantined"] == 0 and status["journal_dropped"] == 0
    assert page_seeds(put.stretch).dtype == np.uint64
