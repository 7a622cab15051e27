"""States as a server answers them, whole or with anything in place of a part."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

REASONS = (
    "never seen",
    "evicted",
    "lost",
    "not worth waiting for",
    "declined",
    "always computed",
)
TRIGGERS = ("arrival", "hint", "return", "idle", "probe")
START = 1_800_000_000.0


def drive(directory: str = "/mnt/nvme0", **changed: Any) -> dict[str, Any]:
    """What a state says of a drive that is well."""
    return {
        "directory": directory, "writable": True, "reason": None, "since": 0.0, "free_slots": 90, "used_slots": 10,
        "quarantined": 0, "largest_extent": 90, "free_extents": 1, "engine": "posix", "kind": None, "fix": None,
    } | changed  # fmt: skip


def make_state(seconds: float = 0.0, pages: int = 0, **changed: Any) -> dict[str, Any]:
    """Return the state of a server that started so many ``seconds`` ago and moved ``pages`` of each kind."""
    transfers = {"bytes": pages * 8192, "pages": pages, "errors": 0, "busy_s": pages * 0.001}
    state = {
        "pid": 1, "version": "0.1.0", "sglang": "0.5.23", "model": "tiny", "started": START, "now": START + seconds,
        "rank": {"rank": 0, "size": 1}, "engine": "posix", "directories": ["/mnt/nvme0"], "identity": None,
        "store": {
            "bytes_used": 10 * 8192, "bytes_cap": 100 * 8192, "checksum_failures": 0, "read_errors": 0,
            "write_errors": 0, "verify_errors": 0, "quarantined": 0, "sealed": None, "degraded": [],
            "drives": [drive()],
        },
        "page_tokens": 16, "page_bytes": 8192,
        "tiers": {
            "hbm": {"capacity": 1024, "used": 512},
            "dram": {"capacity": 2048, "used": 1024, "in_hbm_too": 256},
            "nvme": {"capacity": 1600, "used": 160, "writable": True},
        },
        "pages": {"free": 100, "filling": 0, "dirty": 1, "clean": 2, "cold": 3, "lost": 0},
        "nodes": 7,
        "requests": {
            "finished": pages, "waiting_for_nvme": 1, "waited_s": pages * 0.5,
            "tokens": {"hbm": 1 * pages, "dram": 2 * pages, "nvme": 3 * pages, "computed": 4 * pages},
            "computed_because": dict.fromkeys(REASONS, 0) | {"never seen": 4 * pages},
        },
        "io": {
            "read": dict(transfers), "write": dict(transfers), "verify": dict(transfers), "corrupt": 0, "queue": 5,
            "running": 2,
        },
        "journal": {"waiting": 3, "dropped": 0, "lag_s": 0.25},
        "landing": {"capacity": 256, "used": 32, "given_up": False, "read_bytes_per_s": 2e9},
        "tick": {"count": 100 * seconds, "seconds": 0.2 * seconds, "longest_s": 0.01},
        "promotions": {
            "in_time": pages, "late": 0,
            "by": {
                trigger: {"promoted": pages, "used": None, "wasted": None} if trigger == "arrival" else
                {"promoted": pages, "used": pages, "wasted": 0}
                for trigger in TRIGGERS
            },
        },
        "wear": {
            "bytes_written": pages * 8192, "bytes_per_day": 1e9, "budget_bytes_per_day": 1 << 40,
            "budget_bytes_left": float(1 << 30), "rated_life_used": 0.001, "worn_out": None, "rating": "1 DWPD",
        },
        "policies": {"eviction": "lru", "admission": "all"},
        "pins": {tier: {"held": 4, "cap": 16, "pins": 1, "yielded": 0} for tier in ("dram", "nvme")},
        "estimates": {
            "nvme_read_bytes_per_s": 1e9, "nvme_slowness": 1.0, "copy_bytes_per_s": 1e10, "prefill": {"per_token": 1.0},
        },
        "counters": dict.fromkeys(
            ("demoted", "lost", "staged", "promoted", "written", "write_failures", "writes_rejected",
             "writes_throttled", "read_failures", "corrupt", "scrubbed", "scrubbed_bad", "restored",
             "backups_declined", "refilled", "landed", "landing_failed", "landing_full"),
            pages,
        ),
        "parked_pages": 6,
        "nvme_drained": None,
        "health": {"status": "ok", "reasons": []},
    }  # fmt: skip
    return state | changed


def without_nvme(seconds: float = 0.0) -> dict[str, Any]:
    """Return the state of a server with two tiers."""
    absent = dict.fromkeys(("rank", "engine", "identity", "store", "io", "journal", "wear"))
    return make_state(seconds, 1, directories=[], **absent)


def paths(tree: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List the paths of everything in a state."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [at, *(path for key, item in items for path in paths(item, (*at, key)))] if at else [
        path for key, item in items for path in paths(item, (*at, key))
    ]  # fmt: skip


PATHS = paths(make_state())

ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(min_value=10**400, max_value=10**401), st.floats(),
    st.text(max_size=3), st.just([]), st.just({}), st.just([None]), st.just({"x": 1.0}),
)  # fmt: skip


@st.composite
def odd_states(draw: st.DrawFn) -> dict[str, Any]:
    """States with figures of any size, of which some parts are missing or something else."""
    state = copy.deepcopy(make_state(draw(st.floats(0, 1e6)), draw(st.integers(0, 1 << 50))))
    for path in draw(st.lists(st.sampled_from(PATHS), max_size=6)):
        parent = state
        try:
            for key in path[:-1]:
                parent = parent[key]
            if draw(st.booleans()):
                parent[path[-1]] = draw(ANYTHING)
            else:
                del parent[path[-1]]
        except (KeyError, IndexError, TypeError):  # something above it is gone already
            continue
    return state


LATENCIES = st.lists(
    st.tuples(st.sampled_from(("read", "write", "verify")), st.floats(0, 100), st.integers(0, 1 << 30)), max_size=20
)
