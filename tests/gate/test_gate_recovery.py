from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from gate_fakes import FakeStand, virtual_time

from radixtier.gate import recovery, rounds
from radixtier.gate.profiles import NoReuse, Plan, plan
from radixtier.gate.progress import Progress
from radixtier.gate.ratios import enclosed
from radixtier.gate.result import Result, Verdict
from radixtier.gate.sources import own_cached
from radixtier.gate.stand import Room
from radixtier.live import page_cache
from radixtier.load.answer import Cached
from radixtier.load.figures import Ratio


def small(profile: str = "long-context", **limits: float) -> Plan:
    """A plan of a few hundred tokens, with limits that the fake server keeps well."""
    made = plan(profile, True, cpu=True, levels=(1, 3), rounds=2, spare_rounds=1, **limits)
    return replace(
        made,
        limits=replace(made.limits, by_length=((320, 0.5), (640, 0.25))),
        level_lengths=(),
        lengths=(320, 640),
        by_length=(320, 640, 960),
        shared_tokens=min(made.shared_tokens, 32),
        think_s=0.0,
        answers=3,
        answers_tokens=160,
        no_reuse=NoReuse(
            prompt_tokens=64, prompts=2, concurrency=2, answer_tokens=2, warm_turns=1, turns=3, most_turns=6
        ),
    )


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeStand, Plan], Result]:
    def go(stand: FakeStand, made: Plan) -> Result:
        virtual_time(monkeypatch, stand.clock)
        return recovery.run(stand, made, Progress(None))

    return go


Run = Callable[[FakeStand, Plan], Result]


def verdicts(result: Result) -> dict[str, Verdict]:
    return {check.name: check.verdict for check in result.checks}


@pytest.mark.parametrize("profile", ["long-context", "chat", "agents"])
def test_cold_recovery_that_pays_passes(profile: str, run: Run) -> None:
    made = small(profile)
    result = run(FakeStand(), made)
    assert set(verdicts(result).values()) == {Verdict.PASS}, result.reasons
    level = result.figures["levels"]["3"]
    assert level["rounds"] == 2 and level["troubles"] == []
    assert level["cold"]["tokens"]["nvme"] >= 0.9 * level["cold"]["sources"]["nvme"]["requests"] * 320
    assert level["ttft_ratio"][0] < 0.5 and level["throughput_ratio"][0] > 1.3
    row = result.figures["by_length"]["320"]
    assert row["recompute_s"] > row["nvme_s"] > row["dram_s"] > row["hbm_s"] and row["ratio"] < 0.5
    assert result.figures["answers"] == {"compared": 6, "equal": 6, "control": 6, "control_equal": 6}
    assert result.figures["no_reuse"]["ratio"] == [1.0, 1.0, 1.0]
    assert result.figures["restart"]["share"] >= 0.9


def test_a_pass_alternates_and_gives_both_sides_the_same_prompts(run: Run) -> None:
    stand = FakeStand()
    order: list[str] = []
    stand.plain.on_ask = lambda: order.append("stock")
    stand.server.on_ask = lambda: order.append("tiered")
    made = replace(small(), levels=(1,), per_client=2)
    run(stand, made)
    seed = 2
    rounds = order[seed : seed + 12]
    # Stock computes two prompts and is asked both again; the cold side has them once; then the other way round.
    assert rounds == ["stock"] * 4 + ["tiered"] * 2 + ["tiered"] * 2 + ["stock"] * 4
    assert set(stand.plain.asked[:4]) == set(stand.server.asked[:2])


def test_a_recovery_as_slow_as_recompute_fails(run: Run) -> None:
    stand = FakeStand()
    stand.server.hit_s["nvme"] = 0.5
    found = verdicts(run(stand, small()))
    assert found["TTFT p50, concurrency 1"] is Verdict.FAIL
    assert found["throughput, concurrency 3"] is Verdict.FAIL
    assert found["cold rounds, concurrency 1"] is Verdict.PASS
    assert found["TTFT from NVMe / recompute at 320 tokens"] is Verdict.FAIL
    assert found["after a restart, fall of TTFT"] is Verdict.FAIL
    assert found["after a restart, share from the store"] is Verdict.PASS


