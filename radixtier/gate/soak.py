"""G4, stability: a long mixed load with faults, and everything that must not grow, drift, fail or go wrong.

Owns the schedule: events one after the other with a pause between, one ``kill -9`` in the middle, every kind at least
once. Invariant: the drive behaves and the load has ended when it is over, whatever happened; who interrupts it finds
the result so far as the attribute ``result`` of the ``KeyboardInterrupt``. Main thread.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import cycle
from typing import Any

from radixtier.gate.profiles import Plan, fit
from radixtier.gate.progress import Progress
from radixtier.gate.result import Check, Result, Verdict
from radixtier.gate.soak_events import KILL, KINDS, TITLES, Event, Events
from radixtier.gate.soak_load import SoakLoad, learn, learnt, scripts
from radixtier.gate.soak_records import Record
from radixtier.gate.soak_verdict import Seen, judge, quiet_times
from radixtier.gate.soak_watch import Watch, drift, samples_json
from radixtier.gate.stand import Stand, Unavailable, cap_bytes, check_alive
from radixtier.live.server import ServerFailed

KEY, TITLE = "G4", "Stability: soak with faults"
OVERTIME = 1.5
"""A soak that is too short for every kind of event may take so many times as long, and :data:`OVERTIME_S` more."""
OVERTIME_S = 300.0


def run(stand: Stand, plan: Plan, say: Progress) -> Result:
    """Learn the right answers, then let the load run with events until the time is over."""
    began = time.monotonic()
    with stand.tiered.awake() as target:
        plan, notes = fit(plan, stand.room())
        conversations = scripts(plan.soak, target, stand.number)
    say.total(plan.soak_s + 60.0)
    say.step("learning the right answers")
    side = stand.stock if stand.stock is not None and stand.beside else stand.tiered
    with side.awake() as target:
        known = learn(target, conversations, plan.soak)
    conversations = learnt(conversations, known)
    trouble = ""
    interrupted: KeyboardInterrupt | None = None
    events: list[Event] = []
    with stand.tiered.awake() as target:
        cap = cap_bytes(stand.state())
        start = time.perf_counter()
        load = SoakLoad(target, conversations, known, plan.soak)
        watch = Watch(stand, plan.soak.look_s, load.records.recent)
        try:
            with load, watch:
                try:
                    happening = Events(stand, plan, load, watch, lambda: time.perf_counter() - start)
                    _happen(stand, plan, happening, events, say)
                    check_alive(stand.tiered)
                finally:
                    with suppress(Unavailable):
                        stand.misbehave("")
        except ServerFailed as error:
            trouble = str(error).partition("\n")[0]
        except KeyboardInterrupt as error:
            interrupted = error
        seconds = time.perf_counter() - start
        state = stand.state() or {}
    seen = Seen(
        records=[_since(record, start) for record in load.records.kept()],
        events=events,
        samples=watch.samples,
        known=known,
        cap=cap,
        state=state,
        counts=load.records.counts,
        seconds=seconds,
        attached=stand.attached,
        troubles=[*load.troubles, *([watch.trouble] if watch.trouble else [])],
    )
    checks = [Check("server", Verdict.FAIL, trouble, "Look at its log")] if trouble else []
    if interrupted is not None:
        reason = f"interrupted after {seconds:.0f} of {plan.soak_s:.0f} s"
        checks.append(Check("ran to its end", Verdict.FAIL, reason, "Run it again"))
    result = Result(KEY, TITLE, (*checks, *judge(seen, plan)), _figures(seen, seconds, notes), time.monotonic() - began)
    if interrupted is not None:
        interrupted.result = result  # type: ignore[attr-defined]
        raise interrupted
    return result


def _happen(stand: Stand, plan: Plan, happening: Events, done: list[Event], say: Progress) -> None:
    """Let events happen until the time is over and every kind was there; ``done`` gets them as they end."""
    clock = happening.clock
    kinds = cycle(KINDS)
    left = {*KINDS, KILL}
    end = plan.soak_s
    latest = OVERTIME * end + OVERTIME_S
    while clock() < (latest if left else end):
        pause = plan.soak.event_every_s
        _wait(min(pause, max(0.0, end - clock())) if not left else pause, end, clock, say)
        if clock() >= end and not left:
            break
        kind = KILL if KILL in left and (left == {KILL} or clock() >= end / 2) else next(kinds)
        say.step(f"soak: {TITLES[kind]}")
        event = happening.happen(kind)
        check_alive(stand.tiered)
        done.append(event)
        left.discard(kind)
        if not event.skipped:
            text = "did not recover" if event.recovered_s is None else f"recovered after {event.recovered_s:.1f} s"
            say.line(f"{TITLES[kind]}: {text}" + (f" ({event.trouble})" if event.trouble else ""), "dim")


def _wait(seconds: float, end: float, clock: Any, say: Progress) -> None:
    """Let the load run undisturbed."""
    until = clock() + seconds
    while clock() < until:
        say.at(min(clock(), end))
        time.sleep(min(1.0, max(0.0, until - clock())))


def _since(record: Record, start: float) -> Record:
    """Return a record on the clock of the soak."""
    return replace(record, began_s=record.began_s - start, ended_s=record.ended_s - start)


def _figures(seen: Seen, seconds: float, notes: Sequence[str]) -> dict[str, Any]:
    known, counts = seen.known, seen.tally
    quiet = quiet_times(seen.events)
    return {
        "seconds": seconds,
        "turns": sum(counts.values()),
        **{outcome: counts.get(outcome, 0) for outcome in ("right", "wrong", "failed", "cut")},
        "events": [event.to_json() for event in seen.events],
        "samples": samples_json(seen.samples),
        "drift": {source: drift(seen.records, source, quiet) for source in ("hbm", "dram", "nvme")},
        "varying": known.varying,
        "not_learnt": known.left_out,
        "store": seen.state.get("store"),
        "notes": list(notes),
    }
