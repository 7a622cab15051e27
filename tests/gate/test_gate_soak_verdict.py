from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from radixtier.gate.profiles import Plan, plan
from radixtier.gate.result import Check, Verdict
from radixtier.gate.soak_events import FAULTS, KILL, KINDS, TITLES, Event
from radixtier.gate.soak_load import Known
from radixtier.gate.soak_records import Record, Records
from radixtier.gate.soak_verdict import Seen, judge, quiet_times
from radixtier.gate.soak_watch import Sample, drift, growth, samples_json, thinned

PLAN: Plan = plan("chat", True, cpu=True)


def record(at_s: float = 0.0, outcome: Any = "right", ttft_s: float = 0.2, source: str = "hbm") -> Record:
    return Record(at_s, at_s + 0.5, outcome, source, ttft_s, "refused" if outcome == "failed" else "")


def sample(at_s: float, life: int = 0, **fields: int) -> Sample:
    told = {"rss_bytes": 10**9, "descriptors": 100, "threads": 50, "store_bytes": 900} | fields
    return Sample(at_s, life, **told)


def event(kind: str, at_s: float, recovered_s: float | None = 1.0, **fields: Any) -> Event:
    hit = True if kind in FAULTS else None
    return Event(kind, at_s, at_s + 2.0, recovered_s, **{"hit": hit, **fields})


def good() -> Seen:
    """A soak of 100 s without a fault of the server."""
    events = [event(kind, 10.0 * at) for at, kind in enumerate(KINDS, 1)]
    events.append(event(KILL, 60.0, stored_share=0.95))
    return Seen(
        records=[record(0.5 * at) for at in range(200)],
        events=events,
        samples=[sample(float(at), int(at >= 62)) for at in range(100)],
        known=Known({}, asked=20),
        cap=1000,
        state={"store": {"degraded": []}},
        seconds=100.0,
    )


def verdict(seen: Seen, name: str, made: Plan = PLAN) -> Check:
    return next(check for check in judge(seen, made) if check.name == name)


def test_a_good_soak_passes_every_check() -> None:
    checks = judge(good(), PLAN)
    assert {check.verdict for check in checks} == {Verdict.PASS}, [c for c in checks if c.verdict != Verdict.PASS]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"records": [*good().records, record(9.0, "wrong")]}, "wrong answers"),
        ({"records": []}, "wrong answers"),
        ({"records": [*good().records, record(90.0, "failed")]}, "failed requests"),
        ({"cap": 800}, "store under its cap"),
        ({"state": {"store": {"degraded": ["no space"]}}}, "store healthy in the end"),
        ({"samples": [sample(float(at), rss_bytes=10**9 + at * 10**7) for at in range(100)]}, "memory growth"),
        ({"samples": [sample(float(at), descriptors=100 + at) for at in range(100)]}, "descriptor growth"),
        ({"samples": [sample(float(at), threads=50 + at) for at in range(100)]}, "thread growth"),
        ({"records": [record(at / 10, ttft_s=0.1 + at / 100) for at in range(100)], "events": []}, "TTFT drift"),
        ({"events": [event(KILL, 60.0, stored_share=0.0)]}, "the store survives kill -9"),
        ({"events": [event(KILL, 60.0, stored_share=0.5)]}, "the store survives kill -9"),
        ({"known": Known({}, asked=100, varied=6)}, "wrong answers"),
        ({"records": [record(0.3 * at) for at in range(200)]}, "answers all along"),
        ({"troubles": ["a client ended: KeyError: 7"]}, "load and samples"),
        ({"counts": {"right": 200, "failed": 1}}, "failed requests"),
    ],
)
def test_each_check_fails(change: dict[str, Any], name: str) -> None:
    assert verdict(replace(good(), **change), name).verdict is Verdict.FAIL


