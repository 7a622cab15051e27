"""What is read from sources: names wherever they are defined, inherited or imported from, and signatures."""

from __future__ import annotations

from pathlib import Path

import pytest
from package_rig import write_package

from radixtier.seams.source import Package, signature

FILES = {
    "srt/base.py": "class Base:\n    def inherited(self, a, *, b=1): ...\n    def __init__(self): self.set_there = 1\n",
    "srt/mid.py": "from sglang.srt.base import Base as Renamed\n",
    "srt/top.py": """
from .mid import Renamed
try:
    from kernels import fast
except ImportError:
    fast = None
if True:
    def guarded(x): ...
CONSTANT: int = 3
class Child(Renamed):
    field: int
    @property
    def figure(self): ...
    @staticmethod
    def plain(a, /, b=1, *rest, c, d=2, **more): ...
Child = decorate(Child)
other._bookkeeping = 1
""",
}


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return Package(write_package(tmp_path, FILES))


@pytest.mark.parametrize(
    "name",
    [
        *("Renamed", "fast", "guarded", "CONSTANT", "Child", "Child.field", "Child.figure", "Child.plain"),
        *("Child.inherited", "Child.set_there", "Renamed.inherited"),
    ],
)
def test_is_found(package: Package, name: str) -> None:
    assert package.find("sglang.srt.top", name) is not None


@pytest.mark.parametrize("name", ["gone", "Child.gone", "Gone.member", "CONSTANT.member", "fast.member"])
def test_is_not_found(package: Package, name: str) -> None:
    assert package.find("sglang.srt.top", name) is None


def test_no_such_module(package: Package) -> None:
    assert package.module("sglang.srt.nowhere") is None
    assert package.find("sglang.srt.nowhere", "name") is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Child.inherited", "(self, a, *, b=)"),
        ("Child.plain", "(a, b=, *rest, c, d=, **more)"),
        ("Child.figure", None),
        ("Child.field", None),
        ("guarded", "(x)"),
    ],
)
def test_signatures(package: Package, name: str, expected: str | None) -> None:
    found = package.find("sglang.srt.top", name)
    assert found is not None and signature(found) == expected


def test_what_a_module_assigns(package: Package) -> None:
    module = package.module("sglang.srt.top")
    assert module is not None and module.assigned == {"_bookkeeping"}
