"""What all finished requests together were served from, waited for and had computed.

Owns the totals, which only ever grow, however short the history of single requests is. Why tokens were computed is
known in part only after the end of a request; what is told later is added then. Scheduler thread only.
"""

from __future__ import annotations

from collections import Counter

from radixtier.explain.history import Reason, RequestRecord


class Totals:
    """Sums over finished requests.

    Attributes
    ----------
    finished : int
        Requests.
    waited_s : float
        Seconds that their admissions waited for NVMe.
    tokens : Counter
        Tokens of their prompts by where they came from: ``hbm``, ``dram``, ``nvme``, ``computed``.
    because : Counter
        Computed tokens by reason, as far as it is known.
    """

    def __init__(self) -> None:
        self.finished = 0
        self.waited_s = 0.0
        self.tokens: Counter[str] = Counter(hbm=0, dram=0, nvme=0, computed=0)
        self.because: Counter[Reason] = Counter(dict.fromkeys(Reason, 0))

    def add(self, record: RequestRecord) -> None:
        """Count a request that has ended; once."""
        if record.counted is not None:
            return
        record.counted = Counter()
        self.finished += 1
        self.waited_s += record.waited_s
        self.tokens.update(hbm=record.hbm, dram=record.dram, nvme=record.nvme, computed=record.recomputed)
        self.explained(record)

    def explained(self, record: RequestRecord) -> None:
        """Count what was told of a request since; nothing before it has ended."""
        if record.counted is None:
            return
        told: Counter[Reason] = Counter()
        for cause in record.causes:
            told[cause.reason] += cause.tokens
        self.because.update(told - record.counted)
        record.counted = told
