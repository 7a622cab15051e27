"""Plays chats and timing probes against a running server.

Owns the order of requests: one at a time, the next one when the last is answered, so that a time to first
token is never another request's fault. Invariant: a script that is played again sends the same messages,
whatever the server answers. Main thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from radixtier.demo.plan import PROBE_GROUPS, Plan, Probe, probe_order, turn_order
from radixtier.live.client import Client, Message, Reply
from radixtier.live.text import instructions, journal, question

TIERS = ("hbm", "dram", "nvme")

MAIN_SHARE = 0.9
"""A request counts as served by a tier when at least this share of its prompt came from there."""

_PROBE_JOURNALS = 100  # Journals from here on are for probes; chats have the lower numbers.
_WARM_UP_JOURNAL = 99
_WARM_UP_TOKENS = (48, 512, 1024)
_PROBE_ANSWER_TOKENS = 4
_TOKENS_PER_WORD = 1.1  # At least; a journal is cut to the exact number of tokens.


@dataclass(frozen=True)
class Turn:
    """One turn of one chat: the whole request, and what came back."""

    chat: int
    turn: int
    messages: tuple[Message, ...]
    reply: Reply


@dataclass(frozen=True)
class ProbeResult:
    """One timed request of a probe, sent when `expected` should serve it."""

    prefix_tokens: int
    expected: str
    reply: Reply

    @property
    def as_expected(self) -> bool:
        """Whether the tier that should serve the request did."""
        return served_by(self.reply) == self.expected


def served_by(reply: Reply) -> str:
    """Name where a prompt came from: a tier, ``recompute`` without any cached token, or ``mixed``."""
    if reply.cached == 0:
        return "recompute"
    parts = {"hbm": reply.hbm, "dram": reply.dram, "nvme": reply.nvme}
    tier = max(parts, key=lambda name: parts[name])
    return tier if parts[tier] >= MAIN_SHARE * reply.prompt_tokens else "mixed"


def warm_up(client: Client) -> None:
    """Send a few prompts twice, so that one-time costs are not measured; leaves every tier empty."""
    tokens = client.tokenize(journal(_WARM_UP_JOURNAL, 1200))
    for length in _WARM_UP_TOKENS:
        for _ in range(2):
            client.generate(tokens[-length:], max_tokens=4)
    client.flush()


def ask(client: Client, text: str) -> str:
    """Ask one question, outside of any chat."""
    return client.chat([{"role": "user", "content": text}], max_tokens=32).text


def play_chats(client: Client, plan: Plan, on_turn: Callable[[Turn], None]) -> list[Turn]:
    """Play the chats of a plan; answers become part of the next request, as in any chat."""
    history: dict[int, list[Message]] = {}
    turns: list[Turn] = []
    for chat in turn_order(plan.chats, plan.rounds):
        system: Message = {"role": "system", "content": instructions(chat, plan.words_of(chat))}
        messages = history.setdefault(chat, [system])
        number = len(messages) // 2
        messages.append({"role": "user", "content": question(chat, number)})
        reply = client.chat(messages, plan.answer_tokens)
        turns.append(Turn(chat, number, tuple(messages), reply))
        on_turn(turns[-1])
        messages.append({"role": "assistant", "content": reply.text})
    return turns


def replay(client: Client, script: Iterable[Turn], answer_tokens: int, on_turn: Callable[[Turn], None]) -> list[Turn]:
    """Send the very requests of `script` again, to another server."""
    turns = []
    for old in script:
        turns.append(Turn(old.chat, old.turn, old.messages, client.chat(old.messages, answer_tokens)))
        on_turn(turns[-1])
    return turns


def play_probes(client: Client, plan: Plan, on_result: Callable[[ProbeResult], None]) -> list[ProbeResult]:
    """Measure the time to first token per tier, at each length of prefix."""
    results = []
    for first, (length, group) in enumerate(PROBE_GROUPS.items()):
        prompts: dict[int, Sequence[int]] = {}
        for probe in probe_order(group, plan.probe_groups, plan.probe_passes):
            if probe.prompt not in prompts:
                number = _PROBE_JOURNALS * (first + 1) + probe.prompt
                prompts[probe.prompt] = _prompt(client, number, length)
            results.append(_send(client, probe, prompts[probe.prompt]))
            on_result(results[-1])
    return results


def prefix_tokens(turns: Sequence[Turn]) -> list[int]:
    """Return, per turn, how many of its tokens the chat had brought already: the most that can be found again."""
    before: dict[int, tuple[int, ...]] = {}
    lengths = []
    for turn in turns:
        known, now = before.get(turn.chat, ()), turn.reply.prompt_ids
        same = (old == new for old, new in zip(known, now, strict=False))
        lengths.append(next((at for at, equal in enumerate(same) if not equal), min(len(known), len(now))))
        before[turn.chat] = now + turn.reply.output_ids
    return lengths


def _prompt(client: Client, number: int, length: int) -> list[int]:
    tokens = client.tokenize(journal(number, int(length / _TOKENS_PER_WORD)))
    return tokens[:length]


def _send(client: Client, probe: Probe, prompt: Sequence[int]) -> ProbeResult:
    return ProbeResult(len(prompt), probe.tier, client.generate(prompt, _PROBE_ANSWER_TOKENS))
