"""One ``Engine`` with the tier: asks every prompt twice and prints what came back, as one line of JSON.

``engine_play.py MODEL STORE MODE``; MODE is ``engine_args``, or ``fields`` for an SGLang with the patch.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from e2e_rig import ANSWER, DRAM, HBM, NVME, prompts

import radixtier

STOCK: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "disable_overlap_schedule": True,
    "page_size": 16,
    "hicache_storage_prefetch_policy": "wait_complete",
}


def main(model: str, store: str, mode: str) -> None:
    import sglang

    sizes = {"hbm_size": f"{HBM}tok", "dram_size": f"{DRAM}tok", "nvme_size": f"{NVME}tok", "nvme_path": [store]}
    if mode == "fields":
        given = {"enable_radix_tier": True, **{f"radix_tier_{name}": value for name, value in sizes.items()}}
    else:
        given = radixtier.engine_args(**sizes)
    engine = sglang.Engine(model_path=model, **STOCK, **given)
    sampling = {"temperature": 0, "max_new_tokens": ANSWER, "ignore_eos": True}
    rounds = []
    for _ in range(2):
        answers = [engine.generate(input_ids=prompt, sampling_params=sampling) for prompt in prompts(8, seed=21)]
        # There are no details where nothing was cached.
        details = [one["meta_info"]["cached_tokens_details"] or {} for one in answers]
        rounds.append([{"ids": one["output_ids"], **more} for one, more in zip(answers, details, strict=True)])
    info = engine.get_server_info()
    shown = {name: value for name, value in info.items() if "radix_tier" in name}
    print("played", json.dumps({"rounds": rounds, "shown": shown, "backend": info["radix_cache_backend"]}), flush=True)
    engine.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
