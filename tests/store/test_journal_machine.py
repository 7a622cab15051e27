"""Random lives of a journal against a dict of pages: contents exact after every step, and never over a cap."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from journal_rig import Page, all_rows, check_sizes, heat_of, opened, pages_of, row

from radixtier.identity import Space
from radixtier.store.journal import Batch, Row

MOST_SLOTS = 60
LONGEST = 9  # pages that a small log allows in one row

SPACES = [Space(), Space("", None), Space("lora", None), Space(None, "lora"), Space("lora", "salt" * 60)]

RANGES = st.lists(st.tuples(st.integers(0, MOST_SLOTS - 1), st.integers(1, 15)), max_size=6)
ADDS = st.lists(
    st.tuples(st.integers(0, MOST_SLOTS - 1), st.integers(1, LONGEST), st.integers(0, 10**6), st.sampled_from(SPACES)),
    max_size=6,
)
TOUCHES = st.lists(st.tuples(st.integers(0, MOST_SLOTS - 1), st.integers(0, 10**6)), max_size=6)


class Kept(NamedTuple):
    pages: list[Page]
    used: float


class JournalMachine(RuleBasedStateMachine):
    @initialize(page_tokens=st.sampled_from([1, 4, 300]), n_slots=st.integers(20, MOST_SLOTS))
    def begin(self, page_tokens: int, n_slots: int) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="radixtier-test-"))
        self.path = self.home / "journal.db"
        self.page_tokens = page_tokens
        self.n_slots = n_slots
        self.kept: dict[int, Kept] = {}
        self.journal = opened(self.path, n_slots, page_tokens)

    def remove(self, lo: int, hi: int) -> None:
        """What a free does to the rows."""
        for slot, (pages, used) in list(self.kept.items()):
            left, right = pages[: max(0, lo - slot)], pages[max(0, hi - slot) :]
            if slot < hi and slot + len(pages) > lo:
                del self.kept[slot]
                if left:
                    self.kept[slot] = Kept(left, used)
                if right:
                    self.kept[max(slot, hi)] = Kept(right, used)

    @rule(adds=ADDS, frees=RANGES, touches=TOUCHES)
    def apply(
        self,
        adds: list[tuple[int, int, int, Space]],
        frees: list[tuple[int, int]],
        touches: list[tuple[int, int]],
    ) -> None:
        rows = [
            row(slot, min(pages, self.n_slots - slot), seed, space=space, used=seed / 7, page_tokens=self.page_tokens)
            for slot, pages, seed, space in adds
            if slot < self.n_slots
        ]
        self.journal.apply(Batch(rows, frees, [(slot, used / 3) for slot, used in touches]))
        for slot, n in frees:
            self.remove(slot, slot + n)
        for each in rows:
            self.add(each)
        latest: dict[int, float] = {}
        for slot, used in touches:
            for first, kept in self.kept.items():
                if first <= slot < first + len(kept.pages):
                    latest[first] = max(latest.get(first, 0.0), used / 3)
        for first, heat in latest.items():
            self.kept[first] = self.kept[first]._replace(used=heat)

    def add(self, each: Row) -> None:
        self.remove(each.slot, each.slot + len(each.stretch))
        self.kept[each.slot] = Kept([page for _, page in sorted(pages_of([each]).items())], each.used)

    @rule()
    def clear(self) -> None:
        self.journal.clear()
        self.kept = {}

    @rule(orderly=st.booleans(), n_slots=st.none() | st.integers(5, MOST_SLOTS))
    def reopen(self, orderly: bool, n_slots: int | None) -> None:
        if orderly:
            self.journal.close()
        old, self.n_slots = self.journal, n_slots or self.n_slots
        self.journal = opened(self.path, self.n_slots, self.page_tokens)
        old.close()
        assert self.journal.replaced is None and self.journal.dropped == 0
        self.remove(self.n_slots, MOST_SLOTS)

    @rule(figures=st.dictionaries(st.text(max_size=5), st.integers(), max_size=3))
    def note(self, figures: dict[str, int]) -> None:
        self.journal.set_status(figures)
        assert self.journal.status() == figures

    @invariant()
    def contents_are_exact(self) -> None:
        rows = all_rows(self.journal)
        ends = [each.slot + len(each.stretch) for each in rows]
        assert all(end <= other.slot for end, other in zip(ends, rows[1:], strict=False))
        assert not ends or ends[-1] <= self.n_slots
        pages = {slot + i: page for slot, kept in self.kept.items() for i, page in enumerate(kept.pages)}
        heat = {slot + i: kept.used for slot, kept in self.kept.items() for i in range(len(kept.pages))}
        assert pages_of(rows) == pages
        assert heat_of(rows) == heat

    @invariant()
    def caps_hold(self) -> None:
        check_sizes(self.path, self.n_slots, self.page_tokens)

    def teardown(self) -> None:
        if hasattr(self, "journal"):
            self.journal.close()
            shutil.rmtree(self.home)


TestJournal = JournalMachine.TestCase
TestJournal.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
