"""The CPU transfers move exactly the bytes that a loop over tokens would move, in every layout."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from radixtier.cpu import transfers  # noqa: E402

LAYERS, PAGES, HEADS, SIZE = 3, 12, 2, 8
DTYPES = [torch.float32, torch.bfloat16]
PAGE_SIZES = [1, 4]
# Pages of the source and of the target: scattered, a run of targets, a run of both, none.
ROUTES = [([7, 2, 9], [1, 8, 4]), ([7, 2, 9], [3, 4, 5]), ([5, 6], [2, 3]), ([], [])]


def tokens(pages: list[int], page_size: int) -> Any:
    return torch.tensor([page * page_size + i for page in pages for i in range(page_size)], dtype=torch.int64)


class Pools:
    """Device buffers per layer and one host buffer per layout, all with different random bytes, for K and V."""

    def __init__(self, page_size: int, dtype: Any) -> None:
        generator = torch.Generator().manual_seed(page_size)

        def random(*shape: int) -> Any:
            return torch.randn(*shape, generator=generator).to(dtype)

        count = PAGES * page_size
        # One more row than whole pages, as a pool may have.
        self.device = [[random(count + 1, HEADS, SIZE) for _ in range(LAYERS)] for _ in "kv"]
        self.layer_first = [random(LAYERS, count, HEADS, SIZE) for _ in "kv"]
        self.page_first = [random(count, LAYERS, HEADS, SIZE) for _ in "kv"]
        self.page_first_direct = [random(PAGES, LAYERS, page_size, HEADS, SIZE) for _ in "kv"]
        self.item = HEADS * SIZE * dtype.itemsize
        self.page_size = page_size

    def host_token(self, layout: str, kv: int, layer: int, token: int) -> Any:
        buffer = getattr(self, layout)[kv]
        if layout == "layer_first":
            return buffer[layer, token]
        if layout == "page_first":
            return buffer[token, layer]
        return buffer[token // self.page_size, layer, token % self.page_size]

    def snapshot(self) -> list[Any]:
        flat = [*self.device[0], *self.device[1], *self.layer_first, *self.page_first, *self.page_first_direct]
        return [buffer.clone() for buffer in flat]

    def load_naively(self, layout: str, layer: int, host: Any, device: Any) -> None:
        for kv in range(2):
            for source, target in zip(host.tolist(), device.tolist(), strict=True):
                self.device[kv][layer][target] = self.host_token(layout, kv, layer, source)

    def back_up_naively(self, layout: str, host: Any, device: Any) -> None:
        for kv in range(2):
            for layer in range(LAYERS):
                for source, target in zip(device.tolist(), host.tolist(), strict=True):
                    self.host_token(layout, kv, layer, target).copy_(self.device[kv][layer][source])


def pointers(buffers: list[Any]) -> Any:
    return torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64)


def load(pools: Pools, way: str, layer: int, host: Any, device: Any) -> None:
    k, v = pools.device[0][layer], pools.device[1][layer]
    if way == "layer_first direct":
        sources = [buffer[layer] for buffer in pools.layer_first]
        transfers.transfer_kv_direct(sources, [k, v], host, device, pools.page_size)
    elif way == "page_first_direct direct":
        transfers.transfer_kv_per_layer_direct_pf_lf(
            pools.page_first_direct, [k, v], host, device, layer, pools.page_size
        )
    elif way == "layer_first kernel":
        host_k, host_v = (buffer[layer] for buffer in pools.layer_first)
        transfers.transfer_kv_per_layer(host_k, k, host_v, v, host, device, pools.item)
    else:
        host_k, host_v = pools.page_first
        transfers.transfer_kv_per_layer_pf_lf(
            host_k, k, host_v, v, host, device, layer, pools.item, pools.item * LAYERS
        )


def back_up(pools: Pools, way: str, host: Any, device: Any) -> None:
    k, v = pools.device
    if way == "layer_first direct":
        targets = [*pools.layer_first[0], *pools.layer_first[1]]
        transfers.transfer_kv_direct([*k, *v], targets, device, host, pools.page_size)
    elif way == "page_first_direct direct":
        transfers.transfer_kv_all_layer_direct_lf_pf([*k, *v], pools.page_first_direct, device, host, pools.page_size)
    elif way == "layer_first kernel":
        host_k, host_v = (pointers(list(buffer)) for buffer in pools.layer_first)
        transfers.transfer_kv_all_layer(pointers(k), host_k, pointers(v), host_v, device, host, pools.item, LAYERS)
    else:
        host_k, host_v = pools.page_first
        transfers.transfer_kv_all_layer_lf_pf(
            pointers(k), host_k, pointers(v), host_v, device, host, pools.item, pools.item * LAYERS, LAYERS
        )


WAYS = ["layer_first direct", "page_first_direct direct", "layer_first kernel", "page_first kernel"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize(("source", "target"), ROUTES, ids=str)
def test_load_moves_the_bytes_of_one_layer(
    way: str, dtype: Any, page_size: int, source: list[int], target: list[int]
) -> None:
    ours, naive = Pools(page_size, dtype), Pools(page_size, dtype)
    host, device = tokens(source, page_size), tokens(target, page_size)
    load(ours, way, 1, host, device)
    naive.load_naively(way.split()[0], 1, host, device)
    assert all(map(torch.equal, ours.snapshot(), naive.snapshot()))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize(("source", "target"), ROUTES, ids=str)
def test_backup_moves_the_bytes_of_all_layers(
    way: str, dtype: Any, page_size: int, source: list[int], target: list[int]
) -> None:
    ours, naive = Pools(page_size, dtype), Pools(page_size, dtype)
    host, device = tokens(target, page_size), tokens(source, page_size)
    back_up(ours, way, host, device)
    naive.back_up_naively(way.split()[0], host, device)
    assert all(map(torch.equal, ours.snapshot(), naive.snapshot()))


def test_latent_pools_round_trip() -> None:
    """MLA pools have one buffer: out through addresses, back through views, per layout."""
    device = [torch.randn(PAGES * 4, 1, 6) for _ in range(LAYERS)]
    expected = [buffer.clone() for buffer in device]
    there, back = tokens([3, 0], 4), tokens([8, 9], 4)
    item = 6 * 4
    page_first, layer_first = torch.zeros(PAGES * 4, LAYERS, 1, 6), torch.zeros(LAYERS, PAGES * 4, 1, 6)
    transfers.transfer_kv_all_layer_mla_lf_pf(pointers(device), page_first, there, back, item, item * LAYERS, LAYERS)
    transfers.transfer_kv_all_layer_mla(pointers(device), pointers(list(layer_first)), there, back, item, LAYERS)
    for layer, buffer in enumerate(device):
        for host in ("page_first", "layer_first"):
            buffer[there] = 0
            if host == "page_first":
                transfers.transfer_kv_per_layer_mla_pf_lf(page_first, buffer, back, there, layer, item, item * LAYERS)
            else:
                transfers.transfer_kv_per_layer_mla(layer_first[layer], buffer, back, there, item)
            assert torch.equal(buffer, expected[layer])
