"""Frames as raw memory: where the bytes of a page lie, in every layout."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixtier.io.frames import BLOCK, FrameBuffer, aligned_memory


def page_first(n: int, page: int) -> list[tuple[int, int, int]]:
    return [(0, page, page)]


def k_and_v(n: int, half: int) -> list[tuple[int, int, int]]:
    return [(0, half, half), (n * half, half, half)]


def layer_first(n: int, layers: int, piece: int) -> list[tuple[int, int, int]]:
    return [(layer * n * piece, piece, piece) for layer in range(layers)]


def image(frames: FrameBuffer, frame: int) -> bytes:
    return b"".join(frames.views(frame))


def filled(n: int, parts: list[tuple[int, int, int]], offset: int = 0) -> tuple[FrameBuffer, bytes]:
    size = max(o + (n - 1) * s + length for o, s, length in parts) + offset
    base = aligned_memory(size)
    content = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8).tobytes()
    base[:] = content
    return FrameBuffer(base, n, [(o + offset, s, length) for o, s, length in parts]), content


@pytest.mark.parametrize(
    "parts", [page_first(6, 3000), k_and_v(6, 4096), layer_first(6, 8, 700), [(0, 100, 40), (40, 100, 60)]]
)
def test_views_name_the_bytes_of_a_page(parts: list[tuple[int, int, int]]) -> None:
    frames, content = filled(6, parts)
    assert frames.page_bytes == sum(length for _, _, length in parts)
    for frame in range(6):
        expected = b"".join(content[o + frame * s : o + frame * s + length] for o, s, length in parts)
        assert image(frames, frame) == expected


def test_views_write_through() -> None:
    frames, _ = filled(3, k_and_v(3, 64))
    for view in frames.views(1):
        view[:] = b"x" * 64
    assert image(frames, 1) == b"x" * 128
    assert b"x" * 64 not in image(frames, 0) + image(frames, 2)


def test_neighbours_coalesce() -> None:
    assert filled(4, [(0, 100, 40), (40, 100, 60)])[0].parts == ((0, 100, 100),)
    assert filled(4, [(40, 100, 60), (0, 100, 40)])[0].parts == ((40, 100, 60), (0, 100, 40))
    assert len(filled(4, k_and_v(4, 64))[0].parts) == 2
    assert filled(1, k_and_v(1, 64))[0].page_bytes == 128  # adjacent, but longer than the stride


@pytest.mark.parametrize(
    ("parts", "offset", "aligned"),
    [
        (k_and_v(4, BLOCK), 0, True),
        (k_and_v(4, 3 * BLOCK), BLOCK, True),
        (k_and_v(4, BLOCK), 64, False),
        (k_and_v(4, BLOCK + 512), 0, False),
        ([(0, BLOCK + 8, BLOCK)], 0, False),
        (layer_first(4, 3, 2048), 0, False),
    ],
)
def test_aligned_says_what_direct_io_takes(parts: list[tuple[int, int, int]], offset: int, aligned: bool) -> None:
    assert filled(4, parts, offset)[0].aligned is aligned


@given(
    layers=st.integers(1, 5),
    piece=st.integers(1, 300),
    order=st.lists(st.integers(0, 7), max_size=8, unique=True),
)
def test_gather_and_scatter_are_the_page_images(layers: int, piece: int, order: list[int]) -> None:
    frames, _ = filled(8, layer_first(8, layers, piece))
    chosen = np.array(order, dtype=np.int64)
    rows = np.zeros((len(order), frames.page_bytes + 5), dtype=np.uint8)
    before = [image(frames, f) for f in range(8)]
    frames.gather(chosen, rows)
    assert [row[: frames.page_bytes].tobytes() for row in rows] == [before[f] for f in order]
    assert not rows[:, frames.page_bytes :].any()

    frames.scatter(chosen, 255 - rows)
    inverted = {f: bytes(255 - b for b in before[f]) for f in order}
    assert [image(frames, f) for f in range(8)] == [inverted.get(f, before[f]) for f in range(8)]


@pytest.mark.parametrize(
    ("n", "parts", "message"),
    [
        (4, [(0, 100, 101)], "does not fit"),
        (4, [(-1, 100, 100)], "does not fit"),
        (11, [(0, 100, 100)], "does not fit"),
        (4, [(0, 100, 60), (50, 100, 50)], "overlap"),
        (4, [(0, 100, 100), (300, 100, 100)], "overlap"),
        (4, [(0, 100, 50), (0, 120, 50)], "overlap"),
        (0, [(0, 100, 100)], "needs frames"),
        (4, [], "needs frames"),
    ],
)
def test_impossible_geometry_is_refused(n: int, parts: list[tuple[int, int, int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FrameBuffer(aligned_memory(1000), n, parts)


def test_read_only_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="writable"):
        FrameBuffer(memoryview(bytes(100)), 1, [(0, 100, 100)])
