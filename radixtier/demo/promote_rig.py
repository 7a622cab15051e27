"""What the three parts of ``radixtier bench promote`` share: servers with a store, switchable faults, and figures.

Owns the scratch directory of a run and the list of commands it ran. Invariant: the drive of a server misbehaves as its
faults file says, `SEEN_S` after the file changed at the latest. Main thread; the clients of a server, any.
"""

from __future__ import annotations

import random
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from radixtier.control.address import Address
from radixtier.control.client import ControlClient
from radixtier.demo.plan import PAGE_SIZE
from radixtier.io.live_faults import VARIABLE
from radixtier.live.client import Client, Reply
from radixtier.live.faults import SEEN_S, write_faults
from radixtier.live.screen import Screen
from radixtier.live.server import CPU_FLAGS, Server

SETTLE_S = 30.0
"""Longest wait for write-behind."""

WARM_UP_TOKENS = (48, 512, 512)

MOST_EXPLAINED = 1000


@dataclass(frozen=True)
class Sizes:
    """Capacity of the tiers, tokens."""

    hbm: int
    dram: int
    nvme: int


@dataclass(kw_only=True)
class Explained:
    """A request with where its prompt came from, in tokens, and what ``radixtier explain`` says of it."""

    rid: str
    prompt_tokens: int
    hbm: int
    dram: int
    nvme: int
    recomputed: int
    waited_s: float = 0.0
    """How long its admission waited for NVMe."""
    why: list[str] = field(default_factory=list)
    """Why which tokens were computed."""


def served(rid: str, reply: Reply) -> dict[str, Any]:
    """Return what a reply tells of an :class:`Explained`."""
    return {
        "rid": rid,
        "prompt_tokens": reply.prompt_tokens,
        "hbm": reply.hbm,
        "dram": reply.dram,
        "nvme": reply.nvme,
        "recomputed": reply.recomputed,
    }


class Tiered:
    """A running server with the tier, and what there is to say to it."""

    def __init__(self, server: Server, store: Path, faults: Path) -> None:
        self.server = server
        self.client: Client = server.client
        self.control = ControlClient(Address(path=str(store / "radixtier.sock")))
        self._faults = faults

    def misbehave(self, faults: str) -> None:
        """Give the drive these faults, none for an empty text; returns when the server has seen it."""
        write_faults(self._faults, faults)
        time.sleep(SEEN_S)

    def settle(self) -> None:
        """Wait until what is in DRAM is on NVMe as well, :data:`SETTLE_S` at most."""
        end = time.monotonic() + SETTLE_S
        while time.monotonic() < end:
            pages = self.control.state()["pages"]
            if not pages["filling"] and not pages["dirty"]:
                return

    def explain(self, samples: Iterable[Explained]) -> None:
        """Fill in what the server says of some requests, as far as it knows them."""
        records = {record["request"]: record for record in self.control.explain(limit=MOST_EXPLAINED)["requests"]}
        for sample in samples:
            if record := records.get(sample.rid):
                sample.waited_s = record["waited_s"]
                sample.why = [
                    f"{cause['tokens']} {cause['reason']}" + (f": {cause['detail']}" if cause["detail"] else "")
                    for cause in record["causes"]
                ]

    def state(self) -> dict[str, Any]:
        """Return the figures of the tiers; ``counters`` since the server's start, in pages."""
        return self.control.state()


class Rig:
    """Starts the servers of one run, with all files below ``scratch``.

    Parameters
    ----------
    model, vocabulary
        Directory of the model, and how many tokens it knows.
    flags
        Further flags of every server with the tier.
    """

    def __init__(self, model: Path, vocabulary: int, scratch: Path, screen: Screen, flags: Sequence[str] = ()) -> None:
        self.screen = screen
        self.commands: dict[str, str] = {}
        """By the name of each server, how it was started."""
        self._model = model
        self._vocabulary = vocabulary
        self._scratch = scratch
        self._flags = flags
        self._random = random.Random(0)

    def tokens(self, n: int) -> list[int]:
        """Return tokens that no other call returned: nobody shares a page of them."""
        return self._random.choices(range(self._vocabulary // 2), k=n)

    def store(self, name: str) -> Path:
        """Make an empty directory for a store."""
        path = self._scratch / name
        path.mkdir()
        return path

    @contextmanager
    def stock(self, hbm: int, flags: Sequence[str] = ()) -> Iterator[Server]:
        """Run SGLang without a tier below HBM."""
        with self._run("stock", ["--max-total-tokens", str(hbm), *flags], {}) as server:
            self._warm_up(server.client)
            yield server

    @contextmanager
    def tiered(
        self, name: str, sizes: Sizes, store: Path, *, flags: Sequence[str] = (), faults: str = ""
    ) -> Iterator[Tiered]:
        """Run SGLang with the tier, on a drive that has these faults from the first transfer on."""
        file = self._scratch / f"{name}.faults"
        write_faults(file, faults)
        tier = [
            "--enable-radix-tier",
            "--radix-tier-hbm-size", f"{sizes.hbm}tok",
            "--radix-tier-dram-size", f"{sizes.dram}tok",
            "--radix-tier-nvme-size", f"{sizes.nvme}tok",
            "--radix-tier-nvme-path", str(store),
            *flags,
            *self._flags,
        ]  # fmt: skip
        with self._run(name, tier, {VARIABLE: f"@{file}"}) as server:
            tiered = Tiered(server, store, file)
            self._warm_up(tiered.client)
            yield tiered

    @contextmanager
    def _run(self, name: str, flags: Sequence[str], env: Mapping[str, str]) -> Iterator[Server]:
        flags = [*CPU_FLAGS, "--page-size", str(PAGE_SIZE), *flags]
        words = [*(f"{key}={value}" for key, value in env.items()), "radixtier", "serve"]
        self.commands[name] = shlex.join([*words, "--model-path", self._model.name, *flags])
        server = Server(name, self._model, flags, self._scratch / f"{name}.log", env)
        self.screen.line(f"starting {name} (importing SGLang takes up to a minute)", "dim")
        with server:
            server.start()
            try:
                yield server
            except OSError as error:
                raise server.failure(f"failed a request ({error})") from error

    def _warm_up(self, client: Client) -> None:
        """Pay what is paid once; what is sent shares no page with anything."""
        for length in WARM_UP_TOKENS:
            client.generate(self.tokens(length), 4)


def where(samples: Sequence[Explained]) -> dict[str, float]:
    """Return where the tokens of prompts came from, as shares of all."""
    total = max(1, sum(sample.prompt_tokens for sample in samples))
    return {
        "hbm": sum(sample.hbm for sample in samples) / total,
        "dram": sum(sample.dram for sample in samples) / total,
        "nvme": sum(sample.nvme for sample in samples) / total,
        "recomputed": sum(sample.recomputed for sample in samples) / total,
    }
