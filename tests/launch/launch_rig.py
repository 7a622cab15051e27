"""Runs the scripts of launch/ on a machine that is made up: its GPUs, its Python, what was started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from suggest_rig import smi_row, write_smi

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "launch"
DEADLINE_S = 60.0


class Rig:
    """A machine for scripts.

    Parameters
    ----------
    tmp_path
        For its files.
    """

    def __init__(self, tmp_path: Path) -> None:
        self.records = tmp_path / "records"
        self.records.mkdir()
        self.logs = tmp_path / "logs"
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).parent / "stand_in_python.py"} "$@"\n')
        python.chmod(0o700)
        self._bin = tmp_path / "bin"
        unwanted = ("RADIXTIER_", "CUDA_", "XDG_RUNTIME_DIR", "DRY_RUN", "ROUTER_", "FIRST_PORT", "DWPD", "KV_BYTES")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(unwanted)}
        self.env |= {"PYTHON": str(python), "STAND_IN_RECORDS": str(self.records), "LOGS": str(self.logs)}
        self.env["PYTHONPATH"] = str(ROOT)
        self.gpus(0)
        self._running: list[subprocess.Popen[str]] = []

    def gpus(self, count: int) -> None:
        """Have this many."""
        self.env["PATH"] = write_smi(self._bin, *(smi_row(i) for i in range(count)), status=0 if count else 9)

    def run(self, script: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a script to its end."""
        command = [str(LAUNCH / script), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, env={**self.env, **env}, timeout=DEADLINE_S, check=False
        )

    def start(self, script: str, *arguments: str, **env: str) -> subprocess.Popen[str]:
        """Start a script that serves."""
        command = [str(LAUNCH / script), *arguments]
        env = {**self.env, **env}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        self._running.append(process)
        return process

    def recorded(self, kind: str, count: int) -> list[dict[str, Any]]:
        """Wait until this many processes of a kind have said something, and return it in the order of GPUs."""
        end = time.monotonic() + DEADLINE_S
        while len(files := list(self.records.glob(f"{kind}-*.json"))) < count:
            assert time.monotonic() < end, f"{len(files)} of {count} {kind}: {self._logs()}"
            time.sleep(0.02)
        found = [json.loads(file.read_text()) for file in files]
        assert len(found) == count
        return sorted(found, key=lambda each: str(each["gpu"]))

    def end(self) -> None:
        """Have the servers that are to end by themselves do so."""
        (self.records / "end").touch()

    def stop(self, process: subprocess.Popen[str], signum: int = signal.SIGTERM) -> tuple[int, str]:
        """Signal a script; returns its exit status and what it had said."""
        process.send_signal(signum)
        said, _ = process.communicate(timeout=DEADLINE_S)
        return process.returncode, said

    def close(self) -> None:
        """End what is left."""
        for process in self._running:
            if process.poll() is None:
                self.stop(process)

    def _logs(self) -> str:
        return " ".join(file.read_text() for file in self.logs.glob("*.log"))


def value(argv: Sequence[str], flag: str) -> str:
    """Return the word behind a flag."""
    return argv[list(argv).index(flag) + 1]
