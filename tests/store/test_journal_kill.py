"""A process that is killed while it writes: whole batches are there, all that were reported, and none out of turn."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from journal_rig import Page, all_rows, check_sizes, opened, pages_of, row

from radixtier.store.journal import Batch

N_SLOTS = 6000
"""So that the log is large enough for a batch in one transaction."""

ROWS, PAGES = 12, 5
"""Rows per batch, pages per row."""

WRITER = """
import sys
from pathlib import Path
from journal_rig import opened
from test_journal_kill import N_SLOTS, batch
print("started", flush=True)
journal = opened(Path(sys.argv[1]), N_SLOTS)
print("opened", flush=True)
for number in range(int(sys.argv[2]), 10**9):
    journal.apply(batch(number))
    print(number, flush=True)
"""


def batch(number: int) -> Batch:
    """Batch ``number``: it replaces one in ten places, and frees part of what an earlier one left."""
    at = number % 10 * ROWS * PAGES
    rows = [row(at + i * PAGES, PAGES, number * ROWS + i) for i in range(ROWS)]
    behind = (number + 5) % 10 * ROWS * PAGES
    return Batch(adds=rows, frees=[(behind + 7, 20), (behind + 33, 1)], touches=[(at + 3, float(number))])


def after_batches(n: int) -> dict[int, Page]:
    """What batches ``0 .. n - 1`` leave."""
    pages: dict[int, Page] = {}
    for each in map(batch, range(max(0, n - 20), n)):
        for start, length in each.frees:
            for slot in range(start, start + length):
                pages.pop(slot, None)
        pages |= pages_of(each.adds)
    return pages


def run_and_kill(path: Path, first: int, lines: int) -> int:
    """Write batches from ``first`` on, kill after so many lines of output; return the batches reported in the end."""
    command = [sys.executable, "-c", WRITER, str(path), str(first)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent)
    assert writer.stdout
    try:
        output = [writer.stdout.readline() for _ in range(lines)]
    finally:
        writer.send_signal(signal.SIGKILL)
    output += writer.stdout.readlines()
    writer.wait(20)
    writer.stdout.close()
    return max((int(line) + 1 for line in output if line.strip().isdigit()), default=first)


@pytest.mark.parametrize("seed", range(4))
def test_batches_are_there_whole_and_in_order(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "journal.db"
    rng = random.Random(seed)
    applied = 0
    for _ in range(5):
        reported = run_and_kill(path, applied, rng.choice([1, 2, 3, 10, 100]))
        journal = opened(path, N_SLOTS)
        assert journal.replaced is None or reported == 0  # killed while it was being made
        found = pages_of(all_rows(journal))
        # One batch may have been applied and not reported.
        [applied] = [n for n in (reported, reported + 1) if found == after_batches(n)]
        check_sizes(path, N_SLOTS)
        journal.close()
