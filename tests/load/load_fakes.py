"""Stand-ins for servers: one in memory, one that speaks HTTP and can misbehave."""

from __future__ import annotations

import json
import signal
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from radixtier.load.answer import Answer, Cached, Piece

ANSWER = 7
"""Token that the fakes answer with."""


class FakeClient:
    """Remembers that somebody hung up."""

    def __init__(self) -> None:
        self.hung_up = False

    def hang_up(self) -> None:
        self.hung_up = True


class FakeTarget:
    """Answers at once, in tokens, and remembers what was asked."""

    url = "http://fake"
    api = "sglang"
    model = "fake"

    def __init__(self, fail: Callable[[int], bool] = lambda number: False, hold: threading.Event | None = None) -> None:
        self.client = FakeClient()
        self.prompts: list[Piece] = []
        self.sessions: list[str | None] = []
        self.running = self.most_running = 0
        self.running_sessions: set[str | None] = set()
        self.overlaps = 0
        self._fail, self._hold = fail, hold
        self._lock = threading.Lock()

    def piece(self, tokens: int, number: int) -> tuple[int, ...]:
        return tuple(1000 + (number * 31 + at) % 50_021 for at in range(tokens))

    def ask(
        self,
        prompt: Piece,
        answer_tokens: int,
        *,
        session: str | None = None,
        rid: str | None = None,
        cut_after: int | None = None,
    ) -> Answer:
        started = time.perf_counter()
        with self._lock:
            number = len(self.prompts)
            self.prompts.append(prompt)
            self.sessions.append(session)
            self.overlaps += session in self.running_sessions
            self.running_sessions.add(session)
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        if self._hold is not None:
            self._hold.wait(5)
        time.sleep(0.001)
        with self._lock:
            self.running -= 1
            self.running_sessions.discard(session)
        took = time.perf_counter() - started
        if self._fail(number):
            return Answer(started, took, took, error="as told")
        return Answer(
            started,
            took,
            took,
            prompt_tokens=len(prompt),
            output_tokens=answer_tokens,
            cached=Cached(),
            output=(ANSWER,) * answer_tokens,
        )


