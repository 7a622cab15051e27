"""The servers of ``radixtier bench peers``: how each is started, put to sleep, settled and made cold.

Owns one server and its directory on the drive. Invariant: a side works only inside :meth:`Side.awake`; outside it is
stopped by a signal. Main thread; the clients of a server that is awake, any.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from radixtier.control.address import Address
from radixtier.control.client import ControlClient, ControlError
from radixtier.demo.peers_plan import Plan
from radixtier.live.page_cache import Files, drop, wait_until_still
from radixtier.live.server import CPU_FLAGS, Server
from radixtier.load.answer import Answer
from radixtier.load.target import SglangTarget

STOCK, DRAM, FILE, OURS = SIDES = ("stock", "hicache-dram", "hicache-file", "radixtier")

STORED = (FILE, OURS)
"""Those with a tier on the drive."""

POLICIES = ("wait_complete", "timeout", "best_effort")
"""HiCache's prefetch policies; the first is the best here: it waits for all that storage has, never less."""

SETTLE_S = 60.0
WARM_UP_TOKENS = (48, 512, 512)
EXPLAINED = 200


def flags(name: str, plan: Plan, directory: Path, page_size: int, policy: str) -> tuple[list[str], dict[str, str]]:
    """Return the flags and the environment of a side; all have the same HBM and DRAM in tokens."""
    base = [*CPU_FLAGS, "--page-size", str(page_size)]
    if name == OURS:
        tier = [
            "--enable-radix-tier",
            "--radix-tier-hbm-size", f"{plan.hbm}tok",
            "--radix-tier-dram-size", f"{plan.dram}tok",
            "--radix-tier-nvme-size", f"{plan.nvme}tok",
            "--radix-tier-nvme-path", str(directory),
        ]  # fmt: skip
        return base + tier, {}
    base += ["--max-total-tokens", str(plan.hbm)]
    if name == STOCK:
        return base, {}
    base += [
        "--enable-hierarchical-cache",
        "--hicache-ratio", f"{plan.dram / plan.hbm:g}",
        "--hicache-write-policy", "write_through",
        "--hicache-io-backend", "direct",
        "--hicache-mem-layout", "page_first_direct",
    ]  # fmt: skip
    if name == DRAM:
        return base, {}
    base += ["--hicache-storage-backend", "file", "--hicache-storage-prefetch-policy", policy]
    return base, {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(directory)}


class Side:
    """One server.

    Parameters
    ----------
    name
        One of :data:`SIDES`.
    model, plan, page_size, policy
        Directory of the model, what is played, tokens of a page, HiCache's prefetch policy.
    scratch
        Where its log and, in a directory of its own, its files go.
    """

    def __init__(self, name: str, model: Path, plan: Plan, scratch: Path, page_size: int, policy: str) -> None:
        self.name = name
        self.directory = scratch / name
        self.directory.mkdir(parents=True, exist_ok=True)
        given, env = flags(name, plan, self.directory, page_size, policy)
        words = [*(f"{key}={value}" for key, value in env.items()), "radixtier", "serve", "--model-path", model.name]
        self.command = shlex.join([*words, *given])
        self.server = Server(name, model, given, scratch / f"{name}.log", env)
        self.target = SglangTarget(self.server.url)
        self._control = ControlClient(Address(path=str(self.directory / "radixtier.sock")))
        self._fresh = 900_000_000

    def start(self) -> None:
        """Start the server, pay what is paid once, and put it to sleep."""
        self.server.start()
        for length in WARM_UP_TOKENS:
            self.ask(self.fresh(length), 4)
        self.server.pause()

    def stop(self) -> None:
        """Stop the server gracefully; its files stay."""
        self.server.stop()

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Let it work; it is asked a little something first, so that its first answer is not its awakening."""
        self.server.resume()
        try:
            self.ask(self.fresh(8), 1)
            yield
        finally:
            self.server.pause()

    def ask(self, prompt: Sequence[int], answer_tokens: int, rid: str | None = None) -> Answer:
        """Continue a prompt.

        Raises
        ------
        ServerFailed
            It was not answered.
        """
        answer = self.target.ask(tuple(prompt), answer_tokens, rid=rid)
        if not answer.ok:
            raise self.server.failure(f"failed a request ({answer.error})")
        return answer

    def fresh(self, tokens: int) -> tuple[int, ...]:
        """Return tokens that no other call returned."""
        self._fresh += 1
        return self.target.piece(tokens, self._fresh)

    def settle(self) -> bool:
        """Wait until all that it keeps is on the drive; False if that took too long."""
        if self.name not in STORED:
            return True
        self.server.resume()
        try:
            return self._written() and wait_until_still(self.directory, SETTLE_S)
        finally:
            self.server.pause()

    def _written(self) -> bool:
        end = time.monotonic() + SETTLE_S
        while self.name == OURS and time.monotonic() < end:
            pages = self._control.state()["pages"]
            if not pages["filling"] and not pages["dirty"]:
                return True
            time.sleep(0.25)
        return self.name != OURS

    def make_cold(self) -> Files:
        """Take its files out of the page cache."""
        return drop(self.directory)

    def waited(self) -> Mapping[str, float]:
        """Return how long admissions waited for NVMe, seconds by request; only ours tells."""
        if self.name != OURS:
            return {}
        with suppress(ControlError, json.JSONDecodeError):
            return {each["request"]: each["waited_s"] for each in self._control.explain(limit=EXPLAINED)["requests"]}
        return {}
