"""The bounded map of forgotten pages."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from radixtier.explain.forgotten import MOST, MOST_RULES, WAYS, Forgotten


def keys(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, n, dtype=np.uint64)


def test_what_was_forgotten_is_known_with_time_and_rule() -> None:
    table = Forgotten(1024)
    mine, others = keys(100), keys(100, seed=1)
    table.add(mine[:60], 10.0, "lru")
    table.add(mine[60:], 20.0, "reset")
    found = table.find(np.concatenate([mine, others]))
    assert [table.rule(number) for number in found.rule] == ["lru"] * 60 + ["reset"] * 40 + [""] * 100
    assert found.when[:100].tolist() == [10.0] * 60 + [20.0] * 40 and np.isnan(found.when[100:]).all()
    assert table.summary(np.concatenate([mine, others])) == [("lru", 10.0, 60), ("reset", 20.0, 40)]
    assert table.summary(others) == [] and len(table) == 100
    table.clear()
    assert len(table) == 0 and not table.find(mine).rule.any()


def test_a_key_that_comes_again_is_there_once() -> None:
    table = Forgotten(1024)
    table.add(np.repeat(keys(50), 3), 1.0, "lru")
    table.add(keys(50), 2.0, "cost")
    assert len(table) == 50
    assert table.summary(keys(50)) == [("cost", 2.0, 50)]


def test_extreme_keys_are_keys_like_others() -> None:
    table = Forgotten(1)
    extreme = np.array([0, 1, 2**63, 2**64 - 1], np.uint64)
    assert not table.find(extreme).rule.any()
    table.add(extreme[:1], 1.0, "lru")
    assert table.find(extreme).rule.astype(bool).tolist() == [True, False, False, False]
    table.add(extreme, 2.0, "lru")
    assert table.summary(extreme) == [("lru", 2.0, 4)]
    table.add(np.empty(0, np.uint64), 3.0, "lru")
    assert len(table.find(np.empty(0, np.uint64)).rule) == 0 and table.summary([]) == []


@given(st.lists(st.lists(st.integers(0, 200), max_size=60), max_size=8))
def test_a_bucket_keeps_its_last_keys(batches: list[list[int]]) -> None:
    """All keys fall into the first of two buckets, against a list."""
    table = Forgotten(2 * WAYS)
    model: list[int | None] = [None] * WAYS
    turn = 0
    for batch in batches:
        table.add(np.array(batch, np.uint64), 1.0, "lru")
        len(table)  # small additions are put into the table together
        for key in sorted(set(batch) - {key for key in model if key is not None}):
            model[turn % WAYS] = key
            turn += 1
    known = np.flatnonzero(table.find(np.arange(201, dtype=np.uint64)).rule)
    assert set(known.tolist()) == {key for key in model if key is not None}


def test_the_younger_half_is_remembered_and_the_size_is_fixed() -> None:
    table = Forgotten(1 << 14)
    size = table.nbytes
    everything = keys(5 << 14)
    for part in np.array_split(everything, 50):
        table.add(part, 1.0, "lru")
    known = table.find(everything).rule != 0
    assert known[-(1 << 13) :].mean() > 0.98 and known[-(1 << 14) :].mean() > 0.85
    assert len(table) == known.sum() <= 1 << 14
    assert table.nbytes == size == (17 << 14) + (1 << 10)
    assert Forgotten().nbytes < 18 * MOST


def test_names_of_rules_are_bounded() -> None:
    table = Forgotten(1 << 12)
    some = keys(1000)
    for i in range(1000):
        table.add(some[i : i + 1], 1.0, f"rule {i}")
    names = {table.rule(number) for number in table.find(some).rule}
    assert len(names) <= MOST_RULES and "other" in names and "rule 0" in names
    table.add(some[:1], 1.0, "other")
    table.add(some[1:2], 1.0, "rule 7")
    assert [table.rule(number) for number in table.find(some[:2]).rule] == ["other", "rule 7"]
