"""The bandwidth estimate on made-up clocks."""

from __future__ import annotations

import pytest

from radixtier.store.meter import HALF_LIFE, BandwidthMeter


def test_nothing_measured_is_zero() -> None:
    assert BandwidthMeter().rate == 0.0


def test_one_transfer() -> None:
    meter = BandwidthMeter()
    meter.begin(10.0)
    meter.end(10.5, 1000)
    assert meter.rate == pytest.approx(2000, rel=1e-3)


def test_parallel_transfers_share_the_wall_time() -> None:
    meter = BandwidthMeter()
    for _ in range(4):
        meter.begin(1.0)
    for _ in range(4):
        meter.end(2.0, 250)
    assert meter.rate == pytest.approx(1000, rel=1e-3)


def test_idle_time_does_not_count() -> None:
    meter = BandwidthMeter()
    for start in (0.0, 100.0, 5000.0):
        meter.begin(start)
        meter.end(start + 1, 1000)
    assert meter.rate == pytest.approx(1000, rel=1e-3)


def test_it_follows_a_drive_that_slows_down() -> None:
    meter, now = BandwidthMeter(), 0.0
    for rate in (4e9, 1e9):
        for _ in range(40):
            meter.begin(now)
            now += HALF_LIFE / 4 / rate
            meter.end(now, HALF_LIFE // 4)
        assert meter.rate == pytest.approx(rate, rel=0.02)


def test_failed_transfers_lower_the_estimate() -> None:
    meter = BandwidthMeter()
    meter.begin(0.0)
    meter.end(1.0, 1000)
    meter.begin(1.0)
    meter.end(2.0, 0)
    assert meter.rate == pytest.approx(500, rel=1e-3)
