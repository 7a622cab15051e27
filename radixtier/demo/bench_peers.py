"""``radixtier bench peers``: radixtier beside what else there is, on one machine, in one run.

Owns the command line, the choice of groups and the result. Invariant: whatever happens, no server and no file is left
behind, and what was measured until then is shown. Main thread.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

from radixtier import SGLANG_VERSION, __version__
from radixtier.control.client import ControlError
from radixtier.demo import peers_figures
from radixtier.demo.peers_plan import FULL, QUICK, Plan
from radixtier.demo.peers_report import report
from radixtier.demo.peers_run import Found, Run
from radixtier.demo.peers_side import DRAM, FILE, OURS, POLICIES, SIDES, STOCK, Side
from radixtier.live.client import RequestFailed
from radixtier.live.ending import end_like_ctrl_c
from radixtier.live.model import cache_root, make_tiny_model, smollm2
from radixtier.live.output import unwritable
from radixtier.live.screen import Screen
from radixtier.live.server import ServerFailed
from radixtier.machine import Machine

PAIRS = ((STOCK, DRAM), (FILE, OURS))
"""Who is compared with whom where memory does not hold all of them."""

BASE_BYTES = 5 << 29
"""Memory of a CPU server of a small model beside its KV, generously."""

KEPT_BYTES = 2 << 30

EXPLANATION = """\
Starts up to four servers on this machine's CPU and plays the same prompts on each, one side at a time, the others
stopped by a signal:

stock         SGLang without a tier below HBM
hicache-dram  SGLang's HiCache with DRAM only
hicache-file  HiCache with its `file` storage: one file for each page
radixtier     the tier

All have the same model, page size and HBM, and the same DRAM in tokens; files are on one file system. Measured are the
time to first token by the tier that the prefix came from, alone and with nothing else running; the throughput of
several requests at once (8 of 2,000 tokens, 4 of 4,000) whose prefixes are on NVMe, also right after a restart, in
HBM, which is the most that tiering can reach, and in DRAM; and that without reuse. A round of a load counts if 90 % of
its prompts came from the tier it is about, on both sides. Before prefixes are read from files, these are taken out of
the page cache on both sides. Ratios are radixtier / peer.

