"""``radixtier bench promote``: promotion on a real server, where it should help and where it must not hurt.

Owns the plans, the order of the parts and the report; each part is a module of its own. Invariant: whatever happens, no
server and no store is left behind. Main thread.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radixtier import SGLANG_VERSION, __version__
from radixtier.control.client import ControlError
from radixtier.demo import promote_overlap, promote_return, promote_slow
from radixtier.demo.promote_overlap import OverlapPlan
from radixtier.demo.promote_return import ReturnPlan
from radixtier.demo.promote_rig import Rig
from radixtier.demo.promote_slow import SlowPlan
from radixtier.live.client import RequestFailed
from radixtier.live.ending import end_like_ctrl_c
from radixtier.live.model import cache_root, make_tiny_model, smollm2
from radixtier.live.output import unwritable
from radixtier.live.screen import Screen
from radixtier.live.server import ServerFailed

PARTS = ("slow", "return", "overlap")

EXPLANATION = """\
Starts real SGLang servers on this machine's CPU, in three parts (--part for some of them):

slow     Conversations return whose KV is on NVMe only, while the drive has 1/100 and 1/1000 of its bandwidth: after it
         collapsed under the running server, and from the server's start. The same turns go to stock SGLang, which
         computes them again. ratio is radixtier / stock of the time to first token; p95 is to be at most 1.10.
return   Sessions with a regular think time, more than DRAM holds: how much of a returning prompt is in DRAM, before the
         server predicts returns and afterwards. 90 % of the predicted returns are to need nothing from NVMe.
overlap  A prompt whose prefix is on NVMe, with reads at 1/5 of their speed, comes while a long prompt is prefilled:
         its pages are to be up before that is over, so that it waits for nothing. sum is what its first token would
         take without overlap.

The drive is slowed by RADIXTIER_FAULTS, see radixtier/io/live_faults.py.
"""


@dataclass(frozen=True)
class Plan:
    """How much each part measures."""

    slow: SlowPlan
    returns: ReturnPlan
    overlap: OverlapPlan


FULL = Plan(
    SlowPlan(factors=(100, 1000), conversations=5, prompt_tokens=1200, fast_rounds=2, slow_rounds=8),
    ReturnPlan(sessions=8, prompt_tokens=1000, turns=16, think_s=8.0),
    OverlapPlan(trials=5, cold_tokens=1000, long_tokens=2400, delay_s=0.5),
)
QUICK = Plan(
    SlowPlan(factors=(100,), conversations=4, prompt_tokens=600, fast_rounds=1, slow_rounds=4),
    ReturnPlan(sessions=6, prompt_tokens=600, turns=12, think_s=5.0),
    OverlapPlan(trials=2, cold_tokens=600, long_tokens=1600, delay_s=0.3),
)


def main(argv: Sequence[str]) -> int:
    """Run the parts, print the tables, write the JSON; 1 only if something could not be measured."""
    options = _parse(argv)
    screen = Screen()
    end_like_ctrl_c()
    root = cache_root() / "bench"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="promote-", dir=root.resolve()) as scratch:
            model = _model(options, Path(scratch), screen)
            rig = Rig(model, _vocabulary(model), Path(scratch), screen, options.flags)
            result = measure(rig, QUICK if options.quick else FULL, options.part)
            result["model"] = model.name
    except KeyboardInterrupt:
        print("radixtier bench promote: interrupted; servers are stopped", file=sys.stderr)
        return 130
    except (ServerFailed, RequestFailed, ControlError, OSError, RuntimeError) as error:
        print(f"radixtier bench promote: {error}", file=sys.stderr)
        return 1
    result["command"] = shlex.join(["radixtier", "bench", "promote", *argv])
    report(result, screen)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    made = argparse.ArgumentParser(
        prog="radixtier bench promote", description=EXPLANATION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--quick", action="store_true", help="shorter prompts, fewer turns, 1/100 only")
    made.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    made.add_argument("--part", action="append", choices=PARTS, help="run this part only; may be repeated")
    made.add_argument("--model", type=Path, metavar="DIR", help="a model directory (default: SmolLM2, as the demo)")
    made.add_argument("--tiny", action="store_true", help="a model of random weights: checks the bench, not the tier")
    made.add_argument("flags", nargs="*", metavar="FLAG", help="after --: further flags of the servers with the tier")
    return made


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    made = parser()
    options = made.parse_args(argv)
    if options.json and (fault := unwritable(options.json)):
        made.error(f"argument --json: {options.json}: {fault}")
    options.part = [part for part in PARTS if part in (options.part or PARTS)]
    return options


def _model(options: argparse.Namespace, scratch: Path, screen: Screen) -> Path:
    if options.tiny:
        return make_tiny_model(scratch / "tiny")
    model: Path = options.model or smollm2(screen.line)
    return model


def _vocabulary(model: Path) -> int:
    return int(json.loads((model / "config.json").read_text(encoding="utf-8"))["vocab_size"])


def measure(rig: Rig, plan: Plan, parts: Sequence[str]) -> dict[str, Any]:
    """Run some parts.

    Returns
    -------
    dict
        The result of each part under its name, ``commands`` (how each server was started), ``machine`` and versions.
    """
    result: dict[str, Any] = {
        "sglang_version": SGLANG_VERSION,
        "radixtier_version": __version__,
        "machine": {"cpus": os.cpu_count(), "architecture": platform.machine()},
    }
    for part in parts:
        rig.screen.title(part)
        if part == "slow":
            result[part] = promote_slow.measure(rig, plan.slow)
        elif part == "return":
            result[part] = promote_return.measure(rig, plan.returns)
        else:
            result[part] = promote_overlap.measure(rig, plan.overlap)
    return result | {"commands": rig.commands}


def report(result: dict[str, Any], screen: Screen) -> None:
    """Show the tables."""
    if slow := result.get("slow"):
        screen.title("A slow drive: seconds to the first token, with the tier and without (p95 ratio at most 1.10)")
        screen.line(promote_slow.HEAD)
        for row in slow["rows"]:
            screen.line(promote_slow.line(row))
    if returns := result.get("return"):
        screen.title("Returning sessions: where their prompts were (predicted: 90 % without NVMe)")
        screen.line(promote_return.HEAD)
        for name in ("unpredicted", "predicted"):
            screen.line(promote_return.line(name, returns[name]))
        screen.line(f"pages: {', '.join(f'{name} {n}' for name, n in returns['counters'].items())}")
    if overlap := result.get("overlap"):
        screen.title("A cold prompt behind a long prefill: seconds, medians (waited about 0)")
        screen.line(promote_overlap.HEAD)
        screen.line(promote_overlap.line(overlap))
