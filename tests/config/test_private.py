"""Pins the private names of SGLang that radixtier/sglang/private.py leans on."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("sglang")


def test_tracking_of_backups() -> None:
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    names = list(inspect.signature(UnifiedRadixCache._track_write_through_node).parameters)
    assert names == ["self", "node_id", "lock_params", "publish_node_ids"], f"track_backup() must follow: {names}"


def test_scheduler_compares_match_lengths_through_the_request() -> None:
    from sglang.srt.managers import schedule_batch, scheduler

    text = inspect.getsource(scheduler.Scheduler._prefetch_after_device_hit_loss)
    assert "storage_prefetch_last_match_len" in text, "no_retry() no longer reaches the scheduler"
    assert "storage_prefetch_last_match_len" in inspect.getsource(schedule_batch.Req.__init__)


def test_resolution_bookkeeping() -> None:
    from sglang.srt.server_args import ServerArgs

    args = ServerArgs(model_path="dummy", device="cpu")
    from radixtier.sglang.private import is_resolved, who_declared

    assert not is_resolved(args)
    args.resolve_once()
    assert is_resolved(args), "ServerArgs._resolution_finished moved"
    assert isinstance(args._resolved_overrides, list | tuple)
    assert who_declared(args, "no_such_field") is None


def test_quantization_section() -> None:
    from sglang.srt.configs.model_config import ModelConfig

    assert list(inspect.signature(ModelConfig._parse_quant_hf_config).parameters) == ["self"]


def test_what_the_kv_depends_on_beside_the_weights_is_still_called_so() -> None:
    """Fields of ServerArgs that go into the identity of a store; one that is renamed would silently be left out."""
    from sglang.srt.server_args import ServerArgs

    from radixtier.sglang.identity import _WHAT_ELSE

    arguments = ServerArgs(model_path="dummy")
    others = ("model_path", "revision", "download_dir", "lora_paths", "quantization_param_path")
    for name in (*_WHAT_ELSE, *others):
        assert hasattr(arguments, name), name


def test_every_way_to_update_weights_is_hooked() -> None:
    """Tensors and distributed updates need ``begin_weight_update``; another way would leave old pages on record."""
    from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager as Updater

    ways = {name for name in vars(Updater) if name.startswith("update_weights_from_")}
    assert ways == {f"update_weights_from_{what}" for what in ("disk", "distributed", "tensor", "ipc")}
    for name in ("update_weights_from_distributed", "update_weights_from_tensor"):
        assert "self._session is None" in inspect.getsource(getattr(Updater, name)), name
    assert hasattr(Updater, "begin_weight_update")


def test_actions_of_an_insertion() -> None:
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    assert list(inspect.signature(UnifiedRadixCache._apply_cache_actions).parameters) == ["self", "actions"]


def test_what_says_that_hbm_lost_a_node() -> None:
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache as Cache

    assert list(inspect.signature(Cache._evict_device_leaf).parameters) == ["self", "node_id", "tracker"]
    text = inspect.getsource(Cache)
    asks = text.count("tree_core.evict_device_leaf(")
    assert asks == 1, f"{asks} places evict from HBM; RadixTierCache hears of one"


def test_what_a_request_tells_of_its_client() -> None:
    from sglang.srt.managers.schedule_batch import Req

    assert {"kv_hints", "session_id", "rid"} <= set(inspect.signature(Req.__init__).parameters)
    text = inspect.getsource(Req.__init__)
    for name in ("kv_hints", "session_id", "rid", "cache_request_handle", "origin_input_ids"):
        assert f"self.{name}" in text, name


def test_kv_hints_envelope() -> None:
    from sglang.srt.managers.kv_hints import KvHintAction, KvHintsEnvelope

    assert "actions" in KvHintsEnvelope.__struct_fields__
    assert KvHintAction.__struct_fields__ == ("action_id", "action_type", "action_version", "payload")


def test_acknowledgements_tell_bytes_and_time() -> None:
    from sglang.srt.managers.cache_controller import HiCacheAck

    assert {"start_event", "finish_event", "node_ids", "timing_enabled", "num_bytes"} <= set(HiCacheAck._fields)


def test_host_locks() -> None:
    from sglang.srt.mem_cache.base_prefix_cache import IncLockRefResult
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache as Cache

    assert list(inspect.signature(Cache.inc_host_lock_ref).parameters) == ["self", "node_id"]
    assert list(inspect.signature(Cache.dec_host_lock_ref).parameters) == ["self", "node_id", "params"]
    assert callable(IncLockRefResult.to_dec_params)


def test_path_information() -> None:
    from sglang.srt.mem_cache.unified_cache.unified_tree_core_interface import TreePathNodeInfo

    assert {"node_id", "full_value_len"} <= set(TreePathNodeInfo.__struct_fields__)


def test_health_checks_have_a_name_of_their_own() -> None:
    from sglang.srt.constants import HEALTH_CHECK_RID_PREFIX

    assert isinstance(HEALTH_CHECK_RID_PREFIX, str) and HEALTH_CHECK_RID_PREFIX


# ---- several ranks ---------------------------------------------------------------------------------------


def test_a_step_begins_with_one_reduction_on_every_rank() -> None:
    """What the ranks of the tier agree on rides along with it, and has to be known before anything is acknowledged."""
    import torch
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    calls: list[Any] = []

    class Cache(UnifiedRadixCache):
        def _all_reduce_attn_groups(self, tensor: Any, op: Any) -> None:
            calls.append((op, tensor.dtype, tensor.device.type, tensor.dim()))

        def writing_check(self, write_back: bool = False, finish_count: int | None = None) -> None:
            calls.append(("written", finish_count))

        def loading_check(self, finish_count: int | None = None) -> None:
            calls.append(("loaded", finish_count))

    cache: Any = object.__new__(Cache)
    vars(cache).update(
        linker=None, work_list=[], pp_rank=0, pp_size=1, host_memory_mode="cache", buffer_pipeline=None,
        enable_storage_metrics=False, storage_metrics_collector=None,
        cache_controller=SimpleNamespace(ack_write_queue=[], ack_load_queue=[], start_writing=lambda: None),
        tree_core=SimpleNamespace(write_back_duplicate_reclaim_digest=7, enable_storage=False),
    )  # fmt: skip
    cache.check_hicache_events()
    reduced = (torch.distributed.ReduceOp.MIN, torch.int64, "cpu", 1)
    assert calls == [reduced, ("written", 0), ("loaded", 0)], (
        "the step of stock has another order or number of reductions: RadixTierCache.check_hicache_events, "
        "_all_reduce_attn_groups and _riding must follow, so that each step has one, the same on every rank"
    )


def test_the_groups_that_reduce() -> None:
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache as Cache

    names = list(inspect.signature(Cache._all_reduce_attn_groups).parameters)
    assert names == ["self", "tensor", "op"], f"RadixTierCache._all_reduce_attn_groups must follow: {names}"


@pytest.mark.parametrize(("rank", "expected"), [(0, []), (1, None)])
def test_only_the_first_rank_has_a_list_of_requests(
    rank: int, expected: list[Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt.managers.scheduler_components import request_receiver

    parallel = SimpleNamespace(pp_rank=0, attn_tp_rank=rank, attn_cp_rank=0)
    monkeypatch.setattr(request_receiver, "get_parallel", lambda: parallel)
    receiver = SimpleNamespace(recv_limit_reached=lambda n: True)
    found = request_receiver.SchedulerRequestReceiver._pull_raw_reqs(receiver)
    assert found == expected, "_after_pull() in factory.py adds commands where there is a list"


def test_what_was_pulled_goes_to_all_ranks() -> None:
    from sglang.srt.managers.scheduler_components.request_receiver import SchedulerRequestReceiver

    text = inspect.getsource(SchedulerRequestReceiver.recv_requests)
    pulled = text.find("recv_reqs = self._pull_raw_reqs()")
    sent = text.find("self._broadcast_reqs_across_ranks(recv_reqs")
    assert 0 <= pulled < sent, "commands that _after_pull() adds no longer reach all ranks in one step"


def test_a_command_among_requests_reaches_its_handler() -> None:
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.utils import TypeBasedDispatcher

    from radixtier.sglang.private import take_commands

    assert "self._request_dispatcher = TypeBasedDispatcher(" in inspect.getsource(Scheduler.init_request_dispatcher)
    assert "self.init_request_dispatcher()" in inspect.getsource(Scheduler.__init__), "it has to be there after that"
    text = inspect.getsource(Scheduler.process_input_requests)
    assert "self._request_dispatcher(recv_req)" in text, "take_commands() must follow what requests are given to now"
    assert "if output is not None" in text, "a handler that returns nothing would be answered"

    handled: list[Any] = []
    scheduler = SimpleNamespace(_request_dispatcher=TypeBasedDispatcher([(str, handled.append)]))
    take_commands(scheduler, bytes, lambda command: handled.append(len(command)))
    assert scheduler._request_dispatcher(b"abc") is None and scheduler._request_dispatcher("stock") is None
    assert handled == [3, "stock"], "TypeBasedDispatcher += does not add types any more: take_commands() must follow"
