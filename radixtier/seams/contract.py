"""Holds the names that radixtier uses against the SGLang that is installed, by its source.

Owns what counts as moved, and the words for it. Invariant: nothing of SGLang is imported. It takes 3 s of a slow core,
so only a version that was not tested is compared. Any thread.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from radixtier import SGLANG_VERSION, __version__
from radixtier.seams.installed import installed_version, package_directory
from radixtier.seams.names import CALLED, OVERRIDDEN, READ
from radixtier.seams.source import Definition, Package, signature

MOST_TOLD = 8
"""Names in one line; an operator needs no more to know that this is not a release to run on."""


class Name(NamedTuple):
    """One name of the contract; ``signature`` is empty where none is relied upon, ``exact`` where it is overridden."""

    module: str
    qualname: str
    signature: str = ""
    exact: bool = False

    def __str__(self) -> str:
        short = self.module.removeprefix("sglang.").removeprefix("srt.")
        return f"{short}.{self.qualname.strip(chr(34)).lstrip('.')}" if self.qualname else short


class Moved(NamedTuple):
    """A name that is not as it was; ``how`` for the operator."""

    name: Name
    how: str

    def __str__(self) -> str:
        return f"{self.name} ({self.how})"


class Release(NamedTuple):
    """The SGLang of this environment.

    Attributes
    ----------
    version : str or None
        None without one.
    tested : bool
        Whether radixtier was made for it and tested with it.
    moved : sequence of Moved
        Names that are not as they were; not looked for in a tested version.
    """

    version: str | None
    tested: bool
    moved: Sequence[Moved] = ()

    def __str__(self) -> str:
        return f"SGLang {self.version} was not tested with radixtier {__version__}: {told(self.moved)}"


def look(names: Sequence[Name] | None = None) -> Release:
    """Return which SGLang is installed; unless it is the tested one, its names are compared, all or those given."""
    version, directory = installed_version(), package_directory()
    if version is None or version == SGLANG_VERSION:
        return Release(version, version is not None)
    if directory is None:
        return Release(version, False, [Moved(Name("sglang", ""), "its files are not there")])
    return Release(version, False, compare(directory, names))


def contract() -> list[Name]:
    """Return every name of the contract."""
    tables = ((OVERRIDDEN, True), (CALLED, False), (READ, False))
    return [name for table, exact in tables for module, text in table.items() for name in _entries(module, text, exact)]


def compare(directory: Path, names: Sequence[Name] | None = None) -> list[Moved]:
    """Return the names that the SGLang in ``directory`` does not have, or has otherwise."""
    package = Package(directory)
    checked = ((name, _how(package, name)) for name in (contract() if names is None else names))
    return [Moved(name, how) for name, how in checked if how]


def told(moved: Sequence[Moved]) -> str:
    """Return in one line what moved."""
    count = len(contract())
    if not moved:
        return f"all {count} names that radixtier uses are where they were"
    more = f" and {len(moved) - MOST_TOLD} more" if len(moved) > MOST_TOLD else ""
    some = ", ".join(map(str, moved[:MOST_TOLD]))
    return f"{len(moved)} of {count} names that radixtier uses have moved: {some}{more}"


def _entries(module: str, text: str, exact: bool) -> Iterator[Name]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines or [""]:
        name, bracket, parameters = line.partition("(")
        yield Name(module, name, bracket + parameters, exact)


def _how(package: Package, name: Name) -> str:
    """How a name has moved; empty if it has not."""
    try:
        found = _find(package, name)
    except (OSError, ValueError, SyntaxError):
        return "its module cannot be read"
    if found is None:
        return "gone"
    now = signature(found) if name.signature and isinstance(found, ast.AST) else None
    if now is None or (now == name.signature if name.exact else _takes(now, name.signature)):
        return ""
    return f"signature now {now}"


def _find(package: Package, name: Name) -> Definition | object | None:
    if not name.qualname:
        return package.module(name.module)
    first, _, member = name.qualname.partition(".")
    if first == "*":
        return next(_members(package, name.module, member), None)
    module = package.module(name.module)
    if module is not None and not first:
        return module if member in module.assigned else None
    if module is not None and first.startswith('"'):
        return module if first.strip('"') in module.texts else None
    return package.find(name.module, name.qualname)


def _members(package: Package, parent: str, member: str) -> Iterator[Definition]:
    for module in package.modules_in(parent):
        for cls in [each for each in module.names.values() if isinstance(each, ast.ClassDef)]:
            found = package.find(module.name, f"{cls.name}.{member}")
            if found is not None:
                yield found


def _takes(now: str, given: str) -> bool:
    """Whether a function with the parameters ``now`` can be called with those that are ``given``."""
    has, wants = _arguments(now), _arguments(given)
    positional = [each.arg for each in (*has.posonlyargs, *has.args)]
    wanted = [each.arg for each in (*wants.posonlyargs, *wants.args)]
    by_name = [each.arg for each in wants.kwonlyargs]
    if wanted != positional[: len(wanted)] and has.vararg is None:
        return False
    takes = {*positional, *(each.arg for each in has.kwonlyargs)}
    if has.kwarg is None and not takes.issuperset(by_name):
        return False
    if wants.kwarg is not None:  # whatever it takes is handed on
        return True
    needed = positional[: len(positional) - len(has.defaults)]
    needed += [each.arg for each, default in zip(has.kwonlyargs, has.kw_defaults, strict=True) if default is None]
    return {*wanted, *by_name}.issuperset(needed)


def _arguments(parameters: str) -> ast.arguments:
    definition = ast.parse(f"def f{parameters.replace('=', '=0')}: pass").body[0]
    assert isinstance(definition, ast.FunctionDef)
    return definition.args
