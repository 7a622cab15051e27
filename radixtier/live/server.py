"""Starts and stops servers on this machine: for the demo, the gate, the benchmarks and the end-to-end tests.

Owns one process group per server, its log file, and the rule that nothing outlives its owner by accident: a
server is stopped by its own process group, within a bounded time, unless it is deliberately left running with
:meth:`Server.leave_running`. Main thread.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from radixtier.live.client import Client
from radixtier.settings import CONFIG_FILE, SETTINGS

START_TIMEOUT_S = 600.0
"""Importing SGLang alone takes a minute on two slow cores."""

STOP_TIMEOUT_S = 45.0
"""Given to a server for a graceful stop before it is killed: SGLang looks for the signal every 5 s, waits for running
requests, and gives its schedulers 15 s."""

TAIL_LINES = 30

# Not the kernel's range for outgoing connections: the port stays free while SGLang imports.
_PORTS = range(20000, 30000)

CPU_FLAGS = ("--device", "cpu", "--dtype", "float32")
"""What both sides of a comparison run with: float32, so that greedy outputs can be compared token by token."""

_TIER_VARIABLES = {setting.env for setting in (*SETTINGS, CONFIG_FILE)}


class ServerFailed(RuntimeError):
    """A server did not start, or is gone; the message ends with the last lines of its log."""


class Server:
    """One SGLang server on this machine, listening on 127.0.0.1; a context manager that stops it.

    Parameters
    ----------
    name
        For messages.
    model
        Directory of the model; None where the flags name it.
    flags
        Flags of SGLang and radixtier beyond address and model.
    log
        File that gets everything the server prints.
    env
        Variables to set on top of this process's.
    command
        What starts a server, up to its flags: SGLang's by default.
    """

    def __init__(
        self,
        name: str,
        model: Path | None,
        flags: Sequence[str],
        log: Path,
        env: Mapping[str, str] | None = None,
        command: Sequence[str] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = Client(self.url)
        self._command = [*(serve_command() if command is None else command)]
        self._command += [] if model is None else ["--model-path", str(model)]
        self._command += ["--host", "127.0.0.1", "--port", str(self.port), *flags]
        # Only flags say whether the tier is on, and the model is a local directory: no look-ups in a hub.
        inherited = {name: value for name, value in os.environ.items() if name not in _TIER_VARIABLES}
        self._env = {**inherited, "HF_HUB_OFFLINE": "1", **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the server, which is also its process group."""
        assert self._process is not None
        return self._process.pid

    def start(self, timeout_s: float = START_TIMEOUT_S, wait: Callable[[float], None] | None = None) -> Client:
        """Start the server and wait until it answers.

        Parameters
        ----------
        timeout_s
            Longest wait, seconds.
        wait
            Called about once a second with the seconds passed.

        Raises
        ------
        ServerFailed
            It ended, or took too long; it is stopped then.
        """
        started = time.monotonic()
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
                start_new_session=True,
            )
        while not self.client.healthy():
            passed = time.monotonic() - started
            if self._process.poll() is not None:
                raise self.failure(f"ended with status {self._process.returncode} before it was ready")
            if passed > timeout_s:
                self.stop()
                raise self.failure(f"was not ready after {timeout_s:.0f} s")
            if wait is not None:
                wait(passed)
            time.sleep(1.0)
        return self.client

    def running(self) -> bool:
        """Whether the server process is there."""
        return self._process is not None and self._process.poll() is None

    def pause(self) -> None:
        """Stop all its processes where they are, so that it takes no time from another server."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after :meth:`pause`."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self.running():
            os.killpg(self.pid, number)

    def stop(self) -> None:
        """Stop the server: gracefully, then by force; returns when all its processes are gone."""
        self.resume()
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.terminate()
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # Also when somebody presses Ctrl-C a second time.
            _end_group(process)

    def kill(self) -> None:
        """End the server at once, as a crash or a power cut would."""
        process, self._process = self._process, None
        if process is not None:
            _end_group(process)

    def leave_running(self) -> None:
        """Forget the server without stopping it."""
        self._process = None

    def failure(self, what: str) -> ServerFailed:
        """Make an error that says what happened and shows the end of the log."""
        return ServerFailed(f"the server {self.name} {what}; its log is {self.log}:\n{tail(self.log)}")

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()


def serve_command() -> list[str]:
    """Return the start of a command line that serves, in this Python installation."""
    return [sys.executable, "-m", "radixtier.cli", "serve"]


def free_port() -> int:
    """Find a TCP port on 127.0.0.1 that nothing listens on."""
    for port in random.sample(_PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port found between {_PORTS.start} and {_PORTS.stop}")


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """Return the last lines of a log file, indented."""
    text = log.read_bytes()[-20000:].decode(errors="replace") if log.exists() else ""
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:]) or "    (empty)"


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a process group: SGLang's children end by themselves only after a graceful stop."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
