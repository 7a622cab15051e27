"""What the end-to-end tests share: sizes, prompts, and a handle on the running server."""

from __future__ import annotations

import http.client
import json
import os
import random
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import radixtier
from radixtier.cpu import environment
from radixtier.lab.traces.opening import open_trace
from radixtier.live.client import Client, Refused, Reply
from radixtier.live.server import CPU_FLAGS, Server
from radixtier.seams.installed import package_directory
from radixtier.seams.patch import apply_patch, read_patch

OURS = str(Path(radixtier.__file__).parents[1])
PATCH = read_patch(radixtier.SGLANG_VERSION)

HBM, DRAM, NVME = 1024, 2048, 6144
"""Capacity of the tiers, tokens: two, four and twelve prompts of the tests."""

START_TIMEOUT_S = 300.0
REQUEST_TIMEOUT_S = 60.0
LENGTH = 512
"""Tokens of a prompt."""

SENTINEL = 7
"""Tokens of a prompt that no test sends."""

ANSWER = 8
KV_BYTES_PER_TOKEN = 512
"""KV of the tiny model: 2 layers, K and V, 2 heads of 16, float32."""


def tier_flags(store: Path, page_size: int) -> list[str]:
    """Return the flags of a server with three small tiers."""
    return [
        *CPU_FLAGS,
        "--page-size", str(page_size),
        "--enable-radix-tier",
        "--radix-tier-hbm-size", f"{HBM}tok",
        "--radix-tier-dram-size", f"{DRAM}tok",
        "--radix-tier-nvme-size", f"{NVME}tok",
        "--radix-tier-nvme-path", str(store),
        # Computing is faster than reading with a model of this size.
        "--hicache-storage-prefetch-policy", "wait_complete",
    ]  # fmt: skip


def patched_copy(directory: Path) -> Path:
    """Copy the installed SGLang, in links, and patch the copy: a link that the patch changes becomes a file.

    Returns
    -------
    Path
        A directory for PYTHONPATH.
    """
    installed = package_directory()
    assert installed is not None
    shutil.copytree(installed, directory / "site" / "sglang", copy_function=os.symlink)
    assert len(apply_patch(PATCH, directory / "site" / "sglang")) == len(PATCH.files)
    return directory / "site"


def with_path(*entries: Path) -> dict[str, str]:
    """Return the environment of a CPU server that finds packages in ``entries`` first, and this radixtier anyway.

    No setting of the tier is in it.
    """
    path = os.pathsep.join([*map(str, entries), OURS, *filter(None, [os.environ.get("PYTHONPATH")])])
    others = {name: value for name, value in os.environ.items() if not name.startswith("RADIXTIER_")}
    return environment({**others, "PYTHONPATH": path})


@dataclass(frozen=True)
class Tiered:
    """A running server with the tier."""

    server: Server
    client: Client
    page_size: int
    store: Path
    trace: Path | None = None
    """What the server records its load in."""

    def recorded(self) -> list[Any]:
        """Return the requests of the recording so far."""
        return self.recording()[1]

    def recording(self) -> tuple[Any, list[Any]]:
        """Return the recording so far, and its requests."""
        assert self.trace is not None
        self.client.generate([3] * SENTINEL, 1)
        end = time.monotonic() + REQUEST_TIMEOUT_S
        while time.monotonic() < end:
            # The scheduler hands what it has to the file once a second; until then the last line may be cut.
            self.client.healthy()
            trace = open_trace(self.trace, skip_bad=True)
            *requests, last = trace.requests()
            if last.input_tokens == SENTINEL and last.served.ended is not None and not trace.skipped:
                return trace, requests
        raise AssertionError("the recording does not go on")

    def store_bytes(self) -> int:
        """Bytes that the store's files take on the disk."""
        return sum(file.stat().st_blocks * 512 for file in self.store.iterdir())

    def send_all(self, batch: Sequence[Sequence[int]]) -> list[Reply]:
        """Send prompts one after the other."""
        return [self.client.generate(prompt, ANSWER) for prompt in batch]

    @property
    def most_cached(self) -> int:
        """Tokens that a prompt sent again can have cached: whole pages, and the last token is always computed."""
        return (LENGTH - 1) // self.page_size * self.page_size

    def send_and_leave(self, prompt: Sequence[int]) -> None:
        """Send a request for a long answer and hang up at once."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=REQUEST_TIMEOUT_S)
        body = json.dumps(endless(prompt))
        connection.request("POST", "/generate", body, {"Content-Type": "application/json"})
        connection.close()

    def update_weights(self, model: Path) -> None:
        """Have the weights read again.

        SGLang refuses to empty its cache in the step after an answer, when the request still counts as running.
        """
        end = time.monotonic() + REQUEST_TIMEOUT_S
        while True:
            try:
                self.client.call("POST", "/update_weights_from_disk", {"model_path": str(model)})
                return
            except Refused as refused:
                if "still running" not in str(refused) or time.monotonic() > end:
                    raise
                time.sleep(0.2)

    def assert_idle(self) -> None:
        """A flush waits until nothing runs; a scheduler whose accounts do not add up when idle ends itself."""
        self.client.flush()
        assert self.client.healthy()
        assert self.server.running()


def prompts(count: int, seed: int) -> list[list[int]]:
    """Prompts of ``LENGTH`` tokens that share no prefix."""
    rng = random.Random(seed)
    # Tokens 3 to 258 of the tiny model are the bytes; the ones before are special.
    return [[3 + index, *rng.choices(range(3, 259), k=LENGTH - 1)] for index in range(count)]


def endless(prompt: Sequence[int]) -> dict[str, Any]:
    """A request for 400 tokens, streamed."""
    sampling = {"temperature": 0, "max_new_tokens": 400, "ignore_eos": True}
    return {"input_ids": list(prompt), "sampling_params": sampling, "stream": True}
