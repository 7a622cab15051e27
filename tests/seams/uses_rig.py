"""What radixtier's code uses of SGLang, read from its source: imports, hooks, overridden methods, members of objects.

SGLang's objects are known by what the code calls them (:data:`RECEIVERS`): its tree core is ``tree_core`` everywhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import radixtier
from radixtier.cpu.transfers import CPU_KERNELS
from radixtier.seams.source import Package
from radixtier.sglang.factory import GATES, SHARING
from radixtier.sglang.identity import _WHAT_ELSE
from radixtier.sglang.plugin import HOOKS, STEPS

ROOT = Path(radixtier.__file__).parent
FILES = [
    file
    for part in ("sglang", "cpu")
    for file in sorted((ROOT / part).rglob("*.py"))
    if "stubs" not in file.parts and not file.name.startswith("bench_") and file.name != "standalone.py"
]
"""All but the benchmarks and what builds caches for them, which nobody's server depends on."""

SRT = "sglang.srt"
FIELDS = f"{SRT}.arg_groups.fields"
CACHE = f"{SRT}.mem_cache"
HANDLERS = f"{SRT}.models.deepseek_common.attention_backend_handler"
RECEIVERS = {
    "AttentionBackendRegistry": [(HANDLERS, "AttentionBackendRegistry")],
    "AttnForwardMethod": [(HANDLERS, "AttnForwardMethod")],
    "HookRegistry": [(f"{SRT}.plugins.hook_registry", "HookRegistry")],
    "ack": [(f"{SRT}.managers.cache_controller", "HiCacheAck")],
    "backend": [(f"{SRT}.layers.attention.torch_native_backend", "TorchNativeAttnBackend")],
    "base": [(f"{CACHE}.pool_host.base", "")],
    "cache_controller": [(f"{CACHE}.hybrid_cache.hybrid_cache_controller", "HybridCacheController")],
    "ctx": [(f"{CACHE}.registry", "TreeCacheBuildContext")],
    "forward_batch": [(f"{SRT}.model_executor.forward_batch_info", "ForwardBatch")],
    "get_memory()": [(f"{FIELDS}.memory", "Memory")],
    "get_observability()": [(f"{FIELDS}.observability", "Observability")],
    "get_parallel()": [(f"{FIELDS}.parallel", "Parallel")],
    "get_schedule()": [(f"{FIELDS}.schedule", "Schedule")],
    "get_serving()": [(f"{FIELDS}.serving", "Serving")],
    "handlers": [(HANDLERS, "")],
    "info": [
        (f"{CACHE}.unified_cache.unified_tree_core_interface", "TreePathNodeInfo"),
        (f"{CACHE}.device_pool_info", "MHABufferInfo"),
    ],
    "kvcache": [(f"{CACHE}.memory_pool", name) for name in ("MHATokenToKVPool", "MLATokenToKVPool")],
    "model": [(f"{SRT}.configs.model_config", "ModelConfig")],
    "params": [
        (f"{CACHE}.base_prefix_cache", name) for name in ("MatchPrefixParams", "InsertParams")
    ] + [(f"{CACHE}.cache_init_params", "CacheInitParams")],
    "pool": [(f"{CACHE}.pool_host.mha", "MHATokenToKVPoolHost")],
    "req": [(f"{SRT}.managers.schedule_batch", "Req")],
    "result": [(f"{CACHE}.base_prefix_cache", name) for name in ("MatchResult", "InsertResult")],
    "scheduler": [(f"{SRT}.managers.scheduler", "Scheduler")],
    "server_args": [(FIELDS, "*"), (f"{SRT}.server_args", "ServerArgs")],
    "spec": [(f"{CACHE}.unified_cache.unified_tree_core", "StorageBackupSpec")],
    "token_to_kv_pool_allocator": [(f"{CACHE}.allocator", "BaseTokenToKVPoolAllocator")],
    "tree_core": [(f"{CACHE}.unified_cache.unified_tree_core_interface", "UnifiedTreeCoreInterface")],
    "view": [(FIELDS, "*")],
    "write": [(f"{CACHE}.unified_radix_cache", "_OngoingWriteThrough")],
}  # fmt: skip
"""What a value of SGLang is called in radixtier -> the modules and classes one of which has its members."""

