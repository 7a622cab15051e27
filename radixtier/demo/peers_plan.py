"""What ``radixtier bench peers`` plays: sizes of the tiers, prompts, and how often.

Owns the numbers. Invariant: the prompts of the two target lengths are more than HBM and DRAM hold, so that each is on
NVMe only when its turn comes (least recently used is what is asked next); what the requests at once want from storage
is no more than HiCache's prefetch allows, half of DRAM; HBM holds two of the longest. Immutable, any thread.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

ANSWER_TOKENS = 2
TAIL_TOKENS = 8
"""Question behind a prefix: what is computed on every hit."""

CHUNK = 4
"""Prompts that one side is asked before it is the other's turn."""

SPREAD = 1.3
"""A prompt comes back for its DRAM hit when this many times HBM has been asked for after it."""

HELD_SHARE = 0.8
"""Of a tier, what a load may take that is to be found there; the rest is for answers and whole pages."""


@dataclass(frozen=True)
class Prompt:
    """A prefix by its length in tokens and the number of its piece, see :meth:`SglangTarget.piece`."""

    prefix: int
    number: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured.

    Attributes
    ----------
    hbm, dram, nvme
        Capacity of the tiers, tokens.
    prompts
        Length of a prefix -> how many there are.
    targets
        The two lengths that the targets are about, and each of which is a load of its own.
    few
        Prompts of each of these for the sides without storage.
    cycles, restarts, load_rounds, fresh_rounds
        Walks over all prompts; restarts; rounds of the loads; rounds without reuse.
    concurrency, load_answer
        Of the loads: requests at once, at most (see :meth:`at_once`), and tokens of an answer.
    """

    hbm: int
    dram: int
    nvme: int
    prompts: Mapping[int, int]
    targets: tuple[int, int]
    few: int
    cycles: int
    restarts: int
    load_rounds: int
    fresh_rounds: int
    concurrency: int = 8
    load_answer: int = 8

    def order(self) -> list[Prompt]:
        """Return all prompts, in the order of every cycle; lengths are mixed."""
        prompts = [Prompt(n, 1000 * n + each) for n, count in self.prompts.items() for each in range(count)]
        random.Random(0).shuffle(prompts)
        return prompts

    def sample(self) -> list[Prompt]:
        """Return a few prompts of each target length."""
        return [p for n in self.targets for p in self.of_length(n)[: self.few]]

    def of_length(self, prefix: int) -> list[Prompt]:
        """Return the prompts of one length, in the order of a cycle."""
        return [prompt for prompt in self.order() if prompt.prefix == prefix]

    def at_once(self, prefix: int) -> int:
        """Return how many requests of a length a load has at once: what HiCache's prefetch allows."""
        return max(1, min(self.concurrency, self.dram // 2 // (prefix + TAIL_TOKENS)))

    def in_hbm(self, prefix: int) -> list[Prompt]:
        """Return as many prompts of a length as HBM holds, those asked last."""
        return self.of_length(prefix)[-_held(self.hbm, prefix) :]

    def in_dram(self, prefix: int) -> list[Prompt]:
        """Return as many prompts of a length as DRAM holds; HBM forgets each before its turn."""
        return self.of_length(prefix)[: _held(self.dram, prefix)]


def _held(tier: int, prefix: int) -> int:
    return max(1, int(HELD_SHARE * tier) // (prefix + TAIL_TOKENS))


FULL = Plan(
    hbm=10240, dram=32768, nvme=131072,
    prompts={64: 3, 128: 3, 256: 3, 512: 3, 1000: 3, 2000: 16, 4000: 8},
    targets=(2000, 4000), few=3, cycles=2, restarts=2, load_rounds=6, fresh_rounds=2,
)  # fmt: skip
"""About 35 minutes where prefill makes 270 tokens/s."""

QUICK = Plan(
    hbm=10240, dram=32768, nvme=131072,
    prompts={2000: 12, 4000: 6},
    targets=(2000, 4000), few=3, cycles=1, restarts=1, load_rounds=3, fresh_rounds=1,
)  # fmt: skip
"""About 20 minutes there."""
