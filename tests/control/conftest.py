"""Everything that a test started has to be over when it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_thread_stays() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    stay = [thread for thread in threading.enumerate() if thread not in before]
    for thread in stay:
        thread.join(5.0)
    assert [thread.name for thread in stay if thread.is_alive()] == []
