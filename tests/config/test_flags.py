"""The flags: on SGLang's parser, in its YAML, and in the documentation, under the same names."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest
from sglang_rig import command_line

from radixtier.config import RadixTierConfig
from radixtier.settings import CONFIG_FILE, SETTINGS
from radixtier.sglang.flags import add_flags, given_flags

DOCS = (Path(__file__).parents[2] / "docs" / "flags.md").read_text()


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    add_flags(made)
    return made


def test_every_setting_is_a_field_and_a_flag(parser: argparse.ArgumentParser) -> None:
    flags = {option for action in parser._actions for option in action.option_strings} - {"-h", "--help"}
    assert flags == {setting.flag for setting in (*SETTINGS, CONFIG_FILE)}
    assert {setting.name for setting in SETTINGS} == set(RadixTierConfig.__dataclass_fields__) - {"origin"}


def test_help_tells_default_and_variable(parser: argparse.ArgumentParser) -> None:
    text = " ".join(parser.format_help().split())
    for setting in (*SETTINGS, CONFIG_FILE):
        assert setting.env in text
        assert f"Default: {setting.default}." in text


def test_the_documentation_has_the_same_names_and_defaults() -> None:
    rows = re.findall(r"^\| `(--\S+?)(?: \S+)?` \| `(\w+)` \| (?:`(\S+)`)? ?\| (.+?) \|$", DOCS, re.MULTILINE)
    documented = {flag: (env, key, default.replace("`", "")) for flag, env, key, default in rows}
    expected = {s.flag: (s.env, s.name.replace("_", "-"), s.default) for s in SETTINGS}
    expected[CONFIG_FILE.flag] = (CONFIG_FILE.env, "", CONFIG_FILE.default)
    assert documented == expected


def test_only_given_flags_are_handed_on(parser: argparse.ArgumentParser) -> None:
    assert given_flags(parser.parse_args([])) == {}
    argv = ["--enable-radix-tier", "--radix-tier-nvme-path", "/a", "/b", "--radix-tier-dram-size", "0"]
    assert given_flags(parser.parse_args(argv)) == {
        "enable": True,
        "nvme_path": ["/a", "/b"],
        "dram_size": "0",
    }


def test_sglang_takes_them(model: str) -> None:
    record = command_line(model, "--enable-radix-tier", "--radix-tier-dram-size", "1Mtok")
    assert record._radix_tier_flags == {"enable": True, "dram_size": "1Mtok"}
    assert command_line(model)._radix_tier_flags == {}


def test_sglang_takes_them_from_its_own_yaml(model: str, tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(
        f"enable-radix-tier: true\nradix-tier-dram-size: 64MiB\nradix-tier-nvme-size: 0\n"
        f"radix-tier-nvme-path:\n  - {tmp_path}\n"
    )
    assert command_line(model, "--config", str(file))._radix_tier_flags == {
        "enable": True,
        "dram_size": "64MiB",
        "nvme_size": "0",
        "nvme_path": [str(tmp_path)],
    }
