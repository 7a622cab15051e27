"""Several tensor parallel ranks: each gets its part of the sizes and its own store, and one of them the endpoint."""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from sglang_rig import MLA, command_line, resolved, write_model

from radixtier.footprint import footprint
from radixtier.machine import Machine
from radixtier.policy.write_budget import Budgeted
from radixtier.sglang import factory, resolution
from radixtier.sglang.identity import PageShape, store_identity
from radixtier.sglang.stack import Tiers

SIZES = ["--radix-tier-hbm-size", "4MiB", "--radix-tier-dram-size", "8MiB"]
TOKEN = 512
"""KV bytes of a token of the model with two KV heads."""


@pytest.fixture
def drives(tmp_path: Path) -> list[str]:
    found = [str(tmp_path / name) for name in "ab"]
    for directory in found:
        os.mkdir(directory)
    return found


def sizes(model: str, ranks: int, *flags: str) -> Any:
    record = command_line(model, "--enable-radix-tier", *SIZES, "--tp-size", str(ranks), *flags)
    record.resolve_once()
    return resolution.sizes_of(record)


def refused(capsys: pytest.CaptureFixture[str], model: str, *flags: str) -> str:
    with pytest.raises(SystemExit):
        resolved(model, *flags)
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("radixtier: error: ")]
    return line.removeprefix("radixtier: error: ")


@pytest.mark.parametrize(
    ("kv_heads", "ranks", "held"),
    [(2, 1, 2), (2, 2, 1), (4, 2, 2), (4, 4, 1), (2, 4, 1), (1, 2, 1)],
)
def test_a_page_on_a_rank_has_its_kv_heads(tmp_path: Path, kv_heads: int, ranks: int, held: int) -> None:
    model = write_model(tmp_path / "model", num_key_value_heads=kv_heads)
    found = sizes(model, ranks)
    assert found.bytes_per_token == held * TOKEN // 2
    assert found.page_bytes == 16 * held * TOKEN // 2
    assert found.ranks == ranks


@pytest.mark.parametrize("ranks", [1, 2])
def test_bytes_are_of_the_server_and_shared(model: str, drives: list[str], ranks: int) -> None:
    flags = ["--radix-tier-nvme-path", *drives, "--radix-tier-nvme-size", "16MiB"]
    found = sizes(model, ranks, *flags)
    assert found.dram_bytes * ranks == 8 << 20
    assert found.hbm_tokens == (4 << 20) // TOKEN
    assert found.dram_tokens == (8 << 20) // TOKEN
    assert found.nvme_bytes * ranks <= 16 << 20
    more = footprint(found.nvme_slots + 2, found.page_bytes, 16, 2)
    assert more * ranks > 16 << 20, "no page more would fit"


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_latent_is_stored_once(tmp_path: Path, drives: list[str], ranks: int) -> None:
    model = write_model(tmp_path / "model", **MLA)
    found = sizes(model, ranks, "--radix-tier-nvme-path", *drives, "--radix-tier-nvme-size", "16MiB")
    assert found == dataclasses.replace(
        sizes(model, 1, "--radix-tier-nvme-path", *drives, "--radix-tier-nvme-size", "16MiB"), ranks=ranks,
        hbm_pages=found.hbm_pages, dram_pages=found.dram_pages,
    )  # fmt: skip
    assert found.stores == 1 and found.nvme_bytes <= 16 << 20
    assert footprint(found.nvme_slots + 2, found.page_bytes, 16, 2) > 16 << 20, "no page more would fit"
    assert found.dram_pages == (8 << 20) // ranks // found.page_bytes, "and in memory on every rank"


