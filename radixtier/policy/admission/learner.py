"""What a policy does that has nothing to learn."""

from __future__ import annotations

from radixtier.policy.admission.verdict import Keys


class Indifferent:
    """Base of policies: overrides say what they listen to."""

    def gone(self, keys: Keys, now: float) -> None:
        """Pages are nowhere."""

    def evicted(self, keys: Keys, now: float) -> None:
        """Pages left NVMe."""

    def wanted(self, keys: Keys, now: float) -> None:
        """Pages were needed and nowhere."""

    def served(self, pages: int, now: float) -> None:
        """Pages came from NVMe."""

    def wrote(self, nbytes: int, now: float) -> None:
        """A write happened."""

    def refund(self, nbytes: int, now: float) -> None:
        """A write did not happen."""
