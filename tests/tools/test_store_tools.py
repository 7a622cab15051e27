"""``radixtier store``: what is looked at stays as it is, what is bad is found, and only what is ours goes."""

from __future__ import annotations

import io
import json
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from store_rig import IDENTITY, PAGE_TOKENS, WAIT, Put, Rig, path_of

from radixtier.cli.store import main
from radixtier.identity import Space
from radixtier.store.journal import JournalReader
from radixtier.tools.scratch import PREFIX as SCRATCH

OTHER = IDENTITY.__class__.from_json(IDENTITY.to_json().replace("float32", "bfloat16"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any]]:
    """Run a subcommand with ``--json``; return its status and what it printed."""

    def run(command: str, directories: Sequence[Path], *more: str) -> tuple[int, Any]:
        capsys.readouterr()
        status = main([command, *map(str, directories), "--json", *more])
        text = capsys.readouterr().out
        return status, json.loads(text) if text else None

    return run


Run = Callable[..., tuple[int, Any]]


def closed(rig: Rig) -> Rig:
    assert rig.store.close(WAIT)
    return rig


def content(directory: Path) -> dict[str, bytes]:
    """Names and bytes of what a restart depends on."""
    files = [path for path in directory.iterdir() if path.suffix in (".slab", ".db")]
    return {path.name: path.read_bytes() for path in files}


def damage(rig: Rig, put: Put, page: int) -> int:
    """Flip a bit of a page in its slab; return its slot."""
    slot = int(put.slots[page])
    drive, start = rig.place(slot)
    with rig.files(drive).slab.open("r+b") as file:
        file.seek(start + 5)
        byte = file.read(1)[0]
        file.seek(start + 5)
        file.write(bytes([byte ^ 1]))
    return slot


# Looking


def test_ls_shows_paths_hottest_first_and_no_salt(make_rig: Callable[..., Rig], run: Run) -> None:
    rig = make_rig(drives=2)
    trunk = rig.put(path_of(3), used=10.0)
    fork = path_of(2, name=7, front=trunk.stretch.keys[1].tobytes())
    rig.put(fork, used=30.0)
    secret = path_of(4, name=2, space=Space("adapter", "tenant-secret"))
    rig.put(secret, used=20.0)
    closed(rig)
    before = [content(directory) for directory in rig.directories]
    status, [listing] = run("ls", rig.directories)
    assert status == 0
    assert [(path["pages"], path["used"]) for path in listing["paths"]] == [(4, 30.0), (4, 20.0), (3, 10.0)]
    salted = listing["paths"][1]
    assert salted["extra_key"] == "adapter" and salted["tokens"] == 4 * PAGE_TOKENS
    assert salted["nbytes"] == 4 * rig.store.slot_bytes
    assert len(salted["salt"]) == 8 and listing["paths"][0]["salt"] is None
    assert (listing["pages"], listing["orphans"]) == (3 + 2 + 4, 0)
    assert "tenant-secret" not in json.dumps(listing)
    assert [content(directory) for directory in rig.directories] == before


def test_ls_counts_what_hangs_on_nothing(make_rig: Callable[..., Rig], run: Run) -> None:
    rig = make_rig()
    whole = path_of(5)
    rig.put(whole.part(0, 2))
    rig.put(whole.part(3, 5))
    closed(rig)
    status, [listing] = run("ls", [rig.directory])
    assert status == 0
    assert [path["pages"] for path in listing["paths"]] == [2]
    assert (listing["pages"], listing["orphans"]) == (2, 2)


def test_text_of_ls_and_stat(make_rig: Callable[..., Rig], capsys: pytest.CaptureFixture[str]) -> None:
    rig = make_rig()
    rig.put(path_of(3, space=Space(None, "tenant-secret")), used=0.0)
    closed(rig)
    assert main(["ls", str(rig.directory)]) == 0
    text = capsys.readouterr().out
    assert "1970-01-01 00:00:00" in text and "salt #" in text and "1 paths, 3 pages" in text
    assert main(["stat", str(rig.directory)]) == 0
    text = capsys.readouterr().out
    assert "kv_dtype" in text and "3 pages in 1 rows" in text and "nobody" in text
    assert "tenant-secret" not in text


