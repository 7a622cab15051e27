"""The ``radixtier`` command: what it offers exists, and arguments arrive as they were given."""

from __future__ import annotations

import importlib.util
import sys
import types

import pytest

from radixtier import SGLANG_VERSION, __version__
from radixtier.cli import bench, main


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"radixtier {__version__} (for SGLang {SGLANG_VERSION})\n"


@pytest.mark.parametrize("argv", [[], ["nope"], ["bench"], ["bench", "nope"]])
def test_a_wrong_word_is_an_error(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main.main(argv)
    assert end.value.code == 2
    assert "usage: radixtier" in capsys.readouterr().err


def test_help_lists_the_subcommands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["--help"])
    text = capsys.readouterr().out
    assert all(name in text for name in main._SUBCOMMANDS)


@pytest.mark.parametrize("module", [m for m, _ in (*main._SUBCOMMANDS.values(), *bench._BENCHES.values())])
def test_every_subcommand_exists(module: str) -> None:
    assert importlib.util.find_spec(module) is not None


@pytest.mark.parametrize(
    ("argv", "module", "rest"),
    [
        (["serve", "--help"], "radixtier.cli.serve", ["--help"]),
        (["serve", "m", "--version", "-x"], "radixtier.cli.serve", ["m", "--version", "-x"]),
        (["bench", "match", "--json", "f"], "radixtier.sglang.bench_match", ["--json", "f"]),
    ],
)
def test_arguments_are_handed_over(
    argv: list[str], module: str, rest: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    stand_in = types.ModuleType(module)
    stand_in.main = lambda arguments: seen.append(list(arguments)) or 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module, stand_in)
    assert main.main(argv) == 3
    assert seen == [rest]
