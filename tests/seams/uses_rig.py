"""What radixtier's code uses of SGLang, read from its source: imports, overridden methods, members of SGLang's objects.

Receivers are known by their names (:data:`RECEIVERS`): the code calls SGLang's tree core ``tree_core`` everywhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import radixtier
from radixtier.seams.source import Package

ROOT = Path(radixtier.__file__).parent
FILES = sorted(
    file
    for part in ("sglang", "cpu")
    for file in (ROOT / part).rglob("*.py")
    if "stubs" not in file.parts and not file.name.startswith("bench_")
)
"""All but the benchmarks, which nobody's server depends on."""

ARGUMENTS = ("sglang.srt.arg_groups.fields", "*")
REQUEST = ("sglang.srt.managers.schedule_batch", "Req")

RECEIVERS = {
    "tree_core": ("sglang.srt.mem_cache.unified_cache.unified_tree_core_interface", "UnifiedTreeCoreInterface"),
    "cache_controller": ("sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller", "HybridCacheController"),
    "token_to_kv_pool_allocator": ("sglang.srt.mem_cache.allocator", "BaseTokenToKVPoolAllocator"),
    "get_memory()": ("sglang.srt.arg_groups.fields.memory", "Memory"),
    "get_schedule()": ("sglang.srt.arg_groups.fields.schedule", "Schedule"),
    "get_serving()": ("sglang.srt.arg_groups.fields.serving", "Serving"),
    "get_observability()": ("sglang.srt.arg_groups.fields.observability", "Observability"),
    "get_parallel()": ("sglang.srt.runtime_context", "ParallelContext"),
    "server_args": ARGUMENTS,
    "arguments": ARGUMENTS,
    "view": ARGUMENTS,
    "req": REQUEST,
}
"""How a value of SGLang is called in radixtier -> the module and class that have its members."""

CACHE = ("sglang.srt.mem_cache.unified_radix_cache", "UnifiedRadixCache")


class Use(NamedTuple):
    """A name in use: ``qualname`` is ``name``, ``Class.member`` or empty for the module itself."""

    module: str
    qualname: str
    overridden: bool = False


def uses(package: Package) -> dict[Use, str]:
    """Return every use, with the file and line of one of its places."""
    found: dict[Use, str] = {}
    for file in FILES:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        imports = _imports(tree)
        for use, line in [*_imported(tree), *_members(tree), *_fields(tree), *_inherited(tree, imports, package)]:
            if use.qualname.rpartition(".")[2] not in OURS:
                found.setdefault(use, f"{file.name}:{line}")
    return found


OURS = {"_radix_tier", "_radix_tier_flags", "mover", "recording", "tokenizer", "settings"}
"""What radixtier puts on SGLang's objects."""


def _imports(tree: ast.AST) -> dict[str, str]:
    return {
        alias.asname or alias.name: node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang.")
        for alias in node.names
    }


def _imported(tree: ast.AST) -> Iterator[tuple[Use, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang."):
            yield from ((Use(node.module or "", alias.name), node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "importlib.import_module":
            if isinstance(node.args[0], ast.Constant) and str(node.args[0].value).startswith("sglang."):
                yield Use(str(node.args[0].value), ""), node.lineno


def _members(tree: ast.AST) -> Iterator[tuple[Use, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            receiver = ast.unparse(node.value).rpartition(".")[2]
            if receiver in RECEIVERS and not node.attr.startswith("__") and receiver != "tree_core.insert":
                module, cls = RECEIVERS[receiver]
                yield Use(module, f"{cls}.{node.attr}"), node.lineno


def _fields(tree: ast.AST) -> Iterator[tuple[Use, int]]:
    """Names of server arguments that are given as texts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "_field":
                yield Use(ARGUMENTS[0], f"*.{ast.literal_eval(node.args[0])}"), node.lineno
            elif node.func.id == "_declare":
                for keyword in node.keywords:
                    if keyword.arg is not None:
                        yield Use(ARGUMENTS[0], f"*.{keyword.arg}"), node.lineno


def _inherited(tree: ast.Module, imports: dict[str, str], package: Package) -> Iterator[tuple[Use, int]]:
    """What classes of ours override, call or read of SGLang's class that they extend."""
    for cls in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        for base in (b.id for b in cls.bases if isinstance(b, ast.Name) and b.id in imports):
            own = {node.name for node in cls.body if isinstance(node, ast.FunctionDef)}
            for node in cls.body:
                if isinstance(node, ast.FunctionDef) and package.find(imports[base], f"{base}.{node.name}"):
                    yield Use(imports[base], f"{base}.{node.name}", overridden=True), node.lineno
            stored = {
                target.attr
                for target in ast.walk(cls)
                if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store)
            }
            stored |= {node.target.id for node in cls.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
            for node in ast.walk(cls):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                    if node.attr not in own | stored and not node.attr.startswith("__"):
                        yield Use(imports[base], f"{base}.{node.attr}"), node.lineno
