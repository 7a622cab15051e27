"""Every name of SGLang that radixtier uses, by module: the contract that another release has to keep.

Owns the tables and nothing else; :mod:`radixtier.seams.contract` holds them against an SGLang, and a test holds them
against radixtier's own code. An entry is ``name`` or ``Class.member``; ``*.member`` is a member of any class in any module
of a package, ``.member`` an attribute that the module assigns. Pure; any thread.
"""

from __future__ import annotations

OVERRIDDEN: dict[str, str] = {
    "sglang.srt.mem_cache.unified_radix_cache": """
        UnifiedRadixCache.__init__(self, params)
        UnifiedRadixCache._evict_device_leaf(self, node_id, tracker)
        UnifiedRadixCache.attach_storage_backend(self, storage_backend, storage_backend_extra_config_json=,\
 served_model_name=, hicache_storage_prefetch_policy=, hicache_write_policy=)
        UnifiedRadixCache.check_hicache_events(self)
        UnifiedRadixCache.check_prefetch_progress(self, request)
        UnifiedRadixCache.checkpoint_into_tree(self, req, *, up_to, **kwargs)
        UnifiedRadixCache.clear_storage_backend(self)
        UnifiedRadixCache.detach_storage_backend(self)
        UnifiedRadixCache.finish_storage_prefetch_admission(self, request, fulfilled_tokens, reason)
        UnifiedRadixCache.init_hicache(self, server_args, params)
        UnifiedRadixCache.insert(self, params)
        UnifiedRadixCache.load_back(self, node_id, mem_quota=, req=)
        UnifiedRadixCache.loading_check(self, finish_count=)
        UnifiedRadixCache.match_prefix(self, params)
        UnifiedRadixCache.on_release(self, req, *, checkpointed)
        UnifiedRadixCache.prefetch_from_storage(self, request, last_host_node_id, new_input_tokens, last_hash=,\
 prefix_keys=, matched_prefix_tokens=, extra_key=, cache_salt=, storage_hit_end=)
        UnifiedRadixCache.ready_to_load_host_cache(self)
        UnifiedRadixCache.release_aborted_request(self, request)
        UnifiedRadixCache.release_host_resources(self)
        UnifiedRadixCache.reset(self)
        UnifiedRadixCache.writing_check(self, write_back=, finish_count=)
    """,
    "sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler": """
        StackStrategy.build(self, *, cache, kvcache, params, server_args, load_cache_event, storage_backend=,\
 storage_backend_extra_config=, prefetch_threshold=, model_name=, enable_storage_metrics=)
        StackStrategy.matches(self, kvcache, components)
    """,
}
"""Methods that radixtier overrides: SGLang calls ours with its own arguments, so any change of a signature counts."""

CALLED: dict[str, str] = {}
"""Functions and methods that are called or hooked, with the parameters that are given: more with defaults may be there."""

READ: dict[str, str] = {}
"""Modules, classes, constants, attributes: they have to be there."""
