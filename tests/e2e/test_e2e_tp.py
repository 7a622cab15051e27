"""A real ``--tp 2`` server on this CPU: it answers as a server with one rank does, whose heads and KV are not split."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from e2e_rig import HBM, REQUEST_TIMEOUT_S, START_TIMEOUT_S, Tiered, prompts

from radixtier.live.client import Client
from radixtier.live.server import CPU_FLAGS, Server

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
one_rank = pytest.mark.parametrize("running", [PAGE_SIZE], ids=[f"page_size={PAGE_SIZE}"], indirect=True)


class Answer(NamedTuple):
    """A greedy answer, and how likely its tokens were."""

    tokens: list[int]
    log_probs: list[float]


def ask(client: Client, prompt: Sequence[int]) -> Answer:
    sampling = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
    body = {"input_ids": list(prompt), "sampling_params": sampling, "return_logprob": True}
    told: dict[str, Any] = json.loads(client.call("POST", "/generate", body))
    return Answer(told["output_ids"], [entry[0] for entry in told["meta_info"]["output_token_logprobs"]])


def start(model: Path, directory: Path, ranks: int, flags: Sequence[str] = ()) -> Server:
    """Make a server of so many ranks; ``flags`` come after those it needs."""
    base = [*CPU_FLAGS, "--tp", str(ranks), "--page-size", str(PAGE_SIZE), "--max-total-tokens", str(HBM)]
    return Server(f"with {ranks} ranks", model, [*base, *flags], directory / "log")


@pytest.fixture(scope="module")
def two_ranks(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with start(tiny_model, tmp_path_factory.mktemp("tp"), ranks=2) as server:
        server.start(START_TIMEOUT_S)
        yield Client(server.url, REQUEST_TIMEOUT_S)
        assert server.running(), server.failure("died during the tests")


@one_rank
def test_two_ranks_answer_as_one(two_ranks: Client, tiered: Tiered) -> None:
    # As many as do not fit into HBM together: the trees of the ranks have to evict alike.
    batch = prompts(4, seed=31)
    expected = [ask(tiered.client, prompt) for prompt in batch]
    for _ in range(2):
        for prompt, reference in zip(batch, expected, strict=True):
            answer = ask(two_ranks, prompt)
            assert answer.tokens == reference.tokens
            assert answer.log_probs == pytest.approx(reference.log_probs, abs=LOG_PROB)


def test_a_prompt_asked_twice_is_found_on_both_ranks(two_ranks: Client) -> None:
    prompt = prompts(1, seed=32)[0]
    first, again = (two_ranks.generate(prompt, TOKENS) for _ in range(2))
    assert first.cached == 0
    assert again.hbm == (len(prompt) - 1) // PAGE_SIZE * PAGE_SIZE
    assert again.output_ids == first.output_ids


def test_flush_empties_both_ranks(two_ranks: Client) -> None:
    prompt = prompts(1, seed=33)[0]
    first = two_ranks.generate(prompt, TOKENS)
    two_ranks.flush()
    after = two_ranks.generate(prompt, TOKENS)
    assert after.cached == 0
    assert after.output_ids == first.output_ids
