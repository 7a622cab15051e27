"""The verdict of the soak.

Owns its laws; each check says its own in the reason. Pure functions, any thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radixtier.gate.profiles import Limits, Plan
from radixtier.gate.result import Check, Verdict, limit
from radixtier.gate.soak_events import KILL, KINDS, TITLES, Event
from radixtier.gate.soak_load import Known, Record
from radixtier.gate.soak_watch import Sample, drift, growth
from radixtier.units import format_bytes

LATE_S = 5.0
"""After a restart, within which a request that began before it may still fail."""

COUNTED = ("error", "flip")
"""Faults that the store counts when they hit a transfer."""

SPARE = 0.02
"""Of its cap, may a store take beyond it: blocks of the file system, a journal that is being rewritten."""


@dataclass(frozen=True)
class Seen:
    """What the soak saw; all times since its beginning."""

    records: Sequence[Record]
    events: Sequence[Event]
    samples: Sequence[Sample]
    known: Known
    cap: int | None
    """Most bytes the store may take."""
    state: Mapping[str, Any]
    """What the server told in the end."""


def judge(seen: Seen, plan: Plan) -> list[Check]:
    """Return all checks of the gate."""
    limits = plan.limits
    return [
        _wrong(seen, limits),
        _failed(seen),
        *(_recovered(kind, seen.events, limits) for kind in (*KINDS, KILL)),
        _came_back(seen.events),
        *_growth(seen.samples, limits),
        _cap(seen),
        _drift(seen, limits),
        _health(seen.state),
    ]


def _wrong(seen: Seen, limits: Limits) -> Check:
    name = "wrong answers"
    answered = [record for record in seen.records if record.outcome in ("right", "wrong")]
    if not answered:
        return Check(name, Verdict.FAIL, "no request was answered", "Look at the server's log")
    wrong = sum(record.outcome == "wrong" for record in answered)
    varying = seen.known.varying
    # A server whose answers vary by themselves is held against that, with three standard errors of the estimate.
    slack = varying + 3 * math.sqrt(varying * (1 - varying) / seen.known.asked) if varying else 0.0
    most = (limits.wrong + slack) * len(answered)
    reason = f"{wrong} of {len(answered):,}, at most {most:.0f}"
    reason += f" (this server varies {varying:.1%} of its answers without any fault)" if varying else ""
    good = wrong <= most
    fix = "" if good else "This must not happen: report it with the server's log and the flags"
    return Check(name, Verdict.PASS if good else Verdict.FAIL, reason, fix)


def _failed(seen: Seen) -> Check:
    """No request may fail, but those that ran when the server was killed."""
    kills = [event for event in seen.events if event.kind == KILL and not event.skipped]
    failed = [record for record in seen.records if record.outcome == "failed"]
    blameless = [r for r in failed if any(r.began_s <= k.end_s + LATE_S and r.ended_s >= k.at_s for k in kills)]
    bad = [record for record in failed if record not in blameless]
    reason = f"{len(bad)} of {len(seen.records):,}"
    reason += f", {len(blameless)} more when the server was killed" if kills else ""
    reason += f": {bad[0].error}" if bad else ""
    verdict = Verdict.FAIL if bad else Verdict.PASS
    return Check(
        "failed requests", verdict, reason, "A fault of the drive must never fail one: report it" if bad else ""
    )


def _recovered(kind: str, events: Sequence[Event], limits: Limits) -> Check:
    name = f"recovery: {TITLES[kind]}"
    mine = [event for event in events if event.kind == kind]
    done = [event for event in mine if not event.skipped]
    if not done:
        return Check(name, Verdict.SKIPPED, mine[0].skipped if mine else "the soak was too short for it")
    bad = [event for event in done if event.recovered_s is None or event.trouble]
    if bad:
        reason = f"{len(bad)} of {len(done)} times not within {limits.recover_s:g} s: {bad[0].trouble or 'no answer'}"
        return Check(name, Verdict.FAIL, reason, "Look at the server's log from that time on")
    told = [sum(event.figures.values()) for event in done if event.figures]
    if kind in COUNTED and told and not any(told):
        return Check(name, Verdict.SKIPPED, "no transfer was hit while the drive misbehaved")
    slowest = max(event.recovered_s or 0.0 for event in done)
    return Check(name, Verdict.PASS, f"{len(done)} times, after {slowest:.1f} s at most, limit {limits.recover_s:g} s")


def _came_back(events: Sequence[Event]) -> Check:
    name = "the store survives kill -9"
    shares = [event.stored_share for event in events if event.stored_share is not None]
    if not shares:
        return Check(name, Verdict.SKIPPED, "the server was not killed")
    share = min(shares)
    good = share > 0
    reason = f"{share:.0%} of what was on NVMe before came from there after the restart"
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
    spans = [
        (event.at_s, event.end_s + (event.recovered_s if event.recovered_s is not None else math.inf))
        for event in events
        if not event.skipped
    ]

    def quiet(record: Record) -> bool:
        return not any(begin <= record.ended_s and record.began_s <= end for begin, end in spans)

    return quiet
