"""``all``: every page that reaches DRAM is written once.

Where it loses: a drive smaller than what is in use is rewritten again and again for pages that nobody asks for twice,
and these push out the ones that somebody does. On Mooncake's conversation trace at 2,000 / 4,000 / 8,000 blocks
`second-hit` writes a fifth and has 6 points more hits.
"""

from __future__ import annotations

from radixtier.policy.admission.learner import Indifferent
from radixtier.policy.admission.verdict import Candidate, Verdict


class AdmitAll(Indifferent):
    """Admit every page."""

    name = "all"

    def admit(self, candidate: Candidate) -> Verdict:
        """Admit."""
        return Verdict.ADMIT
