"""Runs examples/chat_web/server.py, and asks it by hand."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from examples_stub import EXAMPLES, PATIENCE_S

SERVER = EXAMPLES / "chat_web" / "server.py"


@contextmanager
def web_page(url: str, *arguments: str) -> Iterator[str]:
    """Serve the page for an SGLang server; yields its address."""
    command = [sys.executable, "-W", "error", str(SERVER), "--url", url, "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("open http://127.0.0.1:"), line
            yield line.split()[1]
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def send(
    page: str, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """Send a request as given, and wait for the head of the answer."""
    parts = urlsplit(page)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE_S)
    data = body if body is None or isinstance(body, (str, bytes)) else json.dumps(body)
    connection.request(method, path, data, {"Content-Type": "application/json"} | dict(headers or {}))
    return connection, connection.getresponse()


def fetch(page: str, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """Send a request; returns status and JSON, or text where it is none."""
    connection, response = send(page, method, path, body, headers)
    text = response.read().decode()
    connection.close()
    return response.status, json.loads(text) if response.headers["Content-Type"] == "application/json" else text


def chat(*words: str, **fields: Any) -> dict[str, Any]:
    """A request of the page."""
    messages = [{"role": ("user", "assistant")[at % 2], "content": word} for at, word in enumerate(words)]
    return {"messages": messages, "max_tokens": 9, "session": "s"} | fields
