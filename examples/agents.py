"""Agents that call tools: while a tool runs, the tier is told when the agent will be back.

    export RADIXTIER_CONTROL=unix:STORE/radixtier.sock
    python examples/agents.py --url http://127.0.0.1:30000 [--no-hints]

Some agents share a long system prompt, the handbook, and each works on a ticket of its own: a turn of the model, a tool
that takes a minute, the next turn. A pause is where a cache forgets an agent, and where the agent knows best when
it returns. So it gives three hints about its session: ``retain`` when the pause begins, ``prefetch`` with the time at
which the tool is usually done, and ``release`` at the end.

Which tools are called is a script, and their results come as messages of the user: a small model cannot choose. With
``--tools`` the model is offered the tools in OpenAI's format and chooses itself; the server then needs a
``--tool-call-parser``. To take it over, put your tools in place of :func:`run_tool`.

Owns one thread per agent; ``--at-once`` of them ask the model at the same time. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import math
import queue
import random
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ask import Failed, Message, Server, Turn, add_server, count, open_server, read_text
from hints import Hints, add_hints, open_hints
from show import HEADER, badge, printable, split, summary, table

HANDBOOK = Path(__file__).parents[1] / "docs" / "store.md"

TOOLS = {
    "run_checks": ("Run the checks of a machine.", 40.0),
    "restart": ("Restart a machine and wait for it.", 70.0),
    "ask_owner": ("Ask the owner of a machine.", 100.0),
}
"""What each tool does, and the seconds it usually takes."""

PROBLEMS = ("runs slowly", "does not answer", "fills its disk", "restarts every night", "shows old data", "is too warm")

OFFERED = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": what,
            "parameters": {"type": "object", "properties": {"machine": {"type": "string"}}, "required": ["machine"]},
        },
    }
    for name, (what, _) in TOOLS.items()
]


def run_tool(name: str, chance: random.Random, lines: int, speed: float) -> str:
    """Take about as long as the tool usually does, and return a text: here the place of a real tool."""
    time.sleep(TOOLS[name][1] / speed * chance.uniform(0.95, 1.1))
    return log(chance, lines)


def log(chance: random.Random, lines: int) -> str:
    """Make up the log of a machine."""
    rows = (
        f"{hour:02}:{chance.randrange(60):02} {chance.choice(('disk', 'fan', 'network', 'service'))} "
        f"{chance.choice(('ok', 'ok', 'slow', 'failed', 'restarted'))}, value {chance.randrange(1000)}"
        for hour in sorted(chance.choices(range(24), k=lines))
    )
    return "\n".join(rows)


@dataclass
class Shift:
    """What all agents of a run share."""

    server: Server
    hints: Hints | None
    options: argparse.Namespace
    slots: threading.Semaphore
    handbook: str
    name: str
    started: float = field(default_factory=time.monotonic)
    turns: list[tuple[int, Turn]] = field(default_factory=list)
    """Number of each turn, from 1, and what came of it."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, agent: int, number: int, turn: Turn, paused: str) -> None:
        """Keep a turn and show it."""
        with self.lock:
            self.turns.append((number, turn))
            print(
                f"{time.monotonic() - self.started:6.1f} s  agent {agent}, turn {number}  {badge(turn)}  {split(turn)} "
                f"tokens; first token after {turn.ttft_s:.2f} s{paused}",
                flush=True,
            )


