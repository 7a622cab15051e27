"""An engine that misbehaves on demand, for tests.

Owns a list of faults in front of another engine. Invariant: what chance decides depends on the seed and on
the call's operation, offset and number at that offset, never on the order in which threads arrive; only
`skip` and `times` count calls as they come. Faults may be added and cleared from any thread, also while
transfers run.

Example
-------
>>> engine = FaultEngine(PosixEngine(direct=False), seed=7)
>>> engine.error("write", errno.EIO, skip=2, times=1)   # the third write fails
>>> engine.error("sync", times=1)                        # and so does the next sync
>>> engine.full(at=1 << 20)                              # the disk ends after 1 MiB
>>> engine.flip("read", chance=0.01)                     # every hundredth read returns a wrong byte
>>> engine.slow("read", 100)                             # the drive has a hundredth of its bandwidth for reads
>>> held = engine.hold("read")                           # reads stop here ...
>>> held.wait(1)                                         # ... one has arrived ...
>>> held.release()                                       # ... and all go on
"""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict, TypeVar

from radixtier.footprint import BLOCK
from radixtier.io.engine import Buffers, Engine, head
from radixtier.io.frames import aligned_memory

if TYPE_CHECKING:
    from typing_extensions import Unpack

Op = Literal["read", "write", "sync"]
Move = Callable[[Any, int], int]
Range = tuple[int, int]

EVERYWHERE: Range = (0, 1 << 63)
HOLD_LIMIT = 60.0
"""Seconds after which a held call fails by itself, so that no test hangs."""

FASTEST_BYTES_PER_S = 4e9
"""What a transfer of a slowed drive is taken to move at most: one that came out of a cache was not that fast."""

F = TypeVar("F", bound="Fault")


class Where(TypedDict, total=False):
    """Which calls a fault hits; see `Fault`."""

    within: Range
    skip: int
    times: int | None
    chance: float


@dataclass(kw_only=True)
class Fault:
    """What goes wrong, and which calls it hits; the base of all faults.

    Parameters
    ----------
    op
        Calls of this operation only; a ``sync`` is a call at offset 0.
    within
        Calls that touch this range of file offsets only.
    skip
        Let this many of those pass first.
    times
        Hit at most so many; None for no limit.
    chance
        Hit a call with this probability, drawn from the engine's seed.
    """

    op: Op
    within: Range = EVERYWHERE
    skip: int = 0
    times: int | None = None
    chance: float = 1.0
    hits: int = field(default=0, init=False)
    """Calls hit so far."""

    final: ClassVar[bool] = True
    """Whether this fault decides what becomes of the call; else the next one gets it."""

    def takes(self, op: Op, span: Range, draw: float) -> bool:
        """Return whether this fault hits the call, and count it."""
        if op != self.op or span[1] <= self.within[0] or span[0] >= self.within[1] or draw >= self.chance:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.times is not None and self.hits >= self.times:
            return False
        self.hits += 1
        return True

    def apply(self, move: Move, buffers: Buffers, offset: int, rng: random.Random) -> int | None:
        """Do the damage; return the count to report, None to go on as if nothing had happened."""
        raise NotImplementedError


@dataclass(kw_only=True)
class Error(Fault):
    """Fails with ``number``; a transfer that starts before the range stops short at it, as on a device."""

    number: int

    def apply(self, move: Move, buffers: Buffers, offset: int, rng: random.Random) -> int | None:
        before = (self.within[0] - offset) // BLOCK * BLOCK
        if before > 0:
            return move(head(buffers, before), offset)
        raise OSError(self.number, os.strerror(self.number))


@dataclass(kw_only=True)
class Short(Fault):
    """Moves only the first ``nbytes`` and says so."""

    nbytes: int

    def apply(self, move: Move, buffers: Buffers, offset: int, rng: random.Random) -> int | None:
        return move(head(buffers, self.nbytes), offset) if self.nbytes else 0


