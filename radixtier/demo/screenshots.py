"""Takes the pictures of the documentation: starts a server with the tier, chats with it for a while, and looks at it.

Owns the server, the load that leaves something to see on every tier, and the list of pictures. What the pictures show
is measured, so two runs differ. Main thread.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from radixtier.demo.pictures import chromium, take_chats, take_dashboard, take_top
from radixtier.demo.plan import PAGE_SIZE
from radixtier.live.client import Client, RequestFailed
from radixtier.live.ending import end_like_ctrl_c
from radixtier.live.model import smollm2
from radixtier.live.screen import Screen
from radixtier.live.server import CPU_FLAGS, Server, ServerFailed, free_port
from radixtier.live.text import instructions, journal

HBM, DRAM, NVME = 2560, 3584, 24576
"""Tokens of the tiers."""

GROUPS = ("atlas", "harbour", "orchard")
CHATS = 3
"""Sessions per group: each has a text of its own behind the document that its group shares."""

SHARED, OWN, TURN = 700, 450, 60
"""Tokens of a shared document, of a session's own text, and of a question."""

RETURNS = 30
"""Turns after the first of each session."""

ANSWER = 12
CHAT_WORDS = 1400
"""Of a document on the page with chats."""

MODEL = "SmolLM2-135M-Instruct"

Take = Callable[[Any, "Stage", Path], None]


class Stage:
    """A running server with something to see.

    Attributes
    ----------
    server : Server
        SGLang's.
    control : str
        Address of the control endpoint, as ``--control`` takes it.
    """

    def __init__(self, server: Server, control: str) -> None:
        self.server = server
        self.control = control

    @property
    def dashboard(self) -> str:
        """URL of the dashboard."""
        return f"http://{self.control}/"


PICTURES: dict[str, Take] = {
    "dashboard-light.png": lambda browser, stage, to: take_dashboard(browser, stage.dashboard, "light", to),
    "dashboard-dark.png": lambda browser, stage, to: take_dashboard(browser, stage.dashboard, "dark", to),
    "top.png": lambda browser, stage, to: take_top(browser, stage.control, to),
    "chat-web.png": lambda browser, stage, to: take_chats(
        browser, stage.server.url, [journal(60 + i, CHAT_WORDS) for i in range(3)], to
    ),
}
"""Each picture by its file name, in the order in which they are taken: the chats change what the others show."""


def main(argv: Sequence[str] | None = None) -> int:
    """Take the pictures; 0 when all are there."""
    options = _parse(argv)
    screen = Screen(sys.stdout)
    end_like_ctrl_c()
    try:
        _run(options.out, options.store, options.only or list(PICTURES), screen)
    except KeyboardInterrupt:
        screen.line("interrupted; the server is stopped", "bad")
        return 130
    except (ServerFailed, RequestFailed, OSError, RuntimeError) as error:
        screen.line(f"error: {error}", "bad")
        return 1
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="launch/screenshots.sh", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="directory (default: %(default)s)")
    parser.add_argument(
        "--store", type=Path, default=Path("/var/tmp"),
        help="directory on a disk with 2 GB of room for the NVMe tier; the pictures show it (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--only", nargs="+", choices=PICTURES, metavar="FILE", help=f"of {', '.join(PICTURES)}")
    return parser.parse_args(argv)


def _run(out: Path, root: Path, names: Sequence[str], screen: Screen) -> None:
    for flag, directory in (("--out", out), ("--store", root)):
        if not directory.is_dir():
            raise RuntimeError(f"{flag} {directory}: not a directory; make it first")
    model = smollm2(screen.line)
    control = f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory(prefix="radixtier-", dir=root) as scratch, chromium() as browser:
        store, log = Path(scratch) / "nvme", Path(scratch) / "log"
        store.mkdir()
        with Server("the server", model, _flags(store, control), log) as server:
            screen.line("starting the server (importing SGLang takes up to a minute) ...", "dim")
            client = server.start(wait=lambda passed: screen.status(f"waiting for the server, {passed:.0f} s"))
            play(client, screen.status)
            stage = Stage(server, control)
            for name in [name for name in PICTURES if name in names]:
                PICTURES[name](browser, stage, out / name)
                screen.line(f"{out / name}")


def _flags(store: Path, control: str) -> list[str]:
    return [
        *CPU_FLAGS,
        "--page-size", str(PAGE_SIZE),
        "--served-model-name", MODEL,
        "--enable-radix-tier",
        "--radix-tier-hbm-size", f"{HBM}tok",
        "--radix-tier-dram-size", f"{DRAM}tok",
        "--radix-tier-nvme-size", f"{NVME}tok",
        "--radix-tier-nvme-path", str(store),
        "--radix-tier-control", control,
    ]  # fmt: skip


def play(client: Client, told: Callable[[str], None]) -> None:
    """Let sessions take turns, so that the oldest have left HBM and DRAM when they come back."""
    shared = [client.tokenize(instructions(group, SHARED))[:SHARED] for group in range(len(GROUPS))]
    histories = {
        f"{GROUPS[group]}-{chat + 1}": shared[group] + client.tokenize(journal(20 + CHATS * group + chat, OWN))[:OWN]
        for chat in range(CHATS)
        for group in range(len(GROUPS))
    }
    rng = random.Random(5)
    # Some come back often and some hardly ever.
    order = [*histories, *rng.choices(list(histories), range(1, len(histories) + 1), k=RETURNS)]
    for turn, session in enumerate(order):
        told(f"turn {turn + 1} of {len(order)}")
        question = client.tokenize(journal(80 + turn, TURN))[:TURN]
        prompt = histories[session] + question
        reply = client.generate(prompt, ANSWER, session_id=session)
        histories[session] = prompt + list(reply.output_ids)


if __name__ == "__main__":
    raise SystemExit(main())