def test_the_log_tells_the_bytes_of_the_one_store(
    tmp_path: Path, drives: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    flags = ["--radix-tier-nvme-path", *drives, "--radix-tier-nvme-size", "992tok", "--tp-size", "2"]
    record = command_line(write_model(tmp_path / "model", **MLA), "--enable-radix-tier", *SIZES, *flags)
    logging.getLogger().addHandler(caplog.handler)
    record.resolve_once()
    found = resolution.sizes_of(record)
    [line] = [text for text in caplog.messages if text.startswith("radixtier: tiers: ")]
    assert f"NVMe 992 tokens ({footprint(62, found.page_bytes, 16, 2) / 2**20:.1f} MiB) in " in line
    [line] = [text for text in caplog.messages if text.startswith("radixtier: every rank has")]
    assert line.startswith("radixtier: every rank has the whole latent of a token: HBM and DRAM hold it 2 times")


def test_the_least_that_the_one_store_takes(
    tmp_path: Path, drives: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "model", **MLA)
    flags = [*SIZES, "--tp-size", "2", "--radix-tier-nvme-path", *drives, "--radix-tier-nvme-size"]
    least = footprint(2, sizes(model, 1).page_bytes, 16, 2)
    line = refused(capsys, model, *flags, str(least - 1))
    assert f"Give it at least {-(-least // 1024)}KiB" in line
    resolved(model, *flags, f"{-(-least // 1024)}KiB")


def test_tokens_are_the_same_on_every_rank(model: str, drives: list[str]) -> None:
    flags = ["--radix-tier-hbm-size", "1600tok", "--radix-tier-dram-size", "3200tok"]
    flags += ["--radix-tier-nvme-size", "6400tok", "--radix-tier-nvme-path", *drives]
    found = sizes(model, 2, *flags)
    assert (found.hbm_tokens, found.dram_tokens, found.nvme_tokens) == (1600, 3200, 6400)


def test_the_budget_of_a_rank_is_the_servers_in_tokens(model: str) -> None:
    view = resolved(model, *SIZES, "--tp-size", "2")
    assert view.max_total_tokens == (4 << 20) // TOKEN


def test_the_log_tells_the_bytes_of_all_ranks(model: str, drives: list[str], caplog: pytest.LogCaptureFixture) -> None:
    flags = ["--radix-tier-nvme-path", *drives, "--radix-tier-nvme-size", "992tok", "--tp-size", "2"]
    record = command_line(model, "--enable-radix-tier", *SIZES, *flags)
    logging.getLogger().addHandler(caplog.handler)
    record.resolve_once()
    nvme = 2 * footprint(62, 16 * TOKEN // 2, 16, 2) / 2**20
    [line] = [text for text in caplog.messages if text.startswith("radixtier: tiers: ")]
    assert "HBM 8192 tokens, DRAM 16384 tokens (8.0 MiB)" in line
    assert f"NVMe 992 tokens ({nvme:.1f} MiB) in " in line
    assert line.endswith(f"{TOKEN} bytes per token on 2 ranks together")
    assert not [text for text in caplog.messages if "every KV head" in text]


@pytest.mark.parametrize(("kv_heads", "ranks", "copies"), [(1, 2, 2), (2, 4, 2), (1, 4, 4)])
def test_the_log_tells_of_heads_that_are_there_several_times(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kv_heads: int, ranks: int, copies: int
) -> None:
    model = write_model(tmp_path / "model", num_key_value_heads=kv_heads)
    record = command_line(model, "--enable-radix-tier", *SIZES, "--tp-size", str(ranks))
    logging.getLogger().addHandler(caplog.handler)
    record.resolve_once()
    [line] = [text for text in caplog.messages if "every KV head" in text]
    assert line.startswith(f"radixtier: every KV head is on {copies} ranks, so a token takes {copies} times the bytes")
    assert resolution.sizes_of(record).bytes_per_token * ranks == kv_heads * copies * TOKEN // 2


@pytest.mark.parametrize(
    ("flags", "start"),
    [
        (["--radix-tier-hbm-size", "8191"], "less than one page of 16 tokens, 8.0 KiB on 2 ranks"),
        (["--radix-tier-dram-size", "8191"], "less than one page of 16 tokens, 8.0 KiB on 2 ranks"),
    ],
)
def test_a_page_is_told_with_all_its_parts(
    model: str, capsys: pytest.CaptureFixture[str], flags: list[str], start: str
) -> None:
    assert f"{flags[0]} 8191: {start}" in refused(capsys, model, *SIZES, "--tp-size", "2", *flags)


def test_the_least_that_all_stores_take(model: str, drives: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*SIZES, "--tp-size", "2", "--radix-tier-nvme-path", *drives, "--radix-tier-nvme-size"]
    least = 2 * footprint(2, 16 * TOKEN // 2, 16, 2)
    line = refused(capsys, model, *flags, str(least - 1))
    assert line.endswith(f"Give it at least {least // 1024}KiB, which holds one page per directory, or 0 for none.")
    resolved(model, *flags, f"{least // 1024}KiB")


@pytest.mark.parametrize(
    ("megabytes", "fits"),
    [(17, True), (15, False)],
)
def test_memory_holds_the_tiers_of_all_ranks_once(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, megabytes: int, fits: bool
) -> None:
    """HBM lies in memory as well on a CPU: 12 MiB in all, of what is there less a quarter."""
    monkeypatch.setattr(Machine, "probe", classmethod(lambda cls: cls(ram_bytes=megabytes * 2**20)))
    if fits:
        resolved(model, *SIZES, "--tp-size", "2")
    else:
        assert refused(capsys, model, *SIZES, "--tp-size", "2").startswith("--radix-tier-dram-size 8MiB: more than")


def test_tokens_count_with_the_bytes_of_all_ranks(
    model: str, drives: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = ["--device", "cuda", "--attention-backend", "triton", "--tp-size", "2"]
    monkeypatch.setattr(resolution, "_device_memory", lambda device: 2**30)
    monkeypatch.setattr(Machine, "probe", classmethod(lambda cls: cls(ram_bytes=100 * TOKEN * 1024)))
    line = refused(capsys, model, *SIZES, *gpu, "--radix-tier-dram-size", f"{80 * 1024}tok")
    assert line.startswith("--radix-tier-dram-size 81920tok: more than the machine has")
    resolved(model, *SIZES, *gpu, "--radix-tier-dram-size", f"{70 * 1024}tok")


def test_a_gpu_holds_its_part_only(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = ["--device", "cuda", "--attention-backend", "triton", "--tp-size", "2"]
    monkeypatch.setattr(resolution, "_device_memory", lambda device: 2 << 20)
    resolved(model, *SIZES, *gpu)
    monkeypatch.setattr(resolution, "_device_memory", lambda device: 1 << 20)
    line = refused(capsys, model, *SIZES, *gpu)
    assert line.startswith(
        "--radix-tier-hbm-size 4MiB: the 2.0 MiB for each of 2 GPUs are more than the 1.0 MiB that one has"
    )


# What a rank builds


class Cache:
    """Stands for the cache, which is not built."""

    recording: object = None


class Context:
    """SGLang's ``TreeCacheBuildContext``, as far as it is looked at."""

    class params:
        tp_cache_group = "the group"

    def __init__(self, server_args: Any, rank: int) -> None:
        self.server_args, self.tp_rank = server_args, rank


@pytest.fixture
def tiers_of(drives: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def build(ranks: int, rank: int, **fields: Any) -> Tiers:
        model = write_model(tmp_path / "served", **fields)
        flags = ["--radix-tier-nvme-path", *drives, "--radix-tier-nvme-size", "16MiB", "--tp-size", str(ranks)]
        flags += ["--radix-tier-write-budget", "64GB/day", "--radix-tier-scrub", "1MiB"]
        flags += ["--radix-tier-record", str(tmp_path / "load.jsonl")]
        record = command_line(model, "--enable-radix-tier", *SIZES, *flags)
        record.resolve_once()
        found: list[Any] = []

        def keep(ctx: Any, cache_class: Any) -> Any:
            found.append(cache_class.keywords["tiers"])
            return Cache()

        monkeypatch.setattr("sglang.srt.mem_cache.registry.create_unified_radix_cache", keep)
        monkeypatch.setattr(factory, "_recording", lambda config, cache, ranks: f"over {ranks}")
        cache = factory.create_cache(Context(record, rank))
        assert cache.recording == (f"over {ranks}" if rank == 0 else None)
        return found[0]

    return build


@pytest.mark.parametrize(("ranks", "rank"), [(1, 0), (2, 0), (2, 1), (4, 3)])
def test_one_rank_listens_and_each_has_its_part(tiers_of: Any, drives: list[str], ranks: int, rank: int) -> None:
    tiers = tiers_of(ranks, rank)
    assert (str(tiers.control) if tiers.control else None) == (
        f"unix:{drives[0]}/radixtier.sock" if rank == 0 else None
    )
    assert tiers.scrub_rate == (1 << 20) // ranks
    admission = tiers.admission(100)
    assert isinstance(admission, Budgeted)
    assert admission.budget.bytes_per_day == 64_000_000_000 // ranks


@pytest.mark.parametrize(("ranks", "rank"), [(1, 0), (2, 1)])
def test_a_rank_opens_its_own_store(tiers_of: Any, monkeypatch: pytest.MonkeyPatch, ranks: int, rank: int) -> None:
    opened: list[dict[str, Any]] = []
    met: list[Any] = []

    def page_store(directories: Any, capacity: int, frames: Any, **options: Any) -> None:
        options["cleared"]()
        opened.append({"capacity": capacity, **options})

    monkeypatch.setattr(factory, "PageStore", page_store)
    monkeypatch.setattr(factory, "store_identity", lambda args, shape, rank, ranks: (rank, ranks))
    monkeypatch.setattr("torch.distributed.barrier", lambda group: met.append(group))
    tiers = tiers_of(ranks, rank)
    shape = PageShape("float32", "page_first_direct", 16, 2, 1, 16, 16)
    tiers.open_store(None, shape, tiers.n_slots, lambda: None)
    [found] = opened
    assert (found["rank"], found["ranks"], found["identity"]) == (rank, ranks, (rank, ranks))
    assert found["capacity"] * ranks <= 16 << 20
    assert met == (["the group"] if ranks > 1 else [])


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_the_first_rank_stores_a_latent_for_all(
    tiers_of: Any, monkeypatch: pytest.MonkeyPatch, drives: list[str], rank: int
) -> None:
    happened: list[Any] = []
    opened: dict[str, Any] = {}

    def page_store(directories: Any, capacity: int, frames: Any, **options: Any) -> None:
        options["cleared"]()
        happened.append("made")
        opened.update(options, capacity=capacity)

    def borrowed_store(directories: Any, frames: Any, **options: Any) -> None:
        happened.append("borrowed")
        opened.update(options)

    monkeypatch.setattr(factory, "PageStore", page_store)
    monkeypatch.setattr(factory, "BorrowedStore", borrowed_store)
    monkeypatch.setattr(factory, "store_identity", lambda args, shape, rank, ranks: (rank, ranks))
    monkeypatch.setattr("torch.distributed.barrier", lambda group: happened.append("met"))
    tiers = tiers_of(4, rank, **MLA)
    assert tiers.scrub_rate == 1 << 20
    admission = tiers.admission(100)
    assert isinstance(admission, Budgeted) and admission.budget.bytes_per_day == 64_000_000_000
    shape = PageShape("float32", "page_first_direct", 16, 2, 1, 32, 8, attention="mla")
    tiers.open_store(None, shape, tiers.n_slots, lambda: None)
    assert happened == (["made", "met"] if rank == 0 else ["met", "borrowed"])
    assert opened["identity"] == (0, 4)
    if rank == 0:
        assert (opened["rank"], opened["ranks"]) == (0, 1)
        assert 8 << 20 < opened["capacity"] <= 16 << 20


def test_ranks_have_identities_of_their_own(tmp_path: Path) -> None:
    from sglang.srt.server_args import ServerArgs

    model = write_model(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    shape = PageShape("float32", "page_first_direct", 16, 2, 1, 16, 16)
    one = store_identity(ServerArgs(model_path=model), shape)
    parts = [store_identity(ServerArgs(model_path=model), shape, rank, 2) for rank in range(2)]
    assert one is not None and None not in parts
    assert len({one, *parts}) == 3
    assert [(part.tp_rank, part.tp_size) for part in parts if part] == [(0, 2), (1, 2)]
