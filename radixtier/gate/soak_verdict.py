"""The verdict of the soak.

Owns its laws; each check says its own in the reason. Pure functions, any thread.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radixtier.gate.profiles import Limits, Plan
from radixtier.gate.result import Check, Verdict, limit
from radixtier.gate.soak_events import FAULTS, KILL, KINDS, TITLES, Event
from radixtier.gate.soak_load import Known
from radixtier.gate.soak_records import Record
from radixtier.gate.soak_watch import Sample, drift, growth
from radixtier.units import format_bytes

LATE_S = 5.0
"""After a restart, within which a request that began before it may still fail."""

MOST_VARYING = 0.05
"""Of the prompts, may get another answer without any fault; above, no answer can be called wrong."""

THIRDS = 3

SPARE = 0.02
"""Of its cap, may a store take beyond it: blocks of the file system, a journal that is being rewritten."""


@dataclass(frozen=True)
class Seen:
    """What the soak saw; all times since its beginning."""

    records: Sequence[Record]
    """Those that were kept."""
    events: Sequence[Event]
    samples: Sequence[Sample]
    known: Known
    cap: int | None
    """Most bytes the store may take."""
    state: Mapping[str, Any]
    """What the server told in the end."""
    counts: Mapping[str, int] | None = None
    """All requests by outcome; None where all were kept."""
    seconds: float = 0.0
    attached: bool = False
    troubles: Sequence[str] = ()
    """What ended a part of the soak itself."""

    @property
    def tally(self) -> Mapping[str, int]:
        """All requests by outcome."""
        return Counter(record.outcome for record in self.records) if self.counts is None else self.counts


def judge(seen: Seen, plan: Plan) -> list[Check]:
    """Return all checks of the gate."""
    limits = plan.limits
    return [
        _went_on(seen),
        _answered(seen),
        _wrong(seen, limits),
        _failed(seen),
        *(_recovered(kind, seen.events, limits) for kind in (*KINDS, KILL)),
        _came_back(seen.events, limits),
        *_growth(seen.samples, limits),
        _cap(seen),
        _drift(seen, limits),
        _health(seen.state),
    ]


def _went_on(seen: Seen) -> Check:
    name = "load and samples"
    if seen.troubles:
        return Check(name, Verdict.FAIL, "; ".join(seen.troubles), "A fault of the gate: report it")
    return Check(name, Verdict.PASS, "all clients and the watch ran to the end")


def _answered(seen: Seen) -> Check:
    """There must be right answers in every third of the soak, unless the server was being started for half of it."""
    name = "answers all along"
    if seen.seconds <= 0:
        return Check(name, Verdict.SKIPPED, "not measured")
    found = [0] * THIRDS
    for record in seen.records:
        if record.outcome == "right":
            found[min(THIRDS - 1, max(0, int(record.ended_s / seen.seconds * THIRDS)))] += 1
    length = seen.seconds / THIRDS
    away = [(event.at_s, event.end_s) for event in seen.events if event.kind == KILL and not event.skipped]
    for third, answers in enumerate(found):
        begin, end = third * length, (third + 1) * length
        gone = sum(max(0.0, min(end, up) - max(begin, down)) for down, up in away)
        if not answers and gone <= length / 2:
            reason = f"no right answer in third {third + 1} of {THIRDS}"
            return Check(name, Verdict.FAIL, reason, "Look at the server's log")
    return Check(name, Verdict.PASS, "right answers in every third of the soak")


def _wrong(seen: Seen, limits: Limits) -> Check:
    name = "wrong answers"
    wrong = seen.tally.get("wrong", 0)
    answered = seen.tally.get("right", 0) + wrong
    if not answered:
        return Check(name, Verdict.FAIL, "no request was answered", "Look at the server's log")
    varying = seen.known.varying
    # A server whose answers vary by themselves is held against that, with three standard errors of the estimate.
    slack = varying + 3 * math.sqrt(varying * (1 - varying) / seen.known.asked) if varying else 0.0
    most = (limits.wrong + slack) * answered
    reason = f"{wrong} of {answered:,}, at most {most:.0f}"
    reason += f" (this server varies the answers of {varying:.1%} of the prompts without any fault)" if varying else ""
    if wrong > most:
        fix = "This must not happen: report it with the server's log and the flags"
        return Check(name, Verdict.FAIL, reason, fix)
    if varying > MOST_VARYING:
        reason += f": above {MOST_VARYING:.0%} of the prompts, wrong answers cannot be told"
        verdict = Verdict.SKIPPED if seen.attached else Verdict.FAIL
        return Check(name, verdict, reason, "Start the server with --enable-deterministic-inference")
    return Check(name, Verdict.PASS, reason)


def _failed(seen: Seen) -> Check:
    """No request may fail, but those that ran when the server was killed."""
    kills = [event for event in seen.events if event.kind == KILL and not event.skipped]
    failed = [record for record in seen.records if record.outcome == "failed"]
    bad = [r for r in failed if not any(r.began_s <= k.end_s + LATE_S and r.ended_s >= k.at_s for k in kills)]
    blameless = len(failed) - len(bad)
    number = seen.tally.get("failed", 0) - blameless  # what was not kept is not excused
    reason = f"{number} of {sum(seen.tally.values()):,}"
    reason += f", {blameless} more when the server was killed" if kills else ""
    reason += f": {bad[0].error}" if bad else ""
    verdict = Verdict.FAIL if number else Verdict.PASS
    return Check(
        "failed requests", verdict, reason, "A fault of the drive must never fail one: report it" if number else ""
    )


def _recovered(kind: str, events: Sequence[Event], limits: Limits) -> Check:
    name = f"recovery: {TITLES[kind]}"
    mine = [event for event in events if event.kind == kind]
    done = [event for event in mine if not event.skipped]
    if not done:
        return Check(name, Verdict.SKIPPED, mine[0].skipped if mine else "the soak was too short for it")
    bad = [event for event in done if event.recovered_s is None or event.trouble]
    if bad:
        late = sum(event.recovered_s is None for event in bad)
        what = f"{late} of {len(done)} times not within {limits.recover_s:g} s" if late else ""
        what = what or f"trouble {len(bad)} of {len(done)} times"
        reason = f"{what}: {bad[0].trouble or 'no answer'}"
        return Check(name, Verdict.FAIL, reason, "Look at the server's log from that time on")
    if kind in FAULTS and not any(event.hit for event in done):
        told = [event for event in done if event.hit is not None]
        reason = "no transfer was hit while the drive misbehaved" if told else "the server does not tell what was hit"
        return Check(name, Verdict.SKIPPED, reason)
    slowest = max(event.recovered_s or 0.0 for event in done)
    if unchecked := [event.unchecked for event in done if event.unchecked]:
        reason = f"right answers after {slowest:.1f} s at most, its way to NVMe and back: not checked, {unchecked[0]}"
        return Check(name, Verdict.SKIPPED, reason)
    return Check(name, Verdict.PASS, f"{len(done)} times, after {slowest:.1f} s at most, limit {limits.recover_s:g} s")


def _came_back(events: Sequence[Event], limits: Limits) -> Check:
    name = "the store survives kill -9"
    done = [event for event in events if event.kind == KILL and not event.skipped]
    shares = [event.stored_share for event in done if event.stored_share is not None]
    if not shares:
        said = [event.unchecked or event.trouble for event in done]
        return Check(name, Verdict.SKIPPED, next(filter(None, said), "the server was not killed"))
    share = min(shares)
    good = share >= limits.cold_share
    reason = f"{share:.0%} of what was on NVMe alone before came from there after the restart"
    reason += f", at least {limits.cold_share:.0%}"
    return Check(
        name, Verdict.PASS if good else Verdict.FAIL, reason, "" if good else "See the log: store not restored"
    )


def _growth(samples: Sequence[Sample], limits: Limits) -> list[Check]:
    checks = []
    for name, title, slack, share in (
        ("rss_bytes", "memory growth", limits.rss_slack, limits.rss_growth),
        ("descriptors", "descriptor growth", limits.descriptor_growth, 0.0),
        ("threads", "thread growth", limits.thread_growth, 0.0),
    ):
        found = growth(samples, name)
        if found is None:
            checks.append(Check(title, Verdict.SKIPPED, "the server's processes were not seen long enough"))
            continue
        grown, level = found
        most = slack + share * level
        said = (format_bytes(max(0, int(grown))), format_bytes(int(level)), format_bytes(int(most)))
        shown = said if name == "rss_bytes" else (f"{max(0.0, grown):.1f}", f"{level:.0f}", f"{most:g}")
        verdict = Verdict.PASS if grown <= most else Verdict.FAIL
        reason = f"{shown[0]} over the second half, at {shown[1]}; at most {shown[2]}"
        checks.append(Check(title, verdict, reason, "" if grown <= most else "Look at the plot of the soak: a leak?"))
    return checks


def _cap(seen: Seen) -> Check:
    name = "store under its cap"
    sizes = [sample.store_bytes for sample in seen.samples if sample.store_bytes is not None]
    if not sizes or seen.cap is None:
        return Check(name, Verdict.SKIPPED, "the store's directories are not on this machine, or its cap is not told")
    most = int(seen.cap * (1 + SPARE))
    good = max(sizes) <= most
    reason = f"{format_bytes(max(sizes))} at most, cap {format_bytes(seen.cap)}"
    return Check(name, Verdict.PASS if good else Verdict.FAIL, reason, "" if good else "Is something else in there?")


def _drift(seen: Seen, limits: Limits) -> Check:
    """TTFT of hits, first against last third, from the tier with the most of them."""
    quiet = quiet_times(seen.events)
    counts = {
        source: sum(r.source == source and r.outcome == "right" and quiet(r) for r in seen.records)
        for source in ("hbm", "dram", "nvme")
    }
    source = max(counts, key=lambda each: counts[each])
    found = drift(seen.records, source, quiet)
    name = "TTFT drift"
    if found is None:
        return Check(name, Verdict.SKIPPED, f"only {counts[source]} undisturbed hits")
    checked = limit(name, found[0], limits.drift, fix="Look at the plot of the soak, and at G3's figures")
    reason = f"{source.upper()} hits, last third / first: {checked.reason} ({found[1]} hits each)"
    return Check(name, checked.verdict, reason, checked.fix)


def _health(state: Mapping[str, Any]) -> Check:
    name = "store healthy in the end"
    store = state.get("store")
    if not isinstance(store, Mapping):
        return Check(name, Verdict.SKIPPED, "the server does not tell")
    degraded = store.get("degraded") or []
    said = "; ".join(map(str, degraded)) if isinstance(degraded, (list, tuple)) else str(degraded)
    verdict = Verdict.FAIL if degraded else Verdict.PASS
    return Check(name, verdict, said if degraded else "every drive takes new pages", "")


def quiet_times(events: Sequence[Event]) -> Callable[[Record], bool]:
    """Return what tells whether a record ran while nothing was going on."""
    spans: list[tuple[float, float]] = []
    for event in sorted((each for each in events if not each.skipped), key=_began):
        begin = _began(event)
        end = event.end_s + (event.recovered_s if event.recovered_s is not None else math.inf)
        if spans and begin <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], end))
        else:
            spans.append((begin, end))
    begins = [begin for begin, _ in spans]

    def quiet(record: Record) -> bool:
        at = bisect_right(begins, record.ended_s)
        return not at or spans[at - 1][1] < record.began_s

    return quiet


def _began(event: Event) -> float:
    return event.at_s if event.began_s is None else event.began_s
