"""The cache: SGLang's unified radix cache over HBM, DRAM and NVMe.

Owns one record per waiting request and the leases of running loads. Which node exists, what is locked and what is
in HBM stays with SGLang's tree core; where the bytes below HBM are is the mover's. Scheduler thread only.

A request goes through here like this:

1. arrival: :meth:`match_prefix` counts HBM, DRAM and NVMe, :meth:`prefetch_from_storage` starts the promotion;
2. admission: :meth:`check_prefetch_progress` lets it pass when its pages are up or its deadline is over; the match
   that follows is cut in front of the first page that is not in DRAM, so that a load can deliver all it promises;
3. load: :meth:`load_back` leases the frames until the copy is acknowledged;
4. end: :meth:`finish_storage_prefetch_admission` or :meth:`release_aborted_request` drops the record.
"""

from __future__ import annotations

import logging
import os
import time
from array import array
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from sglang.srt.managers.cache_controller import CacheOperation
from sglang.srt.mem_cache.base_prefix_cache import InsertParams, InsertResult, MatchPrefixParams, MatchResult
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from radixtier.identity import DIGEST_BYTES, Space, Stretch, namespace_seed
from radixtier.mover import Mover, Promotion
from radixtier.policy.wait import PrefillRate
from radixtier.sglang.host_pool import RadixTierMHAHostPool
from radixtier.sglang.private import no_retry, track_backup
from radixtier.sglang.restore import IDLE_STEP_S, STEP_S, Restoration
from radixtier.sglang.stack import STRATEGY, Tiers
from radixtier.tree.residency import NONE, Pages, State
from radixtier.tree.writequeue import Piece

logger = logging.getLogger(__name__)

SPIN_S = 0.0005
"""How long an otherwise idle scheduler loop sleeps while requests wait for NVMe, so that I/O threads get the CPU."""

CLOSE_TIMEOUT_S = 10.0
"""Longest a graceful stop writes what is not stored yet; SGLang kills a scheduler after 15 s."""

PAGES_REMEMBERED = 1 << 20
"""Pages, over all remembered paths, after which they are forgotten (8 bytes each)."""

BATCHES_REMEMBERED = 4096
"""Requests whose first insert may be outstanding; more than that only after errors."""

EVICT_SHARE = 64
"""SGLang's leaf eviction scans all leaves, so at least 1/64 of the handles goes at once."""


@dataclass(frozen=True, slots=True)
class Path:
    """The part of a matched path that is not in HBM, root-side first, as of one epoch of the residency table."""

    epoch: int
    pages: Pages
    known: int
    """Leading pages that exist on some tier."""
    loadable: int
    """Leading pages that are in DRAM."""


@dataclass(slots=True)
class Waiting:
    """A request between arrival and admission."""

    promotion: Promotion | None = None
    node: int = -1
    """Where the path of the promotion ends in SGLang's tree."""
    cold: Pages = field(default_factory=lambda: np.empty(0, np.int64))
    """Every page that was on NVMe only when the request asked for it."""
    admissible: bool = False
    """The scheduler may admit it: from now on only what is in DRAM counts."""
    expired: bool = False
    """Its deadline passed: it takes what has arrived and asks for no more."""
    blocked_at: float | None = None
    """When the scheduler first wanted to admit it and could not, seconds."""

    def covers(self, result: MatchResult, page_size: int) -> bool:
        """Whether all that a match found below HBM is held in DRAM for this request."""
        held = self.promotion
        if held is None or not held.whole or result.best_match_node != self.node:
            return False
        return bool(result.host_hit_length <= len(held.pages) * page_size)


@dataclass(slots=True)
class Batch:
    """A prefill batch on its way: whose first insert is still to come, and what the others brought."""

    requests: set[Any] = field(default_factory=set)
    started: float = 0.0
    tokens: int = 0


