"""Listens to a streamed answer and takes its times.

Owns the law of the times: TTFT ends with the first event that carries a piece of the answer, and an event with ``k``
pieces counts as ``k`` gaps of the same length, which sum to the time since the piece before. Never raises for what a
server or a network does. Any thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from radixtier.live.client import Client, RequestFailed

Event = dict[str, Any]

# An event of an unexpected form shows as one of the last five while it is read.
_FAULTS = (RequestFailed, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError)


@dataclass(frozen=True)
class Heard:
    """When which pieces came; see :class:`radixtier.load.answer.Answer` for the fields."""

    started_s: float
    ttft_s: float
    total_s: float
    gaps_s: tuple[float, ...]
    pieces: int
    error: str
    cut: bool


def listen(
    client: Client, path: str, body: Any, understand: Callable[[Event], int], cut_after: int | None = None
) -> Heard:
    """Send a request and read its events to the end.

    Parameters
    ----------
    understand
        Gets each event and returns how many new pieces of the answer it carries, 0 for an event that is no part of it.
    cut_after
        Hang up after that many pieces.
    """
    arrivals: list[tuple[float, int]] = []
    pieces, events, error, cut = 0, 0, "", False
    started = time.perf_counter()
    stream = client.stream(path, body)
    try:
        for event in stream:
            now = time.perf_counter()
            events += 1
            if (new := understand(event)) > 0:
                arrivals.append((now, new))
                pieces += new
            if cut_after is not None and pieces >= cut_after:
                cut = True
                break
        if not events:
            error = f"{path}: the answer has no event"
    except (RequestFailed, OSError) as failure:
        error = str(failure) or type(failure).__name__
    except _FAULTS as failure:
        error = f"{path}: an event is not understood: {failure!r}"
    finally:
        stream.close()
    if error and client.hung_up:
        error, cut = "", True
    ended = time.perf_counter()
    return Heard(
        started_s=started,
        ttft_s=(arrivals[0][0] if arrivals else ended) - started,
        total_s=ended - started,
        gaps_s=tuple((later - earlier) / new for (earlier, _), (later, new) in pairwise(arrivals) for _ in range(new)),
        pieces=pieces,
        error=error,
        cut=cut,
    )
