"""The names of LoRA adapters, which are their namespaces in the tree and in the store."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed")

SIZES = ["--radix-tier-hbm-size", "4MiB", "--radix-tier-dram-size", "8MiB"]


def test_an_adapter_given_at_the_start_has_the_same_name_each_time(model: str, tmp_path: Path) -> None:
    from sglang.srt.arg_groups.lora_hook import check_lora_server_args
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang_rig import command_line

    flags = ["--lora-paths", f"one={tmp_path / 'adapter'}", "--max-lora-rank", "8", "--lora-target-modules", "all"]
    names = set()
    for _ in range(2):
        record = command_line(model, "--enable-radix-tier", *SIZES, *flags)
        record.resolve_once()
        check_lora_server_args(record)
        names.add(resolving_view(record).lora_paths[0].lora_id)
    assert len(names) == 1


def test_an_adapter_loaded_later_has_another_name_each_time(tmp_path: Path) -> None:
    from sglang.srt.lora.lora_registry import LoRARef

    refs = [LoRARef(lora_name="one", lora_path=str(tmp_path / "adapter")) for _ in range(2)]
    assert refs[0].lora_id != refs[1].lora_id
