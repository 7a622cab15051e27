"""The contract holds for the SGLang that is installed, has every name that the code uses, and tells what moved."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from package_rig import write_package

from radixtier import SGLANG_VERSION, __version__
from radixtier.seams import contract as comparing
from radixtier.seams.contract import MOST_TOLD, Moved, Name, Release, compare, contract, look, told
from radixtier.seams.installed import installed_version, package_directory
from radixtier.seams.source import Package, signature

MODULE = "sglang.srt.some"

installed = pytest.mark.skipif(package_directory() is None, reason="SGLang is not installed")


@installed
def test_every_name_is_where_it_was() -> None:
    directory = package_directory()
    assert directory is not None and installed_version() == SGLANG_VERSION
    assert compare(directory) == [], "see docs/contributing.md, Seams of SGLang"


@installed
def test_every_name_that_the_code_uses_is_in_the_contract() -> None:
    from uses_rig import uses

    directory = package_directory()
    assert directory is not None
    package = Package(directory)
    known = {(name.module, name.qualname): name for name in contract()}
    modules = {name.module for name in contract()}
    used = uses(package)
    assert len(used) > 200
    missing = [
        f"{where} uses {use.module} {use.qualname}"
        for use, where in used.items()
        if (use.module, use.qualname) not in known and (use.qualname or use.module not in modules)
    ]
    assert not missing
    for use, where in used.items():
        definition = package.find(use.module, use.qualname)
        if use.overridden and not use.qualname.endswith(".__init__") and definition and signature(definition):
            assert known[use.module, use.qualname].exact, f"{where} overrides {use.qualname}"


@installed
def test_no_name_is_there_that_the_code_does_not_use() -> None:
    """But for constructors and what functions of private.py call, which the code does not show."""
    from uses_rig import ROOT, uses

    directory = package_directory()
    assert directory is not None
    used = {(use.module, use.qualname) for use in uses(Package(directory))}
    texts = " ".join(path.read_text() for part in ("sglang", "cpu", "policy") for path in (ROOT / part).rglob("*.py"))
    for name in contract():
        last = name.qualname.rpartition(".")[2]
        assert (name.module, name.qualname) in used or last == "__init__" or last in texts, name


def test_entries_are_sorted_out() -> None:
    names = contract()
    assert len({(name.module, name.qualname) for name in names}) == len(names)
    assert any(name.exact for name in names) and any(not name.qualname for name in names)


@pytest.mark.parametrize(
    ("source", "given", "exact", "how"),
    [
        ("def f(a, b): ...", "f(a, b)", True, ""),
        ("def f(a, b, c=1): ...", "f(a, b)", True, "signature now (a, b, c=)"),
        ("def f(a, b, c=1): ...", "f(a, b)", False, ""),
        ("def f(a, b, c): ...", "f(a, b)", False, "signature now (a, b, c)"),
        ("def f(b, a): ...", "f(a, b)", False, "signature now (b, a)"),
        ("def f(a, *, b): ...", "f(a, *, b)", False, ""),
        ("def f(a, b): ...", "f(a, *, b)", False, ""),
        ("def f(a, **more): ...", "f(a, *, b)", False, ""),
        ("def f(a, *, c, b=1): ...", "f(a, *, b)", False, "signature now (a, *, c, b=)"),
        ("def f(*anything, **more): ...", "f(a, *, b)", False, ""),
        ("def f(*, b, c): ...", "f(*, b, **more)", False, ""),
        ("def f(*, c): ...", "f(*, b, **more)", False, "signature now (*, c)"),
        ("f = 1", "f(a)", False, ""),
        ("g = 1", "f", False, "gone"),
        ("def f(: ...", "f", False, "its module cannot be read"),
        ("class C:\n    x: int", "C.x", False, ""),
        ("class C:\n    x: int", "C.y", False, "gone"),
        ("thing._x = 1", "._x", False, ""),
        ("thing._x = 1", "._y", False, "gone"),
        ("names = {'step'}", '"step"', False, ""),
        ("names = {'step'}", '"stop"', False, "gone"),
        ("", "", False, ""),
    ],
)
def test_what_counts_as_moved(tmp_path: Path, source: str, given: str, exact: bool, how: str) -> None:
    write_package(tmp_path, {"srt/some.py": source})
    name, bracket, parameters = given.partition("(")
    moved = compare(tmp_path, [Name(MODULE, name, bracket + parameters, exact)])
    assert [each.how for each in moved] == ([how] if how else [])


def test_a_member_of_any_class(tmp_path: Path) -> None:
    write_package(tmp_path, {"srt/some/a.py": "class A:\n    x: int", "srt/some/b.py": "class B:\n    y: int"})
    moved = compare(tmp_path, [Name(MODULE, f"*.{name}") for name in "xyz"])
    assert [str(each) for each in moved] == ["some.*.z (gone)"]


def test_a_module_that_is_gone(tmp_path: Path) -> None:
    names = [Name("sglang.srt.no", text) for text in ("", "name", ".attribute", '"text"', "*.member")]
    moved = compare(write_package(tmp_path, {}), names)
    assert len(moved) == len(names) and {each.how for each in moved} == {"gone"}


def test_one_line_tells_what_moved(tmp_path: Path) -> None:
    moved = compare(write_package(tmp_path, {}), [Name(MODULE, f"f{n}") for n in range(MOST_TOLD + 2)])
    line = str(Release("9.9.9", False, moved))
    assert line.startswith(f"SGLang 9.9.9 was not tested with radixtier {__version__}: {MOST_TOLD + 2} of ")
    assert f" of {len(contract())} names that radixtier uses have moved: " in line
    assert "some.f0 (gone), some.f1 (gone)" in line and line.endswith(" and 2 more") and "\n" not in line
    assert told([]) == f"all {len(contract())} names that radixtier uses are where they were"


@pytest.mark.parametrize(
    ("version", "release"),
    [
        (SGLANG_VERSION, Release(SGLANG_VERSION, True)),
        (None, Release(None, False)),
        ("9.9.9", Release("9.9.9", False, [Moved(Name(MODULE, "f"), "gone")])),
    ],
)
def test_only_an_untested_version_is_compared(
    version: str | None, release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_package(tmp_path, {}) if version else None
    monkeypatch.setattr(comparing, "installed_version", lambda: version)
    monkeypatch.setattr(comparing, "package_directory", lambda: directory)
    monkeypatch.setattr(comparing, "contract", lambda: [Name(MODULE, "f")])
    assert look() == release


def test_a_version_without_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "installed_version", lambda: "9.9.9")
    monkeypatch.setattr(comparing, "package_directory", lambda: None)
    assert "sglang (its files are not there)" in str(look())


@installed
def test_nothing_is_imported_for_it() -> None:
    program = """
import sys
from radixtier.seams.contract import compare
from radixtier.seams.installed import package_directory
assert compare(package_directory()) == []
sys.exit(bool({"torch", "sglang", "numpy"} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=300).returncode == 0