OURS = {
    *("_mover", "_radix_tier", "_radix_tier_flags", "recording", "settings", "tokenizer"),
    *("frame_buffer", "landing", "mover", "radixtier_cpu", "ranks"),
}
"""What radixtier puts on objects of SGLang, or finds on its own."""

ELSEWHERE = {"TorchNativeAttnBackend", "itemsize", "squeeze"}
"""Members of other objects that have the name of a receiver."""


class Use(NamedTuple):
    """A name in use: ``qualname`` is ``name``, ``Class.member`` or empty for the module itself."""

    module: str
    qualname: str
    overridden: bool = False


def uses(package: Package) -> dict[Use, str]:
    """Return every use, with the file and line of one of its places."""
    found = dict.fromkeys(_tables(package), "a table")
    for file in FILES:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for use, line in [*_imported(tree), *_members(tree, package), *_fields(tree), *_inherited(tree, package)]:
            if use.qualname.rpartition(".")[2] not in OURS | ELSEWHERE:
                found.setdefault(use, f"{file.name}:{line}")
    return found


def _tables(package: Package) -> Iterator[Use]:
    """What is listed as data: hooks, steps of the resolution, kernels, arguments that go into the identity."""
    for target in (*HOOKS, *SHARING, *GATES):
        parts = target.split(".")
        cut = next(n for n in range(len(parts) - 1, 0, -1) if package.module(".".join(parts[:n])))
        yield Use(".".join(parts[:cut]), ".".join(parts[cut:]))
    yield from (Use(f"{SRT}.arg_groups.resolution_hooks", f'"{step}"') for step in STEPS)
    yield from (Use(module, kernel.__name__) for module, kernels in CPU_KERNELS.items() for kernel in kernels)
    yield from (Use(FIELDS, f"*.{name}") for name in _WHAT_ELSE)


def _imported(tree: ast.AST) -> Iterator[tuple[Use, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang."):
            yield from ((Use(node.module or "", alias.name), node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "importlib.import_module":
            named = ast.unparse(node.args[0]).strip("'")
            if named.startswith("sglang."):
                yield Use(named, ""), node.lineno


def _members(tree: ast.AST, package: Package) -> Iterator[tuple[Use, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            receiver = ast.unparse(node.value).rpartition(".")[2]
            if receiver == "server_args" and node.attr.startswith("_"):
                yield Use(f"{SRT}.arg_groups.pipeline", f".{node.attr}"), node.lineno
                continue
            classes = RECEIVERS.get(receiver, [])
            named = [Use(module, f"{cls}.{node.attr}".lstrip(".")) for module, cls in classes]
            there = [use for use in named if use.module == FIELDS or package.find(use.module, use.qualname)]
            yield from ((use, node.lineno) for use in (there or named)[:1])


def _fields(tree: ast.AST) -> Iterator[tuple[Use, int]]:
    """Names of server arguments that are given as texts or as keywords."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "_field":
            yield Use(FIELDS, f"*.{ast.literal_eval(node.args[0])}"), node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "_declare":
            yield from ((Use(FIELDS, f"*.{each.arg}"), node.lineno) for each in node.keywords if each.arg)


def _inherited(tree: ast.Module, package: Package) -> Iterator[tuple[Use, int]]:
    """What classes of ours override, call or read of the class of SGLang that they extend, by a mixin or not."""
    origin = {
        alias.asname or alias.name: node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang.")
        for alias in node.names
    }
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    for cls in classes.values():
        bases = [base.id for base in cls.bases if isinstance(base, ast.Name)]
        parts = [cls, *(classes[name] for name in bases if name in classes)]
        for base in (name for name in bases if name in origin):
            own = {node.name: node.lineno for part in parts for node in part.body if isinstance(node, ast.FunctionDef)}
            for name, line in own.items():
                if package.find(origin[base], f"{base}.{name}") is not None:
                    yield Use(origin[base], f"{base}.{name}", overridden=True), line
            attributes = [node for part in parts for node in ast.walk(part) if isinstance(node, ast.Attribute)]
            stored = {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
            stored |= {ast.unparse(n.target) for part in parts for n in part.body if isinstance(n, ast.AnnAssign)}
            for node in attributes:
                inherited = ast.unparse(node.value) == "self" and node.attr not in stored | own.keys()
                if inherited and not node.attr.startswith("__"):
                    yield Use(origin[base], f"{base}.{node.attr}"), node.lineno
