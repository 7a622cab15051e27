"""What happens to the server arguments of a server with the tier, before its model loads.

Owns the order: read the settings, check them, refuse what is not supported, set SGLang's own fields, let
SGLang resolve, check again with what only resolution knows. Invariant: a server either starts with everything
it was asked for, or not at all. Main thread of the launching process; :func:`prepare_scheduler` in each
scheduler process.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Collection
from operator import attrgetter
from pathlib import Path
from typing import Any

from radixtier import SGLANG_VERSION, __version__
from radixtier.config import Problem, RadixTierConfig
from radixtier.io.probe import kvikio_fault
from radixtier.io.trial import try_posix
from radixtier.machine import Machine
from radixtier.seams.contract import contract, look, told
from radixtier.settings import BACKEND, Setting, load_config
from radixtier.sglang.direct import direct_problems
from radixtier.sglang.flags import effective, field_of, given_flags
from radixtier.sglang.native import is_patched
from radixtier.sglang.refusals import check_input, refuse
from radixtier.tools.holders import lock_holders
from radixtier.units import BadValue, Unit

logger = logging.getLogger(__name__)


def begin(server_args: Any) -> None:
    """Check the settings and the arguments of a server, before SGLang resolves them for the first time.

    Leaves the checked :class:`RadixTierConfig` as ``server_args._radix_tier``, or None without the tier.
    """
    server_args._radix_tier = None
    given, name_of = _given(server_args)
    config, problems, notes = load_config(given, os.environ, name_of)
    if config.enable:
        # With names of SGLang gone, the other checks could not be trusted.
        refuse(server_args, check_version(config))
        problems += _check_input(config, server_args)
    refuse(server_args, problems)
    for note in notes:
        logger.info("radixtier: %s", note)
    if config.enable:
        _apply(config, server_args)


def finish(server_args: Any) -> None:
    """Check what only resolution knows, once it is over."""
    if server_args._radix_tier is not None:
        from radixtier.sglang.resolution import check_resolved

        check_resolved(server_args)


def check_version(config: RadixTierConfig) -> list[Problem]:
    """Refuse an SGLang that was not tested, unless it is allowed and has every name that radixtier uses."""
    release = look()
    if release.tested:
        return []
    fix = f"pip install sglang=={SGLANG_VERSION}"
    if not release.moved:
        if config.allow_untested:
            logger.warning("radixtier: %s; it is allowed, but what is behind the names may have changed", release)
            return []
        fix += f", or add {config.named('allow_untested')} to try it"
    return [Problem("SGLang", release.version, f"not tested with radixtier {__version__}; {told(release.moved)}", fix)]


def check_seams(targets: Collection[str]) -> None:
    """End a start that asks for the tier when this SGLang lacks what the plugin needs to be heard at all.

    Parameters
    ----------
    targets : collection of str
        Full names of what is hooked.
    """
    if "--enable-radix-tier" not in sys.argv and not os.environ.get("RADIXTIER_ENABLE", "").strip():
        return
    # These alone: this runs in every process of a server.
    release = look([name for name in contract() if f"{name.module}.{name.qualname}" in targets])
    if release.moved:
        print(f"radixtier: error: {release}; pip install sglang=={SGLANG_VERSION}", file=sys.stderr, flush=True)
        raise SystemExit(2)


def prepare_scheduler(server_args: Any) -> None:
    """Make a scheduler process ready, once its arguments are published and before it builds anything."""
    from sglang.srt.arg_groups.overrides import resolving_view

    if resolving_view(server_args).device == "cpu":
        from radixtier.cpu import activate

        activate()
    if getattr(server_args, "_radix_tier", None) is not None:
        from radixtier.sglang.factory import open_gates

        register_backend()
        open_gates(several=resolving_view(server_args).tp_size > 1)


def register_backend() -> None:
    """Enter the tier into SGLang's registry of radix cache backends, once per process."""
    from sglang.srt.mem_cache.registry import get_radix_cache_factory, register_radix_cache_backend

    if get_radix_cache_factory(BACKEND) is None:
        register_radix_cache_backend(BACKEND, _create_cache)


def _create_cache(ctx: Any) -> Any:
    from radixtier.sglang.factory import create_cache

    return create_cache(ctx)


def _given(server_args: Any) -> tuple[dict[str, Any], Callable[[Setting], str]]:
    """Settings that came with the arguments, and how messages are to call them."""
    flags = getattr(server_args, "_radix_tier_flags", None)
    if flags is not None:
        return flags, attrgetter("flag")
    carried = getattr(server_args.radix_cache_backend, "settings", None)
    return (carried, attrgetter("name")) if carried is not None else (given_flags(server_args), field_of)


def _check_input(config: RadixTierConfig, server_args: Any) -> list[Problem]:
    # Directories that do not answer would stop this process as well, so they are looked at from another one first.
    found = _check_directories(config) or config.validate(Machine.probe()) + _check_engine(config, server_args)
    found += check_input(server_args)
    try:
        config.control_address(bool(server_args.api_key))
    except BadValue as error:
        found.append(config.problem("control", error.why, error.fix))
    if config.hbm_size is not None and server_args.max_total_tokens is not None:
        why = f"contradicts {config.named('hbm_size')}, which sets it"
        found.append(Problem("--max-total-tokens", server_args.max_total_tokens, why, "Keep one of them"))
    return found


def _check_directories(config: RadixTierConfig) -> list[Problem]:
    """Find the directories that hang or that another server uses; what else is wrong with one, `validate` finds."""
    found = []
    for path in config.nvme_path:
        try:
            try_posix(Path(path))
            for pid in list(lock_holders(Path(path)).values())[:1]:
                fix = "Stop that server, or name another directory"
                found.append(Problem(config.named("nvme_path"), path, f"in use by process {pid}", fix))
        except TimeoutError as error:
            fix = "Look at the drive or the mount, or name another directory"
            found.append(Problem(config.named("nvme_path"), path, str(error.strerror), fix))
        except OSError:
            continue
    return found


def _check_engine(config: RadixTierConfig, server_args: Any) -> list[Problem]:
    """Try the engine, and the way straight to HBM, that were demanded where they are demanded."""
    found: list[Problem] = []
    for path in config.nvme_path if config.io_engine == "kvikio" else ():
        try:
            fault = kvikio_fault(Path(path))
        except OSError:  # the directory cannot be used at all, which `validate` has found
            continue
        if fault:
            found.append(config.problem("io_engine", *fault))
    if not found and config.direct == "on":
        from radixtier.sglang.resolution import device_of

        found += direct_problems(config, device_of(server_args))
    return list(dict.fromkeys(found))


def _apply(config: RadixTierConfig, server_args: Any) -> None:
    """Set the fields of SGLang that turn the tier on; resolution decides the rest (see `resolution`)."""
    from radixtier.sglang.resolution import device_of

    hbm_in_ram = device_of(server_args) == "cpu" and server_args.max_total_tokens is None
    config, notes = config.with_defaults(Machine.probe(), hbm_in_ram)
    for note in notes:
        logger.info("radixtier: %s", note)
    server_args._radix_tier = config
    if is_patched():
        from sglang.srt.arg_groups.overrides import declare_resolution

        declare_resolution(server_args, BACKEND, **effective(config))  # for /server_info
    server_args.radix_cache_backend = BACKEND
    server_args.enable_hierarchical_cache = True
    if config.hbm_size is not None and config.hbm_size.unit is Unit.TOKENS:
        server_args.max_total_tokens = config.hbm_size.amount
