"""Whether pages may go straight from NVMe to HBM, and how large the landing zone is.

Owns the meaning of ``--radix-tier-direct`` and ``--radix-tier-landing-size``. Invariant: nothing is said to be on that
was not tried in every directory. At start, once per scheduler process; :func:`direct_problems` in the launching one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from radixtier.config import Problem, RadixTierConfig
from radixtier.footprint import slot_bytes
from radixtier.io.probe import EngineFactory, device_fault
from radixtier.store.weighted import WORD
from radixtier.units import Unit, format_bytes

logger = logging.getLogger(__name__)

ODD = "a page is not made of whole words of 4 bytes"


def direct_problems(config: RadixTierConfig, device: str) -> list[Problem]:
    """Try what ``--radix-tier-direct on`` demands, before the model loads; empty for anything else."""
    found: list[Problem] = []
    for path in config.nvme_path if config.direct == "on" and device == "cuda" else ():
        try:
            fault = device_fault(config.io_engine, Path(path))
        except OSError:  # the directory cannot be used at all, which others tell
            continue
        if fault:
            fix = "Set it to auto, which goes through DRAM where it must, or see `radixtier doctor`"
            found.append(config.problem("direct", f"nothing can be read straight to HBM from {path}: {fault}", fix))
    return found


def landing_frames(
    config: RadixTierConfig,
    page_bytes: int,
    page_tokens: int,
    device: str,
    engines: EngineFactory,
    free_bytes: Callable[[], int] | None = None,
    ranks: int = 1,
) -> int:
    """Return how many landing frames a rank is to have, of so many ranks: 0 where nothing goes straight to HBM.

    ``free_bytes`` tells what is free on the GPU beside weights and KV pool; of that ``auto`` takes half at most, since
    SGLang still needs some for its graphs and activations.

    Raises
    ------
    ValueError
        When it was demanded and cannot be.
    """
    if config.direct == "off" or not config.nvme_path or (config.direct == "auto" and device != "cuda"):
        return 0
    faults = [] if device == "cpu" else [engines.no_device(Path(path)) for path in config.nvme_path]
    if page_bytes % WORD:
        faults.append(ODD)
    size = config.landing_size
    n = size.amount // (page_tokens if size.unit is Unit.TOKENS else slot_bytes(page_bytes) * ranks)
    if not n:
        faults.append(f"{config.named('landing_size')} {size} is less than a page of {page_bytes} bytes")
    elif device == "cuda":
        free = (free_bytes or _free_bytes)()
        most = free if config.direct == "on" else free // 2
        if n * slot_bytes(page_bytes) > most:
            faults.append(
                f"{config.named('landing_size')} {size} is more than the {format_bytes(most)} that the GPU has for it "
                "beside the weights and the KV pool; lower it, or --mem-fraction-static"
            )
    fault = next((each for each in faults if each), None)
    if fault is None:
        logger.info("radixtier: pages may go straight from NVMe to HBM, %d at a time", n)
        return n
    if config.direct == "on":
        raise ValueError(f"radixtier: {config.problem('direct', fault, 'Set it to auto or off')}")
    logger.info("radixtier: pages go from NVMe to HBM through DRAM: %s", fault)
    return 0


def _free_bytes() -> int:
    import torch

    return int(torch.cuda.mem_get_info()[0])
