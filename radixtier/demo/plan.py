"""What the demo plays: tier sizes, chats, the order of turns, and the order of the timing probes.

Owns the two sizes of the demo. Invariant: whoever returns at once is in HBM, whoever returns after two others
has left HBM but not DRAM, whoever returns after all others has left DRAM; sizes and orders are chosen
together for that. Pure functions, any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

PAGE_SIZE = 16
"""Tokens; given to both servers, so that both find prefixes at the same grain."""


@dataclass(frozen=True)
class Plan:
    """One size of the demo.

    Attributes
    ----------
    hbm_tokens, dram_tokens, nvme_tokens
        Capacity of the tiers, in tokens. The largest prompt fits into HBM, two fit into DRAM.
    chats, rounds
        Conversations, and rounds after the opening one; see :func:`turn_order`.
    words
        Length of the shortest and of the longest journal; chats are spread between.
    answer_tokens
        Longest answer.
    probe_groups, probe_passes
        Groups of prompts per probe, and how often each returns; see :func:`probe_order`.
    """

    hbm_tokens: int
    dram_tokens: int
    nvme_tokens: int
    chats: int
    rounds: int
    words: tuple[int, int]
    answer_tokens: int
    probe_groups: int
    probe_passes: int

    def words_of(self, chat: int) -> int:
        """Length of a chat's journal, in words."""
        low, high = self.words
        return low + (high - low) * chat // max(1, self.chats - 1)


QUICK = Plan(
    hbm_tokens=4608,
    dram_tokens=9216,
    nvme_tokens=49152,
    chats=5,
    rounds=2,
    words=(1450, 1650),
    answer_tokens=24,
    probe_groups=2,
    probe_passes=3,
)
FULL = Plan(
    hbm_tokens=6144,
    dram_tokens=12288,
    nvme_tokens=122880,
    chats=8,
    rounds=3,
    words=(1400, 2500),
    answer_tokens=48,
    probe_groups=3,
    probe_passes=3,
)

PROBE_GROUPS = {2000: 4, 4000: 2}
"""Tokens of prefix -> prompts per group: all but one fill HBM, all together fit into DRAM, two groups do not."""


def turn_order(chats: int, rounds: int) -> list[int]:
    """Return which chat speaks when.

    Every chat opens; then, in each round, every chat returns after all the others. In each group of three the
    first also follows up at once, and returns once more after the other two: ``a a b c a``. Rounds start one
    chat later each time, so that the favoured ones differ.
    """
    order = list(range(chats))
    for start in range(rounds):
        queue = [(start + offset) % chats for offset in range(chats)]
        while len(queue) >= 3:
            (first, second, third), queue = queue[:3], queue[3:]
            order += [first, first, second, third, first]
        order += queue
    return order


@dataclass(frozen=True)
class Probe:
    """One timed request: prompt number `prompt`, expected to be served by `tier`."""

    prompt: int
    tier: str


def probe_order(group: int, groups: int, passes: int) -> list[Probe]:
    """Return the requests of a probe with ``groups`` (two at least) times ``group`` prompts.

    A group is sent for the first time (recomputed); it returns after another group (NVMe), then each of its
    prompts after the rest of its group (DRAM) and once more at once (HBM). First times and returns alternate, so
    that the machine's mood hits all alike; then every group returns in turn until each did so ``passes`` times.
    """
    members = [range(first, first + group) for first in range(0, group * groups, group)]

    def opened(prompts: range) -> list[Probe]:
        return [Probe(prompt, "recompute") for prompt in prompts]

    def returned(prompts: range) -> list[Probe]:
        close = [Probe(prompt, tier) for prompt in prompts for tier in ("dram", "hbm")]
        return [*(Probe(prompt, "nvme") for prompt in prompts), *close]

    order = opened(members[0])
    for previous, new in pairwise(members):
        order += opened(new) + returned(previous)
    order += returned(members[-1])
    for prompts in members * (passes - 1):
        order += returned(prompts)
    return order
