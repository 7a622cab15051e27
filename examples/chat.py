"""Chat with a running SGLang server in the terminal, and see which tier remembered the conversation.

    python examples/chat.py --url http://127.0.0.1:30000 [--document FILE]

After every answer one line tells how many tokens of the prompt came from HBM, DRAM and NVMe, how many had
to be computed, and how long the first token took. To see a conversation come back from a lower tier, chat
about something else for a while (``/new``, or another terminal), then return with ``/back``.

Commands: ``/new`` starts another conversation, ``/back N`` returns to conversation N, ``/quit`` ends. Reads
plain lines when the input is not a terminal. Standard library only.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TIMEOUT_S = 600.0


def main() -> int:
    parser = argparse.ArgumentParser(description="Chat with an SGLang server that runs radixtier.")
    parser.add_argument("--url", default="http://127.0.0.1:30000", help="address of the server")
    parser.add_argument("--document", type=Path, help="text file that every conversation starts with")
    parser.add_argument("--max-tokens", type=int, default=200, help="longest answer")
    options = parser.parse_args()
    opening = [] if options.document is None else [_system(options.document.read_text(encoding="utf-8"))]
    conversations = [list(opening)]
    current = 0
    for line in _lines():
        command, _, argument = line.partition(" ")
        if command == "/quit":
            break
        if command in ("/new", "/back"):
            if command == "/new":
                conversations.append(list(opening))
            wanted = argument.strip() if command == "/back" else str(len(conversations))
            if not wanted.isdecimal() or not 1 <= int(wanted) <= len(conversations):
                print(f"there are conversations 1 to {len(conversations)}: write /back N")
                continue
            current = int(wanted) - 1
            print(f"conversation {wanted}, {len(conversations[current])} messages so far")
            continue
        messages = [*conversations[current], {"role": "user", "content": line}]
        try:
            answer = _ask(options.url, messages, options.max_tokens)
        except urllib.error.HTTPError as error:
            print(f"error: {options.url} answered {error.code}: {error.read(500).decode(errors='replace')}")
            continue
        except (OSError, http.client.HTTPException, ValueError) as error:
            print(f"error: {options.url}: {error}", file=sys.stderr)
            return 1
        conversations[current] = [*messages, {"role": "assistant", "content": answer}]
    return 0


def _system(document: str) -> dict[str, str]:
    return {"role": "system", "content": f"{document}\n\nYou answer questions about this text, briefly."}


def _lines() -> Iterator[str]:
    """Yield what the user types, until the end of input."""
    interactive = sys.stdin.isatty()
    while True:
        try:
            line = input("you> " if interactive else "").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if line:
            yield line


def _ask(url: str, messages: list[dict[str, str]], max_tokens: int) -> str:
    """Stream one answer to the screen, then one line on where the prompt came from; return the answer."""
    body = {
        "model": "default",
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_cached_tokens_details": True,
    }
    answer, first = "", None
    prompt_tokens = 0
    cached: dict[str, Any] = {}
    started = time.perf_counter()
    for event in _events(f"{url.rstrip('/')}/v1/chat/completions", body):
        first = first or time.perf_counter() - started
        for choice in event.get("choices", ()):
            piece = choice["delta"].get("content") or ""
            print(piece, end="", flush=True)
            answer += piece
        if event.get("usage"):
            prompt_tokens = event["usage"]["prompt_tokens"]
        cached = (event.get("sglext") or {}).get("cached_tokens_details") or cached
    hbm, dram, nvme = cached.get("device", 0), cached.get("host", 0), cached.get("storage") or 0
    print(
        f"\n[HBM {hbm} | DRAM {dram} | NVMe {nvme} | recomputed {prompt_tokens - hbm - dram - nvme} tokens; "
        f"first token after {first or 0:.2f} s]"
    )
    return answer


def _events(url: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Send a request and yield its server-sent events."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        for line in response:
            if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
                event = json.loads(line[5:])
                if "error" in event:
                    raise ValueError(event["error"])
                yield event


if __name__ == "__main__":
    sys.exit(main())
