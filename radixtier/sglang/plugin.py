"""Entry point ``sglang.srt.plugins``: SGLang calls :func:`register` first thing in each of its processes.

Owns which seams of SGLang are hooked, nothing else. Invariant: importing this module and calling
:func:`register` import neither torch nor anything of SGLang that is not loaded anyway; SGLang only logs what
goes wrong here, so anything that can go wrong happens later, in :mod:`radixtier.sglang.startup`. Main thread.

Two seams are closed to a plugin: ``sglang serve --help`` prints without loading plugins, and ``Engine`` rejects unknown
names (:func:`radixtier.engine_args` gets settings past that). A patched SGLang (``patches/``) has both; it calls
:mod:`radixtier.sglang.native` itself, and nothing is hooked.
"""

from __future__ import annotations

from typing import Any

from radixtier import SGLANG_VERSION
from radixtier.seams.installed import installed_version

_SERVER_ARGS = "sglang.srt.server_args.ServerArgs"

STEPS = {
    "handle_hicache_ratio_default": "no_auto_size",
    "handle_gpu_memory_settings": "model_and_budget",
    # The last step before SGLang's own page size default: the attention backend is chosen by then, and has
    # set the page size if it needs a certain one.
    "handle_mxfp8_kv_cache_compatibility": "page_size",
    "handle_hicache": "transfers",
    "handle_cache_compatibility": "decisions_so_far",
}
"""Steps of SGLang's resolution that are wrapped, by which function of :mod:`radixtier.sglang.resolution`."""

_wrapped = False


def register() -> None:
    """Hook the command line, the resolution of the server arguments, and their publication to a process."""
    if installed_version() != SGLANG_VERSION:
        from radixtier.sglang.startup import check_seams

        check_seams(HOOKS)
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from radixtier.sglang.native import is_patched

    if not is_patched():
        for target, (hook, kind) in HOOKS.items():
            HookRegistry.register(target, hook, HookType[kind])
    wrap_steps()


def wrap_steps() -> None:
    """Take part in SGLang's resolution, by its own registry of steps; once per process."""
    global _wrapped
    if _wrapped:
        return
    _wrapped = True
    from sglang.srt.arg_groups.resolution_hooks import register_resolution_hook

    for step, name in STEPS.items():
        register_resolution_hook(step)(_around_step(name))


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
    from radixtier.sglang.startup import begin, finish

    begin(server_args)
    original(server_args)
    finish(server_args)


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


HOOKS = {
    f"{_SERVER_ARGS}.add_cli_args": (_after_add_cli_args, "AFTER"),
    f"{_SERVER_ARGS}.from_cli_args": (_after_from_cli_args, "AFTER"),
    f"{_SERVER_ARGS}.resolve_once": (_around_resolve_once, "AROUND"),
    "sglang.srt.runtime_context.publish": (_after_publish, "AFTER"),
}
"""What is hooked in an SGLang without the patch, and how."""