class Agent:
    """One agent with its ticket, from the first turn to the last."""

    def __init__(self, shift: Shift, number: int) -> None:
        self.shift = shift
        self.number = number
        self.session = f"{shift.name}-agent-{number}"
        self.chance = random.Random(number)
        self.script = [list(TOOLS)[(number + turn) % len(TOOLS)] for turn in range(shift.options.turns)]
        problem, attached = PROBLEMS[number % len(PROBLEMS)], log(self.chance, shift.options.attached)
        ticket = f"Ticket {number}: machine {number} {problem}.\n{attached}\nWhat do we do first?"
        self.messages: list[Message] = [
            {"role": "system", "content": shift.handbook},
            {"role": "user", "content": ticket},
        ]

    def work(self) -> None:
        """Take turns with the tools until the script, or the model, is at its end."""
        options, hints = self.shift.options, self.shift.hints
        paused = ""
        for number in range(1, options.turns + 1):
            with self.shift.slots:
                turn = self.shift.server.ask(
                    self.messages,
                    options.max_tokens,
                    session=self.session,
                    tools=OFFERED if options.tools else (),
                )
            self.shift.note(self.number, number, turn, paused)
            if number == options.turns or (options.tools and not turn.tool_calls):
                break
            paused = self._pause(turn, self.script[number - 1])
        if hints is not None:
            hints.give("release", session=self.session)

    def _pause(self, turn: Turn, scripted: str) -> str:
        """Run the tools that follow a turn while the tier knows of it; returns a few words on it."""
        began = time.monotonic()
        calls = [call["function"].get("name", "") for call in turn.tool_calls] or [scripted]
        usual = sum(TOOLS[name][1] / self.shift.options.speed for name in calls if name in TOOLS)
        telling = threading.Thread(target=self._tell, args=(began + usual,))
        telling.start()
        results = [self._call(name) for name in calls]
        telling.join()
        if turn.tool_calls:
            self.messages.append({"role": "assistant", "content": turn.text, "tool_calls": turn.tool_calls})
            for call, result in zip(turn.tool_calls, results, strict=True):
                self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        else:
            self.messages.append({"role": "assistant", "content": turn.text})
            self.messages.append({"role": "user", "content": f"{scripted} says:\n{results[0]}\nWhat do we do next?"})
        return f"; {printable(', '.join(calls))} took {time.monotonic() - began:.1f} s"

    def _call(self, name: str) -> str:
        if name not in TOOLS:
            return json.dumps({"error": f"there is no tool {name}; there are {', '.join(TOOLS)}"})
        return run_tool(name, self.chance, self.shift.options.lines, self.shift.options.speed)

    def _tell(self, back: float) -> None:
        """Give the hints of a pause that ends at ``back``, beside the tool: they cost it no time."""
        if self.shift.hints is not None:
            self.shift.hints.give("retain", session=self.session, ttl_s=max(60.0, 4 * (back - time.monotonic())))
            self.shift.hints.give("prefetch", session=self.session, by_s=max(0.0, back - time.monotonic()))


def main() -> int:
    options = _parser().parse_args()
    try:
        server, key = open_server(options)
        if note := server.without_tier():
            print(note)
        hints = open_hints(options, key)
        text = " ".join(read_text(options.handbook, "--handbook").split()[: options.words])
        # The time in front makes this run's prompts new to the server, whatever ran before.
        name = f"{time.strftime('%H%M%S')}-{random.randrange(16**4):04x}"
        handbook = f"Shift {name}. You are on call. This is the handbook.\n{text}\nAnswer in one sentence."
        shift = Shift(server, hints, options, threading.Semaphore(options.at_once), handbook, name)
        print(f"{options.agents} agents, {'no hints' if hints is None else 'with hints'}")
        _run(shift)
    except Failed as failed:
        print(f"error: {failed}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    _report(shift)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Agents that tell radixtier when their tools will be done.")
    add_server(parser)
    add_hints(parser)
    number: dict[str, Any] = {"type": count, "metavar": "N"}
    parser.add_argument("--agents", **number, default=12, help="how many agents (default: %(default)s)")
    parser.add_argument("--turns", **number, default=3, help="turns of each (default: %(default)s)")
    parser.add_argument("--at-once", **number, default=1, help="turns of the model at the same time (default: 1)")
    parser.add_argument("--handbook", type=Path, default=HANDBOOK, metavar="FILE", help="text of the system prompt")
    parser.add_argument("--words", **number, default=700, help="words of it (default: %(default)s)")
    parser.add_argument("--attached", **number, default=100, help="lines of log in a ticket (default: %(default)s)")
    parser.add_argument("--lines", **number, default=6, help="lines that a tool returns (default: %(default)s)")
    parser.add_argument("--max-tokens", **number, default=24, help="longest answer (default: %(default)s)")
    parser.add_argument("--speed", type=_speed, default=1.0, metavar="X", help="tools run X times as fast (default: 1)")
    parser.add_argument("--tools", action="store_true", help="let the model choose the tools")
    return parser


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0.0 < speed < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return speed


def _run(shift: Shift) -> None:
    """Let all agents work; the first error ends the run."""
    ended: queue.Queue[Exception | None] = queue.Queue()

    def work(number: int) -> None:
        try:
            Agent(shift, number).work()
            ended.put(None)
        except Exception as error:
            ended.put(error)

    numbers = range(1, shift.options.agents + 1)
    for number in numbers:
        threading.Thread(target=work, args=(number,), daemon=True).start()
    for _ in numbers:
        if (error := ended.get()) is not None:
            raise error


def _report(shift: Shift) -> None:
    opened = [turn for number, turn in shift.turns if number == 1]
    returned = [turn for number, turn in shift.turns if number > 1]
    print()
    rows = [("", *HEADER), ("first turns", *summary(opened)), ("after a pause", *summary(returned))]
    print("\n".join(table(rows)))
    print("\nno hints" if shift.hints is None else f"\nhints, and the latest reason:\n{shift.hints.report()}")


if __name__ == "__main__":
    sys.exit(main())
