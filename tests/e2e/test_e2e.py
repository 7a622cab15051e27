"""One real server, all tiers: hits, outputs, flush, namespaces, aborts, the OpenAI API, bad flags."""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
from pathlib import Path

import pytest
from e2e_rig import (
    ANSWER,
    DRAM,
    HBM,
    KV_BYTES_PER_TOKEN,
    LENGTH,
    NVME,
    REQUEST_TIMEOUT_S,
    START_TIMEOUT_S,
    Tiered,
    endless,
    prompts,
)

from radixtier.footprint import footprint
from radixtier.lab.rates import Rates
from radixtier.lab.setup import Setup
from radixtier.lab.timed.clock import Clock
from radixtier.lab.timed.retrace import LAW, retrace
from radixtier.lab.timed.run import make_cache
from radixtier.live.server import CPU_FLAGS, serve_command

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed"),
]

CHAT = Path(__file__).parents[2] / "examples" / "chat.py"


def test_every_tier_is_hit_and_outputs_are_those_of_the_first_time(tiered: Tiered) -> None:
    batch = prompts(8, seed=1)
    assert len(batch) * LENGTH > DRAM > HBM
    first = tiered.send_all(batch)
    assert [reply.cached for reply in first] == [0] * len(batch)
    hits = {"hbm": 0, "dram": 0, "nvme": 0}
    # A miss is always legal, so the tiers get some rounds to be hit; wrong outputs are never legal.
    for _ in range(4):
        for prompt, expected in zip(batch, first, strict=True):
            for reply in tiered.send_all([prompt, prompt]):
                assert reply.output_ids == expected.output_ids
                assert reply.cached <= tiered.most_cached
                hits = {tier: tokens + getattr(reply, tier) for tier, tokens in hits.items()}
        # Back over the last few: they have left HBM and are still in DRAM.
        for prompt, expected in reversed([*zip(batch, first, strict=True)][-4:]):
            (reply,) = tiered.send_all([prompt])
            assert reply.output_ids == expected.output_ids
            hits["dram"] += reply.dram
        if all(hits.values()):
            break
    assert all(hits.values()), hits


def test_whole_prompt_comes_back_from_nvme(tiered: Tiered) -> None:
    batch = prompts(8, seed=2)
    first = tiered.send_all(batch)
    again = tiered.send_all(batch)
    assert [reply.output_ids for reply in again] == [reply.output_ids for reply in first]
    assert max(reply.nvme for reply in again) == tiered.most_cached


def test_flush_empties_every_tier(tiered: Tiered) -> None:
    batch = prompts(8, seed=3)
    first = tiered.send_all(batch)
    assert sum(reply.cached for reply in tiered.send_all(batch)) > 0
    tiered.client.flush()
    after = tiered.send_all(batch)
    assert [reply.cached for reply in after] == [0] * len(batch)
    assert [reply.output_ids for reply in after] == [reply.output_ids for reply in first]


def test_namespaces_share_nothing_on_any_tier(tiered: Tiered) -> None:
    (prompt, *others) = prompts(8, seed=4)
    namespaces = [
        {},
        {"extra_key": "a"},
        {"cache_salt": "a"},
        {"extra_key": "a", "cache_salt": "bc"},
        {"extra_key": "ab", "cache_salt": "c"},
    ]
    outputs = set()
    for namespace in namespaces:
        reply = tiered.client.generate(prompt, ANSWER, **namespace)
        assert reply.cached == 0, namespace
        outputs.add(reply.output_ids)
        tiered.send_all(others)
    assert len(outputs) == 1
    # By now all of them are on NVMe; each finds its own only.
    again = [tiered.client.generate(prompt, ANSWER, **namespace) for namespace in namespaces]
    assert {reply.output_ids for reply in again} == outputs
    assert tiered.client.generate(prompt, ANSWER, extra_key="b").cached == 0


def test_recording_has_the_hits_that_clients_were_told(tiered: Tiered) -> None:
    batch = prompts(8, seed=8)
    replies = tiered.send_all(batch) + tiered.send_all(batch)
    longer = [[*prompt, *reply.output_ids, *range(3, 40)] for prompt, reply in zip(batch[:4], replies, strict=False)]
    replies += tiered.send_all(longer)
    requests = tiered.recorded()[-len(replies) :]
    assert [(found.served.hbm, found.served.dram, found.served.nvme) for found in requests] == [
        (reply.hbm, reply.dram, reply.nvme) for reply in replies
    ]
    assert sum(reply.nvme for reply in replies) > 0
    size = tiered.page_size
    for found, reply in zip(requests, replies, strict=True):
        assert (found.input_tokens, found.output_tokens) == (reply.prompt_tokens, ANSWER)
        assert len(found.path) == (reply.prompt_tokens - 1) // size
        assert len(found.path) + len(found.answer) == (reply.prompt_tokens + ANSWER - 1) // size
    for first, again, after in zip(requests[:4], requests[8:12], requests[16:], strict=True):
        assert again.path == first.path
        assert after.path[: len(first.path) + len(first.answer)] == [*first.path, *first.answer]
        assert after.session == again.session and after.think_s is not None