class RadixTierCache(UnifiedRadixCache):
    """``UnifiedRadixCache`` whose host tier is logical pages over DRAM and NVMe."""

    _mover: Mover | None = None
    _restoration: Restoration | None = None

    def __init__(self, params: Any, tiers: Tiers) -> None:
        self._tiers = tiers
        self.tells_events = bool(params.enable_kv_cache_events)
        super().__init__(params)

    def init_hicache(self, server_args: Any, params: Any) -> None:
        """Attach pools and controller as stock does, then the mover that our pool brought along."""
        with STRATEGY.building(self._tiers):
            super().init_hicache(server_args, params)
        pool = self.host_pool_group.anchor_entry.host_pool
        if not isinstance(pool, RadixTierMHAHostPool):
            raise ValueError(f"radixtier: no tier for host pools of type {type(pool).__name__}; start without it")
        self._pool = pool
        self._domain = pool.shared_allocation_domain
        self._prefill = PrefillRate()
        self._next_batch = Batch()
        self._batches: dict[Any, Batch] = {}
        self._last_tick = 0.0
        self._waiting: dict[Any, Waiting] = {}
        self._loads: dict[int, Pages] = {}
        self._paths: dict[tuple[int, int, int], Path] = {}
        self._remembered = 0
        self._mover = pool.mover
        restorer = None if self.mover.store is None else self.mover.store.restorer()
        if restorer is not None:
            self._restoration = Restoration(self, super().match_prefix, restorer)
            self._restore_some(first=True)

    @property
    def mover(self) -> Mover:
        """The mover, once :meth:`init_hicache` ran."""
        assert self._mover is not None
        return self._mover

    # ---- match --------------------------------------------------------------------------------------

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        """Match over all tiers, cut in front of the first page that cannot be delivered."""
        result = super().match_prefix(params)
        if result.host_hit_length == 0:
            return result
        waiting = None if params.req is None else self._waiting.get(params.req.cache_request_handle)
        admissible = waiting if waiting is not None and waiting.admissible else None
        if not self.mover.table.count[State.LOST] and (
            admissible is None or admissible.covers(result, self.page_size)
        ):
            return result
        path = self._path(result)
        deliverable = path.known if admissible is None else path.loadable
        if deliverable == len(path.pages):
            return result
        if waiting is not None and (waiting.expired or deliverable == path.known):
            no_retry(params.req)
        length = result.device_prefix_len + deliverable * self.page_size
        return super().match_prefix(replace(params, key=params.key[:length]))

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
        table = self.mover.table
        transfer, _ = self.tree_core.build_load_back_spec(node)
        pages = self._pool.pages_of(transfer.host_indices)
        in_dram = table.in_dram(pages)
        return Path(table.epoch, pages, _leading(in_dram | table.is_cold(pages)), _leading(in_dram))

    # ---- arrival and admission ----------------------------------------------------------------------

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
        waiting = self._waiting.get(request)
        node = last_host_node_id
        if waiting is None:
            path = self._read_path(node)
        elif waiting.expired:
            return
        else:
            tokens = array("q", matched_prefix_tokens or ()) + array("q", new_input_tokens)
            key = RadixKey(tokens, extra_key, self.tree_core.is_eagle, cache_salt=cache_salt)
            result = super().match_prefix(MatchPrefixParams(key=key.page_aligned(self.page_size)))
            node, path = result.best_match_node, self._path(result)
        if path.known == 0:
            return
        waiting = self._waiting.setdefault(request, Waiting())
        if waiting.promotion is not None:
            self.mover.drop(waiting.promotion)
        waiting.promotion = self.mover.promote(path.pages[: path.known])
        waiting.cold = np.union1d(waiting.cold, waiting.promotion.cold)
        waiting.node = node
        waiting.admissible = False

    def check_prefetch_progress(self, request: Any) -> bool:
        """Whether the request may be admitted: its pages are up, or it waited as long as recomputing would take."""
        waiting = self._waiting.setdefault(request, Waiting())
        if waiting.promotion is None or waiting.admissible:
            waiting.admissible = True
            return True
        if not waiting.promotion.ready(self.mover.table):
            now = time.monotonic()
            waiting.blocked_at = waiting.blocked_at or now
            if now - waiting.blocked_at < self._prefill.deadline(len(waiting.cold) * self.page_size):
                return False
            # What arrives until there is room for the request in HBM is taken along.
            waiting.expired = True
        waiting.admissible = True
        return True

    def finish_storage_prefetch_admission(self, request: Any, fulfilled_tokens: int, reason: str | None) -> None:
        """The request was admitted: its load, if any, holds its own leases now."""
        super().finish_storage_prefetch_admission(request, fulfilled_tokens, reason)
        self._next_batch.requests.add(request)
        self._forget(request)

    def release_aborted_request(self, request: Any) -> None:
        """The request is gone: its promotion is cancelled and its pages are released."""
        super().release_aborted_request(request)
        if self._mover is not None:
            self._forget(request)

    def _forget(self, request: Any) -> None:
        waiting = self._waiting.pop(request, None)
        if waiting is not None and waiting.promotion is not None:
            self.mover.drop(waiting.promotion)

    # ---- prefill rate -------------------------------------------------------------------------------

    def ready_to_load_host_cache(self) -> int:
        """The requests admitted since the last call start their prefill as one batch."""
        batch, self._next_batch = self._next_batch, Batch()
        batch.started = time.monotonic()
        if len(self._batches) > BATCHES_REMEMBERED:
            self._batches.clear()
        self._batches.update(dict.fromkeys(batch.requests, batch))
        return super().ready_to_load_host_cache()

    def checkpoint_into_tree(self, req: Any, *, up_to: int, **kwargs: Any) -> None:
        """Insert as stock does; the first insert of a batch's last request tells how long its prefill took."""
        batch = self._batches.pop(req.cache_request_handle, None) if self._mover is not None else None
        if batch is not None:
            batch.requests.discard(req.cache_request_handle)
            batch.tokens += up_to - req.kv.cache_protected_len
            if not batch.requests:
                self._prefill.observe(batch.tokens, time.monotonic() - batch.started)
        super().checkpoint_into_tree(req, up_to=up_to, **kwargs)

    # ---- load ---------------------------------------------------------------------------------------

    def load_back(self, node_id: int, mem_quota: int | None = None, req: Any = None) -> bool:
        """Load a path from DRAM to HBM, all of it or nothing; frames are leased until the copy is acknowledged."""
        path = self._read_path(node_id)
        if path.loadable < len(path.pages):
            return False
        self.mover.acquire(path.pages)
        if not super().load_back(node_id, mem_quota, req=req):
            self.mover.release(path.pages)
            return False
        self._loads[node_id] = path.pages
        if len(path.pages):
            self.mover.tree.use_page(int(path.pages[-1]))
        waiting = None if req is None else self._waiting.get(req.cache_request_handle)
        if waiting is not None:
            # For ``cached_tokens_details``: of what is loaded, what was on NVMe only when the request came.
            req.storage_hit_length = int(np.isin(path.pages, waiting.cold).sum()) * self.page_size
        return True

    def loading_check(self, finish_count: int | None = None) -> None:
        """Reap acknowledged loads and release their frames."""
        running = list(self.cache_controller.ack_load_queue)
        super().loading_check(finish_count=finish_count)
        for ack in running[: len(running) - len(self.cache_controller.ack_load_queue)]:
            self._domain.finish(ack.finish_event)
            for node_id in ack.node_ids:
                pages = self._loads.pop(node_id, None)
                if pages is not None:
                    self.mover.release(pages)

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
            for node_id in fragments:
                self._learn(node_id)

    def _fragments(self, ack: Any) -> list[int]:
        """Nodes that an acknowledgement covers, ancestors first (a node may have been split since)."""
        ongoing = (self.ongoing_write_through.get(ack_id) for ack_id in ack.node_ids)
        return [node_id for write in ongoing if write is not None for node_id in write.publish_node_ids]

    def _learn(self, node_id: int) -> None:
        """Add a backed-up node to the TierTree and queue what is not on NVMe yet."""
        spec = self.tree_core.build_storage_backup_spec(node_id, False)
        if spec is None:
            return
        pages = self._pool.pages_of(spec.host_value)
        table, tree = self.mover.table, self.mover.tree
        tokens = np.frombuffer(spec.token_ids, np.int64)
        space, parent, front = self._in_front_of(node_id)
        if (table.run[pages] == NONE).all():
            # Without a backup of the page in front its key is not known; a random one is at least nobody else's.
            stretch = Stretch.chained(space, front or os.urandom(DIGEST_BYTES), tokens, self.page_size)
            tree.add(pages, parent, stretch.keys)
        else:
            tree.use_page(int(pages[-1]))
            stretch = Stretch(
                space, front or b"", table.key[pages].view(np.uint8), tokens.astype(np.int32).reshape(len(pages), -1)
            )
        dirty = Piece(pages, stretch if front else None).where(table.state[pages] == State.DIRTY)
        for piece in dirty:
            self.mover.write_behind(piece)

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
            spec = self.tree_core.build_storage_backup_spec(info.node_id, False) if most > 0 else None
            if spec is None:
                break
            pages = self._pool.pages_of(spec.host_value)[-most:]
            found.insert(0, pages)
            most -= len(pages)
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def tokens_of(self, pages: Pages) -> torch.Tensor:
        """Host indices of whole pages, int64 on the CPU."""
        return self._pool.tokens_of(pages)

    def _restore_some(self, first: bool = False) -> None:
        restoration = self._restoration
        if restoration is None:
            return
        idle = not self._waiting and self.protected_size() == 0
        try:
            if first:
                restoration.first()
            else:
                # Nothing is forgotten meanwhile, so that whoever needs a slot waits for the end of it.
                restoration.step(IDLE_STEP_S if idle or self.mover.slots_wanted else STEP_S)
        except Exception:  # a miss is legal, the end of the scheduler is not
            logger.exception("radixtier: the rest of what is on NVMe cannot be brought back")
            restoration.cancel()
        if restoration.over:
            self._restoration = None

    # ---- refill -------------------------------------------------------------------------------------

    def insert(self, params: InsertParams) -> InsertResult:
        """Insert as stock does; pages of the path whose bytes were lost are filled again from HBM."""
        result = super().insert(params)
        if self._mover is not None and self._mover.table.count[State.LOST] and result.last_device_node is not None:
            self._refill(result.last_device_node)
        return result

    def _refill(self, end: int) -> None:
        (path,) = self.tree_core.collect_path_info([end])
        pending = {node for write in self.ongoing_write_through.values() for node in write.publish_node_ids}
        pending |= self.ongoing_write_through.keys()
        for info in path:
            if info.full_value_len is None or info.node_id in pending:
                continue
            spec = self.tree_core.build_storage_backup_spec(info.node_id, False)
            if spec is None:
                continue
            pages = self._pool.pages_of(spec.host_value)
            lost = self.mover.table.state[pages] == State.LOST
            if lost.any() and self.mover.refill(pages[lost]):
                self._write_again(info.node_id, pages, lost)

    def _write_again(self, node_id: int, pages: Pages, lost: np.ndarray[Any, Any]) -> None:
        """Queue a backup of some pages of a node behind their old handles, with stock's fence and acknowledgement."""
        device = self.tree_core.get_component_device_value(node_id, ComponentType.FULL)
        rows = device.reshape(-1, self.page_size)[torch.from_numpy(np.flatnonzero(lost))]
        self.cache_controller.write_queue.append(
            CacheOperation(self._pool.tokens_of(pages[lost]), rows.reshape(-1), node_id)
        )
        lock = self.inc_lock_ref(node_id).to_dec_params()
        track_backup(self, node_id, lock, [node_id])

    # ---- the scheduler's tick -----------------------------------------------------------------------

    def check_hicache_events(self) -> None:
        """Once per scheduler step: reap transfers, commit I/O, make room, and let I/O threads run."""
        super().check_hicache_events()
        self.mover.tick()
        self._make_room()
        self._restore_some()
        self._yield_to_io()

    def _make_room(self) -> None:
        """Where only forgetting helps, let SGLang's leaf-first eviction forget; prefix closure holds that way.

        Not while paths are coming back: the hottest came first, so that the tree takes them for the oldest.
        """
        mover = self.mover
        if mover.slots_wanted and self._restoration is None:
            self.evict_host(max(mover.slots_wanted, mover.table.n_handles // EVICT_SHARE) * self.page_size)

    def _yield_to_io(self) -> None:
        """Sleep a moment when the loop only spins for requests that wait for NVMe."""
        now = time.monotonic()
        if now - self._last_tick < SPIN_S and any(w.blocked_at and not w.admissible for w in self._waiting.values()):
            self.mover.io_done.wait(SPIN_S)
            self.mover.io_done.clear()
        self._last_tick = time.monotonic()

    # ---- whole-cache operations ---------------------------------------------------------------------

    def reset(self) -> None:
        """Forget everything on every tier; I/O in flight keeps its frames and slots until it ends."""
        if self._mover is not None:
            self._end_restoration()
            for request in list(self._waiting):
                self._forget(request)
            for pages in self._loads.values():
                self.mover.release(pages)
            self._loads.clear()
            self._paths.clear()
        super().reset()

    def release_host_resources(self) -> None:
        """Graceful stop: store what is not stored yet, end all I/O, then let SGLang unregister the buffers."""
        if self._mover is not None:
            if self._restoration is not None:
                self._restoration.abandon()
            self.writing_check()
            self._mover.close(CLOSE_TIMEOUT_S)
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


def _leading(flags: np.ndarray[Any, Any]) -> int:
    """Number of leading true values."""
    first = int(flags.argmin()) if len(flags) else 0
    return first if len(flags) and not flags[first] else len(flags)
