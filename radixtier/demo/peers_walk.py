"""One request at a time: how long the first token takes, by the tier that the prefix came from.

Owns the order of questions of one side. Each visit asks a prompt twice: first from wherever its prefix is, then from
HBM; and asks it once more when later prompts have pushed it out of HBM and not out of DRAM. Where a prefix came from
is what the server says, never what was intended. Main thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from radixtier.demo.peers_plan import ANSWER_TOKENS, CHUNK, SPREAD, TAIL_TOKENS, Plan, Prompt
from radixtier.demo.peers_side import STOCK, Side
from radixtier.load.answer import MAIN_SHARE, TIERS, Answer, Cached

TAILS = 500_000_000
"""Pieces from this number on are questions."""


@dataclass(frozen=True)
class Sample:
    """One request of a walk.

    Attributes
    ----------
    phase, visit, question
        Part of the run; number of the visit, the same for the questions of a visit; ``first``, ``again`` or ``later``.
    prefix, number
        The prompt, see :class:`Prompt`.
    source, hbm, dram, nvme
        Where the prefix came from, see :func:`source`, and tokens by tier.
    waited_s
        How long its admission waited for NVMe; None where the server does not tell.
    """

    side: str
    phase: str
    visit: int
    question: str
    prefix: int
    number: int
    source: str
    hbm: int
    dram: int
    nvme: int
    ttft_s: float
    output: tuple[int, ...]
    rid: str
    waited_s: float | None = None


class Walker:
    """Asks one side; keeps what is to come back for its DRAM hit."""

    def __init__(self, side: Side, plan: Plan) -> None:
        self.side = side
        self._plan = plan
        self._visits = 0
        self._passed: dict[Prompt, int] = {}
        """Tokens that were asked for since a prompt's last visit."""

    def chunk(self, prompts: Sequence[Prompt], phase: str) -> list[Sample]:
        """Visit some prompts."""
        with self.side.awake():
            samples = [sample for prompt in prompts for sample in self._visit(prompt, phase)]
            waited = self.side.waited()
        return [replace(sample, waited_s=waited.get(sample.rid)) for sample in samples]

    def forget(self) -> None:
        """Let nothing come back, as after a restart."""
        self._passed.clear()

    def _visit(self, prompt: Prompt, phase: str) -> Iterator[Sample]:
        self._visits += 1
        for question in ("first", "again"):
            yield self._ask(prompt, phase, question)
        due = [each for each, passed in self._passed.items() if passed >= SPREAD * self._plan.hbm]
        if prompt.prefix in self._plan.targets and self.side.name != STOCK:
            self._passed[prompt] = 0
        for each in due:
            del self._passed[each]
            yield self._ask(each, phase, "later")

    def _ask(self, prompt: Prompt, phase: str, question: str) -> Sample:
        for each in self._passed:
            self._passed[each] += prompt.prefix if question != "again" else 0
        rid = f"{phase}-{self._visits}-{question}-{prompt.number}"
        answer = self.side.ask(tokens(self.side, prompt), ANSWER_TOKENS, rid)
        return _sample(answer, self.side.name, phase, self._visits, question, prompt, rid)


def tokens(side: Side, prompt: Prompt) -> tuple[int, ...]:
    """Return the tokens of a prompt, its question included."""
    return side.target.piece(prompt.prefix, prompt.number) + side.target.piece(TAIL_TOKENS, TAILS + prompt.number)


def source(cached: Cached, prefix: int) -> str:
    """Return the tier that most of a prefix came from, ``recompute`` for none, or ``mixed``.

    Unlike :attr:`Answer.source` this leaves out the question, which is a large part of a short prompt.
    """
    if cached.total == 0:
        return "recompute"
    return next((tier for tier in TIERS if getattr(cached, tier) >= MAIN_SHARE * prefix), "mixed")


def chunks(prompts: Sequence[Prompt]) -> Iterator[Sequence[Prompt]]:
    """Yield what is asked of one side before the other's turn."""
    for at in range(0, len(prompts), CHUNK):
        yield prompts[at : at + CHUNK]


def _sample(answer: Answer, side: str, phase: str, visit: int, question: str, prompt: Prompt, rid: str) -> Sample:
    cached = answer.cached
    assert cached is not None, "SGLang says where tokens come from"
    return Sample(
        side=side, phase=phase, visit=visit, question=question, prefix=prompt.prefix, number=prompt.number,
        source=source(cached, prompt.prefix), hbm=cached.hbm, dram=cached.dram, nvme=cached.nvme, ttft_s=answer.ttft_s,
        output=tuple(int(token) for token in answer.output), rid=rid,
    )  # fmt: skip
