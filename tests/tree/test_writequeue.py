"""Order and bound of what waits to be written."""

from __future__ import annotations

import numpy as np

from radixtier.tree.writequeue import WriteQueue


def run(*pages: int) -> np.ndarray:
    return np.array(pages, np.int64)


def test_takes_oldest_first_in_pieces() -> None:
    queue = WriteQueue()
    queue.append(run(1, 2, 3))
    queue.append(run(4))
    assert queue.pages == 4
    assert queue.take(2).tolist() == [1, 2]
    assert queue.take(2).tolist() == [3]
    queue.push_front(run(3))
    assert [queue.take(9).tolist() for _ in range(2)] == [[3], [4]]
    assert not queue
    assert queue.pages == 0


def test_compact_keeps_each_wanted_page_once_in_order() -> None:
    queue = WriteQueue()
    for pages in (run(5, 1), run(2, 5), run(9), run(1, 7)):
        queue.append(pages)
    queue.compact(lambda pages: pages != 9)
    assert queue.pages == 4
    assert queue.take(9).tolist() == [5, 1, 2, 7]
    queue.compact(lambda pages: pages > 0)
    assert queue.pages == 0