def test_stat_tells_use_caps_and_the_server(make_rig: Callable[..., Rig], run: Run) -> None:
    rig = make_rig(n_slots=8)
    first = rig.put(path_of(2))
    gap = rig.store.alloc(1)
    rig.put(path_of(3, name=1))
    closed(rig)
    status, [found] = run("stat", [rig.directory])
    assert status == 0 and gap is not None and first.slots[0] == 0
    assert found["identity"]["kv_dtype"] == "float32" and found["trouble"] is None
    assert (found["slots"], found["rows"], found["pages"]) == (8, 2, 5)
    assert (found["free_extents"], found["largest_extent"]) == (2, 2)
    assert 8 * rig.store.slot_bytes < found["bytes"] <= found["cap"]
    assert found["status"]["write_pages"] == 5 and found["server"] is None
    rig.open(8)
    _, [found] = run("stat", [rig.directory])
    assert found["server"] == str(os.getpid()) and found["pages"] == 5


def test_a_store_without_a_readable_slab_is_no_crash(make_rig: Callable[..., Rig], run: Run) -> None:
    rig = make_rig()
    rig.put(path_of(2))
    closed(rig)
    rig.slab.write_bytes(b"rubbish" * 1000)
    for command in ("ls", "stat"):
        status, [found] = run(command, [rig.directory])
        assert status == 0
    assert "no slab of radixtier" in found["trouble"]
    assert run("verify", [rig.directory])[0] == 1
    assert run("scrub", [rig.directory])[0] == 1


def test_a_journal_of_another_slab_counts_for_nothing(make_rig: Callable[..., Rig], run: Run) -> None:
    rigs = [closed(make_rig()) for _ in range(2)]
    os.replace(rigs[0].files().db, rigs[1].files().db)
    _, [found] = run("stat", [rigs[1].directory])
    assert "another slab" in found["trouble"]


# Verifying and mending


