"""What the gates ask and what they demand: loads by profile, sizes, and limits.

Owns the numbers. Invariant: a plan's conversations are a function of the plan and of the numbers of their pieces; both
sides of a comparison get the same. What a conversation recovers is its first prompt, the history of somebody who
returns; follow-up turns come after it. Immutable, pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import cycle, islice
from typing import Any

from radixtier.gate.stand import Room
from radixtier.load.answer import Piece
from radixtier.load.play import Conversation, Turn
from radixtier.load.target import Target
from radixtier.units import BadValue

PROFILES = ("long-context", "chat", "agents")


def _limit(default: float, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Limits:
    """What must hold; every field but ``by_length`` is a flag, its ``help`` in the metadata."""

    ttft_fall: float = _limit(0.25, "least share by which TTFT p50 falls on cold recovery")
    throughput_rise: float = _limit(0.29, "least share by which throughput rises on cold recovery")
    cold_share: float = _limit(0.9, "least share of a recovered prompt that must come from NVMe for a round to count")
    no_reuse: float = _limit(0.98, "least throughput of the load without reuse, as a share of stock")
    store_ratio: float = _limit(0.7, "least bandwidth of the store, as a share of the raw drive's")
    recover_s: float = _limit(60.0, "longest time from the end of a fault to right answers and new writes, seconds")
    drift: float = _limit(1.5, "most by which TTFT p50 of hits may grow from the first to the last third of the soak")
    rss_growth: float = _limit(0.03, "most by which memory may grow over the second half of the soak, as a share")
    rss_slack: float = _limit(128e6, "bytes by which memory may grow in any case")
    descriptor_growth: float = _limit(16, "most by which the number of descriptors may grow over that half")
    thread_growth: float = _limit(8, "the same for threads")
    wrong: float = _limit(0.0, "most answers of the soak that may be wrong, as a share")
    by_length: tuple[tuple[int, float], ...] = ()
    """Tokens of prompt, and the most that TTFT from NVMe may be as a share of recompute."""


@dataclass(frozen=True)
class Sizes:
    """Capacity of the tiers, tokens."""

    hbm: int
    dram: int
    nvme: int


@dataclass(frozen=True)
class NoReuse:
    """The load that no cache can help."""

    prompt_tokens: int = 4096
    prompts: int = 32
    """Per turn and side."""
    concurrency: int = 8
    answer_tokens: int = 32
    warm_turns: int = 2
    turns: int = 8
    most_turns: int = 24


@dataclass(frozen=True)
class Soak:
    """The load of the soak."""

    conversations: int = 48
    turns: int = 4
    first_tokens: int = 4096
    turn_tokens: int = 128
    answer_tokens: int = 32
    clients: int = 8
    cut_share: float = 0.05
    """Of the requests, are hung up on after a few pieces."""
    burst_prompts: int = 16
    burst_tokens: int = 4096
    fault_s: float = 30.0
    """How long the drive misbehaves each time."""
    event_every_s: float = 600.0
    look_s: float = 10.0
    """Between two looks at memory, descriptors, threads and store."""
    slow: float = 20.0
    """How many times slower a slow drive is."""


@dataclass(frozen=True)
class Plan:
    """One run of the gates.

    Attributes
    ----------
    profile
        One of :data:`PROFILES`.
    quick
        Minutes instead of hours.
    levels
        Requests at once.
    limits
        What must hold.
    soak_s
        Length of the soak.
    lengths
        Tokens of what is recovered, dealt in turn to the conversations of a level.
    per_client
        Conversations per level and request at once.
    level_lengths
        Instead of both, for some levels: exactly these.
    shared_tokens
        Of every conversation, in front of its own: a system prompt with tools.
    follow_ups, follow_tokens, think_s
        Turns after the return, their length, and the pause in front of each.
    answer_tokens
        Of every answer.
    rounds
        Pairs of baseline and cold recovery that must count, per level.
    spare_rounds
        More of them that may be tried when some do not count.
    by_length
        Tokens of the prompts whose TTFT is measured from every source, alone.
    answers, answers_tokens
        Prompts beyond these whose answers are compared, and their length.
    tier
        Sizes for servers that the gate may size itself; None for a user's.
    warm_up
        Tokens of the prompts that a server gets when it has started.
    """

    profile: str
    quick: bool
    levels: tuple[int, ...]
    limits: Limits
    soak_s: float
    lengths: tuple[int, ...]
    per_client: int
    answer_tokens: int
    rounds: int
    spare_rounds: int
    by_length: tuple[int, ...]
    no_reuse: NoReuse
    soak: Soak
    answers: int = 16
    answers_tokens: int = 1024
    level_lengths: tuple[tuple[int, tuple[int, ...]], ...] = ()
    shared_tokens: int = 0
    follow_ups: int = 0
    follow_tokens: int = 0
    think_s: float = 0.0
    tier: Sizes | None = None
    warm_up: tuple[int, ...] = (64, 1024, 8192)

    def level(self, level: int) -> tuple[int, ...]:
        """Return what is recovered at a level: tokens of each conversation's first prompt."""
        exact = dict(self.level_lengths).get(level)
        return exact or tuple(islice(cycle(self.lengths), level * self.per_client))


