"""The names of SGLang 0.5.23 that we lean on although they are not part of any interface.

Owns nothing. Each function says why there is no other way; ``tests/config/test_private.py`` pins every name and says
what changed when one moves. Importing this imports nothing of SGLang.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def is_resolved(server_args: Any) -> bool:
    """Whether arguments were resolved before (``ServerArgs._resolution_finished``): hooks must act once only."""
    return bool(getattr(server_args, "_resolution_finished", False))


def who_declared(server_args: Any, field: str) -> str | None:
    """Name of the resolution step that set ``field`` last (``ServerArgs._resolved_overrides``), for a log line."""
    sources = [source for source, fields in server_args._resolved_overrides if field in fields]
    return sources[-1].strip("_") if sources else None


def quantization_of(model_config: Any) -> dict[str, Any]:
    """Quantization section of a checkpoint (``ModelConfig._parse_quant_hf_config``): it may say FP8 KV cache."""
    return model_config._parse_quant_hf_config() or {}


def track_backup(cache: Any, node_id: int, lock: Any, nodes: Sequence[int]) -> None:
    """Have a queued backup acknowledged like any other (``UnifiedRadixCache._track_write_through_node``).

    A node whose bytes were lost still counts as backed up, so no public call backs it up again.
    """
    cache._track_write_through_node(node_id, lock, publish_node_ids=list(nodes))


def apply_actions(cache: Any, actions: list[Any]) -> None:
    """Do what an insertion into the tree asks for (``UnifiedRadixCache._apply_cache_actions``).

    ``insert_host`` is public, what has to follow it is not.
    """
    cache._apply_cache_actions(actions)


def no_retry(req: Any) -> None:
    """Tell the scheduler that a shorter match is final (``Req.storage_prefetch_last_match_len``).

    It compares the length at arrival with the one at admission and asks for a promotion again when it shrank; after a
    deadline or a lost page that could bring nothing.
    """
    req.storage_prefetch_last_match_len = None


def take_commands(scheduler: Any, kind: type, handle: Callable[[Any], None]) -> None:
    """Have a scheduler hand over what comes among its requests and is of a kind (``Scheduler._request_dispatcher``).

    It has a dispatcher by type, to which nothing public adds.
    """
    from sglang.utils import TypeBasedDispatcher

    scheduler._request_dispatcher += TypeBasedDispatcher([(kind, handle)])
