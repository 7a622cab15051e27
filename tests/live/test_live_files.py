"""Files around a server that runs: its faults file, its files out of the page cache, where a result goes; signals."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from radixtier.io.live_faults import CHECK_S
from radixtier.live import page_cache
from radixtier.live.ending import end_like_ctrl_c
from radixtier.live.faults import SEEN_S, write_faults
from radixtier.live.output import unwritable
from radixtier.live.page_cache import Files


def test_a_faults_file_is_replaced_and_not_written_into(tmp_path: Path) -> None:
    file = tmp_path / "faults"
    write_faults(file, "slow")
    with file.open() as reader:
        write_faults(file, "")
        assert reader.read() == "slow"
    assert file.read_text() == ""
    assert list(tmp_path.iterdir()) == [file]
    assert SEEN_S > CHECK_S


def test_files_are_made_cold(tmp_path: Path) -> None:
    file = tmp_path / "a" / "page.bin"
    file.parent.mkdir()
    file.write_bytes(bytes(100_000))
    (tmp_path / "empty").touch()
    with file.open("rb") as opened:
        assert page_cache.cached_bytes(opened.fileno()) >= 100_000
    files = page_cache.drop(tmp_path)
    assert files.number == 2
    if files.cached_bytes and "tmpfs" in _file_system(tmp_path):
        pytest.skip("a tmpfs is memory")
    assert files.cached_bytes == 0
    assert file.read_bytes() == bytes(100_000)


def test_waiting_for_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "STILL_S", 0.0)
    monkeypatch.setattr(page_cache, "LOOK_S", 0.0)
    assert page_cache.wait_until_still(tmp_path, 10.0)
    grows = iter(range(10**9))
    monkeypatch.setattr(page_cache, "size", lambda _: Files(next(grows), 0))
    assert not page_cache.wait_until_still(tmp_path, 0.01)


def _file_system(path: Path) -> str:
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    return max((mount for mount in mounts if str(path).startswith(mount[0])), key=lambda mount: len(mount[0]))[1]


def test_where_a_result_can_be_written(tmp_path: Path) -> None:
    there = tmp_path / "there.json"
    there.write_text("{}")
    assert unwritable(there) is None and there.read_text() == "{}"
    assert unwritable(tmp_path / "new.json") is None and not (tmp_path / "new.json").exists()
    assert "directory" in str(unwritable(tmp_path))
    assert "no such directory" in str(unwritable(tmp_path / "no" / "x.json"))
    # Nobody makes files there, not even root, whom permission bits do not stop.
    fault = unwritable(Path("/proc/x.json"))
    assert fault is not None and "cannot be written" in fault and "\n" not in fault


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_kill_and_a_closed_terminal_end_like_ctrl_c(handlers: None, number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    end_like_ctrl_c()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)


def test_what_is_ignored_stays_so(handlers: None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    end_like_ctrl_c()
    os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
