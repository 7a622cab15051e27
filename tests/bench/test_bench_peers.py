"""The peers' benchmark: what it plays, what it makes of the answers; all sides fake but one test's."""

from __future__ import annotations

import importlib.util
import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from radixtier.demo import bench_peers, peers_figures, peers_load, peers_run
from radixtier.demo.peers_load import FRESH_PROMPTS, FRESH_TOKENS, Round
from radixtier.demo.peers_plan import ANSWER_TOKENS, CHUNK, FULL, QUICK, SPREAD, TAIL_TOKENS, Plan
from radixtier.demo.peers_ratio import INTERVAL, NOTHING, ONE, RANGE, of_rounds, of_samples
from radixtier.demo.peers_report import comparison, load, numbers
from radixtier.demo.peers_run import DRAM_WALKS, Found, Run
from radixtier.demo.peers_side import DRAM, FILE, OURS, SIDES, STOCK, STORED, flags
from radixtier.demo.peers_walk import Sample, Walker, chunks, source
from radixtier.live.page_cache import Files
from radixtier.live.screen import Screen
from radixtier.live.server import ServerFailed
from radixtier.load.answer import Answer, Cached
from radixtier.load.figures import ENOUGH
from radixtier.machine import Machine

PLAN = Plan(
    hbm=100, dram=400, nvme=2000, prompts={16: 2, 40: 10, 80: 4}, targets=(40, 80), few=2,
    cycles=2, restarts=1, load_rounds=2, fresh_rounds=2, concurrency=3,
)  # fmt: skip


class FakeSide:
    """A side that knows its tiers: least recently used in HBM and in DRAM, everything on NVMe."""

    def __init__(self, name: str, plan: Plan, says: list[tuple[Any, ...]]) -> None:
        self.name, self.says, self.command = name, says, f"serve {name}"
        self.server = SimpleNamespace(pid=os.getpid(), failure=ServerFailed)
        self.target = self
        self.url = ""
        self._plan = plan
        self._sizes = {"hbm": plan.hbm, "dram": plan.dram if name != STOCK else 0}
        self._seen: dict[tuple[int, ...], None] = {}
        self._stored: set[tuple[int, ...]] = set()
        self._fresh = 10**9
        self.is_awake = False

    def start(self) -> None:
        self.says.append(("start", self.name))

    def stop(self) -> None:
        self.says.append(("stop", self.name))
        self._seen.clear()

    @contextmanager
    def awake(self) -> Iterator[None]:
        self.says.append(("awake", self.name))
        assert not self.is_awake
        self.is_awake = True
        yield
        self.is_awake = False

    def piece(self, tokens: int, number: int) -> tuple[int, ...]:
        return (number,) * tokens

    def ask(self, prompt: Sequence[int], answer_tokens: int, rid: str | None = None, session: str = "") -> Answer:
        assert self.is_awake
        key = tuple(prompt)
        found, distance = "nvme" if key in self._stored else "", 0
        for other in reversed(self._seen):
            if other == key:
                sizes = self._sizes.items()
                found = next((tier for tier, size in sizes if distance + len(key) <= size), found)
                break
            distance += len(other)
        self._seen.pop(key, None)
        self._seen[key] = None
        if self.name in STORED:
            self._stored.add(key)
        ttft = {"hbm": 0.1, "dram": 0.11, "nvme": 0.2 if self.name == OURS else 0.4, "": 2.0}[found]
        cached = Cached(**({found: len(key)} if found else {}))
        return Answer(0.0, ttft, ttft, (), len(key), answer_tokens, cached, output=(len(key),) * answer_tokens)

    def fresh(self, tokens: int) -> tuple[int, ...]:
        self._fresh += 1
        return self.piece(tokens, self._fresh)

    def settle(self) -> bool:
        self.says.append(("settle", self.name))
        return True

    def make_cold(self) -> Files:
        self.says.append(("cold", self.name))
        return Files(3, 4096)

    def waited(self) -> dict[str, float]:
        return {"cycle-1-first-1": 0.5}


