"""A stand of servers that the gate starts itself, from a user's arguments: stock SGLang, and SGLang with the tier.

Owns both processes, their logs and the faults file, all below one directory. Invariant: what is started here is stopped
by :meth:`LaunchedStand.close`. On a CPU both servers stay up, and the one that does not work is stopped by a signal;
elsewhere (``apart``) only one runs at a time, since a second model does not fit. The stock server gets the same
arguments without the tier's, and as many tokens of HBM. Main thread, but for what :mod:`radixtier.gate.stand` allows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from radixtier.control.address import Address, parse_address
from radixtier.control.client import ControlClient, ControlError
from radixtier.gate import cooling
from radixtier.gate.profiles import Plan
from radixtier.gate.progress import Progress
from radixtier.gate.stand import Room, Side, nothing, store_bytes
from radixtier.io.live_faults import VARIABLE
from radixtier.live.client import Client, RequestFailed
from radixtier.live.faults import SEEN_S, write_faults
from radixtier.live.page_cache import drop
from radixtier.live.processes import Usage, measured
from radixtier.live.server import Server
from radixtier.load.answer import Piece
from radixtier.load.target import SglangTarget
from radixtier.units import BadValue, Unit, parse_size

_ENABLE, _TIER = "--enable-radix-tier", "--radix-tier-"
_HBM, _NVME_PATH, _CONTROL = "--radix-tier-hbm-size", "--radix-tier-nvme-path", "--radix-tier-control"
_KEYS = ("--api-key", "--admin-api-key")
_SCRUB = "--radix-tier-scrub"
"""Is switched off where servers are stopped by a signal: a read under way would look like one that the drive left
hanging, and its page would be given up."""

_SOCKET = "radixtier.sock"


def values_of(flags: Sequence[str], *names: str) -> list[str]:
    """Return the values of the last of some flags that is given; empty where none is."""
    found: list[str] = []
    for at, word in enumerate(flags):
        name, equals, value = word.partition("=")
        if name in names:
            found = [value] if equals else _operands(flags[at + 1 :])
    return found


def without_tier(flags: Sequence[str]) -> list[str]:
    """Return a server's arguments without those of the tier."""
    kept: list[str] = []
    at = 0
    while at < len(flags):
        word, at = flags[at], at + 1
        if word.startswith((_ENABLE, _TIER)):
            at += 0 if "=" in word or word == _ENABLE else len(_operands(flags[at:]))
        else:
            kept.append(word)
    return kept


def _operands(words: Sequence[str]) -> list[str]:
    end = next((at for at, word in enumerate(words) if word.startswith("--")), len(words))
    return list(words[:end])


def check_flags(flags: Sequence[str]) -> None:
    """Check that arguments are those of a server with a store, which the gate can ask.

    Raises
    ------
    BadValue
        Saying what is missing, or which flag has which value that cannot be used.
    """
    if _ENABLE not in flags:
        raise BadValue(f"no {_ENABLE} among the server's arguments", f"Add {_ENABLE}, and flags for its tiers")
    if not values_of(flags, _NVME_PATH):
        raise BadValue(f"no {_NVME_PATH} among the server's arguments", f"Add {_NVME_PATH} DIRECTORY")
    if not values_of(flags, "--model-path", "--model"):
        raise BadValue("no --model-path among the server's arguments", "Add --model-path DIRECTORY")
    for word in flags:
        if (name := word.partition("=")[0]) in _KEYS:
            raise BadValue(f"{name}: the gate asks its servers without a key", f"Leave out {name}: they are local")
    _address(flags)
    _tokens(flags)


