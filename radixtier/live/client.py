"""Talks to a running SGLang server over HTTP and tells which tier the prompt came from.

Owns the address and the sockets of requests under way. Invariant: every call is bounded by the timeout; what a
:class:`Reply` says was reported by the server, only times are taken here; after :meth:`Client.hang_up` no request is
under way and none starts. Any thread, many at once. Standard library only.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

Message = dict[str, str]
"""``{"role": ..., "content": ...}`` of OpenAI's chat format."""


_PORTS = {"http": 80, "https": 443}


class RequestFailed(RuntimeError):
    """The server answered with an error, or not at all."""


class Refused(RequestFailed):
    """The server answered with an error.

    Attributes
    ----------
    status
        Of HTTP.
    """

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Reply:
    """One answered request.

    Attributes
    ----------
    text : str
        What the model said.
    prompt_tokens, hbm, dram, nvme : int
        Tokens of the prompt, and how many of them each tier delivered.
    output_ids : tuple of int
        Tokens of the answer.
    prompt_ids : tuple of int
        Tokens of the prompt; empty where the server was not asked for them.
    ttft_s, total_s : float
        Seconds from sending the request to the first token, and to the end of the answer.
    """

    text: str
    prompt_tokens: int
    hbm: int
    dram: int
    nvme: int
    output_ids: tuple[int, ...]
    prompt_ids: tuple[int, ...]
    ttft_s: float
    total_s: float

    @property
    def cached(self) -> int:
        """Tokens of the prompt that some tier delivered."""
        return self.hbm + self.dram + self.nvme

    @property
    def recomputed(self) -> int:
        """Tokens of the prompt that went through prefill."""
        return self.prompt_tokens - self.cached


