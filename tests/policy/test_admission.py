"""What may be written."""

from __future__ import annotations

import pytest

from radixtier.policy.admission import AdmitAll, Verdict


@pytest.mark.parametrize(("pages", "nbytes"), [(0, 0), (1, 4096), (1 << 20, 1 << 40)])
def test_everything_is_admitted(pages: int, nbytes: int) -> None:
    assert AdmitAll().admit(pages, nbytes) is Verdict.ADMIT