def test_thresholds_are_the_users(run: Run) -> None:
    found = verdicts(run(FakeStand(), small(ttft_fall=0.99, throughput_rise=50.0)))
    assert found["TTFT p50, concurrency 1"] is Verdict.FAIL
    assert found["throughput, concurrency 1"] is Verdict.FAIL


@pytest.mark.parametrize("where", ["dram", "hbm"])
def test_what_does_not_come_from_nvme_does_not_count(where: str, run: Run) -> None:
    stand = FakeStand()
    stand.chills_to = where
    result = run(stand, small())
    found = verdicts(result)
    assert found["cold rounds, concurrency 1"] is Verdict.FAIL
    assert found["TTFT p50, concurrency 1"] is Verdict.FAIL
    assert found["TTFT from NVMe / recompute at 320 tokens"] is Verdict.FAIL
    assert found["answers from NVMe"] is Verdict.FAIL
    assert result.figures["levels"]["1"]["rounds"] == 0
    assert "NVMe" in result.figures["levels"]["1"]["troubles"][0]


def test_failing_requests_cost_their_round_and_spare_rounds_make_up_for_it(run: Run) -> None:
    stand = FakeStand()
    stand.plain.errors = ["no luck"]
    result = run(stand, small())
    assert verdicts(result)["cold rounds, concurrency 1"] is Verdict.PASS
    assert result.figures["levels"]["1"]["troubles"] == ["round 1: 1 baseline requests failed: no luck"]


def test_a_server_that_only_fails_fails(run: Run) -> None:
    stand = FakeStand()
    stand.server.always_error = "broken"
    found = verdicts(run(stand, small()))
    assert found["cold rounds, concurrency 1"] is Verdict.FAIL
    assert found["after a restart, share from the store"] is Verdict.FAIL


def test_wrong_answers_from_nvme_fail(run: Run) -> None:
    stand = FakeStand()
    stand.server.wrong_from = "nvme"
    result = run(stand, small())
    assert verdicts(result)["answers from NVMe"] is Verdict.FAIL
    assert result.figures["answers"]["equal"] == 0


def test_a_store_that_does_not_survive_fails_the_restart(run: Run) -> None:
    stand = FakeStand()
    stand.survives = False
    found = verdicts(run(stand, small()))
    assert found["after a restart, share from the store"] is Verdict.FAIL


def test_a_users_server_is_compared_with_prompts_that_are_new_to_it(run: Run) -> None:
    stand = FakeStand(stock=False)
    stand.unavailable = {"restart", "flush", "kill", "misbehave"}
    result = run(stand, small())
    found = verdicts(result)
    assert result.verdict is Verdict.PASS
    assert found["after a restart"] is Verdict.SKIPPED
    assert found["no-reuse throughput"] is Verdict.SKIPPED
    assert found["TTFT p50, concurrency 3"] is Verdict.PASS
    assert result.figures["answers"]["control"] > 0
    assert stand.flushed == 0


def test_without_a_way_down_to_nvme_everything_is_skipped(run: Run) -> None:
    stand = FakeStand(stock=False)
    stand.unavailable = {"chill"}
    result = run(stand, small())
    assert result.verdict is Verdict.SKIPPED
    assert result.reasons == ["cold recovery: no chill here"]
    assert not stand.server.asked


# ---- requests, answers and limits that must not be passed over ---------------------------------------------------


def test_a_failed_request_of_the_tier_fails_however_many_rounds_make_up_for_it(run: Run) -> None:
    stand = FakeStand()
    calls = 0

    def at_the_tenth() -> None:
        nonlocal calls
        calls += 1
        if calls == 10:
            stand.server.errors = ["no page"]

    stand.server.on_ask = at_the_tenth
    result = run(stand, small())
    found = {check.name: check for check in result.checks}
    assert found["cold rounds, concurrency 3"].verdict is Verdict.PASS
    assert found["requests of the server with the tier"].verdict is Verdict.FAIL
    assert "1 of" in found["requests of the server with the tier"].reason
    assert result.figures["requests"]["failed"] == 1 and result.verdict is Verdict.FAIL


