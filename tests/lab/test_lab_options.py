"""Flags that the subcommands of the lab share: what they come to, and one line for what cannot be used."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixtier.cli import lab_options
from radixtier.cli.lab_options import ORACLE, blocks, geometry, policies, rates, traces
from radixtier.footprint import slots_for
from radixtier.lab.geometry import Geometry
from radixtier.lab.rates import Rates
from radixtier.lab.traces.opening import open_trace
from radixtier.lab.traces.recording import Header, TraceWriter
from radixtier.policy.prefill import FAST
from radixtier.tools.breakeven import DEFAULT_KV_BYTES
from radixtier.units import BadValue


def parsed(*argv: str, many: bool = False) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    lab_options.add_traces(parser, many)
    lab_options.add_geometry(parser)
    lab_options.add_policies(parser)
    lab_options.add_rates(parser)
    return parser.parse_args(argv)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = tmp_path / "t.jsonl"
    file.write_text('{"timestamp": 0, "hash_ids": [1]}\nnonsense\n')
    return file


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    file = tmp_path / "r.jsonl"
    header = Header(page_tokens=64, page_bytes=6400, eviction="slru", admission="all", write_budget="1GB/day")
    TraceWriter(file, header).close()
    return file


# ---- traces -----------------------------------------------------------------------------------------


def test_traces_are_opened_as_asked(trace: Path, tmp_path: Path) -> None:
    (opened,) = traces(parsed(str(trace), "--skip-bad"))
    assert [len(request.path) for request in opened.requests()] == [1] and opened.skipped == 1
    sessions = tmp_path / "s.jsonl"
    sessions.write_text("[0, 0.0, 1, 1, 0, 0, 4]\n")
    found = traces(parsed(str(trace), str(sessions), "--spread", "30min", "--seed", "3", many=True))
    again = open_trace(sessions, spread_s=1800.0, seed=3)
    assert list(found[1].requests()) == list(again.requests())


# ---- geometry ---------------------------------------------------------------------------------------


def test_the_geometry_comes_from_the_model_the_file_the_bytes_or_the_recording(
    trace: Path, recording: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}))
    assert geometry(parsed(str(trace))).bytes_per_token == DEFAULT_KV_BYTES
    assert geometry(parsed(str(trace), "--model", "llama-3.1-8b")).bytes_per_token == 131_072
    fp8 = parsed(str(trace), "--model", "llama-3.1-8b", "--kv-dtype", "fp8_e4m3", "--tp", "16")
    assert geometry(fp8) == Geometry(131_072, 16), "half the bytes, twice the heads"
    assert geometry(parsed(str(trace), "--model-config", str(tmp_path))).bytes_per_token == 2 * 2 * 4 * 16 * 2
    assert geometry(parsed(str(trace), "--kv-bytes-per-token", "1000")).bytes_per_token == 1000
    assert geometry(parsed(str(trace), "--kv-bytes-per-token", "160KiB", "--tp", "2")) == Geometry(163_840, 2)
    recorded = open_trace(recording)
    assert geometry(parsed(str(recording)), recorded).bytes_per_token == 100
    assert geometry(parsed(str(recording), "--kv-bytes-per-token", "7"), recorded).bytes_per_token == 7


# ---- policies ---------------------------------------------------------------------------------------


def test_policies_are_those_asked_for_then_recorded_then_the_defaults(trace: Path, recording: Path) -> None:
    defaults = {"eviction": "lru", "admission": "auto", "write_budget": "none", "mirror": False}
    assert policies(parsed(str(trace))) == defaults
    assert policies(parsed(str(trace)), open_trace(trace)) == defaults
    asked = parsed(str(recording), "--policy", ORACLE, "--mirror")
    found = policies(asked, open_trace(recording))
    assert found == {"eviction": ORACLE, "admission": "all", "write_budget": "1GB/day", "mirror": True}


# ---- speeds -----------------------------------------------------------------------------------------


def test_speeds_have_defaults_and_flags(trace: Path) -> None:
    assert rates(parsed(str(trace))) == Rates()
    argv = ["--prefill-rate", "10000", "--decode-rate", "100", "--copy-rate", "6GB/s", "--read-rate", "1e3"]
    with pytest.raises(BadValue, match="--read-rate 1e3"):
        rates(parsed(str(trace), *argv))
    found = rates(parsed(str(trace), *argv[:-1], "2GiB / s", "--write-rate", "500MB"))
    assert found.prefill == pytest.approx((FAST.overhead, FAST.linear / 2, FAST.quadratic / 2))
    assert (found.decode_s, found.copy, found.read, found.write) == (0.01, 6e9, 2.0 * 2**30, 5e8)


def test_speeds_of_drives_come_from_the_doctor_and_flags_go_before_them(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "doctor.json"
    one = {"read_gbps": 4.0, "write_gbps": 1.0}
    file.write_text(json.dumps({"directories": {"/a": one, "/b": one}, "break_even": {"read_gbps": 4.0}}))
    found = rates(parsed(str(trace), "--doctor", str(file)))
    assert (found.read, found.write) == (4e9, 1e9), "both are on one drive"
    assert rates(parsed(str(trace), "--doctor", str(file), "--write-rate", "3GB")).write == 3e9


# ---- sizes ------------------------------------------------------------------------------------------

TINY = Geometry(bytes_per_token=1000, tp=2)


@pytest.mark.parametrize(
    ("text", "found"),
    [("5000", 5000), ("0", 0), ("2Mtok", 31_250), ("100 tok", 1), ("1MB", 15), ("1MiB", 16), ("0GB", 0)],
)
def test_a_size_is_blocks_tokens_or_bytes(text: str, found: int) -> None:
    assert blocks(text, "--dram", TINY, 64) == found


def test_a_store_has_overhead_on_every_rank() -> None:
    found = blocks("10GB", "--nvme", TINY, 64, nvme=True)
    assert found == slots_for(5 * 10**9, 32_000, 64) < 10**10 // 64_000


@given(st.integers(0, 1 << 50))
def test_a_bare_integer_is_that_many_blocks(count: int) -> None:
    assert blocks(str(count), "--nvme", TINY, 512, nvme=True) == count


# ---- what cannot be used ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "flag", "why"),
    [
        ("0", "--hbm", "--hbm 0: a server has HBM. Write 5000 (blocks"),
        ("0GB", "--hbm", "--hbm 0GB: a server has HBM"),
        ("-3", "--dram", "--dram -3: a size cannot be negative. Write 5000"),
        ("-3GB", "--dram", "--dram -3GB: a size cannot be negative. Write 5000"),
        (str((1 << 50) + 1), "--nvme", f"more than {1 << 50} blocks. Write"),
        ("9" * 40, "--nvme", "more than"),
        ("999999999999999999999TB", "--nvme", "more than"),
        ("10KB", "--dram", "--dram 10KB: less than one block (64 tokens, 62.5 KiB). Write"),
        ("100KB", "--nvme", "and a journal"),
        ("63tok", "--dram", "less than one block"),
        ("64 GBit", "--dram", "--dram 64 GBit: unknown unit 'GBit'. Write 5000"),
        ("lots", "--dram", "--dram lots: not a size. Write 5000"),
        ("", "--dram", "--dram : not a size"),
        ("nan", "--dram", "not a size"),
    ],
)
def test_a_size_that_cannot_be_is_one_line_with_flag_value_and_fix(text: str, flag: str, why: str) -> None:
    geometry = Geometry(bytes_per_token=1000, tp=1)
    with pytest.raises(BadValue) as error:
        blocks(text, flag, geometry, 64, nvme=flag == "--nvme")
    assert why in str(error.value) and "\n" not in str(error.value)


@given(st.text(max_size=12))
def test_any_text_is_a_size_or_bad(text: str) -> None:
    found, why = 1, f"--hbm {text}: "
    try:
        found = blocks(text, "--hbm", TINY, 64)
    except BadValue as error:
        why = str(error)
    assert 1 <= found <= 1 << 50 and why.startswith(f"--hbm {text}: ")


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["--model", "gpt-7"], "--model gpt-7: no preset gpt-7. Choose one of"),
        (["--model", "smollm2-135m", "--tp", "2"], "--model smollm2-135m: 3 KV heads cannot be shared evenly by 2"),
        (["--tp", "0"], "--tp 0: no number of ranks"),
        (["--kv-dtype", "float32"], "--kv-dtype float32: of which model"),
        (["--kv-bytes-per-token", "0"], "--kv-bytes-per-token 0: no number"),
        (["--kv-bytes-per-token", "2tok"], "--kv-bytes-per-token 2tok: no number"),
        (["--kv-bytes-per-token", "x"], "--kv-bytes-per-token x: not a size"),
        (["--write-budget", "lots"], "--write-budget lots: not a size. Write 500GB/day"),
        (["--prefill-rate", "0"], "--prefill-rate 0: no rate"),
        (["--prefill-rate", "nan"], "--prefill-rate nan: no rate"),
        (["--decode-rate", "fast"], "--decode-rate fast: no rate"),
        (["--copy-rate=-1GB"], "--copy-rate -1GB: a size cannot be negative. Give bytes"),
        (["--read-rate", "5Mtok"], "--read-rate 5Mtok: no number of bytes"),
        (["--spread", "soon"], "--spread soon: no time"),
    ],
)
def test_a_flag_that_cannot_be_used_is_named(trace: Path, argv: list[str], why: str) -> None:
    options = parsed(str(trace), *argv)
    with pytest.raises(BadValue) as error:
        traces(options), geometry(options), policies(options), rates(options)
    assert str(error.value).startswith(why) and "\n" not in str(error.value)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"directories": {}, "break_even": {}}', '{"directories": 3}'])
def test_a_report_of_the_doctor_without_speeds_is_named(trace: Path, tmp_path: Path, content: Any) -> None:
    file = tmp_path / "doctor.json"
    file.write_text(content)
    with pytest.raises(BadValue, match=f"--doctor {file}: no speeds"):
        rates(parsed(str(trace), "--doctor", str(file)))


def test_files_that_are_not_there_are_left_to_the_dispatcher(trace: Path) -> None:
    for read, argv in ((rates, ["--doctor", "/nope"]), (geometry, ["--model-config", "/nope"])):
        with pytest.raises(FileNotFoundError):
            read(parsed(str(trace), *argv))
