"""The control endpoint of one scheduler process: opens it, and carries commands out in the scheduler's tick.

Owns the desk and the server. Commands are carried out on the scheduler thread, a few per tick.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from radixtier.control import (
    Address,
    Command,
    ControlServer,
    Desk,
    ExplainNode,
    ExplainRequests,
    GiveHint,
    ReadState,
    Refusal,
)
from radixtier.explain.render import node_json, request_json
from radixtier.machine import drive_bytes
from radixtier.policy.wear import Endurance, project
from radixtier.tree.residency import HBM, State
from radixtier.units import BadValue

logger = logging.getLogger(__name__)


class Control:
    """Answers for one cache."""

    def __init__(self, cache: Any, address: Address, key: str | None) -> None:
        self._cache = cache
        self._desk = Desk()
        self._since = time.time()
        self._server: ControlServer | None = None
        try:
            self._server = ControlServer(address, self._desk, key)
        except BadValue as error:
            logger.warning("radixtier: no control endpoint at %s: %s", address, error)
            return
        logger.info("radixtier: control endpoint at %s", self._server.address)

    @property
    def address(self) -> Address | None:
        """Where it listens; None where it could not."""
        return None if self._server is None else self._server.address

    def step(self) -> None:
        """Carry out some of what was asked."""
        if self._desk.pending:
            self._desk.serve(self._handle)

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def _handle(self, command: Command) -> Mapping[str, Any]:
        cache = self._cache
        if isinstance(command, GiveHint):
            path = cache.steering.path_of(command.target)
            return cache.steering.carry_out(command.hint, path).to_json()
        if isinstance(command, ExplainRequests):
            return {"requests": [request_json(record) for record in self._requests(command)]}
        if isinstance(command, ExplainNode):
            path = cache.steering.path_of(command.target)
            runs = list(dict.fromkeys(cache.mover.table.run[path].tolist()))
            return {"nodes": [node_json(cache.explain.node(run)) for run in runs if run in cache.mover.tree.runs]}
        assert isinstance(command, ReadState)
        return self._state()

    def _requests(self, command: ExplainRequests) -> list[Any]:
        history = self._cache.explain.history
        if command.rid is None:
            return list(history.latest(command.limit))
        record = history.find(command.rid)
        if record is None:
            raise Refusal(404, f"request {command.rid} is not known: it has not ended, or too many came after it")
        return [record]

    def _wear(self) -> dict[str, Any] | None:
        """Bytes written, what the budget still allows, and when the drives will be worn out."""
        mover = self._cache.mover
        if mover.store is None:
            return None
        budget = getattr(mover.parking.admission, "budget", None)
        left = None if budget is None else budget.left(time.monotonic())
        rated = Endurance(drive_bytes(str(drive.directory) for drive in mover.store.health()))
        written = int(mover.store.stats()["write_bytes"])
        wear = project(rated, written, self._since, time.time(), budget_left=left)
        return {
            "bytes_written": wear.bytes_written,
            "bytes_per_day": wear.bytes_per_day,
            "budget_bytes_per_day": None if budget is None else budget.bytes_per_day,
            "budget_bytes_left": wear.budget_left,
            "rated_life_used": wear.used,
            "worn_out": None if wear.worn_out is None else wear.worn_out.isoformat(),
            "rating": f"{rated.dwpd:g} DWPD for {rated.warranty_years:g} years, assumed",
        }

    def _place(self) -> dict[str, Any]:
        """What is stored, where, and how the drives are; of this rank."""
        store = self._cache.mover.store
        if store is None:
            return {"rank": None, "engine": None, "directories": [], "identity": None, "store": None}
        drives, stats, identity = store.health(), store.stats(), store.identity
        return {
            "rank": None if identity is None else {"rank": identity.tp_rank, "size": identity.tp_size},
            "engine": drives[0].engine,
            "directories": [str(drive.directory) for drive in drives],
            "identity": None if identity is None else asdict(identity),
            "store": {
                "bytes_used": store.used_slots * store.slot_bytes,
                "bytes_cap": store.capacity_bytes,
                "checksum_failures": stats["corrupt"],
                **{name: stats[name] for name in ("read_errors", "write_errors", "verify_errors")},
                "quarantined": store.quarantined,
                "degraded": [drive.reason for drive in drives if drive.reason is not None],
                "drives": [{**drive._asdict(), "directory": str(drive.directory)} for drive in drives],
            },
        }

    def _state(self) -> dict[str, Any]:
        cache, mover = self._cache, self._cache.mover
        table, store = mover.table, mover.store
        page_size, now = cache.page_size, time.monotonic()
        hbm = cache.token_to_kv_pool_allocator
        slots = 0 if store is None else store.used_slots
        return {
            "pid": os.getpid(),
            **self._place(),
            "page_tokens": page_size,
            "page_bytes": mover.page_bytes,
            "tiers": {
                "hbm": {"capacity": hbm.size, "used": hbm.size - hbm.available_size()},
                "dram": {
                    "capacity": table.n_frames * page_size,
                    "used": (table.n_frames - table.free_frames) * page_size,
                    "in_hbm_too": int(((table.mark & HBM != 0) & (table.frame >= 0)).sum()) * page_size,
                },
                "nvme": {
                    "capacity": 0 if store is None else store.n_slots * page_size,
                    "used": slots * page_size,
                    "writable": store is not None and store.writable,
                },
            },
            "pages": {state.name.lower(): int(table.count[state]) for state in State},
            "nodes": len(mover.tree.runs),
            "wear": self._wear(),
            "policies": {"eviction": mover.tree.policy, "admission": mover.parking.admission.name},
            "pins": cache.steering.pins.figures(now),
            "estimates": {
                "nvme_read_bytes_per_s": mover.rate.rate,
                "nvme_slowness": mover.rate.slowness,
                "copy_bytes_per_s": cache.copies.rate,
                "prefill": cache.prefill.cost.machine._asdict(),
            },
            "counters": mover.stats.to_json(),
            "parked_pages": len(mover.parking),
        }
