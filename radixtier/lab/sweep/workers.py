"""Replays cells in processes of their own, and says what came of each, in the order in which they are done.

Owns the processes. The laws:

- A process takes one cell at a time and stays with a trace as long as that has cells, so that it is read once.
- A cell that fails, or whose process dies, is an outcome with an error; the others are not touched.
- When the caller stops in the middle, by closing the generator or by an exception of its own, what is being replayed
  is ended at once. The processes ignore Ctrl-C: that is the caller's to handle.

Processes are spawned, so a script that calls this needs the usual ``if __name__ == "__main__"``. Main thread.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from time import perf_counter

from radixtier.lab.rates import Rates
from radixtier.lab.setup import run
from radixtier.lab.sweep.grid import Cell, Outcome
from radixtier.lab.sweep.held import Shelf
from radixtier.lab.traces.trace import Trace

_SPAWN = multiprocessing.get_context("spawn")

Task = tuple[Cell, bool]
"""A cell, and whether its ceiling is wanted."""


class Workers:
    """A context: the processes end with it.

    Parameters
    ----------
    traces
        By the names in the cells, opened and not read.
    rates
        Of the machine.
    jobs
        Processes, at least 1; they are started when there is something to do.
    """

    def __init__(self, traces: Mapping[str, Trace], rates: Rates, jobs: int) -> None:
        self._traces = traces
        self._rates = rates
        self._jobs = jobs
        self._idle: list[_Worker] = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        while self._idle:
            self._idle.pop().end()

    def replay(self, tasks: Sequence[Task]) -> Generator[Outcome, None, None]:
        """Replay cells; yields one outcome for each, in no order."""
        waiting = _Queue(tasks)
        busy: dict[Connection, _Worker] = {}
        try:
            while waiting or busy:
                while waiting and len(busy) < self._jobs:
                    worker = self._idle.pop() if self._idle else _Worker(self._traces, self._rates)
                    worker.begin(waiting.take(worker.trace))
                    busy[worker.connection] = worker
                for ready in wait(list(busy)):
                    assert isinstance(ready, Connection)
                    worker = busy.pop(ready)
                    outcome = worker.outcome()
                    if worker.process.is_alive():
                        self._idle.append(worker)
                    yield outcome
        finally:
            for worker in busy.values():
                worker.end()


class _Queue:
    """Tasks that wait, by trace."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks: dict[str, deque[Task]] = {}
        for task in tasks:
            self._tasks.setdefault(task[0].trace, deque()).append(task)
        self._taken = dict.fromkeys(self._tasks, 0)

    def __bool__(self) -> bool:
        return any(self._tasks.values())

    def take(self, trace: str | None) -> Task:
        """Take the next of this trace, or else of the one that fewest processes went to and that has most left."""
        if trace is None or not self._tasks.get(trace):
            left = [name for name, tasks in self._tasks.items() if tasks]
            trace = min(left, key=lambda name: (self._taken[name], -len(self._tasks[name])))
            self._taken[trace] += 1
        return self._tasks[trace].popleft()


class _Worker:
    """One process, from this side."""

    def __init__(self, traces: Mapping[str, Trace], rates: Rates) -> None:
        self.connection, theirs = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_serve, args=(theirs, traces, rates), daemon=True)
        self.process.start()
        theirs.close()
        self._cell: Cell | None = None

    @property
    def trace(self) -> str | None:
        """The one it has in memory."""
        return None if self._cell is None else self._cell.trace

    def begin(self, task: Task) -> None:
        """Give it something to do."""
        self._cell = task[0]
        with suppress(OSError):  # it is dead, which shows when its answer is read
            self.connection.send(task)

    def outcome(self) -> Outcome:
        """Read its answer, which is there or never will be."""
        assert self._cell is not None
        try:
            outcome: Outcome = self.connection.recv()
        except (EOFError, OSError):
            self.end()
            why = f"its process died (exit code {self.process.exitcode}); was there enough memory?"
            return Outcome(self._cell, error=why)
        return outcome

    def end(self) -> None:
        """End it, whatever it does."""
        self.process.terminate()
        self.process.join()
        self.connection.close()


# ---- in the process ---------------------------------------------------------------------------------


def _serve(theirs: Connection, traces: Mapping[str, Trace], rates: Rates) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    shelf = Shelf(traces)
    while True:
        try:
            cell, ceiling = theirs.recv()
        except EOFError:
            return
        theirs.send(_replay(cell, shelf, rates, ceiling))


def _replay(cell: Cell, shelf: Shelf, rates: Rates, ceiling: bool) -> Outcome:
    began = perf_counter()
    try:
        trace = shelf.get(cell.trace)
        report = run(trace, cell.setup, rates=rates, ceiling=ceiling).as_dict()
    except (ValueError, OSError) as error:
        return Outcome(cell, error=str(error), seconds=perf_counter() - began)
    except Exception as error:  # an error of ours, or no memory: the other cells are worth having
        return Outcome(cell, error=f"{type(error).__name__}: {error}", seconds=perf_counter() - began)
    return Outcome(cell, report, seconds=perf_counter() - began, distinct=trace.nodes.n_pages)
