"""A scheduler in miniature around the real cache: every page's bytes are a function of (namespace, token path).

It calls the cache in the order in which SGLang's scheduler does: arrival, events, admission, load, forward, insert.
"Computing" a page writes its expected bytes into HBM; a page that came from a tier is compared with them.
"""

from __future__ import annotations

import random
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from radixtier.control import Address
from radixtier.control.client import ControlClient, ControlError
from radixtier.footprint import footprint
from radixtier.identity import StoreIdentity, chain, namespace_seed
from radixtier.io.faults import FaultEngine
from radixtier.io.posix import PosixEngine
from radixtier.mover.staging import Staging
from radixtier.policy.admission import Admission, AdmitAll, Candidate, Verdict
from radixtier.policy.bandwidth import EDGES
from radixtier.policy.prefill import Machine, PrefillCost
from radixtier.policy.regression import TimeFit
from radixtier.sglang import standalone
from radixtier.sglang.stack import Tiers
from radixtier.store.borrowed import BorrowedStore
from radixtier.store.store import PageStore
from radixtier.tree.residency import State

PAGE = 4
CLOCKED = ("cache", "prefill_watch", "explaining", "control")
"""Modules that read the time themselves."""

GEOMETRY = {"layers": 2, "heads": 1, "head_dim": 8}

KINDS: dict[str, dict[str, Any]] = {
    "mha": {},
    "mla": {"latent": (12, 4)},
    "mha fp8_e4m3": {"dtype": "float8_e4m3fn"},
    "mha fp8_e5m2": {"dtype": "float8_e5m2"},
    "mla fp8_e4m3": {"latent": (12, 4), "dtype": "float8_e4m3fn"},
    "mha bfloat16": {"dtype": "bfloat16"},
}
"""Device pools: a token has as many elements with a latent as with K and V."""


class SecondUse(AdmitAll):
    """Rejects what was used once only; remembers what it granted and got back."""

    name = "second-use"

    def __init__(self) -> None:
        self.granted = self.refunded = 0

    def verdict(self, candidate: Candidate) -> Verdict:
        return Verdict.ADMIT if candidate.uses > 1 or candidate.needed else Verdict.REJECT

    def admit(self, candidate: Candidate) -> Verdict:
        verdict = self.verdict(candidate)
        self.granted += candidate.nbytes * (verdict is Verdict.ADMIT)
        return verdict

    def refund(self, nbytes: int, now: float) -> None:
        self.refunded += nbytes


class Moody(SecondUse):
    """Throttles every other time, at random."""

    name = "moody"

    def __init__(self) -> None:
        super().__init__()
        self._random = random.Random(3)

    def verdict(self, candidate: Candidate) -> Verdict:
        return self._random.choice((Verdict.ADMIT, Verdict.THROTTLED))


@dataclass
class Request:
    """One request on its way through the cache."""

    tokens: list[int]
    extra_key: str | None = None
    cache_salt: str | None = None
    handle: Any = None
    stub: Any = None
    lock: Any = None
    rows: Any = None
    device: int = 0
    host: int = 0
    storage: int = 0
    failed_load: bool = False

    @property
    def key(self) -> Any:
        from sglang.srt.mem_cache.radix_cache import RadixKey

        return RadixKey(array("q", self.tokens), self.extra_key, cache_salt=self.cache_salt)

    @property
    def hit(self) -> int:
        return self.device + self.host + self.storage


