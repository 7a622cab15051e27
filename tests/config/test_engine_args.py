"""Settings for users of Engine: checked at once, carried by an argument that SGLang has, found again at the start."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import radixtier
from radixtier.config import RadixTierConfigError
from radixtier.settings import BACKEND
from radixtier.units import Size, Unit


def test_what_engine_gets(tmp_path: Path) -> None:
    given = radixtier.engine_args(nvme_path=str(tmp_path), dram_size="64MiB")
    assert given == {"radix_cache_backend": BACKEND}
    carried = pickle.loads(pickle.dumps(given["radix_cache_backend"]))
    assert carried == BACKEND and carried.settings["dram_size"] == "64MiB"
    assert radixtier.engine_args(enable=False) == {}


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"dram_size": "5parsecs"}, "radixtier: dram_size 5parsecs: "),
        ({"dram_siz": 1}, "radixtier: dram_siz 1: unknown setting. Did you mean dram-size?"),
        ({"nvme_path": "/nope"}, "radixtier: nvme_path /nope: the directory does not exist"),
        ({"nvme_path": Path("/nope")}, "radixtier: nvme_path /nope: the directory does not exist"),
        ({"nvme_path": [Path("/nope")]}, "radixtier: nvme_path /nope: the directory does not exist"),
        ({"eviction": "mru"}, "radixtier: eviction mru: unknown policy"),
        ({"config": "/nope.yaml"}, "radixtier: config /nope.yaml: cannot be read"),
        ({"enable": False, "dram_size": "1GiB"}, "radixtier: dram_size 1GiB: no effect without"),
    ],
)
def test_a_bad_value_is_one_line_with_its_name(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(RadixTierConfigError) as raised:
        radixtier.engine_args(**settings)
    assert str(raised.value).startswith(line) and "\n" not in str(raised.value)


def test_all_problems_at_once() -> None:
    with pytest.raises(RadixTierConfigError) as raised:
        radixtier.engine_args(dram_size="x", nvme_size="y", wrong=1)
    assert len(raised.value.problems) == 3


def test_the_environment_fills_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADIXTIER_EVICTION", "mru")
    with pytest.raises(RadixTierConfigError, match="RADIXTIER_EVICTION mru"):
        radixtier.engine_args()
    assert radixtier.engine_args(eviction="lru")


def test_nothing_heavy_is_imported() -> None:
    program = "import sys, radixtier; assert 'numpy' not in sys.modules and 'yaml' not in sys.modules\n"
    program += "radixtier.engine_args(); sys.exit(bool({'torch', 'sglang'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60).returncode == 0


def test_the_start_finds_them(model: str) -> None:
    pytest.importorskip("sglang")
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import ServerArgs

    load_plugins()
    stock: dict[str, Any] = {"device": "cpu", "dtype": "float32", "attention_backend": "torch_native"}
    stock |= {"model_path": model, "skip_tokenizer_init": True}
    records = [
        ServerArgs(**stock, **radixtier.engine_args(hbm_size="4MiB", dram_size=size)) for size in ("8MiB", "16Ktok")
    ]
    for record in records:
        record.resolve_once()
    assert [record._radix_tier.dram_size for record in records] == [Size(8 * 2**20), Size(16000, Unit.TOKENS)]
    assert type(resolving_view(records[0]).radix_cache_backend) is str
    off = ServerArgs(**stock, **radixtier.engine_args(enable=False))
    off.resolve_once()
    assert off._radix_tier is None
    with pytest.raises(RadixTierConfigError, match="dram_size 1KiB: less than one page"):
        ServerArgs(**stock, **radixtier.engine_args(hbm_size="4MiB", dram_size="1KiB")).resolve_once()
