"""Runs through `run`: what the report says, and that one replay tells of the smaller servers too."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixtier.lab.belady import belady
from radixtier.lab.rates import Rates
from radixtier.lab.report import Report, Spread
from radixtier.lab.setup import Setup, run
from radixtier.lab.tape import Tape
from radixtier.lab.traces.trace import ROOT, Nodes, Request
from radixtier.policy.wear import Endurance

DAY = 86_400.0


class Given:
    """A trace in memory: a tree of five nodes, and requests for paths of it."""

    block_tokens = 10
    skipped = 2
    first_bad = "t:1: x"
    PATHS = ((), (0,), (0, 1), (0, 2), (3,), (3, 4))

    def __init__(self, uses: list[int], every: float = 1.0, answers: bool = False) -> None:
        self.nodes = Nodes()
        for parent, pages in ((ROOT, 2), (0, 1), (0, 3), (ROOT, 2), (3, 2)):
            self.nodes.add(parent, pages)
        self._uses, self._every, self._answers = uses, every, answers

    def requests(self) -> Iterator[Request]:
        for number, use in enumerate(self._uses):
            path = self.PATHS[use]
            if self._answers and len(path) > 1:
                yield Request(number * self._every, use, path[:1], 25, answer=path[1:])
            else:
                yield Request(number * self._every, use, path)


USES = st.lists(st.integers(0, 5), max_size=40)
SIZES = st.tuples(st.integers(1, 6), st.integers(0, 6), st.integers(0, 6))
EVICTIONS = st.sampled_from(("lru", "slru", "s3fifo", "cost", "next_use", "auto"))


def figures(report: Report) -> tuple[object, ...]:
    return tuple(report.stacks[name] for name in ("hbm", "hbm_dram", "tiers"))


@given(USES, SIZES, EVICTIONS, st.booleans())
def test_a_smaller_server_fares_as_if_it_were_replayed_alone(
    uses: list[int], sizes: tuple[int, int, int], eviction: str, answers: bool
) -> None:
    hbm, dram, nvme = sizes
    report = run(Given(uses, answers=answers), Setup(hbm, dram, nvme, eviction=eviction))
    no_nvme = run(Given(uses, answers=answers), Setup(hbm, dram, eviction=eviction))
    alone = run(Given(uses, answers=answers), Setup(hbm, eviction=eviction))
    assert (report.counts.hbm_hits, report.counts.dram_hits) == (no_nvme.counts.hbm_hits, no_nvme.counts.dram_hits)
    assert report.stacks["hbm_dram"] == no_nvme.stacks["tiers"]
    assert report.stacks["hbm"] == no_nvme.stacks["hbm"] == alone.stacks["tiers"]


@given(USES, SIZES)
def test_the_ceiling_is_above_and_that_of_one_tier_of_all_blocks(uses: list[int], sizes: tuple[int, int, int]) -> None:
    report = run(Given(uses), Setup(*sizes, admission="all"))
    best, references = belady(Given(uses).requests(), Given([]).nodes, sum(sizes))
    ceiling = report.stacks["ceiling"]
    assert (ceiling.hits, report.counts.blocks) == (best, references)
    assert report.stacks["tiers"].hits == report.counts.hits <= ceiling.hits
    tokens = report.tokens
    assert tokens["hbm"] + tokens["dram"] + tokens["nvme"] == report.stacks["tiers"].tokens <= tokens["input"]


@given(USES, SIZES, EVICTIONS)
def test_answers_are_in_hbm_and_no_references(uses: list[int], sizes: tuple[int, int, int], eviction: str) -> None:
    report = run(Given(uses, answers=True), Setup(*sizes, eviction=eviction, admission="all"))
    paths = [Given.PATHS[use] for use in uses]
    assert report.counts.blocks == sum(2 for path in paths if path)
    assert report.counts.hits <= report.stacks["ceiling"].hits


def test_an_answer_is_found_by_the_turn_that_goes_on() -> None:
    class Talk(Given):
        def requests(self) -> Iterator[Request]:
            yield Request(0.0, 0, (0,), 25, 9, answer=(1,))
            yield Request(1.0, 0, (0, 1), 35, 9)

    for dram, hits in ((0, 3), (3, 3)):
        report = run(Talk([]), Setup(3, dram))
        assert (report.counts.hits, report.counts.blocks, report.stacks["ceiling"].hits) == (hits, 5, hits)
        assert report.tokens == {"input": 60, "hbm": 30, "dram": 0, "nvme": 0}


def test_tokens_are_no_more_than_the_prompt_has() -> None:
    class Partial(Given):
        def requests(self) -> Iterator[Request]:
            for now in (0.0, 1.0):
                yield Request(now, 0, (0, 2), 41)

    report = run(Partial([]), Setup(2, 9))
    assert (report.counts.hbm_hits, report.counts.dram_hits) == (2, 3)
    assert report.tokens == {"input": 82, "hbm": 20, "dram": 21, "nvme": 0}


def test_every_figure_is_in_the_dictionary() -> None:
    """Two paths take turns in HBM of one: each time one goes down, all the way to NVMe."""
    report = run(Given([2, 5] * 4, every=DAY / 7), Setup(4, 0, 20, admission="all", kv_bytes_per_token=100))
    found = json.loads(json.dumps(report.as_dict(now=0.0)))
    block = 1000
    assert found["bytes"] == {
        "hbm_to_dram": 0,
        "dram_to_hbm": found["nvme_hits"] * block,
        "dram_to_nvme": 7 * block,
        "nvme_to_dram": found["nvme_hits"] * block,
    }
    assert (found["written"], found["bytes_written"], found["bytes_written_per_day"]) == (7, 7000, 7000)
    # 20 blocks, five years at one write of them a day: 36,500,000 bytes, at 7,000 a day, of which 7,000 are spent.
    assert found["worn_out"] == "1984-04-10"
    assert (found["skipped"], found["interrupted"], found["seconds"]) == (2, False, DAY)
    assert list(found["stacks"]) == ["hbm", "hbm_dram", "tiers", "ceiling"]
    for stack in found["stacks"].values():
        assert set(stack) >= {"hit_ratio", "hit_tokens", "ttft_s", "queue_s", "prefill_s", "utilisation"}
        assert set(stack["ttft_s"]) == set(stack["queue_s"]) == {"mean", "p50", "p95", "p99"}
    assert found["stacks"]["tiers"]["hit_ratio"] == found["hit_ratio"]["total"]


def test_wear_is_that_of_the_drive_given() -> None:
    report = run(Given([2, 5] * 4, every=DAY / 7), Setup(4, 0, 20, admission="all", kv_bytes_per_token=100))
    assert report.as_dict(Endurance(7000, 1.0, 1.0), now=0.0)["worn_out"] == "1970-12-31"
    assert run(Given([2]), Setup(4)).as_dict()["worn_out"] is None


def test_an_overloaded_server_says_so() -> None:
    slow = Rates(prefill=Rates().prefill._replace(overhead=3.0))
    report = run(Given([1] * 11), Setup(9), rates=slow)
    assert report.utilisation("hbm") == pytest.approx(3.3, abs=0.01)
    assert report.stacks["hbm"].queue.p50 == pytest.approx(10.0, abs=0.1), "each waits 2 s longer than the one before"


def test_an_interrupt_ends_a_run_with_what_was_replayed() -> None:
    def stop(served: int) -> None:
        if served == 3:
            raise KeyboardInterrupt

    report = run(Given([1, 2, 3, 4, 5]), Setup(9), progress=stop)
    assert report.interrupted and report.counts.requests == 3 and "ceiling" not in report.stacks


def test_a_trace_too_long_for_the_ceiling_is_replayed_without() -> None:
    tape = Tape(most=5)
    for request in Given([1, 2, 2, 3]).requests():
        tape.add(request, 1)
    assert tape.too_long and len(tape) == 0 and not tape.nodes


def test_no_requests_are_a_report_of_zeros() -> None:
    report = run(Given([]), Setup(1, 1, 1))
    assert report.hit_ratio == 0.0 and report.utilisation("tiers") is None
    assert report.as_dict()["stacks"]["ceiling"]["ttft_s"] == {"mean": 0.0, "p50": 0.0, "p95": 0.0, "p99": 0.0}


@pytest.mark.parametrize("times", [[1.0, 2.0, 3.0, 4.0]])
def test_percentiles_lie_between_the_times(times: list[float]) -> None:
    import numpy as np

    assert Spread.of(np.array(times)) == pytest.approx((2.5, 2.5, 3.85, 3.97))
