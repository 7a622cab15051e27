"""What a patched SGLang calls, in the place of hooks: fields of its arguments, start, scheduler, weights.

``patches/`` has the patch; its insertions are calls of the functions below and nothing else. Invariants: importing this
imports nothing of SGLang, torch or msgspec, since ``sglang.srt.plugins`` imports it before anything else; a function
that the patch calls keeps its name and arguments as long as the patch is shipped. Main thread, and the scheduler's.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

NAMESPACE = "memory"
"""Of SGLang's namespaces of arguments, the one that the tier's fields belong to."""


def is_patched() -> bool:
    """Whether the SGLang of this process has the patch and found radixtier."""
    return getattr(sys.modules.get("sglang.srt.plugins"), "radix_tier", None) is not None


def namespace() -> type:
    """Return the class that declares one field per setting, as SGLang collects its arguments from such classes."""
    import msgspec
    from sglang.srt.arg_groups.arg_utils import Arg

    from radixtier.settings import CONFIG_FILE, SETTINGS
    from radixtier.sglang.flags import field_of, help_of

    types: dict[str, Any] = {"switch": bool, "paths": list[str] | None}
    fields = [
        (
            field_of(setting),
            Annotated[types.get(setting.kind, str | None), Arg(help=help_of(setting), resolvable=True)],
            False if setting.kind == "switch" else None,
        )
        for setting in (*SETTINGS, CONFIG_FILE)
    ]
    return msgspec.defstruct("RadixTier", fields, namespace={"_NS_PATH": NAMESPACE}, module=__name__)


def marked(server_args_class: Any) -> Any:
    """Return what builds a record and notes on it that it came from a command line, which ends with a status."""
    from radixtier.sglang.flags import given_flags

    def build(**fields: Any) -> Any:
        record = server_args_class(**fields)
        record._radix_tier_flags = given_flags(record)
        return record

    return build


def before_resolution(server_args: Any) -> None:
    """Read and check the settings, and refuse what is not supported, before SGLang resolves its arguments."""
    from radixtier.sglang.plugin import wrap_steps
    from radixtier.sglang.startup import begin

    wrap_steps()  # also where SGLANG_PLUGINS leaves the plugin out
    begin(server_args)


def after_resolution(server_args: Any) -> None:
    """Check what only resolution knows."""
    from radixtier.sglang.startup import finish

    finish(server_args)


def arguments_published(server_args: Any, role: str) -> None:
    """Make a scheduler process ready."""
    if role == "scheduler":
        from radixtier.sglang.startup import prepare_scheduler

        prepare_scheduler(server_args)


def scheduler_built(scheduler: Any) -> None:
    """Open the scheduler's gates for promotions."""
    from radixtier.sglang.factory import open_gate

    open_gate(scheduler)


def before_new_weights() -> None:
    """Empty the journals before weights change."""
    from radixtier.sglang.factory import seal_stores

    seal_stores()
