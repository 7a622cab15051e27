"""Transfers that the store is working on, and what is to be done when each ends.

Owns the numbers by which the store reports back. Invariant: every job that was started is committed exactly once.
Scheduler thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from radixtier.store.jobs import JobDone
from radixtier.store.store import PageStore

Commit = Callable[[JobDone], None]


class Jobs:
    """The jobs of one mover; ``store`` is None without NVMe, and set before the first job."""

    def __init__(self, store: PageStore | None) -> None:
        self.store = store
        self._tags = count()
        self._commits: dict[int, Commit] = {}

    def __len__(self) -> int:
        return len(self._commits)

    def __contains__(self, tag: int) -> bool:
        return tag in self._commits

    def start(self, commit: Commit) -> int:
        """Return a tag for a job that ``commit`` is to be called for when it ends."""
        tag = next(self._tags)
        self._commits[tag] = commit
        return tag

    def poll(self) -> bool:
        """Commit the jobs that ended; True if there were any."""
        done = self.store.poll() if self.store is not None else []
        for job in done:
            assert isinstance(job.tag, int)
            self._commits.pop(job.tag)(job)
        return bool(done)

    def drain(self, timeout: float) -> bool:
        """Wait until all jobs ended, and commit them; False when ``timeout`` seconds were not enough."""
        if self.store is None or not self._commits:
            return True
        self.store.drain(timeout)
        self.poll()
        return not self._commits
