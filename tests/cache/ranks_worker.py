"""One rank of a server in miniature: ``ranks_worker.py DIRECTORY RANK RANKS STEPS SEED LIVES [KIND]``, a process.

All ranks take the same random steps; each has a drive that is slow and fails in its own way, and a clock of its own.
The server lives several times, differently each time (:data:`PLAN`), over the same drives; with a KIND of pool, plainly
and with a graceful end. Prints a line of JSON when a
life begins, and one when it is over: what was decided, and the accounts.
"""

from __future__ import annotations

import datetime
import errno
import hashlib
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from harness import Moody, SecondUse, Server
from test_oracle import Advised, Chaos

from radixtier.mover import writebehind
from radixtier.policy.admission import Admission, AdmitAll
from radixtier.policy.write_budget import Budgeted, WriteBudget
from radixtier.ranks import Agreement
from radixtier.sglang import restore_ranks
from radixtier.store import health
from radixtier.tree.residency import WRITE

LOOK = 50
"""Steps between two notes of what was decided."""

WAIT_S = 120.0
"""Longest that one rank waits for the others."""

LANDING = 6
"""Landing frames, where there are any."""


def budgeted() -> Admission:
    """A budget that runs out every now and then."""
    return Budgeted(AdmitAll(), WriteBudget(1 << 34))


@dataclass(frozen=True)
class Life:
    """How the server is started, and what happens to it."""

    kind: str = "mha"
    eviction: str = "lru"
    admission: Callable[[], Admission] = AdmitAll
    landing: int = 0
    advised: bool = False
    """Whether clients send hints and have sessions."""
    late: bool = False
    """Whether most comes back only while the server serves."""
    flushed_at: int = 0
    """Step after which everything is forgotten, restored or not; 0 for only when chance wants it."""
    sealed: bool = False
    """Whether weights are updated in the middle of it."""
    scrub_rate: int = 0
    learns: bool = False
    """Whether it is learnt how long prefill takes, which is nothing here."""


PLAN = (
    Life(),
    Life(advised=True, eviction="auto", admission=SecondUse, late=True),
    Life(admission=budgeted, late=True, flushed_at=6, learns=True),
    Life(kind="mla", landing=LANDING, scrub_rate=1 << 20),
    Life(kind="mla", landing=LANDING, advised=True, eviction="auto", admission=Moody, late=True),
    Life(landing=LANDING, advised=True, eviction="auto", late=True, sealed=True, scrub_rate=1 << 20),
)


class Clock:
    """The clock of one rank: ahead of that of the others, by more and more."""

    def __init__(self, own: random.Random) -> None:
        self._own = own
        self._ahead = own.uniform(0.0, 0.05)

    def __call__(self) -> float:
        return time.monotonic() + self._ahead

    def advance(self, seconds: float) -> None:
        """Pass at least so much time."""
        self._ahead += seconds + self._own.uniform(0.0, 0.02)


