"""Entry point ``sglang.srt.plugins``: SGLang calls :func:`register` first thing in each of its processes.

Owns which seams of SGLang are hooked, nothing else. Invariant: importing this module and calling
:func:`register` import neither torch nor anything of SGLang that is not loaded anyway; SGLang only logs what
goes wrong here, so anything that can go wrong happens later, in :mod:`radixtier.sglang.startup`. Main thread.

Two seams would be closed to a plugin: ``sglang serve --help`` prints without loading plugins, and
``Engine(enable_radix_tier=...)`` rejects unknown names; ``Engine`` users set the environment instead.
"""

from __future__ import annotations

from typing import Any

_SERVER_ARGS = "sglang.srt.server_args.ServerArgs"


def register() -> None:
    """Hook the command line, the resolution of the server arguments, and their publication to a process."""
    from sglang.srt.arg_groups.resolution_hooks import register_resolution_hook
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{_SERVER_ARGS}.add_cli_args", _after_add_cli_args, HookType.AFTER)
    HookRegistry.register(f"{_SERVER_ARGS}.from_cli_args", _after_from_cli_args, HookType.AFTER)
    HookRegistry.register(f"{_SERVER_ARGS}.resolve_once", _around_resolve_once, HookType.AROUND)
    HookRegistry.register("sglang.srt.runtime_context.publish", _after_publish, HookType.AFTER)
    register_resolution_hook("handle_hicache_ratio_default")(_around_step("no_auto_size"))
    register_resolution_hook("handle_gpu_memory_settings")(_around_step("model_and_budget"))
    # The last step before SGLang's own page size default: the attention backend is chosen by then, and has
    # set the page size if it needs a certain one.
    register_resolution_hook("handle_mxfp8_kv_cache_compatibility")(_around_step("page_size"))
    register_resolution_hook("handle_hicache")(_around_step("transfers"))
    register_resolution_hook("handle_cache_compatibility")(_around_step("decisions_so_far"))


def _after_add_cli_args(result: Any, parser: Any) -> None:
    from radixtier.sglang.flags import add_flags

    add_flags(parser)


def _after_from_cli_args(result: Any, cls: type, args: Any) -> None:
    from radixtier.sglang.flags import given_flags

    # An underscore name is bookkeeping: it survives resolution, pickling and spawning.
    result._radix_tier_flags = given_flags(args)


def _around_resolve_once(original: Any, server_args: Any) -> None:
    if getattr(server_args, "_resolution_finished", False):
        original(server_args)
        return
    from radixtier.sglang.startup import resolve

    resolve(original, server_args)


def _after_publish(result: Any, server_args: Any, *, role: str, **_: Any) -> None:
    if role == "scheduler":
        from radixtier.sglang.startup import prepare_scheduler

        prepare_scheduler(server_args)


def _around_step(name: str) -> Any:
    """Wrap one step of SGLang's resolution; :mod:`radixtier.sglang.resolution` has a function per name."""

    def step(server_args: Any, previous: Any) -> None:
        if getattr(server_args, "_radix_tier", None) is None:
            previous(server_args)
            return
        from radixtier.sglang import resolution

        getattr(resolution, name)(server_args, previous)

    return step
