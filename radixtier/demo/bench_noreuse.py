"""``radixtier bench noreuse``: does the tier slow down a load that it cannot help?

Owns two servers on this machine, stock SGLang without a host tier and the tiered one. Invariant: only one of them runs
at a time, the other is stopped by a signal, so neither is measured against the other's idle loop; both get the same
prompts, no two of which share a page. Main thread, with a few threads that send requests.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from radixtier import SGLANG_VERSION
from radixtier.live.client import RequestFailed
from radixtier.live.ending import end_like_ctrl_c
from radixtier.live.model import cache_root, smollm2
from radixtier.live.output import unwritable
from radixtier.live.screen import Screen
from radixtier.live.server import CPU_FLAGS, Server, ServerFailed
from radixtier.load.paired import Work, blocks, timed

PROMPT_TOKENS = 512
PROMPTS = 8
"""Requests per turn; with 4,096 tokens of prompt, a turn nearly fills HBM."""

ANSWER_TOKENS = 8
CONCURRENT = 4
PAGE_SIZE = 16

HBM_TOKENS, DRAM_TOKENS, NVME_TOKENS = 6144, 6144, 6144
"""Small, so that after :data:`WARM_TURNS` turns every tier is full and forgets as much as comes in."""

WARM_TURNS = 4
TARGET = 0.98
"""Least throughput with the tier, as a share of stock."""

EXPLANATION = """\
Starts stock SGLang (radix cache on, no host tier) and SGLang with radixtier on this machine's CPU and sends both the
same load, in turns: prompts of which no two share a page, so that nothing is ever reused, while every page is backed
up, written to NVMe and forgotten again. While one server works the other is stopped by a signal. ratio is the median of
radixtier's throughput / stock's over pairs of turns, in one of which each began; a turn is 8 prompts of 512 tokens, 4
at a time. cpu_ratio is the same for tokens per second of CPU time, which other work on the machine disturbs less.
"""


def main(argv: Sequence[str]) -> int:
    """Run the load, print the ratio, write the JSON; 1 only if it could not be measured."""
    made = parser()
    options = made.parse_args(argv)
    if options.json and (fault := unwritable(options.json)):
        made.error(f"argument --json: {options.json}: {fault}")
    screen = Screen()
    end_like_ctrl_c()
    try:
        result = measure(options.model or smollm2(screen.line), 4 if options.quick else 16, screen)
    except KeyboardInterrupt:
        print("radixtier bench noreuse: interrupted; servers are stopped", file=sys.stderr)
        return 130
    except (ServerFailed, RequestFailed, OSError, RuntimeError) as error:
        print(f"radixtier bench noreuse: {error}", file=sys.stderr)
        return 1
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    made = argparse.ArgumentParser(
        prog="radixtier bench noreuse", description=EXPLANATION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    made.add_argument("--quick", action="store_true", help="4 turns instead of 16")
    made.add_argument("--model", type=Path, metavar="DIR", help="a model directory (default: SmolLM2, as the demo)")
    return made


def measure(model: Path, turns: int, screen: Screen) -> dict[str, Any]:
    """Run ``turns`` turns, after those that fill the tiers.

    Returns
    -------
    dict
        Medians over turns: ``ratio`` of throughput, ``cpu_ratio`` of tokens per CPU second, ``stock_tokens_per_s``,
        ``radixtier_tokens_per_s``; ``spread`` and ``cpu_spread``, the interquartile ranges of the ratios; ``turns``,
        ``target``, ``model``, ``sglang_version``.
    """
    vocabulary = json.loads((model / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    prompts = _prompts(vocabulary)
    done: list[list[Work]] = []
    with _servers(model, screen) as servers:
        for number in range(-WARM_TURNS, turns):
            work = [next(prompts) for _ in range(PROMPTS)]
            sides = servers if number % 2 else servers[::-1]
            loads = {server.name: _work(server, work) for server in sides}
            stock, tiered = turn = [loads[server.name] for server in servers]
            screen.line(
                f"{f'turn {number + 1}' if number >= 0 else 'filling'}: stock {stock.tokens_per_s:.0f} tokens/s, "
                f"radixtier {tiered.tokens_per_s:.0f}, ratio {tiered.tokens_per_s / stock.tokens_per_s:.3f}, "
                f"cpu_ratio {tiered.tokens_per_cpu_s / stock.tokens_per_cpu_s:.3f}"
            )
            if number >= 0:
                done.append(turn)
    ratio, spread = _middle([(tiered.tokens_per_s, stock.tokens_per_s) for stock, tiered in done])
    cpu_ratio, cpu_spread = _middle([(tiered.tokens_per_cpu_s, stock.tokens_per_cpu_s) for stock, tiered in done])
    screen.line(
        f"ratio {ratio:.3f} (target {TARGET}, spread {spread:.3f}), cpu_ratio {cpu_ratio:.3f} ({cpu_spread:.3f})"
    )
    return {
        "sglang_version": SGLANG_VERSION,
        "model": model.name,
        "turns": turns,
        "stock_tokens_per_s": statistics.median(stock.tokens_per_s for stock, _ in done),
        "radixtier_tokens_per_s": statistics.median(tiered.tokens_per_s for _, tiered in done),
        "ratio": ratio,
        "spread": spread,
        "cpu_ratio": cpu_ratio,
        "cpu_spread": cpu_spread,
        "target": TARGET,
    }


def _middle(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Median and interquartile range of the ratios of ours to theirs, by :func:`radixtier.load.paired.blocks`."""
    low, middle, high = statistics.quantiles([ours / theirs for ours, theirs in blocks(pairs)], n=4)
    return middle, high - low


