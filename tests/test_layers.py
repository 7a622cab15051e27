"""The layers: imports point downward only, and nothing outside radixtier/sglang needs SGLang or torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import radixtier

ROOT = Path(radixtier.__file__).parent

LAYERS = (
    {"", "units", "footprint", "machine", "identity", "weights", "dashboard", "seams"},
    {"policy"},
    {"explain", "control"},
    {"monitor"},
    {"config"},
    {"settings"},
    {"engine"},
    {"tree"},
    {"io"},
    {"store"},
    {"ranks"},
    {"mover", "tools"},
    {"lab", "suggest"},
    {"cpu"},
    {"sglang"},
    {"live"},
    {"load"},
    {"demo", "gate"},
    {"cli"},
)
"""From low to high; a name is a module or package of radixtier, and "" the package itself."""

PURE = set().union(*LAYERS[:12])
"""Layers that never mention SGLang or torch, not even inside a function."""

RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

# The stand-ins for compiled kernels are no part of the package: they go on PYTHONPATH.
FILES = [file for file in sorted(ROOT.rglob("*.py")) if "stubs" not in file.relative_to(ROOT).parts]


def part_of(file: Path) -> str:
    first = file.relative_to(ROOT).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def imported(file: Path) -> Iterator[str]:
    """Yield the absolute names of everything a file imports, anywhere in it."""
    package = ("radixtier", *file.relative_to(ROOT).parts[:-1])
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            yield from (f"{module}.{alias.name}" for alias in node.names)


def test_every_part_has_a_layer() -> None:
    assert {part_of(file) for file in FILES} <= set(RANK)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_point_downward(file: Path) -> None:
    part = part_of(file)
    for name in imported(file):
        top, _, rest = name.partition(".")
        if top == "radixtier":
            target = rest.partition(".")[0]
            target = target if target in RANK else ""
            assert target == part or RANK[target] < RANK[part] or RANK[target] == RANK[part] == 0, name
        if part in PURE:
            assert top not in {"sglang", "torch"}, name


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_hash_of_the_process(file: Path) -> None:
    """Python's ``hash()`` of a text differs from process to process: no key may come from it."""
    calls = [n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Call)]
    assert not [c.lineno for c in calls if isinstance(c.func, ast.Name) and c.func.id == "hash"]


def test_everything_else_imports_without_sglang_and_torch() -> None:
    modules = [
        ".".join(("radixtier", *file.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
        for file in FILES
        if part_of(file) != "sglang" and file.name != "__main__.py"
    ]
    program = f"""
import importlib, sys
sys.modules.update(dict.fromkeys(("torch", "sglang", "sgl_kernel", "triton")))
for name in {modules!r}:
    importlib.import_module(name)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
