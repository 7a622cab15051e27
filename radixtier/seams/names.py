"""Every name of SGLang that radixtier uses, by module: the contract that another release has to keep.

Owns the tables and nothing else; :mod:`radixtier.seams.contract` holds them against an SGLang, and a test holds them
against radixtier's own code. An entry is ``name`` or ``Class.member``, with its parameters where they matter (``=``
marks one with a default); ``*.member`` is a member of any class in the modules of a package, ``.member`` an attribute
that the module assigns, ``"text"`` a text that stands in it. Pure; any thread.
"""

from __future__ import annotations

OVERRIDDEN: dict[str, str] = {
    "sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler": """
        StackStrategy.build(self, *, cache, kvcache, params, server_args, load_cache_event, storage_backend=,\
 storage_backend_extra_config=, prefetch_threshold=, model_name=, enable_storage_metrics=)
        StackStrategy.matches(self, kvcache, components)
    """,
    "sglang.srt.mem_cache.pool_host.mha": """
        MHATokenToKVPoolHost.alloc(self, need_size)
        MHATokenToKVPoolHost.available_size(self)
        MHATokenToKVPoolHost.backup_from_device_all_layer_physical(self, device_pool, host_indices, device_indices,\
 io_backend)
        MHATokenToKVPoolHost.clear(self)
        MHATokenToKVPoolHost.free(self, indices)
        MHATokenToKVPoolHost.get_data_page(self, index, flat=)
        MHATokenToKVPoolHost.get_page_buffer_element_size(self, split_factor=)
        MHATokenToKVPoolHost.get_page_buffer_meta(self, indices)
        MHATokenToKVPoolHost.load_to_device_per_layer_physical(self, device_pool, host_indices, device_indices,\
 layer_id, io_backend, *, is_draft=)
        MHATokenToKVPoolHost.logical_size
        MHATokenToKVPoolHost.prepare_transfer_indices(self, host_indices, device_indices, io_backend)
        MHATokenToKVPoolHost.set_from_flat_data_page(self, index, data_page)
    """,
    "sglang.srt.mem_cache.pool_host.mla": """
        MLATokenToKVPoolHost.alloc(self, need_size)
        MLATokenToKVPoolHost.available_size(self)
        MLATokenToKVPoolHost.backup_from_device_all_layer_physical(self, device_pool, host_indices, device_indices,\
 io_backend)
        MLATokenToKVPoolHost.clear(self)
        MLATokenToKVPoolHost.free(self, indices)
        MLATokenToKVPoolHost.get_data_page(self, index, flat=)
        MLATokenToKVPoolHost.get_page_buffer_element_size(self, split_factor=)
        MLATokenToKVPoolHost.get_page_buffer_meta(self, indices)
        MLATokenToKVPoolHost.load_to_device_per_layer_physical(self, device_pool, host_indices, device_indices,\
 layer_id, io_backend, *, is_draft=)
        MLATokenToKVPoolHost.logical_size
        MLATokenToKVPoolHost.prepare_transfer_indices(self, host_indices, device_indices, io_backend)
        MLATokenToKVPoolHost.set_from_flat_data_page(self, index, data_page)
    """,
    "sglang.srt.mem_cache.unified_radix_cache": """
        UnifiedRadixCache._all_reduce_attn_groups(self, tensor, op)
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
}
"""Methods that radixtier overrides: SGLang calls ours with its own arguments, so any change of a signature counts."""

CALLED: dict[str, str] = {
    "sglang.srt.arg_groups.overrides": """
        declare_resolution(server_args, source, **fields)
        model_config_of(server_args)
        resolving_view(server_args)
    """,
    "sglang.srt.arg_groups.resolution_hooks": """
        register_resolution_hook(name)
    """,
    "sglang.srt.configs.hybrid_arch": """
        mambaish_config(model_config)
    """,
    "sglang.srt.configs.model_config": """
        ModelConfig._parse_quant_hf_config(self)
        ModelConfig.from_server_args(server_args)
        ModelConfig.get_num_kv_heads(self, tensor_parallel_size)
        ModelConfig.get_total_num_kv_heads(self)
        is_deepseek_dsa(config)
        is_minimax_sparse(config)
    """,
    "sglang.srt.layers.attention.qsa.config": """
        is_qwen_qsa(config)
    """,
    "sglang.srt.layers.attention.torch_native_backend": """
        TorchNativeAttnBackend._run_sdpa_forward_decode(self, query, output, k_cache, v_cache, req_to_token,\
 req_pool_indices, seq_lens, encoder_lens, scaling, enable_gqa, causal, is_cross_attn, sliding_window_size)
        TorchNativeAttnBackend._run_sdpa_forward_extend(self, query, output, k_cache, v_cache, req_to_token,\
 req_pool_indices, seq_lens, extend_prefix_lens, extend_seq_lens, encoder_lens, scaling, enable_gqa, causal,\
 is_cross_attn, sliding_window_size)
        TorchNativeAttnBackend.init_forward_metadata(self, forward_batch)
    """,
    "sglang.srt.managers.cache_controller": """
        CacheOperation.__init__(self, host_indices, device_indices, node_id)
    """,
    "sglang.srt.managers.schedule_batch": """
        Req.finished(self)
    """,
    "sglang.srt.managers.scheduler": """
        Scheduler.__init__(self, server_args, port_args)
    """,
    "sglang.srt.managers.scheduler_components.request_receiver": """
        SchedulerRequestReceiver._pull_raw_reqs(self)
    """,
    "sglang.srt.managers.scheduler_components.weight_updater": """
        SchedulerWeightUpdaterManager.begin_weight_update(self, recv_req)
        SchedulerWeightUpdaterManager.update_weights_from_disk(self, recv_req)
        SchedulerWeightUpdaterManager.update_weights_from_ipc(self, recv_req)
    """,
    "sglang.srt.mem_cache.allocator": """
        BaseTokenToKVPoolAllocator.available_size(self)
    """,
    "sglang.srt.mem_cache.base_prefix_cache": """
        IncLockRefResult.to_dec_params(self)
    """,
    "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller": """
        HybridCacheController.__init__(self, token_to_kv_pool_allocator, mem_pool_host, page_size, tp_group, *,\
 load_cache_event, attn_cp_group, attn_tp_group, pp_group, write_policy, io_backend, transfer_layer_id_max)
    """,
    "sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler": """
        build_pool_entry(*, name, host_pool, device_pool, layer_mapping, transfer_layer_id_max, is_anchor)
        register_stack_strategy(strategy)
    """,
    "sglang.srt.mem_cache.memory_pool": """
        MHATokenToKVPool.get_device_pool_infos(self)
        MLATokenToKVPool.get_device_pool_infos(self)
    """,
    "sglang.srt.mem_cache.pool_host.base": """
        HostKVCache.__init__(self, *, pin_memory, **arguments)
        host_memory_budget_scope(budget_bytes)
    """,
    "sglang.srt.mem_cache.pool_host.group": """
        HostPoolGroup.__init__(self, entries)
    """,
    "sglang.srt.mem_cache.pool_host.mha": """
        MHATokenToKVPoolHost.__init__(self, buffer_info, host_to_device_ratio, host_size, page_size, layout, *,\
 pin_memory, device_capacity_tokens, start_layer, end_layer, write_back_staging, host_token_capacity)
        MHATokenToKVPoolHost.backup_from_device_all_layer(self, device_pool, host_indices, device_indices, io_backend)
        MHATokenToKVPoolHost.load_to_device_per_layer(self, device_pool, host_indices, device_indices, layer_id,\
 io_backend, *, is_draft)
        get_mha_host_pool_cls(buffer_info)
    """,
    "sglang.srt.mem_cache.pool_host.mla": """
        MLATokenToKVPoolHost.__init__(self, buffer_info, host_to_device_ratio, host_size, page_size, layout, *,\
 pin_memory, device_capacity_tokens, start_layer, end_layer, target_layer_num, host_token_capacity)
        MLATokenToKVPoolHost.backup_from_device_all_layer(self, device_pool, host_indices, device_indices, io_backend)
        MLATokenToKVPoolHost.load_to_device_per_layer(self, device_pool, host_indices, device_indices, layer_id,\
 io_backend, *, is_draft)
    """,
    "sglang.srt.mem_cache.radix_cache": """
        RadixKey.__init__(self, token_ids, extra_key, is_bigram, *, cache_salt)
        RadixKey.page_aligned(self, page_size)
    """,
    "sglang.srt.mem_cache.registry": """
        create_unified_radix_cache(ctx, *, cache_class)
        get_radix_cache_factory(name)
        register_radix_cache_backend(name, factory)
    """,
    "sglang.srt.mem_cache.unified_cache.unified_tree_core_interface": """
        UnifiedTreeCoreInterface.build_load_back_spec(self, node_id)
        UnifiedTreeCoreInterface.build_storage_backup_spec(self, node_id, pass_prefix_keys)
        UnifiedTreeCoreInterface.collect_path_info(self, end_node_ids)
        UnifiedTreeCoreInterface.evict_device_end(self, component_type)
        UnifiedTreeCoreInterface.evict_device_start(self, component_type, request_cnt)
        UnifiedTreeCoreInterface.get_component_device_value(self, node_id, component_type)
        UnifiedTreeCoreInterface.insert_host(self, node_id, key, host_value, hash_value)
        UnifiedTreeCoreInterface.prefetch_anchor_info(self, node_id)
    """,
    "sglang.srt.mem_cache.unified_radix_cache": """
        UnifiedRadixCache.__init__(self, params)
        UnifiedRadixCache._apply_cache_actions(self, actions)
        UnifiedRadixCache._evict_device_next_node(self, component_type, tracker)
        UnifiedRadixCache._track_write_through_node(self, node_id, lock_params, *, publish_node_ids)
        UnifiedRadixCache.dec_host_lock_ref(self, node_id, params)
        UnifiedRadixCache.evict_host(self, num_tokens)
        UnifiedRadixCache.evictable_size(self)
        UnifiedRadixCache.flush_pending_backups(self)
        UnifiedRadixCache.inc_host_lock_ref(self, node_id)
        UnifiedRadixCache.inc_lock_ref(self, node_id)
        UnifiedRadixCache.protected_size(self)
    """,
    "sglang.srt.mem_cache.utils": """
        get_storage_hash_str(key, *, page_size)
    """,
    "sglang.srt.models.deepseek_common.attention_backend_handler": """
        AttentionBackendRegistry.register(cls, backend_name, handler_func)
    """,
    "sglang.srt.plugins.hook_registry": """
        HookRegistry.apply_hooks(cls)
        HookRegistry.register(cls, target, hook, hook_type)
    """,
    "sglang.srt.utils.rank_consensus_checker": """
        rank_consensus(func=, *, same_params=, same_results=, **kwargs)
    """,
    "sglang.srt.runtime_context": """
        get_memory()
        get_observability()
        get_parallel()
        get_schedule()
        get_serving()
        publish(server_args, *, role)
    """,
    "sglang.srt.server_args": """
        ServerArgs.add_cli_args(parser)
        ServerArgs.from_cli_args(cls, args)
        ServerArgs.resolve_once(self)
    """,
    "sglang.srt.utils.common": """
        get_device()
        get_device_memory_capacity(device)
    """,
    "sglang.utils": """
        TypeBasedDispatcher.__init__(self, mapping)
    """,
}
"""What is called, hooked or replaced, with the parameters that are given: it may have more, with defaults."""

READ: dict[str, str] = {
    "sglang.srt.arg_groups.arg_utils": """
        Arg
    """,
    "sglang.srt.arg_groups.fields": """
        *.api_key
        *.attn_cp_size
        *.attn_dp_size
        *.chunked_prefill_size
        *.context_length
        *.dcp_size
        *.decoupled_spec_role
        *.device
        *.disable_radix_cache
        *.disaggregation_decode_enable_offload_kvcache
        *.disaggregation_decode_host_receive_threshold
        *.disaggregation_decode_retraction_backup
        *.disaggregation_mode
        *.dllm_algorithm
        *.download_dir
        *.dp_size
        *.dtype
        *.dwdp_size
        *.elastic_ep_backend
        *.enable_flexkv
        *.enable_hierarchical_cache
        *.enable_hisparse
        *.enable_kv_cache_sharding
        *.enable_lmcache
        *.enable_pdmux
        *.enable_session_radix_cache
        *.enable_streaming_session
        *.enable_unified_cache_external_linker
        *.enable_unified_memory
        *.encoder_only
        *.hicache_host_memory_fraction
        *.hicache_host_memory_mode
        *.hicache_io_backend
        *.hicache_mem_layout
        *.hicache_ratio
        *.hicache_size
        *.hicache_storage_backend
        *.hicache_storage_backend_extra_config
        *.hicache_write_policy
        *.json_model_override_args
        *.kv_cache_dtype
        *.load_format
        *.lora_paths
        *.max_total_tokens
        *.model_path
        *.modelopt_quant
        *.moe_dp_size
        *.nnodes
        *.page_size
        *.pp_size
        *.quantization
        *.quantization_param_path
        *.quantize_and_serve
        *.radix_cache_backend
        *.revision
        *.rl_quant_profile
        *.speculative_algorithm
        *.tp_size
        *.uno_lora_path
        *.use_ray
    """,
    "sglang.srt.arg_groups.fields.memory": """
        Memory.hicache_io_backend
        Memory.hicache_mem_layout
        Memory.hicache_storage_prefetch_policy
        Memory.hicache_write_policy
    """,
    "sglang.srt.arg_groups.fields.observability": """
        Observability.enable_metrics
    """,
    "sglang.srt.arg_groups.fields.parallel": """
        Parallel.tp_rank
    """,
    "sglang.srt.arg_groups.fields.serving": """
        Serving.served_model_name
    """,
    "sglang.srt.arg_groups.pipeline": """
        ._resolution_finished
        ._resolved_overrides
    """,
    "sglang.srt.arg_groups.resolution_hooks": """
        "handle_cache_compatibility"
        "handle_gpu_memory_settings"
        "handle_hicache"
        "handle_hicache_ratio_default"
        "handle_mxfp8_kv_cache_compatibility"
    """,
    "sglang.srt.configs.model_config": """
        ModelConfig
        ModelConfig.attention_arch
        ModelConfig.dtype
        ModelConfig.has_asymmetric_kv
        ModelConfig.head_dim
        ModelConfig.hf_config
        ModelConfig.hf_text_config
        ModelConfig.is_encoder_decoder
        ModelConfig.is_hybrid_swa
        ModelConfig.kv_lora_rank
        ModelConfig.num_attention_layers
        ModelConfig.qk_rope_head_dim
        ModelConfig.v_head_dim
    """,
    "sglang.srt.constants": """
        HEALTH_CHECK_RID_PREFIX
    """,
    "sglang.srt.layers.attention.torch_native_backend": "",
    "sglang.srt.managers.cache_controller": """
        CacheOperation
        HiCacheAck.finish_event
        HiCacheAck.node_ids
        HiCacheAck.num_bytes
        HiCacheAck.start_event
        HiCacheAck.timing_enabled
    """,
    "sglang.srt.managers.kv_hints": """
        KvHintAction.action_id
        KvHintAction.action_type
        KvHintAction.action_version
        KvHintAction.payload
        KvHintsEnvelope.actions
    """,
    "sglang.srt.managers.schedule_batch": """
        Req.cache_request_handle
        Req.cache_salt
        Req.extra_key
        Req.full_untruncated_fill_ids
        Req.kv
        Req.kv_hints
        Req.last_node
        Req.origin_input_ids
        Req.output_ids
        Req.rid
        Req.session_id
        Req.storage_hit_length
        Req.storage_prefetch_last_match_len
    """,
    "sglang.srt.managers.scheduler": """
        Scheduler._request_dispatcher
        Scheduler.enable_hicache_storage
        Scheduler.tree_cache
    """,
    "sglang.srt.mem_cache.allocator": """
        BaseTokenToKVPoolAllocator.device
        BaseTokenToKVPoolAllocator.size
    """,
    "sglang.srt.mem_cache.base_prefix_cache": """
        InsertParams
        InsertResult
        InsertResult.host_insert_dropped
        InsertResult.prefix_len
        MatchPrefixParams
        MatchPrefixParams.key
        MatchPrefixParams.req
        MatchResult
        MatchResult.best_match_node
        MatchResult.cache_actions
        MatchResult.device_prefix_len
        MatchResult.host_hit_length
        MatchResult.last_device_node
    """,
    "sglang.srt.mem_cache.cache_init_params": """
        CacheInitParams.attn_cp_cache_group
        CacheInitParams.attn_tp_cache_group
        CacheInitParams.enable_kv_cache_events
        CacheInitParams.page_size
        CacheInitParams.pp_cache_group
        CacheInitParams.token_to_kv_pool_allocator
        CacheInitParams.tp_cache_group
    """,
    "sglang.srt.mem_cache.device_pool_info": """
        DevicePoolInfo.buffer_info
        KVBufferLayout
        KVBuffers.layout
        MHABufferInfo.buffers
        MHABufferInfo.device
        MHABufferInfo.dtype
        MHABufferInfo.head_dim
        MHABufferInfo.head_num
        MHABufferInfo.scales
        MHABufferInfo.v_head_dim
        MLABufferInfo.device
    """,
    "sglang.srt.mem_cache.hicache_storage": """
        PoolName
    """,
    "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller": """
        HybridCacheController
        HybridCacheController.ack_load_queue
        HybridCacheController.ack_write_queue
        HybridCacheController.write_queue
    """,
    "sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler": """
        StackBuildResult
        StackStrategy
    """,
    "sglang.srt.mem_cache.memory_pool": """
        MHATokenToKVPool
        MHATokenToKVPool.dtype
        MHATokenToKVPool.end_layer
        MHATokenToKVPool.hicache_write_back_staging
        MHATokenToKVPool.layer_num
        MHATokenToKVPool.page_size
        MHATokenToKVPool.size
        MHATokenToKVPool.start_layer
        MLATokenToKVPool
        MLATokenToKVPool.dtype
        MLATokenToKVPool.end_layer
        MLATokenToKVPool.kv_lora_rank
        MLATokenToKVPool.layer_num
        MLATokenToKVPool.page_size
        MLATokenToKVPool.qk_rope_head_dim
        MLATokenToKVPool.size
        MLATokenToKVPool.start_layer
    """,
    "sglang.srt.mem_cache.pool_host.base": """
        HICACHE_HOST_MEMORY_RESERVE_BYTES
        HostKVCache
    """,
    "sglang.srt.mem_cache.pool_host.group": """
        HostPoolGroup
        HostPoolGroup.anchor_entry
    """,
    "sglang.srt.mem_cache.pool_host.mha": """
        MHATokenToKVPoolHost
        MHATokenToKVPoolHost.can_use_write_back_jit
        MHATokenToKVPoolHost.dcp_size
        MHATokenToKVPoolHost.device_k_buffers
        MHATokenToKVPoolHost.device_v_buffers
        MHATokenToKVPoolHost.kv_buffer
        MHATokenToKVPoolHost.layout
        MHATokenToKVPoolHost.page_num
        MHATokenToKVPoolHost.page_size
        MHATokenToKVPoolHost.shared_allocation_domain
        MHATokenToKVPoolHost.size_per_token
        transfer_kv_all_layer
        transfer_kv_all_layer_direct_lf_pf
        transfer_kv_all_layer_lf_pf
        transfer_kv_all_layer_mla_lf_pf
        transfer_kv_direct
        transfer_kv_per_layer
        transfer_kv_per_layer_direct_pf_lf
        transfer_kv_per_layer_mla
        transfer_kv_per_layer_mla_pf_lf
        transfer_kv_per_layer_pf_lf
    """,
    "sglang.srt.mem_cache.pool_host.mla": """
        MLATokenToKVPoolHost
        MLATokenToKVPoolHost.can_use_write_back_jit
        MLATokenToKVPoolHost.dcp_size
        MLATokenToKVPoolHost.device_kv_buffers
        MLATokenToKVPoolHost.kv_buffer
        MLATokenToKVPoolHost.layout
        MLATokenToKVPoolHost.page_num
        MLATokenToKVPoolHost.page_size
        MLATokenToKVPoolHost.shared_allocation_domain
        MLATokenToKVPoolHost.size_per_token
        transfer_kv_all_layer_direct_lf_pf
        transfer_kv_all_layer_mla
        transfer_kv_all_layer_mla_lf_pf
        transfer_kv_direct
        transfer_kv_per_layer_direct_pf_lf
        transfer_kv_per_layer_mla
        transfer_kv_per_layer_mla_pf_lf
    """,
    "sglang.srt.mem_cache.radix_cache": """
        RadixKey
    """,
    "sglang.srt.mem_cache.registry": """
        TreeCacheBuildContext.params
        TreeCacheBuildContext.server_args
        TreeCacheBuildContext.tp_rank
    """,
    "sglang.srt.mem_cache.unified_cache.component_type": """
        ComponentType
    """,
    "sglang.srt.mem_cache.unified_cache.components": """
        ComponentType
    """,
    "sglang.srt.mem_cache.unified_cache.unified_tree_core": """
        StorageBackupSpec.host_value
        StorageBackupSpec.token_ids
    """,
    "sglang.srt.mem_cache.unified_cache.unified_tree_core_interface": """
        TreePathNodeInfo.full_value_len
        TreePathNodeInfo.node_id
        UnifiedTreeCoreInterface.is_eagle
    """,
    "sglang.srt.mem_cache.unified_radix_cache": """
        UnifiedRadixCache
        UnifiedRadixCache.cache_controller
        UnifiedRadixCache.host_pool_group
        UnifiedRadixCache.ongoing_write_through
        UnifiedRadixCache.page_size
        UnifiedRadixCache.token_to_kv_pool_allocator
        UnifiedRadixCache.tree_components
        UnifiedRadixCache.tree_core
        _OngoingWriteThrough.publish_node_ids
    """,
    "sglang.srt.model_executor.forward_batch_info": """
        ForwardBatch.encoder_lens
        ForwardBatch.extend_seq_lens
        ForwardBatch.forward_mode
        ForwardBatch.req_pool_indices
        ForwardBatch.seq_lens
    """,
    "sglang.srt.models.deepseek_common.attention_backend_handler": """
        AttentionBackendRegistry
        AttnForwardMethod
        AttnForwardMethod.MLA
    """,
    "sglang.srt.plugins.hook_registry": """
        HookRegistry
        HookType
        HookType.AFTER
        HookType.AROUND
        HookType.BEFORE
    """,
    "sglang.utils": """
        TypeBasedDispatcher
    """,
}
"""Modules, classes, constants, attributes: they have to be there."""