DAY_S = 86400.0

_LONG: dict[str, dict[str, Any]] = {
    "long-context": {"lengths": (8192, 16384, 32768), "per_client": 2, "answer_tokens": 64},
    "chat": {
        "lengths": (2048, 4096, 8192), "per_client": 3, "answer_tokens": 128, "follow_ups": 1, "follow_tokens": 128,
    },
    "agents": {
        "lengths": (4096, 8192, 16384), "per_client": 2, "answer_tokens": 64, "shared_tokens": 2048,
        "follow_ups": 2, "follow_tokens": 512, "think_s": 1.0,
    },
}  # fmt: skip
_QUICK: dict[str, dict[str, Any]] = {
    "long-context": {"lengths": (8192, 16384), "per_client": 1},
    "chat": {"lengths": (4096, 8192), "per_client": 1},
    "agents": {"lengths": (4096, 8192), "per_client": 1},
}
_CPU: dict[str, dict[str, Any]] = {
    "long-context": {"level_lengths": ((1, (2000, 4000)), (2, (2000, 2000)), (4, (2000,) * 4))},
    "chat": {"level_lengths": ((1, (2000, 4000)), (2, (2000, 2000)), (4, (2000,) * 4)), "follow_tokens": 32},
    "agents": {
        "level_lengths": ((1, (2000, 4000)), (2, (2000, 2000)), (4, (2000,) * 4)),
        "shared_tokens": 512, "follow_ups": 1, "follow_tokens": 64, "think_s": 0.2,
    },
}  # fmt: skip

CPU_SIZES = Sizes(hbm=10240, dram=12288, nvme=98304)
"""For SmolLM2 in float32 on a CPU: HBM holds the largest level, DRAM little more, NVMe everything."""


def plan(profile: str, quick: bool, cpu: bool = False, **overrides: Any) -> Plan:
    """Make a plan.

    Parameters
    ----------
    profile
        One of :data:`PROFILES`.
    quick
        For minutes: few requests at once, and a short soak.
    cpu
        For a small model on a CPU: short prompts and small tiers, also without ``quick``.
    overrides
        Fields of :class:`Plan` and, by their own names, of :class:`Limits`; None counts as not given.

    Raises
    ------
    BadValue
        An unknown profile, or a value that makes no sense.
    """
    if profile not in PROFILES:
        raise BadValue(f"profile {profile!r} is not known", f"Use one of {', '.join(PROFILES)}")
    given = {name: value for name, value in overrides.items() if value is not None}
    limits = replace(Limits(), **{name: given.pop(name) for name in list(given) if name in limit_names()})
    made = Plan(
        profile=profile,
        quick=quick,
        levels=(8, 16, 32),
        limits=limits,
        soak_s=3 * DAY_S,
        rounds=4,
        spare_rounds=4,
        by_length=(2048, 8192, 32768),
        no_reuse=NoReuse(),
        soak=Soak(),
        **_LONG[profile],
    )
    if quick:
        made = replace(
            made,
            levels=(1, 4, 8),
            soak_s=300.0,
            rounds=2,
            spare_rounds=2,
            by_length=(2048, 8192, 16384),
            no_reuse=NoReuse(prompts=16, turns=4, most_turns=12),
            soak=Soak(conversations=12, turns=3, clients=4, fault_s=8.0, event_every_s=30.0, look_s=3.0),
            **_QUICK[profile],
        )
    if cpu:
        made = _for_cpu(made)
    made = replace(made, **given)
    _check(made)
    return made


def _for_cpu(made: Plan) -> Plan:
    """Cut a plan down to a model that prefills some hundred tokens a second."""
    limits = made.limits
    if made.profile == "long-context" and not limits.by_length:
        limits = replace(limits, by_length=((2000, 1 / 10), (4000, 1 / 20)))
    return replace(
        made,
        levels=(1, 2, 4),
        limits=limits,
        soak_s=120.0 if made.quick else made.soak_s,
        lengths=(2000, 4000),
        per_client=1,
        answer_tokens=12,
        answers=2,
        answers_tokens=512,
        by_length=(2000, 4000, 6000) if made.profile == "long-context" else (2000, 4000),
        no_reuse=NoReuse(
            prompt_tokens=512, prompts=4, concurrency=4, answer_tokens=8, warm_turns=1,
            turns=6 if made.quick else 16, most_turns=10 if made.quick else 32,
        ),
        soak=Soak(
            conversations=5, turns=3, first_tokens=512, turn_tokens=64, answer_tokens=12, clients=2, cut_share=0.08,
            burst_prompts=3, burst_tokens=512, fault_s=4.0, event_every_s=9.0 if made.quick else 60.0, look_s=2.0,
            slow=60.0,
        ),
        tier=CPU_SIZES,
        warm_up=(48, 512, 512),
        **_CPU[made.profile],
    )  # fmt: skip


