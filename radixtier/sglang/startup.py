"""What happens to the server arguments of a server with the tier, before its model loads.

Owns the order: read the settings, check them, refuse what is not supported, set SGLang's own fields, let
SGLang resolve, check again with what only resolution knows. Invariant: a server either starts with everything
it was asked for, or not at all. Main thread of the launching process; :func:`prepare_scheduler` in each
scheduler process.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from radixtier.config import Problem, RadixTierConfig
from radixtier.io.probe import kvikio_fault
from radixtier.io.trial import try_posix
from radixtier.machine import Machine
from radixtier.settings import load_config
from radixtier.sglang.direct import direct_problems
from radixtier.sglang.refusals import check_input, refuse
from radixtier.tools.holders import lock_holders
from radixtier.units import BadValue, Unit

logger = logging.getLogger(__name__)

BACKEND = "radixtier"
"""Name of the tier in SGLang's registry of radix cache backends."""


def resolve(original: Any, server_args: Any) -> None:
    """Resolve server arguments for the first time, with the tier if it was asked for.

    Leaves the checked :class:`RadixTierConfig` as ``server_args._radix_tier``, or None without the tier.
    """
    server_args._radix_tier = None
    flags = getattr(server_args, "_radix_tier_flags", {})
    config, problems, notes = load_config(flags, os.environ)
    if config.enable:
        problems += _check_input(config, server_args)
    refuse(server_args, problems)
    for note in notes:
        logger.info("radixtier: %s", note)
    if config.enable:
        _apply(config, server_args)
    original(server_args)
    if config.enable:
        from radixtier.sglang.resolution import check_resolved

        check_resolved(server_args)


def prepare_scheduler(server_args: Any) -> None:
    """Make a scheduler process ready, once its arguments are published and before it builds anything."""
    from sglang.srt.arg_groups.overrides import resolving_view

    if resolving_view(server_args).device == "cpu":
        from radixtier.cpu import activate

        activate()
    if getattr(server_args, "_radix_tier", None) is not None:
        from radixtier.sglang.factory import open_gates

        register_backend()
        open_gates()


def register_backend() -> None:
    """Enter the tier into SGLang's registry of radix cache backends, once per process."""
    from sglang.srt.mem_cache.registry import get_radix_cache_factory, register_radix_cache_backend

    if get_radix_cache_factory(BACKEND) is None:
        register_radix_cache_backend(BACKEND, _create_cache)


def _create_cache(ctx: Any) -> Any:
    from radixtier.sglang.factory import create_cache

    return create_cache(ctx)


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
    server_args.radix_cache_backend = BACKEND
    server_args.enable_hierarchical_cache = True
    if config.hbm_size is not None and config.hbm_size.unit is Unit.TOKENS:
        server_args.max_total_tokens = config.hbm_size.amount
