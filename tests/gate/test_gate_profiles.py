from __future__ import annotations

from dataclasses import fields

import pytest
from gate_fakes import Clock, FakeServer

from radixtier.gate.profiles import PROFILES, Limits, fit, limit_names, plan, returning
from radixtier.gate.rounds import prompt_of
from radixtier.gate.stand import Room
from radixtier.units import BadValue


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("cpu", [True, False])
def test_every_plan_recovers_something_at_every_level(profile: str, quick: bool, cpu: bool) -> None:
    made = plan(profile, quick, cpu)
    for level in made.levels:
        assert len(made.level(level)) >= level
        assert min(made.level(level)) >= 2000
    assert made.levels == ((1, 2, 4) if cpu else (1, 4, 8) if quick else (8, 16, 32))
    assert (made.soak_s <= 300) == quick
    assert (made.tier is not None) == cpu


def test_the_cpu_demo_has_limits_by_length_and_its_tiers_hold_it() -> None:
    made = plan("long-context", True, cpu=True)
    assert made.limits.by_length == ((2000, 0.1), (4000, 0.05))
    assert plan("long-context", True).limits.by_length == ()
    assert made.tier is not None
    assert max(sum(made.level(level)) for level in made.levels) < made.tier.hbm
    cut, notes = fit(made, Room(None, made.tier.hbm, made.tier.dram, made.tier.nvme, 16))
    assert cut == made and notes == []


def test_overrides_are_of_the_plan_or_of_its_limits_and_none_is_not_given() -> None:
    made = plan("chat", True, levels=(3,), ttft_fall=0.5, soak_s=None)
    assert made.levels == (3,)
    assert made.limits == Limits(ttft_fall=0.5)
    assert made.soak_s == plan("chat", True).soak_s


def test_every_limit_says_what_it_is() -> None:
    assert all(each.metadata["help"] for each in fields(Limits) if each.name != "by_length")
    assert "no_reuse" in limit_names()


@pytest.mark.parametrize(
    ("profile", "wrong", "said"),
    [
        ("other", {}, "profile 'other'"),
        ("chat", {"levels": (0, 2)}, "levels"),
        ("chat", {"soak_s": 0.0}, "soak"),
        ("chat", {"rounds": 0}, "rounds"),
    ],
)
def test_bad_plans(profile: str, wrong: dict[str, object], said: str) -> None:
    with pytest.raises(BadValue, match=said):
        plan(profile, True, **wrong)


def test_fitting_cuts_prompts_to_the_smallest_bound() -> None:
    made = plan("long-context", False)
    cut, notes = fit(made, Room(prompt=20000, hbm=100_000, dram=15_000, nvme=10_000_000, page=64))
    assert max(cut.lengths) <= 0.8 * 15_000
    assert max(cut.lengths) % 64 == 0
    assert len(notes) == 1 and f"{max(cut.lengths):,}" in notes[0]
    assert fit(made, Room()) == (made, [])


def test_fitting_refuses_what_cannot_work() -> None:
    made = plan("long-context", False)
    with pytest.raises(BadValue, match="longer context"):
        fit(made, Room(prompt=300))
    with pytest.raises(BadValue, match="NVMe"):
        fit(made, Room(prompt=40000, nvme=100_000))


@pytest.mark.parametrize("profile", PROFILES)
def test_conversations_recover_what_the_plan_says(profile: str) -> None:
    made = plan(profile, True, cpu=True)
    numbers = iter(range(1000))
    loads = returning(made, FakeServer(Clock()), (32, 48), lambda: next(numbers), "x")
    assert [each.tokens for each in loads] == [32 + made.shared_tokens, 48 + made.shared_tokens]
    assert [len(each.prompt) for each in loads] == [each.tokens for each in loads]
    one, two = (each.prompt for each in loads)
    assert one[: made.shared_tokens] == two[: made.shared_tokens]
    assert one[made.shared_tokens] != two[made.shared_tokens]
    assert [len(each.conversation.turns) for each in loads] == [1 + made.follow_ups] * 2
    for turn in range(made.follow_ups + 1):
        expected = loads[0].tokens + turn * (made.answer_tokens + made.follow_tokens)
        assert len(prompt_of(loads[0], turn)) == expected
