"""The demo: real chats on a real SGLang server, without the tier and with it, compared turn by turn.

``python -m radixtier.demo.run [--quick] [--json FILE] [--keep]``; ``launch/demo.sh`` sets everything up
first.

Owns the order of things and the files of a run, in a directory of its own below the cache: server logs,
result, plot, and for the time of the run the NVMe tier. Invariant: the two servers never run at the same time
(each would slow the other down), the tiered one comes last so that ``--keep`` can leave it running, and
whatever happens, no server and no store file is left behind by accident. Main thread.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from radixtier import __version__
from radixtier.demo.plan import FULL, PAGE_SIZE, QUICK, Plan
from radixtier.demo.play import ProbeResult, Turn, ask, play_chats, play_probes, replay, served_by, warm_up
from radixtier.demo.report import Result, build_result, passed, summary, table
from radixtier.live.client import Client, Reply, RequestFailed
from radixtier.live.model import ANSWER, QUESTION, cache_root, smollm2
from radixtier.live.screen import Screen
from radixtier.live.server import CPU_FLAGS, Server, ServerFailed
from radixtier.machine import file_system_type, free_disk_bytes
from radixtier.units import format_bytes

KV_BYTES_PER_TOKEN = 46080
"""SmolLM2-135M in float32: 30 layers, K and V, 3 heads of 64."""

DISK_RESERVE = 2 * 2**30
"""Bytes that stay free on the disk of the NVMe tier."""

_MEMORY_FILESYSTEMS = {"tmpfs", "ramfs"}


class DemoFailed(RuntimeError):
    """The demo cannot go on; the message says why and what to do."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; 0 only if all three tiers were hit and all outputs are the same."""
    options = _parse(argv)
    screen = Screen()
    # A plain `kill` ends the demo like Ctrl-C does: with its servers stopped.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _run(options, screen)
    except KeyboardInterrupt:
        screen.line("interrupted; servers are stopped", "bad")
        return 130
    except (DemoFailed, ServerFailed, RequestFailed, OSError, RuntimeError) as error:
        screen.line(f"error: {error}", "bad")
        return 1


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="launch/demo.sh",
        description="Plays multi-turn chats on SGLang without and with radixtier, and compares them.",
    )
    parser.add_argument("--quick", action="store_true", help="fewer chats and turns: some minutes on two cores")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result here, the plot beside it")
    parser.add_argument("--keep", action="store_true", help="leave the server running, to chat with it")
    return parser.parse_args(argv)


def _run(options: argparse.Namespace, screen: Screen) -> int:
    started = time.monotonic()
    plan = QUICK if options.quick else FULL
    if options.json is not None and not options.json.absolute().parent.is_dir():
        raise DemoFailed(f"--json {options.json}: the directory does not exist")
    if importlib.util.find_spec("matplotlib") is None:
        raise DemoFailed("matplotlib is not installed: pip install 'radixtier[demo]'")
    screen.title("Model")
    model = smollm2(screen.line)
    directory = _run_directory(plan.nvme_tokens * KV_BYTES_PER_TOKEN)
    with _store(directory, screen) as store:
        without = _play_without(plan, model, directory, screen)
        server = Server("with the tier", model, _tier_flags(plan, store), directory / "with-tier.log")
        with server:
            with_tier, probes, version = _play_with(plan, server, without, screen)
            screen.title("3 of 3: the server stops and starts again; every chat comes back once more")
            screen.line("stopping the server (it stores what is not stored yet) ...", "dim")
        server = Server("after the restart", model, _tier_flags(plan, store), directory / "after-restart.log")
        with server:
            returned = _play_restarted(plan, server, with_tier, screen)
            result = {
                "sglang_version": version,
                "radixtier_version": __version__,
                "model": model.name,
                "mode": "quick" if options.quick else "full",
                "machine": {"cpus": os.cpu_count(), "architecture": platform.machine()},
                **build_result(plan, without, with_tier, probes, returned),
                "seconds": round(time.monotonic() - started, 1),
            }
            _report(result, directory, options.json, screen)
            if options.keep:
                _keep(server, store, screen)
    screen.line()
    verdict = passed(result)
    screen.line(
        "Hits on all three tiers and after the restart, outputs identical with and without the tier."
        if verdict
        else "FAILED: a tier was never hit, a chat did not survive the restart, or outputs differ (see above).",
        "good" if verdict else "bad",
    )
    return 0 if verdict else 1


