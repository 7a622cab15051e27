"""Overlap: do a request's pages come up while another request's prefill has the device?

Owns two kinds of trial: a prompt whose prefix is on NVMe comes alone, and one comes while a long prompt is prefilled in
chunks. The drive is slowed (:data:`SLOW_READ`), so that reading takes long enough to be seen; the same in both. While a
trial runs, a thread asks the server how many pages came up; it answers between two chunks, so the moment is late by up
to one. Main thread and that one.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from radixtier.demo.plan import PAGE_SIZE
from radixtier.demo.promote_rig import Explained, Rig, Sizes, Tiered, served

SLOW_READ = 5
"""How many times slower the drive reads."""

ANSWER_TOKENS = 8
CHUNK_TOKENS = 256
POLL_S = 0.02
SPARE = 2
"""Prompts that are read up before anything is measured, so that the drive is known."""


@dataclass(frozen=True)
class OverlapPlan:
    """How much is measured."""

    trials: int
    """Of each kind."""
    cold_tokens: int
    """Length of the prompts that are on NVMe."""
    long_tokens: int
    """Length of the prompts that are prefilled meanwhile."""
    delay_s: float
    """Seconds from the long prompt to the cold one."""

    @property
    def sizes(self) -> Sizes:
        """HBM and DRAM for one prompt of each kind; NVMe for all."""
        both = (self.cold_tokens + self.long_tokens) * 5 // 4 // 64 * 64 + 256
        every = (2 * self.trials + SPARE) * self.cold_tokens + (self.trials + 3) * self.long_tokens
        return Sizes(hbm=both, dram=both, nvme=2 * every // 64 * 64)


@dataclass(kw_only=True)
class Alone(Explained):
    """A cold prompt by itself; seconds."""

    ttft_s: float


@dataclass(kw_only=True)
class Together(Explained):
    """A cold prompt behind a long one; seconds since the long one was sent."""

    sent_s: float
    up_s: float | None
    """When the server first said that all of its pages were up; None if it never did, or read none."""
    long_first_token_s: float
    first_token_s: float

    @property
    def up_before(self) -> bool:
        """Whether its pages were up before the other one's prefill was over."""
        return self.up_s is not None and self.up_s < self.long_first_token_s

    @property
    def ttft_s(self) -> float:
        """Time to first token of the cold prompt."""
        return self.first_token_s - self.sent_s

    @property
    def behind_s(self) -> float:
        """How long after the other one's first token it had its own."""
        return self.first_token_s - self.long_first_token_s


class Watch:
    """When how many pages had come up for arrivals, as the server told."""

    def __init__(self, tier: Tiered) -> None:
        self._tier = tier
        self._over = threading.Event()
        self._seen: list[tuple[float, int]] = []
        self.before = self._promoted()

    def _promoted(self) -> int:
        return int(self._tier.state()["counters"]["promoted_by"].get("arrival", 0))

    def up(self, pages: int) -> float | None:
        """Return when that many more pages were up than before, by :func:`time.perf_counter`."""
        return next((at for at, n in self._seen if n >= self.before + pages), None)

    @contextmanager
    def running(self) -> Iterator[Watch]:
        """Look all the time."""
        thread = threading.Thread(target=self._look)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()

    def _look(self) -> None:
        while not self._over.wait(POLL_S):
            self._seen.append((time.perf_counter(), self._promoted()))


