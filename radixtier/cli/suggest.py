"""``radixtier suggest``: the command that starts a server with the tier on this machine, and why it is that one.

Owns the arguments, the look at the machine and the exit status. Invariant: nothing is started, no model is loaded, no
GPU is touched. Works without SGLang. Main thread.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import sys
from collections.abc import Sequence

from radixtier.cli.exits import FAILED, OK, USAGE, with_statuses
from radixtier.cli.kinds import port
from radixtier.machine import Machine
from radixtier.suggest.command import as_json, as_lines, as_shell, as_yaml
from radixtier.suggest.drives import look_at, other_drives
from radixtier.suggest.gpus import Gpu, find_gpus
from radixtier.suggest.model import read_model
from radixtier.suggest.plan import Plan, plan
from radixtier.suggest.servers import FIRST_PORT, Facts, Server, Wishes
from radixtier.tools.arguments import nbytes
from radixtier.tools.attention import DTYPES
from radixtier.tools.findings import Finding, render
from radixtier.units import BadValue, Size, parse_size

EXPLANATION = """\
Prints the command that starts a server with the tier on this machine, with a line for each choice: GPUs, RAM within
cgroup limits, the drives under the directories given, what a token of the model takes. Several GPUs get one server
each; a model that does not fit on one gets a server for as many as it needs (--tp-size).
Nothing is started and nothing is changed.
"""


def main(argv: Sequence[str]) -> int:
    """Print the suggestion; 0 if there is one, 1 if something is in the way."""
    options = parser().parse_args(argv)
    try:
        facts, trouble = _look(options)
    except (OSError, ValueError) as error:
        print(f"radixtier suggest: {error}", file=sys.stderr)
        return USAGE
    found = plan(facts, Wishes(options.port, options.dwpd, options.kv_cache_dtype))
    found = Plan(found.servers, (*trouble, *found.findings))
    if options.gpu is not None:
        chosen = tuple(s for s in found.servers if options.gpu in (s.visible, *(gpu.number for gpu in s.gpus)))
        if found.servers and not chosen:
            known = ", ".join(gpu.number for server in found.servers for gpu in server.gpus) or "none"
            print(f"radixtier suggest: --gpu {options.gpu}: no such GPU; there are: {known}", file=sys.stderr)
            return USAGE
        found = Plan(chosen, found.findings)
    if (options.shell or options.yaml) and len(found.servers) > 1:
        what = f"{len(facts.gpus)} GPUs, so {len(found.servers)} servers"
        form = "--shell" if options.shell else "--yaml"
        print(f"radixtier suggest: {form}: {what}: add --gpu with the number of one", file=sys.stderr)
        return USAGE
    _print(found, options, argv)
    return OK if found.servers else FAILED


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(prog="radixtier suggest", description=EXPLANATION)
    add = made.add_argument
    add("--model-path", required=True, metavar="MODEL", help="as for the server; a directory tells more than a name")
    path_help = "directories for the store, one per drive, each on its own file system; none: DRAM only"
    add("--path", nargs="+", action="extend", default=[], metavar="DIR", help=path_help)
    add("--gpu-memory", type=nbytes, metavar="SIZE", help="of each GPU, in place of what nvidia-smi says")
    add("--ram", type=nbytes, metavar="SIZE", help="that may be used, in place of what is available now")
    kv_help = "KV of one token, all layers, where no config.json tells it"
    add("--kv-bytes-per-token", type=_token_bytes, metavar="SIZE", help=kv_help)
    add("--kv-cache-dtype", choices=DTYPES[1:], help="of KV, passed on to the server (default: the model's)")
    dwpd_help = "drive writes per day that the drives are rated for, or none for no budget (default: 1)"
    add("--dwpd", type=_dwpd, default=1.0, metavar="N", help=dwpd_help)
    add("--port", type=port, default=FIRST_PORT, help="of the first server (default: %(default)s)")
    add("--gpu", metavar="N", help="print the command of the server on this one of several GPUs only")
    form = made.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print everything as JSON")
    form.add_argument("--shell", action="store_true", help="print a shell script that starts the server")
    form.add_argument("--yaml", action="store_true", help="print a file for SGLang's --config")
    return with_statuses(made)


def _look(options: argparse.Namespace) -> tuple[Facts, list[Finding]]:
    """Look at the machine, and say what about it was a surprise."""
    gpus, why_none = find_gpus(os.environ)
    if options.gpu_memory:
        gpus = tuple(gpu._replace(memory=options.gpu_memory) for gpu in gpus) or (
            Gpu("0", "as given by --gpu-memory", options.gpu_memory),
        )
        why_none = ""
    trouble = []
    if why_none:
        trouble.append(Finding("warning", "GPU", why_none, "mend that, or give --gpu-memory to plan for one"))
    place = _absolute(options.model_path)
    model = read_model(
        # A name that is no directory here is for the server to look up.
        place if os.path.isdir(place) else options.model_path,
        cpu=not gpus,
        kv_dtype=options.kv_cache_dtype,
        kv_bytes=options.kv_bytes_per_token,
    )
    directories = tuple(look_at(_absolute(path)) for path in dict.fromkeys(options.path))
    usable = [directory.path for directory in directories if directory.usable]
    facts = Facts(
        ram=options.ram or Machine.probe().ram_bytes,
        gpus=gpus,
        directories=directories,
        others=tuple(other_drives(usable)),
        model=model,
        runtime=os.environ.get("XDG_RUNTIME_DIR", ""),
    )
    return facts, trouble


def _absolute(path: str) -> str:
    """Return a path that means the same wherever the command is run that is printed here."""
    return os.path.abspath(os.path.expanduser(path))


def _print(found: Plan, options: argparse.Namespace, asked: Sequence[str]) -> None:
    if options.json:
        report = {
            "servers": [as_json(server) for server in found.servers],
            "findings": [finding._asdict() for finding in found.findings],
        }
        print(json.dumps(report, indent=2))
    elif options.shell or options.yaml:
        for problem in found.problems:
            print(f"radixtier suggest: {problem.topic}: {problem.found}. {problem.fix}.", file=sys.stderr)
        write = as_shell if options.shell else as_yaml
        for server in found.servers:
            print(write(server, found.findings, asked), end="")
    else:
        print(render("reasons", found.findings))
        for server in found.servers:
            print(f"\n{_title(server)}\n\n" + "\n".join(as_lines(server)))
        if not found.servers:
            print("\nnothing to start until the problems are solved")
        elif found.servers[0].config.nvme_path:
            first = shlex.join(("radixtier", "doctor", *options.path, *_kv(found.servers[0])))
            print(f"\nbefore you do, measure the drives, and from which length on they beat computing:\n{first}")


def _kv(server: Server) -> tuple[str, str]:
    return "--kv-bytes-per-token", f"{server.model.kv_bytes}B"


def _title(server: Server) -> str:
    if not server.gpus:
        return "on the CPU"
    return f"on GPU {', '.join(gpu.number for gpu in server.gpus)}, port {server.port}"


def _token_bytes(text: str) -> int:
    """Parse the KV of one token: plain bytes may be few here."""
    try:
        size = Size(int(text)) if text.isdecimal() else parse_size(text)
    except BadValue as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if str(size).endswith("tokens") or not size.amount:
        raise argparse.ArgumentTypeError(f"{text}: give bytes, such as 128KiB")
    return size.amount


def _dwpd(text: str) -> float | None:
    if text.lower() == "none":
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: give drive writes per day, such as 1 or 0.3, or none")
    return value