class Client:
    """A server's address, with the few calls that the demo, the loads and the tests need.

    Parameters
    ----------
    url
        For example ``http://127.0.0.1:30000``, ``https://host/base`` or ``https://host/base/v1``: paths of requests go
        behind ``base``.
    timeout_s
        Longest silence of the server, seconds.
    api_key
        Sent as a bearer token; "" for none.

    Raises
    ------
    ValueError
        The URL is none of http or https, in one line.
    """

    def __init__(self, url: str, timeout_s: float = 300.0, api_key: str = "") -> None:
        self.url = url
        self.hung_up = False
        self._host, self._port, self._base, self._tls = _parts(url)
        self._timeout_s = timeout_s
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()

    def hang_up(self) -> None:
        """End every request that is under way, as a client that goes away does, and refuse new ones."""
        with self._lock:
            self.hung_up = True
            for each in self._sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def chat(self, messages: Sequence[Message], max_tokens: int, on_text: Callable[[str], None] | None = None) -> Reply:
        """Answer a chat greedily through ``/v1/chat/completions``; ``on_text`` gets the answer piece by piece."""
        body = {
            "model": "default",
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_cached_tokens_details": True,
            "return_input_ids_in_sglext": True,
            "return_output_ids_in_sglext": True,
        }
        text = ""
        usage: dict[str, int] = {}
        extras: dict[str, Any] = {}
        started = time.perf_counter()
        first = None
        for event in self.stream("/v1/chat/completions", body):
            first = first or time.perf_counter()
            for choice in event["choices"]:
                piece = choice["delta"].get("content") or ""
                text += piece
                if piece and on_text is not None:
                    on_text(piece)
            usage = event.get("usage") or usage
            extras |= {name: value for name, value in (event.get("sglext") or {}).items() if value is not None}
        ended = time.perf_counter()
        return _reply(
            text,
            usage["prompt_tokens"],
            extras.get("cached_tokens_details"),
            output_ids=extras["output_ids"][0],
            prompt_ids=extras["input_ids"],
            times=(started, first or ended, ended),
        )

    def generate(self, prompt_ids: Sequence[int], max_tokens: int, **fields: Any) -> Reply:
        """Continue a prompt of exact tokens greedily through ``/generate``; ``fields`` go into the request."""
        sampling = {"temperature": 0, "max_new_tokens": max_tokens, "ignore_eos": True}
        body = {"input_ids": list(prompt_ids), "sampling_params": sampling, "stream": True, **fields}
        started = time.perf_counter()
        first, event = None, {}
        for event in self.stream("/generate", body):  # noqa: B007 the last event says it all
            first = first or time.perf_counter()
        ended = time.perf_counter()
        meta = event["meta_info"]
        return _reply(
            event["text"],
            meta["prompt_tokens"],
            meta.get("cached_tokens_details"),
            output_ids=event["output_ids"],
            prompt_ids=prompt_ids,
            times=(started, first or ended, ended),
        )

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a text, without special ones."""
        answer = self.call("POST", "/v1/tokenize", {"prompt": text, "add_special_tokens": False})
        tokens: list[int] = json.loads(answer)["tokens"]
        return tokens

    def flush(self, wait_s: float = 30.0) -> None:
        """Empty every tier, waiting up to ``wait_s`` seconds for running requests."""
        self.call("POST", f"/flush_cache?timeout={wait_s}")

    def healthy(self) -> bool:
        """Whether the server is up and accepts requests."""
        try:
            self.call("GET", "/health")
        except (RequestFailed, OSError):
            return False
        return True

    def version(self) -> str:
        """Return the version of SGLang that the server runs."""
        return str(json.loads(self.call("GET", "/server_info"))["version"])

    def call(self, method: str, path: str, body: Any = None) -> bytes:
        """Send one request and return the whole answer.

        Raises
        ------
        RequestFailed
            The status was not 200.
        """
        with self._open(method, path, body) as response:
            content: bytes = response.read()
            return content

    def stream(self, path: str, body: Any) -> Generator[dict[str, Any], None, None]:
        """Send one request and yield its server-sent events; closing the iterator early aborts the request.

        Raises
        ------
        RequestFailed
            The status was not 200, an event reports an error, or the stream ended early.
        """
        with self._open("POST", path, body) as response:
            for line in response:
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                event: dict[str, Any] = json.loads(data)
                if "error" in event:
                    raise RequestFailed(f"{path}: {event['error']}")
                yield event
        raise RequestFailed(f"{path}: the answer ended in the middle")

    @contextmanager
    def _open(self, method: str, path: str, body: Any) -> Iterator[http.client.HTTPResponse]:
        kind = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self._timeout_s)
        sock: socket.socket | None = None
        try:
            connection.connect()
            sock = connection.sock
            with self._lock:
                if self.hung_up:
                    raise RequestFailed("hung up")
                self._sockets.add(sock)
            data = None if body is None else json.dumps(body)
            connection.request(method, self._base + path, data, self._headers)
            response = connection.getresponse()
            if response.status != 200:
                detail = " ".join(response.read(2000).decode(errors="replace").split())
                raise Refused(f"{method} {path}: status {response.status}: {detail}", response.status)
            yield response
        except http.client.HTTPException as error:
            raise RequestFailed(f"{method} {path}: {error!r}") from error
        finally:
            with self._lock:
                self._sockets.discard(sock)
            connection.close()


def _parts(url: str) -> tuple[str, int, str, bool]:
    """Return host, port, base path without ``/v1``, and whether it is https."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{url!r} is no URL ({error}). Write http://127.0.0.1:30000 or https://host/v1.") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"{url!r} is no URL of a server. Write http://127.0.0.1:30000 or https://host/v1.")
    if "@" in parts.netloc:
        raise ValueError("the URL has a user in front of the host. Leave it out, and give the key with --api-key.")
    base = parts.path.rstrip("/")
    base = base[: -len("/v1")] if base.endswith("/v1") else base
    return parts.hostname, port or _PORTS[parts.scheme], base, parts.scheme == "https"


def _reply(
    text: str,
    prompt_tokens: int,
    details: dict[str, int] | None,
    *,
    output_ids: Sequence[int],
    prompt_ids: Sequence[int],
    times: tuple[float, float, float],
) -> Reply:
    details = details or {}
    started, first, ended = times
    return Reply(
        text=text,
        prompt_tokens=prompt_tokens,
        hbm=details.get("device", 0),
        dram=details.get("host", 0),
        nvme=details.get("storage") or 0,
        output_ids=tuple(output_ids),
        prompt_ids=tuple(prompt_ids),
        ttft_s=first - started,
        total_s=ended - started,
    )