def _run(names: Sequence[str], plan: Plan = PLAN) -> tuple[Found, list[tuple[Any, ...]]]:
    says: list[tuple[Any, ...]] = []
    found = Found()
    Run([FakeSide(name, plan, says) for name in names], plan, Screen(io.StringIO()), found).measure()  # type: ignore[misc]
    return found, says


def _sample(side: str, question: str, source: str, ttft: float, visit: int, prefix: int = 40, **more: Any) -> Sample:
    fields = {"phase": "cycle", "number": 1, "hbm": 0, "dram": 0, "nvme": 0, "output": (1,), "rid": ""} | more
    return Sample(side=side, question=question, source=source, ttft_s=ttft, visit=visit, prefix=prefix, **fields)


# ---- the plan and the flags -----------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [FULL, QUICK])
def test_sizes(plan: Plan) -> None:
    first, last = plan.targets
    assert plan.targets == (2000, 4000)
    everything = sum(n * count for n, count in plan.prompts.items())
    between = sum(n * plan.prompts[n] for n in plan.targets) - sum(p.prefix for p in plan.in_hbm(last))
    assert between > plan.dram, "a round of the loads finds nothing in DRAM"
    assert sum(n * plan.prompts[n] for n in plan.targets) > plan.hbm + plan.dram
    for n in plan.targets:
        at_once = plan.at_once(n) * (n + TAIL_TOKENS)
        assert at_once <= plan.dram / 2, "HiCache prefetches all that is asked for at once"
        assert len(plan.in_hbm(n)) >= 2
        assert sum(p.prefix for p in plan.in_hbm(n)) < 0.85 * plan.hbm
    assert plan.at_once(first) == plan.concurrency == 8
    assert 2 * plan.hbm < sum(p.prefix for p in plan.in_dram(first)) < 0.85 * plan.dram
    assert SPREAD * plan.hbm + 2 * last < plan.dram, "a DRAM hit comes before DRAM forgets"
    sample = sum(p.prefix for p in plan.sample())
    assert plan.hbm + last < sample < 0.85 * plan.dram, "what is walked without storage comes from DRAM again"
    assert plan.few * DRAM_WALKS >= ENOUGH
    assert everything + plan.fresh_rounds * FRESH_PROMPTS * FRESH_TOKENS < plan.nvme
    assert all(plan.few <= plan.prompts[n] for n in plan.targets)
    assert len(set(plan.order())) == sum(plan.prompts.values())


@pytest.mark.parametrize(("plan", "minutes"), [(FULL, 37), (QUICK, 21)])
def test_a_run_is_bounded(plan: Plan, minutes: int) -> None:
    """On two cores: 2,000 tokens are computed in 7 s, 4,000 in 18 s, a server starts in 40 s."""
    computed = {64: 0.5, 128: 0.7, 256: 1.2, 512: 1.8, 1000: 3.7, 2000: 7.0, 4000: 18.0}
    hit_s = {n: 0.85 if n == 4000 else 0.6 for n in plan.prompts}  # eight tokens of answer; a third with one
    prompts = sum(plan.prompts.values())
    once = 2 * sum(computed[n] * count for n, count in plan.prompts.items())
    few = 2 * sum(computed[p.prefix] for p in plan.sample())
    walks = 2 * prompts * (plan.cycles + 1) * 1.0
    loads = 2 * plan.load_rounds * sum(hit_s[n] * plan.prompts[n] * 2 * 4 / 3 for n in plan.targets)
    loads += 2 * sum(hit_s[n] * plan.prompts[n] for n in plan.targets)
    dram = 2 * (plan.load_rounds + 1) * len(plan.in_dram(2000)) * 0.5
    restarts = plan.restarts * 2 * (40 + prompts)
    fresh = plan.fresh_rounds * 4 * FRESH_PROMPTS * 1.7
    assert once + few + walks + loads + dram + restarts + fresh + 4 * 40 < 60 * minutes


