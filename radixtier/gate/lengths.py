"""TTFT by length of the context and by where it comes from: computed, HBM, DRAM and NVMe, one request at a time.

Owns those samples, and with them the answers that are compared (:mod:`radixtier.gate.answers`). Invariant: a sample
counts for a tier only if the server says that the prompt, without what all share, came from there; answers are kept by
the conversation that was asked, so that only answers to the same prompt are ever compared. Main thread.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from radixtier.gate.profiles import Limits, Returning
from radixtier.gate.progress import Progress
from radixtier.gate.result import Check, Verdict, limit
from radixtier.gate.rounds import Pool
from radixtier.gate.sources import own_source
from radixtier.gate.stand import Side, Stand, check_alive
from radixtier.load.answer import Answer
from radixtier.load.figures import percentile
from radixtier.load.play import Exchange, Played

SOURCES = ("recompute", "hbm", "dram", "nvme")
COLD_PASSES = 3


@dataclass
class Samples:
    """Answers to first prompts, one at a time: by conversation and source."""

    answers: dict[tuple[str, str], list[Answer]] = field(default_factory=dict)
    control: dict[str, list[Answer]] = field(default_factory=dict)
    """By conversation, HBM hits of the server that computed it: what a hit changes without any tier."""
    computed: dict[str, Answer] = field(default_factory=dict)
    """By conversation, the answer when it was computed among others: its words count, its time does not."""
    tokens: dict[str, int] = field(default_factory=dict)
    """By conversation, the length of what it recovers."""

    def add(self, load: Returning, answer: Answer) -> None:
        """Take an answer to a first prompt, if it is one."""
        source = own_source(load, answer)
        if answer.ok and source in SOURCES:
            self.answers.setdefault((load.conversation.name, source), []).append(answer)
            self.tokens[load.conversation.name] = load.tokens - load.shared

    def add_computed(self, load: Returning, answer: Answer) -> None:
        """Take the answer to a first prompt that was computed while others were under way."""
        if answer.ok and own_source(load, answer) == "recompute":
            self.computed[load.conversation.name] = answer

    def add_control(self, load: Returning, answer: Answer) -> None:
        """Take what the server that computed a prompt says when it has it in HBM."""
        if answer.ok and own_source(load, answer) == "hbm":
            self.control.setdefault(load.conversation.name, []).append(answer)

    def add_round(self, loads: Sequence[Returning], played: Played) -> None:
        """Take the first prompts of a round that was played one at a time."""
        by_name = {each.conversation.name: each for each in loads}
        for exchange in played.exchanges:
            if exchange.turn == 0:
                self.add(by_name[exchange.conversation], exchange.answer)

    def of(self, tokens: int, source: str) -> list[Answer]:
        """Return the answers for one length and source."""
        names = [name for name, length in self.tokens.items() if length == tokens]
        return [answer for name in names for answer in self.answers.get((name, source), ())]

    def figures(self) -> dict[str, dict[str, Any]]:
        """Return by length: median TTFT per source in seconds, and NVMe's as a share of recompute's."""
        told = {}
        for tokens in sorted(set(self.tokens.values())):
            row: dict[str, Any] = {}
            for source in SOURCES:
                samples = self.of(tokens, source)
                row[f"{source}_s"] = percentile([answer.ttft_s for answer in samples], 0.5)
                row[f"{source}_samples"] = len(samples)
            known = row["nvme_s"] is not None and row["recompute_s"]
            row["ratio"] = row["nvme_s"] / row["recompute_s"] if known else None
            told[str(tokens)] = row
        return told


def measure(
    stand: Stand, pool: Pool, lengths: Sequence[int], samples: Samples, say: Progress, *, passes: int = COLD_PASSES
) -> None:
    """Fill in what is missing of some prompts: computed once, from HBM, and ``passes`` times from NVMe."""
    loads = pool.take(lengths)
    new = [each for each in loads if each.conversation.name not in pool.first]
    if stand.stock is not None and stand.beside:
        missing = [each for each in loads if (each.conversation.name, "recompute") not in samples.answers]
        _on_stock(stand, stand.stock, missing, samples, say)
    pool.seed(1)
    with stand.tiered.awake():
        for each in loads:
            say.step(f"TTFT at {each.tokens:,} tokens by source")
            if not stand.beside:
                first = pool.first[each.conversation.name]
                (samples.add if each in new else samples.add_computed)(each, first)
                if not samples.of(each.tokens - each.shared, "recompute"):
                    other = pool.apart(each.tokens - each.shared)
                    samples.add(other, ask(stand.tiered, pool, other))
            ask(stand.tiered, pool, each)
            again = ask(stand.tiered, pool, each)
            samples.add(each, again)
            if not stand.beside:
                samples.add_control(each, again)
        for number in range(passes):
            # All at once, so that a pass costs one wait for the drive.
            pool.chill(loads)
            for each in loads if number % 2 == 0 else reversed(loads):
                samples.add(each, ask(stand.tiered, pool, each))
        if passes > 1:
            _from_dram(stand, pool, loads, samples)
        stand.settle()


def _from_dram(stand: Stand, pool: Pool, loads: Sequence[Returning], samples: Samples) -> None:
    """One at a time: two might not fit into DRAM."""
    for each in loads:
        pool.chill([each])
        stand.lift([each.prompt])
        samples.add(each, ask(stand.tiered, pool, each))


def _on_stock(stand: Stand, stock: Side, loads: Sequence[Returning], samples: Samples, say: Progress) -> None:
    """Compute prompts on stock, and ask again at once: a hit in HBM."""
    with stock.awake() as target:
        if loads:
            stand.flush(stock)
        for each in loads:
            say.step(f"TTFT at {each.tokens:,} tokens, computed")
            samples.add(each, target.ask(each.prompt, each.conversation.turns[0].answer_tokens))
            samples.add_control(each, target.ask(each.prompt, each.conversation.turns[0].answer_tokens))


def ask(side: Side, pool: Pool, load: Returning) -> Answer:
    """Ask a first prompt of the tiered server, alone."""
    answer = side.target.ask(load.prompt, load.conversation.turns[0].answer_tokens)
    check_alive(side)
    pool.note([load], Played((Exchange(load.conversation.name, 0, answer),), answer.total_s))
    return answer


def judge(figures: Mapping[str, Mapping[str, Any]], limits: Limits, cut: Collection[int] = ()) -> list[Check]:
    """Return a check for every length that has a limit; one that was not measured fails, unless it was ``cut``."""
    return [_judge(figures, tokens, most, tokens in cut) for tokens, most in limits.by_length]


def _judge(figures: Mapping[str, Mapping[str, Any]], tokens: int, most: float, cut: bool) -> Check:
    name = f"TTFT from NVMe / recompute at {tokens:,} tokens"
    value = figures.get(str(tokens), {}).get("ratio")
    if value is None and cut:
        return Check(name, Verdict.SKIPPED, "prompts of this length do not fit into this server and were cut")
    fix = "See docs/gate.md for what a recovery costs, and G1 for the drive's bandwidth"
    return limit(name, value, most, fix=fix, needed=True)
