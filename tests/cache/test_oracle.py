"""CASES C9 and C11 on the real cache: random load, delays, failures, aborts and flushes; every byte is checked.

Steps per run: 10,000. Each step checks the accounts of every tier from scratch.
"""

from __future__ import annotations

import errno
import random
from array import array
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from harness import PAGE, Moody, SecondUse

from radixtier.control import Target
from radixtier.policy.hints import Kind, read_hint
from radixtier.units import BadValue

STEPS = 10_000
BACKENDS = {"page_first_direct": "direct", "layer_first": "direct", "page_first": "kernel"}
NAMESPACES = [(None, None), (None, None), ("lora-a", None), (None, "lora-a"), ("a", "bc"), ("ab", "c")]


class Chaos:
    """Takes random steps on a server in miniature."""

    def __init__(self, server: Any, seed: int) -> None:
        self.server = server
        self.random = random.Random(seed)
        self.prompts = self._prompts(64)
        self.hits = {"device": 0, "host": 0, "storage": 0}
        self.served = self.aborted = self.flushed = 0

    def _prompts(self, n: int) -> list[tuple[list[int], tuple[str | None, str | None]]]:
        """Prompts of 1 to 6 pages; many share a prefix, some share all tokens across namespaces."""
        roots = [self.server.prompt(4, seed=s) for s in range(6)]
        made = []
        for number in range(n):
            root = self.random.choice(roots)[: 4 * self.random.randint(0, 4)]
            own = self.server.prompt(self.random.randint(1, 2), seed=1000 + number // 2)
            made.append((root + own + [7] * self.random.randint(0, 3), self.random.choice(NAMESPACES)))
        return made

    def step(self) -> None:
        roll = self.random.random()
        if roll < 0.40 and len(self.server.waiting) < 6:
            prompt, namespace = self.random.choice(self.prompts)
            self.server.arrive(self.server.request(prompt, *namespace))
        elif roll < 0.90:
            self.schedule()
        elif roll < 0.94 and self.server.waiting:
            self.server.abort(self.random.choice(self.server.waiting))
            self.aborted += 1
        elif roll < 0.975:
            self.server.evict_hbm(self.random.randint(1, 8))
        elif roll < 0.998:
            self.misbehave()
        else:
            self.flush()

    def schedule(self) -> None:
        """One pass of the scheduler: events, admission, loads, forward."""
        server = self.server
        server.events()
        batch = []
        for request in list(server.waiting):
            if len(batch) < 2 and server.admit(request):
                batch.append(request)
        server.start_loads()
        for request in batch:
            server.forward(request)
            self.served += 1
            for tier in self.hits:
                self.hits[tier] += getattr(request, tier)

    def misbehave(self) -> None:
        """Put one fault into the disk, or take all out."""
        engine, pick = self.server.engine, self.random.randint(0, 6)
        if pick == 0:
            engine.error("read", errno.EIO, times=1)
        elif pick == 1:
            engine.error("write", errno.EIO, times=1)
        elif pick == 2:
            engine.flip("read", times=1)
        elif pick == 3:
            engine.short(self.random.choice(["read", "write"]), times=1)
        elif pick == 4:
            engine.delay("read", 0.002, times=20)
        elif pick == 5:
            engine.delay("write", 0.002, times=20)
        else:
            engine.clear()

    def flush(self) -> None:
        """What ``flush_cache`` does once nothing runs; store I/O may still be in flight."""
        for request in list(self.server.waiting):
            self.server.abort(request)
        self.server.settle_transfers()
        self.server.cache.reset()
        self.server.allocator.clear()
        self.flushed += 1


@pytest.mark.parametrize("layout", ["page_first_direct", "layer_first", "page_first"])
def test_no_wrong_byte_and_exact_accounts(make_either, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("store.health.FIRST_PROBE_S", "store.health.LAST_PROBE_S", "mover.writebehind.PAUSE_S"):
        monkeypatch.setattr(f"radixtier.{name}", 0.001)
    server = make_either(hbm=8, dram=16, nvme=4096, layout=layout, backend=BACKENDS[layout])
    server.prefill_rate(1000)
    chaos = Chaos(server, seed=20)
    whole = layout == "page_first_direct" and server.kind == "mha"
    for _ in range(STEPS if whole else STEPS // 10):
        chaos.step()
        server.check()
    stats = server.cache.mover.stats
    assert chaos.served > 1000 or not whole
    assert all(chaos.hits.values()), chaos.hits
    chaos.flush()
    server.check()
    assert stats.read_failures and stats.write_failures and chaos.aborted and chaos.flushed
    for request in list(server.waiting):
        server.abort(request)
    server.engine.clear()
    server.settle()
    server.check()
    assert server.table.held == 0 and not server.table.lease.any()
    server.cache.sanity_check()
    print(chaos.served, chaos.hits, chaos.aborted, chaos.flushed, stats)


class Advised(Chaos):
    """With clients that send hints of all kinds, true or not, sessions, and time that passes in leaps."""

    def __init__(self, server: Any, seed: int) -> None:
        super().__init__(server, seed)
        self.outcomes: Counter[tuple[str, str]] = Counter()

    def step(self) -> None:
        server, roll = self.server, self.random.random()
        if roll < 0.75:
            super().step()
        elif roll < 0.88 and len(server.waiting) < 6:
            prompt, namespace = self.random.choice(self.prompts)
            session = self.random.choice([None, "a", "b", "c"])
            server.arrive(server.request(prompt, *namespace, session=session, hints=self.envelope()))
        elif roll < 0.96:
            self.command()
        else:
            server.clock.advance(self.random.choice([0.01, 0.2, 1.0, 5.0, 40.0]))

    def fields(self, kind: Kind) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if kind in (Kind.SHARE, Kind.PIN, Kind.RETAIN):
            fields["ttl_s"] = self.random.choice([1, 20, 600])
        if kind is Kind.PIN:
            fields["tier"] = self.random.choice(["dram", "nvme"])
        if kind is Kind.PREFETCH:
            fields["by_s"] = self.random.choice([0, 0, 3])
        if kind is Kind.DEMOTE:
            fields["hbm"] = self.random.choice([True, False])
        if self.random.random() < 0.3:
            fields["end_token"] = self.random.randint(1, 30)
        return fields

    def envelope(self) -> Any:
        kinds = self.random.choices(list(Kind), k=self.random.randint(1, 3))
        actions = [
            SimpleNamespace(action_id="", action_type=kind.value, action_version="1", payload=self.fields(kind))
            for kind in kinds
        ]
        return SimpleNamespace(actions=actions)

    def command(self) -> None:
        steering, kind = self.server.cache.steering, self.random.choice(list(Kind))
        if self.random.random() < 0.5:
            target = Target(session=self.random.choice("abc"))
        else:
            prompt, namespace = self.random.choice(self.prompts)
            target = Target(array("q", prompt), extra_key=namespace[0], cache_salt=namespace[1])
        try:
            path = steering.path_of(target)
        except BadValue:
            return
        outcome = steering.carry_out(read_hint(kind, "", self.fields(kind)), path)
        assert "failed" not in outcome.reason
        self.outcomes[kind.value, outcome.status.value] += 1


@pytest.mark.parametrize("admission", [SecondUse, Moody])
def test_no_wrong_byte_with_policies_and_hints(
    make_server, clock, admission: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("store.health.FIRST_PROBE_S", "store.health.LAST_PROBE_S", "mover.writebehind.PAUSE_S"):
        monkeypatch.setattr(f"radixtier.{name}", 0.001)
    server = make_server(hbm=8, dram=16, nvme=96, eviction="auto", admission=admission, clock=clock, idle=True)
    server.prefill_rate(1000)
    chaos = Advised(server, seed=21)
    for step in range(STEPS if admission is SecondUse else STEPS // 10):
        chaos.step()
        if step % 4 == 0:
            server.check()
            server.cache.steering.pins.check()
        clock.advance(0.0005)
    stats, cache = server.cache.mover.stats, server.cache
    assert all(chaos.hits.values()) and chaos.aborted and chaos.flushed, chaos.hits
    assert {kind for kind, _ in chaos.outcomes} == {kind.value for kind in Kind}
    assert {status for _, status in chaos.outcomes} >= {"accepted", "clipped", "rejected", "deferred"}
    records = cache.explain.history.latest(STEPS)
    assert len(records) > 100 and all(sum(why.tokens for why in each.causes) <= each.recomputed for each in records)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    for request in list(server.waiting):
        server.abort(request)
    server.engine.clear()
    server.settle()  # turns end, and the hints that came with them begin
    clock.advance(100_000)
    server.settle()
    server.events()
    server.check()
    assert server.table.held == 0 and not server.table.lease.any() and not cache.waiting and not cache._requests
    cache.sanity_check()
    # No lock is left behind: everything may be forgotten.
    assert not cache.steering._retained and not cache._staged
    server.evict_hbm()
    server.settle()  # what was being copied down
    server.evict_hbm()
    cache.evict_host(server.table.n_handles * PAGE)
    server.settle()
    assert not cache.mover.tree.runs and server.table.free_handles == server.table.n_handles
    assert not (server.table.slot >= 0).any() and len(cache.mover.parking) == 0
    print(chaos.served, chaos.hits, chaos.outcomes, stats)
