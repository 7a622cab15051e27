"""The figures of one scheduler process: what the tiers hold, what was done, and how the drives are.

Owns their names and form, and what they remember between two looks; the control endpoint, the metrics and what is drawn
all show these. Once a second is often enough, so a look costs a fraction of a millisecond, asks no device for anything,
and does not grow with the tiers. Scheduler thread only.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import radixtier
from radixtier.explain import Reason
from radixtier.machine import drive_bytes
from radixtier.monitor.health import Health
from radixtier.mover import Trigger
from radixtier.policy.wear import Endurance, project
from radixtier.ranks import SharedStore
from radixtier.sglang.rolling import RollingCount
from radixtier.store.health import ADVICE, DriveHealth
from radixtier.tree.residency import HBM, State

logger = logging.getLogger(__name__)

KINDS = ("read", "write", "verify")
"""Of transfers between DRAM and NVMe."""


class StateReader:
    """Reads the figures of one cache, from the moment on when it is built.

    Parameters
    ----------
    cache
        Whole, with its store if it has one.
    model
        Name under which the model is served.
    """

    def __init__(self, cache: Any, model: str) -> None:
        self._cache = cache
        self._model = model
        self._started = time.time()
        self._sglang = _version_of("sglang")
        self._health = Health()
        self._rated = _rating(cache.mover.store)
        self._identity: dict[str, Any] | None = None
        if cache.mover.store is not None and cache.mover.store.identity is not None:
            self._identity = asdict(cache.mover.store.identity)
        table = cache.mover.table
        self._in_both = RollingCount(
            table.n_handles, lambda part: int(((table.mark[part] & HBM != 0) & _in_dram(table, part)).sum())
        )

    def read(self) -> dict[str, Any]:
        """Return the figures of now, as plain data that nobody else holds."""
        cache, mover = self._cache, self._cache.mover
        control = None if cache.control is None else cache.control.address_later
        store = mover.store
        stats = None if store is None else store.stats()
        drives = [] if store is None else store.health()
        now = time.time()
        # Each rank looks in its own time, so nothing that decides may learn from it.
        drive = mover.rate.shown()
        state: dict[str, Any] = {
            "pid": os.getpid(),
            "version": radixtier.__version__,
            "sglang": self._sglang,
            "model": self._model,
            "started": self._started,
            "now": now,
            **self._place(store, stats, drives),
            "page_tokens": cache.page_size,
            "page_bytes": mover.page_bytes,
            "tiers": self._tiers(store),
            "pages": {state.name.lower(): int(mover.table.count[state]) for state in State},
            "nodes": len(mover.tree.runs),
            "requests": self._requests(),
            "io": None if stats is None else _transfers(stats),
            "journal": None if stats is None else {
                "waiting": stats["journal_waiting"],
                "dropped": stats["journal_dropped"],
                "lag_s": stats["journal_lag_seconds"],
            },
            "landing": self._landing(),
            "tick": cache.ticks.to_json(),
            "promotions": _promotions(mover.stats),
            "wear": None if stats is None else self._wear(int(stats["write_bytes"]), now),
            "policies": {"eviction": mover.tree.policy, "admission": mover.parking.admission.name},
            "pins": cache.steering.pins.figures(cache.ranks.now()),
            "estimates": {
                "nvme_read_bytes_per_s": drive.rate,
                "nvme_slowness": drive.slowness,
                "copy_bytes_per_s": cache.copies.shown(),
                "prefill": cache.prefill.cost.shown()._asdict(),
            },
            "counters": mover.stats.to_json(),
            "parked_pages": len(mover.parking),
            "control": None if control is None else str(control),
            "nvme_drained": cache.draining.status,
        }  # fmt: skip
        return state | {"health": self._health.look(state, now)}

    def _tiers(self, store: Any) -> dict[str, Any]:
        cache, table = self._cache, self._cache.mover.table
        hbm, page_size = cache.token_to_kv_pool_allocator, cache.page_size
        return {
            "hbm": {"capacity": hbm.size, "used": hbm.size - hbm.available_size()},
            "dram": {
                "capacity": table.n_frames * page_size,
                "used": (table.n_frames - table.free_frames) * page_size,
                "in_hbm_too": self._in_both() * page_size,
            },
            "nvme": {
                # Where the first rank stores for all, it has the tier.
                "capacity": 0 if store is None or store.borrowed else store.n_slots * page_size,
                "used": 0 if store is None else store.used_slots * page_size,
                "writable": store is not None and store.writable,
            },
        }

    def _landing(self) -> dict[str, Any] | None:
        """The memory that pages are read to on their way straight to HBM, None without."""
        table, page_size = self._cache.mover.table, self._cache.page_size
        if not table.n_landing:
            return None
        landings = self._cache.mover.promotions.landings
        return {
            "capacity": table.n_landing * page_size,
            "used": (table.n_landing - table.free_landing) * page_size,
            "given_up": landings.given_up,
            "read_bytes_per_s": landings.rate.shown().rate if landings.rate.jobs else None,
        }

    def _requests(self) -> dict[str, Any]:
        totals = self._cache.explain.totals
        return {
            "finished": totals.finished,
            "waiting_for_nvme": self._cache.waiting.for_nvme,
            "waited_s": totals.waited_s,
            "tokens": dict(totals.tokens),
            "computed_because": {reason.value: totals.because[reason] for reason in Reason},
        }

    def _wear(self, written: int, now: float) -> dict[str, Any]:
        """Bytes written, what the budget still allows, and when the drives will be worn out."""
        budget = getattr(self._cache.mover.parking.admission, "budget", None)
        left = None if budget is None else budget.left(self._cache.ranks.now())
        found = {
            "bytes_written": written,
            "budget_bytes_per_day": None if budget is None else budget.bytes_per_day,
            "budget_bytes_left": left,
            # Of which so many at most: the budget fills up continuously, not once a day.
            "budget_bytes_most": None if budget is None else budget.burst,
        }
        rated = self._rated
        if rated is None:
            return found | dict.fromkeys(("bytes_per_day", "rated_life_used", "worn_out", "rating"))
        wear = project(rated, written, self._started, now)
        return found | {
            "bytes_per_day": wear.bytes_per_day,
            "rated_life_used": wear.used,
            "worn_out": None if wear.worn_out is None else wear.worn_out.isoformat(),
            "rating": f"{rated.dwpd:g} DWPD for {rated.warranty_years:g} years, assumed",
        }

    def _place(self, store: Any, stats: dict[str, float] | None, drives: list[DriveHealth]) -> dict[str, Any]:
        """What is stored, where, and how the drives are; of this rank."""
        rank = {"rank": self._cache.ranks.rank, "size": self._cache.ranks.size}
        if store is None or stats is None:
            return {"rank": rank, "engine": None, "directories": [], "identity": None, "store": None}
        return {
            "rank": rank,
            "engine": drives[0].engine,
            "directories": [str(drive.directory) for drive in drives],
            "identity": None if self._identity is None else dict(self._identity),
            "store": {
                "bytes_used": store.used_slots * store.slot_bytes,
                "bytes_cap": store.capacity_bytes,
                "checksum_failures": stats["corrupt"],
                **{f"{kind}_errors": stats[f"{kind}_errors"] for kind in KINDS},
                "quarantined": store.quarantined,
                "sealed": store.sealed_because,
                "shared": isinstance(store, SharedStore),
                "degraded": [drive.reason for drive in drives if drive.reason is not None],
                "drives": [_drive(drive) for drive in drives],
            },
        }


def _in_dram(table: Any, part: Any) -> Any:
    return (table.frame[part] >= 0) & (table.frame[part] < table.n_frames)


def _drive(drive: DriveHealth) -> dict[str, Any]:
    fix = None if drive.kind is None else ADVICE[drive.kind]
    return {**drive._asdict(), "directory": str(drive.directory), "fix": fix}


def _transfers(stats: dict[str, float]) -> dict[str, Any]:
    figures = ("bytes", "pages", "errors")
    return {
        **{
            kind: {what: stats[f"{kind}_{what}"] for what in figures} | {"busy_s": stats[f"{kind}_busy_seconds"]}
            for kind in KINDS
        },
        "corrupt": stats["corrupt"],
        "queue": stats["queue_depth"],
        "running": stats["running"],
    }


def _promotions(stats: Any) -> dict[str, Any]:
    """What came up, and whether it was of use; a request that waits for its own pages uses them, in time or not."""
    return {
        "in_time": stats.in_time,
        "late": stats.late,
        "by": {
            trigger.value: {
                "promoted": stats.promoted_by[trigger.value],
                "used": None if trigger is Trigger.ARRIVAL else stats.ahead_used[trigger.value],
                "wasted": None if trigger is Trigger.ARRIVAL else stats.ahead_wasted[trigger.value],
            }
            for trigger in Trigger
        },
    }


def _rating(store: Any) -> Endurance | None:
    """What the drives are rated for; their sizes are asked for now, since a drive that hangs would not answer later."""
    if store is None:
        return None
    try:
        return Endurance(drive_bytes(str(drive.directory) for drive in store.health()))
    except (OSError, ValueError) as error:
        logger.warning("radixtier: the size of the drives is not known, hence nothing of their wear: %s", error)
        return None


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
