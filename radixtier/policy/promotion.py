"""For how many cold pages a request waits, and for how long: never longer than recomputing them would take.

The law. A request whose prompt has ``N`` tokens finds pages below HBM, some in DRAM and some on NVMe only (*cold*). If
it waits for its first ``j`` cold pages it loads everything up to the next cold one, ``S(j)`` tokens from the start, and
recomputes the rest. Against not waiting at all that saves::

    saved(j) = prefill(S(0) .. S(j)) - copy(pages added)        seconds
    wait(j)  = read(bytes of j pages, behind the bytes queued)  seconds

The **split** is the ``j`` with the largest ``saved(j) - HEDGE * wait(j)``. Later tokens cost more to prefill and no
more to read, so it is mostly all or nothing; frames, :data:`LONGEST_S` and pages in DRAM further on make it something
between. The **deadline** is ``saved(split)``, from the moment the scheduler would have admitted the request: whoever
has waited that long has lost what it could win. So no wait is longer than recomputing what it was for, whatever the
estimates of the drive are, and the worst case of wait and recompute together is twice the recompute.

A waiting request is planned again as evidence comes in, in particular of jobs that are overdue
(:meth:`radixtier.policy.bandwidth.ReadRate.overdue`), and :meth:`Plan.revised` only ever shortens the wait: a drive
that collapses under a wait for many jobs is given up after a fraction of the deadline. Pages behind the split may come
up when nobody waits for them.

Where it loses: it counts one request's time, not that a wait leaves the GPU to others, so on a busy server it
recomputes too early; the copy to HBM is charged in full though it overlaps with the prefill. Scheduler thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import numpy.typing as npt

from radixtier.policy.bandwidth import CopyRate, ReadRate
from radixtier.policy.prefill import PrefillCost

HEDGE = 1.25
"""Before it begins, a wait counts for so much more than it is expected to take: estimates err, and a plan that is as
good either way should not change with them."""

LEAST_GAIN_S = 0.002
"""Gain below which nobody waits: a pass of the scheduler costs as much."""

LONGEST_S = 30.0
"""Longest wait, whatever the estimates: a drive that hangs must not hold a request for ever."""

PROBE_SHARE = 0.05
"""Of the drive's time, what probes may take."""

PROBE_LEAST_S = 1.0
PROBE_MOST_S = 60.0
"""Bounds of the pause between two probes, seconds."""


class Why(Enum):
    """What set the split."""

    NOTHING_COLD = "nothing is on NVMe only"
    WORTH_IT = "every cold page is worth waiting for"
    TOO_SLOW = "reading the pages behind the split takes longer than recomputing them"
    TOO_SHORT = "the gain is less than a pass of the scheduler"
    NO_FRAMES = "DRAM has no frames for the pages behind the split"
    DRAINED = "NVMe is drained"


@dataclass(frozen=True)
class Ask:
    """What is known of a request."""

    prompt_tokens: int
    hbm_tokens: int
    """Tokens of its prefix that are in HBM."""
    pages: int
    """Pages of its path behind those that are in DRAM or on NVMe."""
    cold: Sequence[int] | npt.NDArray[np.int64]
    """Positions, among ``pages``, of those on NVMe only, ascending."""
    page_tokens: int
    page_bytes: int
    frames: int
    """Frames that may be had for the promotion."""
    queued_bytes: int = 0
    """Bytes of demanded reads ahead of this request's."""
    waiting: bool = False
    """It waits already: to break off takes a loss, not only little to gain."""
    straight: npt.NDArray[np.bool_] | None = None
    """Which of ``cold`` go straight to HBM; None for none."""


@dataclass(frozen=True)
class Plan:
    """For what a request waits."""

    wait_pages: int
    """Leading cold pages to wait for; what is behind is recomputed."""
    deadline_s: float
    """Longest wait, seconds from the moment the scheduler could admit the request."""
    expected_s: float
    """Seconds until the pages are expected."""
    why: Why

    def revised(self, later: Plan, waited_s: float) -> Plan:
        """Return ``later``, made ``waited_s`` into the wait for the pages still cold, within this plan's deadline.

        A ``later`` that waits for nothing ends the wait: its deadline is now.
        """
        return replace(later, deadline_s=min(self.deadline_s, waited_s + later.deadline_s))


