"""Trying an engine in a directory, in a process of its own.

Owns that process for as long as it runs. Invariant: neither a mount that hangs nor a library that crashes, hangs or
exits takes the caller with it; it gets a verdict within `TIMEOUT_S` seconds and a little. Any thread.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from radixtier.io.kvikio import LOG_VARIABLE

TIMEOUT_S = 20.0
"""For one trial: a library that starts CUDA takes some seconds, a mount that is gone forever."""

NOT_INSTALLED = "it is not installed"

_NO_ANSWER = "the test did not end in time"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_PROGRAM = "import sys; sys.path[:] = {path!r}; from radixtier.io.probe_child import main; main(*sys.argv[1:])"


class Verdict(NamedTuple):
    """What a trial found out.

    Attributes
    ----------
    why_not : str or None
        Why the engine does not work; None if it does, or could not be tried.
    untested : str or None
        Why it could not be tried, such as a file system without room even for that.
    imports : bool
        Whether KvikIO can be imported.
    no_gds : str or None
        Why GPUDirect Storage is not active; None if it is. Of no meaning for posix.
    no_device : str or None
        Why nothing can be read into GPU memory, by GPUDirect Storage or without; None if it can. Likewise.
    """

    why_not: str | None = None
    untested: str | None = None
    imports: bool = False
    no_gds: str | None = "not tested"
    no_device: str | None = "not tested"

    @property
    def works(self) -> bool:
        """Whether a write and a read worked."""
        return self.why_not is None and self.untested is None


def try_posix(directory: Path) -> Verdict:
    """Write and read with O_DIRECT.

    Raises
    ------
    OSError
        For what has nothing to do with the engine: no such directory, no permission, no answer.
    """
    answer, trouble = _ask("posix", directory)
    if untested := _untested(answer, directory):
        return untested
    if "why_not" in answer:
        return Verdict(answer["why_not"])
    if trouble == _NO_ANSWER:
        raise OSError(errno.ETIMEDOUT, f"does not answer: a test write took over {TIMEOUT_S:g} s", str(directory))
    return Verdict(untested=trouble)


def try_kvikio(directory: Path) -> Verdict:
    """Write and read by KvikIO, and ask it for GPUDirect Storage; raises as :func:`try_posix` does."""
    if importlib.util.find_spec("kvikio") is None:
        return Verdict(NOT_INSTALLED)
    answer, trouble = _ask("kvikio", directory)
    return _untested(answer, directory) or Verdict(
        answer.get("why_not", trouble),
        imports=answer.get("imports", False),
        no_gds=answer.get("no_gds", trouble),
        no_device=answer.get("no_device", trouble or answer.get("why_not")),
    )


def _untested(answer: dict[str, Any], directory: Path) -> Verdict | None:
    """Take an error that says nothing about the engine: of a full file system it is a verdict, else it is raised."""
    if "errno" not in answer:
        return None
    if answer["errno"] not in _FULL:
        raise OSError(answer["errno"], answer["strerror"], str(directory))
    return Verdict(untested=answer["strerror"])


def _ask(kind: str, directory: Path) -> tuple[dict[str, Any], str | None]:
    """Return what the other process said, and what became of it if it did not end as it should."""
    try:
        with tempfile.TemporaryDirectory(prefix="radixtier-", ignore_cleanup_errors=True) as own:
            out, trouble = _run(_start(kind, directory, own))
    except OSError as e:
        return {}, f"the test could not be started ({e.strerror})"
    answer: dict[str, Any] = {}
    for line in out.splitlines():
        with contextlib.suppress(ValueError):  # libraries print what they like
            said = json.loads(line)
            answer |= said if isinstance(said, dict) else {}
    return answer, trouble


def _start(kind: str, directory: Path, own: str) -> subprocess.Popen[bytes]:
    """Start the process in a directory of its own, which takes what libraries write where they run."""
    path = [os.path.abspath(p) if os.path.exists(p or ".") else p for p in sys.path]
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM.format(path=path), kind, os.path.abspath(directory)],
        cwd=own,
        env={LOG_VARIABLE: os.path.join(own, "cufile.log"), **os.environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _run(child: subprocess.Popen[bytes]) -> tuple[bytes, str | None]:
    try:
        out, err = child.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as e:
        _kill(child)
        return e.output or b"", _NO_ANSWER
    return out, _ending(child.returncode, err)


def _ending(code: int, err: bytes) -> str | None:
    if code < 0:
        return f"the test died of signal {-code}"
    last = err.decode("utf-8", "replace").strip().rpartition("\n")[2]
    return f"the test failed: {last or f'exit status {code}'}" if code else None


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End a process; one that hangs in the kernel ends when its mount comes back, and is not waited for."""
    child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(1.0)
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
