"""How many bytes a day may be written to NVMe, and how they are shared out.

Two laws. **The cap** is a token bucket: it fills at ``budget / day`` and holds :data:`BURST_S` seconds of that, so
that no window of ``T`` seconds sees more than ``rate * T + burst`` bytes written: a day at most 1/24 above the
budget. Bytes that were taken and whose write has not ended count against what the bucket can hold, so that a refund
cannot break the cap. **The steering** lets the cap bind rarely: every :data:`INTERVAL_S` the share of the paths that
may pass is multiplied by ``target / passed``, within a factor of :data:`MOST_CHANGE`, and by :data:`SHORT` at most
when the bucket was found empty. Passed are the bytes/s admitted in the interval; target is the rate plus what the
bucket holds over :data:`SPEND_S` (the law of CacheLib's DynamicRandomAP, with the saved bytes added). A path passes
or does not as a whole: its lead key draws.

Where it loses: a load that writes in bursts longer than :data:`BURST_S` leaves budget unused. Nothing survives a
restart: the bucket starts full, so each restart may write one burst more. Scheduler thread only; times are seconds on
any one clock.
"""

from __future__ import annotations

import re
from fractions import Fraction

from radixtier.policy.admission.verdict import Admission, Candidate, Keys, Verdict
from radixtier.policy.draw import draw
from radixtier.units import BadValue, Unit, parse_size

DAY_S = 86_400.0
BURST_S = 3_600.0
"""Seconds of the rate that the bucket holds."""

SPEND_S = 3_600.0
"""Seconds in which the steering means to spend what the bucket holds."""

INTERVAL_S = 60.0
"""Seconds between two corrections of the share."""

MOST_CHANGE = 2.0
"""Factor by which the share changes at most in one correction."""

SHORT = 0.8
"""Factor at most when the bucket was found empty: how much more wanted to pass is not known then."""

LEAST_SHARE = 1 / 1024

FORMS = "500GB/day, 500GB, 1.0DWPD (drive writes per day) or none"
_DWPD = re.compile(r"\s*(\d+(?:\.\d+)?)\s*dwpd\s*", re.ASCII | re.IGNORECASE)
_PER_DAY = re.compile(r"\s*/\s*(day|d)\s*$", re.ASCII | re.IGNORECASE)


def parse_budget(text: str, drive_bytes: int | None) -> int | None:
    """Parse a write budget.

    Parameters
    ----------
    text
        Bytes per day with a unit (``500GB/day``, ``500GB``), drive writes per day (``1.0DWPD``), or ``0`` or ``none``.
    drive_bytes
        What one drive write is; None when it is not known.

    Returns
    -------
    int or None
        Bytes per day, None for no limit.

    Raises
    ------
    BadValue
        If the text is no budget, or in DWPD while the drive's size is not known.
    """
    if text.strip().lower() in ("0", "none"):
        return None
    if match := _DWPD.fullmatch(text):
        if not drive_bytes:
            raise BadValue("the size of the drive is not known", "Write bytes per day, such as 500GB/day")
        nbytes = int(Fraction(match[1]) * drive_bytes)
    else:
        try:
            size = parse_size(_PER_DAY.sub("", text))
        except BadValue as error:
            raise BadValue(error.why, f"Write {FORMS}") from None
        if size.unit is not Unit.BYTES:
            raise BadValue("a budget is bytes, not tokens", f"Write {FORMS}")
        nbytes = size.amount
    if nbytes < 1:
        raise BadValue("that is less than one byte per day", f"Write {FORMS}")
    return nbytes


