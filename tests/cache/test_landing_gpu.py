"""The landing zone on a real GPU; collected everywhere, run where there is one (``pytest -m gpu``)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from radixtier.io import kvikio
from radixtier.sglang import landing
from radixtier.store.weighted import seeded, weighted_sum, weights

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
needs_kvikio = pytest.mark.skipif(importlib.util.find_spec("kvikio") is None, reason="KvikIO is not installed")

PAGE_BYTES = 64 << 10


def images(n: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (n, PAGE_BYTES), np.uint8)


def test_the_gpu_finds_the_sums_that_numpy_finds() -> None:
    pages, seeds = images(5), np.array([0, 1, 2**32, 2**63, 2**64 - 1], np.uint64)
    words = torch.from_numpy(pages).cuda().view(torch.int32)
    found = landing.row_sums(words, torch.from_numpy(weights(PAGE_BYTES).copy()).cuda()).cpu().numpy()
    expected = [weighted_sum([memoryview(page)], seed) for page, seed in zip(pages, seeds.tolist(), strict=True)]
    assert seeded(found, seeds).tolist() == expected


def test_a_zone_is_aligned_and_sums_on_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvikio, "register", lambda buffer: None)
    zone = landing.DeviceLanding(6, PAGE_BYTES, torch.device("cuda:0"))
    pages = images(6)
    zone.rows[:, :PAGE_BYTES] = torch.from_numpy(pages).cuda()
    torch.cuda.synchronize()
    frames, seeds = np.array([4, 5, 0]), np.array([7, 8, 9], np.uint64)
    assert [buffer.nbytes for buffer in zone.buffers(frames)] == [2 * PAGE_BYTES, PAGE_BYTES]
    assert all(buffer.data_ptr() % 4096 == 0 for buffer in zone.buffers(frames))
    busy = torch.cuda.Stream()
    with torch.cuda.stream(busy):
        torch.cuda._sleep(200_000_000)  # the forward goes on, and is not waited for
        over = torch.cuda.Event()
        over.record()
    found = zone.sums(frames, seeds)
    assert not over.query(), "the sums waited for the forward"
    assert found.tolist() == [
        weighted_sum([memoryview(pages[f])], s) for f, s in zip(frames, seeds.tolist(), strict=True)
    ]
    over.synchronize()


def test_a_late_load_stream_reads_what_landed_before_it_was_asked() -> None:
    """Layer by layer, each in front of its event: whoever waits for a layer's event sees that layer."""
    layers, tokens, heads, dim = 4, 16, 2, 32
    page_bytes = 2 * layers * tokens * heads * dim * 2
    n = 8
    rows = torch.randint(0, 256, (n, page_bytes), dtype=torch.uint8, device="cuda")
    zone = landing.HostLanding(n, page_bytes, lambda parts, seed: 0)
    source = landing.Landing(zone, rows, (2, layers, tokens, heads, dim), "page_first_direct", torch.bfloat16)
    pool = [torch.zeros(n * tokens, heads, dim, dtype=torch.bfloat16, device="cuda") for _ in range(2 * layers)]
    torch.cuda.synchronize()
    load, forward = torch.cuda.Stream(), torch.cuda.Stream()
    events = [torch.cuda.Event() for _ in range(layers)]
    seen = []
    with torch.cuda.stream(load):
        torch.cuda._sleep(100_000_000)
        landed = landing.Landed(
            torch.arange(n, device="cuda").flip(0), torch.arange(n * tokens, device="cuda", dtype=torch.int64)
        )
        for layer in range(layers):
            for plane in range(2):
                source.scatter(landed, plane, layer, pool[plane * layers + layer])
            events[layer].record()
    for layer in range(layers):
        forward.wait_event(events[layer])
        with torch.cuda.stream(forward):
            seen += [pool[layer].clone(), pool[layers + layer].clone()]
    torch.cuda.synchronize()
    pages = rows.view(torch.bfloat16).view(n, 2, layers, tokens, heads, dim).flip(0)
    for number, got in enumerate(seen):
        expected = pages[:, number % 2, number // 2].flatten(0, 1)
        assert torch.equal(got.view(torch.int16), expected.contiguous().view(torch.int16))


@needs_kvikio
def test_pages_come_up_both_ways(tmp_path: Path) -> None:
    from radixtier.gate.gpu_transfers import measure

    found = measure(tmp_path, 16, 1 << 20, torch.device("cuda:0"), rounds=1)
    assert found.equal and found.noticed and found.engine.startswith("kvikio")
