"""A control endpoint with made-up figures, for the commands that look at a running server."""

from __future__ import annotations

import contextlib
import http.server
import json
import math
import socketserver
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

NOW = 1_795_000_000.0
GIB = 1 << 30

Answer = tuple[int, Any]


def state(**changes: Any) -> dict[str, Any]:
    """Figures of a server that is well."""
    return {
        "version": "0.1.0",
        "sglang": "0.5.23",
        "model": "SmolLM2-135M-Instruct",
        "started": NOW - 8000,
        "now": NOW,
        "page_tokens": 16,
        "page_bytes": 16 * 131_072,
        "nodes": 1284,
        "tiers": {
            "hbm": {"capacity": 262_144, "used": 251_003},
            "dram": {"capacity": 1_048_576, "used": 700_416, "in_hbm_too": 24_000},
            "nvme": {"capacity": 8_388_608, "used": 3_211_264, "writable": True},
        },
        "store": {"bytes_used": 401 * GIB, "bytes_cap": 1024 * GIB},
        "requests": {"finished": 18_211, "waiting_for_nvme": 3, "waited_s": 41.7, "tokens": {}, "computed_because": {}},
        "io": {"queue": 12, "running": 4, "corrupt": 0},
        "tick": {"count": 90_000, "seconds": 31.2, "longest_s": 0.0123},
        "wear": {
            "bytes_written": 911 * GIB,
            "bytes_per_day": 402 * GIB,
            "budget_bytes_per_day": 500 * GIB,
            "budget_bytes_left": 17 * GIB,
            "budget_bytes_most": 20 * GIB,
            "rated_life_used": 0.0042,
            "worn_out": "2041-05-03T00:00:00+00:00",
        },
        "health": {"status": "ok", "reasons": []},
        "nvme_drained": None,
        **changes,
    }


def degraded() -> dict[str, Any]:
    """The same with a drive in trouble."""
    reason = {
        "what": "/mnt/nvme1/kv takes no new pages",
        "why": "writing 262144 bytes: Input/output error",
        "since": NOW - 250,
        "fix": "look for errors of the device in the kernel's log",
    }
    sealed = {"what": "write budget", "why": "used up for now", "since": None, "fix": "raise it, or wait an hour"}
    return state(health={"status": "degraded", "reasons": [reason, sealed]})


def history(seconds: int = 300) -> dict[str, Any]:
    """Waves; each source with its own."""

    def wave(height: float, length: float, phase: float = 0.0) -> list[float]:
        return [height * (1.1 + math.sin(i / length + phase)) for i in range(seconds)]

    series = {
        "requests_per_s": wave(3.0, 40),
        "hbm_tokens_per_s": wave(9000, 30),
        "dram_tokens_per_s": wave(5000, 22, 1),
        "nvme_tokens_per_s": wave(3500, 45, 2),
        "computed_tokens_per_s": wave(2500, 15, 3),
        "read_bytes_per_s": wave(1.2e9, 12),
        "write_bytes_per_s": wave(3.1e8, 19),
        "promoted_tokens_per_s": wave(4100, 15),
        "demoted_tokens_per_s": wave(2600, 25),
        "lost_tokens_per_s": [0.0] * seconds,
        "read_p50_ms": [0.31] * seconds,
        "read_p99_ms": [4.2] * (seconds - 1) + [None],
        "write_p99_ms": [12.5] * seconds,
        "tick_ms": [0.41] * seconds,
    }
    return {"interval_s": 1.0, "at": [NOW - seconds + i for i in range(seconds)], "series": series}


def row(number: int, **changes: Any) -> dict[str, Any]:
    """A node of the tree."""
    tokens = 4096 + 640 * number
    return {
        "node": number,
        "parent": None,
        "start_token": 0,
        "tokens": tokens,
        "hbm": tokens if number < 2 else 0,
        "dram": tokens // 2 if number < 4 else 0,
        "nvme": tokens if number else 0,
        "lost": 0,
        "last_used": NOW - 3 * 7**number / 5,
        "hits": 90 - 7 * number,
        "session": f"user-{number}/chat-{number * 31}" if number % 3 else None,
        **changes,
    }


def tree() -> dict[str, Any]:
    """Ten paths."""
    rows = [row(number) for number in range(10)]
    return {"taken": NOW, "total_nodes": 1284, "nodes": [], "hottest": rows, "coldest": rows[::-1]}


def events() -> dict[str, Any]:
    """A few lines of the log."""
    texts = [
        ("warning", "radixtier: /mnt/nvme1/kv takes no new pages: writing 262144 bytes: Input/output error", 12),
        ("info", "radixtier: 18.2 GiB of KV came back from 412 paths in 2.1 s", 1),
        ("info", "radixtier: control endpoint at unix:/mnt/nvme0/kv/radixtier.sock", 1),
    ]
    return {"events": [{"at": NOW - 9 * i, "level": a, "text": b, "times": n} for i, (a, b, n) in enumerate(texts)]}


@dataclass
class Script:
    """What the endpoint answers, by path; a value may be a function of the body."""

    answers: dict[str, Answer | Callable[[Any], Answer]] = field(default_factory=dict)
    seen: list[tuple[str, str, Any, str | None]] = field(default_factory=list)
    """Method, path with its query, body and Authorization of each request."""

    @classmethod
    def well(cls) -> Script:
        parts = {"state": state(), "history": history(), "events": events(), "tree": tree()}
        return cls({f"/radix_tier/{name}": (200, part) for name, part in parts.items()})


class _Handler(http.server.BaseHTTPRequestHandler):
    script: Script

    def address_string(self) -> str:
        return "local"

    def do_GET(self, body: Any = None) -> None:
        path = urlsplit(self.path).path
        self.script.seen.append((self.command, self.path, body, self.headers.get("Authorization")))
        found = self.script.answers.get(path, (404, {"error": f"there is no {path}"}))
        status, answer = found(body) if callable(found) else found
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self) -> None:
        self.do_GET(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def log_message(self, *_: Any) -> None:
        pass


class _UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@contextlib.contextmanager
def endpoint(script: Script, socket_path: Path | None = None) -> Iterator[str]:
    """Serve a script; yield the address as ``--control`` takes it."""
    handler = type("Handler", (_Handler,), {"script": script})
    server: socketserver.BaseServer
    if socket_path is None:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        address = f"127.0.0.1:{server.server_address[1]}"  # type: ignore[index]
    else:
        server = _UnixServer(str(socket_path), handler)
        address = f"unix:{socket_path}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield address
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
