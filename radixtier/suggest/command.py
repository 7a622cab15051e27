"""A server as a command line, a shell script, a YAML file for SGLang's ``--config``, or JSON.

Owns the order of the flags and the quoting. Invariant: all forms say the same, and all are taken by SGLang's parser
with the plugin's flags. Pure; any thread.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from radixtier.suggest.servers import Server
from radixtier.tools.findings import Finding
from radixtier.units import Size

PYTHON = "${PYTHON:-python3}"


def flags(server: Server) -> dict[str, list[str]]:
    """Return flag -> values, in the order in which they are written; a switch has none."""
    config = server.config
    found: dict[str, list[str]] = {"--model-path": [server.model.path]}
    if server.sizes.ranks > 1:
        found["--tp-size"] = [str(server.sizes.ranks)]
    if not server.gpus:
        found |= {"--device": ["cpu"], "--dtype": ["float32"]}
    if server.kv_dtype:
        found["--kv-cache-dtype"] = [server.kv_dtype]
    found |= {"--port": [str(server.port)], "--page-size": [str(server.sizes.page_size)], "--enable-radix-tier": []}
    if config.hbm_size is not None:
        found["--radix-tier-hbm-size"] = [_size(config.hbm_size)]
    assert config.dram_size is not None and config.nvme_size is not None
    found["--radix-tier-dram-size"] = [_size(config.dram_size)]
    if config.nvme_path:
        found |= {
            "--radix-tier-nvme-path": list(config.nvme_path),
            "--radix-tier-nvme-size": [_size(config.nvme_size)],
            "--radix-tier-write-budget": [config.write_budget],
        }
    if config.control is not None:
        found["--radix-tier-control"] = [config.control]
    return found | {"--enable-metrics": [], "--enable-cache-report": []}


def module(server: Server) -> list[str]:
    """Return the arguments of Python that start a server on the device."""
    return ["-m", "radixtier.cli", "serve"] if not server.gpus else ["-m", "sglang.launch_server"]


def argv(server: Server) -> list[str]:
    """Return the arguments of the server, without the program."""
    return [word for name, values in flags(server).items() for word in (name, *values)]


def as_lines(server: Server) -> Iterator[str]:
    """Yield the lines of the command for a terminal: a flag per line, variables in front."""
    if server.make:
        yield f"mkdir -m 700 -p {shlex.join(server.make)}"
    variables = [f"{name}={shlex.quote(value)}" for name, value in server.environment]
    yield " ".join((*variables, "python3", *module(server))) + " \\"
    yield from _continued(server, end="")


def as_shell(server: Server, reasons: Sequence[Finding], asked: Sequence[str]) -> str:
    """Return a script that starts the server; its own arguments are added to the server's."""
    lines = [
        "#!/bin/sh",
        _comment(f"Printed by: {shlex.join(('radixtier', 'suggest', *asked))}"),
        _comment("PYTHON names the interpreter that has SGLang. More arguments of the server may follow."),
        *_why(reasons),
        "set -eu",
    ]
    if server.make:
        lines.append(f"mkdir -m 700 -p {shlex.join(server.make)}")
    lines += [f"export {name}={shlex.quote(value)}" for name, value in server.environment]
    lines.append(f'exec "{PYTHON}" {" ".join(module(server))} \\')
    lines += _continued(server, end=' "$@"')
    return "\n".join(lines) + "\n"


def as_yaml(server: Server, reasons: Sequence[Finding], asked: Sequence[str]) -> str:
    """Return a file for SGLang's ``--config``; how to start with it is in its first lines."""
    variables = "".join(f"{name}={shlex.quote(value)} " for name, value in server.environment)
    lines = [_comment(f"Printed by: {shlex.join(('radixtier', 'suggest', *asked))}")]
    lines += [_comment(f"mkdir -m 700 -p {shlex.join(server.make)}")] if server.make else []
    lines += [_comment(f"{variables}python3 {' '.join(module(server))} --config THIS_FILE"), *_why(reasons)]
    content: dict[str, Any] = {}
    for name, values in flags(server).items():
        content[name.removeprefix("--")] = list(values) if name == "--radix-tier-nvme-path" else _single(values)
    # A line break of Unicode is taken for one inside quotes as well, unless it is escaped.
    plain = all(map(str.isprintable, argv(server)))
    return "\n".join(lines) + "\n" + yaml.safe_dump(content, sort_keys=False, allow_unicode=plain)


def as_json(server: Server) -> dict[str, Any]:
    """Return everything about a server as JSON values; sizes in bytes, of all ranks together, and tokens."""
    sizes, ranks = server.sizes, server.sizes.ranks
    return {
        "gpu": server.visible,
        "tp_size": ranks,
        "port": server.port,
        "environment": dict(server.environment),
        "make": list(server.make),
        "python": module(server),
        "arguments": argv(server),
        "page_size": sizes.page_size,
        "kv_bytes_per_token": sizes.bytes_per_token * ranks,
        "hbm_tokens": server.hbm_tokens,
        "dram_tokens": sizes.dram_tokens,
        "dram_bytes": sizes.dram_bytes * ranks,
        "nvme_tokens": sizes.nvme_tokens,
        "nvme_bytes": sizes.nvme_bytes * sizes.stores,
    }


def _continued(server: Server, end: str) -> list[str]:
    lines = [f"    {shlex.join((name, *values))}" for name, values in flags(server).items()]
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1] + end]


def _single(values: Sequence[str]) -> Any:
    if not values:
        return True
    return int(values[0]) if values[0].isdecimal() else values[0]


def _why(reasons: Sequence[Finding]) -> list[str]:
    return [_comment(f"  {found.topic}: {found.found}") for found in reasons]


def _comment(text: str) -> str:
    """Write a comment; what follows a line break in a path would be taken for a command or a setting."""
    return "# " + "".join(letter if letter.isprintable() else "?" for letter in text)


def _size(size: Size) -> str:
    """Write a whole number of MiB or GiB as a flag takes it."""
    gib = 1 << 30
    return f"{size.amount // gib}GiB" if size.amount % gib == 0 else f"{size.amount >> 20}MiB"
