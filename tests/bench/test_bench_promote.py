"""The promotion benchmark: what it asks of its servers and what it reports; one part on a real server."""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from radixtier.demo import bench_promote, promote_overlap, promote_return, promote_slow
from radixtier.demo.bench_promote import Plan
from radixtier.demo.promote_overlap import Alone, OverlapPlan, Together
from radixtier.demo.promote_return import ReturnPlan
from radixtier.demo.promote_rig import Explained, Rig, Sizes, where
from radixtier.demo.promote_slow import SlowPlan
from radixtier.live.client import Reply
from radixtier.live.screen import Screen

PLAN = Plan(
    SlowPlan(factors=(10, 100), conversations=3, prompt_tokens=96, fast_rounds=1, slow_rounds=2),
    ReturnPlan(sessions=3, prompt_tokens=96, turns=4, think_s=0.0),
    OverlapPlan(trials=2, cold_tokens=96, long_tokens=512, delay_s=0.0),
)


class FakeTier:
    """Answers at once, in the roles of a server, its client and its control endpoint."""

    def __init__(self, says: list[Any], nvme: int = 0) -> None:
        self.says = says
        self.client = self.control = self
        self.nvme = nvme
        self.prompts: list[tuple[int, ...]] = []

    def generate(self, prompt: Sequence[int], max_tokens: int, **fields: Any) -> Reply:
        self.prompts.append(tuple(prompt))
        self.says.append(("asked", self, fields.get("rid")))
        return Reply("", len(prompt), 0, 0, self.nvme, (len(prompt),) * max_tokens, tuple(prompt), 0.5, 0.6)

    def misbehave(self, faults: str) -> None:
        self.says.append(("faults", faults))

    def settle(self) -> None:
        self.says.append(("settled",))

    def explain(self, samples: Sequence[Explained]) -> None:
        samples[0].waited_s = 0.25

    def state(self) -> dict[str, Any]:
        counters = {"promoted_by": {"arrival": 0, "return": 7}, "ahead_used": {}, "ahead_wasted": {}, "demoted": 1}
        return {"counters": counters, "policies": {"eviction": "lru"}}

    def explain_node(self, target: dict[str, str]) -> dict[str, Any]:
        return {"nodes": [{"expected": None}, {"expected": 1.0 if target["session"] == "session-1" else None}]}


class FakeRig(Rig):
    """A rig whose servers are fake; what happens is in :attr:`says`."""

    def __init__(self, scratch: Path) -> None:
        super().__init__(scratch, 1000, scratch, Screen(io.StringIO()))
        self.says: list[Any] = []
        self.tiers: list[FakeTier] = []

    @contextmanager
    def stock(self, *_: Any, **__: Any) -> Iterator[Any]:
        self.stock_server = FakeTier(self.says)
        yield self.stock_server

    @contextmanager
    def tiered(self, name: str, sizes: Sizes, store: Path, *, faults: str = "", **_: Any) -> Iterator[Any]:
        self.says.append(("started", name, faults))
        self.tiers.append(FakeTier(self.says, nvme=32))
        yield self.tiers[-1]


def test_slow_drives(tmp_path: Path) -> None:
    rig = FakeRig(tmp_path)
    result = promote_slow.measure(rig, PLAN.slow)
    phases = ["full speed", "collapsed", "slow from the start"]
    assert [(row["factor"], row["phase"]) for row in result["rows"]] == [(f, p) for f in (10, 100) for p in phases]
    assert [row["requests"] for row in result["rows"]] == [3, 6, 6] * 2
    assert {row["p95_ratio"] for row in result["rows"]} == {1.0}
    assert {row["waited_max_s"] for row in result["rows"]} == {0.25}
    assert sum(row["other_outputs"] for row in result["rows"]) == 0
    # Both sides get the same, each conversation goes on where it stopped, and the first to be asked alternates.
    tiered = [prompt for tier in rig.tiers for prompt in tier.prompts]
    assert rig.stock_server.prompts == tiered and len(set(tiered)) == 2 * (1 + 1 + 2 + 2) * 3
    assert tiered[3][: len(tiered[0])] == tiered[0]
    asked = [said[1] is rig.stock_server for said in rig.says if said[0] == "asked"]
    assert asked[:6] == [True, False, False, True, True, False]
    slow = [said for said in rig.says if said[0] in ("started", "faults", "settled")]
    assert slow[:9] == [
        ("started", "collapse-10", ""), ("settled",), ("settled",), ("faults", "slow=10"), ("faults", ""),
        ("settled",), ("started", "start-10", "slow=10"), ("faults", ""), ("started", "collapse-100", ""),
    ]  # fmt: skip


