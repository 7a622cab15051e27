"""Keeps what a sweep has found in a file, so that one that was stopped can be taken up again.

Owns ``results.jsonl``: a first line that says what the sweep is about, then a line per cell, written whole as soon as
it is done. Invariant: a line that was cut off (the machine went down) is dropped when the file is opened again. One
thread, one process.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from radixtier.lab.setup import Setup
from radixtier.lab.sweep.grid import Cell, Outcome

NAME = "results.jsonl"
VERSION = 1


class BadResults(ValueError):
    """The directory has results that this sweep cannot go on from; the text names it and what to do."""


class Results:
    """The file.

    Parameters
    ----------
    directory
        Made when it is not there.
    about
        What all cells have in common that is not in a cell: rates, the traces and how large they are.
    resume
        Go on with what is there.

    Raises
    ------
    BadResults
        When there are results and ``resume`` is false, or they are of another sweep.
    OSError
        When the directory or the file cannot be written.
    """

    def __init__(self, directory: Path, about: dict[str, Any], *, resume: bool = False) -> None:
        self.file = directory / NAME
        self.done: dict[Cell, Outcome] = {}
        """What was there already, without what failed."""
        header = json.loads(json.dumps({"radixtier_sweep": VERSION, **about}))
        directory.mkdir(parents=True, exist_ok=True)
        end = 0
        if self.file.exists() and self.file.stat().st_size:
            if not resume:
                raise BadResults(f"{self.file} is there already: give --resume to go on with it, or another --out")
            end = self._read(header)
        self._stream = self.file.open("r+b" if end else "wb")
        self._stream.truncate(end)
        self._stream.seek(end)
        if not end:
            self._write(header)

    def add(self, outcome: Outcome) -> None:
        """Write down what came of a cell."""
        row: dict[str, Any] = {"cell": outcome.cell.as_dict(), "seconds": round(outcome.seconds, 3)}
        row |= {"error": outcome.error} if outcome.report is None else {"report": outcome.report}
        self._write({**row, "distinct": outcome.distinct})

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _write(self, row: dict[str, Any]) -> None:
        self._stream.write(json.dumps(row).encode() + b"\n")
        self._stream.flush()

    def _read(self, header: dict[str, Any]) -> int:
        """Return where the last whole line ends."""
        end = 0
        with self.file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    break
                end += len(line)
                try:
                    row = json.loads(line)
                    if number > 1:
                        self._take(row)
                        continue
                except (ValueError, KeyError, TypeError):
                    raise BadResults(f"{self.file}:{number}: no line of a sweep: give another --out") from None
                self._compare(row, header)
        return end

    def _compare(self, there: Any, header: dict[str, Any]) -> None:
        if not isinstance(there, dict) or there.get("radixtier_sweep") != VERSION:
            raise BadResults(f"{self.file}:1: not the results of a sweep: give another --out")
        for name in header:
            if there.get(name) != header[name]:
                raise BadResults(f"{self.file} is of a sweep with other {name}: give another --out, or the same {name}")

    def _take(self, row: dict[str, Any]) -> None:
        if "report" in row:
            fields = dict(row["cell"])
            cell = Cell(fields.pop("trace"), Setup(**fields))
            self.done[cell] = Outcome(cell, row["report"], seconds=row["seconds"], distinct=row["distinct"])
