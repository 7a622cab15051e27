"""One rank of a server in miniature: ``ranks_worker.py DIRECTORY RANK RANKS STEPS SEED LIVES [KIND]``, a process.

All ranks take the same random steps; each has a drive that is slow and fails in its own way. Prints a line of JSON per
life, between which the server is restarted: what was decided, and the accounts.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from harness import Server
from test_oracle import Chaos

from radixtier.mover import writebehind
from radixtier.ranks import Agreement
from radixtier.store import health
from radixtier.tree.residency import WRITE

LOOK = 500
"""Steps between two comparisons."""


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

    def schedule(self) -> None:
        before = dict(self.hits)
        super().schedule()
        self.log.update(repr([self.hits[tier] - before[tier] for tier in before]).encode())

    def misbehave(self) -> None:
        engine, pick = self.server.engine, self.own.randint(0, 8)
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
        else:
            engine.clear()

    def decided(self) -> str:
        """What this rank has decided so far: residency, users, runs, victims and hits, and SGLang's tree."""
        cache, table = self.server.cache, self.server.table
        state = hashlib.blake2b(self.log.digest(), digest_size=16)
        for array in (
            table.state,
            table.flight,
            table.mark,
            table.lease,
            table.hold,
            table.run,
            table.frame,
            table.key,
        ):
            state.update(array.tobytes())
        if self.server.shared:  # and where everything is that was not being written just now
            settled = table.flight & WRITE == 0
            for array in (table.slot, table.checksum, table.weighted):
                state.update(array[settled[: len(array)]].tobytes())
        state.update(repr((cache.total_size(), cache.evictable_size(), cache.protected_size())).encode())
        tree = cache.mover.tree
        state.update(repr([(n, run.parent, run.uses, run.live) for n, run in tree.runs.items()]).encode())
        return state.hexdigest()


def live(server: Server, chaos: RankChaos, steps: int) -> list[str]:
    """Take the steps, and compare notes now and then."""
    found = []
    for step in range(1, steps + 1):
        chaos.step()
        if step % LOOK == 0:
            server.check()
            found.append(chaos.decided())
    for request in list(server.waiting):
        server.abort(request)
    server.engine.clear()
    server.settle()
    server.check()
    return [*found, chaos.decided()]


def restored(server: Server) -> None:
    """Wait until what is to come back is back, and what is in excess is given back."""
    for _ in range(20_000):
        server.events()
        if not server.cache._restoring and server.cache._restoration is None:
            return
        time.sleep(0.0005)
    raise AssertionError("the restoration does not end")


def main() -> None:
    directory, rank, ranks, steps, seed, lives = Path(sys.argv[1]), *map(int, sys.argv[2:7])
    kind = sys.argv[7] if len(sys.argv) > 7 else "mha"
    import torch

    torch.set_num_threads(1)
    meet = f"file://{directory / 'meet'}"
    torch.distributed.init_process_group("gloo", init_method=meet, rank=rank, world_size=ranks)
    health.FIRST_PROBE_S = health.LAST_PROBE_S = writebehind.PAUSE_S = 0.001
    store = directory / "nvme"
    store.mkdir(exist_ok=True)
    for life in range(lives):
        server = Server(store, 8, 16, 96, group=torch.distributed.group.WORLD, rank=rank, idle=True, kind=kind)
        server.prefill_rate(1000)
        chaos, collectives = RankChaos(server, seed + life), Collectives()
        agreement, stats = server.cache.ranks, server.cache.mover.stats
        assert isinstance(agreement, Agreement)
        agreement.own = 0
        decisions = live(server, chaos, steps)
        assert not agreement.diverged
        counts = {"arrivals": server.count, "own": agreement.own, **vars(collectives)}
        # Other processes may run their own way until something waits for them; the rest is not compared.
        restored(server)
        server.check()
        print(
            json.dumps(
                {
                    "decisions": [*decisions, chaos.decided()], "hits": chaos.hits, "served": chaos.served,
                    "aborted": chaos.aborted, "flushed": chaos.flushed, "faults": chaos.faults, "counts": counts,
                    "promoted": stats.promoted, "written": stats.written, "read_failures": stats.read_failures,
                    "write_failures": stats.write_failures, "lost": stats.lost, "restored": stats.restored,
                    "stored": int((server.table.slot >= 0).sum()),
                    "write_bytes": server.store.stats()["write_bytes"], "slot_bytes": server.store.slot_bytes,
                    "held": int(server.table.held), "leases": int(server.table.lease.sum()),
                }
            )
        )  # fmt: skip
        # The last life of some ranks ends without writing what was still to be written.
        server.cache.ranks.leave()
        server.store.close(30) if (life + rank) % 2 else server.close()
        torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads need not be waited for


class Collectives:
    """Counts the reductions, whoever asks for them, and the steps of the scheduler."""

    def __init__(self) -> None:
        import torch

        from radixtier.sglang.cache import RadixTierCache

        self.count = self.events = 0
        reduce, events = torch.distributed.all_reduce, RadixTierCache.check_hicache_events

        def counted(*args: Any, **options: Any) -> Any:
            self.count += 1
            return reduce(*args, **options)

        def step(cache: Any) -> None:
            self.events += 1
            events(cache)

        torch.distributed.all_reduce, RadixTierCache.check_hicache_events = counted, step


if __name__ == "__main__":
    np.seterr(all="raise", under="ignore")
    main()
