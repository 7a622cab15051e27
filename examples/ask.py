"""Asks an SGLang server, and reads from the answer which tier the prompt came from. Shared by the examples.

Owns the requests: OpenAI's chat API, streamed, with three fields that SGLang adds. ``return_cached_tokens_details``
makes it tell the tiers, ``session_id`` names the conversation for hints and predictions, and ``stream_options`` is
asked for the length of the prompt. Any thread, many at once. Standard library only.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TIMEOUT_S = 600.0
"""Longest silence of a server, seconds; a long prompt on a slow machine takes minutes."""

Message = dict[str, Any]
"""``{"role": ..., "content": ...}`` of OpenAI's chat format."""


class Failed(Exception):
    """The server said no, or nothing; the text is one line for the user.

    Attributes
    ----------
    status : int
        Of HTTP, 0 when there was no answer.
    """

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(" ".join(text.split()))
        self.status = status


@dataclass(frozen=True)
class Turn:
    """One answer.

    Attributes
    ----------
    text : str
        What the model said.
    prompt_tokens, hbm, dram, nvme : int
        Tokens of the prompt, and how many of them came from each tier.
    ttft_s : float
        Seconds from sending the request to the first piece of the answer.
    tool_calls : list of dict
        What the model wants to have called, in OpenAI's format.
    """

    text: str
    prompt_tokens: int
    hbm: int
    dram: int
    nvme: int
    ttft_s: float
    tool_calls: list[dict[str, Any]] = field(default_factory=list)

    @property
    def parts(self) -> dict[str, int]:
        """Tokens of the prompt by where they came from."""
        computed = max(0, self.prompt_tokens - self.hbm - self.dram - self.nvme)
        return {"HBM": self.hbm, "DRAM": self.dram, "NVMe": self.nvme, "computed": computed}


class Server:
    """One SGLang server.

    Parameters
    ----------
    url
        Such as ``http://127.0.0.1:30000``; a ``/v1`` at its end does no harm.
    key
        What the server was started with as ``--api-key``; None for none.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise Failed(f"--url {url}: not the address of a server. Write http://127.0.0.1:30000")
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        # Straight to the server: a proxy of the environment might gather the pieces of an answer.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def without_tier(self) -> str:
        """Return a line that says why no tiers will be told; "" for a server with the tier."""
        try:
            info = self.call("/server_info")
        except Failed as failed:
            if failed.status != 404:
                raise
            return f"{self.url} is no SGLang server: it does not tell which tier answered."
        if info.get("radix_cache_backend") != "radixtier":
            return f"{self.url} runs without the tier (--enable-radix-tier): nothing will come from DRAM or NVMe."
        return ""

    def ask(
        self,
        messages: Sequence[Message],
        max_tokens: int,
        *,
        session: str | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        on_text: Callable[[str], None] | None = None,
    ) -> Turn:
        """Answer a chat, greedily; ``on_text`` gets the answer piece by piece. Raises `Failed`."""
        body: dict[str, Any] = {
            "model": "default",
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_cached_tokens_details": True,
        }
        body |= {"session_id": session} if session else {}
        body |= {"tools": list(tools)} if tools else {}
        text, first = "", 0.0
        calls: dict[int, dict[str, Any]] = {}
        usage: dict[str, Any] = {}
        cached: dict[str, Any] = {}
        started = time.perf_counter()
        for event in self._events("/v1/chat/completions", body):
            first = first or time.perf_counter()
            for choice in event.get("choices") or ():
                delta = choice.get("delta") or {}
                for call in delta.get("tool_calls") or ():
                    _add_call(calls, call)
                if piece := delta.get("content") or "":
                    text += piece
                    if on_text is not None:
                        on_text(piece)
            usage = event.get("usage") or usage
            # Only there when something was cached.
            cached = (event.get("sglext") or {}).get("cached_tokens_details") or cached
        return Turn(
            text,
            usage.get("prompt_tokens") or 0,
            cached.get("device") or 0,
            cached.get("host") or 0,
            cached.get("storage") or 0,
            (first or time.perf_counter()) - started,
            [calls[index] for index in sorted(calls)],
        )

    def tokens(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens that a prompt with these messages starts with. Raises `Failed`."""
        answer = self.call("/v1/tokenize", {"messages": list(messages), "add_generation_prompt": False})
        tokens: list[int] = answer["tokens"]
        return tokens

    def call(self, path: str, body: Any = None) -> dict[str, Any]:
        """Make one request and return the answer's JSON object. Raises `Failed`."""
        try:
            with self._open(path, body) as response:
                answer = json.load(response)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _failed(self.url, path, error) from None
        if not isinstance(answer, dict):
            raise Failed(f"{self.url}{path}: the answer is no JSON object; is it an SGLang server?")
        return answer

    def _events(self, path: str, body: Any) -> Iterator[dict[str, Any]]:
        """Yield the server-sent events of an answer; closing the iterator early ends the request."""
        try:
            with self._open(path, body) as response:
                for line in response:
                    if not line.startswith(b"data:"):
                        continue
                    if (data := line[5:].strip()) == b"[DONE]":
                        return
                    event = json.loads(data)
                    if "error" in event:
                        raise Failed(f"{self.url}: {_message(event['error'])}", 500)
                    yield event
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _failed(self.url, path, error) from None
        raise Failed(f"{self.url}{path}: the answer ended in the middle")

    def _open(self, path: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, self._headers)
        return self._opener.open(request, timeout=TIMEOUT_S)


def add_server(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name a server."""
    parser.add_argument("--url", default="http://127.0.0.1:30000", help="address of the server (default: %(default)s)")
    parser.add_argument("--key-file", type=Path, metavar="FILE", help="file with the key that the server asks for")


def open_server(options: argparse.Namespace) -> tuple[Server, str | None]:
    """Return the server that the arguments name, and its key. Raises `Failed`."""
    key = None if options.key_file is None else read_text(options.key_file, "--key-file").strip()
    return Server(options.url, key), key


def read_text(file: Path, flag: str) -> str:
    """Return the text of a file that a flag names; raises `Failed` with the flag, the file and why."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text in UTF-8"
        raise Failed(f"{flag} {os.fspath(file)}: {why}. Name a readable text file") from None


def count(text: str) -> int:
    """Read a whole number above 0, for argparse."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _add_call(calls: dict[int, dict[str, Any]], piece: Mapping[str, Any]) -> None:
    """Join a call to a tool from the pieces it is streamed in."""
    call = calls.setdefault(piece.get("index") or 0, {"id": "", "type": "function", "function": {}})
    call["id"] = piece.get("id") or call["id"]
    for name in ("name", "arguments"):
        part = (piece.get("function") or {}).get(name) or ""
        call["function"][name] = call["function"].get(name, "") + part


def _failed(url: str, path: str, error: Exception) -> Failed:
    if isinstance(error, urllib.error.HTTPError):
        with error:
            text = error.read(2000).decode(errors="replace")
        return Failed(f"{url}{path} answered {error.code}: {_message(text)[:500]}", error.code)
    if isinstance(error, urllib.error.URLError):
        return Failed(f"no server answers at {url}: {error.reason}. Start it, or name it with --url")
    return Failed(f"{url}{path}: {error or type(error).__name__}")


def _message(error: Any) -> str:
    """Return what an error of the server says, of JSON or not."""
    if isinstance(error, str):
        try:
            error = json.loads(error)
        except ValueError:
            return str(error)
    if isinstance(error, dict):
        inner = error.get("message") or error.get("error")
        return _message(inner) if isinstance(inner, dict) else str(inner or error)
    return str(error)