def measure(rig: Rig, plan: OverlapPlan) -> dict[str, Any]:
    """Run the trials, the two kinds in turns.

    Returns
    -------
    dict
        Medians, seconds: ``alone_ttft_s`` and ``alone_waited_s`` of a cold prompt by itself; ``ttft_s`` and
        ``waited_s`` of one behind a long prompt; ``sum_s``: what was left of the long prefill when it came, plus
        ``alone_ttft_s``, so what it would take without overlap; ``behind_s``: from the long prompt's first token to
        its own. ``up_before``: trials in which its pages were up before the long prefill was over, of ``trials``;
        ``alone`` and ``together``, the trials; ``sizes``, ``plan``.
    """
    flags = ["--chunked-prefill-size", str(CHUNK_TOKENS)]
    with rig.tiered("overlap", plan.sizes, rig.store("overlap"), flags=flags) as tier:
        cold = [rig.tokens(plan.cold_tokens) for _ in range(2 * plan.trials + SPARE)]
        for prompt in cold:
            tier.client.generate(prompt, ANSWER_TOKENS)
        for _ in range(2):
            tier.client.generate(rig.tokens(plan.long_tokens), ANSWER_TOKENS)
        tier.settle()
        tier.misbehave(f"slow_read={SLOW_READ}")
        prompts = iter(cold)
        for number in range(SPARE):
            _alone(tier, f"spare-{number}", next(prompts))
        alone: list[Alone] = []
        together: list[Together] = []
        for number in range(plan.trials):
            alone.append(_alone(tier, f"alone-{number}", next(prompts)))
            together.append(_together(rig, plan, tier, f"together-{number}", next(prompts)))
        tier.explain([*alone, *together])
        tier.misbehave("")
    result = summarise(alone, together) | {"sizes": asdict(plan.sizes), "plan": asdict(plan)}
    rig.screen.line(line(result))
    return result


def _alone(tier: Tiered, rid: str, prompt: Sequence[int]) -> Alone:
    reply = tier.client.generate(prompt, ANSWER_TOKENS, rid=rid)
    return Alone(**served(rid, reply), ttft_s=reply.ttft_s)


def _together(rig: Rig, plan: OverlapPlan, tier: Tiered, rid: str, prompt: Sequence[int]) -> Together:
    long, watch = rig.tokens(plan.long_tokens), Watch(tier)
    with watch.running(), ThreadPoolExecutor(1) as pool:
        begun = time.perf_counter()
        first = pool.submit(tier.client.generate, long, ANSWER_TOKENS)
        time.sleep(plan.delay_s)
        sent = time.perf_counter() - begun
        reply = tier.client.generate(prompt, ANSWER_TOKENS, rid=rid)
        long_reply = first.result()
    up = watch.up(reply.nvme // PAGE_SIZE) if reply.nvme else None
    return Together(
        **served(rid, reply),
        sent_s=sent,
        up_s=None if up is None else up - begun,
        long_first_token_s=long_reply.ttft_s,
        first_token_s=sent + reply.ttft_s,
    )


def summarise(alone: Sequence[Alone], together: Sequence[Together]) -> dict[str, Any]:
    """Return the medians; see :func:`measure`."""
    middle = statistics.median
    alone_ttft = middle(each.ttft_s for each in alone)
    return {
        "trials": len(together),
        "up_before": sum(each.up_before for each in together),
        "alone_ttft_s": alone_ttft,
        "alone_waited_s": middle(each.waited_s for each in alone),
        "ttft_s": middle(each.ttft_s for each in together),
        "waited_s": middle(each.waited_s for each in together),
        "sum_s": middle(each.long_first_token_s - each.sent_s for each in together) + alone_ttft,
        "behind_s": middle(each.behind_s for each in together),
        "alone": [asdict(each) for each in alone],
        "together": [asdict(each) | {"up_before": each.up_before} for each in together],
    }


HEAD = (
    f"{'trials':>6} {'up before':>9} {'waited':>7} {'(alone)':>7} {'first token':>11} {'sum':>7} {'(alone)':>7} "
    f"{'behind':>7}"
)


def line(row: dict[str, Any]) -> str:
    """Return the medians as a line under :data:`HEAD`, seconds."""
    return (
        f"{row['trials']:>6} {row['up_before']:>9} {row['waited_s']:>7.3f} {row['alone_waited_s']:>7.3f} "
        f"{row['ttft_s']:>11.3f} {row['sum_s']:>7.3f} {row['alone_ttft_s']:>7.3f} {row['behind_s']:>7.3f}"
    )
