from __future__ import annotations

import pytest

from radixtier.gate.answers import compare
from radixtier.gate.lengths import Samples
from radixtier.gate.result import Verdict
from radixtier.load.answer import Answer


def answer(output: int) -> Answer:
    return Answer(0.0, 1.0, 1.0, output=(output,))


def samples(computed: list[int], cold: list[int], hits: list[int]) -> Samples:
    """One prompt per place in the lists: what it was answered in each way."""
    made = Samples()
    for at, output in enumerate(computed):
        made.tokens[f"c{at}"] = 100
        made.answers[f"c{at}", "recompute"] = [answer(output)]
    for at, output in enumerate(cold):
        made.answers[f"c{at}", "nvme"] = [answer(output)]
    for at, output in enumerate(hits):
        made.control[f"c{at}"] = [answer(output)]
    return made


@pytest.mark.parametrize(
    ("cold", "hits", "verdict"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 4], Verdict.PASS),
        ([1, 2, 3, 9], [1, 2, 3, 4], Verdict.FAIL),
        ([1, 2, 3, 9], [1, 2, 9, 4], Verdict.PASS),
        ([1, 2, 8, 9], [1, 2, 9, 4], Verdict.FAIL),
        ([1, 2, 3, 9], [], Verdict.FAIL),
        ([], [1, 2, 3, 4], Verdict.FAIL),
    ],
)
def test_as_many_must_be_equal_as_in_the_control(cold: list[int], hits: list[int], verdict: Verdict) -> None:
    check, figures = compare([samples([1, 2, 3, 4], cold, hits)])
    assert check.verdict is verdict
    assert figures["compared"] == len(cold)
    assert figures["control"] == len(hits)


def test_sets_are_taken_together_and_every_cold_answer_must_agree() -> None:
    one, two = samples([1], [1], [1]), samples([2], [2], [2])
    assert compare([one, two])[1] == {"compared": 2, "equal": 2, "control": 2, "control_equal": 2}
    two.answers["c0", "nvme"].append(answer(7))
    check, figures = compare([one, two])
    assert check.verdict is Verdict.FAIL and figures["equal"] == 1
