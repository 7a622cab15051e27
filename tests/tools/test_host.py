"""Checks of the machine, with what they ask replaced."""

from __future__ import annotations

import resource
from importlib import metadata
from pathlib import Path

import pytest

from radixtier import SGLANG_VERSION
from radixtier.machine import Machine
from radixtier.seams.contract import Moved, Name, Release
from radixtier.tools import host
from radixtier.tools.findings import Finding, render, summary

GONE = Moved(Name("sglang.srt.some", "name"), "gone")


@pytest.mark.parametrize(
    ("release", "level", "words"),
    [
        (Release(SGLANG_VERSION, True), "ok", f"SGLang {SGLANG_VERSION}"),
        (Release("0.4.0", False, [GONE]), "problem", "have moved: some.name (gone)"),
        (Release("0.4.0", False), "problem", "are where they were"),
        (Release(None, False), "warning", "not installed"),
    ],
)
def test_sglang(release: Release, level: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "look", lambda: release)
    finding = host.check_sglang()
    assert finding.level == level and words in finding.found
    assert (SGLANG_VERSION in finding.fix) == (level != "ok")
    assert ("--radix-tier-allow-untested" in finding.fix) == (release == Release("0.4.0", False))


@pytest.mark.parametrize(
    ("state", "told"), [("stock", ""), ("patched", ", patched"), ("changed", ", with files changed")]
)
def test_the_patch(state: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "look", lambda: Release(SGLANG_VERSION, True))
    monkeypatch.setattr(host, "package_directory", lambda: Path("sglang"))
    monkeypatch.setattr(host, "states", lambda patch, package: {"some.py": state})
    assert f"SGLang {SGLANG_VERSION}{told}" in host.check_sglang().found


@pytest.mark.parametrize(("names", "level"), [(["radixtier"], "ok"), (["other"], "problem"), ([], "problem")])
def test_plugin(names: list[str], level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    points = [metadata.EntryPoint(name, "module", host.PLUGINS) for name in names]
    monkeypatch.setattr(host.metadata, "entry_points", lambda group: points if group == host.PLUGINS else [])
    assert host.check_plugin().level == level


def test_gpu_by_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-1)'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert host.check_gpu() == Finding("ok", "GPU", "GPU 0: NVIDIA H200")
    smi.write_text("#!/bin/sh\nexit 9\n")
    assert "nvidia-smi" in host.check_gpu().found


@pytest.mark.parametrize(("nbytes", "level"), [(host.LEAST_RAM, "ok"), (host.LEAST_RAM - 1, "warning")])
def test_ram(nbytes: int, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.Machine, "probe", lambda: Machine(nbytes))
    assert host.check_ram().level == level


@pytest.mark.parametrize(
    ("text", "level"),
    [("always [madvise] never\n", "ok"), ("always madvise [never]\n", "warning"), (None, "warning")],
)
def test_huge_pages(tmp_path: Path, text: str | None, level: str) -> None:
    file = tmp_path / "enabled"
    if text:
        file.write_text(text)
    assert host.check_huge_pages(file).level == level


@pytest.mark.parametrize(
    ("limit", "has_gpu", "level"),
    [(resource.RLIM_INFINITY, True, "ok"), (8 << 20, True, "warning"), (8 << 20, False, "ok"), (1 << 40, True, "ok")],
)
def test_locked_memory(limit: int, has_gpu: bool, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.resource, "getrlimit", lambda which: (limit, limit))
    assert host.check_locked(has_gpu).level == level


@pytest.mark.parametrize(("limit", "level"), [(1024, "warning"), (65536, "ok"), (resource.RLIM_INFINITY, "ok")])
def test_open_files(limit: int, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.resource, "getrlimit", lambda which: (limit, 1 << 20))
    assert host.check_files().level == level


def test_text_of_findings() -> None:
    findings = [
        Finding("ok", "a", "good"),
        Finding("warning", "bb", "so so", "mend it"),
        Finding("problem", "c", "bad"),
    ]
    assert render("title", findings).splitlines() == [
        "title",
        "  ok       a   good",
        "  warning  bb  so so",
        "               -> mend it",
        "  problem  c   bad",
    ]
    assert summary(findings) == "1 problem and 1 warning"
    assert summary(findings[:1]) == "nothing is in the way"
    assert summary(findings[2:] * 2) == "2 problems"
