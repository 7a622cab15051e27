"""Several chats side by side in a browser, with the tier that answered each turn.

    python examples/chat_web/server.py --url http://127.0.0.1:30000 [--port 8765]

Serves one page and passes its questions on to an SGLang server, so that the browser talks to one origin only. The
answers are passed back byte by byte as they come; a browser that stops or goes away ends the request in SGLang too.

Owns the boundary to the browser: it listens on 127.0.0.1, answers only requests that name it as their host (a foreign
page that points its own name at this machine gets 403) and come from its own page, and passes on nothing but checked
fields. One thread per request. Standard library only.
"""

from __future__ import annotations

import argparse
import http.client
import json
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

HERE = Path(__file__).parent
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
MOST_BYTES = 8 << 20
"""Of a request: a conversation with its document."""

MOST_TOKENS = 4096
"""Of an answer."""

TIMEOUT_S = 600.0
"""Longest silence of SGLang, seconds."""

PIECE_BYTES = 65536


class Refused(Exception):
    """What is answered instead: a status of HTTP and one line."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Upstream:
    """The SGLang server behind the page."""

    def __init__(self, url: str, key: str) -> None:
        parts = urlsplit(url.rstrip("/").removesuffix("/v1"))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"--url {url}: not the address of a server. Write http://127.0.0.1:30000")
        self.url = parts.geturl()
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        try:
            port = parts.port
        except ValueError:
            raise ValueError(f"--url {url}: a port is a number up to 65535. Write http://127.0.0.1:30000") from None
        self._host, self._port, self._base = parts.hostname, port, parts.path
        self._headers = {"Content-Type": b"application/json"}
        if key:
            self._headers["Authorization"] = b"Bearer " + key.encode()

    @contextmanager
    def connect(self) -> Iterator[http.client.HTTPConnection]:
        """Connect, and close in the end. Raises `Refused`."""
        connection = self._kind(self._host, self._port, timeout=TIMEOUT_S)
        try:
            connection.connect()
        except OSError as error:
            raise Refused(502, f"no server answers at {self.url}: {error}") from None
        try:
            yield connection
        finally:
            connection.close()

    def send(self, connection: http.client.HTTPConnection, path: str, body: Any = None) -> http.client.HTTPResponse:
        """Send a request and wait for the head of its answer. Raises `Refused`."""
        data = None if body is None else json.dumps(body)
        try:
            connection.request("GET" if data is None else "POST", self._base + path, data, self._headers)
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise Refused(502, f"{self.url} hung up: {error or type(error).__name__}") from None

    def about(self) -> dict[str, str]:
        """Return the model's name and whether the tier is on. Raises `Refused`."""
        with self.connect() as connection:
            response = self.send(connection, "/server_info")
            try:
                info = json.loads(response.read())
            except (OSError, http.client.HTTPException, ValueError):
                info = None
        if response.status != 200 or not isinstance(info, dict):
            return {"url": self.url, "model": "", "tier": "unknown"}
        model = str(info.get("served_model_name") or info.get("model_path") or "")
        tier = "on" if info.get("radix_cache_backend") == "radixtier" else "off"
        return {"url": self.url, "model": model.rstrip("/").rpartition("/")[2], "tier": tier}


