"""What a recording costs the scheduler thread: ``python -m radixtier.sglang.bench_recording``.

Owns a trace in a temporary directory for the duration. Each request arrives, is admitted and ends with an answer of
:data:`ANSWER` tokens; its prompt was never seen, and then it comes once more. Prints the median in microseconds and
the bytes of trace per request. Main thread; needs no model.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from radixtier.sglang.standalone import prepare_process

PAGE_SIZES = (64, 16)
PROMPTS = (2_000, 32_000)
"""Tokens."""

ANSWER = 500
REQUESTS = 50


def measure(page_size: int, prompt: int, requests: int = REQUESTS) -> dict[str, float]:
    """Record ``requests`` new prompts of so many tokens, each twice.

    Returns
    -------
    dict
        Microseconds (median): ``new`` and ``known`` for the arrival of a prompt the first time and once more,
        ``admitted``, ``ended``; ``bytes`` per request, mean.
    """
    prepare_process()
    from radixtier.explain import RequestRecord
    from radixtier.sglang.recording import Recording

    cache = SimpleNamespace(
        page_size=page_size,
        mover=SimpleNamespace(page_bytes=1, table=SimpleNamespace(n_frames=1, n_handles=2)),
        token_to_kv_pool_allocator=SimpleNamespace(size=page_size),
    )
    times: dict[str, list[float]] = {"new": [], "known": [], "admitted": [], "ended": []}

    def timed(step: str, call: Callable[..., None], *arguments: Any) -> None:
        began = time.perf_counter_ns()
        call(*arguments)
        times[step].append((time.perf_counter_ns() - began) / 1000)

    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "trace"
        recording = Recording(cache, file)
        for number in range(requests):
            tokens = array("q", random.integers(0, 1 << 17, prompt + ANSWER).tolist())
            for step in ("new", "known"):
                req = SimpleNamespace(
                    rid=f"{step}{number}", extra_key=None, cache_salt=None, session_id=None,
                    origin_input_ids=tokens[:prompt], output_ids=tokens[prompt:], full_untruncated_fill_ids=tokens,
                )  # fmt: skip
                timed(step, recording.arrived, req)
                timed("admitted", recording.admitted, RequestRecord(req.rid))
                timed("ended", recording.ended, req, prompt + ANSWER - 1)
        recording.close()
        nbytes = file.stat().st_size / (2 * requests)
    return {**{step: statistics.median(found) for step, found in times.items()}, "bytes": nbytes}


def main() -> None:
    """Print the table."""
    print("| page | prompt | new prompt, us | known prompt, us | admitted, us | ended, us | bytes |")
    print("|---|---|---|---|---|---|---|")
    for page_size in PAGE_SIZES:
        for prompt in PROMPTS:
            found = measure(page_size, prompt)
            print(f"| {page_size} | {prompt} | {' | '.join(f'{value:.0f}' for value in found.values())} |", flush=True)


if __name__ == "__main__":
    main()
