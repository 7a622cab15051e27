"""Stands in for a Python that has SGLang and its router: writes down how it was started, and waits to be stopped.

``radixtier suggest`` runs for real, on a machine of 512 GiB of RAM whose directories are drives of 500 GiB; everything
else of Python as well. Servers on the GPUs that STAND_IN_ENDS names end by themselves as soon as the test says so, by
a file named ``end``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

SERVERS = ("sglang.launch_server", "sglang_router.launch_router")
LONGEST_S = 120.0
"""A test that forgets a server leaves it for so long."""


def main(argv: list[str]) -> int:
    """Do what the arguments say."""
    if argv[:3] == ["-m", "radixtier.cli", "suggest"]:
        return suggest(argv[3:])
    if argv[:3] == ["-m", "radixtier.cli", "doctor"]:
        record("doctor", argv)
        return int(os.environ.get("STAND_IN_DOCTOR", "0"))
    if argv[0] == "-m" and argv[1] in SERVERS:
        return serve(argv)
    os.execv(sys.executable, [sys.executable, *argv])


def suggest(argv: list[str]) -> int:
    from radixtier import machine
    from radixtier.cli import suggest
    from radixtier.suggest import drives

    machine.free_disk_bytes = lambda path: 500 << 30
    machine.Machine.probe = classmethod(lambda cls: cls(512 << 30))  # type: ignore[method-assign,assignment]
    drives.file_system_type = lambda path: "ext4"  # type: ignore[attr-defined]
    return suggest.main(argv)


def serve(argv: list[str]) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "none")
    role = "router" if argv[1] == SERVERS[1] else "server"
    record(role, argv)
    if role == "server" and gpu in os.environ.get("STAND_IN_ENDS", "").split(","):
        deadline = time.monotonic() + LONGEST_S
        while time.monotonic() < deadline and not Path(os.environ["STAND_IN_RECORDS"], "end").exists():
            time.sleep(0.02)
        return 3
    got = signal.sigtimedwait({signal.SIGTERM, signal.SIGINT}, LONGEST_S)
    record("stopped", [role, signal.Signals(got.si_signo).name if got else "never"])
    return 0


def record(kind: str, argv: list[str]) -> None:
    """Leave one file; complete when it has its name."""
    directory = Path(os.environ["STAND_IN_RECORDS"])
    facts = {
        "kind": kind,
        "pid": os.getpid(),
        "session": os.getsid(0),
        "gpu": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "argv": argv,
    }
    file = directory / f"{kind}-{os.getpid()}.part"
    file.write_text(json.dumps(facts))
    file.rename(file.with_suffix(".json"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
