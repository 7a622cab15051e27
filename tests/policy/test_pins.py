"""Soft pins: granted within a share, gone at their end, and never in the way for good."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from radixtier.policy.pins import SHARE, PinLedger, Tier, TierPins


def ledger(pages: int = 400) -> PinLedger:
    return PinLedger({Tier.DRAM: pages, Tier.NVME: 10 * pages})


def test_a_pin_lasts_until_its_end() -> None:
    pins = ledger()
    assert pins.grant(1, 10, Tier.DRAM, now=0.0, ttl=5.0) == 10
    assert pins.pinned(1, 4.9) and pins.pinned(1, 4.9, Tier.DRAM) and not pins.pinned(1, 4.9, Tier.NVME)
    assert pins.strength(1, 2.0) == 3.0
    assert not pins.pinned(1, 5.0) and pins.strength(1, 5.0) == 0.0 and pins.held(Tier.DRAM, 5.0) == 0


def test_grants_are_cut_at_the_share_of_the_tier() -> None:
    pins = ledger(400)
    assert pins.cap(Tier.DRAM) == 400 * SHARE == 100
    assert [pins.grant(node, 40, Tier.DRAM, 0.0, 9.0) for node in range(4)] == [40, 40, 20, 0]
    assert not pins.pinned(3, 0.0)
    assert pins.grant(3, 40, Tier.NVME, 0.0, 9.0) == 40
    assert pins.held(Tier.DRAM, 8.0) == 100 and pins.grant(3, 40, Tier.DRAM, 9.0, 9.0) == 40


@pytest.mark.parametrize(("pages", "ttl"), [(0, 1.0), (-3, 1.0), (3, 0.0), (3, -1.0), (3, math.inf), (3, math.nan)])
def test_what_makes_no_sense_is_not_granted(pages: int, ttl: float) -> None:
    pins = ledger()
    assert pins.grant(1, pages, Tier.DRAM, 0.0, ttl) == 0
    assert not pins.pinned(1, 0.0)
    pins.check()


def test_a_second_grant_keeps_the_larger_part_and_the_later_end() -> None:
    pins = ledger()
    pins.grant(1, 30, Tier.DRAM, 0.0, 100.0)
    assert pins.grant(1, 10, Tier.DRAM, 1.0, 5.0) == 10
    assert pins.held(Tier.DRAM, 1.0) == 30 and pins.strength(1, 1.0) == 99.0
    assert pins.grant(1, 50, Tier.DRAM, 1.0, 500.0) == 50
    assert pins.held(Tier.DRAM, 150.0) == 50 and pins.strength(1, 1.0) == 500.0
    pins.check()


def test_under_pressure_the_weakest_gives_way_and_a_path_from_its_end() -> None:
    pins = ledger()
    pins.grant(9, 5, Tier.DRAM, 0.0, 50.0)
    for node in (1, 2, 3):  # a path, root first
        pins.grant(node, 5, Tier.DRAM, 0.0, 10.0)
    pins.grant(7, 5, Tier.DRAM, 0.0, 2.0)
    assert [pins.yield_weakest(3.0) for _ in range(5)] == [3, 2, 1, 9, None]
    assert pins.figures(3.0)["dram"] == {"held": 0, "cap": 100, "pins": 0, "yielded": 4}


def test_a_node_may_shrink_go_and_be_released() -> None:
    pins = ledger()
    for tier in Tier:
        pins.grant(1, 10, tier, 0.0, 9.0)
    pins.shrink(1, 4)
    assert [pins.held(tier, 0.0) for tier in Tier] == [4, 4]
    pins.shrink(1, 8)
    assert pins.release(1, Tier.DRAM) == 4 and pins.pinned(1, 0.0)
    pins.shrink(1, 0)
    assert not pins.pinned(1, 0.0) and pins.release(1) == 0
    pins.grant(1, 10, Tier.DRAM, 0.0, 9.0)
    pins.forget(1)
    pins.check()
    assert pins.held(Tier.DRAM, 0.0) == 0 and pins.yield_weakest(0.0) is None


def test_a_smaller_tier_makes_pins_give_way() -> None:
    pins = ledger(400)
    for node in range(10):
        pins.grant(node, 10, Tier.DRAM, 0.0, 10.0 + node)
    assert pins.resize(Tier.DRAM, 200, 1.0) == [0, 1, 2, 3, 4]
    assert pins.held(Tier.DRAM, 1.0) == 50 == pins.cap(Tier.DRAM)
    assert pins.resize(Tier.DRAM, 0, 1.0) == [5, 6, 7, 8, 9]
    assert pins.grant(1, 1, Tier.DRAM, 1.0, 1.0) == 0


def test_renewals_do_not_grow_the_ledger() -> None:
    pins = TierPins(400)
    for turn in range(10_000):
        pins.grant(turn % 3, 1, float(turn), 1e6)
    assert len(pins._heap) < 100
    pins.check()


def test_a_tier_is_never_pinned_whole() -> None:
    with pytest.raises(ValueError, match="share"):
        PinLedger({Tier.DRAM: 10}, share=1.0)


NODES = st.integers(0, 40)
PAGES = st.integers(0, 60)
TTL = st.one_of(st.floats(0.01, 100), st.sampled_from([1.0, 10.0]))


class Ledgers(RuleBasedStateMachine):
    """The ledger against two dictionaries, and the accounts after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.pins = PinLedger({Tier.DRAM: 400, Tier.NVME: 800})
        self.model: dict[Tier, dict[int, tuple[int, float]]] = {tier: {} for tier in Tier}

    @rule(node=NODES, pages=PAGES, tier=st.sampled_from(Tier), ttl=TTL)
    def grant(self, node: int, pages: int, tier: Tier, ttl: float) -> None:
        held = self._held(tier)
        had, until = self.model[tier].get(node, (0, 0.0))
        granted = self.pins.grant(node, pages, tier, self.now, ttl)
        assert granted == min(pages, max(had, min(pages, had + self.pins.cap(tier) - held)))
        if granted:
            self.model[tier][node] = (max(had, granted), max(until, self.now + ttl))

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for pins in self.model.values():
            for node in [n for n, (_, until) in pins.items() if until <= self.now]:
                del pins[node]

    @rule(node=NODES)
    def release(self, node: int) -> None:
        self.pins.forget(node)
        for pins in self.model.values():
            pins.pop(node, None)

    @rule(node=NODES, pages=PAGES)
    def shrink(self, node: int, pages: int) -> None:
        self.pins.shrink(node, pages)
        for pins in self.model.values():
            if node in pins:
                had, until = pins.pop(node)
                if pages:
                    pins[node] = (min(had, pages), until)

    @rule(tier=st.sampled_from(Tier))
    def press(self, tier: Tier) -> None:
        node = self.pins.yield_weakest(self.now, tier)
        weakest = min((until for _, until in self.model[tier].values()), default=None)
        if node is None:
            assert weakest is None
        else:
            assert self.model[tier].pop(node)[1] == weakest

    @invariant()
    def accounts_agree(self) -> None:
        for tier in Tier:
            assert self.pins.held(tier, self.now) == self._held(tier) <= self.pins.cap(tier)
            pages = {node: self.pins.pages(node, self.now, tier) for node in range(41)}
            assert {node: n for node, n in pages.items() if n} == {n: p for n, (p, _) in self.model[tier].items()}
            assert all(self.pins.pinned(node, self.now, tier) == (n > 0) for node, n in pages.items())
        self.pins.check()

    def teardown(self) -> None:
        for tier in Tier:
            for _ in self.model[tier]:
                assert self.pins.yield_weakest(self.now, tier) is not None
            assert self.pins.yield_weakest(self.now, tier) is None
            assert self.pins.held(tier, self.now) == 0
        self.pins.check()

    def _held(self, tier: Tier) -> int:
        return sum(pages for pages, _ in self.model[tier].values())


Ledgers.TestCase.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
TestLedgers = Ledgers.TestCase
