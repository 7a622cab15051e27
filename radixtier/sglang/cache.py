"""The cache: SGLang's unified radix cache over HBM, DRAM and NVMe.

Owns one record per request and the leases of running loads. Which node exists, what is locked and what is
in HBM stays with SGLang's tree core; where the bytes below HBM are is the mover's. Scheduler thread only.

A request goes through here like this:

1. arrival: :meth:`match_prefix` counts HBM, DRAM and NVMe, :meth:`prefetch_from_storage` starts the promotion;
2. admission: :meth:`check_prefetch_progress` lets it pass when its pages are up or its deadline is over; the match
   that follows is cut in front of the first page that is not in DRAM, so that a load can deliver all it promises;
3. load: :meth:`load_back` leases the frames until the copy is acknowledged;
4. admission over: :meth:`finish_storage_prefetch_admission` or :meth:`release_aborted_request` drops the record;
5. end of the turn: :meth:`checkpoint_into_tree` notes where it ended, for what is done before its next one.
"""

from __future__ import annotations

import hashlib
import logging
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, takewhile
from typing import Any

import numpy as np
import torch
from sglang.srt.managers.cache_controller import CacheOperation
from sglang.srt.mem_cache.base_prefix_cache import InsertParams, InsertResult, MatchPrefixParams, MatchResult
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_memory, get_schedule, get_serving

from radixtier.control import Pace
from radixtier.explain import RequestRecord
from radixtier.identity import DIGEST_BYTES, Space, Stretch, namespace_seed, narrow
from radixtier.monitor import EventLog, Ticks
from radixtier.mover import Mover
from radixtier.mover.ahead import Ahead
from radixtier.mover.leaving import NothingMore
from radixtier.mover.sparing import spared
from radixtier.mover.staging import Staging
from radixtier.mover.waiting import Path
from radixtier.mover.waiting_room import WaitingRoom
from radixtier.policy.bandwidth import CopyRate
from radixtier.ranks import Agreement, Alone
from radixtier.ranks.agreement import checksum
from radixtier.sglang.control import Control
from radixtier.sglang.draining import Draining
from radixtier.sglang.explaining import Explaining
from radixtier.sglang.host_pool import LogicalPoolMixin
from radixtier.sglang.monitoring import make_monitor
from radixtier.sglang.prefill_watch import PrefillWatch
from radixtier.sglang.private import no_retry, track_backup
from radixtier.sglang.ranks import agreed_number, alike
from radixtier.sglang.recording import Recording
from radixtier.sglang.request import Request
from radixtier.sglang.restore import IDLE_STEP_S, STEP_S, Restoration
from radixtier.sglang.restore_ranks import RankedRestoration
from radixtier.sglang.shared import SharedCommands
from radixtier.sglang.stack import STRATEGY, Tiers
from radixtier.sglang.state import StateReader
from radixtier.sglang.steering import Steering
from radixtier.store.store import PageStore
from radixtier.tree.residency import NO_PAGES, NONE, Flags, Pages, State
from radixtier.tree.writequeue import Piece

logger = logging.getLogger(__name__)

SPIN_S = 0.0005
"""How long an otherwise idle scheduler loop sleeps while requests wait for NVMe, so that I/O threads get the CPU."""

CLOSE_TIMEOUT_S = 10.0
"""Longest a graceful stop writes what is not stored yet; SGLang kills a scheduler after 15 s."""

PAGES_REMEMBERED = 1 << 20
"""Pages, over all remembered paths, after which they are forgotten (8 bytes each)."""

REQUESTS_REMEMBERED = 65536
"""Requests on their way; more than that only after errors."""

ENDS_REMEMBERED = 4096
"""Turns whose last pages are not backed up yet."""

MOST_LEAVES = 4096
"""Leaves of HBM that are looked at when a path is to leave it; 10 ms at most."""


def ready(queue: Sequence[Any]) -> int:
    """Return how many leading acknowledgements of a queue of SGLang's controller have come on this rank."""
    return sum(1 for _ in takewhile(lambda ack: ack.finish_event.query(), queue))


