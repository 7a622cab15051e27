"""``radixtier config``: what is refused, what settings come to, and a schema that agrees with what is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from radixtier.cli.config_schema import schema
from radixtier.cli.main import main
from radixtier.settings import SETTINGS, load_config

DOCS = Path(__file__).parents[2] / "docs"
VALIDATOR = jsonschema.Draft202012Validator(schema())


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in SETTINGS:
        monkeypatch.delenv(setting.env, raising=False)
    monkeypatch.delenv("RADIXTIER_CONFIG", raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def make(text: str) -> str:
        made = tmp_path / "tier.yaml"
        made.write_text(text)
        return str(made)

    return make


# ---- check --------------------------------------------------------------------------------------------------------


def test_a_good_file(file: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = file(f"version: 1\nnvme-path: [{tmp_path}]\nnvme-size: 64MiB\ndram-size: 64MiB\nnvme-min-free: 0\n")
    assert main(["config", "check", name]) == 0
    assert capsys.readouterr().out == "nothing is in the way\n"


def test_everything_that_is_wrong_is_told(file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", file("dram-sise: 1GiB\nscrub: 1Mtok\neviction: fifo\n")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and "Did you mean dram-size?" in lines[0] and "tokens where bytes are meant" in lines[1]
    assert main(["config", "check", file("eviction: fifo\nnvme-path: [/nowhere]\ncontrol: nowhere\n"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["ok"]
    assert [each["value"] for each in found["problems"]] == ["/nowhere", "fifo", "nowhere"]
    assert all(each["why"] and each["fix"] for each in found["problems"])


def test_the_form_alone(file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    name = file("nvme-path: [/mnt/of/another/machine]\ndram-size: 900TB\n")
    assert main(["config", "check", name]) == 1
    capsys.readouterr()
    assert main(["config", "check", "--form", name]) == 0
    assert capsys.readouterr().out == "names and values are in order\n"


def test_the_environment(file: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RADIXTIER_SCRUB", "fast")
    assert main(["config", "check", file("dram-size: 64MiB\n")]) == 0, "the file alone"
    capsys.readouterr()
    assert main(["config", "check", "--env"]) == 1
    assert capsys.readouterr().out.startswith("RADIXTIER_SCRUB fast: not a size.")
    monkeypatch.setenv("RADIXTIER_SCRUB", "1MiB")
    monkeypatch.setenv("RADIXTIER_CONFIG", file("scrubb: 1\n"))
    assert main(["config", "check", "--env"]) == 1
    assert "Did you mean scrub?" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [["check", "/nowhere.yaml"], ["print", "/nowhere.yaml"]])
def test_a_file_that_is_not_there(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", *argv]) == 2
    assert capsys.readouterr().err == "radixtier config: /nowhere.yaml: No such file or directory\n"


@pytest.mark.parametrize("argv", [[], ["check"], ["check", "x", "--env"], ["nope"]])
def test_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["config", *argv])
    assert end.value.code == 2 and "usage: radixtier config" in capsys.readouterr().err


@pytest.mark.parametrize("version", ["2", "0", "1.0", "'1'", "true", "null", "[1]"])
def test_another_version_of_the_file_is_refused(file: Any, version: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", "--form", file(f"version: {version}\nno-such-key: 1\n")]) == 1
    [line] = capsys.readouterr().out.splitlines()
    assert "does not know this version of the file. Write version: 1" in line


# ---- print --------------------------------------------------------------------------------------------------------


def test_where_each_setting_comes_from(
    file: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RADIXTIER_DRAM_SIZE", "3GiB")
    name = file(f"version: 1\nenable: true\ndram_size: 1GiB\nhbm-size: 1.5ktok\nnvme-path: [{tmp_path}]\n")
    assert main(["config", "print", name, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["settings"]) == {setting.name for setting in SETTINGS} and found["version"] == 1
    told = {key: (row["value"], row["origin"]) for key, row in found["settings"].items()}
    assert told["dram_size"] == (3 << 30, "RADIXTIER_DRAM_SIZE")
    assert told["hbm_size"] == ("1500tok", f"hbm-size in {name}")
    assert told["nvme_path"] == ([str(tmp_path)], f"nvme-path in {name}")
    assert told["nvme_size"][0] > 0 and told["nvme_size"][1] == "default", "what a server here would choose"
    assert told["eviction"] == ("auto", "default")


def test_what_is_printed_is_a_file_that_means_the_same(
    file: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = file(f"enable: on\nhbm-size: 4096tok\nnvme-path: [{tmp_path}]\nwrite-budget: 1DWPD\nscrub: 0\n")
    assert main(["config", "print", name]) == 0
    text = capsys.readouterr().out
    VALIDATOR.validate(yaml.safe_load(text))
    assert "scrub: 0 " in text and f"# scrub in {name}" in text
    again = file(text)
    config, problems, _ = load_config({"config": again, "enable": True}, {})
    assert problems == []
    first, _, _ = load_config({"config": file(f"hbm-size: 4096tok\nnvme-path: [{tmp_path}]\n"), "enable": True}, {})
    assert (config.hbm_size, config.nvme_path) == (first.hbm_size, first.nvme_path)
    assert config.scrub.amount == 0 and config.write_budget == "1DWPD"


def test_what_cannot_be_used_is_told_and_left_out(file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "print", file("scrub: 1Mtok\nnvme-path: [/nowhere]\n")]) == 1
    told = capsys.readouterr()
    assert "tokens where bytes are meant" in told.err and "without effect" in told.err
    assert "scrub: 16777216" in told.out and yaml.safe_load(told.out)["nvme-size"] is None


# ---- schema -------------------------------------------------------------------------------------------------------


def test_the_published_schema_is_this_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == 0
    text = capsys.readouterr().out
    jsonschema.Draft202012Validator.check_schema(json.loads(text))
    why = "write it anew: radixtier config schema > docs/config.schema.json"
    assert (DOCS / "config.schema.json").read_text() == text, why


def names(setting: Any) -> list[str]:
    dashed = setting.name.replace("_", "-")
    if setting.name == "enable":
        return ["enable", "enable-radix-tier", "enable_radix_tier"]
    return [dashed, setting.name, f"radix-tier-{dashed}", f"radix_tier_{setting.name}"]


VALUES = {
    "switch": [True, False, "on", "off", 1, 0, None],
    "size": ["64GiB", "1.5Mtok", "2 TB", "4096", "0", 4096, 0, 1e9, "12KIB", "7tok", None],
    "bytes": ["64GiB", "2 TB", "0", 4096, 0, 1e9, None],
    "paths": ["/a", ["/a", "/b"], "/a:/b", None],
    "text": ["none", "500GB/day", "unix:/x", None],
    "file": ["/a/b", None],
}
BAD = {
    "switch": ["maybe", 2, []],
    "size": ["64G", "-1GiB", "", 17, -1, True, [], "1e9GiB"],
    "bytes": ["1Mtok", "64G", 17, {}],
    "paths": [3, [""], [1], ""],
    "word": ["no-such-word", 3],
    "text": [""],
    "file": ["", 3, " "],
}


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_schema_and_reader_agree(setting: Any, file: Any) -> None:
    for name in names(setting):
        for value in VALUES.get(setting.kind) or setting.choices:
            VALIDATOR.validate({name: value})
            assert load_config({"enable": True, "config": file(yaml.safe_dump({name: value}))}, {})[1] == []
        for value in BAD[setting.kind]:
            assert not VALIDATOR.is_valid({name: value})


@settings(max_examples=200, deadline=None)
@example("1iB")
@example("\u0661GiB")
@given(st.from_regex(r"[+-]?[0-9.]{0,4} ?[kKmMgGtT]?i?[bBtok]{0,3}", fullmatch=True) | st.text(max_size=6))
def test_a_size_that_the_schema_takes_can_be_read(text: str) -> None:
    for name in ("dram-size", "scrub"):
        if VALIDATOR.is_valid({name: text}):
            _, problems, _ = load_config({"enable": True, name.replace("-", "_"): text}, {})
            assert all("less than any page" in problem.why for problem in problems)


@pytest.mark.parametrize(
    "content", [{"version": 2}, {"version": "1"}, {"config": "x"}, {"dram": 1}, [], "text", {"version-1": 1}]
)
def test_what_is_no_file_of_settings(content: Any) -> None:
    assert not VALIDATOR.is_valid(content)
