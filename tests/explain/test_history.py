"""The records of the last requests."""

from __future__ import annotations

from radixtier.explain.history import MOST_CAUSES, MOST_HINTS, MOST_NAME, Cause, History, Reason, RequestRecord


def test_the_last_requests_are_kept_and_the_latest_of_an_id_counts() -> None:
    history = History(most=3)
    for i, rid in enumerate("abacd"):
        history.add(RequestRecord(rid, prompt_tokens=i))
    assert len(history) == 3
    assert [(record.rid, record.prompt_tokens) for record in history.latest(9)] == [("d", 4), ("c", 3), ("a", 2)]
    assert [record.rid for record in history.latest(1)] == ["d"] and history.latest(0) == history.latest(-1) == []
    found = history.find("a")
    assert found is not None and found.prompt_tokens == 2
    assert history.find("b") is None and history.find("nobody") is None
    history.clear()
    assert len(history) == 0 and history.find("a") is None


def test_a_record_is_bounded_whatever_a_client_names_things() -> None:
    history = History()
    name = "n" * 100_000
    record = RequestRecord(name, session=name, hints=[{"kind": "pin"}] * 1000)
    history.add(record)
    found = history.find(name)
    assert found is not None
    assert found.rid == found.session == "n" * MOST_NAME and len(found.hints) == MOST_HINTS
    assert record.rid == name


def test_causes_add_up_to_what_was_computed() -> None:
    record = RequestRecord("r", prompt_tokens=1000, hbm=100, dram=200, nvme=300)
    assert record.recomputed == 400
    record.because(Reason.NEVER_SEEN, 100)
    record.because(Reason.EVICTED, 120, when=5.0, rule="lru")
    record.because(Reason.EVICTED, 80, when=6.0, rule="lru")
    record.because(Reason.NEVER_SEEN, 50)
    record.because(Reason.EVICTED, 50, when=5.0, rule="lru")
    record.because(Reason.LOST, 0)
    assert record.causes == [
        Cause(Reason.NEVER_SEEN, 150),
        Cause(Reason.EVICTED, 170, when=5.0, rule="lru"),
        Cause(Reason.EVICTED, 80, when=6.0, rule="lru"),
    ]
    assert sum(cause.tokens for cause in record.causes) == record.recomputed


def test_no_token_goes_missing_among_many_causes() -> None:
    record = RequestRecord("r")
    record.because(Reason.DECLINED, 7, "write budget")
    for i in range(1000):
        record.because(Reason.EVICTED, 1, when=float(i), rule="lru")
    record.because(Reason.LOST, 5, "x" * 10_000)
    assert len(record.causes) == MOST_CAUSES and sum(cause.tokens for cause in record.causes) == 1012
    assert record.causes[0] == Cause(Reason.DECLINED, 7, "write budget")


def test_more_served_than_the_prompt_has_is_no_negative_number() -> None:
    assert RequestRecord("r", prompt_tokens=10, hbm=16).recomputed == 0
