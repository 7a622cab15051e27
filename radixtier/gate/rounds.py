"""Rounds of G3: the same contexts computed, and recovered from NVMe, one after the other.

Owns the contexts whose KV the tiered server has (:class:`Pool`) and the law of a round: it counts only if at least the
demanded share of the first prompts' own tokens came from NVMe, not from memory that the system keeps of the store's
files, and if no request failed on either side; who begins alternates. A round that does not count may be played again,
but a request that failed on the server with the tier is told for good (:class:`Asked`). Main thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from radixtier.gate.baseline import beyond_shared
from radixtier.gate.profiles import Plan, Returning, returning
from radixtier.gate.progress import Progress
from radixtier.gate.ratios import bounds, enclosed
from radixtier.gate.result import Check, Verdict
from radixtier.gate.sources import own_cached
from radixtier.gate.stand import Stand, check_alive
from radixtier.live import page_cache
from radixtier.load.answer import Answer, Piece
from radixtier.load.figures import Ratio, figures, median_ratio, ratio_of_medians
from radixtier.load.play import Played, play
from radixtier.units import format_bytes

Again = Callable[[Returning, Answer], None]

BUFFERED = "buffered"
"""In the name of an engine whose reads may be served from the page cache."""

JOURNAL_BYTES = 16 << 20
"""May stay in the page cache: journals are mapped by the server, no reading of a page comes from there."""


@dataclass
class Asked:
    """Requests of the server with the tier, and why some of them failed."""

    requests: int = 0
    errors: list[str] = field(default_factory=list)

    def add(self, answer: Answer) -> None:
        """Count one."""
        self.requests += 1
        if not answer.ok:
            self.errors.append(answer.error or "cut off")

    def check(self) -> Check:
        """None of them may fail."""
        name = "requests of the server with the tier"
        if not self.requests:
            return Check(name, Verdict.FAIL, "none was sent")
        if self.errors:
            reason = f"{len(self.errors)} of {self.requests:,} failed: {self.errors[0]}"
            return Check(name, Verdict.FAIL, reason, "The tier must never fail a request: see the server's log")
        return Check(name, Verdict.PASS, f"all {self.requests:,} were answered")


class Pool:
    """Conversations that the tiered server has seen, dealt out by the length of what they recover.

    Levels share them: a larger one has those of a smaller one among its own. All have the same shared part in front.

    Parameters
    ----------
    asked
        Counts what the server with the tier is asked; shared by pools.
    """

    def __init__(self, stand: Stand, plan: Plan, name: str = "cold", asked: Asked | None = None) -> None:
        self._stand = stand
        self._plan = plan
        self._name = name
        self.asked = Asked() if asked is None else asked
        self._shared = stand.tiered.target.piece(plan.shared_tokens, stand.number()) if plan.shared_tokens else None
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
                target = self._stand.tiered.target
                known += returning(self._plan, target, [length], self._stand.number, name, self._shared)
                self._fresh.append(known[-1])
            taken.append(known[used])
        return taken

    def apart(self, length: int) -> Returning:
        """Return a conversation that nobody asked before and that no round gets."""
        name = f"{self._name}-new-{self._stand.number()}"
        return returning(self._plan, self._stand.tiered.target, [length], self._stand.number, name, self._shared)[0]

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
        """Remember what the tree has of these conversations, and count the requests."""
        by_name = {each.conversation.name: each for each in loads}
        for exchange in played.exchanges:
            self.asked.add(exchange.answer)
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


def kept_in_memory(stand: Stand) -> int:
    """Return the bytes of the store that reads would get from the page cache; 0 for an engine that goes around it."""
    if not buffered(stand.state() or {}):
        return 0
    return sum(page_cache.drop(directory).cached_bytes for directory in stand.directories if directory.is_dir())


def buffered(state: Mapping[str, Any]) -> bool:
    """Whether some drive of a server is read through the page cache."""
    drives = (state.get("store") or {}).get("drives") or ()
    engines = [state.get("engine"), *(drive.get("engine") for drive in drives if isinstance(drive, Mapping))]
    return any(BUFFERED in str(engine) for engine in engines)


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
    baseline_loads: list[list[Returning]] = field(default_factory=list)
    """What each of :attr:`baseline` asked: the prompts of the cold side, or others where the server has those."""
    troubles: list[str] = field(default_factory=list)
    """Why rounds did not count."""

    def ttfts(self, which: str) -> list[float]:
        """TTFT of the first prompts of ``cold`` or ``baseline``."""
        rounds: list[Played] = getattr(self, which)
        return [seconds for played in rounds for seconds in _ttfts(played)]

    def figures(self) -> dict[str, Any]:
        """Return the JSON of the report."""
        told: dict[str, Any] = {"rounds": len(self.cold), "shares": self.shares, "troubles": self.troubles}
        if self.cold:
            told |= {
                "baseline": figures(_together(self.baseline)),
                "cold": figures(_together(self.cold)),
                "ttft_ratio": list(self._ttft_ratio()),
                "throughput_ratio": list(self._throughput_ratio()),
                "bounds": bounds(len(self.cold)),
            }
        return told

    def _ttft_ratio(self) -> Ratio:
        found = ratio_of_medians(self.ttfts("cold"), self.ttfts("baseline"))
        pairs = zip(self.cold, self.baseline, strict=True)
        return enclosed(found, [median(_ttfts(a)) / median(_ttfts(b)) for a, b in pairs])

    def _throughput_ratio(self) -> Ratio:
        pairs = [(throughput(a), throughput(b)) for a, b in zip(self.cold, self.baseline, strict=True)]
        return enclosed(median_ratio(pairs), [ours / theirs for ours, theirs in pairs])


def _ttfts(played: Played) -> list[float]:
    return [each.answer.ttft_s for each in played.exchanges if each.turn == 0]


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
    def baseline() -> tuple[Played, list[Returning]]:
        return _baseline(stand, plan, found.level, pool, loads, again)

    def cold() -> tuple[Played, int]:
        return _cold(stand, pool, loads, found.level)

    if number % 2:
        (recovered, kept), (computed, asked) = cold(), baseline()
    else:
        (computed, asked), (recovered, kept) = baseline(), cold()
    share = nvme_share(recovered, loads)
    found.shares.append(share)
    trouble = next(_troubles(plan, computed, asked, recovered, loads, share), "")
    if not trouble and kept > JOURNAL_BYTES:
        trouble = f"{format_bytes(kept)} of the store stayed in memory: what was read did not come from the drive"
    if trouble:
        found.troubles.append(f"round {number + 1}: {trouble}")
        return
    found.baseline.append(computed)
    found.baseline_loads.append(asked)
    found.cold.append(recovered)


def _baseline(
    stand: Stand, plan: Plan, level: int, pool: Pool, loads: list[Returning], again: Again | None
) -> tuple[Played, list[Returning]]:
    """Play the same prompts on stock, or prompts that nobody asked before on the server with the tier; tell which."""
    if stand.stock is not None and stand.beside:
        with stand.stock.awake() as target:
            stand.flush(stand.stock)
            played = play(target, [each.conversation for each in loads], concurrency=level)
            check_alive(stand.stock)
            for each in loads if again is not None else ():
                again(each, target.ask(each.prompt, plan.answer_tokens))  # type: ignore[misc]
            return played, loads
    with stand.tiered.awake() as target:
        fresh = returning(plan, target, plan.level(level), stand.number, f"new-{stand.number()}")
        played = play(target, [each.conversation for each in fresh], concurrency=level)
        check_alive(stand.tiered)
    for answer in played.answers:
        pool.asked.add(answer)
    return played, fresh


def _cold(stand: Stand, pool: Pool, loads: list[Returning], level: int) -> tuple[Played, int]:
    """Play conversations from NVMe; also return how many bytes of the store could not be kept out of memory."""
    with stand.tiered.awake() as target:
        pool.chill(loads)
        kept = kept_in_memory(stand)
        played = play(target, [each.conversation for each in loads], concurrency=level)
        check_alive(stand.tiered)
        stand.settle()  # it may be stopped now, which no write is to notice
    pool.note(loads, played)
    return played, kept


def _troubles(
    plan: Plan, baseline: Played, computed: list[Returning], cold: Played, loads: list[Returning], share: float
) -> Iterator[str]:
    expected = sum(len(each.conversation.turns) for each in loads)
    for name, played in (("baseline", baseline), ("cold", cold)):
        bad = [answer.error or "cut" for answer in played.answers if not answer.ok]
        if bad or len(played.answers) < expected:
            lost = expected - sum(answer.ok for answer in played.answers)
            yield f"{lost} {name} requests failed" + (f": {bad[0]}" if bad else "")
    if cached := beyond_shared(baseline, computed):
        yield f"{cached:,} tokens of the baseline's first prompts were cached"
    if share < plan.limits.cold_share:
        yield f"only {share:.0%} of the recovered tokens came from NVMe"


def nvme_share(played: Played, loads: Sequence[Returning]) -> float:
    """Return the share of first prompts, without what is common to all, that came from NVMe."""
    wanted = sum(each.tokens - each.shared for each in loads)
    shared = {each.conversation.name: each.shared for each in loads}
    found = sum(
        own_cached(each.answer.cached, shared[each.conversation]).nvme
        for each in played.exchanges
        if each.turn == 0 and each.answer.cached
    )
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
    ttft, rise, kind = told["ttft_ratio"], told["throughput_ratio"], told["bounds"]
    return [
        rounds,
        _at_least(f"TTFT p50{at}", "fell", 1 - ttft[0], (1 - ttft[2], 1 - ttft[1]), kind, limits.ttft_fall),
        _at_least(f"throughput{at}", "rose", rise[0] - 1, (rise[1] - 1, rise[2] - 1), kind, limits.throughput_rise),
    ]


def _at_least(name: str, word: str, value: float, around: tuple[float, float], kind: str, least: float) -> Check:
    reason = f"{word} by {value:.0%} ({kind} {around[0]:.0%} to {around[1]:.0%}), at least {least:.0%}"
    if around[0] < least <= around[1]:
        reason += "; the limit is between these, the estimate decides"
    good = value >= least
    fix = "" if good else "See G1 for the drive's bandwidth, and docs/gate.md for what recovery costs"
    return Check(name, Verdict.PASS if good else Verdict.FAIL, reason, fix)
