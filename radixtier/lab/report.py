"""What came of a run: figures, and the same as a dictionary for JSON.

Owns the report. Blocks, tokens, bytes and seconds; hits are counted where a block was found, also when a request did
not wait for it. One thread.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from radixtier.lab.tiers import Counts
from radixtier.lab.timing import Stack
from radixtier.policy.wear import Endurance, Wear, project

NAMES = ("hbm", "hbm_dram", "tiers", "ceiling")
"""The stacks of a report: HBM alone, as SGLang is without a tier; with DRAM; with NVMe; and Belady over all three."""


class Spread(NamedTuple):
    """How times are spread, seconds."""

    mean: float
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, seconds: npt.NDArray[np.float64]) -> Spread:
        """Spread of times; zeros for none."""
        if not len(seconds):
            return cls(0.0, 0.0, 0.0, 0.0)
        return cls(*map(float, (seconds.mean(), *np.percentile(seconds, (50, 95, 99)))))

    def rounded(self) -> dict[str, float]:
        """Return it for JSON, to the microsecond."""
        return {name: round(each, 6) for name, each in self._asdict().items()}


@dataclass(frozen=True)
class Fare:
    """How the requests of one stack fared."""

    hits: int
    """Blocks."""
    tokens: int
    """Tokens found."""
    passed: int
    """Tokens of them that were not worth the wait, and computed again."""
    ttft: Spread
    """From the arrival to the first token."""
    queue: Spread
    """From the arrival to the start of the prefill."""
    work: Spread
    """Of the prefill."""
    busy: float
    """Seconds of all prefills."""

    @classmethod
    def of(cls, stack: Stack) -> Fare:
        """Fare of a stack that has served its last request."""
        stack.gpu.finish()
        queue, work = (np.asarray(times, np.float64) for times in (stack.gpu.queue, stack.gpu.work))
        ttft = queue + work + stack.costs.rates.decode_s
        return cls(
            stack.hits,
            stack.tokens,
            stack.passed,
            ttft=Spread.of(ttft),
            queue=Spread.of(queue),
            work=Spread.of(work),
            busy=stack.gpu.busy,
        )


@dataclass(frozen=True)
class Report:
    """What came of a run."""

    counts: Counts
    stacks: dict[str, Fare]
    """By names from :data:`NAMES`."""
    input_tokens: int
    """Of all prompts."""
    block_bytes: int
    nvme: int
    """Blocks that NVMe holds."""
    seconds: float
    """Between the first and the last request."""
    mirror: bool = False
    skipped: int = 0
    """Lines of the trace that were left out."""
    interrupted: bool = False
    """The run was stopped before the end of the trace."""
    ceiling_skipped: bool = False
    """The trace was too long for the ceiling that was asked for."""
    tokens: dict[str, int] = field(init=False)
    """Tokens of the prompts, and those found in each tier."""

    def __post_init__(self) -> None:
        hbm, dram, nvme = (self.stacks[name].tokens for name in NAMES[:3])
        found = {"input": self.input_tokens, "hbm": hbm, "dram": dram - hbm, "nvme": nvme - dram}
        object.__setattr__(self, "tokens", found)

    def ratio(self, hits: int) -> float:
        """Share of all blocks."""
        return hits / self.counts.blocks if self.counts.blocks else 0.0

    @property
    def hbm_ratio(self) -> float:
        """Share found in HBM."""
        return self.ratio(self.counts.hbm_hits)

    @property
    def dram_ratio(self) -> float:
        """Share found in HBM or DRAM."""
        return self.ratio(self.counts.hbm_hits + self.counts.dram_hits)

    @property
    def hit_ratio(self) -> float:
        """Share found in any tier."""
        return self.ratio(self.counts.hits)

    @property
    def bytes_written(self) -> int:
        """Bytes written to NVMe."""
        return self.counts.written * self.block_bytes

    @property
    def bytes_moved(self) -> dict[str, int]:
        """Bytes by direction.

        HBM to DRAM is what HBM let go of, or with a mirror what it got new; a server that writes through copies more
        (what never leaves HBM) or less (what DRAM has already). All that NVMe has of a path counts as read.
        """
        counts = self.counts
        down = counts.computed if self.mirror else counts.demoted
        blocks = {
            "hbm_to_dram": down,
            "dram_to_hbm": counts.dram_hits + counts.nvme_hits,
            "dram_to_nvme": counts.written,
            "nvme_to_dram": counts.nvme_hits,
        }
        return {name: each * self.block_bytes for name, each in blocks.items()}

    @property
    def written_per_day(self) -> float | None:
        """Bytes written to NVMe per day of the trace; None for a trace of no time."""
        return self.bytes_written / (self.seconds / 86_400) if self.seconds else None

    def utilisation(self, name: str) -> float | None:
        """Seconds of work per second of the trace: with 1 and more, queues grow as long as the load lasts."""
        return self.stacks[name].busy / self.seconds if self.seconds else None

    def wear(self, endurance: Endurance, now: float | None = None) -> Wear:
        """Say when a drive is worn out that is new ``now`` (Unix seconds; today) and written to as here."""
        now = time.time() if now is None else now
        return project(endurance, self.bytes_written, now - self.seconds, now)

    def as_dict(self, endurance: Endurance | None = None, now: float | None = None) -> dict[str, Any]:
        """Return every figure, for JSON.

        Parameters
        ----------
        endurance
            Of the drive; by default one of the size of NVMe, for one drive write a day over five years.
        now
            For the date on which it is worn out, Unix seconds; today by default.
        """
        ratios = {"hbm": self.hbm_ratio, "hbm_dram": self.dram_ratio, "total": self.hit_ratio}
        per_day, worn_out = self.written_per_day, None
        if self.nvme:
            worn_out = self.wear(endurance or Endurance(self.nvme * self.block_bytes), now).worn_out
        return {
            **asdict(self.counts),
            "hits": self.counts.hits,
            "hit_ratio": {name: round(ratio, 6) for name, ratio in ratios.items()},
            "tokens": self.tokens,
            "block_bytes": self.block_bytes,
            "bytes": self.bytes_moved,
            "bytes_written": self.bytes_written,
            "bytes_written_per_day": None if per_day is None else round(per_day),
            "worn_out": None if worn_out is None else worn_out.date().isoformat(),
            "seconds": self.seconds,
            "stacks": {name: self._fare(name) for name in self.stacks},
            "skipped": self.skipped,
            "interrupted": self.interrupted,
        }

    def _fare(self, name: str) -> dict[str, Any]:
        fare, busy = self.stacks[name], self.utilisation(name)
        return {
            "hit_ratio": round(self.ratio(fare.hits), 6),
            "hit_tokens": fare.tokens,
            "recomputed_tokens": fare.passed,
            "utilisation": None if busy is None else round(busy, 6),
            "ttft_s": fare.ttft.rounded(),
            "queue_s": fare.queue.rounded(),
            "prefill_s": fare.work.rounded(),
        }