class Handler(BaseHTTPRequestHandler):
    """One request of the browser; a connection carries one only."""

    server: Page

    def do_GET(self) -> None:
        """Answer with a file of the page, or with what is known about the server."""
        with self._errors():
            self._check_host()
            if self.path in FILES:
                name, kind = FILES[self.path]
                self._answer(200, kind, (HERE / name).read_bytes())
            elif self.path == "/api/server":
                self._answer(200, "application/json", json.dumps(self.server.upstream.about()).encode())
            else:
                raise Refused(404, "there is no such page")

    def do_POST(self) -> None:
        """Pass a question on, and the answer back as it comes."""
        with self._errors():
            self._check_host()
            origin = self.headers.get("Origin")
            if origin is not None and origin.removeprefix("http://") not in self.server.names:
                raise Refused(403, "this request comes from another page")
            if self.path != "/api/chat":
                raise Refused(404, "there is no such page")
            body = question(self._body())
            with self.server.upstream.connect() as connection, self._watched(connection.sock):
                response = self.server.upstream.send(connection, "/v1/chat/completions", body)
                if response.status != 200:
                    raise Refused(502, f"SGLang answered {response.status}: {said(response.read(PIECE_BYTES))}")
                self._head(200, "text/event-stream")
                while piece := response.read1(PIECE_BYTES):
                    self.wfile.write(piece)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing about requests: the page shows what happens."""

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except Refused as refused:
            with suppress(OSError):
                self._answer(refused.status, "application/json", json.dumps({"error": str(refused)}).encode())
        except (OSError, http.client.HTTPException):
            # One of the two sides went away in the middle; the page sees that the answer has no end.
            pass

    def _check_host(self) -> None:
        if self.headers.get("Host") not in self.server.names:
            raise Refused(403, f"this page is at http://{self.server.names[0]}/ only")

    def _body(self) -> Any:
        if (self.headers.get("Content-Type") or "").partition(";")[0].strip() != "application/json":
            raise Refused(415, "the body has to be application/json")
        length = self.headers.get("Content-Length") or ""
        if not (length.isascii() and length.isdecimal()):
            raise Refused(411, "the length of the body is missing")
        if len(length) > 12 or int(length) > MOST_BYTES:
            raise Refused(413, f"the conversation is longer than {MOST_BYTES >> 20} MiB")
        try:
            return json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise Refused(400, "the body is not JSON") from None

    @contextmanager
    def _watched(self, upstream: socket.socket) -> Iterator[None]:
        """End the request in SGLang when the browser is gone, also while SGLang has nothing to say yet."""

        def watch() -> None:
            with suppress(OSError):
                if not self.connection.recv(1, socket.MSG_PEEK):
                    upstream.shutdown(socket.SHUT_RDWR)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RD)
            watcher.join()

    def _answer(self, status: int, kind: str, content: bytes) -> None:
        self._head(status, kind, {"Content-Length": str(len(content))})
        self.wfile.write(content)

    def _head(self, status: int, kind: str, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ({"Content-Type": kind} | HEADERS | (more or {})).items():
            self.send_header(name, value)
        self.end_headers()


class Page(ThreadingHTTPServer):
    """The web server of the page, on 127.0.0.1."""

    daemon_threads = True

    def __init__(self, port: int, upstream: Upstream) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.upstream = upstream
        self.names = [f"127.0.0.1:{self.server_address[1]}", f"localhost:{self.server_address[1]}"]


def question(body: Any) -> dict[str, Any]:
    """Return the request for SGLang that a request of the page stands for; raises `Refused`."""
    body = body if isinstance(body, dict) else {}
    messages, most, session = body.get("messages"), body.get("max_tokens"), body.get("session")
    if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
        raise Refused(400, "messages: not a list of objects with role and content")
    if type(most) is not int or not 1 <= most <= MOST_TOKENS:
        raise Refused(400, f"max_tokens: not a whole number from 1 to {MOST_TOKENS}")
    if not isinstance(session, str) or not 1 <= len(session) <= 128:
        raise Refused(400, "session: not a name of at most 128 characters")
    return {
        "model": "default",
        "messages": [{"role": each["role"], "content": each["content"]} for each in messages],
        "max_tokens": most,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_cached_tokens_details": True,
        "session_id": session,
    }


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return value.get("role") in ("system", "user", "assistant") and isinstance(value.get("content"), str)


def said(body: bytes) -> str:
    """Return what an error of SGLang says, in one line."""
    text = body.decode(errors="replace")
    with suppress(ValueError, AttributeError):
        answer = json.loads(text)
        error = answer.get("error", answer)
        text = str(error.get("message", error))
    return " ".join(text.split())[:500]


def main() -> int:
    parser = argparse.ArgumentParser(description="A page with several chats, on this machine only.")
    parser.add_argument("--url", default="http://127.0.0.1:30000", help="address of SGLang (default: %(default)s)")
    parser.add_argument("--key-file", type=Path, metavar="FILE", help="file with the key that SGLang asks for")
    parser.add_argument("--port", type=int, default=8765, help="of the page, 0 for a free one (default: %(default)s)")
    options = parser.parse_args()
    try:
        page = _page(options)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    with page, suppress(KeyboardInterrupt):
        print(f"open http://{page.names[0]}/ (Ctrl-C ends it)", flush=True)
        page.serve_forever()
    return 0


def _page(options: argparse.Namespace) -> Page:
    """Start listening; raises `ValueError` with a line that names the flag."""
    try:
        key = "" if options.key_file is None else options.key_file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise ValueError(f"--key-file {options.key_file}: {error}. Name a readable text file") from None
    upstream = Upstream(options.url, key)
    try:
        return Page(options.port, upstream)
    except (OSError, OverflowError) as error:
        raise ValueError(f"--port {options.port}: {error}. Take another one, or 0 for any that is free") from None


if __name__ == "__main__":
    sys.exit(main())
