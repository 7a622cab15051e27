"""Whether a server does what it was set up for, and if not, what is wrong, why, since when, and what to do.

Owns what it remembers from one look to the next: when a reason was first seen, and when counters of bad events grew
last. The law for those: they are a reason for :data:`RECENT_S` after the last event, so that an old one does not keep a
server degraded for ever. One thread at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

RECENT_S = 3600.0
"""How long after the last event of a kind it counts."""


class Reason(NamedTuple):
    """One thing that is wrong."""

    what: str
    why: str
    fix: str
    since: float | None = None
    """Unix seconds."""


class _Growth(NamedTuple):
    events: int
    began: float
    """When it grew first after a quiet time."""
    last: float


class Health:
    """Looks at states of one server, one after the other."""

    def __init__(self) -> None:
        self._first_seen: dict[str, float] = {}
        self._grown: dict[str, _Growth] = {}

    def look(self, state: Mapping[str, Any], now: float) -> dict[str, Any]:
        """Return the state's ``health``: a status, and the reasons for it.

        Parameters
        ----------
        state
            Of the server; what it lacks is taken for well.
        now
            Unix seconds.
        """
        reasons = list(self._reasons(state, now))
        first_seen = {reason.what: self._first_seen.get(reason.what, now) for reason in reasons}
        self._first_seen = first_seen
        drained = state.get("nvme_drained")
        return {
            "status": drained or ("degraded" if reasons else "ok"),
            "reasons": [
                reason._replace(since=first_seen[reason.what] if reason.since is None else reason.since)._asdict()
                for reason in reasons
            ],
        }

    def _reasons(self, state: Mapping[str, Any], now: float) -> Iterator[Reason]:
        store = state.get("store") or {}
        if state.get("nvme_drained"):
            yield Reason(
                "NVMe is out of use", "a drain was asked for", "restart the server when the directories are back"
            )
        for drive in store.get("drives", ()):
            if drive["reason"] is not None:
                what = f"{drive['directory']} takes no new pages"
                yield Reason(what, drive["reason"], drive["fix"], drive["since"] or None)
        if slots := store.get("quarantined"):
            yield Reason(
                "slots on NVMe are out of use",
                f"transfers of {slots} slots failed, and they did not pass a test since",
                "look for errors of the device in the kernel's log; slots that pass the test come back by themselves",
            )
        if (sealed := store.get("sealed")) is not None:
            yield Reason(
                "nothing is kept for a restart",
                str(sealed),
                "restart the server with the weights that it is to keep pages of",
            )
        yield from self._budget(state)
        yield from self._events(state, now)

    def _budget(self, state: Mapping[str, Any]) -> Iterator[Reason]:
        wear = state.get("wear") or {}
        left = wear.get("budget_bytes_left")
        if left is not None and left < state.get("page_bytes", 0):
            yield Reason(
                "the write budget is used up",
                f"it allows {wear['budget_bytes_per_day']} bytes a day",
                "wait until it has filled up again, or raise --radix-tier-write-budget; until then new pages stay in "
                "DRAM as long as it has room",
            )

    def _events(self, state: Mapping[str, Any], now: float) -> Iterator[Reason]:
        lost = self._growth("dropped", (state.get("journal") or {}).get("dropped", 0), now)
        if lost is not None:
            yield Reason(
                "a restart will not find all pages",
                f"the journal could not take {lost.events} pages since the start, the last {_ago(lost.last, now)}",
                "see whether a drive is overloaded, and whether its file system has room",
                lost.began,
            )
        bad = self._growth("corrupt", (state.get("io") or {}).get("corrupt", 0), now)
        if bad is not None:
            yield Reason(
                "pages on NVMe were damaged",
                f"{bad.events} pages had a wrong checksum since the start, the last {_ago(bad.last, now)}; they "
                "are computed again",
                "run 'radixtier store verify' on the directories, and look for errors of the device in the kernel's "
                "log; replace a drive that does it again",
                bad.began,
            )

    def _growth(self, name: str, count: int, now: float) -> _Growth | None:
        known = self._grown.get(name, _Growth(0, now, -math.inf))
        began, last = known.began, known.last
        if count > known.events:
            began, last = (began if now - last < RECENT_S else now), now
        self._grown[name] = known = _Growth(count, began, last)
        return known if count and now - last < RECENT_S else None


def _ago(then: float, now: float) -> str:
    minutes = int((now - then) // 60)
    return f"{minutes} minutes ago" if minutes > 1 else "just now"
