"""Rounds of G3: the same contexts computed, and recovered from NVMe, one after the other.

Owns the contexts whose KV the tiered server has (:class:`Pool`) and the law of a round: it counts only if at least the
demanded share of the first prompts' tokens came from NVMe, and if no request failed on either side; who begins
alternates. Main thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from radixtier.gate.baseline import beyond_shared
from radixtier.gate.profiles import Plan, Returning, returning
from radixtier.gate.progress import Progress
from radixtier.gate.result import Check, Verdict
from radixtier.gate.stand import Stand, check_alive
from radixtier.load.answer import Answer, Piece
from radixtier.load.figures import figures, median_ratio, ratio_of_medians
from radixtier.load.play import Played, play

Again = Callable[[Returning, Answer], None]


class Pool:
    """Conversations that the tiered server has seen, dealt out by the length of what they recover.

    Levels share them: a larger one has those of a smaller one among its own.
    """

    def __init__(self, stand: Stand, plan: Plan, name: str = "cold") -> None:
        self._stand = stand
        self._plan = plan
        self._name = name
        self._by_length: dict[int, list[Returning]] = {}
        self._fresh: list[Returning] = []
        self._paths: dict[str, set[Piece]] = {}
        self.first: dict[str, Answer] = {}
        """By conversation, the answer to its first prompt when that was computed."""

    def take(self, lengths: Sequence[int]) -> list[Returning]:
        """Return one conversation per length, known ones first."""
        taken: list[Returning] = []
        for length in lengths:
            known = self._by_length.setdefault(length, [])
            used = sum(each in taken for each in known)
            if used == len(known):
                name = f"{self._name}-{length}-{len(known)}"
                known += returning(self._plan, self._stand.tiered.target, [length], self._stand.number, name)
                self._fresh.append(known[-1])
            taken.append(known[used])
        return taken

    def seed(self, concurrency: int) -> Played:
        """Have the tiered server compute what it has not seen yet."""
        fresh, self._fresh = self._fresh, []
        with self._stand.tiered.awake() as target:
            played = play(target, [each.conversation for each in fresh], concurrency=concurrency)
            check_alive(self._stand.tiered)
            self._stand.settle()
        self.note(fresh, played)
        for exchange in played.exchanges:
            if exchange.turn == 0:
                self.first[exchange.conversation] = exchange.answer
        return played

    def note(self, loads: Sequence[Returning], played: Played) -> None:
        """Remember what the tree has of these conversations."""
        by_name = {each.conversation.name: each for each in loads}
        for exchange in played.exchanges:
            if exchange.answer.ok:
                prompt = prompt_of(by_name[exchange.conversation], exchange.turn)
                path = prompt + exchange.answer.output  # type: ignore[operator]
                self._paths.setdefault(exchange.conversation, set()).add(path)

    def chill(self, loads: Sequence[Returning]) -> int:
        """Bring conversations down to NVMe; return the tokens that are there alone."""
        paths = {path for each in loads for path in self._paths.get(each.conversation.name, ())}
        cold = self._stand.chill(sorted(paths, key=len))
        self._stand.drop_page_cache()
        return cold


def prompt_of(load: Returning, turn: int) -> Piece:
    """Return the prompt of a turn, with the scripted answers before it."""
    turns = load.conversation.turns
    prompt = turns[0].text
    for before, now in pairwise(turns[: turn + 1]):
        prompt = prompt + before.answer + now.text  # type: ignore[operator]
    return prompt


@dataclass
class Level:
    """What the rounds of one level yielded."""

    level: int
    cold: list[Played] = field(default_factory=list)
    baseline: list[Played] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    """Of every round, counted or not: the share of first prompts that came from NVMe."""
    troubles: list[str] = field(default_factory=list)
    """Why rounds did not count."""

    def ttfts(self, which: str) -> list[float]:
        """TTFT of the first prompts of ``cold`` or ``baseline``."""
        rounds: list[Played] = getattr(self, which)
        return [each.answer.ttft_s for played in rounds for each in played.exchanges if each.turn == 0]

    def figures(self) -> dict[str, Any]:
        """Return the JSON of the report."""
        told: dict[str, Any] = {"rounds": len(self.cold), "shares": self.shares, "troubles": self.troubles}
        if self.cold:
            pairs = [(throughput(a), throughput(b)) for a, b in zip(self.cold, self.baseline, strict=True)]
            told |= {
                "baseline": figures(_together(self.baseline)),
                "cold": figures(_together(self.cold)),
                "ttft_ratio": list(ratio_of_medians(self.ttfts("cold"), self.ttfts("baseline"))),
                "throughput_ratio": list(median_ratio(pairs)),
            }
        return told


def run_level(stand: Stand, plan: Plan, level: int, pool: Pool, say: Progress, again: Again | None = None) -> Level:
    """Play rounds until enough of them count, or too many were tried.

    Parameters
    ----------
    again
        Gets what stock says to a first prompt that it has just computed, asked once more.
    """
    loads = pool.take(plan.level(level))
    found = Level(level)
    for number in range(plan.rounds + plan.spare_rounds):
        if len(found.cold) >= plan.rounds:
            break
        say.step(f"recovery, concurrency {level}, round {number + 1}")
        counted = len(found.cold)
        _round(stand, plan, found, pool, loads, number, again)
        if len(found.cold) == counted:
            say.line(f"{found.troubles[-1]}: does not count", "warn")
    return found


def _round(
    stand: Stand, plan: Plan, found: Level, pool: Pool, loads: list[Returning], number: int, again: Again | None
) -> None:
    def baseline() -> Played:
        return _baseline(stand, plan, found.level, loads, again)

    def cold() -> Played:
        return _cold(stand, pool, loads, found.level)

    if number % 2:
        recovered, computed = cold(), baseline()
    else:
        computed, recovered = baseline(), cold()
    share = nvme_share(recovered, loads)
    found.shares.append(share)
    trouble = next(_troubles(plan, computed, recovered, loads, share), "")
    if trouble:
        found.troubles.append(f"round {number + 1}: {trouble}")
        return
    found.baseline.append(computed)
    found.cold.append(recovered)


def _baseline(stand: Stand, plan: Plan, level: int, loads: list[Returning], again: Again | None) -> Played:
    if stand.stock is not None and stand.beside:
        with stand.stock.awake() as target:
            stand.flush(stand.stock)
            played = play(target, [each.conversation for each in loads], concurrency=level)
            check_alive(stand.stock)
            for each in loads if again is not None else ():
                again(each, target.ask(each.prompt, plan.answer_tokens))  # type: ignore[misc]
            return played
    with stand.tiered.awake() as target:
        fresh = returning(plan, target, plan.level(level), stand.number, f"new-{stand.number()}")
        # Under the names of the others: whoever looks at the exchanges finds the same conversations.
        named = [_named(new, old) for new, old in zip(fresh, loads, strict=True)]
        played = play(target, [each.conversation for each in named], concurrency=level)
        check_alive(stand.tiered)
        return played


def _named(new: Returning, old: Returning) -> Returning:
    return replace(new, conversation=replace(new.conversation, name=old.conversation.name))


def _cold(stand: Stand, pool: Pool, loads: list[Returning], level: int) -> Played:
    with stand.tiered.awake() as target:
        pool.chill(loads)
        played = play(target, [each.conversation for each in loads], concurrency=level)
        check_alive(stand.tiered)
        stand.settle()  # it may be stopped now, which no write is to notice
    pool.note(loads, played)
    return played


def _troubles(plan: Plan, baseline: Played, cold: Played, loads: list[Returning], share: float) -> Iterator[str]:
    expected = sum(len(each.conversation.turns) for each in loads)
    for name, played in (("baseline", baseline), ("cold", cold)):
        bad = [answer.error or "cut" for answer in played.answers if not answer.ok]
        if bad or len(played.answers) < expected:
            lost = expected - sum(answer.ok for answer in played.answers)
            yield f"{lost} {name} requests failed" + (f": {bad[0]}" if bad else "")
    if cached := beyond_shared(baseline, loads):
        yield f"{cached:,} tokens of the baseline's first prompts were cached"
    if share < plan.limits.cold_share:
        yield f"only {share:.0%} of the recovered tokens came from NVMe"


def nvme_share(played: Played, loads: Sequence[Returning]) -> float:
    """Return the share of first prompts, without what is common to all, that came from NVMe."""
    wanted = sum(each.tokens - each.shared for each in loads)
    found = sum(each.answer.cached.nvme for each in played.exchanges if each.turn == 0 and each.answer.cached)
    return min(1.0, found / wanted) if wanted else 0.0


def throughput(played: Played) -> float:
    """Return the tokens of prompts and answers per second."""
    return sum(a.prompt_tokens + a.output_tokens for a in played.answers if a.ok) / max(played.seconds, 1e-9)


def _together(rounds: Sequence[Played]) -> Played:
    return Played(tuple(e for played in rounds for e in played.exchanges), sum(played.seconds for played in rounds))


def judge(found: Level, plan: Plan) -> list[Check]:
    """Return the checks of a level: enough rounds, TTFT, throughput."""
    at = f", concurrency {found.level}"
    limits, counted = plan.limits, len(found.cold)
    why = f"; {found.troubles[0]}" if found.troubles else ""
    enough = counted >= plan.rounds
    rounds = Check(
        f"cold rounds{at}",
        Verdict.PASS if enough else Verdict.FAIL,
        f"{counted} rounds count, at least {plan.rounds}{why}",
        "" if enough else "See that NVMe and DRAM are large enough, and that nobody else fills them meanwhile",
    )
    if not counted:
        return [rounds, *(Check(f"{what}{at}", Verdict.FAIL, "not measured") for what in ("TTFT p50", "throughput"))]
    told = found.figures()
    ttft, rise = told["ttft_ratio"], told["throughput_ratio"]
    return [
        rounds,
        _at_least(f"TTFT p50{at}", "fell", 1 - ttft[0], (1 - ttft[2], 1 - ttft[1]), limits.ttft_fall),
        _at_least(f"throughput{at}", "rose", rise[0] - 1, (rise[1] - 1, rise[2] - 1), limits.throughput_rise),
    ]


def _at_least(name: str, word: str, value: float, interval: tuple[float, float], least: float) -> Check:
    reason = f"{word} by {value:.0%} ({interval[0]:.0%} to {interval[1]:.0%}), at least {least:.0%}"
    if interval[0] < least <= interval[1]:
        reason += "; the interval has the limit inside, the estimate decides"
    good = value >= least
    fix = "" if good else "See G1 for the drive's bandwidth, and docs/gate.md for what recovery costs"
    return Check(name, Verdict.PASS if good else Verdict.FAIL, reason, fix)
