"""Order and bound of what waits to be written, and where a restart would find it."""

from __future__ import annotations

import numpy as np

from radixtier.identity import Space, Stretch, namespace_seed
from radixtier.tree.writequeue import Piece, WriteQueue


def piece(*pages: int) -> Piece:
    return Piece(np.array(pages, np.int64))


def test_takes_oldest_first_in_pieces() -> None:
    queue = WriteQueue()
    queue.append(piece(1, 2, 3))
    queue.append(piece(4))
    assert queue.pages == 4
    assert queue.take(2).pages.tolist() == [1, 2]
    assert queue.take(2).pages.tolist() == [3]
    queue.push_front(piece(3))
    assert [queue.take(9).pages.tolist() for _ in range(2)] == [[3], [4]]
    assert not queue
    assert queue.pages == 0


def test_compact_keeps_each_wanted_page_once_in_order() -> None:
    queue = WriteQueue()
    for one in (piece(5, 1), piece(2, 5), piece(9), piece(1, 7)):
        queue.append(one)
    queue.compact(lambda one: one.pages != 9)
    assert queue.pages == 4
    assert [queue.take(9).pages.tolist() for _ in range(3)] == [[5, 1], [2], [7]]
    queue.compact(lambda one: one.pages > 0)
    assert queue.pages == 0


def test_parts_of_a_piece_know_what_is_in_front_of_them() -> None:
    space = Space("adapter", None)
    stretch = Stretch.chained(space, namespace_seed(*space), range(10), 2)
    whole = Piece(np.arange(5), stretch)
    keep = np.array([False, True, True, False, True])
    middle, last = whole.where(keep)
    assert middle.pages.tolist() == [1, 2] and last.pages.tolist() == [4]
    assert middle.stretch is not None and last.stretch is not None
    assert middle.stretch.front == stretch.keys[0].tobytes() and last.stretch.front == stretch.keys[3].tobytes()
    assert middle.stretch.intact() and last.stretch.intact()
    assert last.stretch.tokens.tolist() == [[8, 9]]
    assert whole.where(~keep & keep) == [] and whole.where(keep | ~keep) == [whole]


def test_sort_orders_pieces() -> None:
    queue = WriteQueue()
    for one in (piece(5), piece(2), piece(9)):
        queue.append(one)
    queue.sort(lambda one: int(one.pages[0]))
    assert [queue.take(1).pages.tolist() for _ in range(3)] == [[2], [5], [9]]
