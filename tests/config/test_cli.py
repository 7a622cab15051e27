"""The ``radixtier`` command: what it offers exists, and arguments arrive as they were given."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import types
from importlib import metadata

import pytest

from radixtier import SGLANG_VERSION, __version__
from radixtier.cli import bench, main


def fake_versions(monkeypatch: pytest.MonkeyPatch, **found: str) -> None:
    def version(name: str) -> str:
        if name not in found:
            raise metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(metadata, "version", version)


@pytest.mark.parametrize(
    ("sglang", "words"),
    [
        (SGLANG_VERSION, f"{SGLANG_VERSION}, compatible"),
        ("0.4.0", f"0.4.0, not tested: radixtier doctor tells what moved; or pip install sglang=={SGLANG_VERSION}"),
        (None, "not installed: pip install 'radixtier[sglang]'"),
    ],
)
def test_version(
    sglang: str | None, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_versions(monkeypatch, torch="2.9.1", **({"sglang": sglang} if sglang else {}))
    with pytest.raises(SystemExit) as end:
        main.main(["--version"])
    assert end.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"radixtier {__version__} for SGLang {SGLANG_VERSION}"
    assert lines[1] == f"  SGLang  {words}"
    assert lines[3] == "  torch   2.9.1"
    assert lines[4].startswith("  KvikIO  not installed (optional")


def test_any_of_the_packages_of_kvikio(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fake_versions(monkeypatch, **{"kvikio-cu12": "26.2.0"})
    with pytest.raises(SystemExit):
        main.main(["--version"])
    assert capsys.readouterr().out.splitlines()[4] == "  KvikIO  26.2.0"


def test_the_version_loads_nothing() -> None:
    program = "import sys; from radixtier.cli.main import main\ntry: main(['--version'])\nexcept SystemExit: pass\n"
    program += "sys.exit(bool({'torch', 'sglang', 'rich', 'numpy', 'kvikio'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60).returncode == 0


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
    assert all(name in text for name in main.SUBCOMMANDS)


@pytest.mark.parametrize("module", [m for m, _ in (*main.SUBCOMMANDS.values(), *bench.BENCHES.values())])
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


@pytest.mark.parametrize("raised", [KeyboardInterrupt, BrokenPipeError])
def test_an_end_from_outside_has_its_status(
    raised: type[BaseException], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(_: object) -> int:
        raise raised

    stand_in = types.ModuleType("radixtier.cli.doctor")
    stand_in.main = end  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "radixtier.cli.doctor", stand_in)
    monkeypatch.setattr("os.dup2", lambda *_: None)
    monkeypatch.setattr("sys.stdout", open("/dev/null", "w"))  # noqa: SIM115
    assert main.main(["doctor"]) == (130 if raised is KeyboardInterrupt else 1)
    assert capsys.readouterr().err == ("radixtier: interrupted\n" if raised is KeyboardInterrupt else "")
