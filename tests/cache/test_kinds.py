"""Device pools of every kind: their bytes through all tiers, who may read whose store, what is not served."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from harness import GEOMETRY, KINDS, PAGE, Server

from radixtier.tree.residency import State

SIZES = {"hbm": 24, "dram": 16, "nvme": 64}
BACKENDS = {"page_first_direct": "direct", "layer_first": "kernel", "page_first": "kernel"}

MakeServer = Callable[..., Server]


def served(server: Server, prompts: list[list[int]]) -> list[Any]:
    """Serve prompts, each once the one before is on NVMe."""
    done = []
    for prompt in prompts:
        done.append(server.serve(prompt))
        server.settle()
    return done


def restarted(first: Server, make_server: MakeServer, **options: Any) -> Server:
    """Stop a server gracefully and start another on its directory."""
    first.cache.release_host_resources()
    server = make_server(**SIZES, directory=first.directory, **options)
    for _ in range(100_000):
        if server.cache._restoration is None:
            return server
        server.events()
    raise AssertionError("the restoration never ended")


@pytest.mark.parametrize("layout", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_bytes_come_back_from_dram_from_nvme_and_after_a_restart(
    make_server: MakeServer, kind: str, layout: str
) -> None:
    """Every hit is compared with what was computed, byte by byte; any byte is a value of FP8."""
    options = {"kind": kind, "layout": layout, "backend": BACKENDS[layout]}
    server = make_server(**SIZES, **options)
    prompts = [server.prompt(5, seed) for seed in range(3)]
    assert [done.hit for done in served(server, prompts)] == [0] * 3
    server.evict_hbm()
    assert [done.host for done in served(server, prompts)] == [20] * 3
    server.evict_hbm()
    server.demote_all()
    assert server.table.count[State.COLD] == 15
    assert [done.storage for done in served(server, prompts)] == [20] * 3
    again = restarted(server, make_server, **options)
    assert [done.storage for done in served(again, prompts)] == [20] * 3
    again.check()
    again.cache.sanity_check()


OTHERS = [
    ("mha", "mla", "attention mha instead of mla"),
    ("mla", "mha", "attention mla instead of mha"),
    ("mha bfloat16", "mha fp8_e4m3", "kv_dtype bfloat16 instead of float8_e4m3fn"),
    ("mha fp8_e4m3", "mha fp8_e5m2", "kv_dtype float8_e4m3fn instead of float8_e5m2"),
    ("mla fp8_e4m3", "mha fp8_e4m3", "attention mla instead of mha"),
]


@pytest.mark.parametrize(("mine", "other", "told"), OTHERS)
def test_c16_a_store_of_another_kind_is_not_read(
    make_server: MakeServer, mine: str, other: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = make_server(**SIZES, kind=mine)
    prompt = first.prompt(4, 1)
    first.serve(prompt)
    first.settle()
    server = restarted(first, make_server, kind=other)
    assert server.serve(prompt).hit == 0
    assert server.table.count[State.COLD] == 0 and told in caplog.text
    server.settle()
    assert restarted(server, make_server, kind=mine).serve(prompt).hit == 0


@pytest.mark.parametrize(("one", "two"), [("mha", "mla"), ("mha fp8_e4m3", "mha fp8_e5m2")])
def test_kinds_that_only_the_identity_tells_apart_have_pages_of_one_size(
    make_server: MakeServer, one: str, two: str
) -> None:
    sizes = {make_server(**SIZES, kind=kind).cache.mover.page_bytes for kind in (one, two)}
    item = 4 if one == "mha" else 1
    assert sizes == {2 * GEOMETRY["layers"] * GEOMETRY["head_dim"] * item * PAGE}


def test_a_latent_is_not_taken_for_another_division_of_its_row(make_server: MakeServer) -> None:
    shape = make_server(**SIZES, kind="mla").store.identity
    assert (shape.kv_heads, shape.head_dim, shape.v_head_dim) == (1, *KINDS["mla"]["latent"])


def pools() -> dict[str, Any]:
    """Device pools of SGLang with more than rows of one kind, as small as they come."""
    import torch
    from sglang.srt.mem_cache import memory_pool

    def latent(cls: type, dtype: torch.dtype, **more: Any) -> Any:
        return cls(
            size=256, page_size=64, dtype=dtype, kv_lora_rank=128, qk_rope_head_dim=64, layer_num=2, device="cpu",
            enable_memory_saver=False, **more,
        )  # fmt: skip

    def heads(cls: type, dtype: torch.dtype, **more: Any) -> Any:
        return cls(256, 64, dtype, 1, 64, 2, "cpu", enable_memory_saver=False, **more)

    return {
        "DSA": lambda: latent(memory_pool.DSATokenToKVPool, torch.bfloat16, index_head_dim=128, kv_cache_dim=192),
        "MLA in FP4": lambda: latent(memory_pool.MLATokenToKVPoolFP4, torch.float4_e2m1fn_x2),
        "MHA in MXFP8": lambda: heads(memory_pool.MHATokenToKVPoolMXFP8, torch.float8_e4m3fn),
        "MHA in FP4": lambda: heads(memory_pool.MHATokenToKVPoolFP4, torch.float4_e2m1fn_x2),
        "K and V of two widths": lambda: heads(memory_pool.MHATokenToKVPool, torch.float32, v_head_dim=32),
    }


@pytest.mark.parametrize("name", ["DSA", "MLA in FP4", "MHA in MXFP8", "MHA in FP4", "K and V of two widths"])
def test_pools_with_more_than_rows_of_one_kind_are_not_served(make_server: MakeServer, name: str) -> None:
    make_server(**SIZES)
    from radixtier.sglang.pools import page_shape

    assert page_shape(pools()[name](), 64, "page_first_direct") is None


def test_what_stands_for_an_image_is_found_again_after_a_restart(make_server: MakeServer) -> None:
    """SGLang writes four numbers of 62 bits, made of the image's hash, over and over in place of its tokens."""
    first = make_server(**SIZES)
    images = [[1_000_000 + 2**62 - 1 - number - each for number in range(4)] for each in (0, 8)]
    front = first.prompt(2, 1)
    prompts = [[*front, *image * 2, *first.prompt(2, 2)] for image in images]
    assert [done.hit for done in served(first, prompts)] == [0, 8], "another image, another path"
    first.evict_hbm()
    first.demote_all()
    assert [done.storage for done in served(first, prompts)] == [24, 16]
    server = restarted(first, make_server)
    assert [done.storage for done in served(server, prompts)] == [24, 16]
    server.check()