def _prompts(vocabulary: int) -> Iterator[list[int]]:
    source = random.Random(0)
    while True:
        yield source.choices(range(vocabulary // 2), k=PROMPT_TOKENS)


@contextmanager
def _servers(model: Path, screen: Screen) -> Iterator[list[Server]]:
    """Run both servers, each stopped by a signal as soon as it is up."""
    root = cache_root() / "bench"
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="noreuse-", dir=root) as scratch, ExitStack() as stack:
        common = [*CPU_FLAGS, "--page-size", str(PAGE_SIZE)]
        tier = [
            "--enable-radix-tier",
            "--radix-tier-hbm-size", f"{HBM_TOKENS}tok",
            "--radix-tier-dram-size", f"{DRAM_TOKENS}tok",
            "--radix-tier-nvme-size", f"{NVME_TOKENS}tok",
            "--radix-tier-nvme-path", scratch,
        ]  # fmt: skip
        servers = []
        for name, flags in (("stock", ["--max-total-tokens", str(HBM_TOKENS)]), ("radixtier", tier)):
            server = Server(name, model, [*common, *flags], Path(scratch) / f"{name}.log")
            stack.enter_context(server)
            screen.line(f"starting {name} (importing SGLang takes up to a minute)")
            server.start()
            server.pause()
            servers.append(server)
        yield servers


def _work(server: Server, prompts: Sequence[Sequence[int]]) -> Work:
    """Wake a server, send it a load, and let it sleep again."""
    server.resume()
    try:
        server.client.generate(prompts[0][: PAGE_SIZE - 1], 1)
        replies, seconds, cpu = timed(
            lambda prompt: server.client.generate(prompt, ANSWER_TOKENS), prompts, CONCURRENT, server.pid
        )
    except (RequestFailed, OSError) as error:
        raise server.failure(f"failed a request ({error})") from error
    finally:
        server.pause()
    if any(reply.cached for reply in replies):
        raise RuntimeError(f"{server.name} reused tokens of prompts that share none: this is no measurement")
    tokens = sum(reply.prompt_tokens + len(reply.output_ids) for reply in replies)
    return Work(tokens / seconds, tokens / cpu)
