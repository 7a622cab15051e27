"""When the drive will be worn out at the present rate of writes.

The law: a drive is rated for ``drive bytes * DWPD * 365 * warranty years`` bytes; the rate is what was written since
counting began, over the time since then. Where it is wrong: bytes are the host's, and a drive writes more than it is
told (rated DWPD allow for that under random writes; ours are large and sequential); what others write to it is not
seen; the first minutes say little, so that no date is given before :data:`LEAST_S`. Nothing survives a restart but
what the caller gives. Any thread; times are Unix seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

DAY_S = 86_400.0
LEAST_S = 600.0
"""Seconds of counting from which a rate is believed."""

LONGEST_DAYS = 36_525.0
"""A hundred years: later dates are not given."""


@dataclass(frozen=True)
class Endurance:
    """What a drive is rated for.

    Parameters
    ----------
    drive_bytes
        Capacity, bytes.
    dwpd
        Rated drive writes per day over the warranty.
    warranty_years
        Years.
    """

    drive_bytes: int
    dwpd: float = 1.0
    warranty_years: float = 5.0

    def __post_init__(self) -> None:
        if not (self.drive_bytes > 0 and self.dwpd > 0 and self.warranty_years > 0):
            raise ValueError(f"no endurance: {self}")

    @property
    def rated_bytes(self) -> float:
        """Bytes that may be written in the drive's life."""
        return self.drive_bytes * self.dwpd * 365 * self.warranty_years


@dataclass(frozen=True)
class Wear:
    """State of a drive's wear."""

    bytes_written: int
    """Since counting began."""
    bytes_per_day: float | None
    """Rate, None while it is too early to tell."""
    used: float
    """Part of the rated bytes that is used up, 0 and more."""
    worn_out: datetime | None
    """Projected end of the rated bytes (UTC); None when unknown or a hundred years off."""
    budget_left: float | None
    """Bytes that the budget still allows now, None without a budget."""


def project(
    endurance: Endurance,
    bytes_written: int,
    since: float,
    now: float,
    *,
    earlier_bytes: int = 0,
    budget_left: float | None = None,
) -> Wear:
    """Apply the law.

    Parameters
    ----------
    endurance
        Of the drive.
    bytes_written
        Bytes since ``since``.
    since, now
        Unix seconds.
    earlier_bytes
        Bytes that the drive had seen before, if known.
    budget_left
        Passed on.
    """
    total = bytes_written + earlier_bytes
    used = total / endurance.rated_bytes
    seconds = now - since
    if seconds < LEAST_S:
        return Wear(bytes_written, None, used, None, budget_left)
    per_day = bytes_written / seconds * DAY_S
    days = max(0.0, endurance.rated_bytes - total) / per_day if per_day else LONGEST_DAYS
    end = None
    if days < LONGEST_DAYS:
        end = datetime.fromtimestamp(now, timezone.utc) + timedelta(days=days)
    return Wear(bytes_written, per_day, used, end, budget_left)