def test_predicted_returns(tmp_path: Path) -> None:
    result = promote_return.measure(rig := FakeRig(tmp_path), PLAN.returns)
    assert (result["predicted"]["requests"], result["unpredicted"]["requests"]) == (3, 6)
    assert {each["rid"] for each in result["predicted"]["samples"]} == {f"session-1-{turn}" for turn in (1, 2, 3)}
    assert result["predicted"]["found"] == 0.0
    assert result["counters"]["promoted_by"]["return"] == 7
    assert len({prompt[:96] for prompt in rig.tiers[0].prompts}) == 3


def test_overlap(tmp_path: Path) -> None:
    rig = FakeRig(tmp_path)
    result = promote_overlap.measure(rig, PLAN.overlap)
    assert (result["trials"], result["up_before"]) == (2, 0)
    prompts = rig.tiers[0].prompts
    cold = [prompt for prompt in prompts if len(prompt) == 96]
    assert len(cold) == 2 * len(set(cold)) == 2 * (2 * 2 + promote_overlap.SPARE)
    long = [prompt for prompt in prompts if len(prompt) == 512]
    assert len(long) == len(set(long)) == 2 + 2
    assert [said[1] for said in rig.says if said[0] == "faults"] == ["slow_read=5", ""]


def test_overlap_figures() -> None:
    prompt = {"prompt_tokens": 96, "hbm": 0, "dram": 0, "nvme": 80, "recomputed": 16}
    times = {"sent_s": 0.5, "long_first_token_s": 4.0}
    alone = [Alone(rid="a", **prompt, ttft_s=1.0, waited_s=0.8)]
    together = [
        Together(rid="b", **prompt, **times, up_s=2.0, first_token_s=4.25),
        Together(rid="c", **prompt, **times, up_s=4.5, first_token_s=4.75, waited_s=0.5),
        Together(rid="d", **prompt, **times, up_s=None, first_token_s=5.0),
    ]
    result = promote_overlap.summarise(alone, together)
    assert (result["up_before"], result["trials"]) == (1, 3)
    assert (result["ttft_s"], result["sum_s"], result["behind_s"], result["waited_s"]) == (4.25, 4.5, 0.75, 0.0)


def test_figures() -> None:
    sample = Explained(rid="a", prompt_tokens=10, hbm=1, dram=2, nvme=3, recomputed=4)
    assert where([sample, sample]) == {"hbm": 0.1, "dram": 0.2, "nvme": 0.3, "recomputed": 0.4}


@pytest.mark.parametrize("plan", [bench_promote.FULL, bench_promote.QUICK])
def test_sizes(plan: Plan) -> None:
    """Conversations fit one by one and not together; there are more pauses than are needed to predict."""
    slow, returns, overlap = plan.slow, plan.returns, plan.overlap
    assert slow.prompt_tokens < slow.sizes.dram < slow.conversations * slow.prompt_tokens
    assert slow.conversations * slow.prompt_tokens < slow.sizes.nvme
    assert returns.sizes.hbm < returns.sizes.dram
    assert returns.sizes.dram < returns.sessions * returns.prompt_tokens
    assert returns.sessions * (returns.turns - 1) > 32 + 2 * returns.sessions
    assert overlap.cold_tokens + overlap.long_tokens < overlap.sizes.hbm


def test_every_part_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 1000}))
    monkeypatch.setenv("RADIXTIER_CACHE", str(tmp_path))
    monkeypatch.setattr(bench_promote, "QUICK", PLAN)
    monkeypatch.setattr(bench_promote, "Rig", lambda model, vocabulary, scratch, screen, flags: FakeRig(scratch))
    monkeypatch.setattr(bench_promote, "end_like_ctrl_c", lambda: None)
    file = tmp_path / "out.json"
    assert bench_promote.main(["--quick", "--model", str(tmp_path), "--json", str(file)]) == 0
    result = json.loads(file.read_text())
    assert {"slow", "return", "overlap", "commands", "command", "machine", "model"} < result.keys()
    assert not list((tmp_path / "bench").iterdir())


@pytest.mark.e2e
@pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed")
def test_on_a_real_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RADIXTIER_CACHE", str(tmp_path))
    monkeypatch.setattr(bench_promote, "QUICK", PLAN)
    monkeypatch.setattr(bench_promote, "end_like_ctrl_c", lambda: None)
    file = tmp_path / "out.json"
    options = ["--tiny", "--quick", "--part", "return", "--part", "overlap", "--json", str(file)]
    assert bench_promote.main(options) == 0
    result = json.loads(file.read_text())
    returns = [*result["return"]["predicted"]["samples"], *result["return"]["unpredicted"]["samples"]]
    assert len(returns) == 9
    for each in returns:
        assert each["hbm"] + each["dram"] + each["nvme"] + each["recomputed"] == each["prompt_tokens"]
    assert (len(result["overlap"]["alone"]), len(result["overlap"]["together"])) == (2, 2)
    assert "RADIXTIER_FAULTS=@" in result["commands"]["overlap"]