class WriteBudget:
    """The cap; see the module.

    Parameters
    ----------
    bytes_per_day
        At least 1.
    """

    def __init__(self, bytes_per_day: int) -> None:
        if bytes_per_day < 1:
            raise ValueError(f"a budget of {bytes_per_day} bytes per day")
        self.bytes_per_day = bytes_per_day
        self.rate = bytes_per_day / DAY_S
        """Bytes/s."""
        self.burst = self.rate * BURST_S
        """Bytes."""
        self.in_flight = 0
        """Bytes taken of which the write has not ended."""
        self._level = self.burst
        self._filled: float | None = None

    def left(self, now: float) -> float:
        """Return the bytes that may be taken now; to ask changes nothing."""
        gained = 0.0 if self._filled is None else self.rate * max(0.0, now - self._filled)
        # The level itself may be above what the bucket can hold now only by rounding.
        return min(self._level + gained, max(0.0, self.burst - self.in_flight))

    def _fill(self, now: float) -> None:
        self._level = self.left(now)
        self._filled = now if self._filled is None else max(self._filled, now)

    def take(self, nbytes: int, now: float) -> bool:
        """Take bytes for a write, unless the bucket holds less."""
        self._fill(now)
        if nbytes > self._level:
            return False
        self._level -= nbytes
        self.in_flight += nbytes
        return True

    def wrote(self, nbytes: int, now: float) -> None:
        """End a write that happened."""
        self._fill(now)
        self._end(nbytes)

    def refund(self, nbytes: int, now: float) -> None:
        """End a write that did not happen: its bytes are there again."""
        self._fill(now)
        self._end(nbytes)
        self._level += nbytes

    def _end(self, nbytes: int) -> None:
        assert 0 <= nbytes <= self.in_flight, f"{nbytes} bytes end of {self.in_flight} that were taken"
        self.in_flight -= nbytes


class Budgeted:
    """Another admission under a budget; `THROTTLED` when the draw or the bucket says no.

    Every byte admitted must end in :meth:`wrote` or :meth:`refund`.
    """

    def __init__(self, inner: Admission, budget: WriteBudget) -> None:
        self.inner = inner
        self.budget = budget
        self.name = inner.name
        self.share = 1.0
        """Part of the paths that may pass."""
        self._since: float | None = None
        self._passed = 0
        self._short = False

    def admit(self, candidate: Candidate) -> Verdict:
        """Ask the inner policy, then draw, then take from the bucket."""
        self._steer(candidate.now)
        verdict = self.inner.admit(candidate)
        if verdict is not Verdict.ADMIT:
            return verdict
        if not candidate.needed and draw(candidate.lead) >= self.share:
            return Verdict.THROTTLED
        if not self.budget.take(candidate.nbytes, candidate.now):
            self._short = True
            return Verdict.THROTTLED
        self._passed += candidate.nbytes
        return Verdict.ADMIT

    def _steer(self, now: float) -> None:
        if self._since is None:
            self._since = now
        seconds = now - self._since
        if seconds < INTERVAL_S:
            return
        target = self.budget.rate + self.budget.left(now) / SPEND_S
        passed = self._passed / seconds
        factor = min(MOST_CHANGE, max(1 / MOST_CHANGE, target / passed)) if passed else MOST_CHANGE
        if self._short:
            factor = min(factor, SHORT)
        self.share = min(1.0, max(LEAST_SHARE, self.share * factor))
        self._since, self._passed, self._short = now, 0, False

    def gone(self, keys: Keys, now: float) -> None:
        """Tell the inner policy."""
        self.inner.gone(keys, now)

    def evicted(self, keys: Keys, now: float) -> None:
        """Tell the inner policy."""
        self.inner.evicted(keys, now)

    def wanted(self, keys: Keys, now: float) -> None:
        """Tell the inner policy."""
        self.inner.wanted(keys, now)

    def served(self, pages: int, now: float) -> None:
        """Tell the inner policy."""
        self.inner.served(pages, now)

    def wrote(self, nbytes: int, now: float) -> None:
        """End a write that happened."""
        self.budget.wrote(nbytes, now)
        self.inner.wrote(nbytes, now)

    def refund(self, nbytes: int, now: float) -> None:
        """Give back what a write that did not happen had taken."""
        self.budget.refund(nbytes, now)
        self.inner.refund(nbytes, now)
