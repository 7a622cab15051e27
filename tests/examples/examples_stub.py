"""A stand-in for SGLang with the tier: remembers what it was asked, and tells where a prompt would come from.

A token is a word. The last prompt is in HBM, the :data:`IN_DRAM` before it are in DRAM, all others on NVMe; what a new
prompt shares with one of them comes from there. A control endpoint of the real thing stands beside it.
"""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import takewhile
from pathlib import Path
from typing import Any

from radixtier.control import Address, Command, ControlServer, Desk, GiveHint

EXAMPLES = Path(__file__).parents[2] / "examples"

Run = Callable[..., "subprocess.CompletedProcess[str]"]
"""Of the fixture that runs an example to its end."""

IN_DRAM = 2
PATIENCE_S = 30.0
"""For what must not happen: a test that would hang fails."""

GENERATION = ["<assistant>"]


def tokens_of(messages: list[dict[str, Any]]) -> list[str]:
    """The tokens of a prompt, without what asks for an answer."""
    return [word for each in messages for word in (f"<{each['role']}>", *str(each["content"]).split())]


@dataclass
class Stub:
    """What the server does, changed while it runs, and what it was asked."""

    tier: bool = True
    sglang: bool = True
    """Whether there is /server_info."""
    key: str = ""
    status: int = 200
    """Of every answer to a chat."""
    answer: Callable[[dict[str, Any]], list[str]] = lambda body: ["Yes", ", ", "indeed."]
    """The pieces of an answer to a request."""
    cut: bool = False
    """The answer ends in the middle."""
    error: str = ""
    """What is said in the middle of an answer."""
    calls: Callable[[dict[str, Any]], list[tuple[str, str]]] = lambda body: []
    """Tools and arguments that the model calls."""
    before: Callable[[socket.socket], None] = lambda connection: None
    """Done before the head of an answer, as a prefill is; gets the connection of the client."""
    between: Callable[[], None] = lambda: None
    """Done behind each piece of an answer."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    prompts: list[list[str]] = field(default_factory=list)
    """Least lately used first."""
    gone: threading.Event = field(default_factory=threading.Event)
    """A client hung up."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(self, body: dict[str, Any]) -> tuple[int, dict[str, int]]:
        """Remember a prompt; returns its tokens, and how many come from which tier."""
        prompt = tokens_of(body["messages"]) + GENERATION
        with self.lock:
            self.asked.append(body)
            newest = list(reversed(self.prompts))
            shared = [self._shared(prompt, each) for each in newest]
            self.prompts = [each for each in self.prompts if each != prompt] + [prompt]
        best = max(shared, default=0)
        if not best:
            return len(prompt), {}
        place = shared.index(best)
        split = {"device": 0, "host": 0, "storage": 0}
        split["device" if not place or not self.tier else "host" if place <= IN_DRAM else "storage"] = best
        return len(prompt), split

    @staticmethod
    def _shared(prompt: list[str], other: list[str]) -> int:
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prompt, other, strict=False)))
        return min(same, len(prompt) - 1)

    def number(self, word: str) -> int:
        """Token id of a word."""
        return sum(map(ord, word))


@contextmanager
def sglang(stub: Stub) -> Iterator[str]:
    """Run the server; yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            if self._locked():
                return
            if self.path == "/server_info" and stub.sglang:
                backend = "radixtier" if stub.tier else None
                self._whole({"model_path": "/models/stub-1b/", "radix_cache_backend": backend})
            else:
                self._whole({"detail": "Not Found"}, 404)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self._locked():
                return
            if self.path == "/v1/tokenize":
                self._whole({"tokens": [stub.number(word) for word in tokens_of(body["messages"])]})
            elif self.path != "/v1/chat/completions":
                self._whole({"detail": "Not Found"}, 404)
            elif stub.status != 200:
                self._whole({"object": "error", "message": "the prompt is\n too long"}, stub.status)
            else:
                self._chat(body)

        def _locked(self) -> bool:
            if stub.key and self.headers.get("Authorization") != f"Bearer {stub.key}":
                self._whole({"error": "Unauthorized"}, 401)
                return True
            return False

        def _whole(self, content: Any, status: int = 200) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _chat(self, body: dict[str, Any]) -> None:
            total, split = stub.serve(body)
            stub.before(self.connection)
            try:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self._delta({"role": "assistant", "content": ""})
                for index, (name, arguments) in enumerate(stub.calls(body) if "tools" in body else []):
                    self._delta({"tool_calls": [{"index": index, "id": f"c{index}", "function": {"name": name}}]})
                    for part in arguments:
                        self._delta({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
                for piece in stub.answer(body):
                    self._delta({"content": piece})
                    stub.between()
                    if stub.error:
                        self._event({"error": {"message": stub.error}})
                    if stub.cut:
                        self.close_connection = True
                        return
                if split and body.get("return_cached_tokens_details"):
                    self._event({"choices": [], "sglext": {"cached_tokens_details": split}})
                self._event({"choices": [], "usage": {"prompt_tokens": total, "completion_tokens": 3}})
                self._chunk(b"data: [DONE]\n\n")
                self.wfile.write(b"0\r\n\r\n")
            except OSError:
                stub.gone.set()
                self.close_connection = True

        def _delta(self, delta: Mapping[str, Any]) -> None:
            self._event({"choices": [{"index": 0, "delta": delta}]})

        def _event(self, event: Mapping[str, Any]) -> None:
            self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

        def _chunk(self, data: bytes) -> None:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """Clients that go away are no news."""

    server = Quiet(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE_S)


@dataclass
class Tier:
    """A scheduler that takes hints: rejects the first few of them, grants the others."""

    refuse: int = 0
    hints: list[GiveHint] = field(default_factory=list)
    """Those that were granted."""

    def __call__(self, command: Command) -> Mapping[str, Any]:
        if not isinstance(command, GiveHint):
            return {}
        if self.refuse:
            self.refuse -= 1
            return command.hint.rejected("its backup is not over yet", 64).to_json()
        self.hints.append(command)
        return command.hint.granted(64, 64).to_json()

    def given(self, kind: str) -> list[GiveHint]:
        """The hints of one kind."""
        return [each for each in self.hints if each.hint.kind.value == kind]


@contextmanager
def control(tier: Tier, address: Address, key: str | None = None) -> Iterator[str]:
    """Run a control endpoint; yields its address."""
    desk = Desk()
    stop = threading.Event()

    def ticks() -> None:
        while not stop.wait(0.001):
            desk.serve(tier)

    thread = threading.Thread(target=ticks)
    with ControlServer(address, desk, key) as server:
        thread.start()
        try:
            yield str(server.address)
        finally:
            stop.set()
            thread.join(PATIENCE_S)
