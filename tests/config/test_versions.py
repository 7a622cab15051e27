"""An SGLang that was not tested: refused before anything else is looked at, or allowed where nothing moved."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("sglang")

from sglang_rig import command_line

from radixtier import SGLANG_VERSION
from radixtier.cpu import environment
from radixtier.seams.contract import Moved, Name, Release, contract
from radixtier.sglang import startup
from radixtier.sglang.plugin import HOOKS

NEXT = "0.5.24"
HOOKED = Moved(Name("sglang.srt.runtime_context", "publish"), "gone")
OTHER = Moved(Name("sglang.srt.mem_cache.radix_cache", "RadixKey"), "gone")
SIZES = ["--radix-tier-hbm-size", "4MiB", "--radix-tier-dram-size", "8MiB", "--radix-tier-control", "off"]


def found(monkeypatch: pytest.MonkeyPatch, *moved: Moved) -> None:
    def look(names: Sequence[Name] | None = None) -> Release:
        return Release(
            NEXT, False, [each for each in moved if names is None or each.name.qualname in {n.qualname for n in names}]
        )

    monkeypatch.setattr(startup, "look", look)


def refused(capsys: pytest.CaptureFixture[str], model: str, *flags: str) -> str:
    with pytest.raises(SystemExit) as end:
        command_line(model, "--enable-radix-tier", *flags).resolve_once()
    assert end.value.code == 2
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("radixtier: error: ")]
    return line.removeprefix("radixtier: error: ")


def test_refused_with_version_and_flag(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found(monkeypatch)
    line = refused(capsys, model, *SIZES, "--pp-size", "2")
    assert line.startswith(f"SGLang {NEXT}: not tested with radixtier ")
    assert f"all {len(contract())} names" in line
    assert line.endswith(f"pip install sglang=={SGLANG_VERSION}, or add --radix-tier-allow-untested to try it.")


@pytest.mark.parametrize("allowed", [[], ["--radix-tier-allow-untested"]])
def test_refused_with_what_moved_whatever_is_allowed(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, allowed: list[str]
) -> None:
    found(monkeypatch, OTHER)
    line = refused(capsys, model, *SIZES, *allowed)
    assert "1 of " in line and "mem_cache.radix_cache.RadixKey (gone)" in line
    assert line.endswith(f"pip install sglang=={SGLANG_VERSION}.")


@pytest.mark.parametrize("way", ["flag", "environment", "yaml"])
def test_allowed_with_a_warning(
    model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    found(monkeypatch)
    file = tmp_path / "tier.yaml"
    file.write_text("allow-untested: true\n")
    flags = {"flag": ["--radix-tier-allow-untested"], "yaml": ["--radix-tier-config", str(file)]}
    if way == "environment":
        monkeypatch.setenv("RADIXTIER_ALLOW_UNTESTED", "1")
    record = command_line(model, "--enable-radix-tier", *SIZES, *flags.get(way, []))
    logging.getLogger().addHandler(caplog.handler)
    record.resolve_once()
    assert record._radix_tier.allow_untested
    assert [text for text in caplog.messages if f"SGLang {NEXT} was not tested" in text and "it is allowed" in text]


def test_a_server_without_the_tier_is_left_alone(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "look", lambda: pytest.fail("looked at"))
    command_line(model).resolve_once()


@pytest.mark.parametrize(
    ("moved", "words", "variable", "status"),
    [
        (HOOKED, ["--enable-radix-tier"], "", 2),
        (HOOKED, [], "1", 2),
        (HOOKED, [], "", None),
        (OTHER, ["--enable-radix-tier"], "", None),
    ],
)
def test_a_plugin_that_cannot_be_heard_ends_the_start(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    moved: Moved,
    words: list[str],
    variable: str,
    status: int | None,
) -> None:
    """SGLang only logs a hook that it cannot place; the tier would silently be off."""
    found(monkeypatch, moved)
    monkeypatch.setattr(sys, "argv", ["server", *words])
    monkeypatch.setenv("RADIXTIER_ENABLE", variable)
    if status is None:
        startup.check_seams(HOOKS)
        return
    with pytest.raises(SystemExit) as end:
        startup.check_seams(HOOKS)
    assert end.value.code == status
    assert "runtime_context.publish (gone)" in capsys.readouterr().err


def test_a_real_start_of_another_version(model: str, tmp_path: Path) -> None:
    """With the sources that are installed under another number, compared by a real start."""
    info = tmp_path / f"sglang-{NEXT}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {NEXT}\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = subprocess.run(
        [sys.executable, "-m", "sglang.launch_server", "--model-path", model, "--device", "cpu", "--enable-radix-tier"],
        env=environment({**os.environ, "PYTHONPATH": path}),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 2, result.stderr
    assert f"radixtier: error: SGLang {NEXT}: not tested" in result.stderr
    assert f"all {len(contract())} names" in result.stderr and "Traceback" not in result.stderr
