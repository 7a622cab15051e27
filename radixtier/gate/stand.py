"""What the gates run against: a server with the tier, one without it where there is one, and what may be done to them.

Owns the interface. :class:`radixtier.gate.launched.LaunchedStand` starts its servers from a user's arguments,
:class:`radixtier.gate.attached.AttachedStand` uses a server that runs already. Invariant: no two prompts made with
:meth:`Stand.number` share a page, in this run or an earlier one, so what nobody asked before is cached nowhere. One
gate at a time uses a stand; :meth:`Stand.state` and :meth:`Stand.usage` may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from radixtier.live.processes import Usage
from radixtier.live.server import Server
from radixtier.load.answer import Piece
from radixtier.load.target import Target
from radixtier.store.paths import find_stores


class Unavailable(RuntimeError):
    """Something cannot be done on this stand; the text says why and what would help. Its check is skipped."""


def nothing() -> None:
    """Do just that."""


@dataclass
class Side:
    """One server of a stand.

    Attributes
    ----------
    name
        ``stock`` or ``tiered``.
    target
        What is asked; the same object for the whole run, also after a restart.
    server
        The process; None for a server that somebody else started.
    wake, rest
        What makes it ready to answer, and what lets the other side work undisturbed.
    """

    name: str
    target: Target
    server: Server | None = None
    wake: Callable[[], None] = nothing
    rest: Callable[[], None] = nothing
    _users: int = field(default=0, repr=False)

    @property
    def in_use(self) -> bool:
        """Whether somebody is inside :meth:`awake`."""
        return self._users > 0

    @contextmanager
    def awake(self) -> Iterator[Target]:
        """Have the server answer; may be nested."""
        if not self._users:
            self.wake()
        self._users += 1
        try:
            yield self.target
        finally:
            self._users -= 1
            if not self._users:
                self.rest()


@dataclass(frozen=True)
class Room:
    """What fits into a server, in tokens; None where it does not say."""

    prompt: int | None = None
    """Longest prompt with its answer."""
    hbm: int | None = None
    dram: int | None = None
    nvme: int | None = None
    page: int = 1


class Stand(Protocol):
    """The servers under test.

    Attributes
    ----------
    attached
        A user's server: nothing that hurts others is done to it unless ``disturb``.
    disturb
        Whether it may be flushed; only what the gate started is given faults, killed and restarted.
    directories
        Of the store, as far as this machine has them.
    tiered, stock
        The two sides; None for ``stock`` where there is no server without the tier.
    beside
        Whether the two sides may work in turns at little cost; else ``stock`` and ``tiered`` never run at once.
    model
        Directory of the model, where it is one.
    notes
        What a gate found out that a later one needs.
    """

    attached: bool
    disturb: bool
    directories: tuple[Path, ...]
    tiered: Side
    stock: Side | None
    beside: bool
    model: Path | None
    notes: dict[str, Any]

    def __enter__(self) -> Stand:
        """Begin; servers are started when they are first needed."""

    def __exit__(self, *_: object) -> None:
        """See :meth:`close`."""

    def close(self) -> None:
        """Stop what was started, and leave an attached server as it was."""

    def number(self) -> int:
        """Return a number for :meth:`radixtier.load.target.Target.piece` that no other call returned."""

    def room(self) -> Room:
        """Return what fits into the server with the tier."""

    def state(self) -> dict[str, Any] | None:
        """Return what the control endpoint tells; None where there is none or it does not answer."""

    def flush(self, side: Side) -> None:
        """Empty every tier of one side. Raises `Unavailable`."""

    def chill(self, paths: Sequence[Piece]) -> int:
        """Bring paths to NVMe alone and return how many of their tokens are there.

        Waits until they are written and have left DRAM and HBM, for a bounded time. A path is a prompt with what was
        answered: what is answered hangs below the prompt and keeps it in HBM. Raises `Unavailable`.
        """

    def lift(self, paths: Sequence[Piece]) -> None:
        """Bring cold paths up to DRAM and not to HBM, as far as there is room. Raises `Unavailable`."""

    def restart(self) -> float:
        """Stop and start the server with the tier on the same store; seconds until it answers. Raises `Unavailable`."""

    def kill(self, dead: Callable[[], object] = nothing) -> float:
        """The same after a ``kill -9``; ``dead`` is called between the two."""

    def misbehave(self, faults: str) -> None:
        """Give the drive these faults (:mod:`radixtier.io.live_faults`), none for ""; returns when they hold.

        Raises `Unavailable`.
        """

    def settle(self) -> bool:
        """Wait until what is in DRAM is on NVMe as far as admission lets it; False if it took too long."""

    def usage(self) -> Usage | None:
        """Return what the processes of the server with the tier use; None where they cannot be seen."""

    def store_bytes(self) -> int | None:
        """Return the bytes that the store takes on its drives; None where they cannot be seen."""

    def drop_page_cache(self) -> None:
        """Let the system forget what it keeps of the store's files in memory."""


def store_bytes(directories: Sequence[Path]) -> int | None:
    """Return the bytes allocated to all files below some directories; None unless each has a store."""
    if not directories or not all(_has_store(directory) for directory in directories):
        return None
    total = 0
    for directory in directories:
        for file in directory.rglob("*"):
            try:
                status = file.lstat()
            except OSError:
                continue
            total += status.st_blocks * 512
    return total


def _has_store(directory: Path) -> bool:
    try:
        return bool(find_stores(directory))
    except OSError:
        return False


def cap_bytes(state: Mapping[str, Any] | None) -> int | None:
    """Return the most bytes that the stores of all ranks may take, as the server says; None where it does not."""
    told = state or {}
    cap = (told.get("store") or {}).get("bytes_cap")
    if not isinstance(cap, (int, float)) or cap <= 0:
        return None
    shared = (told.get("store") or {}).get("shared")
    ranks = 1 if shared else (told.get("rank") or {}).get("size") or 1
    return int(cap) * int(ranks) * int((told.get("identity") or {}).get("pp_size") or 1)


def check_alive(side: Side) -> None:
    """Raise `ServerFailed` if the gate started this server and it is gone."""
    if side.server is not None and not side.server.running():
        raise side.server.failure("died")