def plan(ask: Ask, prefill: PrefillCost, read: ReadRate, copy: CopyRate, direct: ReadRate | None = None) -> Plan:
    """Find the split and the deadline; O(cold pages), no I/O.

    ``read`` is what reads to DRAM were seen to do, ``direct`` those straight to HBM, which no copy follows.
    """
    cold = np.asarray(ask.cold, np.int64)
    if not len(cold):
        return Plan(0, 0.0, 0.0, Why.NOTHING_COLD)
    most = min(len(cold), max(0, ask.frames))
    if most == 0:
        return Plan(0, 0.0, 0.0, Why.NO_FRAMES)
    # Pages that can be loaded after 0 .. most cold pages arrived; the last token is always computed.
    loaded = np.append(cold, ask.pages)[: most + 1].astype(np.float64)
    reached = np.minimum(ask.hbm_tokens + loaded * ask.page_tokens, max(0, ask.prompt_tokens - 1))
    recompute = prefill.seconds(np.full_like(reached, reached[0]), reached)
    landing = np.zeros(most) if ask.straight is None or direct is None else ask.straight[:most].astype(np.float64)
    landed = np.append(0.0, landing.cumsum())
    copies = copy.seconds((loaded - landed) * ask.page_bytes)
    saved = recompute - (copies - copies[0])
    through = np.arange(most + 1, dtype=np.float64) - landed
    wait = read.seconds(through * ask.page_bytes, float(max(0, ask.queued_bytes)))
    if direct is not None and landed[-1]:
        # One drive does both, one after the other.
        wait = wait + np.where(landed > 0, direct.seconds(landed * ask.page_bytes), 0.0)
    hedged = wait if ask.waiting else HEDGE * wait
    gain = np.where(wait <= LONGEST_S, saved - hedged, -np.inf)
    gain[0] = 0.0
    split = int(gain.argmax())
    if split == 0:
        return Plan(0, 0.0, 0.0, Why.TOO_SLOW)
    if gain[split] < LEAST_GAIN_S and not ask.waiting:
        return Plan(0, 0.0, 0.0, Why.TOO_SHORT)
    stop = Why.NO_FRAMES if split == most < len(cold) else Why.TOO_SLOW
    why = Why.WORTH_IT if split == len(cold) else stop
    return Plan(split, min(LONGEST_S, float(saved[split])), float(wait[split]), why)


class Probe:
    """When to test a drive that nobody waits for any more.

    The law: a request that recomputes because the drive is :attr:`Why.TOO_SLOW` may have one job's worth of its pages
    read in the background, without waiting, when a probe is :meth:`due`. One probe runs at a time, and pauses are so
    long that probes take at most :data:`PROBE_SHARE` of the drive's time, within :data:`PROBE_LEAST_S` and
    :data:`PROBE_MOST_S`. A probe that took less than half of what was expected makes the next one due at once: a few in
    a row restore the estimate. One that has not come back for :data:`PROBE_MOST_S` is given up.

    Where it loses: a drive that recovers is not noticed before the pause is over, a minute at worst, and not at all
    while no request asks for cold pages.
    """

    def __init__(self) -> None:
        self._next = -np.inf
        self._running = False
        self._expected = 0.0

    def due(self, now: float) -> bool:
        """Whether a probe may start at ``now``, seconds."""
        return now >= self._next

    def started(self, now: float, expected_s: float) -> None:
        """A probe was queued that is expected to take ``expected_s``."""
        self._running, self._expected = True, expected_s
        self._next = now + PROBE_MOST_S

    def finished(self, now: float, seconds: float) -> None:
        """The probe ended after ``seconds``, by success or failure alike; say infinity for a failure."""
        if not self._running:
            return
        self._running = False
        pause = min(PROBE_MOST_S, max(PROBE_LEAST_S, seconds / PROBE_SHARE))
        self._next = now if seconds < self._expected / 2 else now + pause
