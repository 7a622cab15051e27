"""Chat with a running SGLang server in the terminal, and see which tier remembered the conversation.

    python examples/chat.py --url http://127.0.0.1:30000 [--document FILE]

After every answer one line tells how many tokens of the prompt came from HBM, DRAM and NVMe, how many had
to be computed, and how long the first token took. To see a conversation come back from a lower tier, chat
about something else for a while (``/new``, or another terminal), then return with ``/back``.

Commands: ``/new`` starts another conversation, ``/back N`` returns to conversation N, ``/quit`` ends. Ctrl-C
stops an answer. Conversation N is session ``NAME-N`` (``--session NAME``), so that ``radixtier hint`` and
``radixtier explain`` can name it. Reads plain lines when the input is not a terminal. Standard library only.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

from ask import Failed, Message, Server, add_server, count, open_server, read_text
from show import facts, printable


def main() -> int:
    parser = argparse.ArgumentParser(description="Chat with an SGLang server that runs radixtier.")
    add_server(parser)
    parser.add_argument("--document", type=Path, help="text file that every conversation starts with")
    parser.add_argument("--max-tokens", type=count, default=200, help="longest answer (default: %(default)s)")
    parser.add_argument("--session", metavar="NAME", help="name of the sessions (default: a random one)")
    options = parser.parse_args()
    try:
        server, _ = open_server(options)
        opening = [] if options.document is None else [_system(read_text(options.document, "--document"))]
        if note := server.without_tier():
            print(note)
        _chat(server, opening, options.max_tokens, options.session or f"chat-{secrets.token_hex(2)}")
    except Failed as failed:
        print(f"error: {failed}", file=sys.stderr)
        return 1
    return 0


def _chat(server: Server, opening: list[Message], max_tokens: int, name: str) -> None:
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
            print(f"conversation {wanted}, {len(conversations[current])} messages so far, session {name}-{wanted}")
            continue
        messages = [*conversations[current], {"role": "user", "content": line}]
        try:
            turn = server.ask(messages, max_tokens, session=f"{name}-{current + 1}", on_text=_show)
        except KeyboardInterrupt:
            print("\n(stopped; this turn is forgotten)")
            continue
        except Failed as failed:
            if not failed.status:
                raise
            print(f"error: {failed}")
            continue
        print(f"\n{facts(turn)}")
        conversations[current] = [*messages, {"role": "assistant", "content": turn.text}]


def _system(document: str) -> Message:
    return {"role": "system", "content": f"{document}\n\nYou answer questions about this text, briefly."}


def _show(piece: str) -> None:
    print(printable(piece), end="", flush=True)


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


if __name__ == "__main__":
    sys.exit(main())
