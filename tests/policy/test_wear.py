"""When a drive will be worn out."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from radixtier.policy.wear import DAY_S, LEAST_S, Endurance, project

DRIVE = Endurance(10**12, 1.0, 5.0)


def test_a_drive_at_its_rating_lasts_its_warranty() -> None:
    wear = project(DRIVE, 10**12, 0.0, DAY_S, budget_left=7.0)
    assert wear.bytes_per_day == pytest.approx(1e12)
    assert wear.used == pytest.approx(1 / (365 * 5))
    assert wear.worn_out == datetime.fromtimestamp(DAY_S, timezone.utc) + timedelta(days=365 * 5 - 1)
    assert (wear.bytes_written, wear.budget_left) == (10**12, 7.0)


def test_what_was_written_earlier_counts_as_wear_but_not_as_rate() -> None:
    wear = project(DRIVE, 10**12, 0.0, DAY_S, earlier_bytes=2000 * 10**12)
    assert wear.used > 1 and wear.bytes_per_day == pytest.approx(1e12)
    assert wear.worn_out == datetime.fromtimestamp(DAY_S, timezone.utc)


@pytest.mark.parametrize(("nbytes", "seconds"), [(10**15, LEAST_S - 1), (0, DAY_S), (10**6, DAY_S)])
def test_no_date_where_there_is_none(nbytes: int, seconds: float) -> None:
    assert project(DRIVE, nbytes, 0.0, seconds).worn_out is None


@pytest.mark.parametrize("bad", [{"drive_bytes": 0}, {"dwpd": 0.0}, {"warranty_years": -1.0}])
def test_a_drive_without_endurance_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="no endurance"):
        Endurance(**{"drive_bytes": 10**12, **bad})  # type: ignore[arg-type]
