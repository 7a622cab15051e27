"""A server for the page alone: its files under the policy of the real endpoint, and made-up answers."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from dashboard_world import World

from radixtier.dashboard import FILES, read

ROOT = "/radix_tier"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HINTS = ("prefetch", "demote", "pin", "share", "retain", "release")


@dataclass
class Asked:
    """One request to a JSON route."""

    method: str
    path: str
    fields: dict[str, Any]
    key: str | None


@dataclass
class FakeServer:
    """Address, answers, and what was asked so far."""

    url: str
    world: World
    asked: list[Asked] = field(default_factory=list)

    def paths(self) -> list[str]:
        return [each.path for each in self.asked]


@contextlib.contextmanager
def serve(world: World) -> Iterator[FakeServer]:
    """Serve a world on a free port of the loopback address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as http:
        http.daemon_threads = True
        fake = FakeServer(f"http://127.0.0.1:{http.server_address[1]}", world)
        http.fake = fake  # type: ignore[attr-defined]
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield fake
        finally:
            http.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        name = _file_of(parts.path)
        if name is not None:
            self._send(200, FILES[name], read(name))
        else:
            self._json("GET", parts.path, dict(parse_qsl(parts.query)))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._json("POST", self.path, json.loads(body))

    def _json(self, method: str, path: str, fields: dict[str, Any]) -> None:
        fake: FakeServer = self.server.fake
        scheme, _, key = self.headers.get("Authorization", "").partition(" ")
        fake.asked.append(Asked(method, path, fields, key if scheme == "Bearer" else None))
        if fake.world.silent:
            self.close_connection = True
            return
        if fake.world.key is not None and fake.world.key != key:
            status, answer = 401, {"error": "send the key as Authorization: Bearer KEY"}
        elif path in fake.world.refused:
            status, error = fake.world.refused[path]
            answer = {"error": error}
        else:
            status, answer = _answer(fake.world, method, path.removeprefix(ROOT), fields)
        self._send(status, "application/json", json.dumps(answer).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _file_of(path: str) -> str | None:
    if path in ("/", f"{ROOT}/dashboard"):
        return "index.html"
    name = path.removeprefix(f"{ROOT}/dashboard/")
    return name if name in FILES else None


def _answer(world: World, method: str, path: str, fields: dict[str, Any]) -> tuple[int, Any]:
    if method == "POST" and path.strip("/") in HINTS:
        amounts = {"tokens_asked": 640, "tokens_granted": 512}
        return 200, {"action_id": "", "kind": path.strip("/"), "status": "clipped", **amounts, "reason": "a cap"}
    if path == "/explain/node":
        node = int(fields["node"]) if "node" in fields else None
        found = world.explain_node(node, fields.get("session"), fields.get("text"))
        return (200, found) if found else (400, {"error": "this path is not known. Take another"})
    if path == "/tree":
        root = int(fields["root"]) if "root" in fields else None
        tree = world.tree(root, int(fields["most"]))
        return (200, tree) if tree else (404, {"error": f"node {root} does not exist"})
    answers: dict[str, Any] = {
        "/state": lambda: world.state,
        "/history": lambda: world.history(float(fields["seconds"])),
        "/events": lambda: {"events": world.events[: int(fields["limit"])]},
        "/explain": lambda: {"requests": world.requests[: int(fields["limit"])]},
    }
    return (200, answers[path]()) if path in answers else (404, {"error": f"no such path: {path}"})
