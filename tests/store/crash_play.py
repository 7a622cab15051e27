"""A writer that is killed again and again: opens the store, verifies every byte, goes on writing until it is killed.

Run as a program: ``python crash_play.py DIRECTORY KILLS SEED``. Forks a child per round, so that nothing is imported
200 times; prints one JSON line. The bytes of a page are a function of its key, which is a function of all its tokens.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from radixtier.footprint import footprint
from radixtier.identity import Space, StoreIdentity, Stretch, namespace_seed
from radixtier.io.frames import FrameBuffer, aligned_memory
from radixtier.io.posix import PosixEngine
from radixtier.store import ledger
from radixtier.store.store import PageStore

PAGE_TOKENS = 4
PAGE_BYTES = 5000
"""Not a multiple of a block: pages are padded."""

N_FRAMES, N_SLOTS = 64, 480
SPACES = (Space(), Space("adapter", None), Space(None, "tenant"))
LONGEST_LIFE_S = 0.12
WAIT_S = 60.0
ledger.COMMIT_S = 0.01  # instead of half a second: kills shall hit commits, not waits


def contents(key: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(hashlib.shake_128(key).digest(PAGE_BYTES), np.uint8)


class Writer:
    """One life of the writer."""

    def __init__(self, directories: list[Path], seed: int) -> None:
        self.rng = random.Random(seed)
        base = aligned_memory(N_FRAMES * PAGE_BYTES)
        self.memory = np.frombuffer(base, np.uint8).reshape(N_FRAMES, PAGE_BYTES)
        frames = FrameBuffer(base, N_FRAMES, [(0, PAGE_BYTES, PAGE_BYTES)])
        identity = StoreIdentity("weights", "uint8", "page_first", PAGE_TOKENS, 1, 1, 1, 1)
        self.cap = footprint(N_SLOTS, PAGE_BYTES, PAGE_TOKENS, len(directories))
        self.store = PageStore(
            directories, self.cap, frames, page_tokens=PAGE_TOKENS, identity=identity, threads=4, io_bytes=4 * 8192,
            engine=lambda _: PosixEngine(direct=True),
        )  # fmt: skip
        self.directories = directories
        self.live: list[tuple[Stretch, np.ndarray[Any, Any]]] = []
        """Stored stretches and their slots, parents before children."""

    def verify(self) -> dict[str, int]:
        """Take everything back and compare every byte."""
        restorer = self.store.restorer()
        found = wrong = dropped = 0
        while restorer is not None:
            rows = restorer.take(16)
            for row in rows:
                found += len(row.slots)
                wrong += self._compare(row)
                self.live.append((row.stretch, row.slots))
            for slots in restorer.take_dropped():
                dropped += len(slots)
                self.store.free(slots)
            if not rows and restorer.done:
                restorer.cancel()
                break
            if not rows:
                restorer.wait(1.0)
        self._settle(lambda: self.store.used_slots == found)
        used = self.store.used_slots
        names = {path.name for directory in self.directories for path in directory.iterdir()}
        strange = [name for name in names if not name.startswith("radixtier-r0")]
        size = sum(path.stat().st_blocks * 512 for d in self.directories for path in d.iterdir())
        return {
            "found": found, "wrong": wrong, "dropped": dropped, "leaked": used - found, "strange": len(strange),
            "files": len(names), "over": max(0, size - self.cap),
        }  # fmt: skip

    def _compare(self, row: Any) -> int:
        """Read a row's pages; returns how many are not what their tokens say."""
        wrong = 0
        assert row.stretch.intact()
        for lo in range(0, len(row.slots), N_FRAMES):
            slots = row.slots[lo : lo + N_FRAMES]
            n = len(slots)
            seeds = np.ascontiguousarray(row.stretch.keys[lo : lo + n]).view("<u8")[:, 0].copy()
            self.store.read(np.arange(n), slots, seeds, row.checksums[lo : lo + n], ("read", lo))
            (done,) = self._finished()
            for i in range(n):
                right = (self.memory[i] == contents(row.stretch.keys[lo + i].tobytes())).all()
                wrong += not (done.ok[i] and right)
        return wrong

    def _finished(self) -> list[Any]:
        assert self.store.drain(WAIT_S)
        return self.store.poll()

    def _settle(self, done: Any) -> None:
        end = time.monotonic() + WAIT_S
        while not done() and time.monotonic() < end:
            self.store.poll()
            time.sleep(0.002)

    def go_on(self) -> None:
        """Write, record, free, for ever."""
        while True:
            if self.live and (self.rng.random() < 0.3 or self.store.free_slots < 16):
                self._free_one()
            else:
                self._write_some()

    def _write_some(self) -> None:
        n = self.rng.randint(1, 12)
        slots = self.store.alloc(n)
        if slots is None:
            self.store.poll()
            time.sleep(0.002)
            return
        space = self.rng.choice(SPACES)
        front = namespace_seed(*space)
        if self.live and self.rng.random() < 0.7:
            parent, _ = self.rng.choice(self.live)
            at = self.rng.randrange(len(parent))
            space, front = parent.space, parent.keys[at].tobytes()
        tokens = [self.rng.randrange(1 << 17) for _ in range(n * PAGE_TOKENS)]
        stretch = Stretch.chained(space, front, tokens, PAGE_TOKENS)
        for i in range(n):
            self.memory[i] = contents(stretch.keys[i].tobytes())
        seeds = np.ascontiguousarray(stretch.keys).view("<u8")[:, 0].copy()
        self.store.write(np.arange(n), slots, seeds, "write")
        (done,) = self._finished()
        assert done.ok.all()
        self.store.record(stretch, slots, done.checksums, time.time())
        self.live.append((stretch, slots))

    def _free_one(self) -> None:
        """Drop the end of a stretch, or all of it, whatever hangs from it."""
        at = self.rng.randrange(len(self.live))
        stretch, slots = self.live.pop(at)
        keep = self.rng.randrange(len(slots))
        if keep:
            self.live.insert(at, (stretch.part(0, keep), slots[:keep]))
        self.store.free(slots[keep:])
        self.store.poll()


def child(directories: list[Path], seed: int, out: int) -> None:
    """One life: report what was found, then write until the end."""
    try:
        writer = Writer(directories, seed)
        report = json.dumps(writer.verify())
    except BaseException:
        report = json.dumps({"error": traceback.format_exc()})
    os.write(out, report.encode() + b"\n")
    writer.go_on()


def main(root: Path, kills: int, seed: int) -> None:
    directories = [root / "a", root / "b"]
    rng = random.Random(seed)
    totals: dict[str, int] = dict.fromkeys(("found", "wrong", "dropped", "leaked", "strange", "files", "over"), 0)
    lives = 0
    for number in range(kills + 1):
        out, into = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(out)
            child(directories, seed + number, into)
            os._exit(1)
        os.close(into)
        try:
            with os.fdopen(out) as pipe:
                line = pipe.readline()
            report = json.loads(line)
            if "error" in report:
                raise SystemExit(report["error"])
            time.sleep(rng.random() * LONGEST_LIFE_S)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        lives += report["found"] > 0
        for name in totals:
            totals[name] = max(totals[name], report[name]) if name in ("files", "over") else totals[name] + report[name]
    print(json.dumps({"kills": kills, "lives_with_pages": lives, **totals}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
