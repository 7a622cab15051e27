"""What KvikIO keeps per process."""

from __future__ import annotations

from typing import Any

from kvikio import CALLS, CompatMode, says

_VALUES: dict[str, Any] = {
    "compat_mode": CompatMode.AUTO,
    "num_threads": 1,
    "task_size": 4 << 20,
    "auto_direct_io_read": False,
    "auto_direct_io_write": True,
}


def set(*config: Any) -> None:
    CALLS["set"] += 1
    values = config[0] if len(config) == 1 else {config[0]: config[1]}
    for key, value in values.items():
        _VALUES[key]  # an unknown one is a KeyError there as well
        _VALUES[key] = value


def get(key: str) -> Any:
    return _VALUES[key]


def is_compat_mode_preferred() -> bool:
    return not says("cufile")