class RankChaos(Chaos):
    """Random steps that all ranks take, with faults that only this one has."""

    def __init__(self, server: Any, seed: int) -> None:
        super().__init__(server, seed)
        self.own = random.Random(1000 * seed + server.rank)
        self.log = hashlib.blake2b(digest_size=16)
        self.faults = 0
        self._note_victims(server.cache)

    def _note_victims(self, cache: Any) -> None:
        give_up, free = cache.mover.give_up_frames, cache.mover.free
        cache.mover.give_up_frames = lambda pages: (self.log.update(b"v" + pages.tobytes()), give_up(pages))[1]
        cache.mover.free = lambda pages: (self.log.update(b"f" + pages.tobytes()), free(pages))[1]

    def step(self) -> None:
        super().step()
        if self.own.random() < 0.02:  # somebody looks at the figures of this rank
            self.server.cache.figures.read()

    def schedule(self) -> None:
        before = dict(self.hits)
        super().schedule()
        self.log.update(repr([self.hits[tier] - before[tier] for tier in before]).encode())

    def misbehave(self) -> None:
        engine, pick = self.server.engine, self.own.randint(0, 9)
        self.faults += 1
        if pick == 0:
            engine.error("read", errno.EIO, times=1)
        elif pick == 1:
            engine.error("write", errno.EIO, times=1)
        elif pick == 2:
            engine.flip("read", times=1)
        elif pick == 3:
            engine.short(self.own.choice(["read", "write"]), times=1)
        elif pick in (4, 5):
            engine.delay(self.own.choice(["read", "write"]), self.own.choice([0.001, 0.004, 0.02]), times=20)
        elif pick == 6:
            engine.full(at=0)  # until the faults are cleared
        else:
            engine.clear()

    def decided(self) -> str:
        """What this rank has decided so far, each in a few digits: residency, users, runs, victims, hits, trees."""
        cache, table, tree = self.server.cache, self.server.table, self.server.cache.mover.tree
        arrays = ("state", "flight", "mark", "lease", "hold", "run", "frame", "key")
        parts = {name: getattr(table, name).tobytes() for name in arrays}
        parts["log"] = self.log.digest()
        parts["sglang"] = repr((cache.total_size(), cache.evictable_size(), cache.protected_size())).encode()
        parts["runs"] = repr([(n, run.parent, run.uses, run.live) for n, run in tree.runs.items()]).encode()
        parts["order"] = repr([run for run in tree.runs if run in tree.order]).encode()
        if self.server.shared:  # and where everything is that was not being written just now
            settled = table.flight & WRITE == 0
            places = (table.slot, table.checksum, table.weighted)
            parts["places"] = b"".join(array[settled[: len(array)]].tobytes() for array in places)
        return " ".join(f"{name}:{hashlib.blake2b(part, digest_size=4).hexdigest()}" for name, part in parts.items())

    def matches(self) -> list[tuple[int, int]]:
        """Tokens of every prompt that HBM has, and the tiers below."""
        found = [self.server.match(self.server.request(p, *ns), with_req=False) for p, ns in self.prompts]
        return [(each.device_prefix_len, each.host_hit_length) for each in found]


class AdvisedRankChaos(RankChaos, Advised):
    """The same with hints, sessions, and time that passes in leaps."""


def live(server: Server, chaos: RankChaos, life: Life, steps: int) -> list[str]:
    """Take the steps, and note now and then what was decided."""
    found = []
    for step in range(1, steps + 1):
        chaos.step()
        if step == life.flushed_at:
            chaos.flush()
        if life.sealed and step == steps // 2:
            server.cache.seal_store("weights were updated")
        if step % LOOK == 0:
            server.check()
            found.append(chaos.decided())
    for request in list(server.waiting):
        server.abort(request)
    server.engine.clear()
    server.cache.mover.scrub._rate = server.cache.mover.scrub._budget = 0  # else something is always on its way
    server.settle()
    server.check()
    return [*found, chaos.decided()]


def restored(server: Server) -> None:
    """Wait on all ranks until what is to come back is back, and what is in excess is given back."""
    for _ in range(20_000):
        server.events()
        if server.cache.ranks.agreed(int(server.cache._restoration is None)):
            return
        time.sleep(0.0005)
    raise AssertionError("the restoration does not end")


def start(directory: Path, life: Life, group: Any, rank: int, own: random.Random) -> Server:
    """Start the server once more."""
    store = directory / life.kind
    store.mkdir(exist_ok=True)
    restore_ranks.FIRST_S = 0.0 if life.late else 2.0
    restore_ranks.MESSAGE_BYTES = 64 if life.late else 64 << 10
    server = Server(
        store, 8, 16, 96, kind=life.kind, eviction=life.eviction, admission=life.admission, landing=life.landing,
        group=group, rank=rank, idle=True, scrub_rate=life.scrub_rate, learns=life.learns,
    )  # fmt: skip
    server.prefill_rate(1000)
    server.clock = Clock(own)  # type: ignore[assignment]
    server.cache.ranks._clock = server.clock
    if life.landing:
        # Paths are short and branch off everywhere here: else hardly any would go straight to HBM.
        landings = server.cache.mover.promotions.landings
        landings._has_room = lambda n, pages: False
        landings._wanted_again = lambda run: run % 4 == 0
    return server


