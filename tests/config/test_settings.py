"""The three sources: flag > environment > YAML > default, and nothing dropped without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from radixtier.settings import load_config
from radixtier.units import Size, Unit

MIB = 2**20


def yaml_file(directory: Path, text: str) -> str:
    file = directory / "tier.yaml"
    file.write_text(text)
    return str(file)


def errors(flags: dict[str, object], env: dict[str, str] | None = None) -> list[str]:
    return [str(problem) for problem in load_config({"enable": True, **flags}, env or {})[1]]


def test_nothing_given() -> None:
    config, problems, notes = load_config({}, {"HOME": "/", "PATH": "/bin"})
    assert not config.enable
    assert problems == []
    assert notes == []


def test_precedence(tmp_path: Path) -> None:
    file = yaml_file(tmp_path, "dram-size: 1MiB\nhbm-size: 1MiB\nnvme-size: 1MiB\n")
    env = {"RADIXTIER_HBM_SIZE": "2MiB", "RADIXTIER_NVME_SIZE": "2MiB"}
    config, problems, _ = load_config({"enable": True, "config": file, "nvme_size": "3MiB"}, env)
    assert problems == []
    assert (config.dram_size, config.hbm_size, config.nvme_size) == (Size(MIB), Size(2 * MIB), Size(3 * MIB))
    assert config.named("dram_size") == f"dram-size in {file}"
    assert config.named("hbm_size") == "RADIXTIER_HBM_SIZE"
    assert config.named("nvme_size") == "--radix-tier-nvme-size"


@pytest.mark.parametrize(
    "key", ["dram-size", "dram_size", "radix-tier-dram-size", "radix_tier_dram_size", "Radix-Tier-DRAM-Size"]
)
def test_yaml_names(tmp_path: Path, key: str) -> None:
    config, problems, _ = load_config({"enable": True, "config": yaml_file(tmp_path, f"{key}: 1.5Mtok")}, {})
    assert problems == []
    assert config.dram_size == Size(1_500_000, Unit.TOKENS)


@pytest.mark.parametrize("key", ["enable", "enable-radix-tier", "enable_radix_tier"])
def test_yaml_may_enable(tmp_path: Path, key: str) -> None:
    assert load_config({}, {"RADIXTIER_CONFIG": yaml_file(tmp_path, f"{key}: true")})[0].enable


def test_yaml_values(tmp_path: Path) -> None:
    text = f"hbm-size: 8192\ndram-size: 1.0e+9\nnvme-size: null\nnvme-path: [{tmp_path}]\nio-engine: POSIX\n"
    config, problems, _ = load_config({"enable": True, "config": yaml_file(tmp_path, text)}, {})
    assert problems == []
    assert (config.hbm_size, config.dram_size, config.nvme_size) == (Size(8192), Size(10**9), None)
    assert config.nvme_path == (str(tmp_path),)
    assert config.io_engine == "posix"


def test_unknown_yaml_key(tmp_path: Path) -> None:
    [line] = errors({"config": yaml_file(tmp_path, "dram-sise: 1GiB")})
    assert "unknown key. Did you mean dram-size?" in line


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("- 1\n", "not a mapping"),
        ("a: [", "not valid YAML"),
        ("dram-size: 1MiB\ndram_size: 2MiB\n", "given twice"),
        ("nvme-path: 3\n", "not a directory name"),
        ("dram-size: [1]\n", "not a size"),
        ("enable: 17\n", ""),
    ],
)
def test_bad_yaml(tmp_path: Path, text: str, why: str) -> None:
    found = errors({"config": yaml_file(tmp_path, text)})
    assert len(found) == (1 if why else 0)
    assert all(why in line and "\n" not in line for line in found)


def test_missing_yaml(tmp_path: Path) -> None:
    [line] = errors({"config": str(tmp_path / "none.yaml")})
    assert line.startswith("--radix-tier-config ")
    assert "No such file" in line


def test_empty_yaml(tmp_path: Path) -> None:
    assert errors({"config": yaml_file(tmp_path, "")}) == []


@pytest.mark.parametrize(
    ("text", "on"), [("1", True), ("True", True), ("on", True), ("0", False), ("no", False), ("", False)]
)
def test_switch(text: str, on: bool) -> None:
    config, problems, _ = load_config({}, {"RADIXTIER_ENABLE": text})
    assert config.enable is on
    assert problems == []


def test_neither_on_nor_off() -> None:
    [problem] = load_config({}, {"RADIXTIER_ENABLE": "maybe"})[1]
    assert str(problem) == "RADIXTIER_ENABLE maybe: neither on nor off. Write 1 or 0."


def test_misspelt_variable() -> None:
    [line] = errors({}, {"RADIXTIER_DRAMSIZE": "1GiB", "RADIXTIER_TEST_SCALE": "3"})
    assert line == "RADIXTIER_DRAMSIZE 1GiB: unknown variable. Did you mean RADIXTIER_DRAM_SIZE?"


def test_paths_in_the_environment() -> None:
    config, _, _ = load_config({"enable": True}, {"RADIXTIER_NVME_PATH": "/a:/b"})
    assert config.nvme_path == ("/a", "/b")


def test_several_paths_in_yaml(tmp_path: Path) -> None:
    file = yaml_file(tmp_path, "nvme-path:\n  - /a\n  - ~/b\n")
    config, problems, _ = load_config({"enable": True, "config": file}, {})
    assert problems == []
    assert config.nvme_path == ("/a", str(Path("~/b").expanduser()))


def test_settings_of_the_store() -> None:
    config, problems, _ = load_config({"enable": True}, {})
    assert problems == []
    assert (config.nvme_min_free, config.nvme_others, config.scrub) == (Size(2**30), "reclaim", Size(16 * MIB))
    flags = {"enable": True, "nvme_min_free": "0", "nvme_others": " Keep "}
    config, problems, _ = load_config(flags, {"RADIXTIER_SCRUB": "1GB"})
    assert problems == []
    assert (config.nvme_min_free, config.nvme_others, config.scrub) == (Size(0), "keep", Size(10**9))


def test_file_of_a_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config({"enable": True}, {})[0].record is None
    for given, meant in (("trace", tmp_path / "trace"), (" ~/trace ", Path("~/trace").expanduser())):
        config, problems, _ = load_config({"enable": True, "record": given}, {})
        assert problems == []
        assert config.record == str(meant), "a scheduler process may have another working directory"
    assert load_config({"enable": True}, {"RADIXTIER_RECORD": "/x"})[0].record == "/x"
    [line] = errors({"config": yaml_file(tmp_path, "record: 3\n")})
    assert line.startswith("record in ") and "not the name of a file. Name a file that does not exist yet" in line


@pytest.mark.parametrize("name", ["nvme_min_free", "scrub"])
def test_tokens_where_bytes_are_meant(name: str) -> None:
    [line] = errors({name: "1Mtok"})
    assert line == (
        f"--radix-tier-{name.replace('_', '-')} 1Mtok: a number of tokens where bytes are meant. "
        "Write 1GiB, 16MiB, 2GB or plain bytes."
    )


def test_every_bad_value_is_reported() -> None:
    found = errors({"dram_size": "64G", "hbm_size": "-1GiB"}, {"RADIXTIER_NVME_SIZE": "x"})
    assert [line.split(":")[0] for line in found] == [
        "--radix-tier-dram-size 64G",
        "--radix-tier-hbm-size -1GiB",
        "RADIXTIER_NVME_SIZE x",
    ]


def test_flags_without_the_switch() -> None:
    _, problems, _ = load_config({"dram_size": "1GiB", "nvme_path": ["/a"]}, {})
    assert [problem.setting for problem in problems] == ["--radix-tier-dram-size", "--radix-tier-nvme-path"]
    assert all("no effect without --enable-radix-tier" in problem.why for problem in problems)


def test_a_variable_without_the_switch_is_told() -> None:
    _, problems, notes = load_config({}, {"RADIXTIER_DRAM_SIZE": "1GiB"})
    assert problems == []
    assert notes == ["RADIXTIER_DRAM_SIZE without effect: --enable-radix-tier is not given"]


def test_size_zero_on_the_command_line_overrides_a_path_in_yaml(tmp_path: Path) -> None:
    file = yaml_file(tmp_path, f"nvme-path: {tmp_path}\n")
    config, problems, notes = load_config({"enable": True, "config": file, "nvme_size": "0"}, {})
    assert problems == []
    assert config.nvme_path == ()
    assert len(notes) == 1


def test_size_zero_and_path_from_one_source_stay_a_contradiction(tmp_path: Path) -> None:
    config, _, _ = load_config({"enable": True, "nvme_path": [str(tmp_path)], "nvme_size": "0"}, {})
    assert config.nvme_path == (str(tmp_path),)
