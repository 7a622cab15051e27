"""G1, acceptance: whether machine, drives, store and server are in order before anything is measured on them.

Owns the order of the parts. Invariant: works beside a running server and leaves it as it was; only a server that the
gate has started itself gets one prompt, so that its store has pages to verify. A part that cannot be done fails or is
skipped with its reason, and the others go on. Main thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from radixtier.gate.acceptance_doctor import doctor
from radixtier.gate.acceptance_memory import memory
from radixtier.gate.acceptance_speed import bandwidth, engine
from radixtier.gate.acceptance_store import SAMPLE_BYTES, store
from radixtier.gate.acceptance_subject import Part, Subject, look
from radixtier.gate.profiles import Plan
from radixtier.gate.progress import Progress
from radixtier.gate.result import Check, Result, Verdict
from radixtier.gate.stand import Stand
from radixtier.store.journal import JournalError
from radixtier.store.slab import StoreError

KEY, TITLE = "G1", "Acceptance"

FIRST_TOKENS = 512
"""Of the prompt that an own server gets."""

SETTLE_S = 30.0
"""Longest wait for its pages to be on NVMe."""

EXPECTED_S, QUICK_EXPECTED_S = 120.0, 60.0


def run(stand: Stand, plan: Plan, say: Progress) -> Result:
    """Run every part; raises only what means that there is no server to look at."""
    began = time.monotonic()
    say.total(QUICK_EXPECTED_S if plan.quick else EXPECTED_S)
    with stand.tiered.awake():
        if not stand.attached:
            say.step("one prompt, so that the store has pages to verify")
            first_pages(stand)
        subject = look(stand)
    sample = SAMPLE_BYTES if plan.quick else None

    def seen(share: float) -> None:
        say.at(share=0.5 + 0.1 * share)

    parts: list[tuple[str, str, float, Callable[[], Part]]] = [
        ("doctor", "this machine, its directories and drives", 0.1, lambda: doctor(subject)),
        ("engine", "the engine that moves pages", 0.4, lambda: engine(subject)),
        ("store", "identity, integrity and health of the store", 0.5, lambda: store(subject, sample, seen)),
        ("memory", "limits of memory and files", 0.6, lambda: memory(subject)),
        (
            "bandwidth",
            "raw and store bandwidth",
            0.62,
            lambda: bandwidth(subject, plan.limits.store_ratio, plan.quick, lambda line: say.line(line, "dim")),
        ),
    ]
    checks: list[Check] = []
    figures: dict[str, object] = {"subject": told(subject)}
    for name, text, share, part in parts:
        say.at(share=share)
        say.step(text)
        found = guarded(name, part)
        checks += found.checks
        figures |= found.figures
    say.total(0)
    return Result(KEY, TITLE, tuple(checks), figures, time.monotonic() - began)


def guarded(name: str, part: Callable[[], Part]) -> Part:
    """Run a part; what it cannot read is a failed check, so that the others are run."""
    try:
        return part()
    except (OSError, StoreError, JournalError) as error:
        return Part([Check(name, Verdict.FAIL, str(error) or type(error).__name__, "radixtier doctor, store stat")], {})


def first_pages(stand: Stand) -> None:
    """Send one prompt and wait until its pages are on NVMe, :data:`SETTLE_S` at most."""
    target = stand.tiered.target
    target.ask(target.piece(FIRST_TOKENS, stand.number()), 1)
    end = time.monotonic() + SETTLE_S
    while time.monotonic() < end:
        pages = (stand.state() or {}).get("pages", {})
        if not pages.get("filling") and not pages.get("dirty"):
            return
        time.sleep(0.2)


def told(subject: Subject) -> dict[str, object]:
    """Return what is known of the server, for the report."""
    return {
        "directories": [str(path) for path in subject.directories],
        "ranks": subject.ranks,
        "pid": subject.pid,
        "device": subject.device,
        "engine": subject.state.get("engine"),
        "page_bytes": subject.state.get("page_bytes"),
        "page_tokens": subject.state.get("page_tokens"),
        "tiers": subject.state.get("tiers"),
        "policies": subject.state.get("policies"),
    }