class LaunchedStand:
    """See :class:`radixtier.gate.stand.Stand`; nothing is started before it is needed.

    Parameters
    ----------
    flags
        The server's arguments, the tier's among them, without address and port.
    scratch
        An existing directory for logs and the faults file.
    apart
        Whether only one server may run at a time; None for that unless the device is a CPU.
    command
        What starts a server, for tests.

    Raises
    ------
    BadValue
        The arguments are not those of a server with a store.
    """

    attached = False
    disturb = True

    def __init__(
        self,
        flags: Sequence[str],
        plan: Plan,
        scratch: Path,
        say: Progress,
        *,
        apart: bool | None = None,
        command: Sequence[str] | None = None,
    ) -> None:
        check_flags(flags)
        self._flags = list(flags)
        self._plan = plan
        self._say = say
        self._scratch = scratch
        self._faults = scratch / "faults"
        write_faults(self._faults, "")
        self._numbers = time.time_ns()
        self._logs = self._page = 0
        self._hbm_tokens = _tokens(flags)
        self.notes: dict[str, Any] = {}
        device = values_of(flags, "--device")
        self.beside = not (device != ["cpu"] if apart is None else apart)
        if self.beside and not values_of(flags, _SCRUB):
            self._flags += [_SCRUB, "0"]
        self.directories = tuple(Path(path).absolute() for path in values_of(flags, _NVME_PATH))
        named = Path(values_of(flags, "--model-path", "--model")[0])
        self.model = named.absolute() if named.is_dir() else None
        self.commands: dict[str, list[str]] = {}
        """Arguments of each server, for the report."""
        self.tiered = self._side("tiered", self._flags, {VARIABLE: f"@{self._faults}"}, command)
        self._stock = self._side("stock", [], {}, command)
        self._command = command
        self.stock: Side | None = self._stock
        self.control = ControlClient(_address(flags))

    # ---- servers -------------------------------------------------------------------------------------------------

    def _side(self, name: str, flags: Sequence[str], env: Mapping[str, str], command: Sequence[str] | None) -> Side:
        server = Server(name, None, flags, self._scratch / f"{name}.log", env, command)
        side = Side(name, SglangTarget(server.url), server)
        side.wake = lambda: self._wake(side)
        side.rest = lambda: self._rest(side)
        return side

    def _wake(self, side: Side) -> None:
        other = self.tiered if side is self._stock else self._stock
        if not self.beside:
            if other.in_use:
                raise RuntimeError(f"{other.name} is at work: both servers do not fit on this machine")
            self._stop(other)
        assert side.server is not None
        if side.server.running():
            side.server.resume()
            return
        if side is self._stock:
            self._prepare_stock()
        self._start(side)

    def _rest(self, side: Side) -> None:
        assert side.server is not None
        if self.beside:
            side.server.pause()

    def _prepare_stock(self) -> None:
        """Give the stock server its arguments; as many tokens of HBM as the one with the tier has, if it was told."""
        flags = without_tier(self._flags)
        if values_of(self._flags, _HBM):
            if self._hbm_tokens is None:
                with self.tiered.awake():
                    self._hbm_tokens = self.room().hbm
                if not self.beside:
                    self._stop(self.tiered)
            if self._hbm_tokens is not None:
                flags += ["--max-total-tokens", str(self._hbm_tokens)]
        if not values_of(flags, "--page-size") and (page := values_of(self._flags, "--page-size")):
            flags += ["--page-size", *page]
        server = Server("stock", None, flags, self._scratch / "stock.log", {}, self._command)
        self._stock.server = server
        self._stock.target = SglangTarget(server.url)
        self.commands["stock"] = flags

    def _start(self, side: Side) -> float:
        server = side.server
        assert server is not None
        if server.log.exists():
            self._logs += 1
            server.log.rename(server.log.with_name(f"{server.log.stem}-{self._logs}.log"))
        if side is self.tiered:
            self.commands["tiered"] = self._flags
        self._say.step(f"starting {side.name}")
        began = time.monotonic()
        server.start()
        seconds = time.monotonic() - began
        for tokens in self._plan.warm_up:
            side.target.ask(side.target.piece(tokens, self.number()), 4)
        return seconds

    def _stop(self, side: Side) -> None:
        if side.server is not None and side.server.running():
            self._say.step(f"stopping {side.name}")
            side.server.stop()

    def restart(self) -> float:
        """See :meth:`Stand.restart`."""
        self._stop(self.tiered)
        return self._start(self.tiered)

    def kill(self, dead: Callable[[], object] = nothing) -> float:
        """See :meth:`Stand.kill`."""
        assert self.tiered.server is not None
        self.tiered.server.kill()
        dead()
        return self._start(self.tiered)

    def close(self) -> None:
        """Stop both servers."""
        for side in (self._stock, self.tiered):
            self._stop(side)

    def __enter__(self) -> LaunchedStand:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- what they are asked -------------------------------------------------------------------------------------

    def number(self) -> int:
        """See :meth:`Stand.number`."""
        self._numbers += 1
        return self._numbers

    def room(self) -> Room:
        """See :meth:`Stand.room`."""
        return room(self.tiered.target.url, self.state())

    def state(self) -> dict[str, Any] | None:
        """See :meth:`Stand.state`."""
        try:
            return self.control.state()
        except ControlError:
            return None

    def flush(self, side: Side) -> None:
        """See :meth:`Stand.flush`."""
        Client(side.target.url).flush()

    def chill(self, paths: Sequence[Piece]) -> int:
        """See :meth:`Stand.chill`."""
        if not self._page:
            self._page = int((self.state() or {}).get("page_tokens", 0))
        return cooling.chill(self.control, token_paths(paths), self._page or 1)

    def lift(self, paths: Sequence[Piece]) -> None:
        """See :meth:`Stand.lift`."""
        cooling.lift(self.control, token_paths(paths))

    def settle(self) -> bool:
        """See :meth:`Stand.settle`."""
        return cooling.settle(self.control)

    def misbehave(self, faults: str) -> None:
        """See :meth:`Stand.misbehave`."""
        write_faults(self._faults, faults)
        time.sleep(SEEN_S)

    def usage(self) -> Usage | None:
        """See :meth:`Stand.usage`."""
        server = self.tiered.server
        return measured(server.pid) if server is not None and server.running() else None

    def store_bytes(self) -> int | None:
        """See :meth:`Stand.store_bytes`."""
        return store_bytes(self.directories)

    def drop_page_cache(self) -> None:
        """See :meth:`Stand.drop_page_cache`."""
        for directory in self.directories:
            with suppress(OSError):
                drop(directory)