@dataclass
class Behaviour:
    """What a :class:`fake_server` does; changed while it runs."""

    sglang: bool = True
    """Has /server_info and /generate."""
    tokenizes: bool = True
    chat_only: bool = False
    refuses: tuple[str, ...] = ()
    """Fields of a request that it answers with status 400."""
    usage: bool = True
    """Counts tokens when it is asked to."""
    cached: int | None = None
    """Told as usage.prompt_tokens_details, or None."""
    details: dict[str, int] | None = None
    """Told as SGLang's cached_tokens_details."""
    key: str = ""
    status: int = 200
    """Of every answer to a prompt."""
    trouble: str = ""
    """truncated, error, garbage, empty, abort, slow: what goes wrong in an answer."""
    tokens_per_event: int = 1
    incremental: bool = False
    shift: int = 0
    """Added to every token of an answer."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    gone: threading.Event = field(default_factory=threading.Event)
    """A client hung up."""


def words(text: str) -> int:
    """Count tokens as the fake server does: two a word, and three for a template."""
    return 2 * len(text.split()) + 3


@contextmanager
def fake_server(
    behaviour: Behaviour, base: str = "", port: int = 0, tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Run a server; yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            if not self._allowed():
                return
            path = self.path.removeprefix(base)
            if path == "/health":
                self._whole({})
            elif path == "/server_info" and behaviour.sglang:
                self._whole({"version": "0.5.23", "served_model_name": "fake-model"})
            elif path == "/v1/models":
                self._whole({"data": [{"id": "fake-model"}]})
            else:
                self._whole({"error": "not found"}, 404)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not self._allowed():
                return
            path = self.path.removeprefix(base)
            behaviour.paths.append(path)
            if path == "/v1/tokenize" and behaviour.tokenizes:
                self._whole({"tokens": [3 + len(word) + ord(word[0]) for word in body["prompt"].split()]})
                return
            behaviour.requests.append(body)
            refused = [name for name in behaviour.refuses if name in body]
            if behaviour.status != 200 or refused:
                self._whole({"error": {"message": f"no {refused}"}}, 400 if refused else behaviour.status)
            elif path == "/generate" and behaviour.sglang:
                self._stream(self._generated(body))
            elif path == "/v1/completions" and not behaviour.chat_only:
                self._stream(self._completed(body, chat=False))
            elif path == "/v1/chat/completions":
                self._stream(self._completed(body, chat=True))
            else:
                self._whole({"error": "not found"}, 404)

        def _allowed(self) -> bool:
            if behaviour.key and self.headers.get("Authorization") != f"Bearer {behaviour.key}":
                self._whole({"error": "who are you?"}, 401)
                return False
            return True

        def _whole(self, content: Any, status: int = 200) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _stream(self, events: Iterator[dict[str, Any]]) -> None:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for number, event in enumerate(events):
                    if number and behaviour.trouble == "truncated":
                        self.close_connection = True
                        return
                    if number and behaviour.trouble == "error":
                        event = {"error": {"message": "out of memory"}}
                    if number > 1 and behaviour.trouble == "slow":
                        for _ in range(100):
                            time.sleep(0.02)
                            self._chunk(b": still here\n\n")
                    garbage = behaviour.trouble == "garbage"
                    self._chunk(b"data: " + (b"{oops" if garbage else json.dumps(event).encode()) + b"\n\n")
                self._chunk(b"data: [DONE]\n\n")
                self.wfile.write(b"0\r\n\r\n")
            except OSError:
                behaviour.gone.set()
                self.close_connection = True

        def _chunk(self, data: bytes) -> None:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

        def _generated(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
            total = body["sampling_params"]["max_new_tokens"]
            prompt = body.get("input_ids") or body["text"].split()
            done = 0
            while done < total and behaviour.trouble != "empty":
                new = min(behaviour.tokens_per_event, total - done)
                done += new
                meta: dict[str, Any] = {"prompt_tokens": len(prompt), "completion_tokens": done, "cached_tokens": 0}
                if behaviour.details is not None:
                    meta["cached_tokens_details"] = behaviour.details
                    meta["cached_tokens"] = sum(behaviour.details.values())
                last = done == total
                meta["finish_reason"] = {"type": "length"} if last else None
                if last and behaviour.trouble == "abort":
                    meta["finish_reason"] = {"type": "abort", "message": "too late"}
                ids = [at + behaviour.shift for at in range(done - new if behaviour.incremental else 0, done)]
                yield {"text": "x" * done, "output_ids": ids, "meta_info": meta}

        def _completed(self, body: dict[str, Any], chat: bool) -> Iterator[dict[str, Any]]:
            prompt = "".join(message["content"] for message in body["messages"]) if chat else body["prompt"]
            total = body.get("max_tokens") or body["max_completion_tokens"]
            if chat:
                yield {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
            for _ in range(0 if behaviour.trouble == "empty" else total):
                yield {"choices": [{"delta": {"content": " yes"}} if chat else {"text": " yes"}]}
            usage: dict[str, Any] = {"prompt_tokens": words(prompt), "completion_tokens": total}
            if behaviour.cached is not None:
                usage["prompt_tokens_details"] = {"cached_tokens": behaviour.cached}
            if body.get("return_cached_tokens_details") and behaviour.details is not None:
                yield {"choices": [], "sglext": {"cached_tokens_details": behaviour.details}}
            if behaviour.usage and "stream_options" in body:
                yield {"choices": [], "usage": usage}

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """Clients that go away are no news."""

    server = Quiet(("127.0.0.1", port), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http{'' if tls is None else 's'}://127.0.0.1:{server.server_address[1]}{base}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def main() -> None:
    """Serve until the process is ended: arguments are those of a command in a test, ``--port N`` and ``shift=N``."""
    words = sys.argv[1:]
    behaviour = Behaviour(shift=next((int(word[6:]) for word in words if word.startswith("shift=")), 0))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with fake_server(behaviour, port=int(words[words.index("--port") + 1])):
        while True:
            time.sleep(0.1)


if __name__ == "__main__":
    main()