def limit_names() -> tuple[str, ...]:
    """Return the names of the fields of :class:`Limits`."""
    return tuple(each.name for each in fields(Limits))


def _check(made: Plan) -> None:
    if not made.levels or any(level < 1 for level in made.levels):
        raise BadValue(f"levels {made.levels}: not all at least 1", "Give requests at once, such as 8 16 32")
    if made.soak_s <= 0:
        raise BadValue(f"a soak of {made.soak_s:g} s", "Give more than 0, such as 72h")
    if made.rounds < 1:
        raise BadValue(f"{made.rounds} rounds", "Give at least 1")


# ---- fitting -----------------------------------------------------------------------------------------------------

HBM_SHARE = 0.8
"""Of HBM (and of DRAM), may be taken by a single prompt."""

NVME_SHARE = 0.6
"""Of NVMe, may be taken by everything that a level recovers: an eviction there would be no fault of the tier."""


def fit(made: Plan, room: Room) -> tuple[Plan, list[str]]:
    """Cut prompts to what fits into a server; also return what was cut, in words."""
    bounds = [None if size is None else int(HBM_SHARE * size) for size in (room.hbm, room.dram)]
    known = [bound for bound in (room.prompt, *bounds) if bound is not None]
    if not known:
        return made, []
    beyond = made.shared_tokens + made.follow_ups * (made.follow_tokens + made.answer_tokens) + made.answer_tokens + 64
    most = (min(known) - beyond) // max(1, room.page) * max(1, room.page)
    if most < 256:
        raise BadValue(
            f"a prompt of this server may have {min(known)} tokens, of which {beyond} are needed beside the context",
            "Use a server with a longer context, or more HBM and DRAM",
        )
    cut = replace(
        made,
        lengths=_at_most(made.lengths, most),
        level_lengths=tuple((level, _at_most(lengths, most)) for level, lengths in made.level_lengths),
        by_length=tuple(dict.fromkeys(_at_most(made.by_length, most))),
        no_reuse=replace(made.no_reuse, prompt_tokens=min(made.no_reuse.prompt_tokens, most)),
        answers_tokens=min(made.answers_tokens, most),
        soak=replace(
            made.soak,
            first_tokens=min(made.soak.first_tokens, most // 2),
            burst_tokens=min(made.soak.burst_tokens, most),
        ),
        warm_up=_at_most(made.warm_up, most),
    )
    notes = [f"prompts cut to {most:,} tokens: more does not fit into this server"] if cut != made else []
    need = max(sum(cut.level(level)) for level in cut.levels)
    if room.nvme is not None and need > NVME_SHARE * room.nvme:
        raise BadValue(
            f"a level recovers {need:,} tokens, more than {NVME_SHARE:.0%} of the {room.nvme:,} that NVMe holds",
            "Give the server more NVMe, or the gate lower --levels",
        )
    return cut, notes


def _at_most(lengths: Sequence[int], most: int) -> tuple[int, ...]:
    return tuple(min(length, most) for length in lengths)


# ---- conversations -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Returning:
    """Somebody who comes back: the conversation, and how its first prompt is made up."""

    conversation: Conversation
    tokens: int
    """Of the first prompt."""
    shared: int
    """Of these, are those of others too."""

    @property
    def prompt(self) -> Piece:
        """The first prompt."""
        return self.conversation.turns[0].text


def returning(
    made: Plan,
    target: Target,
    lengths: Sequence[int],
    number: Callable[[], int],
    name: str,
    shared: Piece | None = None,
) -> list[Returning]:
    """Make the conversations of a load, with prompts that nobody asked before.

    Parameters
    ----------
    lengths
        Tokens of what each recovers, without the part that all share.
    number
        Numbers for the pieces.
    name
        In front of each conversation's name.
    shared
        What all of them have in front; a new piece by default. None of it where the plan has nothing shared.
    """
    if not made.shared_tokens:
        shared = None
    elif shared is None:
        shared = target.piece(made.shared_tokens, number())
    made_up = []
    for at, tokens in enumerate(lengths):
        own = target.piece(tokens, number())
        first = own if shared is None else shared + own  # type: ignore[operator]
        turns = [Turn(first, made.answer_tokens, answer=target.piece(made.answer_tokens, number()))]
        turns += [
            Turn(
                target.piece(made.follow_tokens, number()),
                made.answer_tokens,
                think_s=made.think_s,
                answer=target.piece(made.answer_tokens, number()),
            )
            for _ in range(made.follow_ups)
        ]
        conversation = Conversation(f"{name}-{at}", tuple(turns))
        made_up.append(Returning(conversation, tokens + made.shared_tokens, made.shared_tokens))
    return made_up