def _play_without(plan: Plan, model: Path, directory: Path, screen: Screen) -> list[Turn]:
    screen.title(f"1 of 3: stock SGLang, the same {plan.hbm_tokens:,} tokens of HBM, no tier")
    flags = [*_common_flags(), "--max-total-tokens", str(plan.hbm_tokens)]
    with Server("without the tier", model, flags, directory / "without-tier.log") as server:
        client = _start(server, screen)
        answer = ask(client, QUESTION)
        screen.line(f"{QUESTION} {answer.strip()}")
        if ANSWER not in answer:
            raise DemoFailed(f"the answer does not name {ANSWER}: remove {model} and start again")
        warm_up(client)
        turns: list[Turn] = []

        def show(turn: Turn) -> None:
            turns.append(turn)
            screen.line(f"{_who(len(turns), turn)}  {_where(turn.reply)}  first token {turn.reply.ttft_s:5.2f} s")

        with _watched(server):
            return play_chats(client, plan, show)


def _play_with(
    plan: Plan, server: Server, without: Sequence[Turn], screen: Screen
) -> tuple[list[Turn], list[ProbeResult], str]:
    screen.title(
        f"2 of 3: the same requests with the tier: HBM {plan.hbm_tokens:,}, DRAM {plan.dram_tokens:,}, "
        f"NVMe {plan.nvme_tokens:,} tokens"
    )
    client = _start(server, screen)
    warm_up(client)
    turns: list[Turn] = []

    def show(turn: Turn) -> None:
        old = without[len(turns)].reply
        turns.append(turn)
        same = turn.reply.output_ids == old.output_ids
        screen.line(
            f"{_who(len(turns), turn)}  {_where(turn.reply)}  first token {turn.reply.ttft_s:5.2f} s, "
            f"without {old.ttft_s:5.2f} s{'' if same else '  OTHER OUTPUT'}",
            "" if same else "bad",
        )

    def show_probe(probe: ProbeResult) -> None:
        screen.line(
            f"{probe.prefix_tokens:,} tokens, {probe.expected:9}  {_where(probe.reply)}  "
            f"first token {probe.reply.ttft_s:5.2f} s{'' if probe.as_expected else '  (not counted)'}",
            "" if probe.as_expected else "dim",
        )

    with _watched(server):
        replay(client, without, plan.answer_tokens, show)
        screen.title("The same prompts from each tier: time to first token")
        probes = play_probes(client, plan, show_probe)
        return turns, probes, client.version()


def _play_restarted(plan: Plan, server: Server, script: Sequence[Turn], screen: Screen) -> list[Turn]:
    """Send the last request of every chat again, to a server that found its tiers on the drive."""
    client = _start(server, screen)
    last = list({turn.chat: turn for turn in script}.values())

    def show(turn: Turn) -> None:
        same = turn.reply.output_ids == next(old for old in last if old.chat == turn.chat).reply.output_ids
        screen.line(
            f"     chat {turn.chat}, turn {turn.turn + 1}:  {_where(turn.reply)}  "
            f"first token {turn.reply.ttft_s:5.2f} s{'' if same else '  OTHER OUTPUT'}",
            "" if same else "bad",
        )

    with _watched(server):
        return replay(client, last, plan.answer_tokens, show)


def _common_flags() -> list[str]:
    return [*CPU_FLAGS, "--page-size", str(PAGE_SIZE)]