@pytest.mark.parametrize("plan", [FULL, QUICK])
def test_sides_get_the_same_tiers(plan: Plan, tmp_path: Path) -> None:
    given = {name: flags(name, plan, tmp_path, 16, "timeout") for name in SIDES}
    value = {name: dict(pairwise(words)) for name, (words, _) in given.items()}
    assert {value[name]["--max-total-tokens"] for name in (STOCK, DRAM, FILE)} == {str(plan.hbm)}
    assert value[OURS]["--radix-tier-hbm-size"] == f"{plan.hbm}tok"
    for name in (DRAM, FILE):
        assert int(float(value[name]["--hicache-ratio"]) * plan.hbm) == plan.dram
    assert value[OURS]["--radix-tier-dram-size"] == f"{plan.dram}tok"
    assert all(words["--page-size"] == "16" for words in value.values())
    assert given[FILE][1] == {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(tmp_path)}
    assert value[FILE]["--hicache-storage-prefetch-policy"] == "timeout"
    assert "--enable-hierarchical-cache" not in given[STOCK][0]


def test_groups_by_memory(tmp_path: Path) -> None:
    config = {"num_hidden_layers": 2, "num_key_value_heads": 2, "hidden_size": 64, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert bench_peers.groups(SIDES, PLAN, tmp_path, 13 << 30) == [list(SIDES)]
    assert bench_peers.groups(SIDES, PLAN, tmp_path, 9 << 30) == [[STOCK, DRAM], [FILE, OURS]]
    assert bench_peers.groups([DRAM, OURS], PLAN, tmp_path, 6 << 30) == [[DRAM], [OURS]]
    with pytest.raises(RuntimeError, match=r"needs 7\.0 GiB of free memory, 6\.0 are there"):
        bench_peers.groups(SIDES, PLAN, tmp_path, 6 << 30)


# ---- the run --------------------------------------------------------------------------------------------


def test_a_walk_asks_each_prompt_from_every_tier() -> None:
    side = FakeSide(OURS, PLAN, [])
    walker = Walker(side, PLAN)  # type: ignore[arg-type]
    first = [sample for chunk in chunks(PLAN.order()) for sample in walker.chunk(chunk, "first")]
    assert {s.source for s in first if s.question == "first"} == {"recompute"}
    samples = [sample for chunk in chunks(PLAN.order()) for sample in walker.chunk(chunk, "cycle")]
    asked = {question: [s for s in samples if s.question == question] for question in ("first", "again", "later")}
    assert {s.source for s in asked["first"] if s.prefix in PLAN.targets} == {"nvme"}
    assert {s.source for s in asked["again"]} == {"hbm"}
    assert {s.source for s in asked["later"]} == {"dram"}
    assert {s.prefix for s in asked["later"]} == set(PLAN.targets)
    assert len(asked["first"]) == len(asked["again"]) == len(PLAN.order())
    assert all(s.visit == t.visit for s, t in zip(asked["first"], asked["again"], strict=True))


@pytest.mark.parametrize(
    ("cached", "wanted"),
    [
        (Cached(), "recompute"),
        (Cached(nvme=64), "nvme"),
        (Cached(dram=60, nvme=4), "dram"),
        (Cached(hbm=32, nvme=32), "mixed"),
        (Cached(hbm=48), "mixed"),
    ],
)
def test_the_source_of_a_prefix(cached: Cached, wanted: str) -> None:
    assert source(cached, 64) == wanted


def test_nothing_comes_back_to_stock() -> None:
    walker = Walker(FakeSide(STOCK, PLAN, []), PLAN)  # type: ignore[arg-type]
    samples = [sample for chunk in chunks(PLAN.order()) for sample in walker.chunk(chunk, "first")]
    assert {s.question for s in samples} == {"first", "again"}


def test_the_order_of_a_run() -> None:
    found, says = _run(SIDES)
    assert [said for said in says if said[0] == "start"][:4] == [("start", name) for name in SIDES]
    assert says[-4:] == [("stop", name) for name in reversed(SIDES)]
    # Files are cold before each cycle, before each load from NVMe, and before and after each restart.
    cold = [said for said in says if said[0] == "cold"]
    assert cold == [("cold", name) for _ in range(PLAN.cycles + 4 * PLAN.load_rounds + 2) for name in (FILE, OURS)]
    first_cold = says.index(("cold", FILE))
    assert says.index(("settle", OURS)) < first_cold
    # Who goes first alternates.
    turns = [said[1] for said in says[:first_cold] if said[0] == "awake"]
    assert turns[:4] == list(SIDES)
    assert found.cold[0] == {"side": FILE, "number": 3, "bytes": 4096, "cached_bytes": 0}
    after = says[says.index(("stop", FILE)) :]
    assert [said for said in after if said[0] in ("stop", "cold", "start")][:8] == [
        ("stop", FILE), ("stop", OURS), ("cold", FILE), ("cold", OURS),
        ("start", FILE), ("start", OURS), ("cold", FILE), ("cold", OURS),
    ]  # fmt: skip


def test_what_a_run_finds() -> None:
    found, _ = _run(SIDES)
    by_side = {name: [s for s in found.samples if s.side == name] for name in SIDES}
    # The sides without storage play a few prompts; those with it play all, once and in each cycle.
    few = PLAN.few * len(PLAN.targets)
    assert len([s for s in by_side[STOCK] if s.question == "first"]) == few
    assert len([s for s in by_side[DRAM] if s.question == "first"]) == few * (1 + DRAM_WALKS)
    everything = len(PLAN.order())
    for name in STORED:
        assert len([s for s in by_side[name] if s.question == "first" and s.phase == "first"]) == everything
        assert len([s for s in by_side[name] if s.question == "first" and s.phase == "cycle"]) == 2 * everything
    kinds: dict[tuple[str, int, str], int] = {}
    for each in found.rounds:
        kinds[each.kind, each.prefix, each.side] = kinds.get((each.kind, each.prefix, each.side), 0) + 1
    assert kinds == {
        **{
            (kind, n, name): PLAN.load_rounds
            for kind in ("load", "short", "hbm", "hbm-short")
            for n in PLAN.targets
            for name in STORED
        },
        **{("warming", n, name): 2 * PLAN.load_rounds + 1 + (n == 40) for n in PLAN.targets for name in STORED},
        **{(kind, 40, name): count for kind, count in (("dram", 2), ("restart", 1)) for name in STORED},
        **{("fresh", 0, name): 2 for name in SIDES},
    }
    assert all(r.counts for r in found.rounds)
    loads = [r for r in found.rounds if r.kind not in ("warming", "fresh", "dram")]
    assert {(r.kind, r.prefix): r.figures["requests"] for r in loads} == {
        **{(kind, n): PLAN.prompts[n] for kind in ("load", "short", "hbm", "hbm-short") for n in PLAN.targets},
        ("restart", 40): 7,
    }
    for r in loads:
        one = r.kind in ("short", "restart", "hbm-short")
        assert r.figures["tokens"]["output"] == r.figures["requests"] * (1 if one else PLAN.load_answer)
        assert r.figures["tokens"]["hbm" if r.kind.startswith("hbm") else "nvme"] == r.figures["tokens"]["prompt"]
    assert {r.figures["tokens"]["nvme"] for r in found.rounds if r.kind == "dram"} == {0}
    fresh = [r for r in found.rounds if r.kind == "fresh"]
    assert all(r.figures["tokens"]["recomputed"] == FRESH_PROMPTS * FRESH_TOKENS for r in fresh)
    # What a restarted server is walked with was not loaded before.
    restart = {s.number for s in found.samples if s.phase == "restart"}
    assert len(restart) == 3 + 4


@pytest.mark.parametrize("plan", [FULL, QUICK])
def test_the_plans_measure_every_target_on_what_they_intend(plan: Plan) -> None:
    """With tiers that are least recently used, there is an interval for each time, and every round counts."""
    found, _ = _run(SIDES, plan)
    for n in plan.targets:
        assert len(peers_figures.times(found.samples, DRAM, n, "dram")) >= ENOUGH
        for side in STORED:
            assert len(peers_figures.times(found.samples, side, n, "dram")) >= ENOUGH
            assert len(peers_figures.costs(found.samples, side, n)) >= ENOUGH
    assert all(each.counts for each in found.rounds)
    assert not peers_figures.unmeasured(peers_figures.comparisons(found.samples, found.rounds, plan, SIDES))


def test_without_storage_nothing_is_loaded() -> None:
    found, says = _run([STOCK, DRAM])
    assert {r.kind for r in found.rounds} == {"fresh"}
    assert not [said for said in says if said[0] in ("cold", "settle")]
    assert len(next(iter(chunks(PLAN.sample())))) == min(CHUNK, len(PLAN.sample()))


def test_a_failed_request_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    side = FakeSide(OURS, PLAN, [])
    monkeypatch.setattr(side, "ask", lambda *_, **__: Answer(0.0, 1.0, 1.0, error="gone"))
    with pytest.raises(ServerFailed, match=r"8 requests \(gone\)"):
        peers_load.fresh(side, PLAN, 0)  # type: ignore[arg-type]


# ---- the figures ----------------------------------------------------------------------------------------


def test_costs_are_differences_within_a_visit() -> None:
    samples = [
        _sample(OURS, "first", "nvme", 0.5, 1), _sample(OURS, "again", "hbm", 0.2, 1),
        _sample(OURS, "first", "nvme", 0.9, 2), _sample(OURS, "again", "mixed", 0.1, 2),
        _sample(OURS, "first", "dram", 0.3, 3), _sample(OURS, "again", "hbm", 0.2, 3),
        _sample(OURS, "first", "nvme", 0.7, 1, phase="restart"), _sample(OURS, "again", "hbm", 0.3, 1, phase="restart"),
        _sample(FILE, "first", "nvme", 1.2, 1), _sample(FILE, "again", "hbm", 0.2, 1),
    ]  # fmt: skip
    assert peers_figures.costs(samples, OURS, 40) == pytest.approx([0.3, 0.4])
    assert peers_figures.costs(samples, OURS, 40, "restart") == pytest.approx([0.4])
    assert peers_figures.costs(samples, OURS, 80) == []
    row = next(r for r in peers_figures.table(samples, [OURS, FILE]) if r["side"] == OURS)
    assert (row["nvme"], row["nvme_samples"], row["dram"], row["recompute"]) == (0.7, 3, 0.3, None)
    assert row["nvme_cost"] == pytest.approx(0.35)


def _round(side: str, kind: str, number: int, speed: float, share: float = 1.0, prefix: int = 80) -> Round:
    tier = peers_load.TIER.get(kind, "hbm")
    return Round(side, kind, number, prefix, speed, 1.0, {"tokens": {tier: round(1000 * share), "prompt": 1000}})


@pytest.mark.parametrize(("ours", "met"), [(0.3, True), (0.9, False)])
def test_targets_are_met_or_missed(ours: float, met: bool) -> None:
    samples = [
        *(_sample(OURS, "first", "nvme", 0.1 + ours, n, 80) for n in range(3)),
        *(_sample(OURS, "again", "hbm", 0.1, n, 80) for n in range(3)),
        *(_sample(FILE, "first", "nvme", 1.1, n, 80) for n in range(3)),
        *(_sample(FILE, "again", "hbm", 0.1, n, 80) for n in range(3)),
    ]
    rounds = [_round(side, "load", n, speed) for n in range(3) for side, speed in ((OURS, 1 / ours), (FILE, 1))]
    rows = {(r["what"], r["peer"]): r for r in peers_figures.comparisons(samples, rounds, PLAN, STORED)}
    cost = rows["NVMe hit over HBM hit, 80 tokens", FILE]
    assert (cost["value"], cost["met"], cost["told"]) == (pytest.approx(ours), met, RANGE)
    assert rows["TTFT of an NVMe hit, 80 tokens", FILE]["met"] is met
    assert rows["TTFT of a hit in HBM, 80 tokens", FILE]["met"] is True
    load = rows["throughput, prefixes on NVMe, 80 tokens", FILE]
    assert (load["value"], load["met"]) == (pytest.approx(1 / ours), met)
    assert not [what for what, peer in rows if peer in (STOCK, DRAM)]


def test_a_target_that_was_not_measured_is_not_met() -> None:
    rows = peers_figures.comparisons([], [], PLAN, SIDES)
    wanted = [row for row in rows if row["target"]]
    assert wanted == peers_figures.unmeasured(rows) and {row["met"] for row in wanted} == {False}
    # Four for NVMe hits and two for TTFT of the longer; HBM hits with three peers, DRAM hits with two; two loads, one
    # restart.
    assert len(wanted) == 4 + 2 + 2 * 3 + 2 * 2 + 2 + 1
    assert all("not measured" in comparison(row) for row in rows)
    assert [row for row in rows if row["target"] == "" and row["met"] is not None] == []
    # Who does not run, and what the plan leaves out, is no target.
    assert peers_figures.comparisons([], [], PLAN, [STOCK, FILE]) == []
    calm = peers_figures.comparisons([], [], replace(PLAN, restarts=0), SIDES)
    assert not [row for row in calm if "restart" in row["what"]]


def test_a_round_counts_only_if_both_sides_had_it_from_nvme() -> None:
    rounds = [
        *(_round(OURS, "load", n, 2.0, share) for n, share in enumerate((0.95, 0.9, 0.89, 1.0))),
        *(_round(FILE, "load", n, 1.0, share) for n, share in enumerate((0.99, 0.99, 0.99, 0.5))),
    ]
    what = "throughput, prefixes on NVMe, 80 tokens"
    row = next(r for r in peers_figures.comparisons([], rounds, PLAN, STORED) if r["what"] == what)
    assert (row["value"], row["ours"], row["told"]) == (2.0, 2, RANGE)
    shown = {
        r["side"]: r for r in peers_figures.loads(rounds, PLAN, STORED) if (r["kind"], r["prefix"]) == ("load", 80)
    }
    assert [(shown[side]["count"], shown[side]["rounds"]) for side in (OURS, FILE)] == [(3, 4), (3, 4)]
    assert "(3 of 4)  89% to 100%" in load(shown[OURS]) and "50% to 99%" in load(shown[FILE])
    none = [replace(r, figures={"tokens": {"nvme": 0, "prompt": 1000}}) for r in rounds]
    row = next(r for r in peers_figures.comparisons([], none, PLAN, STORED) if r["what"] == what)
    assert (row["value"], row["met"], row["told"], row["why"]) == (None, False, NOTHING, "no round counts")


def test_what_tiering_can_reach() -> None:
    rounds = [_round(OURS, "load", n, 8.0) for n in range(6)] + [_round(OURS, "hbm", n, 10.0) for n in range(6)]
    row = next(r for r in peers_figures.bounds(rounds, PLAN, STORED) if (r["side"], r["prefix"]) == (OURS, 80))
    assert (row["kind"], row["value"], row["told"]) == ("load", 0.8, INTERVAL)


@pytest.mark.parametrize(
    ("count", "told", "shown"), [(1, ONE, "(one sample)"), (2, RANGE, "range of 2)"), (5, RANGE, "range of 5)")]
)
def test_few_samples_have_no_interval(count: int, told: str, shown: str) -> None:
    ours, theirs = [1.0 + n for n in range(count)], [2.0 + n for n in range(count)]
    for found in (of_samples(ours, theirs), of_rounds(list(zip(ours, theirs, strict=True)))):
        assert found.told == told and found.value is not None
        assert (found.low is None) is (found.high is None) is (told == ONE)
        if found.low is not None and found.high is not None:
            assert found.low <= found.value <= found.high
        assert shown in numbers(found._asdict())
    assert of_samples([1.0] * ENOUGH, [2.0] * ENOUGH).told == INTERVAL
    assert of_samples([1.0] * ENOUGH, [2.0] * (ENOUGH - 1)).told == RANGE
    assert of_rounds([(1.0, 2.0)] * ENOUGH)[:4] == (0.5, 0.5, 0.5, INTERVAL)


def test_a_cost_may_be_nothing() -> None:
    assert of_samples([0.1] * 6, [0.0] * 6).value is None
    assert of_samples([0.1] * 6, [-0.2] * 6).why == "the peer's cost is not above zero"
    assert of_samples([-0.1] * 6, [0.2] * 6)[:4] == (0.0, 0.0, 0.0, INTERVAL)
    unsure = of_samples([0.1] * 7, [-0.1, -0.1, -0.1, 0.2, 0.2, 0.2, 0.2])
    assert unsure.value == pytest.approx(0.5) and unsure.high is None
    assert of_samples([0.1, 0.1], [-0.1, 0.2, 0.3]).high is None
    json.dumps(unsure._asdict(), allow_nan=False)
    assert "to any" in numbers(unsure._asdict())
    assert of_rounds([(1.0, 0.0)]).told == NOTHING


def test_where_a_hit_pays() -> None:
    computed = {16: 0.1, 40: 0.3, 80: 0.9}
    samples = [_sample(OURS, "first", "recompute", ttft, 1, n) for n, ttft in computed.items()]
    samples += [_sample(OURS, "first", "nvme", ttft, 2, n) for n, ttft in ((16, 0.2), (40, 0.2), (80, 0.4))]
    assert peers_figures.pays_from(samples) == 40
    assert peers_figures.pays_from(samples[:3]) is None
    assert peers_figures.pays_from([]) is None


def test_other_answers_are_counted() -> None:
    samples = [
        _sample(FILE, "first", "nvme", 1.0, 1), _sample(OURS, "first", "nvme", 1.0, 1),
        _sample(OURS, "again", "hbm", 1.0, 1, output=(2,)), _sample(OURS, "first", "nvme", 1.0, 2, 80, output=(2,)),
    ]  # fmt: skip
    assert peers_figures.others(samples) == {FILE: 0, OURS: 1}


# ---- the command ----------------------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    config = {"num_hidden_layers": 2, "num_key_value_heads": 2, "hidden_size": 64, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("RADIXTIER_CACHE", str(tmp_path))
    monkeypatch.setattr(bench_peers, "QUICK", PLAN)
    monkeypatch.setattr(bench_peers, "end_like_ctrl_c", lambda: None)
    monkeypatch.setattr(Machine, "probe", lambda: Machine(64 << 30))
    monkeypatch.setattr(bench_peers, "Side", lambda name, model, plan, *_: FakeSide(name, plan, []))
    return tmp_path


def test_a_result(command: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(bench_peers, "Screen", lambda: Screen(shown))
    file = command / "out.json"
    assert bench_peers.main(["--quick", "--model", str(command), "--json", str(file)]) == 0
    result = json.loads(file.read_text())
    assert {"ttft", "comparisons", "pays_from", "samples", "rounds", "commands", "command", "cold", "plan"} < set(
        result
    )
    assert set(result["commands"]) == set(SIDES) and result["complete"]
    cost = next(r for r in result["comparisons"] if r["what"] == "NVMe hit over HBM hit, 80 tokens")
    assert cost["value"] == pytest.approx((0.2 - 0.1) / (0.4 - 0.1)) and cost["met"]
    assert all(len(sample["output"]) == ANSWER_TOKENS for sample in result["samples"])
    lines = [line for line in shown.getvalue().splitlines() if line.startswith("NVMe hit over HBM hit, 80 tokens")]
    assert len(lines) == 2 and all(line.endswith("met") for line in lines)
    assert not list((command / "bench").iterdir())


def test_a_target_without_samples_is_a_failure(
    command: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers_run.Run, "_load", lambda _: None)
    assert bench_peers.main(["--quick", "--model", str(command)]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 2 and "throughput, prefixes on NVMe, 40 tokens, hicache-file: not measured" in err


def test_memory_is_that_of_our_cgroups(command: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "probe", lambda: Machine(6 << 30))
    with pytest.raises(RuntimeError, match=r"6\.0 are there"):
        bench_peers.groups(SIDES, PLAN, command)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("no json", "its config.json is not that of a model"),
        ("[]", "its config.json is not that of a model"),
        ('{"hidden_size": 64, "num_attention_heads": 0}', "its config.json is not that of a model"),
        ('{"hidden_size": 64, "num_attention_heads": 4}', "its config.json has no num_hidden_layers"),
        ('{"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": -1}', "whole numbers over 0"),
        (None, "its config.json cannot be read"),
    ],
)
def test_a_bad_model_is_one_line(
    config: str | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(SystemExit) as left:
        bench_peers.main(["--model", str(tmp_path)])
    err = capsys.readouterr().err
    assert left.value.code == 2 and err.count("\n") == 1
    assert err.startswith(f"radixtier bench peers: argument --model: {tmp_path}: ") and says in err


def test_an_interrupted_run_shows_what_it_has(command: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Run) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(peers_run.Run, "_load", interrupted)
    file = command / "out.json"
    assert bench_peers.main(["--quick", "--model", str(command), "--json", str(file)]) == 130
    result = json.loads(file.read_text())
    assert not result["complete"] and result["ttft"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--page-size", "0"], "argument --page-size: 0"),
        (["--only", "vllm"], "argument --only: invalid choice: 'vllm'"),
        (["--json", "/no/such/place/a.json"], "argument --json: /no/such/place/a.json"),
        (["--json", "/proc/x.json"], "argument --json: /proc/x.json: it cannot be written"),
        (["--model", "/no/such/model"], "argument --model: /no/such/model"),
        (["--restarts", "-1"], "argument --restarts: -1"),
    ],
)
def test_bad_flags(options: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        bench_peers.main(options)
    assert left.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.e2e
@pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed")
def test_on_real_servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """HiCache beside the tier, on a model of random weights: every source occurs, and answers are equal.

    Such a model computes a short prefix faster than a drive reads it, and the tier knows: then its load does not come
    from NVMe, and the status says that something could not be measured.
    """
    monkeypatch.setenv("RADIXTIER_CACHE", str(tmp_path))
    small = Plan(
        hbm=2048, dram=6144, nvme=32768, prompts={320: 30, 640: 4}, targets=(320, 640), few=2,
        cycles=1, restarts=0, load_rounds=1, fresh_rounds=1,
    )  # fmt: skip
    monkeypatch.setattr(bench_peers, "QUICK", small)
    monkeypatch.setattr(bench_peers, "end_like_ctrl_c", lambda: None)
    file = tmp_path / "out.json"
    status = bench_peers.main(["--tiny", "--quick", "--only", FILE, "--only", OURS, "--json", str(file)])
    result = json.loads(file.read_text())
    missing = [each for each in result["comparisons"] if each["target"] and each["value"] is None]
    assert status == int(bool(missing))
    assert {s["source"] for s in result["samples"] if s["side"] == FILE} >= {"recompute", "hbm", "dram", "nvme"}
    assert set(result["other_answers"].values()) == {0}
    assert {each["side"] for each in result["cold"]} == {FILE, OURS}
