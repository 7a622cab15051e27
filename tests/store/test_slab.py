"""The directories of a store: safe to use, ours alone, never larger than allowed."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from store_rig import IDENTITY, PAGE_TOKENS

from radixtier.footprint import HEADER_BYTES, footprint, slot_bytes
from radixtier.io.posix import PosixEngine
from radixtier.store import slab
from radixtier.store.header import Header, read_header
from radixtier.store.opening import open_volumes
from radixtier.store.paths import StoreFiles, find_stores, lock_path, store_id
from radixtier.store.slab import StoreError
from radixtier.store.volume import Volume

PAGE = 5000
CAPACITY = footprint(10, PAGE, PAGE_TOKENS)
ID = store_id(IDENTITY)
SLAB_NAME = f"radixtier-r0-{ID}.slab"
LOCK_NAME = "radixtier-r0.lock"


def open_slab(directory: Path, capacity: int = CAPACITY, page_bytes: int = PAGE, **options: Any) -> Volume:
    given = {"identity": IDENTITY, "rank": 0, "min_free": 0, "keep_others": False, **options}
    [volume] = open_volumes(
        [directory], capacity, page_bytes, PAGE_TOKENS, engine=lambda path: PosixEngine(direct=False), **given
    )
    return volume


def put_old_bytes(directory: Path) -> None:
    """Write something into the first slot."""
    with (directory / SLAB_NAME).open("r+b") as file:
        file.seek(HEADER_BYTES)
        file.write(b"old")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_slots_are_whole_blocks() -> None:
    assert [slot_bytes(n) for n in (1, 4096, 4097, 737280)] == [4096, 4096, 8192, 737280]


@pytest.mark.parametrize("capacity", [CAPACITY, footprint(11, PAGE, PAGE_TOKENS) - 1])
def test_bytes_on_disk_stay_within_capacity(tmp_path: Path, capacity: int) -> None:
    opened = open_slab(tmp_path / "d", capacity)
    assert opened.slab.nbytes == HEADER_BYTES + 10 * slot_bytes(PAGE)
    used = [path.stat() for path in (tmp_path / "d").iterdir()]
    assert sum(s.st_size for s in used) <= capacity
    assert sum(s.st_blocks * 512 for s in used) <= capacity
    assert (tmp_path / "d" / SLAB_NAME).stat().st_blocks * 512 >= opened.slab.nbytes  # reserved, not sparse
    opened.close()


def test_capacity_below_a_page_is_refused(tmp_path: Path) -> None:
    least = footprint(1, PAGE, PAGE_TOKENS)
    with pytest.raises(StoreError, match=f"--radix-tier-nvme-size.*at least {least}"):
        open_slab(tmp_path / "d", least - 1)
    open_slab(tmp_path / "d", least).close()


def test_only_we_can_read_what_is_created(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        opened = open_slab(tmp_path / "new" / "deep")
    finally:
        os.umask(old)
    assert mode(tmp_path / "new" / "deep") == 0o700
    names = {path.name: mode(path) for path in (tmp_path / "new" / "deep").iterdir()}
    assert {SLAB_NAME, LOCK_NAME, f"radixtier-r0-{ID}.db"} <= set(names)
    assert set(names.values()) == {0o600}
    opened.close()


def test_an_open_directory_of_ours_is_closed_to_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    open_slab(tmp_path).close()
    assert mode(tmp_path) == 0o700


def test_a_shared_directory_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    tmp_path.chmod(0o755)
    open_slab(tmp_path).close()
    assert mode(tmp_path) == 0o755
    assert (tmp_path / "lost+found").is_dir()


def test_a_directory_that_others_can_change_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").touch()
    tmp_path.chmod(0o777)
    with pytest.raises(StoreError, match=r"--radix-tier-nvme-path.*written by other users"):
        open_slab(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["theirs"]


def test_a_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slab.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(StoreError, match="belongs to user"):
        open_slab(tmp_path)


def test_a_linked_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(StoreError, match="symbolic link"):
        open_slab(tmp_path / "link")
    assert list((tmp_path / "real").iterdir()) == []


@pytest.mark.parametrize("name", [SLAB_NAME, LOCK_NAME])
def test_linked_files_are_refused_and_not_touched(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    directory = tmp_path / "d"
    directory.mkdir(mode=0o700)
    (directory / name).symlink_to(victim)
    with pytest.raises(StoreError, match="symbolic link"):
        open_slab(directory)
    (directory / name).unlink()
    os.link(victim, directory / name)
    with pytest.raises(StoreError, match="not our plain file"):
        open_slab(directory)
    assert victim.read_text() == "precious"


def test_a_pipe_in_place_of_the_slab_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / SLAB_NAME)
    with pytest.raises(StoreError, match=SLAB_NAME):
        open_slab(tmp_path)


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="--radix-tier-nvme-path"):
        open_slab(tmp_path / "file")


def test_the_slab_of_an_earlier_run_is_kept(tmp_path: Path) -> None:
    opened = open_slab(tmp_path)
    header = opened.slab.header
    opened.close()
    put_old_bytes(tmp_path)
    reopened = open_slab(tmp_path)
    assert reopened.slab.kept and reopened.slab.header == header
    assert (tmp_path / SLAB_NAME).read_bytes()[HEADER_BYTES:].startswith(b"old")
    reopened.close()


@pytest.mark.parametrize("damage", ["cut", "magic", "flip", "empty"])
def test_a_slab_without_a_good_header_starts_empty(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    opened = open_slab(tmp_path)
    before = opened.slab.header
    opened.close()
    path = tmp_path / SLAB_NAME
    content = bytearray(path.read_bytes())
    content[HEADER_BYTES:] = b"old" * 1000
    if damage == "magic":
        content[0] ^= 1
    elif damage == "flip":
        content[60] ^= 1
    path.write_bytes({"cut": content[:100], "empty": b""}.get(damage, bytes(content)))
    reopened = open_slab(tmp_path)
    assert not reopened.slab.kept and reopened.slab.header.store_id != before.store_id
    assert reopened.journal is not None and len(reopened.journal.extents()) == 0
    assert not any(path.read_bytes()[HEADER_BYTES:])
    assert [damage] * caplog.text.count("are dropped") == [damage] * (damage != "empty")
    reopened.close()


def test_the_header_says_what_the_slab_is_for(tmp_path: Path) -> None:
    opened = open_slab(tmp_path)
    expected = Header(IDENTITY.to_json(), PAGE, PAGE_TOKENS, slot_bytes(PAGE), opened.slab.header.store_id)
    assert read_header(tmp_path / SLAB_NAME) == expected
    assert find_stores(tmp_path) == [StoreFiles(tmp_path, 0, ID)]
    opened.close()


@pytest.mark.parametrize("n", [3, 25])
def test_another_capacity_cuts_or_grows_the_slab(tmp_path: Path, n: int) -> None:
    opened = open_slab(tmp_path)
    header = opened.slab.header
    opened.close()
    put_old_bytes(tmp_path)
    reopened = open_slab(tmp_path, footprint(n, PAGE, PAGE_TOKENS))
    assert reopened.slab.header == header
    found = (tmp_path / SLAB_NAME).stat()
    assert found.st_size == HEADER_BYTES + n * slot_bytes(PAGE) <= found.st_blocks * 512
    assert (tmp_path / SLAB_NAME).read_bytes()[HEADER_BYTES:].startswith(b"old")
    reopened.close()


HOLDER = """
import sys
from pathlib import Path
from radixtier.store.slab import claim, lock
claim(Path(sys.argv[1]))
lock(Path(sys.argv[1]), 0)
print("open", flush=True)
sys.stdin.read()
"""


def test_a_second_server_is_told_who_was_first(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    first: subprocess.Popen[str] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert first.stdin is not None
    assert first.stdout is not None
    try:
        assert first.stdout.readline() == "open\n"
        (tmp_path / SLAB_NAME).write_bytes(b"in use")
        with pytest.raises(StoreError, match=rf"--radix-tier-nvme-path.*in use by process {first.pid}\b"):
            open_slab(tmp_path)
        assert (tmp_path / SLAB_NAME).read_bytes() == b"in use"
    finally:
        first.kill()  # a server that dies without a word must not keep the directory locked
        first.wait(20)
        first.stdin.close()
        first.stdout.close()
    open_slab(tmp_path).close()


def test_two_stores_in_one_process_are_two(tmp_path: Path) -> None:
    opened = open_slab(tmp_path)
    with pytest.raises(StoreError, match=f"in use by process {os.getpid()}"):
        open_slab(tmp_path)
    opened.close()
    open_slab(tmp_path).close()


def test_ranks_have_locks_of_their_own(tmp_path: Path) -> None:
    opened = [open_slab(tmp_path, rank=rank, ranks=2) for rank in range(2)]
    assert [files.rank for files in find_stores(tmp_path)] == [0, 1]
    for volume in opened:
        volume.close()


def test_no_room_names_the_size_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, length: int) -> Any:
        os.ftruncate(fd, length // 2)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(slab.os, "posix_fallocate", full)
    with pytest.raises(StoreError, match=r"--radix-tier-nvme-size.*No space left.*are free there"):
        open_slab(tmp_path)
    assert (tmp_path / SLAB_NAME).stat().st_size == 0
    monkeypatch.undo()
    open_slab(tmp_path).close()  # and the lock was given up


def test_no_room_to_grow_keeps_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_slab(tmp_path)
    header = opened.slab.header
    opened.close()

    def full(fd: int, offset: int, length: int) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(slab.os, "posix_fallocate", full)
        with pytest.raises(StoreError, match="No space left"):
            open_slab(tmp_path, footprint(20, PAGE, PAGE_TOKENS))
    reopened = open_slab(tmp_path)
    assert reopened.slab.header == header
    reopened.close()


def test_the_free_space_of_others_is_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slab, "free_disk_bytes", lambda directory: CAPACITY + 1000)
    with pytest.raises(StoreError, match=r"--radix-tier-nvme-min-free.*would leave 1000 bytes.*instead of 1001"):
        open_slab(tmp_path, min_free=1001)
    assert find_stores(tmp_path)[0].nbytes() == 0
    open_slab(tmp_path, min_free=1000).close()
    monkeypatch.setattr(slab, "free_disk_bytes", lambda directory: CAPACITY - slot_bytes(PAGE) * 10)
    open_slab(tmp_path, min_free=1).close()  # what it has taken already counts as free


def test_a_directory_that_cannot_be_used_leaves_nothing_open(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    (tmp_path / "elsewhere").mkdir()
    bad.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="symbolic link"):
        open_volumes(
            [good, bad], 2 * CAPACITY, PAGE, PAGE_TOKENS, identity=IDENTITY,
            engine=lambda path: PosixEngine(direct=False), rank=0, min_free=0, keep_others=False,
        )  # fmt: skip
    assert find_stores(good) == []
    open_slab(good).close()
    assert lock_path(good, 0).exists()


def test_an_engine_for_one_directory_fails(tmp_path: Path) -> None:
    def engine(path: Path) -> PosixEngine:
        if path.name == "bad":
            raise RuntimeError("no such library")
        return PosixEngine(direct=False)

    places = [tmp_path / "good", tmp_path / "bad"]
    with pytest.raises(StoreError, match=r"--radix-tier-nvme-path.*bad.*no such library"):
        open_volumes(
            places, 2 * CAPACITY, PAGE, PAGE_TOKENS, identity=None, engine=engine, rank=0, min_free=0, keep_others=False
        )
    assert [path.name for place in places for path in place.iterdir()] == [LOCK_NAME] * 2
    for place in places:
        open_slab(place).close()