class Clock:
    """Stands in for the module ``time`` where a test says what time it is; starts at the real one."""

    def __init__(self) -> None:
        self.now = time.monotonic()
        self._ahead = time.time() - self.now

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now + self._ahead

    def advance(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Server:
    """The cache with its pools; capacities in pages, as in CASES."""

    directory: Path
    hbm: int
    dram: int
    nvme: int
    threads: int = 2
    kind: str = "mha"
    """One of `KINDS`."""
    layout: str = "page_first_direct"
    backend: str = "direct"
    weights: str | None = "weights"
    """What the store takes for the fingerprint of the weights; None for a store that outlives nothing."""
    idle: bool = False
    """Whether an idle server brings up what nobody asked for."""
    eviction: str = "lru"
    admission: Callable[[], Admission] = AdmitAll
    control: Address | None = None
    control_key: str | None = None
    clock: Clock | None = None
    chunk: int = 0
    """Pages of a prefill chunk: what HBM loses next is copied to DRAM two of them ahead."""
    landing: int = 0
    """Landing frames, for pages that go straight from NVMe to HBM."""
    scrub_rate: int = 0
    """Bytes per second that are read to find pages that went bad."""
    learns: bool = False
    """Whether the cache learns from how long prefill takes here, which is nothing."""
    group: Any = None
    """Process group of the ranks of one server; every rank has bytes of its own, but with a latent all have the same.
    """
    rank: int = 0
    engine: Any = None
    store: Any = None
    cache: Any = None
    rows: list[torch.Tensor] = field(default_factory=list)
    """HBM as bytes: per buffer of the device pool ``[tokens, bytes of a token]``."""
    count: int = 0
    waiting: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        standalone.publish_arguments(PAGE, self.layout, self.backend)
        self.engine = FaultEngine(PosixEngine(direct=False), seed=1 + self.rank)
        geometry = standalone.Geometry(page_size=PAGE, tokens=self.hbm * PAGE, **GEOMETRY, **KINDS[self.kind])
        tiers = Tiers(
            lambda _: self.dram, self.nvme, self._open, eviction=self.eviction, admission=lambda _: self.admission(),
            control=self.control, control_key=self.control_key, n_landing=lambda page_bytes, device: self.landing,
            scrub_rate=self.scrub_rate,
        )  # fmt: skip
        self.cache = standalone.build_tiered(geometry, tiers, self.group)
        self.prefill_rate(1.0)
        if self.chunk:
            self.cache._staging = Staging(
                self.cache.mover, self.cache, self.hbm, self.chunk, clock=self.cache.ranks.now
            )
        if self.clock is not None:
            self.cache.ranks.clock = self.clock.monotonic
        if not self.idle:
            self.cache.ahead._idled = float("inf")
        self.allocator = self.cache.token_to_kv_pool_allocator
        kv = self.allocator.get_kvcache()
        buffers = [*kv.kv_buffer] if KINDS[self.kind].get("latent") else [*kv.k_buffer, *kv.v_buffer]
        self.rows = [buffer.view(torch.uint8).flatten(1) for buffer in buffers]

    @property
    def shared(self) -> bool:
        """Whether the first rank stores for all."""
        return self.group is not None and "latent" in KINDS[self.kind]

    def _open(self, frames: Any, shape: Any, n_slots: int, wake: Any, landing: Any = None) -> PageStore | BorrowedStore:
        ranks = 1 if self.group is None else torch.distributed.get_world_size(self.group)
        place = (0, 1) if self.shared else (self.rank, ranks)
        identity = None
        if self.weights is not None:
            identity = StoreIdentity(weights=self.weights, tp_rank=place[0], tp_size=place[1], **shape._asdict())
        common: dict[str, Any] = {
            "page_tokens": PAGE, "wake": wake, "threads": self.threads, "io_bytes": 2 * frames.page_bytes,
            "identity": identity, "landing": landing,
        }  # fmt: skip
        if self.shared and self.rank:
            self._meet()
            self.store = BorrowedStore([self.directory], frames, engine=self._make_engine, **common)
            return self.store
        self.store = PageStore(
            [self.directory], footprint(n_slots, frames.page_bytes, PAGE), frames, rank=place[0], ranks=place[1],
            engine=lambda _: self.engine, cleared=self._meet if place[1] > 1 else lambda: None, **common,
        )  # fmt: skip
        if self.shared:
            self._meet()
        return self.store

    def _meet(self) -> None:
        torch.distributed.barrier(self.group)

    def _make_engine(self, directory: Path) -> FaultEngine:
        """Make one for each slab that is opened; faults are those of the newest."""
        if self.engine is None or self.store is not None:
            self.engine = FaultEngine(PosixEngine(direct=False), seed=1 + self.rank)
        return self.engine

    def close(self) -> None:
        self.engine.clear()
        if self.cache.control is not None:
            self.cache.control.close()
        self.cache.mover.close(30)

    def prefill_rate(self, tokens_per_second: float) -> None:
        """Set what the cache has seen of prefill: the slower, the longer a request waits for its pages."""
        self.cache.prefill.cost = PrefillCost(Machine(1e-9, 1 / tokens_per_second, 1e-15))

    def drive(self, seconds_per_page: float, learns: bool = True) -> None:
        """Set what the cache believes of the drive; if it ``learns``, every read that ends tells it otherwise."""
        rate = self.cache.mover.rate
        rate._reads = rate._writes = TimeFit((1e-6, seconds_per_page / self.cache.mover.page_bytes), EDGES)
        rate._last.clear()
        rate._open = None
        if not learns:
            rate.observe = lambda *evidence: None

    def record(self, request: Request) -> Any:
        """What is known of a request that has ended."""
        found = self.cache.explain.history.find(request.handle.rid)
        assert found is not None
        return found

    @property
    def table(self) -> Any:
        return self.cache.mover.table

    # ---- bytes --------------------------------------------------------------------------------------

    def expected(self, request: Request, pages: int) -> torch.Tensor:
        """Bytes of the first ``pages`` pages: uint8 [pages, buffers, PAGE, bytes of a token]."""
        keys = chain(namespace_seed(request.extra_key, request.cache_salt), request.tokens[: pages * PAGE], PAGE)
        shape = (len(self.rows), PAGE, self.rows[0].shape[1])
        values = np.empty((pages, *shape), np.uint8)
        for page in range(pages):
            own = 0 if self.shared else self.rank
            random = np.random.default_rng(own + int.from_bytes(keys[page].tobytes(), "little"))
            values[page] = random.integers(0, 256, shape, np.uint8)
        return torch.from_numpy(values)

    def read_hbm(self, rows: torch.Tensor) -> torch.Tensor:
        """The bytes in HBM behind device rows, shaped as :meth:`expected`."""
        return torch.stack([buffer[rows].unflatten(0, (-1, PAGE)) for buffer in self.rows], dim=1)

    def compute(self, request: Request, rows: torch.Tensor, first_page: int) -> None:
        """Write the expected bytes of pages from ``first_page`` on into device rows."""
        pages = first_page + len(rows) // PAGE
        values = self.expected(request, pages)[first_page:]
        for number, buffer in enumerate(self.rows):
            buffer[rows] = values[:, number].flatten(0, 1)

    # ---- the scheduler's calls ----------------------------------------------------------------------

    def request(
        self, tokens: Sequence[int], extra_key: str | None = None, cache_salt: str | None = None, *,
        session: str | None = None, hints: Any = None,
    ) -> Request:  # fmt: skip
        """Make a request without letting it arrive."""
        from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle

        self.count += 1
        handle = CacheRequestHandle(f"r{self.count}", 0)
        stub = SimpleNamespace(
            rid=handle.rid, cache_request_handle=handle, storage_prefetch_last_match_len=None, last_node=None,
            storage_hit_length=0, session_id=session, kv_hints=hints,
            swa_host_hit_length=0, mamba_host_hit_length=0, kv=SimpleNamespace(mamba_pool_idx=None), session=None,
            return_logprob=False, output_ids=[], origin_input_ids=list(tokens), priority=None,
            full_untruncated_fill_ids=array("q", tokens), kv_rotation_base=None, extra_key=extra_key,
            cache_salt=cache_salt, lock=None,
        )  # fmt: skip
        return Request(list(tokens), extra_key, cache_salt, handle, stub)

    def match(self, request: Request, with_req: bool = True) -> Any:
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

        return self.cache.match_prefix(MatchPrefixParams(key=request.key, req=request.stub if with_req else None))

    def arrive(self, request: Request) -> Any:
        """``Scheduler._prefetch_kvcache`` and the waiting queue."""
        result = self.match(request)
        matched = result.device_prefix_len + result.host_hit_length
        request.stub.storage_prefetch_last_match_len = matched
        if self.cache.is_backuped(result.last_host_node) or self.cache.is_root(result.last_host_node):
            self.cache.prefetch_from_storage(
                request.handle, result.last_host_node, array("q", request.tokens[matched:]), None, None,
                matched_prefix_tokens=array("q", request.tokens[:matched]),
                extra_key=request.extra_key, cache_salt=request.cache_salt,
            )  # fmt: skip
        self.waiting.append(request)
        return result

    def events(self) -> None:
        """``Scheduler._process_hicache_events``."""
        self.cache.check_hicache_events()

    def admit(self, request: Request) -> bool:
        """One pass over a waiting request; True once it was admitted (its load is queued, rows are taken)."""
        if not self.cache.check_prefetch_progress(request.handle):
            return False
        assert self.cache.pop_prefetch_loaded_span(request.handle) == (0, None)
        result = self.match(request)
        previous = request.stub.storage_prefetch_last_match_len
        current = result.device_prefix_len + result.host_hit_length
        if previous and current < previous:
            self.waiting.remove(request)
            self.arrive(request)
            return False
        return self._take_rows(request, result)

    def _take_rows(self, request: Request, result: Any) -> bool:
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InitLoadBackParams

        request.stub.last_node = result.last_device_node
        request.device, request.host = result.device_prefix_len, 0
        node = result.last_device_node
        pin = self.cache.inc_lock_ref(node).to_dec_params()
        if result.host_hit_length:
            loaded, node_after = self.cache.init_load_back(
                InitLoadBackParams(result.best_match_node, result.host_hit_length, req=request.stub)
            )
            assert loaded in (0, result.host_hit_length), (loaded, result.host_hit_length)
            request.failed_load = loaded == 0
            request.host, after = loaded, node_after
        else:
            after = node
        need = len(request.tokens) // PAGE * PAGE - request.device - request.host
        missing = need - self.allocator.available_size()
        if missing > 0:
            guard = self.cache.inc_lock_ref(after).to_dec_params()
            self.cache.evict(EvictParams(num_tokens=missing))
            self.cache.dec_lock_ref(after, guard)
        rows = self.allocator.alloc(need) if need else torch.empty(0, dtype=torch.int64)
        request.lock = (after, self.cache.inc_lock_ref(after).to_dec_params())
        self.cache.dec_lock_ref(node, pin)
        request.storage = min(request.stub.storage_hit_length, request.host)
        request.host -= request.storage
        self.cache.finish_storage_prefetch_admission(request.handle, request.storage, None)
        self.waiting.remove(request)
        if rows is None:
            self.cache.dec_lock_ref(*request.lock)
            request.lock = None
            request.rows = None
            return True
        request.rows = rows
        return True

    def start_loads(self) -> None:
        self.cache.ready_to_load_host_cache()

    def forward(self, request: Request) -> None:
        """Check what came from the tiers, compute the rest, insert, and finish the request."""
        if request.rows is None:
            self.cache.release_aborted_request(request.handle)
            return
        node, _ = request.lock
        prefix = self.cache.path_device_indices(node)
        assert len(prefix) == request.hit, (len(prefix), request.hit)
        if request.hit:
            got = self.read_hbm(prefix)
            want = self.expected(request, request.hit // PAGE)
            assert torch.equal(got, want), f"wrong bytes after a hit of {request.hit}"
        self.compute(request, request.rows, request.hit // PAGE)
        self.insert(request, torch.cat([prefix, request.rows]))

    def insert(self, request: Request, rows: torch.Tensor, chunks: int = 1, last: bool = True) -> None:
        """Let SGLang put the rows of all whole pages into the tree, in so many chunks; ends the request if ``last``."""
        from sglang.srt.mem_cache.base_prefix_cache import TreeLock

        whole = len(request.tokens) // PAGE * PAGE
        assert len(rows) == whole
        if not self.learns:
            self.cache.prefill.dropped(request.handle)
        stub, place = request.stub, 1 + self.count % 15
        stub.kv = SimpleNamespace(
            req_pool_idx=place, cache_protected_len=request.hit, cache_inserted_len=0, mamba_pool_idx=None
        )
        stub.lock = None if request.lock is None else TreeLock(*request.lock)
        self.cache.req_to_token_pool.req_to_token[place, :whole] = rows.int()
        ends = [whole * n // chunks // PAGE * PAGE for n in range(1, chunks + 1)]
        for end in ends:
            stub.finished = lambda over=last and end == whole: over
            self.cache.checkpoint_into_tree(stub, up_to=end)
            if end < whole:
                self.events()
        self.cache.unlock(stub.lock)
        request.lock = None

    def abort(self, request: Request) -> None:
        """The client went away while the request was waiting."""
        self.cache.release_aborted_request(request.handle)
        self.waiting.remove(request)

    def abort_running(self, request: Request) -> None:
        """The client went away after admission, before the request inserted anything."""
        self.cache.release_aborted_request(request.handle)
        self._release(request)

    def retract(self, request: Request) -> None:
        """HBM is needed: what the request computed is in the tree, and it waits again under the same name."""
        self.insert(request, torch.cat([self.cache.path_device_indices(request.lock[0]), request.rows]), last=False)
        request.handle = replace(request.handle, attempt_id=request.handle.attempt_id + 1)
        request.stub.cache_request_handle, request.rows = request.handle, None
        self.arrive(request)

    def _release(self, request: Request) -> None:
        if request.rows is not None:
            self.allocator.free(request.rows)
            self.cache.dec_lock_ref(*request.lock)
        request.rows = request.lock = None

    # ---- shortcuts ----------------------------------------------------------------------------------

    def serve(
        self, tokens: Sequence[int], extra_key: str | None = None, cache_salt: str | None = None, *,
        session: str | None = None, hints: Any = None,
    ) -> Request:  # fmt: skip
        """Take one request all the way."""
        request = self.request(tokens, extra_key, cache_salt, session=session, hints=hints)
        self.arrive(request)
        return self.finish(request)

    def finish(self, request: Request) -> Request:
        """Take one that has arrived all the way, others that wait or not."""
        for _ in range(200_000):
            self.events()
            if self.admit(request):
                break
        else:
            raise AssertionError("the request was never admitted")
        self.start_loads()
        self.forward(request)
        return request

    def serve_all(self, steps: int) -> list[Request]:
        """Take all that wait to their end, as they may be admitted, in so many steps of the scheduler at most."""
        done: list[Request] = []
        for _ in range(steps):
            self.events()
            batch = [request for request in list(self.waiting) if self.admit(request)]
            self.start_loads()
            for request in batch:
                self.forward(request)
            done += batch
            if not self.waiting:
                break
        return done

    def settle_transfers(self) -> None:
        """Let transfers between HBM and DRAM finish (they do at the next events on a CPU)."""
        for _ in range(100):
            self.events()
            if not self.cache.ongoing_write_through and not self.cache.ongoing_load_back:
                return
        raise AssertionError("transfers did not finish")

    def settle(self, timeout: float = 20.0) -> None:
        """Let backups and write-behind finish."""
        end = time.monotonic() + timeout
        mover = self.cache.mover
        while time.monotonic() < end:
            self.events()
            idle = not self.cache.ongoing_write_through and not self.cache.ongoing_load_back
            idle &= not mover.promotions._ahead
            if idle and not mover.busy and not mover.writes.pending:
                return
            mover.io_done.wait(0.001)
        raise AssertionError("did not settle")

    def evict_hbm(self, pages: int | None = None) -> None:
        """Drop device values, least recently used first."""
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        self.cache.evict(EvictParams(num_tokens=(pages or self.hbm) * PAGE))

    def demote_all(self) -> None:
        """Let everything that may leave DRAM leave it."""
        self.settle()
        pages = np.flatnonzero(self.table.unused(np.arange(self.table.n_handles), State.CLEAN))
        self.cache.mover.give_up_frames(pages)

    def check(self) -> None:
        """Exact accounting on every tier."""
        self.table.check()
        used = int((self.table.slot >= 0).sum())
        if isinstance(self.store, PageStore):
            # Slots that were given back count as used until the journal has forgotten them.
            assert used <= self.store.used_slots
            assert self.store.free_slots + self.store.used_slots + self.store.quarantined == self.store.n_slots
        tree, _ = self.cache.total_size()
        held = sum(len(r.rows) for r in self.waiting if r.rows is not None)
        free = self.allocator.available_size()
        assert tree + held + free == self.hbm * PAGE, (tree, held, free)

    def prompt(self, n_pages: int, seed: int) -> list[int]:
        """A prompt of its own, ``n_pages`` long."""
        return np.random.default_rng(seed).integers(1, 1 << 20, n_pages * PAGE).tolist()


def counted(store) -> dict[str, float]:
    """Return the figures of a store, without those of its journal, which catches up while nothing happens."""
    return {name: value for name, value in store.stats().items() if not name.startswith("journal_")}


def ask(server: Any, call: str, *arguments: Any, client: ControlClient | None = None, **fields: Any) -> Any:
    """Ask the endpoint of a server while its scheduler's steps go on; raises `ControlError`."""
    to = client or ControlClient(server.cache.control.address)
    answers: list[Any] = []

    def work() -> None:
        try:
            answers.append(getattr(to, call)(*arguments, **fields))
        except ControlError as error:
            answers.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        server.events()
        thread.join(0.001)
    (answer,) = answers
    if isinstance(answer, ControlError):
        raise answer
    return answer
