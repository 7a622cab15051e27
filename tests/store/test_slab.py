"""The directory of a store: safe to use, ours alone, never larger than allowed."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from radixtier.store import slab
from radixtier.store.slab import LOCK_NAME, SLAB_NAME, StoreError, capacity_for, open_slab, slot_bytes

PAGE = 5000
CAPACITY = capacity_for(10, PAGE)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_slots_are_whole_blocks() -> None:
    assert [slot_bytes(n) for n in (1, 4096, 4097, 737280)] == [4096, 4096, 8192, 737280]


@pytest.mark.parametrize("capacity", [CAPACITY, CAPACITY + slot_bytes(PAGE) - 1])
def test_bytes_on_disk_stay_within_capacity(tmp_path: Path, capacity: int) -> None:
    opened = open_slab(tmp_path / "d", capacity, PAGE)
    assert opened.nbytes == 10 * slot_bytes(PAGE)
    used = [path.stat() for path in (tmp_path / "d").iterdir()]
    assert sum(s.st_size for s in used) <= capacity
    assert sum(s.st_blocks * 512 for s in used) <= capacity
    assert (tmp_path / "d" / SLAB_NAME).stat().st_blocks * 512 >= opened.nbytes  # reserved, not sparse
    opened.close()


def test_capacity_below_a_page_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"--radix-tier-nvme-size.*at least {capacity_for(1, PAGE)}"):
        open_slab(tmp_path / "d", capacity_for(1, PAGE) - 1, PAGE)
    open_slab(tmp_path / "d", capacity_for(1, PAGE), PAGE).close()


def test_only_we_can_read_what_is_created(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        opened = open_slab(tmp_path / "new" / "deep", CAPACITY, PAGE)
    finally:
        os.umask(old)
    assert mode(tmp_path / "new" / "deep") == 0o700
    assert mode(tmp_path / "new" / "deep" / SLAB_NAME) == 0o600
    assert mode(tmp_path / "new" / "deep" / LOCK_NAME) == 0o600
    opened.close()


def test_an_open_directory_of_ours_is_closed_to_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    open_slab(tmp_path, CAPACITY, PAGE).close()
    assert mode(tmp_path) == 0o700


def test_a_shared_directory_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    tmp_path.chmod(0o755)
    open_slab(tmp_path, CAPACITY, PAGE).close()
    assert mode(tmp_path) == 0o755
    assert (tmp_path / "lost+found").is_dir()


def test_a_directory_that_others_can_change_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").touch()
    tmp_path.chmod(0o777)
    with pytest.raises(StoreError, match=r"--radix-tier-nvme-path.*written by other users"):
        open_slab(tmp_path, CAPACITY, PAGE)
    assert [p.name for p in tmp_path.iterdir()] == ["theirs"]


def test_a_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slab.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(StoreError, match="belongs to user"):
        open_slab(tmp_path, CAPACITY, PAGE)


def test_a_linked_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(StoreError, match="symbolic link"):
        open_slab(tmp_path / "link", CAPACITY, PAGE)
    assert list((tmp_path / "real").iterdir()) == []


@pytest.mark.parametrize("name", [SLAB_NAME, LOCK_NAME])
def test_linked_files_are_refused_and_not_touched(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    directory = tmp_path / "d"
    directory.mkdir(mode=0o700)
    (directory / name).symlink_to(victim)
    with pytest.raises(StoreError, match="symbolic link"):
        open_slab(directory, CAPACITY, PAGE)
    (directory / name).unlink()
    os.link(victim, directory / name)
    with pytest.raises(StoreError, match="not our plain file"):
        open_slab(directory, CAPACITY, PAGE)
    assert victim.read_text() == "precious"


def test_a_pipe_in_place_of_the_slab_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / SLAB_NAME)
    with pytest.raises(StoreError, match=SLAB_NAME):
        open_slab(tmp_path, CAPACITY, PAGE)


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="--radix-tier-nvme-path"):
        open_slab(tmp_path / "file", CAPACITY, PAGE)


def test_a_leftover_slab_is_dropped(tmp_path: Path) -> None:
    opened = open_slab(tmp_path, CAPACITY, PAGE)
    (tmp_path / SLAB_NAME).write_bytes(b"old" * 100_000)
    opened.close()
    reopened = open_slab(tmp_path, CAPACITY, PAGE)
    content = (tmp_path / SLAB_NAME).read_bytes()
    assert len(content) == reopened.nbytes
    assert not any(content)
    reopened.close()


HOLDER = """
import sys
from pathlib import Path
from radixtier.store.slab import open_slab
open_slab(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
print("open", flush=True)
sys.stdin.read()
"""


def test_a_second_server_is_told_who_was_first(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path), str(CAPACITY), str(PAGE)]
    first: subprocess.Popen[str] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert first.stdin is not None
    assert first.stdout is not None
    try:
        assert first.stdout.readline() == "open\n"
        (tmp_path / SLAB_NAME).write_bytes(b"in use")
        with pytest.raises(StoreError, match=rf"--radix-tier-nvme-path.*in use by process {first.pid}\b"):
            open_slab(tmp_path, CAPACITY, PAGE)
        assert (tmp_path / SLAB_NAME).read_bytes() == b"in use"
    finally:
        first.kill()  # a server that dies without a word must not keep the directory locked
        first.wait(20)
        first.stdin.close()
        first.stdout.close()
    open_slab(tmp_path, CAPACITY, PAGE).close()


def test_two_stores_in_one_process_are_two(tmp_path: Path) -> None:
    opened = open_slab(tmp_path, CAPACITY, PAGE)
    with pytest.raises(StoreError, match=f"in use by process {os.getpid()}"):
        open_slab(tmp_path, CAPACITY, PAGE)
    opened.close()
    open_slab(tmp_path, CAPACITY, PAGE).close()


def test_no_room_names_the_size_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, length: int) -> Any:
        os.ftruncate(fd, length // 2)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(slab.os, "posix_fallocate", full)
    with pytest.raises(StoreError, match=r"--radix-tier-nvme-size.*No space left.*are free there"):
        open_slab(tmp_path, CAPACITY, PAGE)
    assert (tmp_path / SLAB_NAME).stat().st_size == 0
    monkeypatch.undo()
    open_slab(tmp_path, CAPACITY, PAGE).close()  # and the lock was given up
