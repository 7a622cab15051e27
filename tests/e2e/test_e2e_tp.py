"""A real server of two ranks on this CPU: it answers as one with one rank does, and its tiers hold half a page each."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from e2e_rig import KV_BYTES_PER_TOKEN, NVME, REQUEST_TIMEOUT_S, START_TIMEOUT_S, Tiered, prompts, tier_flags

from radixtier.control import parse_address
from radixtier.control.client import ControlClient, ControlError
from radixtier.footprint import footprint
from radixtier.live.client import Client
from radixtier.live.server import Server
from radixtier.policy.hints import Kind

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed"),
]

PAGE_SIZE = 16
TOKENS = 24
"""Of an answer."""

LOG_PROB = 1e-4
"""Most by which the log-probabilities of a token may differ: ranks add up float32 sums in another order."""

# The server of the other end-to-end tests has one rank.
one_rank = pytest.mark.parametrize("running", [(PAGE_SIZE, False)], ids=[f"page_size={PAGE_SIZE}"], indirect=True)


class Answer(NamedTuple):
    """A greedy answer, and how likely its tokens were."""

    tokens: list[int]
    log_probs: list[float]


def ask(client: Client, prompt: Sequence[int]) -> Answer:
    sampling = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
    body = {"input_ids": list(prompt), "sampling_params": sampling, "return_logprob": True}
    told: dict[str, Any] = json.loads(client.call("POST", "/generate", body))
    return Answer(told["output_ids"], [entry[0] for entry in told["meta_info"]["output_token_logprobs"]])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nvme")


def start(model: Path, store: Path, log: Path) -> Tiered:
    """Start a server of two ranks, which ends if SGLang finds that they have decided differently."""
    flags = [*tier_flags(store, PAGE_SIZE), "--tp", "2"]
    server = Server("with 2 ranks", model, flags, log, env={"SGLANG_ENABLE_RANK_CONSENSUS_CHECKER": "1"})
    server.start(START_TIMEOUT_S)
    return Tiered(server, Client(server.url, REQUEST_TIMEOUT_S), PAGE_SIZE, store)


@pytest.fixture(scope="module")
def two_ranks(tiny_model: Path, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiered]:
    running = start(tiny_model, store, tmp_path_factory.mktemp("tp") / "log")
    with running.server:
        yield running


@one_rank
def test_two_ranks_answer_as_one(two_ranks: Tiered, tiered: Tiered) -> None:
    # As many as do not fit into HBM together: the trees of the ranks have to evict alike.
    batch = prompts(4, seed=31)
    expected = [ask(tiered.client, prompt) for prompt in batch]
    for _ in range(2):
        for prompt, reference in zip(batch, expected, strict=True):
            answer = ask(two_ranks.client, prompt)
            assert answer.tokens == reference.tokens
            assert answer.log_probs == pytest.approx(reference.log_probs, abs=LOG_PROB)


def test_every_tier_is_hit_with_the_same_outputs(two_ranks: Tiered) -> None:
    two_ranks.client.flush()
    batch = prompts(8, seed=32)
    first = two_ranks.send_all(batch)
    assert [reply.cached for reply in first] == [0] * len(batch)
    hits = {"hbm": 0, "dram": 0, "nvme": 0}
    for _ in range(4):
        # There and back: the last few have left HBM and are still in DRAM.
        for prompt, expected in [*zip(batch, first, strict=True), *reversed([*zip(batch, first, strict=True)])]:
            for reply in two_ranks.send_all([prompt, prompt]):
                assert reply.output_ids == expected.output_ids
                hits = {tier: tokens + getattr(reply, tier) for tier, tokens in hits.items()}
        if all(hits.values()):
            break
    assert all(hits.values()), hits
    names = sorted(file.name.split("-")[1] for file in two_ranks.store.glob("*.slab"))
    assert names == ["r0", "r1"], "each rank has a store of its own"
    half_a_page = KV_BYTES_PER_TOKEN * PAGE_SIZE // 2
    assert two_ranks.store_bytes() <= 2 * footprint(NVME // PAGE_SIZE, half_a_page, PAGE_SIZE)


def test_hints_reach_all_ranks(two_ranks: Tiered) -> None:
    """A rank that did not carry one out would decide differently from then on, and the server would end."""
    control = ControlClient(parse_address(f"unix:{two_ranks.store}/radixtier.sock"))
    assert control.state()["rank"] == {"rank": 0, "size": 2}
    prompt = prompts(1, seed=33)[0]
    (first,) = two_ranks.send_all([prompt])
    target = {"tokens": prompt}
    (*_, end) = control.explain_node(target)["nodes"]
    assert end["tokens"] > 0
    given = control.give_hint(Kind.PIN, {**target, "tier": "dram", "ttl_s": 60})
    assert given["status"] in ("accepted", "clipped"), given
    given = control.give_hint(Kind.DEMOTE, {**target, "hbm": True})
    assert given["status"] in ("accepted", "deferred"), given
    two_ranks.send_all(prompts(6, seed=34))
    (again,) = two_ranks.send_all([prompt])
    assert again.output_ids == first.output_ids
    assert two_ranks.server.running()
    with pytest.raises(ControlError, match="several ranks"):
        control.drain()


def test_flush_and_aborts_leave_nothing_on_either_rank(two_ranks: Tiered) -> None:
    prompt = prompts(1, seed=35)[0]
    (first,) = two_ranks.send_all([prompt])
    two_ranks.send_and_leave(prompts(1, seed=36)[0])
    two_ranks.assert_idle()
    (after,) = two_ranks.send_all([prompt])
    assert after.cached == 0
    assert after.output_ids == first.output_ids


def test_chats_go_on_after_a_restart(two_ranks: Tiered, tiny_model: Path, tmp_path: Path) -> None:
    """The last test: it stops the server of the others."""
    two_ranks.client.flush()
    batch = prompts(6, seed=37)
    expected = two_ranks.send_all(batch)
    two_ranks.server.stop()
    running = start(tiny_model, two_ranks.store, tmp_path / "log")
    with running.server:
        again = running.send_all(batch)
        assert [reply.output_ids for reply in again] == [reply.output_ids for reply in expected]
        assert [reply.nvme + reply.dram for reply in again] == [running.most_cached] * len(batch)
        running.assert_idle()
