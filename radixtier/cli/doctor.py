"""``radixtier doctor``: whether this machine and these directories can serve with the tier, and what to do if not.

Owns the order of the checks, the estimate at the end and the exit status. Invariant: nothing is changed; test files are
removed. Works without SGLang. Main thread.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from radixtier.cli.exits import FAILED, INTERRUPTED, OK, USAGE, with_statuses
from radixtier.cli.json_file import SCREEN, add_json, show, write_json
from radixtier.machine import file_systems
from radixtier.policy.prefill import FAST
from radixtier.tools.arguments import nbytes
from radixtier.tools.attention import DTYPES
from radixtier.tools.breakeven import DEFAULT_KV_BYTES, break_even, kv_bytes_of
from radixtier.tools.drive import Drive, check_drive, check_rooms
from radixtier.tools.findings import Finding, render, summary
from radixtier.tools.host import check_host
from radixtier.units import format_bytes

LENGTHS = (4096, 32768)
"""Prefixes, in tokens, whose seconds are told."""

EXPLANATION = """\
Checks the software, the machine and each directory that is to hold pages, and says what to do about what is in the
way. Each drive's speed is measured with a small test file. The last block tells from which length on a prefix is
faster read from these drives than computed again.
"""


def main(argv: Sequence[str]) -> int:
    """Run the checks; 0 if nothing is in the way, 1 if something is."""
    parsed = parser()
    options = parsed.parse_args(argv)
    try:
        kv_bytes = _kv_bytes(options)
    except (OSError, ValueError) as error:
        parsed.error(str(error))
    try:
        blocks: dict[str, list[Finding]] = {"this machine": check_host()}
        drives: dict[str, Drive] = {str(path): check_drive(path.absolute()) for path in options.directories}
    except KeyboardInterrupt:
        print("radixtier doctor: interrupted; test files are removed", file=sys.stderr)
        return INTERRUPTED
    blocks.update({path: drive.findings for path, drive in drives.items()})
    if options.directories:
        blocks["room"] = list(check_rooms([path.absolute() for path in options.directories], options.size))
    estimate = _estimate(drives, options.prefill_rate, kv_bytes)
    if estimate:
        blocks["break-even"] = list(_verdicts(estimate))
    findings = [finding for block in blocks.values() for finding in block]
    show(options, [*(f"{render(title, block)}\n" for title, block in blocks.items()), summary(findings)])
    try:
        write_json(options, _report(blocks, drives, estimate))
    except OSError as error:
        if options.json == SCREEN:
            raise
        print(f"radixtier doctor: --json {options.json}: {error.strerror}: name another file", file=sys.stderr)
        return USAGE
    return FAILED if any(finding.level == "problem" for finding in findings) else OK


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    made = argparse.ArgumentParser(prog="radixtier doctor", description=EXPLANATION)
    add = made.add_argument
    add("directories", type=Path, nargs="*", metavar="DIR", help="a directory for --radix-tier-nvme-path")
    add("--size", type=nbytes, metavar="SIZE", help="what the store is to take, over all directories")
    rate_help = f"tokens/s of prefill on your server (default: {1 / FAST.linear:.0f})"
    add("--prefill-rate", type=_rate, default=1 / FAST.linear, metavar="TOKENS/S", help=rate_help)
    model = made.add_mutually_exclusive_group()
    kv_help = f"KV of one token, all layers (default: {format_bytes(DEFAULT_KV_BYTES)}, an 8B model in bfloat16)"
    model.add_argument("--kv-bytes-per-token", type=nbytes, metavar="SIZE", help=kv_help)
    model.add_argument("--model-config", type=Path, metavar="FILE", help="take it from this config.json")
    add("--kv-cache-dtype", choices=DTYPES, help="of KV with --model-config (default: the model's)")
    add_json(made, "all findings and figures")
    return with_statuses(made)


def _kv_bytes(options: argparse.Namespace) -> int:
    if options.model_config:
        return kv_bytes_of(options.model_config, options.kv_cache_dtype)
    return int(options.kv_bytes_per_token or DEFAULT_KV_BYTES)


def _estimate(drives: dict[str, Drive], prefill_rate: float, kv_bytes: int) -> dict[str, Any]:
    """Apply the break-even law to the drives together; empty where none was measured."""
    reads = {path: drive.speed.read for path, drive in drives.items() if drive.speed}
    # Directories on one file system share its drive.
    bandwidth = sum(max(reads[path] for path in group.directories) for group in file_systems(reads))
    if not bandwidth:
        return {}
    result = break_even(bandwidth, prefill_rate, kv_bytes, LENGTHS)
    inputs = {"read_gbps": bandwidth / 1e9, "prefill_rate": prefill_rate, "kv_bytes_per_token": kv_bytes}
    return {**inputs, **result._asdict()}


def _verdicts(estimate: dict[str, Any]) -> Iterator[Finding]:
    given = (
        f"at {estimate['read_gbps']:.2f} GB/s, {estimate['prefill_rate']:.0f} tokens/s of prefill and"
        f" {format_bytes(estimate['kv_bytes_per_token'])} of KV per token"
    )
    if estimate["tokens"] is None:
        fix = "add drives, or give --prefill-rate and the KV size of your server if these are not its figures"
        yield Finding("warning", "NVMe", f"a prefix is computed faster than read, {given}", fix)
    else:
        yield Finding("ok", "NVMe", f"a prefix of {estimate['tokens']} tokens or more is faster read, {given}")
    for n in LENGTHS:
        found = f"read in {estimate['read_s'][n]:.2f} s, computed in {estimate['compute_s'][n]:.2f} s"
        yield Finding("ok", f"{n} tokens", found)


def _report(blocks: dict[str, list[Finding]], drives: dict[str, Drive], estimate: dict[str, Any]) -> dict[str, Any]:
    findings = [{"where": title, **finding._asdict()} for title, block in blocks.items() for finding in block]
    speeds = {
        path: {"read_gbps": drive.speed.read / 1e9, "write_gbps": drive.speed.write / 1e9}
        for path, drive in drives.items()
        if drive.speed
    }
    return {"findings": findings, "directories": speeds, "break_even": estimate}


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: give tokens per second, such as 5000")
    return rate
