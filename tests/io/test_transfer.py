"""`transfer`: all or an honest count, whatever the engine returns."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest

from radixtier.io.engine import Buffers, head, transfer
from radixtier.io.frames import BLOCK, aligned_memory


class Scripted:
    """Fills buffers with the block number of the offset, as far as the script allows."""

    def __init__(self, script: Sequence[int | OSError]) -> None:
        self.script = list(script)
        self.offsets: list[int] = []

    def readv(self, buffers: Buffers, offset: int) -> int:
        self.offsets.append(offset)
        step = self.script.pop(0)
        if isinstance(step, OSError):
            raise step
        flat = [(b, i) for b in buffers for i in range(0, b.nbytes, BLOCK)]
        for k, (buffer, i) in enumerate(flat[: -(-step // BLOCK)]):
            buffer[i : i + BLOCK] = bytes([offset // BLOCK + k]) * BLOCK
        return step


def read(script: Sequence[int | OSError], *blocks: int) -> tuple[int, str | None, bytes, list[int]]:
    engine = Scripted(script)
    buffers = [aligned_memory(n * BLOCK) for n in blocks]
    moved = transfer(engine.readv, buffers, 10 * BLOCK)
    firsts = bytes(b[i] for b in buffers for i in range(0, b.nbytes, BLOCK))
    return moved.nbytes // BLOCK, moved.error, firsts, [o // BLOCK for o in engine.offsets]


def test_one_call_when_all_goes_well() -> None:
    assert read([4 * BLOCK], 1, 3) == (4, None, bytes([10, 11, 12, 13]), [10])


def test_short_counts_are_continued_where_they_ended() -> None:
    blocks, error, data, offsets = read([2 * BLOCK, BLOCK, 3 * BLOCK], 1, 3, 2)
    assert (blocks, error, offsets) == (6, None, [10, 12, 13])
    assert data == bytes([10, 11, 12, 13, 14, 15])


def test_a_count_within_a_block_is_continued_at_its_start() -> None:
    blocks, error, data, offsets = read([2 * BLOCK + 512, 2 * BLOCK], 4)
    assert (blocks, error, offsets) == (4, None, [10, 12])
    assert data == bytes([10, 11, 12, 13])


@pytest.mark.parametrize("stuck", [0, 512, BLOCK - 1])
def test_no_progress_is_an_error_not_a_loop(stuck: int) -> None:
    blocks, error, _, offsets = read([BLOCK, stuck], 4)
    assert blocks == 1
    assert error is not None
    assert "short" in error
    assert offsets == [10, 11]


def test_error_after_progress_keeps_the_count() -> None:
    blocks, error, _, _ = read([3 * BLOCK, OSError(errno.EIO, "Input/output error")], 4)
    assert blocks == 3
    assert error is not None
    assert "Input/output error" in error


def test_nothing_to_move() -> None:
    assert read([]) == (0, None, b"", [])


def test_head_cuts_within_a_buffer() -> None:
    a, b = memoryview(b"abcd"), memoryview(b"efgh")
    assert b"".join(head([a, b], 6)) == b"abcdef"
    assert b"".join(head([a, b], 4)) == b"abcd"
    assert b"".join(head([a, b], 99)) == b"abcdefgh"
    assert head([a, b], 0) == []