@pytest.mark.parametrize("kind", [*KINDS, KILL])
def test_an_event_without_recovery_fails(kind: str) -> None:
    others = [each for each in good().events if each.kind != kind]
    stuck = event(kind, 50.0, None, trouble="nothing reached NVMe")
    check = verdict(replace(good(), events=[*others, event(kind, 40.0), stuck]), f"recovery: {TITLES[kind]}")
    assert check.verdict is Verdict.FAIL
    assert "1 of 2" in check.reason and "nothing reached NVMe" in check.reason
    burst = replace(good(), events=[*others, event(kind, 50.0, 1.0, trouble="2 of 3 requests failed")])
    assert verdict(burst, f"recovery: {TITLES[kind]}").verdict is Verdict.FAIL


def test_what_was_not_done_is_skipped_with_the_reason() -> None:
    seen = replace(
        good(), events=[event("flush", 1.0, None, skipped="in use")], samples=[sample(1.0)], cap=None, state={}
    )
    found = {check.name: check for check in judge(seen, PLAN)}
    assert found["recovery: flush"].reason == "in use"
    for name in (
        "recovery: flush", "recovery: kill -9", "the store survives kill -9", "memory growth", "descriptor growth",
        "thread growth", "store under its cap", "store healthy in the end",
    ):  # fmt: skip
        assert found[name].verdict is Verdict.SKIPPED, name
    assert found["wrong answers"].verdict is Verdict.PASS


@pytest.mark.parametrize("kind", sorted(FAULTS))
def test_faults_that_hit_nothing_prove_nothing(kind: str) -> None:
    name = f"recovery: {TITLES[kind]}"
    for hit, expected in ((None, Verdict.SKIPPED), (False, Verdict.SKIPPED), (True, Verdict.PASS)):
        assert verdict(replace(good(), events=[event(kind, 40.0, hit=hit)]), name).verdict is expected


def test_a_recovery_of_which_only_the_answers_were_seen_does_not_pass() -> None:
    for kind in (*KINDS, KILL):
        seen = replace(good(), events=[event(kind, 40.0, unchecked="no control endpoint")])
        check = verdict(seen, f"recovery: {TITLES[kind]}")
        assert check.verdict is Verdict.SKIPPED and "no control endpoint" in check.reason


def test_a_users_server_that_varies_is_not_judged() -> None:
    known = Known({}, asked=100, varied=6)
    assert verdict(replace(good(), known=known, attached=True), "wrong answers").verdict is Verdict.SKIPPED
    bad = [record(float(at), "wrong") for at in range(100)]
    seen = replace(good(), known=known, attached=True, records=[*good().records, *bad])
    assert verdict(seen, "wrong answers").verdict is Verdict.FAIL


def test_only_what_ran_at_the_kill_and_not_while_it_was_prepared_may_fail() -> None:
    kill = event(KILL, 60.0, stored_share=1.0, began_s=50.0)
    early = replace(good(), events=[kill], records=[*good().records, record(52.0, "failed")])
    assert verdict(early, "failed requests").verdict is Verdict.FAIL
    assert not quiet_times([kill])(record(52.0))


def test_records_are_counted_in_full_and_kept_in_a_bounded_even_sample() -> None:
    records = Records(most=100)
    for at in range(10_000):
        records.add(record(float(at), "failed" if at % 10 == 0 else "right"))
    kept = records.kept()
    right = [each.began_s for each in kept if each.outcome == "right"]
    assert records.counts == {"right": 9000, "failed": 1000} and len(records) == 10_000
    assert 50 <= len(right) <= 100 and right[0] < 200 and right[-1] > 9700
    assert max(b - a for a, b in pairwise(right)) < 300
    assert sum(each.outcome == "failed" for each in kept) == 100
    assert len(records.recent()) == 2000 and records.recent() == []


def test_a_third_in_which_the_server_was_being_started_needs_no_answer() -> None:
    early = [record(0.3 * at) for at in range(200)]
    for end_s, expected in ((98.0, Verdict.PASS), (70.0, Verdict.FAIL)):
        kill = replace(event(KILL, 65.0), end_s=end_s)
        assert verdict(replace(good(), records=early, events=[kill]), "answers all along").verdict is expected


