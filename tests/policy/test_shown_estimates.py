"""Estimates that somebody looks at: ranks look at their figures in their own time, and must decide alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from radixtier.policy.bandwidth import CopyRate, ReadRate, Shown
from radixtier.policy.prefill import PrefillCost

Estimate = Any

KINDS: dict[
    str, tuple[Callable[[], Estimate], Callable[[Estimate, int, float], None], Callable[[Estimate], object]]
] = {
    "reads": (ReadRate, lambda e, n, s: e.observe(n, 0.0, s), lambda e: (e.seconds(1e6), Shown(e.rate, e.slowness))),
    "writes": (ReadRate, lambda e, n, s: e.observe_write(n, s), lambda e: (e.seconds(1e6), Shown(e.rate, e.slowness))),
    "copies": (CopyRate, lambda e, n, s: e.observe(n, s), lambda e: (e.seconds(1e6), e.rate)),
    "prefill": (PrefillCost, lambda e, n, s: e.observe([(n, 2 * n)], s), lambda e: (e.seconds(0.0, 1e3), e.machine)),
}
"""How to make one, what it learns from, and what it is asked for where something is decided: the last one is shown."""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param]


def test_to_look_changes_nothing(kind: Any) -> None:
    make, learn, ask = kind
    random = np.random.default_rng(1)
    looked_at, other = make(), make()
    for _ in range(200):
        n, seconds = int(random.integers(1, 1 << 22)), float(random.lognormal(-5, 1))
        for estimate in (looked_at, other):
            learn(estimate, n, seconds)
        for _ in range(int(random.integers(3))):
            looked_at.shown()
        if random.random() < 0.2:
            assert ask(looked_at) == ask(other)


def test_what_is_shown_is_what_would_be_decided_by(kind: Any) -> None:
    make, learn, ask = kind
    random = np.random.default_rng(2)
    estimate = make()
    for _ in range(100):
        learn(estimate, int(random.integers(1, 1 << 22)), float(random.lognormal(-5, 1)))
        shown = [estimate.shown() for _ in range(2)]
        assert shown == [ask(estimate)[-1]] * 2 if random.random() < 0.3 else shown[0] == shown[1]
