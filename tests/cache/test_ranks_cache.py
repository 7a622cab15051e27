"""Several ranks of one server in miniature, processes that agree over gloo: every decision is the same on all.

Each rank has a drive with delays, failures and an order of its own; every byte that comes back is compared. The server
is restarted several times, and some ranks end without their last writes (see ``ranks_worker``).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mover_fakes import SCALE

WORKER = Path(__file__).parent / "ranks_worker.py"

START_S = 180.0
"""Longest that a rank may take until it serves, on a machine with other things to do."""

STEP_S = 0.5
"""Longest that a step may take, likewise."""

END_S = 60.0
"""Longest that a rank goes on without the others."""

OWN = ("faults", "write_bytes", "stored", "slot_bytes")
"""What is each rank's own affair in its account of a life."""


class Server:
    """So many processes; what they print is in files."""

    def __init__(self, directory: Path, ranks: int, steps: int, seed: int, lives: int) -> None:
        directory.mkdir(exist_ok=True)
        self._meet = directory / "meet"
        self._meet.unlink(missing_ok=True)  # of processes that were killed
        self.texts = [directory / f"out{rank}" for rank in range(ranks)]
        self.errors = [directory / f"err{rank}" for rank in range(ranks)]
        self.limit = time.monotonic() + START_S + STEP_S * steps * lives
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        self.processes = []
        for rank in range(ranks):
            command = [sys.executable, str(WORKER), str(directory), *map(str, (rank, ranks, steps, seed, lives))]
            with self.texts[rank].open("w") as out, self.errors[rank].open("w") as err:
                self.processes.append(
                    subprocess.Popen(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, env=environment)
                )

    def wait(self, until: Any) -> None:
        """Wait until something is so, for a bounded time, and while no rank has failed."""
        while not until():
            assert not any(process.poll() for process in self.processes), self.trouble()
            assert time.monotonic() < self.limit, f"too slow: {self.trouble()}"
            time.sleep(0.02)

    def serving(self, life: int) -> bool:
        """Whether all ranks have begun a life."""
        return all(any(line.get("begun") == life for line in self.lines(rank)) for rank in range(len(self.texts)))

    def over(self) -> bool:
        """Whether all ranks have ended well."""
        return all(process.poll() == 0 for process in self.processes)

    def lines(self, rank: int) -> list[dict[str, Any]]:
        """What a rank has printed, line by line."""
        whole, _, _ = self.texts[rank].read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    def trouble(self) -> str:
        return "\n".join(f"rank {rank}: {path.read_text()[-3000:]}" for rank, path in enumerate(self.errors))

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(20)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Starts servers over one directory; whatever becomes of the test, their processes are ended."""
    with contextlib.ExitStack() as stack:

        def started(ranks: int, steps: int, seed: int, lives: int) -> Server:
            server = Server(tmp_path / "ranks", ranks, steps, seed, lives)
            stack.callback(server.kill)
            return server

        yield started


def compare(server: Server) -> list[dict[str, Any]]:
    """See that all ranks tell the same of every life; returns what the first one tells, with the faults of all."""
    told = [server.lines(rank) for rank in range(len(server.processes))]
    assert len({len(lines) for lines in told}) == 1, server.trouble()
    lives = []
    for number, lines in enumerate(zip(*told, strict=True)):
        first = lines[0]
        for rank, line in enumerate(lines[1:], 1):
            looks = zip(first.get("decisions", []), line.get("decisions", []), strict=True)
            for look, (one, other) in enumerate(looks):
                assert one == other, f"life {number // 2}, look {look}, rank {rank}"
            for name in first.keys() - set(OWN):
                assert line[name] == first[name], f"life {number // 2}, rank {rank}: {name}"
        if "decisions" in first:
            lives.append(first | {"faults": [line["faults"] for line in lines]})
    return lives


def check_counts(life: dict[str, Any]) -> None:
    """One reduction per step, SGLang's; of our own one per request that arrives, at most."""
    counts = life["counts"]
    assert counts["all_reduce"] == counts["steps"] + counts["own"]
    assert 0 < counts["own"] <= counts["arrivals"]
    assert life["held"] == life["leases"] == 0


def totals(lives: list[dict[str, Any]]) -> Counter[str]:
    """What happened over all lives."""
    seen: Counter[str] = Counter()
    for life in lives:
        seen.update({name: value for name, value in life["stats"].items() if isinstance(value, int)})
        seen.update({f"hits in {tier}": tokens for tier, tokens in life["hits"].items()})
        seen.update({name: life[name] for name in ("served", "aborted", "flushed", "sealed")})
        seen.update({f"faults of rank {rank}": faults for rank, faults in enumerate(life["faults"])})
    return seen


OFTEN = ("served", "aborted", "flushed", "sealed", "hits in device", "hits in host", "hits in storage", "promoted")

HAPPENS = (
    *OFTEN, "landed", "written", "write_failures", "read_failures", "lost", "restored", "writes_rejected",
    "writes_throttled", "in_time", "staged", "refilled", "scrubbed",
)  # fmt: skip


@pytest.mark.parametrize(("ranks", "steps", "seed", "happens"), [(2, 500, 11, HAPPENS), (4, 100, 12, OFTEN)])
def test_ranks_decide_alike(start: Any, ranks: int, steps: int, seed: int, happens: tuple[str, ...]) -> None:
    server = start(ranks, steps * SCALE, seed, 6)
    server.wait(lambda: server.serving(0))
    # One rank is away for a while: the others wait for it.
    away = server.processes[-1].pid
    os.kill(away, signal.SIGSTOP)
    time.sleep(0.5)
    os.kill(away, signal.SIGCONT)
    server.wait(server.over)
    lives = compare(server)
    assert len(lives) == 6
    for life in lives:
        check_counts(life)
        assert len(life["decisions"]) == steps * SCALE // 50 + 2
    seen = totals(lives)
    missing = [name for name in (*happens, *(f"faults of rank {rank}" for rank in range(ranks))) if not seen[name]]
    assert not missing, seen
    print(ranks, seen)


def test_a_rank_that_dies_ends_the_others_and_what_all_have_stored_is_back(start: Any) -> None:
    """SGLang ends a server of which a rank died. What its ranks left differs; what comes back does not."""
    server = start(3, 200, 20, 2)
    server.wait(lambda: server.serving(1))
    server.processes[0].kill()
    for process, path in list(zip(server.processes, server.errors, strict=True))[1:]:
        assert process.wait(END_S) == 1
        told = path.read_text()
        assert "RuntimeError" in told and "_all_reduce_attn_groups" in told, told[-3000:]
        assert "decided differently" not in told
    server = start(3, 100, 22, 1)
    server.wait(server.over)
    compare(server)
    # Not of what is back when it begins to serve: that is as much as fits into some seconds.
    assert server.lines(0)[-1]["stats"]["restored"] > 0