Where memory holds only two servers, two runs follow each other: stock with hicache-dram, hicache-file with radixtier.
"""


def main(argv: Sequence[str]) -> int:
    """Run the sides, print the tables, write the JSON; 1 only if something that has a target could not be measured."""
    options = _parse(argv)
    screen = Screen()
    end_like_ctrl_c()
    plan = _plan(options)
    found, commands = Found(), dict[str, str]()
    status, model_name = 0, ""
    try:
        root = cache_root() / "bench"
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="peers-", dir=root.resolve()) as scratch:
            model = _model(options, Path(scratch), screen)
            model_name = model.name
            for names in groups(options.only, plan, model):
                sides = [Side(name, model, plan, Path(scratch), options.page_size, options.prefetch) for name in names]
                commands |= {side.name: side.command for side in sides}
                Run(sides, plan, screen, found).measure()
    except KeyboardInterrupt:
        print("radixtier bench peers: interrupted; servers are stopped", file=sys.stderr)
        status = 130
    except (ServerFailed, RequestFailed, ControlError, OSError, RuntimeError) as error:
        print(f"radixtier bench peers: {error}", file=sys.stderr)
        status = 1
    figures = summarise(found, plan, options.only)
    missing = peers_figures.unmeasured(figures["comparisons"])
    if missing and status == 0:
        status = 1
        for row in missing:
            print(f"radixtier bench peers: {row['what']}, {row['peer']}: not measured, {row['why']}", file=sys.stderr)
    result = {
        "command": shlex.join(["radixtier", "bench", "peers", *argv]),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "complete": status == 0,
        "sglang_version": SGLANG_VERSION,
        "radixtier_version": __version__,
        "model": model_name,
        "machine": {"cpus": os.cpu_count(), "architecture": platform.machine()},
        "page_size": options.page_size,
        "prefetch": options.prefetch,
        "plan": {**asdict(plan), "prompts": dict(plan.prompts)},
        "commands": commands,
        **figures,
    }
    if found.samples:
        report(result, screen)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return status


def summarise(found: Found, plan: Plan, sides: Sequence[str]) -> dict[str, Any]:
    """Make the figures of a run.

    Returns
    -------
    dict
        ``ttft``, ``comparisons``, ``loads``, ``bounds`` and ``pays_from`` (see `peers_figures`),
        ``other_answers``, ``cold``, and what they were made of: ``samples`` and ``rounds``.
    """
    return {
        "ttft": peers_figures.table(found.samples, sides),
        "comparisons": peers_figures.comparisons(found.samples, found.rounds, plan, sides),
        "loads": peers_figures.loads(found.rounds, plan, sides),
        "bounds": peers_figures.bounds(found.rounds, plan, sides),
        "pays_from": peers_figures.pays_from(found.samples),
        "other_answers": peers_figures.others(found.samples),
        "cold": found.cold,
        "samples": [asdict(sample) for sample in found.samples],
        "rounds": [{**asdict(each), "share": each.share, "counts": each.counts} for each in found.rounds],
    }


def groups(only: Sequence[str], plan: Plan, model: Path, available: int | None = None) -> list[list[str]]:
    """Return which sides are up together: all of ``only``, or :data:`PAIRS` where memory holds no more.

    Parameters
    ----------
    available
        Free memory, bytes; None for what the machine has, within the limits of our cgroups.

    Raises
    ------
    RuntimeError
        Memory does not even hold a pair.
    """
    available = Machine.probe().ram_bytes if available is None else available
    need = {name: _need(name, plan, model) for name in only}
    if sum(need.values()) + KEPT_BYTES <= available:
        return [list(only)]
    pairs = [pair for pair in ([name for name in pair if name in only] for pair in PAIRS) if pair]
    most = max(sum(need[name] for name in pair) for pair in pairs) + KEPT_BYTES
    if most > available:
        raise RuntimeError(
            f"needs {most / 2**30:.1f} GiB of free memory, {available / 2**30:.1f} are there; "
            "stop something else, or use --quick or --only"
        )
    return pairs


def _need(name: str, plan: Plan, model: Path) -> int:
    """Return the memory of a server, bytes; its KV is float32."""
    return BASE_BYTES + token_bytes(model) * (plan.hbm + (0 if name == STOCK else plan.dram))


def token_bytes(model: Path) -> int:
    """Return the bytes of a token's KV in float32.

    Raises
    ------
    ValueError
        What is wrong with the model's ``config.json``, in one line.
    """
    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        heads = config["num_attention_heads"]
        head = config.get("head_dim") or config["hidden_size"] // heads
        bytes_ = 2 * 4 * config["num_hidden_layers"] * config.get("num_key_value_heads", heads) * head
    except OSError as error:
        raise ValueError(f"its config.json cannot be read ({error.strerror})") from None
    except KeyError as error:
        raise ValueError(f"its config.json has no {error.args[0]}") from None
    except (ValueError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise ValueError(f"its config.json is not that of a model ({error})") from None
    if not isinstance(bytes_, int) or bytes_ <= 0:
        raise ValueError("its config.json is not that of a model (sizes are whole numbers over 0)")
    return bytes_


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    made = _Parser(
        prog="radixtier bench peers", description=EXPLANATION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--quick", action="store_true", help="fewer prompts and rounds: about 20 minutes for 35")
    made.add_argument("--json", type=Path, metavar="FILE", help="write all figures and all samples to FILE")
    made.add_argument("--only", action="append", choices=SIDES, help="run this side only; may be repeated")
    made.add_argument("--page-size", type=int, default=16, metavar="N", help="tokens of a page (default: 16)")
    made.add_argument(
        "--prefetch", choices=POLICIES, default=POLICIES[0], help="HiCache's prefetch policy (default: the best here)"
    )
    made.add_argument("--restarts", type=int, metavar="N", help="how often both are started again")
    made.add_argument("--model", type=Path, metavar="DIR", help="a model directory (default: SmolLM2, as the demo)")
    made.add_argument("--tiny", action="store_true", help="a model of random weights: checks the bench, not the tier")
    return made


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    made = parser()
    options = made.parse_args(argv)
    options.only = [side for side in SIDES if side in (options.only or SIDES)]
    if options.page_size < 1:
        made.error(f"argument --page-size: {options.page_size} is no size; give 1 or more")
    if options.restarts is not None and options.restarts < 0:
        made.error(f"argument --restarts: {options.restarts} is no number of times; give 0 or more")
    if options.json and (fault := unwritable(options.json)):
        made.error(f"argument --json: {options.json}: {fault}")
    if options.model:
        try:
            token_bytes(options.model)
        except ValueError as error:
            made.error(f"argument --model: {options.model}: {error}; name a model's directory")
    return options


def _plan(options: argparse.Namespace) -> Plan:
    plan = QUICK if options.quick else FULL
    return plan if options.restarts is None else replace(plan, restarts=options.restarts)


def _model(options: argparse.Namespace, scratch: Path, screen: Screen) -> Path:
    if options.tiny:
        return make_tiny_model(scratch / "tiny")
    model: Path = options.model or smollm2(screen.line)
    return model
