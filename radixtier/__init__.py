"""radixtier: virtual memory for SGLang's RadixAttention.

SGLang's prefix tree owns what exists; radixtier owns where its bytes live: HBM, DRAM or NVMe.
Importing this package imports neither torch nor sglang.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

SGLANG_VERSION = "0.5.23"
"""The SGLang release that this version of radixtier is made for and tested with."""


def engine_args(**settings: Any) -> dict[str, Any]:
    """Return arguments that turn the tier on in ``sglang.Engine(**engine_args(...), model_path=...)``.

    Parameters
    ----------
    **settings
        Fields of :class:`radixtier.config.RadixTierConfig`, and ``config`` for a YAML file, as the flags take them:
        ``dram_size="64GiB"`` or plain bytes, ``nvme_path="/mnt/kv"`` or several in a list. ``enable`` is True if it is
        not given; the environment and the file fill in what else is not given.

    Returns
    -------
    dict
        For ``Engine`` or ``ServerArgs``; empty with ``enable=False``.

    Raises
    ------
    radixtier.config.RadixTierConfigError
        One line per problem, with the name, the value and the fix. What only the model decides, SGLang's own arguments
        for one, ``Engine`` raises in the same way before it loads the model.
    """
    # By name: this module is below all others, and importing it must stay cheap.
    made: dict[str, Any] = importlib.import_module("radixtier.engine").make_engine_args(settings)
    return made
