"""One tier against a simulator that others wrote: ``kvcache-simulator`` (KVCache.AI), its Python replay.

The two agree hit for hit on LRU and on the optimum. What differs, and how it is taken out here:

- Theirs counts hits in the last part of a trace only, and only if the cache was full before it. So every trace begins
  with one request of blocks that never come back, as many as fit; what is counted are all the others.
- Theirs counts tokens, the last block of a prompt in part. Here every block is given the weight 1.
- Theirs evicts leaves one by one as blocks come in and never a block that the request found; the lab lets all come
  in and evicts from the least recent on (the farthest, for the optimum) until they fit. The sets are the same for paths
  that fit. A longer path that LRU has to cut loses one more block in theirs: the block that does not fit evicts the
  one in front of it, and has no parent then (:func:`test_a_path_that_does_not_fit`). Theirs has that from inserting
  one by one; SGLang, which the lab follows, would refuse such a request.
- Theirs takes the deepest block of a path for the most recent, the lab the first; since leaves alone are evicted and
  the blocks of one request are next to each other in time, the order in which blocks leave is the same.
- Its optimum may bypass, as the lab's. Of blocks that are never used again it keeps those it has; no hit depends on it.
- FIFO is not compared: the lab replays what the server runs, and that has no FIFO.
- Its capacities are GiB of a model's KV; the functions that take blocks are called instead.
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixtier.lab.belady import belady
from radixtier.lab.setup import Setup, run
from radixtier.lab.traces.opening import open_trace

pytest.importorskip("kvcache_sim", reason="kvcache-simulator is not installed")

from kvcache_sim.plan import build_execution_plan
from kvcache_sim.policies import simulate_policy
from kvcache_sim.trace import parse_trace_file

TRACES = os.environ.get("RADIXTIER_TRACES")
BLOCK_TOKENS = 512


def write(file: Path, paths: list[list[int]], blocks: int) -> Path:
    """Write a trace that both read: first what fills the cache, then the requests; ids are 0 or more."""
    rows = [[-1 - each for each in range(blocks)], *paths]
    text = [json.dumps({"timestamp": time, "hash_ids": ids}) for time, ids in enumerate(rows)]
    file.write_text("\n".join(text) + "\n")
    theirs = [
        json.dumps(
            {"input_length": len(ids), "block_size": BLOCK_TOKENS, "block_tokens": [1] * len(ids), "hash_ids": ids}
        )
        for ids in rows
    ]
    file.with_suffix(".theirs").write_text("\n".join(theirs) + "\n")
    return file


def theirs(file: Path, policy: str, blocks: int) -> int:
    trace = parse_trace_file(file.with_suffix(".theirs"))
    # A little more than one request, which is rounded down.
    plan = build_execution_plan(trace, warmup_fraction=1.5 / trace.request_count)
    assert plan.warmup_requests == 1
    result = simulate_policy(plan, policy, blocks)
    assert result.measurementMode == "fixed_window"
    return result.hitTokens


def lru(file: Path, blocks: int) -> int:
    found: int = run(open_trace(file), Setup(blocks), ceiling=False).as_dict()["hits"]
    return found


def optimum(file: Path, blocks: int) -> int:
    trace = open_trace(file)
    return belady(list(trace.requests()), trace.nodes, blocks)[0]


BRANCHES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=40)
"""Paths as the branch taken at each step."""


def named(paths: list[list[int]]) -> list[list[int]]:
    """Give every prefix an id."""
    names: dict[tuple[int, ...], int] = {}
    return [[names.setdefault(tuple(path[:end]), len(names)) for end in range(1, len(path) + 1)] for path in paths]


@settings(max_examples=150)
@given(BRANCHES, st.integers(5, 40))
def test_lru_is_the_same(tmp_path_factory: pytest.TempPathFactory, paths: list[list[int]], blocks: int) -> None:
    file = write(tmp_path_factory.mktemp("t") / "t.jsonl", named(paths), blocks)
    assert lru(file, blocks) == theirs(file, "lru", blocks)


@settings(max_examples=150)
@given(BRANCHES, st.integers(1, 40))
def test_the_optimum_is_the_same(tmp_path_factory: pytest.TempPathFactory, paths: list[list[int]], blocks: int) -> None:
    file = write(tmp_path_factory.mktemp("t") / "t.jsonl", named(paths), blocks)
    assert optimum(file, blocks) == theirs(file, "optimal", blocks) >= lru(file, blocks)


def test_a_path_that_does_not_fit(tmp_path: Path) -> None:
    file = write(tmp_path / "t.jsonl", [[0, 1, 2, 3]] * 3, 2)
    assert (lru(file, 2), theirs(file, "lru", 2)) == (4, 2), "of each repetition: the two that fit, and one less"
    assert optimum(file, 2) == theirs(file, "optimal", 2) == 4


@pytest.mark.skipif(TRACES is None, reason="RADIXTIER_TRACES is not set")
@pytest.mark.parametrize("blocks", [1000, 4000])
def test_a_public_trace(tmp_path: Path, blocks: int) -> None:
    with (Path(TRACES or "") / "mooncake_conversation.jsonl").open() as lines:
        paths = [json.loads(line)["hash_ids"] for line in itertools.islice(lines, 1500)]
    file = write(tmp_path / "t.jsonl", paths, blocks)
    found = lru(file, blocks), optimum(file, blocks)
    assert found == (theirs(file, "lru", blocks), theirs(file, "optimal", blocks))
    assert 0 < found[0] < found[1]
