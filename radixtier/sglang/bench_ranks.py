"""``radixtier bench ranks``: what agreeing costs a step of the scheduler, with so many ranks on this machine.

Owns the processes, one per rank, and the report. Each has a cache on CPU tensors and a store of its own, and no model.
SGLang reduces four numbers over the ranks in every step, whatever the tier does; the tier's vector goes along. Both are
timed in turns, the one inside a step that moves pages, the other by itself, each after a reduction that nobody counts,
so that ranks begin together. Main thread; importable without SGLang.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

RANKS, STEPS = 8, 2000
START_S = 300.0
"""Longest until all ranks have loaded SGLang."""

STEP_S = 0.5
"""Longest that a step takes on average, with many ranks on few cores."""

_FIGURES = {
    "tick_us": "step of the tier without the reduction",
    "vector_us": "of it: putting the vector together and learning from it",
    "with_us": "reduction with the tier's vector",
    "stock_us": "reduction of SGLang's four numbers alone",
}


def main(argv: Sequence[str]) -> int:
    """Measure and print."""
    given = parser().parse_args(list(argv))
    if importlib.util.find_spec("sglang") is None:
        print("radixtier bench ranks: SGLang is not installed: pip install radixtier[sglang]", file=sys.stderr)
        return 2
    if given.ranks < 2 or given.steps < 1:
        print("radixtier bench ranks: --ranks must be 2 at least, --steps 1", file=sys.stderr)
        return 2
    try:
        found = measure(given.ranks, given.steps)
    except RuntimeError as error:
        print(f"radixtier bench ranks: {error}", file=sys.stderr)
        return 1
    if given.json:
        Path(given.json).write_text(json.dumps(found, indent=2) + "\n")
    report(found)
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    made = argparse.ArgumentParser(prog="radixtier bench ranks", description="What agreeing costs a step, over ranks.")
    made.add_argument("--ranks", type=int, default=RANKS, metavar="N", help=f"processes (default: {RANKS})")
    made.add_argument("--steps", type=int, default=STEPS, metavar="N", help=f"steps of each (default: {STEPS})")
    made.add_argument("--json", metavar="FILE", help="write the figures to FILE as well")
    return made


def measure(ranks: int, steps: int) -> dict[str, float]:
    """Run the ranks, and return the medians of the first one, microseconds, and counts.

    Raises
    ------
    RuntimeError
        When a rank failed or took too long.
    """
    with tempfile.TemporaryDirectory(prefix="radixtier-bench-") as directory, contextlib.ExitStack() as stack:
        command = [sys.executable, "-m", "radixtier.sglang.bench_ranks_rank", directory]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        running = [
            stack.enter_context(_Rank([*command, str(rank), str(ranks), str(steps)], env)) for rank in range(ranks)
        ]
        for rank, process in enumerate(running):
            process.wait(START_S + STEP_S * steps, rank)
        found: dict[str, float] = json.loads(running[0].output.splitlines()[-1])
        return found


class _Rank:
    """A process that is gone when the block ends."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.output = ""

    def __enter__(self) -> _Rank:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def wait(self, seconds: float, rank: int) -> None:
        try:
            self.output, errors = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"rank {rank} was not done after {seconds:.0f} s") from None
        if self._process.returncode:
            raise RuntimeError(f"rank {rank} ended with {self._process.returncode}:\n{errors[-2000:]}")


def report(found: Mapping[str, float]) -> None:
    """Print the table."""
    ranks, steps = int(found["ranks"]), int(found["steps"])
    print(f"{ranks} ranks on {os.cpu_count()} cores, {steps} steps; medians of the first rank\n")
    print("| | us |\n|---|---|")
    for name, told in _FIGURES.items():
        print(f"| {told} | {found[name]:.0f} |")
    ratio, most = found["with_us"] / found["stock_us"], int(found["most_numbers"])
    print(f"\nThe tier's vector, of {most} numbers at most, makes SGLang's reduction {ratio:.2f} times as long.")
    print(f"{found['jobs']:.0f} transfers ended on all ranks, with no reduction of their own.")
    print(f"Reductions of the tier's own: {found['own']:.0f}, for {found['arrivals']:.0f} requests that arrived.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
