from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from ranks_rig import Ranks


@pytest.fixture
def make_ranks() -> Iterator[Callable[[int], Ranks]]:
    """Makes so many ranks; their threads are ended."""
    made: list[Ranks] = []

    def make(size: int) -> Ranks:
        made.append(Ranks(size))
        return made[-1]

    yield make
    for ranks in made:
        ranks.close()
