"""What the documentation says, taken apart: pages, links, anchors, fenced blocks, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
SHELL = ("bash", "console", "sh", "shell")

_FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[[^\]]*\]\(([^)\s]+)\)")
_PICTURE = re.compile(r'<(?:img|source)\b[^>]*\bsrc(?:set)?="([^"]+)"')
_HEADING = re.compile(r"^#{1,6} (.+?)\s*$", re.MULTILINE)
_SUBSTITUTION = re.compile(r"\$\(([^()]*)\)")
_ASSIGNED = re.compile(r'(?:export )?([A-Za-z_]\w*)=("[^"$`]*"|[\w./~:-]+)')
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_REDIRECTION = re.compile(r"[<>]+&?")
_ENDS = {";", "&", "&&", "|", "||"}
_KEYWORDS = {"until", "while", "if", "then", "else", "do", "!", "exec", "sudo", "nohup"}
_CLOSERS = {"done", "fi", "{", "}"}


class Block(NamedTuple):
    """A fenced block."""

    page: Path
    line: int
    language: str
    text: str


class Command(NamedTuple):
    """A command as a shell would run it; ``where`` names page and line."""

    where: str
    words: tuple[str, ...]

    @property
    def line(self) -> str:
        return " ".join(self.words)


class Link(NamedTuple):
    """A link or an image in a page."""

    target: str
    image: bool


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path) -> Iterator[Block]:
    text = text_of(page)
    for found in _FENCE.finditer(text):
        yield Block(page, text.count("\n", 0, found.start()) + 2, found[1], found[2])


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", text_of(page))


def links(page: Path) -> list[Link]:
    without_code = re.sub(r"`[^`\n]*`", "", prose(page))
    pictures = [Link(target, True) for target in _PICTURE.findall(without_code)]
    return [Link(target, bool(image)) for image, target in _LINK.findall(without_code)] + pictures


def slug(heading: str) -> str:
    """The anchor that a repository's viewer gives a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    found: set[str] = set()
    for heading in _HEADING.findall(prose(page)):
        base = name = slug(heading)
        count = 0
        while name in found:
            count += 1
            name = f"{base}-{count}"
        found.add(name)
    return found | set(re.findall(r'<a (?:id|name)="([^"]+)"', prose(page)))


def commands(block: Block) -> Iterator[Command]:
    """The commands of a block of shell, substitutions included; what only assigns, or closes a loop, is none."""
    text = block.text
    if block.language == "console":
        text = "\n".join(line[2:] if line.startswith("$ ") else "" for line in text.split("\n"))
    variables: dict[str, str] = {}
    for number, line in _logical_lines(text):
        if assigned := _ASSIGNED.fullmatch(line.partition(" #")[0].strip()):
            variables[assigned[1]] = assigned[2].strip('"')
        for name, value in variables.items():
            line = re.sub(rf"\$({name}\b|{{{name}}})", lambda _, value=value: value, line)
        where = f"{name_of(block.page)}:{block.line + number}"
        for inner in _SUBSTITUTION.findall(line):
            yield from _split(where, inner)
        yield from _split(where, _SUBSTITUTION.sub("SUBSTITUTED", line))


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines as the shell sees them: continued ones joined, quotes closed, here-documents left out."""
    pending, start, document = "", 0, ""
    for number, line in enumerate(text.split("\n")):
        if document:
            document = "" if line.strip() == document else document
            continue
        start = start if pending else number
        pending += line
        if pending.endswith("\\"):
            pending = pending[:-1]
            continue
        if found := re.search(r"<<-?\s*['\"]?(\w+)['\"]?", pending):
            document, pending = found[1], pending[: found.start()]
        try:
            shlex.split(pending, comments=True)
        except ValueError:  # a quote is open
            pending += "\n"
            continue
        yield start, pending
        pending = ""
    assert not pending, f"an open quote in: {pending}"


def _split(where: str, line: str) -> Iterator[Command]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split = True
    words: list[str] = []
    skip = False
    for word in [*lexer, ";"]:
        if skip:
            skip = False
        elif _REDIRECTION.fullmatch(word):
            skip = True
            if words and words[-1] in ("1", "2"):
                words.pop()
        elif word in _ENDS:
            if command := _bare(words):
                yield Command(where, tuple(command))
            words = []
        else:
            words.append(word)


def _bare(words: list[str]) -> list[str]:
    """Without keywords and assignments in front; empty where nothing is left to run."""
    while words and (words[0] in _KEYWORDS or _ASSIGNMENT.match(words[0])):
        words = words[1:]
    return [] if not words or words[0] in {*_CLOSERS, "for"} else words
