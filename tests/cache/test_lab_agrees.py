"""The lab in virtual time against the real cache: the same requests find the same tokens on the same tiers.

Both are asked one request at a time, with nothing on its way in between, and told that prefill is slow, so that every
page on NVMe is worth waiting for. What is found in HBM, and in all, must be equal for every request. Whether a page was
in DRAM or had to come from NVMe may differ now and then: the real drive's writes end at other looks of the scheduler
than the imagined one's, and which pages may leave DRAM depends on that.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from harness import PAGE, Clock, Server

from radixtier.lab.rates import Rates
from radixtier.lab.timed.cache import TimedCache
from radixtier.lab.timed.clock import Clock as VirtualClock
from radixtier.lab.timed.turn import Turn
from radixtier.mover import ahead
from radixtier.policy.admission import AdmitAll
from radixtier.policy.prefill import Machine, PrefillCost

SLOW = Machine(1e-9, 1.0, 1e-15)


REQUESTS = 80
LOOKS, LOOK_S = 12, 0.03
"""After a request, the scheduler looks so often, and so long after another: pages are copied down meanwhile."""


def workload(seed: int, requests: int) -> list[list[int]]:
    """Page numbers of each request: conversations that grow, branch, and are left for others."""
    rng = random.Random(seed)
    sessions: list[list[int]] = []
    pages = 0
    found = []
    for _ in range(requests):
        if sessions and rng.random() < 0.7:
            session = rng.choice(sessions[-12:])
            if rng.random() < 0.2:
                session = session[: rng.randint(1, len(session))]
                sessions.append(session)
        else:
            session = []
            sessions.append(session)
        grown = rng.randint(1, 5)
        session += range(pages, pages + grown)
        pages += grown
        if len(session) > 20:
            sessions.remove(session)
        found.append(list(session))
    return found


def tokens_of(path: list[int]) -> list[int]:
    """Tokens of pages, and one behind them that is always computed."""
    return [PAGE * page + i + 1 for page in path for i in range(PAGE)] + [0]


@pytest.fixture
def nothing_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is expected back: the two clocks do not tell the same time."""
    monkeypatch.setattr(ahead, "LEAST_CHANCE", 2.0)
    monkeypatch.setattr(ahead.Ahead, "_use_idle", lambda self: None)


@pytest.mark.parametrize("sizes", [(24, 16, 40), (24, 60, 200), (40, 8, 70)])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.usefixtures("nothing_ahead")
def test_request_by_request(tmp_path: Path, sizes: tuple[int, int, int], seed: int) -> None:
    clock = Clock()
    server = Server(tmp_path, *sizes, clock=clock)
    lab = Lab(*sizes)
    split = found = 0
    try:
        for number, path in enumerate(workload(seed, REQUESTS)):
            clock.advance(10)
            request = server.serve(tokens_of(path))
            quiet(server, clock)
            turn = lab.serve(number, path)
            assert (turn.hbm, turn.hbm + turn.dram + turn.nvme) == (request.device, request.hit), f"request {number}"
            split += abs(turn.dram - request.host)
            found += request.hit
        lab.cache.check()
        assert found and split <= 0.1 * found
    finally:
        server.close()


def quiet(server: Server, clock: Clock) -> None:
    """Let everything settle."""
    for _ in range(LOOKS):
        clock.advance(LOOK_S)
        server.settle()


class Lab:
    """The cache in virtual time, one request after the other."""

    def __init__(self, hbm: int, dram: int, nvme: int) -> None:
        self.clock = VirtualClock()
        self.cache = TimedCache(
            hbm, dram, nvme, page_tokens=PAGE, page_bytes=512, chunk=hbm, eviction="lru", admission=AdmitAll(),
            rates=Rates(copy=1e15), clock=self.clock,
        )  # fmt: skip
        self.cache.prefill.cost = PrefillCost(SLOW)

    def serve(self, number: int, path: list[int]) -> Turn:
        """Take one request all the way, and let everything settle."""
        self.clock.now += 10
        turn = Turn(number, number, np.array(path), len(path) * PAGE + 1, 1, PAGE, self.clock.now)
        self.cache.arrive(turn)
        self.cache.tick(False)
        while not self.cache.admit(turn, 0):
            self.clock.now += max(0.0, min(self.cache.next_event - self.clock.now, LOOK_S))
            self.cache.tick(False)
        # The scheduler in miniature takes exactly what it needs, whole pages only.
        more = len(path) - turn.inserted
        assert self.cache.make_room(more)
        turn.held += more
        self.cache.held += more
        self.cache.loaded(turn)
        self.cache.insert(turn, turn.input_tokens, last=True)
        for _ in range(LOOKS):
            self.step()
        return turn

    def step(self) -> None:
        self.clock.now += LOOK_S
        self.cache.tick(False)
