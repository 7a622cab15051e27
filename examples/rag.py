"""Many questions about a few documents: each document is computed once, and the hot ones are shared.

    export RADIXTIER_CONTROL=unix:STORE/radixtier.sock
    python examples/rag.py --url http://127.0.0.1:30000 [--document FILE ...] [--no-hints]

Every prompt starts with one document (the system prompt) and ends with a question, so all questions about a document
share its prefix. First each document is asked about once, then questions follow in random order; ``--hot`` documents
get half of them. When a hot document is known to the server, the tier hears that it is shared: it then stays in DRAM
even while HBM has it, and is written to NVMe whatever the admission policy says. The hint names the document by its
tokens, which the server's tokenizer tells.

Without ``--document`` the project's own documentation is asked about. Documents of earlier runs are found again, also
after a restart of the server; ``--fresh`` makes them new. Standard library only.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path
from typing import Any

from ask import Failed, Message, Server, Turn, add_server, count, open_server, read_text
from hints import Hints, add_hints, open_hints
from show import HEADER, badge, split, summary, table

DOCUMENTS = Path(__file__).parents[1] / "docs"
MOST = 12
"""Of these documents: enough that HBM and DRAM of the demo's server cannot hold them."""

QUESTIONS = (
    "What is this text about?",
    "Which numbers does it name?",
    "What does it warn of?",
    "Which words does it explain?",
    "What should one do first?",
    "What is the last thing it says?",
)


class Document:
    """A text with the turns that were about it."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.opening: list[Message] = [
            {"role": "system", "content": f"{text}\n\nYou answer questions about this text, briefly."}
        ]
        self.turns: list[Turn] = []

    def ask(self, server: Server, question: str, max_tokens: int) -> Turn:
        """Ask and remember."""
        turn = server.ask([*self.opening, {"role": "user", "content": question}], max_tokens)
        self.turns.append(turn)
        return turn

    def share(self, server: Server, hints: Hints) -> str:
        """Tell the tier that many requests will start with this document; returns what became of it."""
        return hints.give("share", tokens=server.tokens(self.opening), ttl_s=3600.0)


def main() -> int:
    options = _parser().parse_args()
    try:
        server, key = open_server(options)
        if note := server.without_tier():
            print(note)
        hints = open_hints(options, key)
        documents = _documents(options)
        _run(server, hints, documents, options)
    except Failed as failed:
        print(f"error: {failed}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    _report(documents)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Questions about shared documents, with hints for the hot ones.")
    add_server(parser)
    add_hints(parser)
    number: dict[str, Any] = {"type": count, "metavar": "N"}
    files = "a text file (default: the project's documentation)"
    parser.add_argument("--document", type=Path, nargs="+", metavar="FILE", help=files)
    parser.add_argument("--words", **number, default=700, help="words of each document (default: %(default)s)")
    parser.add_argument("--questions", **number, default=24, help="after the first ones (default: %(default)s)")
    parser.add_argument("--hot", **number, default=1, help="documents that get half of them (default: %(default)s)")
    parser.add_argument("--max-tokens", **number, default=24, help="longest answer (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the order of questions (default: %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="make the documents new to the server")
    return parser


def _documents(options: argparse.Namespace) -> list[Document]:
    """Read the documents, the hot ones first."""
    files = options.document or sorted(DOCUMENTS.glob("*.md"))[:MOST]
    if len(files) <= options.hot:
        raise Failed(f"--hot {options.hot}: there are {len(files)} documents. Name more, or a smaller number")
    front = f"Read at {time.strftime('%H:%M:%S')}, {random.randrange(16**4):04x}.\n" if options.fresh else ""
    return [
        Document(file.name, front + " ".join(read_text(file, "--document").split()[: options.words])) for file in files
    ]


def _run(server: Server, hints: Hints | None, documents: list[Document], options: argparse.Namespace) -> None:
    chance = random.Random(options.seed)
    print(f"{len(documents)} documents; hot: {', '.join(each.name for each in documents[: options.hot])}")
    for document in documents:
        _show(document, document.ask(server, QUESTIONS[0], options.max_tokens))
    if hints is not None:
        for document in documents[: options.hot]:
            print(f"{document.name}: {document.share(server, hints)}")
    for _ in range(options.questions):
        hot = chance.random() < 0.5
        document = chance.choice(documents[: options.hot] if hot else documents[options.hot :])
        # The number makes every question another one, so that no answer is cached as a whole.
        question = f"{chance.choice(QUESTIONS)} ({len(document.turns)})"
        _show(document, document.ask(server, question, options.max_tokens))


def _show(document: Document, turn: Turn) -> None:
    print(
        f"{document.name:20.20}  {badge(turn)}  {split(turn)} tokens; first token after {turn.ttft_s:.2f} s", flush=True
    )


def _report(documents: list[Document]) -> None:
    print("\nthe later questions, and the first one of each document:")
    rows: list[tuple[str, ...]] = [("document", *HEADER, "the first time")]
    rows += [(each.name, *summary(each.turns[1:]), *summary(each.turns[:1])[-1:]) for each in documents]
    first = [each.turns[0] for each in documents]
    later = [turn for each in documents for turn in each.turns[1:]]
    rows += [("all", *summary(later), *summary(first)[-1:])]
    print("\n".join(table(rows)))


if __name__ == "__main__":
    sys.exit(main())
