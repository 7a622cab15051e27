"""What a mover has in the place of its store and its admission policy while NVMe is given up, and afterwards.

Owns whether the store takes pages, and whether it is closed. Invariant: nothing is removed from the record but by
whoever empties it, and nothing reaches the files once they are about to be closed. The threads of a store and of an
admission policy; :meth:`LeavingStore.close` may be called on any.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from radixtier.policy.admission import Admission, Candidate, Keys, Verdict
from radixtier.store.store import PageStore
from radixtier.tree.residency import Slots

logger = logging.getLogger(__name__)


class LeavingStore:
    """A store that is being given up: nothing but flushing removes anything from it, and in the end it is closed.

    What is not named here tells something, and the store itself answers.

    Attributes
    ----------
    full : bool
        Whether it takes no page any more.
    closing : bool
        Whether its files are about to be closed.
    gone : bool
        Whether they are.
    """

    def __init__(self, store: PageStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self.full = False
        self.closing = False
        self.gone = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @property
    def writable(self) -> bool:
        """Whether it takes pages."""
        return not self.full and self._store.writable

    @property
    def rows_dropped(self) -> int:
        """Pages that the record could not take."""
        return int(self._store.stats()["journal_dropped"])

    def alloc(self, n: int) -> Any:
        """Slots for pages that were admitted before the drain."""
        return None if self.full else self._store.alloc(n)

    def free(self, slots: Slots) -> None:
        """Keep them: a restart finds what is in there."""

    def touch(self, slots: Any, used: float) -> None:
        """Note a use, as long as there is somebody to note it."""
        if not self.closing:
            self._store.touch(slots, used)

    def clear(self, timeout: float = 5.0) -> bool:
        """Strike all pages from the record, if that is still open."""
        if not self.closing:
            return self._store.clear(timeout)
        logger.warning(
            "radixtier: NVMe was drained, so what is on record there stays and comes back with the next start; "
            "'radixtier store clear' empties the directories"
        )
        return False

    def seal(self, reason: str, timeout: float = 5.0) -> bool:
        """Clear and record nothing more, unless it is over: what was recorded is of the weights that it names."""
        return True if self.closing else self._store.seal(reason, timeout)

    def close(self, timeout: float = 10.0) -> bool:
        """Close the files, or wait for whoever does; whether they are."""
        end = time.monotonic() + timeout
        self.closing = True
        if not self._lock.acquire(timeout=timeout):
            return False
        try:
            self.gone = self.gone or self._store.close(max(0.0, end - time.monotonic()))
            return self.gone
        finally:
            self._lock.release()


class NothingMore:
    """Admits nothing; all else that an admission policy is told goes on to the one before."""

    def __init__(self, before: Admission) -> None:
        self._before = before
        self.name = before.name

    @property
    def budget(self) -> Any:
        """The write budget, None without one."""
        return getattr(self._before, "budget", None)

    def admit(self, candidate: Candidate) -> Verdict:
        """Turn pages away."""
        return Verdict.REJECT

    def gone(self, keys: Keys, now: float) -> None:
        """Pages left the last tier."""
        self._before.gone(keys, now)

    def evicted(self, keys: Keys, now: float) -> None:
        """Pages left NVMe."""
        self._before.evicted(keys, now)

    def wanted(self, keys: Keys, now: float) -> None:
        """Pages had to be computed."""
        self._before.wanted(keys, now)

    def served(self, pages: int, now: float) -> None:
        """Pages came from NVMe."""
        self._before.served(pages, now)

    def wrote(self, nbytes: int, now: float) -> None:
        """Bytes were written."""
        self._before.wrote(nbytes, now)

    def refund(self, nbytes: int, now: float) -> None:
        """Admitted bytes were not."""
        self._before.refund(nbytes, now)
