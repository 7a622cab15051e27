"""What every engine must do; a test class per engine inherits all of it and says how to make one."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from radixtier.io.engine import Engine, transfer
from radixtier.io.frames import BLOCK, aligned_memory

SIZE = 512 * BLOCK


def pattern(nbytes: int, salt: int) -> bytes:
    """Bytes in which every block differs, for every salt."""
    return (np.arange(nbytes // 8, dtype=np.uint64) + np.uint64(salt << 32)).tobytes()


def buffers_of(data: bytes, *lengths: int) -> list[memoryview]:
    """Lay data out in separate aligned buffers of the given lengths."""
    buffers, at = [], 0
    for length in lengths:
        buffer = aligned_memory(length)
        buffer[:] = data[at : at + length]
        buffers.append(buffer)
        at += length
    return buffers


class EngineContract:
    """Inherit and define `make`."""

    def make(self, directory: Path) -> Engine:
        """Return an engine that is not open; ``directory`` is where its file will be."""
        raise NotImplementedError

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "file"
        path.write_bytes(pattern(SIZE, 0))
        return path

    @pytest.fixture
    def engine(self, path: Path) -> Iterator[Engine]:
        engine = self.make(path.parent)
        engine.open(path, SIZE)
        yield engine
        engine.close()

    def test_alignment_is_a_power_of_two_up_to_a_block(self, engine: Engine) -> None:
        assert BLOCK % engine.alignment == 0

    @pytest.mark.parametrize("lengths", [(1,), (256,), (1, 2, 3), (1,) * 90, (7, 100, 1)])
    def test_read_fills_the_buffers_in_order(self, engine: Engine, lengths: tuple[int, ...]) -> None:
        total = sum(lengths) * BLOCK
        buffers = [aligned_memory(n * BLOCK) for n in lengths]
        assert transfer(engine.readv, buffers, 5 * BLOCK) == (total, None)
        assert b"".join(buffers) == pattern(SIZE, 0)[5 * BLOCK : 5 * BLOCK + total]

    @pytest.mark.parametrize("lengths", [(1,), (256,), (1, 2, 3), (1,) * 90, (7, 100, 1)])
    def test_write_changes_its_range_and_nothing_else(
        self, engine: Engine, path: Path, lengths: tuple[int, ...]
    ) -> None:
        total = sum(lengths) * BLOCK
        data = pattern(total, 1)
        buffers = buffers_of(data, *(n * BLOCK for n in lengths))
        assert transfer(engine.writev, buffers, 3 * BLOCK) == (total, None)
        engine.sync()
        before = pattern(SIZE, 0)
        assert path.read_bytes() == before[: 3 * BLOCK] + data + before[3 * BLOCK + total :]
        assert b"".join(buffers) == data

    def test_more_buffers_than_one_system_call_takes(self, tmp_path: Path) -> None:
        n = 2500
        path = tmp_path / "large"
        path.write_bytes(bytes(n * BLOCK))
        engine = self.make(tmp_path)
        engine.open(path, n * BLOCK)
        data = pattern(n * BLOCK, 2)
        memory = buffers_of(data, n * BLOCK)[0]
        views = [memory[i * BLOCK : (i + 1) * BLOCK] for i in range(n)]
        assert transfer(engine.writev, views, 0) == (n * BLOCK, None)
        memory[:] = bytes(n * BLOCK)
        assert transfer(engine.readv, views, 0) == (n * BLOCK, None)
        assert memory == data
        engine.close()

    def test_reading_past_the_end_counts_what_was_there(self, engine: Engine) -> None:
        buffer = aligned_memory(4 * BLOCK)
        moved = transfer(engine.readv, [buffer], SIZE - BLOCK)
        assert moved.nbytes in (0, BLOCK)  # an engine may refuse the whole read
        assert moved.error
        assert buffer[: moved.nbytes] == pattern(SIZE, 0)[SIZE - BLOCK :][: moved.nbytes]

    def test_file_cut_behind_the_engine_is_an_error(self, engine: Engine, path: Path) -> None:
        os.truncate(path, 10 * BLOCK)
        moved = transfer(engine.readv, [aligned_memory(4 * BLOCK)], 20 * BLOCK)
        assert moved.nbytes == 0
        assert moved.error

    def test_many_threads_at_once(self, engine: Engine, path: Path) -> None:
        per, threads, wrong = 32, 8, []

        def work(i: int) -> None:
            offset = i * per * BLOCK
            data = pattern(per * BLOCK, i + 1)
            back = aligned_memory(per * BLOCK)
            for _ in range(5):
                transfer(engine.writev, buffers_of(data, per * BLOCK), offset)
                transfer(engine.readv, [back], offset)
                if back != data:
                    wrong.append(i)

        workers = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(30)
            assert not worker.is_alive()
        assert wrong == []
        engine.sync()
        written = b"".join(pattern(per * BLOCK, i + 1) for i in range(threads))
        assert path.read_bytes() == written + pattern(SIZE, 0)[len(written) :]

    def test_open_needs_the_file_in_full(self, path: Path) -> None:
        with pytest.raises(OSError, match="holds"):
            self.make(path.parent).open(path, SIZE + 1)
        with pytest.raises(FileNotFoundError):
            self.make(path.parent).open(path.with_name("absent"), SIZE)

    def test_open_does_not_follow_links(self, path: Path) -> None:
        link = path.with_name("link")
        link.symlink_to(path)
        with pytest.raises(OSError, match="symbolic links"):
            self.make(path.parent).open(link, SIZE)

    def test_close_twice(self, path: Path) -> None:
        engine = self.make(path.parent)
        engine.open(path, SIZE)
        engine.close()
        engine.close()

    def test_no_descriptor_is_left_open(self, path: Path) -> None:
        before = set(os.listdir("/proc/self/fd"))
        engine = self.make(path.parent)
        engine.open(path, SIZE)
        transfer(engine.readv, [aligned_memory(BLOCK)], 0)
        engine.close()
        assert set(os.listdir("/proc/self/fd")) == before
