"""Files that leave nothing behind, and descriptors that stay on their file."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from radixtier.io import files
from radixtier.io.files import open_existing, reopen, scratch_file


@pytest.fixture(params=[True, False], ids=["tmpfile", "named"])
def tmpfile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With and without O_TMPFILE."""
    original = os.open

    def without(path: Any, flags: int, *mode: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return original(path, flags, *mode)

    if not request.param:
        monkeypatch.setattr(files.os, "open", without)
    return bool(request.param)


def test_a_scratch_file_has_no_name(tmp_path: Path, tmpfile: bool) -> None:
    with scratch_file(tmp_path, 8192) as fd:
        assert list(tmp_path.iterdir()) == []
        assert os.fstat(fd).st_size == 8192
        again = reopen(fd)
        os.pwrite(again, b"seen", 0)
        os.close(again)
        assert os.pread(fd, 4, 0) == b"seen"
    assert list(tmp_path.iterdir()) == []


def test_a_scratch_file_needs_its_directory(tmp_path: Path, tmpfile: bool) -> None:
    with pytest.raises(FileNotFoundError), scratch_file(tmp_path / "absent", 1):
        pass


def test_a_short_file_is_closed_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12")
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="holds 2 bytes, expected 3"):
        open_existing(path, 3)
    assert set(os.listdir("/proc/self/fd")) == before