def test_verify_reads_every_page(make_rig: Callable[..., Rig], run: Run) -> None:
    rig = make_rig(drives=2, n_slots=64)
    puts = [rig.put(path_of(9, name=i)) for i in range(3)]
    closed(rig)
    status, results = run("verify", rig.directories)
    assert status == 0
    assert sum(result["pages"] for result in results) == 27
    assert not any(result["bad"] for result in results)
    slot = damage(rig, puts[1], 4)
    drive, _ = rig.place(slot)
    before = [content(directory) for directory in rig.directories]
    status, results = run("verify", rig.directories)
    assert status == 1
    [bad] = results[drive]["bad"]
    assert (bad["slot"], bad["pages"]) == (slot - drive * rig.store.n_slots // 2, 1)
    assert "checksum" in bad["why"] and not results[1 - drive]["bad"]
    assert [content(directory) for directory in rig.directories] == before


def test_verify_names_what_cannot_be_read(make_rig: Callable[..., Rig], run: Run) -> None:
    rig = make_rig()
    put = rig.put(path_of(4))
    closed(rig)
    os.truncate(rig.slab, rig.place(int(put.slots[3]))[1] + 4096)
    status, [result] = run("verify", [rig.directory])
    assert status == 1
    assert [bad["slot"] for bad in result["bad"]] == [int(put.slots[3])]
    assert "cannot be read" in result["bad"][0]["why"]


def test_verify_beside_a_server_that_reuses_slots(
    make_rig: Callable[..., Rig], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that is freed and overwritten between its row and its bytes is not bad."""
    rig = make_rig(n_slots=4)
    put = rig.put(path_of(4))
    closed(rig)
    rig.open(4)
    rig.store.restorer()
    rows = JournalReader.rows
    swapped: list[bool] = []

    def rows_then_reuse(self: JournalReader, slots: Sequence[int]) -> Any:
        found = rows(self, slots)
        if not swapped:
            swapped.append(True)
            rig.store.free(put.slots[2:])
            rig.until(lambda: rig.store.free_slots == 2)
            again = rig.put(path_of(2, name=9))
            assert set(again.slots.tolist()) == {2, 3}
        return found

    monkeypatch.setattr(JournalReader, "rows", rows_then_reuse)
    status, [result] = run("verify", [rig.directory])
    assert swapped and status == 0
    assert result["bad"] == []


def test_scrub_takes_bad_pages_off_the_record_and_puts_their_slots_aside(
    make_rig: Callable[..., Rig], run: Run
) -> None:
    rig = make_rig()
    put = rig.put(path_of(6))
    closed(rig)
    slot = damage(rig, put, 3)
    status, [result] = run("scrub", [rig.directory])
    assert status == 0
    assert [bad["slot"] for bad in result["bad"]] == [slot]
    assert run("verify", [rig.directory])[0] == 0
    assert run("stat", [rig.directory])[1][0]["quarantined"] == 1
    rig.open(32)
    assert sorted(int(s) for each in rig.restored() for s in each.slots) == put.slots[:3].tolist()


def test_damaged_rows_are_bad_pages(make_rig: Callable[..., Rig], run: Run) -> None:
    rig = make_rig()
    put = rig.put(path_of(3))
    rig.put(path_of(2, name=1))
    closed(rig)
    db = sqlite3.connect(rig.files().db)
    [(tokens,)] = db.execute("SELECT tokens FROM runs WHERE slot = ?", (int(put.slots[0]),)).fetchall()
    with db:
        changed = bytes([tokens[0] ^ 1]) + tokens[1:]
        db.execute("UPDATE runs SET tokens = ? WHERE slot = ?", (changed, int(put.slots[0])))
    db.close()
    status, [result] = run("verify", [rig.directory])
    assert status == 1
    [bad] = result["bad"]
    assert (bad["slot"], bad["pages"]) == (int(put.slots[0]), 3) and "row" in bad["why"]
    run("scrub", [rig.directory])
    status, [result] = run("verify", [rig.directory])
    assert (status, result["pages"]) == (0, 2)


# Removing


def test_gc_keeps_the_store_that_was_used_last(make_rig: Callable[..., Rig], run: Run) -> None:
    rig = make_rig()
    rig.put(path_of(2))
    closed(rig)
    old = [rig.files().slab, rig.files().db]
    for path in rig.directory.iterdir():
        os.utime(path, (1, 1))
    rig.open(96, identity=OTHER, keep_others=True)
    rig.put(path_of(3))
    closed(rig)
    other = rig.directory / "radixtier.txt"
    other.write_text("not ours")
    (rig.directory / f"{SCRATCH}dead").mkdir()
    probe = rig.directory / "radixtier-probe-0"
    probe.write_text("")
    os.utime(probe, (0, 0))
    assert run("gc", [rig.directory])[0] == 1, "nobody to ask"
    assert all(path.exists() for path in old)
    status, found = run("gc", [rig.directory], "--yes")
    assert status == 0
    removed = {Path(path) for path in found["removed"]}
    assert {*old, probe, rig.directory / f"{SCRATCH}dead"} <= removed
    assert not any(path.exists() for path in removed)
    assert other.exists() and found["bytes"] > 0
    status, [listing] = run("ls", [rig.directory])
    assert listing["store"] == rig.files().id and listing["pages"] == 3


def test_gc_gives_room_back_and_keeps_every_row(make_rig: Callable[..., Rig], run: Run) -> None:
    rig = make_rig(n_slots=2048)
    dropped = [rig.put(path_of(32, name=i)) for i in range(60)]
    kept = rig.put(path_of(4, name=99))
    rig.reopen()
    for put in dropped:
        rig.store.free(put.slots)
    closed(rig)
    before = rig.files().db.stat().st_size
    assert run("gc", [rig.directory]) == (0, {"removed": [], "bytes": 0})
    assert rig.files().db.stat().st_size < before
    status, [listing] = run("ls", [rig.directory])
    assert (status, listing["pages"]) == (0, 4)
    rig.open(2048)
    assert rig.get(kept).ok.all()


def test_gc_over_two_drives_keeps_what_hangs_together(make_rig: Callable[..., Rig], run: Run) -> None:
    rig = make_rig(drives=2, n_slots=64, pages_per_transfer=1)
    put = rig.put(path_of(20))
    assert {rig.place(slot)[0] for slot in put.slots.tolist()} == {0, 1}
    closed(rig)
    status, found = run("gc", rig.directories)
    assert (status, found["removed"]) == (0, [])
    assert run("ls", rig.directories)[1][0]["pages"] == 20


def test_clear_removes_only_ours(make_rig: Callable[..., Rig], run: Run) -> None:
    rig = make_rig()
    rig.put(path_of(2))
    closed(rig)
    other = rig.directory / "radixtier-notes.md"
    other.write_text("not ours")
    old = rig.directory / "radixtier-000.slab"
    old.write_text("of release 0.1")
    assert run("clear", [rig.directory])[0] == 1  # nobody to ask
    assert rig.slab.exists()
    status, found = run("clear", [rig.directory], "--yes")
    assert status == 0
    assert {str(rig.slab), str(rig.files().db), str(old)} <= set(found["removed"])
    assert sorted(path.name for path in rig.directory.iterdir()) == ["radixtier-notes.md", "radixtier-r0.lock"]
    assert run("clear", [rig.directory], "--yes") == (0, {"removed": []})


@pytest.mark.parametrize(("answer", "gone"), [("y\n", True), ("\n", False), ("no\n", False)])
def test_clear_asks(make_rig: Callable[..., Rig], answer: str, gone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    rig = closed(make_rig())
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    assert main(["clear", str(rig.directory)]) == (0 if gone else 1)
    assert rig.slab.exists() != gone


def test_clear_follows_no_link(make_rig: Callable[..., Rig], tmp_path: Path) -> None:
    rig = closed(make_rig())
    victim = tmp_path / "victim"
    victim.write_text("somebody's")
    rig.slab.unlink()
    rig.slab.symlink_to(victim)
    assert main(["clear", "--yes", str(rig.directory)]) == 1
    assert victim.read_text() == "somebody's"


@pytest.mark.parametrize("command", [["scrub"], ["gc"], ["clear", "--yes"]])
def test_a_running_server_is_not_disturbed(
    make_rig: Callable[..., Rig], command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    rig = make_rig()
    put = rig.put(path_of(2))
    assert main([*command, str(rig.directory)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert str(rig.directory) in error and f"process {os.getpid()}" in error
    assert rig.get(put).ok.all()


# What is not there


@pytest.mark.parametrize("command", ["ls", "stat", "verify", "scrub", "gc", "clear"])
@pytest.mark.parametrize("kind", ["absent", "link", "file"])
def test_a_wrong_place_is_one_line(tmp_path: Path, command: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    place = tmp_path / kind
    assert main([command, str(place)]) == 2
    error = capsys.readouterr().err
    assert str(place) in error and error.count("\n") == 1


def test_an_empty_directory(tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(tmp_path)]) == 1
    assert "holds no store" in capsys.readouterr().err
    assert run("gc", [tmp_path]) == (0, {"removed": [], "bytes": 0})
    assert run("clear", [tmp_path]) == (0, {"removed": []})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("arguments", [[], ["nope"], ["ls"], ["ls", "--yes", "/x"], ["verify", "--nope", "/x"]])
def test_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert "usage: radixtier store" in capsys.readouterr().err
