"""Settings for users of SGLang's ``Engine``, which takes SGLang's own arguments only.

Owns what carries them: a text that is the name of the tier among SGLang's radix cache backends, and has the settings
with it. So nothing global is set, two engines in one process do not mix, and an SGLang without the plugin refuses the
name. Invariant: what comes out was checked. Any thread.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from radixtier.config import Problem, RadixTierConfigError
from radixtier.machine import Machine
from radixtier.settings import BACKEND, CONFIG_FILE, SETTINGS, load_config, nearest


class CarriedBackend(str):
    """The name of the tier's backend, with the settings that :mod:`radixtier.sglang.startup` looks for on it."""

    __slots__ = ("settings",)

    settings: Mapping[str, Any]

    def __new__(cls, settings: Mapping[str, Any]) -> CarriedBackend:
        """Make the name; ``settings`` are values by the names of the configuration's fields."""
        made = super().__new__(cls, BACKEND)
        made.settings = dict(settings)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.settings,)


def make_engine_args(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Check settings, and return arguments of ``Engine``; see :func:`radixtier.engine_args`."""
    known = [setting.name for setting in (*SETTINGS, CONFIG_FILE)]
    given = {"enable": True} | {name: _plain(value) for name, value in settings.items() if value is not None}
    unknown = [(name, value) for name, value in given.items() if name not in known]
    config, problems, _ = load_config(given, os.environ, lambda setting: setting.name)
    problems = [Problem(name, value, "unknown setting", nearest(name, known)) for name, value in unknown] + problems
    if config.enable and not problems:
        problems = config.validate(Machine.probe())
    if problems:
        raise RadixTierConfigError(problems)
    return {"radix_cache_backend": CarriedBackend(given)} if config.enable else {}


def _plain(value: Any) -> Any:
    """Return paths as texts, alone or in a list."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