def _tier_flags(plan: Plan, store: Path) -> list[str]:
    return [
        *_common_flags(),
        "--enable-radix-tier",
        "--radix-tier-hbm-size", f"{plan.hbm_tokens}tok",
        "--radix-tier-dram-size", f"{plan.dram_tokens}tok",
        "--radix-tier-nvme-size", f"{plan.nvme_tokens}tok",
        "--radix-tier-nvme-path", str(store),
    ]  # fmt: skip


def _start(server: Server, screen: Screen) -> Client:
    screen.line("starting the server (importing SGLang takes up to a minute) ...", "dim")
    started = time.monotonic()
    client = server.start(wait=lambda passed: screen.status(f"waiting for the server, {passed:.0f} s"))
    screen.line(f"{server.url} is up after {time.monotonic() - started:.0f} s; log: {server.log}")
    return client


@contextmanager
def _watched(server: Server) -> Iterator[None]:
    """Say more than "connection refused" when the server dies under a request."""
    try:
        yield
    except (RequestFailed, OSError) as error:
        what = "failed a request" if server.running() else "died"
        raise server.failure(f"{what} ({error})") from error


def _who(number: int, turn: Turn) -> str:
    return f"{number:3}  chat {turn.chat}, turn {turn.turn + 1}:"


def _where(reply: Reply) -> str:
    return (
        f"HBM {reply.hbm:5,}  DRAM {reply.dram:5,}  NVMe {reply.nvme:5,}  recomputed {reply.recomputed:5,}  "
        f"{'' if (tier := served_by(reply)) == 'recompute' else tier.upper() if tier != 'nvme' else 'NVMe':5}"
    )


def _run_directory(store_bytes: int) -> Path:
    """Make a directory for the files of this run, on a real disk with room for the NVMe tier."""
    root = cache_root() / "demo"
    root.mkdir(parents=True, exist_ok=True)
    root = root.resolve()
    if (kind := file_system_type(str(root))) in _MEMORY_FILESYSTEMS:
        raise DemoFailed(
            f"{root} is on {kind}, which is memory and not a disk: set RADIXTIER_CACHE to a directory on a disk"
        )
    free = free_disk_bytes(str(root))
    if free < store_bytes + DISK_RESERVE:
        raise DemoFailed(
            f"the NVMe tier takes {format_bytes(store_bytes)} and {root} has {format_bytes(free)} free: "
            "free some space, or set RADIXTIER_CACHE to a directory on another disk"
        )
    stamp = time.strftime("%Y%m%d-%H%M%S-")
    return Path(tempfile.mkdtemp(prefix=stamp, dir=root))


@contextmanager
def _store(directory: Path, screen: Screen) -> Iterator[Path]:
    """Provide a directory for the NVMe tier; removed in the end unless :func:`_keep` was called."""
    store = directory / "nvme"
    store.mkdir()
    try:
        yield store
    finally:
        if not (directory / "keep").exists():
            screen.status("removing the NVMe tier")
            shutil.rmtree(store, ignore_errors=True)


def _report(result: Result, directory: Path, json_file: Path | None, screen: Screen) -> None:
    from radixtier.demo.plot import draw

    screen.title("Turn by turn")
    for line in table(result["turns"]):
        screen.line(line)
    screen.title("In all")
    for line in summary(result):
        screen.line(line)
    target = json_file or directory / "demo.json"
    target.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    picture = target.with_suffix(".png")
    draw(result, picture)
    screen.line(f"result: {target}  plot: {picture}  logs: {directory}")


def _keep(server: Server, store: Path, screen: Screen) -> None:
    (store.parent / "keep").touch()
    pid, python, chat = server.pid, shlex.quote(sys.executable), Path(__file__).parents[2] / "examples" / "chat.py"
    screen.title("The server keeps running")
    screen.line(f"chat with it:  {python} {shlex.quote(str(chat))} --url {server.url}")
    screen.line(f"stop it:       kill {pid}; tail --pid={pid} -f /dev/null; rm -r {shlex.quote(str(store.parent))}")
    server.leave_running()


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    raise SystemExit(main())
