"""The known facts about the public traces; ``RADIXTIER_TRACES`` names the directory they lie in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from radixtier.lab.belady import belady
from radixtier.lab.report import Report
from radixtier.lab.setup import Setup, run
from radixtier.lab.traces.opening import open_trace

TRACES = os.environ.get("RADIXTIER_TRACES")
CONVERSATION, SYNTHETIC = "mooncake_conversation.jsonl", "mooncake_synthetic.jsonl"
SESSIONS = "claude_code_sessions.jsonl.gz"
EVERYTHING = 10**9
NEAR = 0.002

pytestmark = pytest.mark.skipif(TRACES is None, reason="RADIXTIER_TRACES is not set")


def hbm_only(name: str, blocks: int) -> Report:
    return run(open_trace(Path(TRACES or "") / name), Setup(blocks), ceiling=False)


@pytest.mark.parametrize(
    ("blocks", "ratio"), [(2000, 0.054), (5000, 0.112), (10_000, 0.212), (20_000, 0.288), (EVERYTHING, 0.366)]
)
def test_conversation(blocks: int, ratio: float) -> None:
    report = hbm_only(CONVERSATION, blocks)
    assert report.counts.requests == 12_031 and report.counts.blocks == 288_500
    assert report.hit_ratio == pytest.approx(ratio, abs=NEAR)


@pytest.mark.parametrize(("blocks", "ratio"), [(2000, 0.255), (5000, 0.341), (10_000, 0.366), (20_000, 0.366)])
def test_the_ceiling_of_conversation(blocks: int, ratio: float) -> None:
    trace = open_trace(Path(TRACES or "") / CONVERSATION)
    hits, references = belady(trace.requests(), trace.nodes, blocks)
    assert len(trace.nodes) == 182_790
    assert hits / references == pytest.approx(ratio, abs=NEAR)


def test_synthetic() -> None:
    report = hbm_only(SYNTHETIC, EVERYTHING)
    assert (report.counts.requests, report.counts.blocks) == (3993, 121_877)
    assert report.counts.blocks - report.counts.hits == 43_924
    assert report.hit_ratio == pytest.approx(0.640, abs=NEAR)


@pytest.mark.parametrize(
    ("mtok", "ratio", "near"),
    [
        (0.5, 0.185, NEAR),
        (1, 0.470, NEAR),
        (2, 0.793, NEAR),
        # The replay behind the figures numbers the blocks of a session by place, so that a branch revives the blocks of
        # the one it left; here they are other blocks, the old ones take room until they are evicted, and 0.9239 it is.
        (4, 0.926, 0.0025),
        (8, 0.955, NEAR),
        (10_000, 0.962, NEAR),
    ],
)
def test_sessions(mtok: float, ratio: float, near: float) -> None:
    report = hbm_only(SESSIONS, int(mtok * 1e6 / 64))
    assert report.counts.requests == 46_818
    assert report.hit_ratio == pytest.approx(ratio, abs=near)
