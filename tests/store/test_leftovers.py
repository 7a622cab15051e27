"""What else lies in a directory: ours is reclaimed, all else stays."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from store_rig import IDENTITY, PAGE_TOKENS
from test_slab import CAPACITY, PAGE, open_slab

from radixtier.footprint import footprint, slots_for
from radixtier.store import leftovers
from radixtier.store.paths import find_stores, lock_path
from radixtier.store.slab import StoreError

OTHER = dataclasses.replace(IDENTITY, weights="cd" * 32, page_size=64)


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_the_store_of_another_identity_is_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    open_slab(tmp_path, identity=OTHER).close()
    before = find_stores(tmp_path)
    opened = open_slab(tmp_path)
    after = find_stores(tmp_path)
    assert len(after) == 1 and after != before
    [record] = [record for record in caplog.records if "removed the store" in record.message]
    assert str(before[0].slab) in record.message
    assert f"weights {OTHER.weights} instead of {IDENTITY.weights}, page_size 64 instead of 4" in record.message
    assert not [name for name in names(tmp_path) if before[0].id in name]
    opened.close()


def test_it_can_be_kept_and_counts(tmp_path: Path) -> None:
    open_slab(tmp_path, identity=OTHER).close()
    [aside] = find_stores(tmp_path)
    nbytes = aside.nbytes()
    opened = open_slab(tmp_path, 2 * CAPACITY, keep_others=True)
    assert opened.plan.n_slots == slots_for(2 * CAPACITY - nbytes, PAGE, PAGE_TOKENS)
    assert sum(path.stat().st_blocks * 512 for path in tmp_path.iterdir()) <= 2 * CAPACITY
    opened.close()
    nbytes = sum(files.nbytes() for files in find_stores(tmp_path))
    least = nbytes + footprint(1, PAGE, PAGE_TOKENS)
    with pytest.raises(
        StoreError,
        match=f"--radix-tier-nvme-size.*give at least {least}, {nbytes} of which other stores take, or "
        r"--radix-tier-nvme-others reclaim",
    ):
        open_slab(tmp_path, least - 1, keep_others=True, identity=dataclasses.replace(OTHER, layers=9))
    assert len(find_stores(tmp_path)) == 2


def test_a_store_that_nothing_outlives_keeps_what_it_is_to_keep(tmp_path: Path) -> None:
    open_slab(tmp_path).close()
    before = [files.id for files in find_stores(tmp_path)]
    opened = open_slab(tmp_path, 2 * CAPACITY, identity=None, keep_others=True)
    assert sorted(files.id for files in find_stores(tmp_path)) == sorted([*before, "volatile"])
    opened.close()
    assert [files.id for files in find_stores(tmp_path)] == before


def test_nobody_keeps_what_nobody_can_read(tmp_path: Path) -> None:
    opened = open_slab(tmp_path, identity=None)
    left = opened.slab.path.read_bytes()
    opened.close()
    opened.slab.path.write_bytes(left)
    opened.slab.path.chmod(0o600)
    opened = open_slab(tmp_path, keep_others=True)
    assert "volatile" not in [files.id for files in find_stores(tmp_path)]
    opened.close()


def test_a_volatile_store_that_was_killed_is_removed(tmp_path: Path) -> None:
    opened = open_slab(tmp_path, identity=None)
    (opened.slab.path).chmod(0o600)
    left = opened.slab.path.read_bytes()
    opened.close()
    opened.slab.path.write_bytes(left)
    open_slab(tmp_path).close()
    assert [files.id for files in find_stores(tmp_path)] != ["volatile"]


def test_files_of_the_previous_release_and_old_probes_are_removed(tmp_path: Path) -> None:
    for name in ("radixtier.lock", "radixtier-000.slab", "radixtier-probe-00ff", "radixtier-probe-new"):
        (tmp_path / name).write_bytes(b"old")
    old = time.time() - leftovers.PROBE_LIFE_S - 1
    os.utime(tmp_path / "radixtier-probe-00ff", (old, old))
    open_slab(tmp_path).close()
    assert {"radixtier-probe-new", "radixtier-r0.lock"} <= names(tmp_path)
    assert not names(tmp_path) & {"radixtier.lock", "radixtier-000.slab", "radixtier-probe-00ff"}


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    others = {"radixtier-notes.txt", "radixtier-r0-xyz.slab", "radixtier-r0-0123456789ab.slab.bak", "Radixtier.lock"}
    others |= {"data.slab", "radixtier-abc.slab", "radixtier-r1-xyz.slab", "radixtier-1-0123456789ab.db"}
    others |= {"radixtier-rx.lock", "radixtier-r0-0123456789ab.dbx"}
    for name in others:
        (tmp_path / name).write_bytes(b"theirs")
    tmp_path.chmod(0o700)
    open_slab(tmp_path).close()
    assert {path.name for path in tmp_path.iterdir() if path.read_bytes() == b"theirs"} == others


@pytest.mark.parametrize(
    "name",
    [
        *("radixtier-r0-0123456789ab.slab", "radixtier-r0-0123456789ab.db", "radixtier-r0-0123456789ab.db-wal"),
        *("radixtier-000.slab", "radixtier.lock", "radixtier-r0.lock", "radixtier-probe-00ff"),
    ],
)
@pytest.mark.parametrize("kind", ["link", "hard link", "pipe"])
def test_what_is_not_our_plain_file_is_refused(
    tmp_path: Path, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "OLD_LOCK_S", 0.0)
    monkeypatch.setattr(leftovers, "PROBE_LIFE_S", -1e9)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    directory = tmp_path / "d"
    directory.mkdir(mode=0o700)
    if kind == "link":
        (directory / name).symlink_to(victim)
    elif kind == "hard link":
        os.link(victim, directory / name)
    else:
        os.mkfifo(directory / name)
    with pytest.raises(StoreError, match=rf"--radix-tier-nvme-path.*{name}.*remove it or give another directory"):
        open_slab(directory)
    assert name in names(directory) and victim.read_text() == "precious"


def test_a_foreign_file_among_our_names_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "radixtier-r0-0123456789ab.slab"
    path.write_text("precious")
    os.chown(path, 12345, -1) if os.geteuid() == 0 else pytest.skip("only root can give files away")
    with pytest.raises(StoreError, match="is not our plain file"):
        open_slab(tmp_path)
    assert path.read_text() == "precious"


OLD_SERVER = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(fd, fcntl.LOCK_EX)
os.pwrite(fd, f"{os.getpid()}".encode(), 0)
print("open", flush=True)
sys.stdin.read()
"""


def test_a_running_server_of_the_previous_release_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "OLD_LOCK_S", 0.0)
    (tmp_path / "radixtier-000.slab").write_bytes(b"in use")
    command = [sys.executable, "-c", OLD_SERVER, str(tmp_path / "radixtier.lock")]
    first: subprocess.Popen[str] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert first.stdin is not None and first.stdout is not None
    try:
        assert first.stdout.readline() == "open\n"
        with pytest.raises(StoreError, match=rf"in use by process {first.pid}\b"):
            open_slab(tmp_path)
        assert (tmp_path / "radixtier-000.slab").read_bytes() == b"in use"
    finally:
        first.kill()
        first.wait(20)
        first.stdin.close()
        first.stdout.close()
    open_slab(tmp_path).close()
    assert "radixtier-000.slab" not in names(tmp_path)
    assert lock_path(tmp_path, 0).exists()
