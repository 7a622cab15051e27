"""What a made-up server answers: deterministic figures for every route that the dashboard asks."""

from __future__ import annotations

from dataclasses import dataclass, field

from dashboard_lists import Json, history, some_events, some_requests
from dashboard_tree import NOW, Row, picture, small_tree

PAGE_TOKENS, PAGE_BYTES = 16, 16 * 131072
SOURCES = ("hbm", "dram", "nvme", "computed")
BECAUSE = {
    "never seen": 812_345,
    "evicted": 96_000,
    "lost": 0,
    "not worth waiting for": 41_216,
    "declined": 2_048,
    "always computed": 15_871,
}


@dataclass
class World:
    """The answers of one server, which a test may change while the page is open."""

    rows: list[Row] = field(default_factory=small_tree)
    state: Json = field(default_factory=lambda: healthy_state())
    requests: list[Json] = field(default_factory=lambda: some_requests())
    events: list[Json] = field(default_factory=lambda: some_events())
    history_end: float | None = NOW
    key: str | None = None
    silent: bool = False
    """Whether connections are ended without an answer."""
    refused: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Status and error by path, for routes that say no."""

    def tree(self, root: int | None, most: int) -> Json | None:
        return picture(self.rows, root, most)

    def explain_node(self, node: int | None, session: str | None, text: str | None) -> Json | None:
        """The nodes of a path; any text is the start of the first system prompt."""
        if session is not None:
            found = [row for row in self.rows if row["session"] == session]
        else:
            found = [row for row in self.rows if row["node"] == (0 if text is not None else node)]
        if not found:
            return None
        by_node, path, at = {row["node"]: row for row in self.rows}, [], found[-1]["node"]
        while at is not None:
            path.append(report(by_node[at]))
            at = by_node[at]["parent"]
        return {"nodes": path[::-1]}

    def history(self, seconds: float) -> Json:
        if self.history_end is None:
            return {"interval_s": 1.0, "at": [], "series": {}}
        return history(seconds, self.history_end)


def report(row: Row) -> Json:
    """A row as ``explain/node`` tells it."""
    both = min(row["dram"], row["nvme"])
    places = {
        "HBM": row["hbm"],
        "DRAM": row["dram"] - both,
        "DRAM and NVMe": both,
        "NVMe": row["nvme"] - both,
        "nowhere below HBM": row["lost"],
    }
    names = ("node", "parent", "start_token", "tokens", "last_used", "hits", "session", "expected", "pinned")
    events = [
        {"when": row["last_used"] - 60, "what": "written to NVMe", "why": ""},
        {"when": row["last_used"], "what": "left DRAM", "why": "slru"},
    ]
    return {name: row[name] for name in names} | {
        "places": {place: n for place, n in places.items() if n},
        "events": events,
    }


def healthy_state() -> Json:
    """A server in the middle of a good day."""
    drives = [_drive("/mnt/nvme0/kv"), _drive("/mnt/nvme1/kv")]
    return {
        "version": "0.1.0",
        "sglang": "0.5.23",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "started": NOW - 93_784,
        "now": NOW,
        "pid": 4711,
        "page_tokens": PAGE_TOKENS,
        "page_bytes": PAGE_BYTES,
        "tiers": {
            "hbm": {"capacity": 327_680, "used": 301_056},
            "dram": {"capacity": 1_048_576, "used": 1_031_168, "in_hbm_too": 188_416},
            "nvme": {"capacity": 16_777_216, "used": 9_437_184, "writable": True},
        },
        "nodes": 48_211,
        "wear": {
            "bytes_written": 3_298_534_883_328,
            "bytes_per_day": 412_316_860_416.0,
            "budget_bytes_per_day": 500_000_000_000.0,
            "budget_bytes_left": 15_000_000_000.0,
            "budget_bytes_most": 20_833_333_333.0,
            "rated_life_used": 0.0312,
            "worn_out": "2029-03-14T00:00:00+00:00",
            "rating": "1 DWPD for 5 years, assumed",
        },
        "store": {
            "bytes_used": 9_437_184 // PAGE_TOKENS * PAGE_BYTES,
            "bytes_cap": 16_777_216 // PAGE_TOKENS * PAGE_BYTES,
            "checksum_failures": 0,
            "read_errors": 0,
            "write_errors": 0,
            "verify_errors": 0,
            "quarantined": 0,
            "degraded": [],
            "drives": drives,
        },
        "requests": {
            "finished": 18_204,
            "waiting_for_nvme": 2,
            "waited_s": 412.7,
            "tokens": {"hbm": 9_120_512, "dram": 6_024_192, "nvme": 2_611_200, "computed": sum(BECAUSE.values())},
            "computed_because": dict(BECAUSE),
        },
        "io": {"queue": 14, "running": 8},
        "journal": {"waiting": 3, "dropped": 0, "lag_s": 0.4},
        "tick": {"count": 912_000, "seconds": 96.2, "longest_s": 0.0031},
        "health": {"status": "ok", "reasons": []},
        "nvme_drained": None,
    }


def _drive(directory: str) -> Json:
    return {
        "directory": directory,
        "writable": True,
        "reason": None,
        "since": 0.0,
        "free_slots": 229_376,
        "used_slots": 294_912,
        "quarantined": 0,
        "engine": "posix",
    }


def degraded_state() -> Json:
    """The same server while one drive hangs and the write budget is used up."""
    state = healthy_state()
    state["store"]["drives"][1] |= {
        "writable": False,
        "reason": "a write has not ended for 12 s",
        "since": NOW - 431,
        "quarantined": 96,
    }
    state["store"] |= {"write_errors": 3, "checksum_failures": 1}
    state["wear"]["budget_bytes_left"] = 0
    state["journal"] = {"waiting": 210, "dropped": 512, "lag_s": 12.5}
    state["health"] = {
        "status": "degraded",
        "reasons": [
            {
                "what": "/mnt/nvme1/kv takes no new pages",
                "why": "a write has not ended for 12 s",
                "since": NOW - 431,
                "fix": "the device or its network hangs: look at the kernel's log",
            },
            {
                "what": "the write budget is used up",
                "why": "500 GB of 500 GB were written in the last day",
                "since": None,
                "fix": "raise --radix-tier-write-budget, or let it be: pages stay in DRAM",
            },
        ],
    }
    return state


def drained_state() -> Json:
    state = healthy_state()
    state["nvme_drained"] = "drained"
    reason = {
        "what": "NVMe is drained",
        "why": "the control endpoint was asked to",
        "since": NOW - 60,
        "fix": "unmount the file systems, then restart the server",
    }
    state["health"] = {"status": "drained", "reasons": [reason]}
    return state


def empty_state() -> Json:
    """A server without NVMe that has just started."""
    state = healthy_state()
    state |= {"started": NOW - 3, "nodes": 0, "wear": None, "store": None, "journal": None, "io": None}
    state["tiers"] = {
        "hbm": {"capacity": 4096, "used": 0},
        "dram": {"capacity": 8192, "used": 0, "in_hbm_too": 0},
        "nvme": {"capacity": 0, "used": 0, "writable": False},
    }
    state["requests"] = {
        "finished": 0,
        "waiting_for_nvme": 0,
        "waited_s": 0.0,
        "tokens": dict.fromkeys(SOURCES, 0),
        "computed_because": dict.fromkeys(BECAUSE, 0),
    }
    return state


def empty_world() -> World:
    return World(rows=[], state=empty_state(), requests=[], events=[], history_end=None)


HOSTILE = '<img src=x onerror="window.pwned=1">'


def hostile_world() -> World:
    """Every text that a client or a file system has a say in is markup."""
    world = World(state=degraded_state())
    world.state["model"] = HOSTILE
    world.state["version"] = HOSTILE
    for drive in world.state["store"]["drives"]:
        drive["directory"] = drive["reason"] = HOSTILE
    for reason in world.state["health"]["reasons"]:
        reason |= {"what": HOSTILE, "why": HOSTILE, "fix": HOSTILE}
    world.state["requests"]["computed_because"][HOSTILE] = 5
    for row in world.rows:
        row["session"] = HOSTILE
    for request in world.requests:
        request |= {"request": HOSTILE + request["request"], "session": HOSTILE}
        for cause in request["causes"]:
            cause |= {"reason": HOSTILE, "detail": HOSTILE, "rule": HOSTILE}
    for event in world.events:
        event |= {"level": HOSTILE, "text": HOSTILE}
    return world