def end(server: Server, own: random.Random, graceful: bool) -> None:
    """Stop the server, some time after the others, with or without writing what was still to be written."""
    time.sleep(own.uniform(0.0, 0.1))
    if graceful:
        server.cache.release_host_resources()
    else:
        server.cache.ranks.leave()
        server.store.close(30)


def run(directory: Path, rank: int, ranks: int, steps: int, seed: int, lives: int, kind: str | None = None) -> None:
    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{directory / 'meet'}", rank=rank, world_size=ranks,
        timeout=datetime.timedelta(seconds=WAIT_S),
    )  # fmt: skip
    health.FIRST_PROBE_S = health.LAST_PROBE_S = writebehind.PAUSE_S = 0.001
    collectives = Collectives()
    for number in range(lives):
        life, own = PLAN[number % len(PLAN)], random.Random(31 * seed + 7 * number + rank)
        if kind is not None:
            life = Life(kind)
        server = start(directory, life, torch.distributed.group.WORLD, rank, own)
        agreement, stats = server.cache.ranks, server.cache.mover.stats
        assert isinstance(agreement, Agreement)
        chaos = (AdvisedRankChaos if life.advised else RankChaos)(server, seed + number)
        print(json.dumps({"begun": number, "restored": stats.restored}), flush=True)
        collectives.all_reduce = collectives.steps = agreement.own = 0
        decisions = live(server, chaos, life, steps)
        assert not agreement.diverged
        counts = {"arrivals": server.count, "own": agreement.own, **vars(collectives)}
        restored(server)
        server.check()
        print(
            json.dumps(
                {
                    "decisions": [*decisions, chaos.decided()], "matches": chaos.matches(), "hits": chaos.hits,
                    "served": chaos.served, "aborted": chaos.aborted, "flushed": chaos.flushed, "counts": counts,
                    "stats": {name: value for name, value in stats.to_json().items() if name not in LOCAL},
                    "held": int(server.table.held), "leases": int(server.table.lease.sum()),
                    "sealed": server.store.sealed_because is not None,
                    # What each rank has of its own:
                    "faults": chaos.faults, "write_bytes": server.store.stats()["write_bytes"],
                    "stored": int((server.table.slot >= 0).sum()), "slot_bytes": server.store.slot_bytes,
                }
            ),
            flush=True,
        )  # fmt: skip
        # Some ranks end without writing what was still to be written.
        end(server, own, graceful=kind is not None or (number + rank) % 2 == 0)
        torch.distributed.barrier()


LOCAL: tuple[str, ...] = ()
"""Counters that differ between ranks."""


class Collectives:
    """Counts the reductions, whoever asks for them, and the steps of the scheduler."""

    def __init__(self) -> None:
        import torch

        from radixtier.sglang.cache import RadixTierCache

        self.all_reduce = self.steps = 0
        reduce, events = torch.distributed.all_reduce, RadixTierCache.check_hicache_events

        def counted(*args: Any, **options: Any) -> Any:
            self.all_reduce += 1
            return reduce(*args, **options)

        def step(cache: Any) -> None:
            self.steps += 1
            events(cache)

        torch.distributed.all_reduce, RadixTierCache.check_hicache_events = counted, step


def main() -> int:
    """Run; returns the exit code."""
    try:
        run(Path(sys.argv[1]), *map(int, sys.argv[2:7]), *sys.argv[7:])
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    np.seterr(all="raise", under="ignore")
    code = main()
    sys.stdout.flush()
    os._exit(code)  # gloo's threads need not be waited for
