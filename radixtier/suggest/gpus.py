"""Which GPUs a server could use, as ``nvidia-smi`` tells.

Owns the question and the reading of the answer. Invariant: no driver is opened and no GPU is touched by this process.
Where it is wrong: a GPU that is split (MIG) is reported whole, with a mark, and an instance that the variable names
without its memory. Any thread.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
from collections.abc import Mapping
from typing import NamedTuple

TIMEOUT_S = 30.0
"""For nvidia-smi: a driver that wakes up takes some seconds, one that hangs takes forever."""

FIELDS = ("index", "uuid", "name", "memory.total", "memory.used", "mig.mode.current")
VISIBLE = "CUDA_VISIBLE_DEVICES"


class Gpu(NamedTuple):
    """One GPU.

    Attributes
    ----------
    number : str
        What ``CUDA_VISIBLE_DEVICES`` calls it: its number in the order of the bus, or the name of a MIG instance.
    name : str
        Such as ``NVIDIA H100 80GB HBM3``.
    memory : int or None
        Bytes; None where the driver does not tell (memory shared with the CPU).
    used : int
        Bytes in use now.
    split : bool
        Whether it is divided into MIG instances, each with a part of the memory.
    """

    number: str
    name: str
    memory: int | None
    used: int = 0
    split: bool = False


class Found(NamedTuple):
    """The visible GPUs, and why there are none where that is a surprise."""

    gpus: tuple[Gpu, ...]
    trouble: str = ""


def find_gpus(env: Mapping[str, str]) -> Found:
    """Ask ``nvidia-smi`` for the GPUs that ``CUDA_VISIBLE_DEVICES`` leaves visible.

    Parameters
    ----------
    env : Mapping
        The environment, with ``PATH``.
    """
    smi = shutil.which("nvidia-smi", path=env.get("PATH"))
    if smi is None:
        return Found(())
    query = [smi, f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return Found((), f"nvidia-smi did not answer within {TIMEOUT_S:g} s")
    except OSError as error:
        return Found((), f"nvidia-smi could not be started ({error.strerror})")
    if told.returncode:
        said = (told.stderr or told.stdout).strip().splitlines()
        return Found((), f"nvidia-smi failed: {said[0] if said else f'exit status {told.returncode}'}")
    rows = [row for row in csv.reader(told.stdout.splitlines(), skipinitialspace=True) if len(row) == len(FIELDS)]
    visible = _visible(env.get(VISIBLE))
    gpus = tuple(_gpu(row) for row in rows if visible is None or _named(row, visible))
    gpus += tuple(Gpu(word, "MIG instance", None, split=True) for word in visible or () if word.startswith("MIG-"))
    hidden = f"{VISIBLE}={env.get(VISIBLE)} hides every GPU" if rows and not gpus else ""
    return Found(gpus, hidden)


def _visible(text: str | None) -> list[str] | None:
    """Return the words of the variable; None where it does not hide anything."""
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]


def _named(row: list[str], words: list[str]) -> bool:
    number, uuid = row[0], row[1]
    return any(word == number or (word.startswith("GPU-") and uuid.startswith(word)) for word in words)


def _gpu(row: list[str]) -> Gpu:
    number, _, name, total, used, mig = row
    return Gpu(number, name, _mebibytes(total), _mebibytes(used) or 0, mig == "Enabled")


def _mebibytes(text: str) -> int | None:
    return int(text) << 20 if text.isdecimal() else None