def test_overlapping_events_are_one_disturbance() -> None:
    quiet = quiet_times([event("burst", 10.0, 30.0), event("flush", 15.0, 1.0), event("burst", 60.0)])
    assert [quiet(record(float(at))) for at in (5, 16, 35, 41, 50, 61, 70)] == [
        True, False, False, False, True, False, True,
    ]  # fmt: skip


def test_a_server_that_varies_by_itself_is_held_against_that() -> None:
    records = [record(float(at), "wrong" if at % 20 == 0 else "right") for at in range(200)]
    exact, varying = Known({}, asked=100), Known({}, asked=100, varied=4)
    assert verdict(replace(good(), records=records, known=exact), "wrong answers").verdict is Verdict.FAIL
    assert verdict(replace(good(), records=records, known=varying), "wrong answers").verdict is Verdict.PASS
    worse = [record(float(at), "wrong" if at % 3 == 0 else "right") for at in range(200)]
    assert verdict(replace(good(), records=worse, known=varying), "wrong answers").verdict is Verdict.FAIL


def test_requests_may_fail_when_the_server_is_killed_and_at_no_other_event() -> None:
    killed = [record(59.8, "failed"), record(61.0, "failed")]
    assert verdict(replace(good(), records=[*good().records, *killed]), "failed requests").verdict is Verdict.PASS
    faulty = [record(20.5, "failed")]
    assert verdict(replace(good(), records=[*good().records, *faulty]), "failed requests").verdict is Verdict.FAIL


def test_growth_is_that_of_the_second_half_of_the_longest_life() -> None:
    filling = [sample(float(at), 0, rss_bytes=min(at, 50) * 10**7) for at in range(101)]
    other = [sample(200.0 + at, 1, rss_bytes=at * 10**9) for at in range(20)]
    grown = growth([*filling, *other], "rss_bytes")
    assert grown == (0.0, 50 * 10**7)
    leak = growth([sample(float(at), rss_bytes=at * 1000) for at in range(101)], "rss_bytes")
    assert leak is not None and leak[0] == pytest.approx(50 * 1000)


def test_one_odd_reading_is_no_growth() -> None:
    samples = [sample(float(at), descriptors=1000 if at == 99 else 100) for at in range(100)]
    grown = growth(samples, "descriptors")
    assert grown is not None and grown[0] == pytest.approx(0.0)


def test_too_few_samples_tell_nothing() -> None:
    assert growth([sample(float(at)) for at in range(5)], "threads") is None
    assert growth([], "threads") is None
    assert drift([record()] * 10, "hbm", lambda _: True) is None


def test_drift_counts_undisturbed_right_hits_of_one_source() -> None:
    calm = [record(float(at)) for at in range(90)]
    noise = [record(20.5, ttft_s=9.0), record(50.0, "cut", 9.0), record(51.0, source="nvme", ttft_s=9.0)]
    quiet = quiet_times([event("slow", 20.0, 1.0)])
    found = drift(sorted([*calm, *noise], key=lambda each: each.began_s), "hbm", quiet)
    assert found is not None and found[0] == pytest.approx(1.0)


def test_an_event_without_recovery_disturbs_everything_after_it() -> None:
    quiet = quiet_times([event("slow", 20.0, None), event("flush", 1.0, None, skipped="in use")])
    assert quiet(record(1.0)) and not quiet(record(21.0)) and not quiet(record(1000.0))


def test_a_report_has_a_bounded_number_of_samples() -> None:
    samples = [sample(float(at)) for at in range(10_000)]
    assert len(samples_json(samples)) == 800
    kept = thinned(samples, 50)
    assert len(kept) == 50 and kept[0] is samples[0] and kept[-1] is samples[-1]
