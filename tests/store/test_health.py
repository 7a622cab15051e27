"""The verdict on a drive, on a made-up clock."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from radixtier.store import health
from radixtier.store.health import ADVICE, FIRST_PROBE_S, LAST_PROBE_S, SETTLED_S, Health, Trouble

IO, GONE = Trouble("io", "it is broken"), Trouble("vanished", "it is gone")


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(health.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(health.time, "time", lambda: 1e9 + self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def patient(clock: Clock) -> Health:
    return Health(Path("/drive"), lambda due: None)


def test_pauses_double_up_to_a_minute(clock: Clock, patient: Health) -> None:
    patient.fail(IO)
    assert patient.trouble == IO and patient.since == 1e9 + clock.now
    pauses = []
    for _ in range(9):
        pauses.append(patient.next_probe - clock.now)
        clock.now = patient.next_probe
        patient.probed(IO)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60] and pauses[0] == FIRST_PROBE_S and pauses[-1] == LAST_PROBE_S
    assert patient.since == 1e9 + 1000.0


def test_a_drive_that_fails_again_soon_waits_longer(clock: Clock, patient: Health) -> None:
    for pause in (1, 2, 4):
        patient.fail(IO)
        assert patient.next_probe - clock.now == pause
        patient.probed(None)
        assert patient.trouble is None and patient.since == 0.0
        clock.now += SETTLED_S - 1
    clock.now += 1
    patient.fail(IO)
    assert patient.next_probe - clock.now == FIRST_PROBE_S


def test_the_first_trouble_counts_until_a_probe(clock: Clock, patient: Health) -> None:
    patient.fail(IO)
    patient.fail(GONE)
    assert patient.trouble == IO
    patient.fail(GONE, override=True)
    assert patient.kind == "vanished"
    patient.probed(IO)
    assert patient.kind == "io"


def test_what_it_says(clock: Clock, patient: Health, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        patient.fail(IO)
        patient.probed(IO._replace(text="still broken"))
        patient.probed(GONE)
        clock.now += 100
        patient.probed(None)
    first, second, third = [record.getMessage() for record in caplog.records]
    assert "/drive takes no new pages: it is broken." in first and ADVICE["io"] in first
    assert "it is gone." in second and ADVICE["vanished"] in second
    assert "works again after 100 s" in third


def test_whoever_waits_is_told_when_to_look(clock: Clock) -> None:
    dues: list[float] = []
    patient = Health(Path("/drive"), dues.append)
    patient.fail(IO)
    assert dues == [clock.now + FIRST_PROBE_S]
