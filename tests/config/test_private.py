"""Pins the private names of SGLang that radixtier/sglang/private.py leans on."""

from __future__ import annotations

import inspect

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