def room(url: str, state: Mapping[str, Any] | None, api_key: str = "") -> Room:
    """Return what fits into a server, from what it tells of itself."""
    try:
        told = json.loads(Client(url, timeout_s=30.0, api_key=api_key).call("GET", "/server_info"))
    except (RequestFailed, OSError, ValueError):
        told = {}
    tiers = (state or {}).get("tiers", {})
    sizes = {name: tiers.get(name, {}).get("capacity") for name in ("hbm", "dram", "nvme")}
    return Room(
        prompt=told.get("max_req_input_len"),
        hbm=sizes["hbm"] or told.get("max_total_num_tokens"),
        dram=sizes["dram"],
        nvme=sizes["nvme"],
        page=int((state or {}).get("page_tokens", 1)),
    )


def token_paths(paths: Sequence[Piece]) -> list[Sequence[int]]:
    return [path for path in paths if not isinstance(path, str)]


def _address(flags: Sequence[str]) -> Address:
    """Where a server with these arguments listens for the gate."""
    if not (given := values_of(flags, _CONTROL)):
        return Address(path=str(Path(values_of(flags, _NVME_PATH)[0]).absolute() / _SOCKET))
    try:
        address = parse_address(given[0])
    except BadValue as error:
        raise BadValue(f"{_CONTROL} {given[0]}: {error.why}", f"{error.fix}, or leave out {_CONTROL}") from None
    if address is None:
        raise BadValue(f"{_CONTROL} {given[0]}: the gate cannot ask this server", f"Leave out {_CONTROL}")
    if not address.path and not address.port:
        raise BadValue(f"{_CONTROL} {given[0]}: the gate does not learn which port that is", f"Leave out {_CONTROL}")
    return address


def _tokens(flags: Sequence[str]) -> int | None:
    """A size of HBM given in tokens; None for one in bytes, or none."""
    if not (given := values_of(flags, _HBM)):
        return None
    try:
        size = parse_size(given[0])
    except BadValue as error:
        raise BadValue(f"{_HBM} {given[0]}: {error.why}", error.fix) from None
    return size.amount if size.unit is Unit.TOKENS else None