class RadixTierCache(UnifiedRadixCache):
    """``UnifiedRadixCache`` whose host tier is logical pages over DRAM and NVMe.

    With ``SGLANG_ENABLE_RANK_CONSENSUS_CHECKER=1`` SGLang checks that ranks call what is marked, and get, the same.
    """

    _mover: Mover | None = None
    _restoration: Restoration | RankedRestoration | None = None
    tokenizer: Any = None
    """The scheduler's, if it has one."""
    recording: Recording | None = None
    """Of the load, if that was asked for; of several ranks, the first one has it."""
    tells_arrivals = False
    """Whether some rank records the load."""
    ranks: Alone | Agreement
    _riding: Agreement | None = None
    """Has something to say in SGLang's next reduction, the first of this step."""

    def __init__(self, params: Any, tiers: Tiers) -> None:
        self._tiers = tiers
        self.tells_events = bool(params.enable_kv_cache_events)
        super().__init__(params)

    def init_hicache(self, server_args: Any, params: Any) -> None:
        """Attach pools and controller as stock does, then the mover that our pool brought along."""
        events = EventLog()
        with STRATEGY.building(self._tiers):
            super().init_hicache(server_args, params)
        pool = self.host_pool_group.anchor_entry.host_pool
        if not isinstance(pool, LogicalPoolMixin):
            raise ValueError(f"radixtier: no tier for host pools of type {type(pool).__name__}; start without it")
        self._pool = pool
        self._domain = pool.shared_allocation_domain
        self.ranks = pool.ranks
        self._salt = agreed_number(pool.ranks).to_bytes(8, "little")
        self._unnamed = count()
        self.prefill = PrefillWatch(self.ranks)
        self.copies = CopyRate()
        self._last_tick = 0.0
        self._pace = Pace()
        self._requests: OrderedDict[str, Request] = OrderedDict()
        self._inserting: Request | None = None
        """The request whose tokens go into the tree at the moment."""
        self._ended: OrderedDict[int, Request] = OrderedDict()
        """Turns by the node that they ended with, until it is backed up."""
        self._loads: dict[int, Pages] = {}
        self._staged: set[int] = set()
        """Nodes of which pages are being copied to DRAM since HBM will lose them."""
        self._paths: dict[tuple[int, int, int], Path] = {}
        self._remembered = 0
        self._mover = pool.mover
        self.ahead = Ahead(
            self.mover.tree, self.mover.promotions, self.mover.rate, page_bytes=self.mover.page_bytes,
            clock=self.ranks.now,
        )  # fmt: skip
        self.waiting = WaitingRoom(
            self.mover, self.prefill, self.copies, page_tokens=self.page_size, clock=self.ranks.now,
            law=get_memory().hicache_storage_prefetch_policy,
        )  # fmt: skip
        self.explain = Explaining(self)
        self.steering = Steering(self)
        self.shared = SharedCommands(self)
        self.draining = Draining(self)
        address = self._tiers.control
        self.control = None if address is None else Control(self, address, self._tiers.control_key)
        self._on_cpu = str(self.token_to_kv_pool_allocator.device) == "cpu"
        schedule = get_schedule()
        chunk = schedule.chunked_prefill_size or 0
        chunk = chunk if chunk > 0 else schedule.max_prefill_tokens
        capacity = self.token_to_kv_pool_allocator.size
        self._staging = Staging(
            self.mover, self, capacity // self.page_size, chunk // self.page_size, clock=self.ranks.now
        )
        self.ticks = Ticks()
        self.figures = StateReader(self, get_serving().served_model_name)
        self.monitor = make_monitor(self, events)
        if isinstance(self.ranks, Agreement):
            self.ranks.state, self.ranks.on_divergence = self._decided, self._stand_down
            self.ranks.refresh()
        if self.mover.store is not None:
            self._restoration = self._make_restoration(self.mover.store)
            self._restore_some(first=True)

    @property
    def mover(self) -> Mover:
        """The mover, once :meth:`init_hicache` ran."""
        assert self._mover is not None
        return self._mover

    # ---- match --------------------------------------------------------------------------------------

    @alike(results=["result.device_prefix_len", "result.host_hit_length"])
    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        """Match over all tiers, cut in front of the first page that cannot be delivered."""
        result = super().match_prefix(params)
        if params.req is not None:
            self._see(params.req, len(params.key), result)
            if self.ranks.diverged:
                # Some ranks would see a shorter match than at arrival, and others would not.
                no_retry(params.req)
        if result.host_hit_length == 0:
            return result
        if self.ranks.diverged:
            return super().match_prefix(replace(params, key=params.key[: result.device_prefix_len]))
        waiting = None if params.req is None else self.waiting.get(params.req.cache_request_handle)
        cut = self.waiting.cut(waiting, result.best_match_node, result.host_hit_length, lambda: self._path(result))
        if cut is None:
            return result
        if cut.final:
            no_retry(params.req)
        length = result.device_prefix_len + cut.pages * self.page_size
        return super().match_prefix(replace(params, key=params.key[:length]))

    def _see(self, req: Any, prompt_tokens: int, result: MatchResult) -> None:
        """Keep a record of a request from its first match on, and where its path ends now."""
        request = self._requests.get(req.rid)
        if request is None:
            prompt_tokens = max(prompt_tokens, len(req.origin_input_ids))
            record = RequestRecord(req.rid, req.session_id, arrived=time.time(), prompt_tokens=prompt_tokens)
            self.ranks.refresh()
            request = Request(record, self.ranks.now(), req.kv_hints)
            self._requests[req.rid] = request
            if len(self._requests) > REQUESTS_REMEMBERED:
                self._requests.popitem(last=False)
            if self.recording is not None:
                self.recording.arrived(req)
        request.node = result.best_match_node
        if not request.admitted:
            request.record.hbm = result.device_prefix_len

    def _path(self, result: MatchResult) -> Path:
        """What a match found below HBM; remembered until residency or the part in HBM changes."""
        key = (result.best_match_node, result.device_prefix_len, result.host_hit_length)
        path = self._paths.get(key)
        if path is None or path.epoch != self.mover.table.epoch:
            path = self._read_path(result.best_match_node)
            self._remembered += len(path.pages)
            if self._remembered > PAGES_REMEMBERED:
                self._paths.clear()
                self._remembered = len(path.pages)
            self._paths[key] = path
        return path

    def _read_path(self, node: int) -> Path:
        transfer, _ = self.tree_core.build_load_back_spec(node)
        return Path.of(self._pool.pages_of(transfer.host_indices), self.mover.table)

    # ---- arrival and admission ----------------------------------------------------------------------

    @alike(params=["request.rid", "len(new_input_tokens)"])
    def prefetch_from_storage(
        self,
        request: Any,
        last_host_node_id: int,
        new_input_tokens: Any,
        last_hash: str | None = None,
        prefix_keys: list[str] | None = None,
        matched_prefix_tokens: Any = None,
        extra_key: str | None = None,
        cache_salt: str | None = None,
        storage_hit_end: int | None = None,
    ) -> None:
        """Start bringing up what the request's path has on NVMe, and hold the path until admission.

        SGLang calls this when the request arrives, and again when it finds before admission that the match shrank.
        """
        if self.mover.store is None:
            return
        waiting = self.waiting.get(request)
        node = last_host_node_id
        matched = len(matched_prefix_tokens or ())
        if waiting is None:
            path = self._read_path(node)
        elif waiting.expired:
            return
        else:
            tokens = array("q", matched_prefix_tokens or ()) + array("q", new_input_tokens)
            key = RadixKey(tokens, extra_key, self.tree_core.is_eagle, cache_salt=cache_salt)
            result = super().match_prefix(MatchPrefixParams(key=key.page_aligned(self.page_size)))
            node, path = result.best_match_node, self._path(result)
            matched = result.device_prefix_len + result.host_hit_length
        if path.known:
            self.waiting.enter(request, path, node, matched, len(new_input_tokens))

    @alike(params=True, results=True)
    def check_prefetch_progress(self, request: Any) -> bool:
        """Whether the request may be admitted: its pages are up, or it waited as long as recomputing would take."""
        return self.waiting.may_admit(request)

    def finish_storage_prefetch_admission(self, request: Any, fulfilled_tokens: int, reason: str | None) -> None:
        """The request was admitted: its load, if any, holds its own leases now."""
        super().finish_storage_prefetch_admission(request, fulfilled_tokens, reason)
        self.prefill.admitted(request)
        self._count(request)
        self.waiting.leave(request)

    def _count(self, request: Any) -> None:
        """Count a request once on the path that it uses, whatever its chunks and however often it is admitted."""
        known = self._requests.get(request.rid)
        if known is None or known.admitted:
            return
        known.admitted = True
        self.explain.admitted(known, self.waiting.get(request))
        if self.recording is not None:
            self.recording.admitted(known.record)
        (path,) = self.tree_core.collect_path_info([known.node])
        for info in reversed(path):
            page = self.last_page(info.node_id)
            if page is not None:
                self.mover.tree.ends(page, info.node_id)
                self.mover.used_by_request(page)
                return

    def release_aborted_request(self, request: Any) -> None:
        """The request is gone: its promotion is cancelled and its pages are released."""
        super().release_aborted_request(request)
        if self._mover is not None:
            self.waiting.leave(request)
            self.prefill.dropped(request)
            self._requests.pop(request.rid, None)
            if self.recording is not None:
                self.recording.aborted(request.rid)

    # ---- prefill and the end of a turn --------------------------------------------------------------

    def ready_to_load_host_cache(self) -> int:
        """The requests admitted since the last call start their prefill as one batch."""
        self.prefill.begin()
        queue = self.cache_controller.ack_load_queue
        known, began = len(queue), time.monotonic()
        producer: int = super().ready_to_load_host_cache()
        if len(queue) > known and self._on_cpu:
            # There are no events to time, and the copy is over by now.
            self.ranks.measured(time.monotonic() - began, partial(self.copies.observe, queue[-1].num_bytes))
        return producer

    def checkpoint_into_tree(self, req: Any, *, up_to: int, **kwargs: Any) -> None:
        """Insert as stock does; the first insert of a batch's last request tells how long its prefill took."""
        if self._mover is None:
            super().checkpoint_into_tree(req, up_to=up_to, **kwargs)
            return
        self.prefill.inserted(req.cache_request_handle, req.kv.cache_protected_len, up_to)
        self._inserting = self._requests.get(req.rid)
        super().checkpoint_into_tree(req, up_to=up_to, **kwargs)
        (path,) = self.tree_core.collect_path_info([req.last_node])
        self.explain.inserted(path, self._inserting)
        self.mover.reached_hbm(self._pages_of_node(info.node_id) for info in reversed(path))
        self._inserting = None
        if req.finished():
            self.turn_over(req.rid, req.last_node)
            if self.recording is not None:
                self.recording.ended(req, up_to)

    def on_release(self, req: Any, *, checkpointed: bool) -> None:
        """Release as stock does; some requests end without an insert."""
        super().on_release(req, checkpointed=checkpointed)
        if self.recording is not None and not checkpointed and req.finished():
            self.recording.ended(req, 0)

    def turn_over(self, rid: str, node: int) -> None:
        """A request has ended with ``node``: as soon as that is backed up, its session is between two turns."""
        request = self._requests.pop(rid, None)
        if request is None:
            return
        self.explain.over(request)
        self._ended[node] = request
        if len(self._ended) > ENDS_REMEMBERED:
            self._ended.popitem(last=False)
        self._end_turn(node)

    def _end_turn(self, node: int) -> None:
        page = self.last_page(node) if node in self._ended else None
        run = None if page is None else self.mover.tree.run_of(page)
        if run is not None:
            request = self._ended.pop(node)
            self.ahead.turn_ended(run, request.record.session, request.arrived)
            if request.hints is not None:
                self.steering.at_turn_end(request, run)

    # ---- load ---------------------------------------------------------------------------------------

    @alike(params=["node_id"], results=True)
    def load_back(self, node_id: int, mem_quota: int | None = None, req: Any = None) -> bool:
        """Load a path from DRAM to HBM, all of it or nothing; frames are leased until the copy is acknowledged."""
        path = self._read_path(node_id)
        if path.loadable < len(path.pages) or self.ranks.diverged:
            return False
        self.mover.acquire(path.pages)
        if not super().load_back(node_id, mem_quota, req=req):
            self.mover.release(path.pages)
            return False
        self._loads[node_id] = path.pages
        if req is not None:
            waiting = self.waiting.get(req.cache_request_handle)
            cold = 0 if waiting is None else int(np.isin(path.pages, waiting.cold).sum()) * self.page_size
            self.mover.parking.served(cold // self.page_size)
            # For ``cached_tokens_details``: of what is loaded, what was on NVMe only when the request came.
            req.storage_hit_length = cold
            self.explain.loaded(self._requests.get(req.rid), len(path.pages) * self.page_size - cold, cold)
        return True

    def loading_check(self, finish_count: int | None = None) -> None:
        """Reap acknowledged loads and release their frames."""
        running = list(self.cache_controller.ack_load_queue)
        super().loading_check(finish_count=finish_count)
        for ack in running[: len(running) - len(self.cache_controller.ack_load_queue)]:
            self._domain.finish(ack.finish_event)
            if ack.timing_enabled:
                took = ack.start_event.elapsed_time(ack.finish_event) / 1000
                self.ranks.measured(took, partial(self.copies.observe, ack.num_bytes))
            for node_id in ack.node_ids:
                pages = self._loads.pop(node_id, None)
                if pages is not None:
                    self.mover.release(pages)
                    self.mover.tree.came_to_hbm(pages)

    # ---- backup -------------------------------------------------------------------------------------

    def writing_check(self, write_back: bool = False, finish_count: int | None = None) -> None:
        """Reap acknowledged backups: their pages are in DRAM, join the TierTree, and are queued for NVMe."""
        running = list(self.cache_controller.ack_write_queue)
        nodes = [self._fragments(ack) for ack in running]
        super().writing_check(write_back=write_back, finish_count=finish_count)
        reaped = len(running) - len(self.cache_controller.ack_write_queue)
        for ack, fragments in zip(running[:reaped], nodes, strict=False):
            for pages in self._domain.finish(ack.finish_event):
                self.mover.filled(pages)
            for node_id, used in fragments:
                self._learn(node_id, used)
                self._end_turn(node_id)
            self._staged.difference_update(ack.node_ids)

    def _fragments(self, ack: Any) -> list[tuple[int, bool]]:
        """Nodes that an acknowledgement covers, ancestors first (a node may have been split since), and if in use."""
        ongoing = ((ack_id not in self._staged, self.ongoing_write_through.get(ack_id)) for ack_id in ack.node_ids)
        return [(node_id, used) for used, write in ongoing if write is not None for node_id in write.publish_node_ids]

    def _learn(self, node_id: int, used: bool = True) -> None:
        """Add a backed-up node to the TierTree and queue what is not on NVMe yet.

        What was copied once more since HBM will lose it was not ``used`` by anybody.
        """
        spec = self.tree_core.build_storage_backup_spec(node_id, False)
        if spec is None:
            return
        pages = self._pool.pages_of(spec.host_value)
        table, tree = self.mover.table, self.mover.tree
        tokens = np.frombuffer(spec.token_ids, np.int64)
        space, parent, front = self._in_front_of(node_id)
        if (table.run[pages] == NONE).all():
            # Without a backup of the page in front its key is not known; a random one is at least nobody else's.
            stretch = Stretch.chained(space, front or self._nobodys_key(), tokens, self.page_size)
            tree.add(pages, parent, stretch.keys, node=node_id)
            self.explain.computed(node_id, pages)
            self.mover.parking.computed(pages)
        else:
            if used:
                tree.use_page(int(pages[-1]))
            stretch = Stretch(
                space, front or b"", table.key[pages].view(np.uint8), narrow(tokens).reshape(len(pages), -1)
            )
        if used:
            tree.came_to_hbm(pages)
        for piece in Piece(pages, stretch if front else None).where(table.state[pages] == State.DIRTY):
            self.mover.write_behind(piece)

    def _nobodys_key(self) -> bytes:
        """Return a random key, the same on all ranks."""
        number = next(self._unnamed).to_bytes(8, "little")
        return hashlib.blake2b(self._salt + number, digest_size=DIGEST_BYTES).digest()

    def _in_front_of(self, node_id: int) -> tuple[Space, int | None, bytes | None]:
        """Namespace of a node, the handle of the page in front of it, and that page's key.

        At the root there is no handle, and the key is the namespace's; both are None where the parent has no backup.
        """
        (path,) = self.tree_core.collect_path_info([node_id])
        space = Space(*self.tree_core.prefetch_anchor_info(node_id))
        if len(path) < 2:
            return space, None, namespace_seed(*space)
        page = self.last_page(path[-2].node_id)
        return space, page, None if page is None else self.mover.tree.key_of(page)

    def match_all(self, params: MatchPrefixParams) -> MatchResult:
        """Match as stock does: what is there, whether or not it can be delivered."""
        return super().match_prefix(params)

    def _pages_of_node(self, node_id: int) -> Pages | None:
        """Handles of a node, root-side first, None without a backup."""
        spec = self.tree_core.build_storage_backup_spec(node_id, False)
        return None if spec is None else self._pool.pages_of(spec.host_value)

    def last_page(self, node_id: int) -> int | None:
        """Handle of the last page of a node, None without a backup."""
        spec = self.tree_core.build_storage_backup_spec(node_id, False)
        return None if spec is None else int(spec.host_value[-1]) // self.page_size

    # ---- restart ------------------------------------------------------------------------------------

    def last_pages(self, node_id: int, most: int) -> Pages:
        """Handles of up to ``most`` pages that end with a node, as far up as every node has a backup."""
        (path,) = self.tree_core.collect_path_info([node_id])
        found: list[Pages] = []
        for info in reversed(path):
            pages = self._pages_of_node(info.node_id) if most > 0 else None
            if pages is None:
                break
            found.insert(0, pages[-most:])
            most -= len(found[0])
        return np.concatenate(found) if found else NO_PAGES

    def tokens_of(self, pages: Pages) -> torch.Tensor:
        """Host indices of whole pages, int64 on the CPU."""
        return self._pool.tokens_of(pages)

    def _make_restoration(self, store: PageStore) -> Restoration | RankedRestoration | None:
        if isinstance(self.ranks, Agreement):
            return RankedRestoration.of(self, self.ranks)
        restorer = store.restorer()
        return None if restorer is None else Restoration(self, restorer)

    @property
    def _restoring(self) -> bool:
        """Whether paths of an earlier run are still coming back."""
        return self._restoration is not None and not self._restoration.over

    def _restore_some(self, first: bool = False) -> None:
        restoration = self._restoration
        if restoration is None:
            return
        try:
            if first:
                restoration.first()
            else:
                # Nothing is forgotten meanwhile, so that whoever needs a slot waits for the end of it.
                restoration.step(IDLE_STEP_S if self._idle or self.mover.slots_wanted else STEP_S)
        except Exception:  # a miss is legal, the end of the scheduler is not
            logger.exception("radixtier: the rest of what is on NVMe cannot be brought back")
            restoration.cancel()
            if isinstance(self.ranks, Agreement):
                self.ranks.fail()
                if first:
                    self.ranks.reduce()  # as the others do after every step
        if restoration.finished:
            self._restoration = None

    # ---- from HBM once more -------------------------------------------------------------------------

    def insert(self, params: InsertParams) -> InsertResult:
        """Insert as stock does; pages of the path whose bytes were lost are filled again from HBM."""
        result = super().insert(params)
        if self._mover is not None and self._mover.table.count[State.LOST] and result.last_device_node is not None:
            self._copy_again(result.last_device_node, self._lost)
        return result

    def _lost(self, pages: Pages) -> Flags:
        lost = self.mover.lost_of(pages)
        self.explain.copied_again(self._inserting, pages[lost])
        return lost

    @property
    def free_pages(self) -> int:
        """Pages of HBM that hold nothing."""
        free: int = self.token_to_kv_pool_allocator.available_size() // self.page_size
        return free

    @property
    def evictable_pages(self) -> int:
        """Pages of HBM that could be evicted now."""
        evictable: int = self.evictable_size() // self.page_size
        return evictable

    def copy_down(self, run: int, pages: Pages) -> int:
        """Copy pages of a run that are in HBM to DRAM once more; returns how many are on their way."""
        node = self.mover.tree.node_of(run)
        return 0 if node is None else self._copy_again(node, lambda some: np.isin(some, pages), staged=True)

    def copied_down(self) -> None:
        """Have the copies that were queued begin; where that ends them, nothing stays locked."""
        self.flush_pending_backups()
        if self._on_cpu:
            self.writing_check(finish_count=ready(self.cache_controller.ack_write_queue))

    def _copy_again(self, end: int, wanted: Callable[[Pages], Flags], staged: bool = False) -> int:
        """Back wanted pages of the path that ends with a node up once more, as far as they are in HBM."""
        if self.ranks.diverged:
            return 0
        (path,) = self.tree_core.collect_path_info([end])
        pending = {node for write in self.ongoing_write_through.values() for node in write.publish_node_ids}
        pending |= self.ongoing_write_through.keys()
        copied = 0
        for info in path:
            if info.full_value_len is None or info.node_id in pending:
                continue
            pages = self._pages_of_node(info.node_id)
            if pages is None:
                continue
            some = wanted(pages)
            chosen = self.mover.refill(pages[some]) if some.any() else NO_PAGES
            if len(chosen):
                self._write_again(info.node_id, pages, np.isin(pages, chosen))
                if staged:
                    self._staged.add(info.node_id)
                copied += len(chosen)
        return copied

    def _evict_device_leaf(self, node_id: int, tracker: Any) -> Any:
        """Evict as stock does, and learn which pages HBM does not have any more."""
        pages = None if self._mover is None else self._pages_of_node(node_id)
        result = super()._evict_device_leaf(node_id, tracker)
        if pages is not None:
            self.mover.left_hbm(pages)
        elif self._mover is not None:  # Nobody will ever back this node up.
            self._ended.pop(node_id, None)
            self.explain.gone(node_id)
        return result

    def leave_hbm(self, pages: Pages) -> None:
        """Evict from HBM those nodes of a path that hold nothing but ``pages``, stored below, as far as none is in use.

        SGLang's own walk over the leaves of HBM says what may go: whose node is locked or has children there stays.
        """
        if self.ranks.diverged:  # what is stored is no fact that all ranks have
            return
        table = self.mover.table
        stored = pages[table.in_dram(pages) | (table.slot[pages] >= 0)]
        node = None if not len(stored) else self.mover.tree.node_of(int(table.run[stored[-1]]))
        if node is None:
            return
        (path,) = self.tree_core.collect_path_info([node])
        wanted = set()
        for info in path:
            held = self._pages_of_node(info.node_id) if info.full_value_len is not None else None
            if held is not None and np.isin(held, stored).all():
                wanted.add(info.node_id)
        if not wanted:
            return
        tracker = dict.fromkeys(self.tree_components, 0)
        self.tree_core.evict_device_start(ComponentType.FULL, self.evictable_size() + 1)
        try:
            for _ in range(MOST_LEAVES):
                leaf, _ = self._evict_device_next_node(ComponentType.FULL, tracker)
                if leaf is None:
                    break
                if leaf in wanted:
                    self._evict_device_leaf(leaf, tracker)
                    wanted.remove(leaf)
                if not wanted:
                    break
        finally:
            self.tree_core.evict_device_end(ComponentType.FULL)

    def _write_again(self, node_id: int, pages: Pages, some: Flags) -> None:
        """Queue a backup of some pages of a node behind their old handles, with stock's fence and acknowledgement."""
        device = self.tree_core.get_component_device_value(node_id, ComponentType.FULL)
        rows = device.reshape(-1, self.page_size)[torch.from_numpy(np.flatnonzero(some))]
        self.cache_controller.write_queue.append(
            CacheOperation(self._pool.tokens_of(pages[some]), rows.reshape(-1), node_id)
        )
        lock = self.inc_lock_ref(node_id).to_dec_params()
        track_backup(self, node_id, lock, [node_id])

    # ---- the scheduler's tick -----------------------------------------------------------------------

    def check_hicache_events(self) -> None:
        """Once per scheduler step: reap transfers, commit I/O, make room, and let I/O threads run."""
        self._riding = self.ranks if isinstance(self.ranks, Agreement) and not self.ranks.left else None
        super().check_hicache_events()
        began = time.monotonic()
        idle = self._idle and not self._requests
        spare_s = self._pace.step(idle)
        self.waiting.step()
        self.mover.tick(spare_s)
        self.draining.step(spare_s)
        self._make_room()
        self._restore_some()
        self._staging.step()
        self.steering.step()
        before = time.monotonic()
        if self.control is not None:
            self.control.step(spare_s, idle)
        if idle:
            began += time.monotonic() - before  # That took nobody's time.
        self.ahead.step(self._idle and not self._restoring)
        if self.recording is not None:
            self.recording.step()
        self.monitor.step()
        self.ticks.add(time.monotonic() - began)
        self._yield_to_io()

    def _decided(self) -> int:
        """Return a number that follows from all that was decided about pages so far."""
        table, tree = self.mover.table, self.mover.tree
        return checksum(
            (table.epoch, table.free_handles, table.free_frames, table.held, *table.count.tolist(), len(tree.runs))
        )

    def _stand_down(self) -> None:
        """The ranks went different ways: nothing below HBM is served, read or written any more."""
        restoration, self._restoration = self._restoration, None
        if restoration is not None:
            restoration.abandon()
        mover = self.mover
        if mover.store is not None:
            mover.leave_nvme(mover.store, NothingMore(mover.parking.admission))
            mover.store.seal("the ranks of the server have decided differently")

    def _all_reduce_attn_groups(self, tensor: torch.Tensor, op: Any) -> None:
        """Reduce as stock does; what the ranks of the tier have to agree on rides along once per step."""
        ranks, self._riding = self._riding, None
        if ranks is None:
            super()._all_reduce_attn_groups(tensor, op)
            return
        both = torch.cat([tensor, torch.from_numpy(ranks.offer())])
        super()._all_reduce_attn_groups(both, op)
        tensor.copy_(both[: len(tensor)])
        ranks.learn(both[len(tensor) :].numpy())

    @property
    def _idle(self) -> bool:
        """Whether no request waits or runs."""
        return not self.waiting and bool(self.protected_size() == 0)

    def _make_room(self) -> None:
        """Where only forgetting helps, let SGLang's leaf-first eviction forget; prefix closure holds that way.

        Not while paths are coming back: the hottest came first, so that the tree takes them for the oldest.
        """
        if not self._restoring and (pages := self.mover.to_forget):
            self._evict_leaves(pages)

    def _evict_leaves(self, pages: int) -> None:
        """Have SGLang's tree forget some leaves below HBM, those that the policy minds least as far as that goes."""
        locks = [(node, self.inc_host_lock_ref(node).to_dec_params()) for node in spared(self.mover.tree, pages)]
        forgotten = self.evict_host(pages * self.page_size)
        for node, lock in locks:
            self.dec_host_lock_ref(node, lock)
        if forgotten == 0 and self.evict_host(pages * self.page_size) == 0:
            # All that is left is retained: nothing may wedge the pool.
            self.steering.give_way()

    def _yield_to_io(self) -> None:
        """Sleep a moment when the loop only spins for requests that wait for NVMe."""
        now = time.monotonic()
        if now - self._last_tick < SPIN_S and self.waiting.blocked:
            self.mover.io_done.wait(SPIN_S)
            self.mover.io_done.clear()
        self._last_tick = time.monotonic()

    # ---- whole-cache operations ---------------------------------------------------------------------

    def reset(self) -> None:
        """Forget everything on every tier; I/O in flight keeps its frames and slots until it ends."""
        if self._mover is not None:
            self._end_restoration()
            self.waiting.clear()
            self._requests.clear()
            self._ended.clear()
            self.explain.clear()
            self.ahead.clear()
            self.steering.clear()
            if self.recording is not None:
                self.recording.forget()
            for pages in self._loads.values():
                self.mover.release(pages)
            self._loads.clear()
            self._staged.clear()
            self._paths.clear()
        super().reset()

    def release_host_resources(self) -> None:
        """Graceful stop: store what is not stored yet, end all I/O, then let SGLang unregister the buffers."""
        if self._mover is not None:
            if self.control is not None:
                self.control.close()
            if self.recording is not None:
                self.recording.close()
            if self._restoration is not None:
                self._restoration.abandon()
            # What is over here; the other ranks may be gone already.
            self.writing_check(finish_count=ready(self.cache_controller.ack_write_queue))
            self.ranks.leave()
            self._mover.close(CLOSE_TIMEOUT_S)
            self.monitor.close()
        super().release_host_resources()

    def seal_store(self, reason: str) -> None:
        """Keep nothing for a restart any more: what is stored from now on belongs to weights without a name."""
        self._end_restoration()
        if self._mover is not None and self._mover.store is not None:
            self._mover.store.seal(reason)

    def _end_restoration(self) -> None:
        if self._restoration is not None:
            self._restoration.cancel()

    def attach_storage_backend(self, *args: Any, **kwargs: Any) -> tuple[bool, str]:
        """Refuse: frames may not be addressed by another storage backend."""
        return False, "radixtier owns the storage tier of this server; start it without --enable-radix-tier for that."

    def detach_storage_backend(self) -> tuple[bool, str]:
        """Refuse: there is no SGLang storage backend to detach."""
        return False, "radixtier owns the storage tier of this server; use /flush_cache to empty it."

    def clear_storage_backend(self) -> bool:
        """Refuse: the tiers are emptied together."""
        logger.warning("radixtier: NVMe is emptied together with the other tiers, by /flush_cache")
        return False
