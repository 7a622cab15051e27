"""What the acceptance looks at: the directories, ranks, processes and sizes of the server under test.

Owns the reading of a server's own account (``/radixtier/state``) into one immutable object; what the account does not
tell is None or empty, and whoever needs it skips its check. Any thread.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from radixtier.gate.launched import values_of
from radixtier.gate.result import Check
from radixtier.gate.stand import Stand
from radixtier.live.client import Client, RequestFailed
from radixtier.store.header import HeaderError, read_header
from radixtier.store.paths import find_stores
from radixtier.tools.holders import lock_holders

ENGINE_FLAG = "--radix-tier-io-engine"


class Part(NamedTuple):
    """What one part of the acceptance found."""

    checks: list[Check]
    figures: dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """The server, as far as it can be seen from here.

    Attributes
    ----------
    attached
        Whether it is a user's own, and under load.
    directories
        Of its store, as it names them; empty where nobody does.
    state
        Its own account; empty without a control endpoint.
    ranks
        Processes that share the store's directories.
    pid
        One of its processes, on this machine; None where it runs elsewhere.
    device
        ``cpu``, ``cuda``, ...; "" where it does not tell.
    engine_asked
        The engine that its flags ask for.
    model
        Directory of its weights.
    """

    attached: bool = False
    directories: tuple[Path, ...] = ()
    state: Mapping[str, Any] = field(default_factory=dict)
    ranks: int = 1
    pid: int | None = None
    device: str = ""
    engine_asked: str = "auto"
    model: Path | None = None

    @property
    def local(self) -> tuple[Path, ...]:
        """Directories that can be looked into from here."""
        return tuple(path for path in self.directories if path.is_dir())

    @property
    def stores(self) -> int:
        """Ranks with a store of their own: all, or the first one, which stores for all."""
        return 1 if (self.state.get("store") or {}).get("shared") else self.ranks

    @property
    def page_bytes(self) -> int | None:
        """Bytes of a page on one rank: as the server says, else as its store does."""
        if told := self.state.get("page_bytes"):
            return int(told)
        for directory in self.local:
            for files in find_stores(directory):
                with suppress(OSError, HeaderError):
                    return read_header(files.slab).page_bytes
        return None

    @property
    def group(self) -> int | None:
        """The process group of the server."""
        with suppress(OSError):
            return None if self.pid is None else os.getpgid(self.pid)
        return None

    def tier_bytes(self, tier: str) -> int | None:
        """Bytes that a tier takes on all ranks together; None where the server does not tell."""
        tokens = self.state.get("tiers", {}).get(tier, {}).get("capacity")
        page_tokens, page_bytes = self.state.get("page_tokens"), self.state.get("page_bytes")
        if tokens is None or not page_tokens or not page_bytes:
            return None
        return int(tokens) // int(page_tokens) * int(page_bytes) * self.ranks


def look(stand: Stand) -> Subject:
    """Ask the server for its account, and find it among the processes of this machine."""
    state = stand.state() or {}
    told = server_info(stand.tiered.target.url)
    named = [Path(path) for path in state.get("directories") or ()]
    directories = tuple(named or stand.directories)
    server = stand.tiered.server
    pid = server.pid if server is not None and server.running() else _local_pid(state, directories)
    weights = Path(str(told.get("model_path") or ""))
    return Subject(
        attached=stand.attached,
        directories=directories,
        state=state,
        ranks=_ranks(state, told),
        pid=pid,
        device=str(told.get("device") or ""),
        engine_asked=engine_asked(_arguments(pid)),
        model=stand.model or (weights if weights.is_dir() and weights.name else None),
    )


def _ranks(state: Mapping[str, Any], told: Mapping[str, Any]) -> int:
    identity = state.get("identity") or {}
    tensor = (state.get("rank") or {}).get("size") or told.get("tp_size") or 1
    return int(tensor) * int(identity.get("pp_size") or told.get("pp_size") or 1)


def server_info(url: str) -> dict[str, Any]:
    """Return what SGLang tells about itself; empty where it does not answer."""
    with suppress(RequestFailed, OSError, ValueError):
        answer = json.loads(Client(url, timeout_s=30.0).call("GET", "/server_info"))
        return answer if isinstance(answer, dict) else {}
    return {}


def engine_asked(arguments: Sequence[str]) -> str:
    """Return the engine that a server's command line asks for."""
    return next(iter(values_of(arguments, ENGINE_FLAG)), "auto")


def command_line(pid: int | None) -> str:
    """Return the command line of a process of this machine, as a shell would take it; "" where it cannot be read."""
    return shlex.join(_arguments(pid))


def _arguments(pid: int | None) -> list[str]:
    with suppress(OSError):
        if pid is not None:
            text = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            return [word for word in text.split("\0") if word]
    return []


def _local_pid(state: Mapping[str, Any], directories: Sequence[Path]) -> int | None:
    """Return the pid by which a process holds the store's lock here; the account alone may come from elsewhere."""
    for directory in directories:
        with suppress(OSError):
            holders = {int(pid) for pid in lock_holders(directory).values() if pid.isdecimal()}
            told = state.get("pid")
            for pid in [told] if told in holders else sorted(holders):
                if Path(f"/proc/{pid}").is_dir():
                    return int(pid)
    return None
