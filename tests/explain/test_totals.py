"""Totals over finished requests: each once, reasons whenever they are told, and never less than before."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from radixtier.explain import Reason, RequestRecord, Totals


def record(rid: str = "r") -> RequestRecord:
    return RequestRecord(rid, waited_s=0.5, prompt_tokens=100, hbm=10, dram=20, nvme=30)


def test_a_request_counts_once() -> None:
    totals, one = Totals(), record()
    totals.add(one)
    totals.add(one)
    totals.add(record("other"))
    assert (totals.finished, totals.waited_s) == (2, 1.0)
    assert totals.tokens == {"hbm": 20, "dram": 40, "nvme": 60, "computed": 80}
    assert totals.because == dict.fromkeys(Reason, 0)


def test_reasons_count_from_the_end_of_a_request_on() -> None:
    totals, one = Totals(), record()
    one.because(Reason.EVICTED, 15, rule="lru", when=1.0)
    totals.explained(one)
    assert not totals.because[Reason.EVICTED]
    totals.add(one)
    assert totals.because[Reason.EVICTED] == 15
    one.because(Reason.NEVER_SEEN, 20)
    one.because(Reason.EVICTED, 5, rule="lru", when=2.0)
    totals.explained(one)
    totals.explained(one)
    assert (totals.because[Reason.EVICTED], totals.because[Reason.NEVER_SEEN]) == (20, 20)
    assert sum(totals.because.values()) == totals.tokens["computed"] == 40


@given(steps=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(Reason), st.integers(0, 50), st.booleans())))
def test_totals_only_grow_and_add_up(steps: list[tuple[int, Reason, int, bool]]) -> None:
    totals, records = Totals(), [record(str(i)) for i in range(4)]
    ended: set[int] = set()
    before: Counter[Reason] = Counter()
    for i, reason, tokens, ends in steps:
        records[i].because(reason, tokens)
        if ends:
            totals.add(records[i])
            ended.add(i)
        totals.explained(records[i])
        assert all(totals.because[each] >= before[each] for each in Reason)
        before = Counter(totals.because)
    expected: Counter[Reason] = Counter()
    for i in ended:
        for cause in records[i].causes:
            expected[cause.reason] += cause.tokens
    assert +totals.because == +expected and totals.finished == len(ended)
