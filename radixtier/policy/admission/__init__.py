"""What may be written to NVMe, one policy per file."""

from __future__ import annotations

from radixtier.policy.admission.auto import Auto
from radixtier.policy.admission.everything import AdmitAll
from radixtier.policy.admission.second_hit import SecondHit
from radixtier.policy.admission.verdict import FANOUT, Admission, Candidate, Keys, Verdict

__all__ = [
    "FANOUT",
    "NAMES",
    "Admission",
    "AdmitAll",
    "Auto",
    "Candidate",
    "Keys",
    "SecondHit",
    "Verdict",
    "make_admission",
]

NAMES = (AdmitAll.name, SecondHit.name, Auto.name)
"""Every policy there is; the last one is the default."""


def make_admission(name: str, capacity_pages: int) -> Admission:
    """Make an admission policy.

    Parameters
    ----------
    name
        One of :data:`NAMES`.
    capacity_pages
        Pages that fit on NVMe.

    Raises
    ------
    ValueError
        On a name that is not there.
    """
    if name == AdmitAll.name:
        return AdmitAll()
    if name == SecondHit.name:
        return SecondHit(capacity_pages)
    if name == Auto.name:
        return Auto(capacity_pages)
    raise ValueError(f"admission policy {name!r} does not exist: choose one of {', '.join(NAMES)}")