def test_the_lab_finds_in_a_recording_what_the_server_found(tiered: Tiered) -> None:
    """Request by request; in which of DRAM and NVMe a page was may differ by moments."""
    rng = random.Random(5)
    chats: list[list[int]] = []
    for _ in range(40):
        if chats and rng.random() < 0.75:
            chat = rng.choice(chats[-8:])
        else:
            chat = []
            chats.append(chat)
        chat += [rng.randint(10, 250) for _ in range(rng.randint(40, 120))]
        tiered.client.generate(chat, ANSWER)
        if len(chat) > LENGTH:
            chats.remove(chat)
    trace, requests = tiered.recording()
    clock = Clock()
    setup = Setup(**{tier: trace.recorded[f"{tier}_pages"] for tier in ("hbm", "dram", "nvme")}, eviction="auto")
    cache = make_cache(setup, tiered.page_size, 8192, Rates(), clock, LAW)
    pairs = list(retrace(requests[-40:], trace.nodes, cache, clock))
    assert [(pair.lab.hbm, pair.lab.total) for pair in pairs] == [
        (pair.server.hbm, pair.server.total) for pair in pairs
    ]
    assert sum(pair.server == pair.lab for pair in pairs) >= 36
    assert sum(pair.server.dram for pair in pairs) > 0


def test_more_than_nvme_holds_stays_under_the_cap(tiered: Tiered) -> None:
    batch = prompts(NVME // LENGTH + 8, seed=5)
    size = tiered.page_size
    cap = footprint(NVME // size, KV_BYTES_PER_TOKEN * size, size)
    for prompt in batch:
        tiered.client.generate(prompt, ANSWER)
        assert tiered.store_bytes() <= cap
    newest = tiered.client.generate(batch[-1], ANSWER)
    assert newest.cached == tiered.most_cached


def test_client_that_leaves_in_the_middle_of_an_answer(tiered: Tiered) -> None:
    (prompt,) = prompts(1, seed=6)
    answer = tiered.client.stream("/generate", endless(prompt))
    next(answer)
    answer.close()
    expected = tiered.client.generate(prompt, ANSWER)
    assert tiered.client.generate(prompt, ANSWER).output_ids == expected.output_ids
    tiered.assert_idle()


def test_client_that_leaves_while_pages_come_up(tiered: Tiered) -> None:
    batch = prompts(8, seed=7)
    first = tiered.send_all(batch)
    for prompt in batch[:4]:
        tiered.send_and_leave(prompt)
    assert [reply.output_ids for reply in tiered.send_all(batch)] == [reply.output_ids for reply in first]
    tiered.assert_idle()


def test_openai_chat_and_the_chat_example(tiered: Tiered) -> None:
    messages = [{"role": "user", "content": "Tell me about lighthouses. " * 8}]
    reply = tiered.client.chat(messages, ANSWER)
    assert reply.cached == 0
    assert len(reply.output_ids) <= ANSWER
    again = tiered.client.chat(messages, ANSWER)
    assert again.hbm > 0
    assert again.output_ids == reply.output_ids
    run = subprocess.run(
        [sys.executable, str(CHAT), "--url", tiered.server.url, "--max-tokens", "8"],
        input="hello lighthouse keeper\nand again\n/new\nhello\n/back 1\nstill there?\n/quit\n",
        capture_output=True,
        text=True,
        timeout=REQUEST_TIMEOUT_S,
        check=True,
    )
    facts = [line for line in run.stdout.splitlines() if line.startswith("[HBM ")]
    assert len(facts) == 4
    assert "NVMe" in facts[0]
    assert "conversation 1, 4 messages so far" in run.stdout


def test_bad_flags_end_with_status_2_before_the_model_loads(tiny_model: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    flags = [
        "--enable-radix-tier",
        "--radix-tier-dram-size",
        "5parsecs",
        "--radix-tier-nvme-path",
        str(missing),
    ]
    command = [*serve_command(), "--model-path", str(tiny_model), *CPU_FLAGS, "--pp-size", "2", *flags]
    run = subprocess.run(command, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False)
    output = run.stdout + run.stderr
    assert run.returncode == 2, output
    for flag, value in (("--radix-tier-dram-size", "5parsecs"), ("--radix-tier-nvme-path", str(missing))):
        assert any(flag in line and value in line for line in output.splitlines()), output
    assert "--pp-size" in output
    assert "Load weight" not in output
