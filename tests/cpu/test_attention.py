"""The CPU attention computes what the stock backend computes, for every mix of prefixes and new tokens."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from radixtier.cpu import attention  # noqa: E402

SIZE = 16


class Rig:
    """A pool with random KV, and a batch of sequences in it, run by stock code and by ours."""

    def __init__(
        self, stock: type, prefixes: list[int], news: list[int], heads: int, kv_heads: int, value: int = SIZE
    ) -> None:
        generator = torch.Generator().manual_seed(hash((tuple(prefixes), tuple(news), heads)) % 2**31)
        self.backend = type("Ours", (stock,), {})
        # Another test may have activated the engine in this process: the stock function is below the wrapper.
        for name in ("init_forward_metadata", "_run_sdpa_forward_extend", "_run_sdpa_forward_decode"):
            setattr(self.backend, name, inspect.unwrap(getattr(stock, name)))
        self.stock_extend = self.backend._run_sdpa_forward_extend
        self.stock_decode = self.backend._run_sdpa_forward_decode
        attention.install(self.backend)
        self.lengths = [prefix + new for prefix, new in zip(prefixes, news, strict=True)]
        self.prefixes, self.news = torch.tensor(prefixes), torch.tensor(news)
        slots = sum(self.lengths) + 8
        self.k = torch.randn(slots, kv_heads, SIZE, generator=generator)
        self.v = torch.randn(slots, kv_heads, SIZE, generator=generator) if value == SIZE else self.k[..., :value]
        self.query = torch.randn(sum(news), heads, SIZE, generator=generator)
        self.table = torch.zeros(len(news) + 3, max(self.lengths) + 5, dtype=torch.int32)
        self.rows = torch.randperm(len(news) + 3, generator=generator)[: len(news)]
        self.scattered = torch.randperm(slots, generator=generator).to(torch.int32)
        self.grouped = heads != kv_heads

    def place(self, *, scattered: bool) -> None:
        order = self.scattered if scattered else torch.arange(len(self.scattered), dtype=torch.int32)
        start = 2
        for row, length in zip(self.rows.tolist(), self.lengths, strict=True):
            self.table[row, :length] = order[start : start + length]
            start += length

    def run(self, *, stock: bool, decode: bool = False, window: int | None = None) -> Any:
        batch = SimpleNamespace(
            encoder_lens=None,
            out_cache_loc=None,
            req_pool_indices=self.rows,
            seq_lens=torch.tensor(self.lengths),
            extend_seq_lens=None if decode else self.news,
            forward_mode=SimpleNamespace(is_decode=lambda: decode),
        )
        runner = self.backend.__new__(self.backend)
        runner.use_sliding_window_kv_pool = False
        runner.req_to_token_pool = SimpleNamespace(req_to_token=self.table)
        runner.init_forward_metadata(batch)
        name = "decode" if decode else "extend"
        function = getattr(self, f"stock_{name}") if stock else getattr(self.backend, f"_run_sdpa_forward_{name}")
        lens = () if decode else (self.prefixes, self.news)
        output = torch.full((*self.query.shape[:2], self.v.shape[2]), float("nan"))
        tensors = (self.query, output, self.k, self.v, self.table, self.rows, batch.seq_lens, *lens, None)
        return function(
            runner,
            *tensors,
            scaling=SIZE**-0.5,
            enable_gqa=self.grouped,
            causal=not decode,
            sliding_window_size=window,
        )


@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (9, 3)], ids=str)
@pytest.mark.parametrize("scattered", [False, True], ids=["run of slots", "scattered"])
@pytest.mark.parametrize(
    ("prefixes", "news"),
    [
        ([0], [1]),
        ([0], [37]),
        ([1], [1]),
        ([300], [1]),
        ([64], [20]),
        ([16], [600]),
        ([700], [300]),
        ([0, 128, 5, 0], [33, 1, 260, 1]),
        ([90, 0], [0, 12]),
    ],
    ids=str,
)
def test_extend_equals_stock(
    torch_native: type, prefixes: list[int], news: list[int], heads: tuple[int, int], scattered: bool
) -> None:
    rig = Rig(torch_native, prefixes, news, *heads)
    rig.place(scattered=scattered)
    torch.testing.assert_close(rig.run(stock=False), rig.run(stock=True), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("heads", [(4, 4), (9, 3)], ids=str)
@pytest.mark.parametrize("scattered", [False, True], ids=["run of slots", "scattered"])
def test_decode_equals_stock(torch_native: type, heads: tuple[int, int], scattered: bool) -> None:
    rig = Rig(torch_native, [0, 1, 63, 500], [1, 1, 1, 1], *heads)
    rig.place(scattered=scattered)
    ours, stock = (rig.run(stock=which, decode=True) for which in (False, True))
    torch.testing.assert_close(ours, stock, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("decode", [False, True], ids=["extend", "decode"])
def test_a_latent_whose_front_is_the_value_equals_stock(torch_native: type, decode: bool) -> None:
    """As models with MLA attend: one KV head, and values that are the first part of the keys."""
    rig = Rig(torch_native, [0, 300, 5], [1, 1, 1] if decode else [37, 20, 260], 4, 1, value=12)
    rig.place(scattered=True)
    ours, stock = (rig.run(stock=which, decode=decode) for which in (False, True))
    torch.testing.assert_close(ours, stock, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("decode", [False, True], ids=["extend", "decode"])
def test_sliding_windows_stay_with_stock(torch_native: type, decode: bool) -> None:
    rig = Rig(torch_native, [50], [1] if decode else [9], 4, 4)
    rig.place(scattered=True)
    ours, stock = (rig.run(stock=which, decode=decode, window=8) for which in (False, True))
    assert torch.equal(ours, stock)


def test_extend_reads_no_query_of_the_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work is counted: queries given to the kernel are the new tokens, keys end at a chunk's last query."""
    calls: list[tuple[int, int]] = []
    run = attention._sdpa

    def counting(query: Any, keys: Any, *rest: Any, **options: Any) -> Any:
        calls.append((query.shape[0], keys.shape[0]))
        return run(query, keys, *rest, **options)

    monkeypatch.setattr(attention, "_sdpa", counting)
    table = torch.arange(1000, dtype=torch.int32).unsqueeze(0)
    plan = attention.plan_batch(table, torch.tensor([0]), torch.tensor([1000]), torch.tensor([600]))
    query, cache = torch.randn(600, 2, SIZE), torch.randn(1000, 2, SIZE)
    attention.attend(query, torch.empty_like(query), cache, cache, plan, None)
    assert calls == [(256, 656), (256, 912), (88, 1000)]


def test_kv_in_one_run_is_not_copied() -> None:
    table = torch.tensor([[7, 8, 9, 10], [4, 5, 3, 2]], dtype=torch.int32)
    plan = attention.plan_batch(table, torch.tensor([0, 1]), torch.tensor([4, 4]), None)
    assert plan.sequences[0].keys == slice(7, 11)
    assert plan.sequences[1].keys.tolist() == [4, 5, 3, 2]
