"""Starts a server from a command that a user wrote.

Owns the grammar of such a command: what begins with ``-`` are arguments of ``radixtier serve``, anything else is a
whole command line, with variables in front of it or not, in which ``{port}`` is replaced; where it does not stand,
``--host`` and ``--port`` are added. Main thread.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from radixtier.live.server import Server

PORT = "{port}"

_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*)", re.ASCII | re.DOTALL)
_OURS = ("--host", "--port")


class Command(NamedTuple):
    """A command, taken apart."""

    words: tuple[str, ...]
    env: Mapping[str, str]
    serve: bool
    """Whether the words are arguments of ``radixtier serve``."""


def parse(text: str) -> Command:
    """Take a command apart; `ValueError` says in one line what is wrong with it, and what to write."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no command line ({error}). Check its quotes.") from None
    env = {}
    while words and (match := _VARIABLE.fullmatch(words[0])):
        env[match[1]] = match[2]
        del words[0]
    if not words:
        raise ValueError(f"{text!r} is no command. Write arguments of radixtier serve, or a command line.")
    serve = words[0].startswith("-")
    names = [word.partition("=")[0] for word in words]
    for name in _OURS:
        if name in names and (serve or PORT not in text):
            raise ValueError(f"{name} is chosen here. Leave it out, or write --port {PORT} in a whole command line.")
    if serve and not {"--model-path", "--model", "--config"}.intersection(names):
        raise ValueError(f"{text!r} names no model. Add --model-path DIR.")
    if not serve and shutil.which(words[0]) is None:
        raise ValueError(f"there is no program {words[0]!r}. Arguments of radixtier serve begin with -.")
    return Command(tuple(words), env, serve)


class Launched(Server):
    """The server of a command; see :class:`radixtier.live.server.Server`."""

    def __init__(self, name: str, command: Command, log: Path) -> None:
        if command.serve:
            super().__init__(name, None, command.words, log, env=command.env)
            return
        super().__init__(name, None, (), log, env=command.env, command=command.words)
        if any(PORT in word for word in command.words):
            self._command = replaced(command.words, self.port)


def replaced(words: Sequence[str], port: int) -> list[str]:
    """Put the port where it is to stand."""
    return [word.replace(PORT, str(port)) for word in words]