@dataclass(kw_only=True)
class Delay(Fault):
    """Comes ``seconds`` late."""

    final: ClassVar[bool] = False
    seconds: float

    def apply(self, move: Move, buffers: Buffers, offset: int, rng: random.Random) -> int | None:
        time.sleep(self.seconds)
        return None


class Lane:
    """The time of one drive, given to its transfers one after the other; any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.free_at = 0.0
        """When the last transfer ends that was given time."""

    def take(self, begun: float, seconds: float) -> float:
        """Give a transfer that began at ``begun`` its ``seconds``, behind all earlier ones; return when it ends."""
        with self._lock:
            self.free_at = max(begun, self.free_at) + seconds
            return self.free_at


@dataclass(kw_only=True)
class Slow(Fault):
    """Takes ``factor`` times as long, one transfer after the other.

    So the drive has ``1 / factor`` of the bandwidth that a single transfer has, however many threads there are.
    Faults that share a lane share that bandwidth. `clear` ends the waits.
    """

    factor: float
    lane: Lane = field(default_factory=Lane, repr=False)
    _over: threading.Event = field(default_factory=threading.Event, repr=False)

    def apply(self, move: Move, buffers: Buffers, offset: int, rng: random.Random) -> int | None:
        begun = time.monotonic()
        count = move(buffers, offset)
        now = time.monotonic()
        own = max(now - begun, count / FASTEST_BYTES_PER_S)
        self._over.wait(max(0.0, self.lane.take(begun, self.factor * own) - now))
        return count

    def stop(self) -> None:
        """Let the transfers that wait go on."""
        self._over.set()


@dataclass(kw_only=True)
class Hold(Fault):
    """Stops calls before they do anything, until `release`."""

    final: ClassVar[bool] = False
    _state: threading.Condition = field(default_factory=threading.Condition, repr=False)
    _arrived: int = 0
    _open: bool = False

    def apply(self, move: Move, buffers: Buffers, offset: int, rng: random.Random) -> int | None:
        with self._state:
            self._arrived += 1
            self._state.notify_all()
            if not self._state.wait_for(lambda: self._open, HOLD_LIMIT):
                raise OSError(errno.ETIMEDOUT, "held and never released")
        return None

    def wait(self, calls: int = 1, timeout: float = 10.0) -> bool:
        """Wait until so many calls have arrived here; False if they do not in time."""
        with self._state:
            return self._state.wait_for(lambda: self._arrived >= calls, timeout)

    def release(self) -> None:
        """Let everything go on, later calls too."""
        with self._state:
            self._open = True
            self._state.notify_all()


@dataclass(kw_only=True)
class Flip(Fault):
    """Changes one bit on the way and reports success: of byte ``at`` of the transfer, or of any."""

    at: int | None = None

    def apply(self, move: Move, buffers: Buffers, offset: int, rng: random.Random) -> int | None:
        if self.op == "write":
            copy = _copy(buffers)
            _flip([copy], self._where(len(copy), rng), 1 << rng.randrange(8))
            return move([copy], offset)
        count = move(buffers, offset)
        if count:
            _flip(buffers, self._where(count, rng), 1 << rng.randrange(8))
        return count

    def _where(self, nbytes: int, rng: random.Random) -> int:
        return rng.randrange(nbytes) if self.at is None else min(self.at, nbytes - 1)


@dataclass(kw_only=True)
class Tear(Fault):
    """Moves only the first half and reports success: the rest of the file, or of memory, stays as it was."""

    def apply(self, move: Move, buffers: Buffers, offset: int, rng: random.Random) -> int | None:
        total = sum(b.nbytes for b in buffers)
        if half := total // 2 // BLOCK * BLOCK:
            move(head(buffers, half), offset)
        return total


class FaultEngine(Engine):
    """Passes transfers to ``inner`` unless a fault hits them.

    Faults are tried in the order in which they were added. After a delay or a hold the call goes on to the
    next; the first other fault that takes it decides what becomes of it.
    """

    def __init__(self, inner: Engine, *, seed: int = 0) -> None:
        self._inner = inner
        self._seed = seed
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._used: Counter[tuple[Op, int]] = Counter()
        self.calls: Counter[Op] = Counter()
        """Calls so far, by operation."""

    def add(self, fault: F) -> F:
        """Put a fault last in line and return it."""
        with self._lock:
            self._faults.append(fault)
        return fault

    def error(self, op: Op, number: int = errno.EIO, **where: Unpack[Where]) -> Error:
        """Fail; ``number`` is an `errno`."""
        return self.add(Error(op=op, number=number, **where))

    def full(self, at: int) -> Error:
        """Let the disk end at this file offset: ENOSPC for every write from there on."""
        return self.error("write", errno.ENOSPC, within=(at, EVERYWHERE[1]))

    def short(self, op: Op, nbytes: int = 0, **where: Unpack[Where]) -> Short:
        """Move only the first ``nbytes``."""
        return self.add(Short(op=op, nbytes=nbytes, **where))

    def delay(self, op: Op, seconds: float, **where: Unpack[Where]) -> Delay:
        """Be late."""
        return self.add(Delay(op=op, seconds=seconds, **where))

    def slow(self, op: Op, factor: float, lane: Lane | None = None, **where: Unpack[Where]) -> Slow:
        """Take ``factor`` times as long; put it last, it decides."""
        return self.add(Slow(op=op, factor=factor, lane=lane or Lane(), **where))

    def hold(self, op: Op, **where: Unpack[Where]) -> Hold:
        """Stop calls until the returned fault is released."""
        return self.add(Hold(op=op, **where))

    def flip(self, op: Op, at: int | None = None, **where: Unpack[Where]) -> Flip:
        """Change one bit on the way."""
        return self.add(Flip(op=op, at=at, **where))

    def tear(self, op: Op, **where: Unpack[Where]) -> Tear:
        """Move half and claim all."""
        return self.add(Tear(op=op, **where))

    def clear(self) -> None:
        """Behave from now on; calls that are held or slow go on."""
        with self._lock:
            faults, self._faults = self._faults, []
        for fault in faults:
            if isinstance(fault, Hold):
                fault.release()
            elif isinstance(fault, Slow):
                fault.stop()

    @property
    def name(self) -> str:
        return f"{self._inner.name} with faults"

    @property
    def alignment(self) -> int:
        return self._inner.alignment

    def open(self, path: Path, size: int) -> None:
        self._inner.open(path, size)

    def readv(self, buffers: Buffers, offset: int) -> int:
        return self._move("read", self._inner.readv, buffers, offset)

    def read_device(self, buffers: Sequence[Any], offset: int) -> int:
        return self._move("read", self._inner.read_device, buffers, offset)

    def writev(self, buffers: Buffers, offset: int) -> int:
        return self._move("write", self._inner.writev, buffers, offset)

    def _move(self, op: Op, move: Move, buffers: Sequence[Any], offset: int) -> int:
        span = (offset, offset + max(1, sum(b.nbytes for b in buffers)))
        with self._lock:
            self.calls[op] += 1
            self._used[op, offset] += 1
            rng = random.Random(f"{self._seed} {op} {offset} {self._used[op, offset]}")
            hit: list[Fault] = []
            for fault in self._faults:
                if fault.takes(op, span, rng.random()):
                    hit.append(fault)
                    if fault.final:
                        break
        for fault in hit:
            count = fault.apply(move, buffers, offset, rng)
            if count is not None:
                return count
        return move(buffers, offset)

    def sync(self) -> None:
        def move(buffers: Buffers, offset: int) -> int:
            self._inner.sync()
            return 0

        self._move("sync", move, [], 0)

    def close(self) -> None:
        self.clear()
        self._inner.close()


def _copy(buffers: Buffers) -> memoryview:
    copy = aligned_memory(sum(b.nbytes for b in buffers))
    at = 0
    for buffer in buffers:
        copy[at : at + buffer.nbytes] = buffer
        at += buffer.nbytes
    return copy


def _flip(buffers: Buffers, at: int, bit: int) -> None:
    for buffer in buffers:
        if at < buffer.nbytes:
            buffer[at] ^= bit
            return
        at -= buffer.nbytes
