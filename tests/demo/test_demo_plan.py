"""The demo's plan and figures, without a server: who should come from which tier, and what counts as success."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any

import pytest

from radixtier.demo.plan import FULL, PROBE_GROUPS, QUICK, Plan, probe_order, turn_order
from radixtier.demo.play import ProbeResult, Turn, prefix_tokens, served_by
from radixtier.demo.report import build_result, passed, summary, table
from radixtier.live.client import Reply
from radixtier.live.text import instructions, question

PLANS = pytest.mark.parametrize("plan", [QUICK, FULL], ids=["quick", "full"])


class Tiers:
    """Least recently used prompts in HBM and, copies included, in DRAM; whatever was seen is on NVMe."""

    def __init__(self, plan: Plan) -> None:
        self.hbm = _Lru(plan.hbm_tokens)
        self.dram = _Lru(plan.dram_tokens)
        self.seen: set[int] = set()

    def visit(self, prompt: int, tokens: int) -> str:
        tier = "hbm" if prompt in self.hbm.entries else "dram" if prompt in self.dram.entries else "nvme"
        tier = tier if prompt in self.seen else "recompute"
        self.seen.add(prompt)
        self.hbm.use(prompt, tokens)
        self.dram.use(prompt, tokens)
        return tier


class _Lru:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.entries: OrderedDict[int, int] = OrderedDict()

    def use(self, prompt: int, tokens: int) -> None:
        self.entries.pop(prompt, None)
        while sum(self.entries.values()) + tokens > self.capacity:
            self.entries.popitem(last=False)
        self.entries[prompt] = tokens


@PLANS
def test_probes_meet_the_tier_they_are_for(plan: Plan) -> None:
    for length, group in PROBE_GROUPS.items():
        tiers = Tiers(plan)
        for probe in probe_order(group, plan.probe_groups, plan.probe_passes):
            assert tiers.visit(probe.prompt, length) == probe.tier, (length, probe)


@PLANS
def test_chats_return_from_every_tier(plan: Plan) -> None:
    tiers = Tiers(plan)
    # 1.4 tokens per word; each turn adds some.
    met = [
        tiers.visit(chat, int(1.4 * plan.words_of(chat)) + 60 * plan.rounds)
        for chat in turn_order(plan.chats, plan.rounds)
    ]
    assert met.count("recompute") == plan.chats
    assert min(met.count(tier) for tier in ("hbm", "dram", "nvme")) >= 2


@PLANS
def test_everything_fits_where_it_must(plan: Plan) -> None:
    longest = int(1.5 * plan.words_of(plan.chats - 1)) + 5 * plan.rounds * (plan.answer_tokens + 40)
    assert max(longest, *PROBE_GROUPS) + plan.answer_tokens < plan.hbm_tokens
    probes = sum(length * group * plan.probe_groups for length, group in PROBE_GROUPS.items())
    assert plan.chats * longest + probes < plan.nvme_tokens
    for tokens in (plan.hbm_tokens, plan.dram_tokens, plan.nvme_tokens):
        assert tokens % 16 == 0


def test_texts_share_no_prefix_and_questions_change() -> None:
    openings = {instructions(chat, 100)[:4] for chat in range(12)}
    assert len(openings) == 12
    assert len({question(0, turn) for turn in range(8)}) == 8


def test_served_by_names_the_tier_only_when_it_brought_nearly_all() -> None:
    assert served_by(reply()) == "recompute"
    assert served_by(reply(hbm=95)) == "hbm"
    assert served_by(reply(dram=92, hbm=5)) == "dram"
    assert served_by(reply(dram=60, nvme=35)) == "mixed"
    assert served_by(reply(nvme=50)) == "mixed"


def test_prefix_is_what_the_chat_had_brought() -> None:
    turns = [
        turn(0, reply(prompt_ids=(1, 2, 3), output_ids=(4, 5))),
        turn(1, reply(prompt_ids=(9, 2), output_ids=(4,))),
        turn(0, reply(prompt_ids=(1, 2, 3, 4, 7, 8), output_ids=())),
    ]
    assert prefix_tokens(turns) == [0, 0, 4]


def test_result_tells_hits_misses_and_missed_targets() -> None:
    without = [turn(0, reply(ttft_s=8.0)), turn(0, reply(ttft_s=6.0))]
    with_tier = [turn(0, reply(nvme=96, ttft_s=0.5)), turn(0, reply(dram=50, hbm=46, ttft_s=0.4))]
    probes = [
        ProbeResult(2000, "recompute", reply(ttft_s=5.0)),
        ProbeResult(2000, "nvme", reply(nvme=96, ttft_s=0.6)),
        ProbeResult(2000, "dram", reply(dram=96, ttft_s=0.4)),
        ProbeResult(2000, "dram", reply(hbm=96, ttft_s=0.1)),
        ProbeResult(2000, "hbm", reply(hbm=96, ttft_s=0.4)),
    ]
    result = build_result(QUICK, without, with_tier, probes, [turn(0, reply(nvme=96))])
    assert result["hit_tokens"] == {"hbm": 46, "dram": 50, "nvme": 96}
    assert result["recomputed_tokens"] == 8
    assert result["ttft_p50_s"] == {"recompute": 7.0, "hbm": None, "dram": None, "nvme": 0.5}
    assert [target["met"] for target in result["targets"]] == [False, True]
    assert result["targets"][1]["measured"] == 1.0
    assert passed(result)
    assert len(table(result["turns"])) == 4
    assert any("MISSED" in line for line in summary(result))
    json.dumps(result)


def test_one_other_token_fails_the_demo() -> None:
    result = build_result(
        QUICK,
        [turn(0, reply(output_ids=(1, 2)))],
        [turn(0, reply(hbm=30, dram=30, nvme=30, output_ids=(1, 3)))],
        [],
        [],
    )
    assert not result["outputs_identical"]
    assert not passed(result)
    assert "NO" in table(result["turns"])[-1]


def test_a_chat_that_is_gone_or_different_after_the_restart_fails_the_demo() -> None:
    chats = [turn(0, reply(hbm=30, dram=30, nvme=30))]
    for back in (reply(), reply(nvme=90, output_ids=(1,))):
        result = build_result(QUICK, chats, chats, [], [turn(0, back)])
        assert not passed(result)
        assert any("after the restart" in line for line in summary(result))
    assert passed(build_result(QUICK, chats, chats, [], [turn(0, reply(nvme=90))]))


def turn(chat: int, answer: Reply) -> Turn:
    return Turn(chat, 0, (), answer)


def reply(**values: Any) -> Reply:
    """A reply to a prompt of 100 tokens."""
    defaults = {"text": "", "prompt_tokens": 100, "hbm": 0, "dram": 0, "nvme": 0, "ttft_s": 1.0, "total_s": 2.0}
    return Reply(**{"prompt_ids": (), "output_ids": (), **defaults, **values})
