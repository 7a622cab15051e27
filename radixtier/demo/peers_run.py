"""The run of ``radixtier bench peers``: phases, and whose turn it is.

Owns the order. Invariant: one side works at a time, all of a group play the same, and which goes first alternates.
Main thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TypeVar

from radixtier.demo.peers_load import BOUND, TIER, Round, fresh, returning
from radixtier.demo.peers_plan import Plan, Prompt
from radixtier.demo.peers_side import DRAM, STORED, Side
from radixtier.demo.peers_walk import Sample, Walker, chunks
from radixtier.live.screen import Screen

_T = TypeVar("_T")

DRAM_WALKS = 2
"""How often HiCache without storage is walked again: it has no cycles in which its DRAM could be asked."""

LOAD_SHARE = 0.7
"""Of the prompts of the load, those that are loaded right after a restart; the others are walked."""


@dataclass
class Found:
    """What a run has measured so far."""

    samples: list[Sample] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    cold: list[dict[str, int | str]] = field(default_factory=list)
    """Each time files were made cold: how many there were, their bytes, and what stayed in the page cache."""


class Run:
    """One group of sides that are compared."""

    def __init__(self, sides: Sequence[Side], plan: Plan, screen: Screen, found: Found) -> None:
        self._walkers = [Walker(side, plan) for side in sides]
        self._sides = sides
        self._stored = [side for side in sides if side.name in STORED]
        self._plan = plan
        self._screen = screen
        self._found = found

    def measure(self) -> None:
        """Start the sides, play all phases, stop them; what was found stays in ``found`` if this is interrupted."""
        with ExitStack() as stack:
            for side in self._sides:
                stack.callback(side.stop)
                self._start(side)
            self._first()
            for cycle in range(self._plan.cycles if self._stored else 0):
                self._screen.line(f"cycle {cycle + 1} of {self._plan.cycles}: every prefix from NVMe")
                self._cold()
                self._walk(self._stored_walkers(), self._plan.order(), "cycle", cycle)
            self._load()
            for number in range(self._plan.restarts if self._stored else 0):
                self._restart(number)
            self._fresh()

    def _start(self, side: Side) -> None:
        self._screen.line(f"starting {side.name} (importing SGLang takes up to a minute)", "dim")
        side.start()

    def _stored_walkers(self) -> list[Walker]:
        return [walker for walker in self._walkers if walker.side in self._stored]

    def _first(self) -> None:
        """Have everything computed once; the sides without storage play a part of it."""
        self._screen.line("first visits: everything is computed")
        sample = self._plan.sample()
        rest = [prompt for prompt in self._plan.order() if prompt not in sample]
        self._walk(self._walkers, sample, "first", 0)
        for turn in range(DRAM_WALKS):
            self._walk([walker for walker in self._walkers if walker.side.name == DRAM], sample, "again", turn)
        self._walk(self._stored_walkers(), rest, "first", 1)
        for side in self._stored:
            if not side.settle():
                self._screen.line(f"{side.name} did not finish writing in time", "bad")

    def _walk(self, walkers: Sequence[Walker], prompts: Sequence[Prompt], phase: str, turn: int) -> None:
        for number, chunk in enumerate(chunks(prompts)):
            for walker in _in_turn(walkers, number + turn):
                self._found.samples += walker.chunk(chunk, phase)
                self._screen.status(f"{phase}: chunk {number + 1}, {walker.side.name}")

    def _load(self) -> None:
        """Load both from NVMe and from HBM, with answers and with hardly any; then what DRAM holds.

        Lengths alternate: the prompts of one push those of the other out of DRAM.
        """
        rounds = self._plan.load_rounds if self._stored else 0
        for prefix in self._plan.targets if rounds else ():
            # A cycle came back to its last prompts for their DRAM hit: everything has to be asked in order once.
            self._play(0, self._plan.of_length(prefix), "warming")
        for number in range(rounds):
            for kind, bound in BOUND.items():
                for prefix in self._plan.targets:
                    prompts, held = self._plan.of_length(prefix), self._plan.in_hbm(prefix)
                    self._cold()
                    self._play(number, prompts, kind)
                    self._play(number, held, "warming")
                    self._play(number, held, bound, len(prompts))
        held = self._plan.in_dram(self._plan.targets[0])
        for number in range(rounds):
            if number == 0:
                self._play(number, held, "warming")
            self._play(number, held, "dram")

    def _play(self, number: int, prompts: Sequence[Prompt], kind: str, requests: int | None = None) -> None:
        for side in _in_turn(self._stored, number):
            self._tell(returning(side, prompts, self._plan, kind, number, requests or len(prompts)))

    def _restart(self, number: int) -> None:
        """Restart both, load one part of the prompts, walk another."""
        for side in self._stored:
            side.stop()
        self._cold()
        for side in self._stored:
            self._start(side)
        # What starting and warming up read is not what is asked for now.
        self._cold()
        prompts = self._plan.of_length(self._plan.targets[0])
        loaded = prompts[: round(LOAD_SHARE * len(prompts))]
        self._play(number, loaded, "restart")
        for walker in self._stored_walkers():
            walker.forget()
        targets = [prompt for prompt in self._plan.order() if prompt.prefix in self._plan.targets]
        walked = [prompt for prompt in targets if prompt not in loaded]
        self._walk(self._stored_walkers(), walked, "restart", number)

    def _fresh(self) -> None:
        for number in range(self._plan.fresh_rounds):
            for side in _in_turn(self._sides, number):
                self._tell(fresh(side, self._plan, number))

    def _cold(self) -> None:
        for side in self._stored:
            files = side.make_cold()
            self._found.cold.append({"side": side.name, **files._asdict()})

    def _tell(self, done: Round) -> None:
        self._found.rounds.append(done)
        if done.kind == "warming":
            return
        tokens = done.figures["tokens"]
        length = f"{done.prefix} tokens" if done.prefix else "no reuse"
        below = ", ".join(f"{tokens[tier]} from {tier.upper()}" for tier in ("nvme", "dram", "hbm"))
        self._screen.line(
            f"{done.kind} {done.number + 1}, {length}: {done.side} {done.tokens_per_s:.0f} tokens/s, "
            f"{tokens['prompt']} prompt tokens: {below}, {tokens['recomputed']} computed"
            + ("" if done.counts else f": does not count, too little from {TIER[done.kind].upper()}"),
            "" if done.counts else "bad",
        )


def _in_turn(sides: Sequence[_T], number: int) -> Iterable[_T]:
    return sides if number % 2 == 0 else reversed(sides)
