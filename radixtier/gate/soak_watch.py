"""Looks at a server during the soak: memory, descriptors, threads, bytes of the store, TTFT.

Owns the samples and the law of growth: within the longest stretch of one process life, the second half is looked at,
where caches and pools have filled; the growth there is the median slope between its samples times its length, so that
no single reading decides. :class:`Watch` has a thread of its own; the rest are pure functions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import median
from typing import Any

from radixtier.gate.soak_records import Record
from radixtier.gate.stand import Stand

FEWEST = 6
"""Samples below which no growth is told."""

MOST = 400
"""Samples of a stretch that are compared with each other, evenly drawn; of all samples, twice that are kept in a
report."""


@dataclass(frozen=True)
class Sample:
    """One look; ``at_s`` since the beginning of the soak, ``life`` counts restarts."""

    at_s: float
    life: int
    rss_bytes: int | None = None
    descriptors: int | None = None
    threads: int | None = None
    store_bytes: int | None = None
    ttft_p50_s: float | None = None


class Watch:
    """Takes a sample every ``every_s`` seconds; a context manager.

    Parameters
    ----------
    recent
        Returns the records since it was called last.

    Attributes
    ----------
    trouble
        Why a look failed, the first one; "" if none did. The looks go on.
    """

    def __init__(self, stand: Stand, every_s: float, recent: Callable[[], Sequence[Record]]) -> None:
        self._stand = stand
        self._every_s = every_s
        self._recent = recent
        self._began = time.perf_counter()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._life = 0
        self._thread = threading.Thread(target=self._run, name="soak-watch", daemon=True)
        self.samples: list[Sample] = []
        self.trouble = ""

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Do not look while the server is killed and started; what comes after is another life."""
        with self._lock:
            yield
            self._life += 1

    def look(self) -> Sample:
        """Take a sample now."""
        with self._lock:
            new = self._recent()
            used = self._stand.usage()
            ttfts = [record.ttft_s for record in new if record.outcome in ("right", "wrong")]
            sample = Sample(
                at_s=time.perf_counter() - self._began,
                life=self._life,
                rss_bytes=used.rss_bytes if used else None,
                descriptors=used.descriptors if used else None,
                threads=used.threads if used else None,
                store_bytes=self._stand.store_bytes(),
                ttft_p50_s=median(ttfts) if ttfts else None,
            )
            self.samples.append(sample)
            return sample

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                self.look()
            except Exception as error:  # on this thread nobody else would ever know
                self.trouble = self.trouble or f"a look failed: {type(error).__name__}: {error}"


def growth(samples: Sequence[Sample], name: str) -> tuple[float, float] | None:
    """Return the growth of a field over the second half of the longest life, and its level there.

    None where it was not seen, or too few samples are there.
    """
    lives: dict[int, list[Sample]] = {}
    for sample in samples:
        if getattr(sample, name) is not None:
            lives.setdefault(sample.life, []).append(sample)
    if not lives:
        return None
    longest = max(lives.values(), key=lambda life: life[-1].at_s - life[0].at_s)
    middle = (longest[0].at_s + longest[-1].at_s) / 2
    half = thinned([sample for sample in longest if sample.at_s >= middle], MOST)
    if len(half) < FEWEST:
        return None
    points = [(sample.at_s, float(getattr(sample, name))) for sample in half]
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2) if b[0] > a[0]]
    if not slopes:
        return None
    return median(slopes) * (points[-1][0] - points[0][0]), median(value for _, value in points)


def thinned(samples: Sequence[Sample], most: int) -> list[Sample]:
    """Return at most so many samples, evenly drawn, the last among them."""
    if len(samples) <= most:
        return list(samples)
    return [samples[round(at * (len(samples) - 1) / (most - 1))] for at in range(most)]


def samples_json(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Return the samples of a report."""
    return [asdict(sample) for sample in thinned(samples, 2 * MOST)]


def drift(records: Sequence[Record], source: str, quiet: Callable[[Record], bool]) -> tuple[float, int, int] | None:
    """Return the median TTFT of the last third over that of the first, for one source, and the number of each.

    Parameters
    ----------
    quiet
        Whether a record counts: nothing else was going on.

    Returns
    -------
    tuple or None
        None with fewer than :data:`FEWEST` in either third.
    """
    counted = [each for each in records if each.outcome == "right" and each.source == source and quiet(each)]
    third = len(counted) // 3
    if third < FEWEST:
        return None
    first, last = [each.ttft_s for each in counted[:third]], [each.ttft_s for each in counted[-third:]]
    return median(last) / median(first), third, third
