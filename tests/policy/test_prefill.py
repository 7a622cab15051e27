"""What prefill is believed to cost, from what batches took."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixtier.policy.prefill import FAST, Machine, PrefillCost

MACHINES = {
    "8B on a GPU": Machine(0.012, 1 / 20_000, 1 / 20_000 / 30_000),
    "small on a GPU": Machine(0.02, 1 / 60_000, 1 / 60_000 / 60_000),
    "135M on a CPU": Machine(0.01, 1 / 350, 1 / 350 / 4_000),
}

Batch = list[tuple[int, int]]
Load = Callable[[np.random.Generator], Batch]


def chat(random: np.random.Generator) -> Batch:
    """Turns of a few hundred tokens behind long conversations, one to three at a time."""
    return [
        (int(random.lognormal(6, 1.2)) + 1, int(random.uniform(0, 30_000))) for _ in range(int(random.integers(1, 4)))
    ]


def chunks(random: np.random.Generator) -> Batch:
    """Chunks of long prompts."""
    return [(int(random.uniform(500, 8192)), int(random.uniform(0, 60_000)))]


BATCHES = st.lists(st.tuples(st.integers(-3, 1 << 20), st.integers(-3, 1 << 20)), max_size=4)
SECONDS = st.one_of(st.floats(), st.floats(1e-9, 1e9))


def learn(machine: Machine, load: Load, n: int, noise: float, disturbed: float, seed: int) -> tuple[PrefillCost, float]:
    """Show ``n`` batches; return the estimate and its median relative error on 40 others."""
    random, true, cost = np.random.default_rng(seed), PrefillCost(machine), PrefillCost()
    for _ in range(n):
        batch = load(random)
        factor = float(np.exp(noise * random.standard_normal())) * (5.0 if random.random() < disturbed else 1.0)
        cost.observe(batch, true.batch_seconds(batch) * factor)
    others = [load(random) for _ in range(40)]
    return cost, float(np.median([abs(cost.batch_seconds(b) / true.batch_seconds(b) - 1) for b in others]))


def test_a_fast_machine_is_assumed_until_a_batch_was_seen() -> None:
    cost = PrefillCost()
    assert cost.batches == 0 and cost.machine == FAST
    assert cost.seconds(0.0, 1000.0) == pytest.approx(0.2, rel=0.02)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("load", [chat, chunks])
def test_20_batches_are_enough_for_a_hundredth(machine: Machine, load: Load) -> None:
    assert max(learn(machine, load, 20, 0.0, 0.0, seed)[1] for seed in range(5)) < 0.02


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("load", [chat, chunks])
@pytest.mark.parametrize("disturbed", [0.0, 0.2])
def test_20_batches_are_enough_for_a_tenth_with_noise_and_every_fifth_disturbed(
    machine: Machine, load: Load, disturbed: float
) -> None:
    errors = [learn(machine, load, 20, 0.1, disturbed, seed)[1] for seed in range(15)]
    assert np.median(errors) < 0.06 and np.quantile(errors, 0.8) < 0.1


def test_a_first_batch_ten_times_too_slow_is_outvoted_by_two_others() -> None:
    true, cost = PrefillCost(MACHINES["8B on a GPU"]), PrefillCost()
    for factor in (10.0, 1.0, 1.0):
        cost.observe([(4096, 0)], factor * true.batch_seconds([(4096, 0)]))
    assert cost.batch_seconds([(4096, 0)]) == pytest.approx(true.batch_seconds([(4096, 0)]), rel=0.05)


def test_one_batch_tells_the_scale() -> None:
    cost = PrefillCost()
    cost.observe([(1000, 0)], 3.0)
    assert cost.batch_seconds([(1000, 0)]) == pytest.approx(3.0, rel=0.01)
    assert cost.seconds(0.0, 100.0) == pytest.approx(0.3, rel=0.25)


def test_a_machine_that_got_slower_for_good_is_believed_after_a_while() -> None:
    random, cost = np.random.default_rng(0), PrefillCost()
    true = PrefillCost(MACHINES["135M on a CPU"])
    for factor in [1.0] * 100 + [3.0] * 60:
        batch = chunks(random)
        cost.observe(batch, factor * true.batch_seconds(batch))
    assert cost.batch_seconds([(4096, 8192)]) == pytest.approx(3 * true.batch_seconds([(4096, 8192)]), rel=0.1)


def test_a_flood_of_short_batches_does_not_wash_out_what_long_ones_told() -> None:
    true, cost = PrefillCost(MACHINES["135M on a CPU"]), PrefillCost()
    random = np.random.default_rng(0)
    for _ in range(20):
        batch = chunks(random)
        cost.observe(batch, true.batch_seconds(batch))
    for _ in range(1000):
        batch = [(int(random.integers(1, 60)), 0)]
        cost.observe(batch, true.batch_seconds(batch) * float(random.uniform(0.9, 1.3)))
    assert cost.seconds(0.0, 30_000.0) == pytest.approx(true.seconds(0.0, 30_000.0), rel=0.05)


def test_context_makes_tokens_dearer() -> None:
    cost = PrefillCost(Machine(1.0, 0.5, 0.25))
    assert cost.seconds(2.0, 4.0) == 0.5 * 2 + 0.25 * (2 * 2 + 2 * 2 / 2)
    assert cost.seconds(0.0, 2.0) + cost.seconds(2.0, 4.0) == cost.seconds(0.0, 4.0)
    assert cost.seconds(np.array([0.0, 2.0, 4.0]), np.array([4.0, 4.0, 2.0])).tolist() == [4.0, 2.5, 0.0]
    assert cost.batch_seconds([(2, 2), (2, 0)]) == 1.0 + cost.seconds(0.0, 4.0)
    assert cost.batch_seconds([]) == 0.0


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_batch_without_a_time_says_nothing(seconds: float) -> None:
    cost = PrefillCost()
    cost.observe([(1000, 0)], seconds)
    cost.observe([(0, 5), (-1, 0)], 1.0)
    cost.observe([], 1.0)
    assert cost.batches == 0 and cost.machine == FAST


@given(st.lists(st.tuples(BATCHES, SECONDS), max_size=12), st.lists(st.integers(0, 1 << 20), min_size=2, max_size=10))
def test_whatever_was_seen_no_time_is_negative_or_nan_and_more_tokens_never_take_less(
    seen: list[tuple[Batch, float]], ends: list[int]
) -> None:
    cost = PrefillCost()
    for batch, seconds in seen:
        cost.observe(batch, seconds)
        assert all(np.isfinite(c) and c >= 0 for c in cost.machine) and max(cost.machine) > 0
    start = float(ends.pop())
    times = [cost.seconds(start, float(end)) for end in sorted(ends)]
    assert all(np.isfinite(times)) and times[0] >= 0
    assert all(a <= b for a, b in pairwise(times))
