"""Reads what a package defines from its source text: modules, classes, functions, methods, attributes.

Owns the parsed modules of one package directory. Invariant: nothing of the package is imported or run; what can only be
known by running it is found by its name and has no signature. Any thread, one object per thread.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

Definition: TypeAlias = ast.AST
"""What a name stands for; a function has a signature, a class has members."""

_MOST_HOPS = 8
"""Imports that are followed from the module that has a name to the one that defines it."""


@dataclass
class Module:
    """One parsed module.

    Attributes
    ----------
    names : dict
        What its top level defines, also under ``if`` and ``try``.
    assigned : frozenset of str
        Attributes that it assigns, on whatever object.
    texts : frozenset of str
        Texts that stand in it as constants.
    """

    name: str
    names: dict[str, Definition]
    assigned: frozenset[str]
    texts: frozenset[str]


@dataclass
class Package:
    """The source of one package.

    Attributes
    ----------
    root : Path
        Directory of the package.
    name : str
        What it is imported as.
    """

    root: Path
    name: str = "sglang"
    _modules: dict[str, Module | None] = field(default_factory=dict)

    def module(self, name: str) -> Module | None:
        """Return a module by its full name, None where there is none."""
        if name not in self._modules:
            file = self._file(name)
            tree = None if file is None else ast.parse(file.read_bytes())
            self._modules[name] = None if tree is None else _module(name, tree)
        return self._modules[name]

    def modules_in(self, name: str) -> Iterator[Module]:
        """Yield the modules directly in a package."""
        for file in sorted(self._path(name).glob("*.py")):
            found = self.module(name if file.stem == "__init__" else f"{name}.{file.stem}")
            if found is not None:
                yield found

    def find(self, module: str, qualname: str) -> Definition | None:
        """Return the definition of ``qualname`` (``name`` or ``Class.member``) in a module, None without one."""
        name, _, member = qualname.partition(".")
        place, found = self._resolve(module, name)
        if found is None or not member:
            return found
        if isinstance(found, ast.ClassDef) and place is not None:
            return self._member(place, found, member)
        return None

    def _resolve(self, module: str, name: str, hops: int = _MOST_HOPS) -> tuple[Module | None, Definition | None]:
        place = self.module(module)
        found = None if place is None else place.names.get(name)
        if isinstance(found, ast.ImportFrom) and hops:
            origin = _origin(module, self._file(module), found)
            if not origin.startswith(self.name):
                return place, found
            real = next(alias.name for alias in found.names if (alias.asname or alias.name) == name)
            if self.module(f"{origin}.{real}") is not None:
                return place, found
            return self._resolve(origin, real, hops - 1)
        return place, found

    def _member(self, module: Module, cls: ast.ClassDef, name: str) -> Definition | None:
        own = _members(cls)
        if name in own:
            return own[name]
        for base in cls.bases:
            place, found = self._resolve(module.name, base.id) if isinstance(base, ast.Name) else (None, None)
            inherited = self._member(place, found, name) if place and isinstance(found, ast.ClassDef) else None
            if inherited is not None:
                return inherited
        return None

    def _path(self, name: str) -> Path:
        return self.root.joinpath(*name.split(".")[1:])

    def _file(self, name: str) -> Path | None:
        path = self._path(name)
        for file in (path.with_name(f"{path.name}.py"), path / "__init__.py") if path != self.root else ():
            if file.is_file():
                return file
        return None


def _origin(module: str, file: Path | None, statement: ast.ImportFrom) -> str:
    if not statement.level:
        return statement.module or ""
    parts = module.split(".")
    inside = len(parts) - statement.level + (file is not None and file.name == "__init__.py")
    return ".".join([*parts[:inside], *filter(None, [statement.module])])


def _named(body: list[ast.stmt]) -> dict[str, Definition]:
    """The names of a body; a class or function wins over what is later made of it under the same name."""
    found: dict[str, Definition] = {}
    for name, definition in _top_level(body):
        if not isinstance(found.get(name), (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found[name] = definition
    return found


def _module(name: str, tree: ast.Module) -> Module:
    nodes = list(ast.walk(tree))
    attributes = (node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    constants = (node.value for node in nodes if isinstance(node, ast.Constant))
    texts = frozenset(value for value in constants if isinstance(value, str))
    return Module(name, _named(tree.body), frozenset(node.attr for node in attributes), texts)


def _top_level(body: list[ast.stmt]) -> Iterator[tuple[str, Definition]]:
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield statement.name, statement
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            for alias in statement.names:
                yield (alias.asname or alias.name), statement
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            yield from ((target.id, statement) for target in targets if isinstance(target, ast.Name))
        for part in ("body", "orelse", "handlers", "finalbody") if isinstance(statement, (ast.If, ast.Try)) else ():
            for inner in getattr(statement, part, []):
                yield from _top_level(inner.body if isinstance(inner, ast.ExceptHandler) else [inner])


def _members(cls: ast.ClassDef) -> dict[str, Definition]:
    """Members of a class: what its body defines, and what its methods assign to ``self``."""
    found: dict[str, Definition] = {
        node.attr: node
        for node in ast.walk(cls)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    return {**found, **_named(cls.body)}


def signature(definition: Definition) -> str | None:
    """Return the parameters of a function, ``=`` after those with a default; None for what is no plain function.

    Annotations, values of defaults and decorators are left out; a property is an attribute.
    """
    if not isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    if any(ast.unparse(each).endswith(("property", ".setter")) for each in definition.decorator_list):
        return None
    return f"({', '.join(_parameters(definition.args))})"


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    for position, parameter in enumerate(positional):
        yield parameter.arg + "=" * (position >= required)
    if arguments.vararg is not None:
        yield f"*{arguments.vararg.arg}"
    elif arguments.kwonlyargs:
        yield "*"
    for parameter, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield parameter.arg + "=" * (default is not None)
    if arguments.kwarg is not None:
        yield f"**{arguments.kwarg.arg}"