def test_answers_are_only_compared_with_those_to_the_same_prompt(run: Run) -> None:
    """The baseline of a stand without stock asks others; what they are answered tells nothing."""
    stand = FakeStand(stock=False)
    stand.unavailable = {"restart", "flush"}
    stand.server.wrong_from = "nvme"
    result = run(stand, small())
    assert verdicts(result)["answers from NVMe"] is Verdict.FAIL
    assert result.figures["answers"]["equal"] == 0
    right = FakeStand(stock=False)
    right.unavailable = {"restart", "flush"}
    found = run(right, small()).figures["answers"]
    # Level 1 has one conversation, by_length two more, and there are three beside: all have an answer of their own.
    assert found == {"compared": 6, "equal": 6, "control": 6, "control_equal": 6}


def test_a_limit_by_length_that_was_not_measured_fails_unless_the_length_was_cut(run: Run) -> None:
    made = small()
    odd = replace(made, limits=replace(made.limits, by_length=((777, 0.5),)))
    assert verdicts(run(FakeStand(), odd))["TTFT from NVMe / recompute at 777 tokens"] is Verdict.FAIL

    class Small(FakeStand):
        def room(self) -> Room:
            return Room(prompt=1000)

    long = replace(made, by_length=(320, 5000), limits=replace(made.limits, by_length=((5000, 0.5),)))
    result = run(Small(), long)
    assert verdicts(result)["TTFT from NVMe / recompute at 5,000 tokens"] is Verdict.SKIPPED
    assert result.figures["notes"]


def test_the_agents_share_one_system_prompt_which_is_no_recovery(run: Run) -> None:
    made = small("agents")
    stand = FakeStand()
    result = run(stand, made)
    assert result.verdict is Verdict.PASS, result.reasons
    heads = {prompt[: made.shared_tokens] for prompt in stand.plain.asked[:8]}
    assert len(heads) == 1 and made.shared_tokens == 32
    # A shared part that is as long as the rest hides nothing: what is own came from NVMe.
    half = replace(made, shared_tokens=320, by_length=(320,), limits=replace(made.limits, by_length=((320, 0.9),)))
    result = run(FakeStand(), half)
    assert result.figures["by_length"]["320"]["nvme_samples"] > 0
    assert result.figures["levels"]["3"]["shares"] == pytest.approx([0.95, 0.95], abs=0.06)


def test_own_tokens_are_what_is_left_without_the_shared_ones() -> None:
    assert own_cached(Cached(hbm=100, nvme=900), 128) == Cached(nvme=872)
    assert own_cached(Cached(hbm=200, dram=5, nvme=900), 128) == Cached(hbm=72, dram=5, nvme=900)
    assert own_cached(Cached(nvme=50), 128) == Cached()


@pytest.mark.parametrize(("engine", "counts"), [("posix buffered", False), ("posix O_DIRECT", True)])
def test_rounds_that_were_read_from_memory_do_not_count(
    engine: str, counts: bool, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand = FakeStand()
    stand.directories = (tmp_path,)
    stand.told = {**(stand.told or {}), "engine": engine}
    monkeypatch.setattr(rounds.page_cache, "drop", lambda directory: page_cache.Files(1, 1 << 30, 1 << 29))
    result = run(stand, small())
    assert verdicts(result)["cold rounds, concurrency 1"] is (Verdict.PASS if counts else Verdict.FAIL)
    assert bool(result.figures["levels"]["1"]["troubles"]) is not counts
    assert result.figures["restart"]["page_cache_bytes"] == (0 if counts else 1 << 29)


def test_few_rounds_have_a_range_and_no_interval(run: Run) -> None:
    result = run(FakeStand(), small())
    assert result.figures["levels"]["1"]["bounds"] == "range of 2 rounds"
    [check] = [check for check in result.checks if check.name == "TTFT p50, concurrency 1"]
    assert "range of 2 rounds" in check.reason and "interval" not in check.reason
    many = run(FakeStand(), replace(small(), rounds=6))
    assert many.figures["levels"]["1"]["bounds"] == "95 % interval"
    assert enclosed(Ratio(1.0, 0.99, 1.01), [0.5, 1.0, 2.0]) == Ratio(1.0, 0.5, 2.0)
