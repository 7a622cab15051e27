"""Two servers under the same load in one run.

Owns the order: rounds alternate, and so does who begins; only one server works at a time, the other is stopped by a
signal, or, where the machine holds only one, not running. Every round has conversations of its own, the same on both
sides. Invariant: no server is left behind. Main thread.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from radixtier.live.server import ServerFailed
from radixtier.load.connect import Found, NoTarget
from radixtier.load.figures import figures, median_ratio
from radixtier.load.launch import Command, Launched
from radixtier.load.play import Played
from radixtier.load.progress import Progress
from radixtier.load.runs import Plan, known, load, until_interrupted, wake, warm_up

METRICS: dict[str, tuple[str, ...]] = {
    "TTFT p50": ("ttft_s", "p50"),
    "TTFT p95": ("ttft_s", "p95"),
    "ITL p50": ("itl_s", "p50"),
    "output tokens/s": ("output_tokens_per_s",),
}
"""What is compared, and where it stands in :func:`radixtier.load.figures.figures`."""


@dataclass
class Side:
    """One of the two."""

    name: str
    command: Command
    server: Launched
    target: Found | None = None
    starts: int = 0
    warm: bool = False


Sides: TypeAlias = tuple[Side, Side]
"""A and B."""


@dataclass
class Comparison:
    """What came of it, round by round; a round is there when both sides have played it to the end."""

    rounds: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """By concurrency: ``first``, and ``A`` and ``B``: figures, ``outputs``: ``compared`` and ``equal``."""
    interrupted: bool = False
    failure: Exception | None = None
    """Why a server could not go on; it ended the comparison."""


class Stage:
    """The two servers, and which one works.

    Parameters
    ----------
    sides
        A and B.
    reach
        Connects to a server that is up.
    apart
        Only one runs at a time.
    """

    def __init__(self, sides: Sides, reach: Callable[[str], Found], apart: bool, progress: Progress) -> None:
        self.sides = sides
        self._reach = reach
        self._apart = apart
        self._progress = progress

    def __enter__(self) -> Stage:
        try:
            if not self._apart:
                for side in self.sides:
                    self._start(side)
                    side.server.pause()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        a, b = self.sides
        try:
            a.server.stop()
        finally:
            b.server.stop()

    @contextmanager
    def awake(self, side: Side) -> Iterator[Found]:
        """Let one work, and no other."""
        if self._apart and not side.server.running():
            for other in self.sides:
                other.server.stop()
            self._start(side)
        side.server.resume()
        try:
            assert side.target is not None
            yield side.target
        finally:
            if not self._apart:
                side.server.pause()

    def _start(self, side: Side) -> None:
        self._progress.line(f"starting {side.name}", "dim")
        self._progress.begin(f"starting {side.name}")
        side.server.start(wait=self._progress.wait)
        side.target = self._reach(side.server.url)
        side.starts += 1
        side.warm = False


def compare(stage: Stage, plan: Plan, levels: Sequence[int], rounds: int, progress: Progress) -> Comparison:
    """Play all rounds at all levels; what is finished when somebody interrupts it, or a server fails, counts."""
    result = Comparison({level: [] for level in levels})
    try:
        for level in levels:
            for number in range(rounds):
                what = f"round {number + 1} of {rounds}"
                found = _round(stage, plan, level, number, progress, what)
                if found is None:
                    result.interrupted = True
                    return result
                result.rounds[level].append(found)
                progress.line(f"concurrency {level}, {what}: TTFT p50 {_first_tokens(found, stage.sides)}", "dim")
    except KeyboardInterrupt:
        result.interrupted = True
    except (ServerFailed, NoTarget, OSError) as failure:
        result.failure = failure
    return result


def _round(
    stage: Stage, plan: Plan, concurrency: int, number: int, progress: Progress, what: str
) -> dict[str, Any] | None:
    """Play one round on both sides; None if it was interrupted."""
    pair = stage.sides if number % 2 == 0 else stage.sides[::-1]
    done: dict[str, Played] = {}
    for side in pair:
        progress.begin(f"concurrency {concurrency}, {what}, {side.name}")
        with stage.awake(side) as target, until_interrupted(target) as stop:
            if not side.warm:
                _warm_up(side, target, plan, concurrency, stop, progress)
            wake(target, plan)
            label = f"{concurrency}/{number}"
            done[side.name] = load(target, plan, concurrency, label, on_exchange=progress, stop=stop)
        if stop.is_set():
            return None
    a, b = (done[side.name] for side in stage.sides)
    return {
        "first": "A" if pair is stage.sides else "B",
        "A": figures(a),
        "B": figures(b),
        "outputs": same_outputs(a, b),
    }


def _first_tokens(found: dict[str, Any], sides: Sides) -> str:
    times = [(side.name, found[letter]["ttft_s"]["p50"]) for letter, side in zip("AB", sides, strict=True)]
    return ", ".join(f"{name} {'not measured' if seconds is None else f'{seconds:.3f} s'}" for name, seconds in times)


def _warm_up(
    side: Side, target: Found, plan: Plan, concurrency: int, stop: threading.Event, progress: Progress
) -> None:
    """Warm a side up after a start; a store that an earlier run left may know this load."""
    seen = known(warm_up(target, plan, concurrency, start=side.starts, stop=stop))
    side.warm = True
    if seen:
        progress.line(f"{side.name} has seen this load before: use --seed {plan.seed + 1}, or empty its store", "bad")


def same_outputs(a: Played, b: Played) -> dict[str, int]:
    """Count the turns that both sides answered, and those with equal answers."""
    ours, theirs = (
        {(each.conversation, each.turn): each.answer.output for each in side.exchanges if each.answer.ok}
        for side in (a, b)
    )
    both = ours.keys() & theirs.keys()
    return {"compared": len(both), "equal": sum(ours[key] == theirs[key] for key in both)}


def summary(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Summarise the rounds of one level.

    Returns
    -------
    dict
        ``ratios``: by metric B / A as value, low and high end of its interval, or None where it was not measured;
        ``counted``: by metric the rounds that both sides measured, which are in ratio and medians, and no others;
        ``medians``: by metric, of A and of B; ``outputs``; ``failed`` of A and B.
    """
    measured = {name: [_both(each, path) for each in rounds] for name, path in METRICS.items()}
    pairs = {name: [(b, a) for a, b in values if a and b] for name, values in measured.items()}
    return {
        "ratios": {name: list(median_ratio(each)) if each else None for name, each in pairs.items()},
        "counted": {name: len(each) for name, each in pairs.items()},
        "medians": {
            name: {
                side: statistics.median([pair[at] for pair in each]) if each else None
                for side, at in (("A", 1), ("B", 0))
            }
            for name, each in pairs.items()
        },
        "outputs": {key: sum(each["outputs"][key] for each in rounds) for key in ("compared", "equal")},
        "failed": {side: sum(each[side]["failed"] for each in rounds) for side in "AB"},
    }


def _both(each: dict[str, Any], path: Sequence[str]) -> tuple[float | None, float | None]:
    return _at(each["A"], path), _at(each["B"], path)


def _at(found: Any, path: Sequence[str]) -> float | None:
    for name in path:
        found = found[name]
    return None if found is None else float(found)


def sides(names: Sequence[str], commands: Sequence[Command], logs: Path) -> Sides:
    """Make both sides, with their logs in a directory."""
    made = [
        Side(name, command, Launched(name, command, logs / f"{letter}.log"))
        for name, command, letter in zip(names, commands, "AB", strict=True)
    ]
    return made[0], made[1]
