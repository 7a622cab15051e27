"""The work of a replay grows with the references, not with the tree: calls are counted, nothing is timed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from radixtier.lab import bench, tiers
from radixtier.lab.bench import DEPTH, Copies, Turnover, small
from radixtier.lab.setup import Setup, run
from radixtier.lab.traces.trace import Nodes, Request
from radixtier.policy.eviction import heap as heaps
from radixtier.policy.eviction import leaves

COUNTED = (
    (leaves.LeafOrder, "remove"),
    (leaves.LeafOrder, "_dim"),
    (leaves.LeafOrder, "_light"),
    (heaps.LeafHeap, "push"),
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Calls of what an order does for one node."""
    found: Counter[str] = Counter()

    def counted(name: str, inner: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            found[name] += 1
            return inner(*arguments)

        return call

    for kind, name in COUNTED:
        monkeypatch.setattr(kind, name, counted(name, getattr(kind, name)))
    return found


@pytest.mark.parametrize("eviction", ["lru", "s3fifo", "next_use"])
def test_four_times_the_trace_is_four_times_the_work(calls: Counter[str], eviction: str) -> None:
    requests, nodes = small(150)
    blocks = nodes.n_pages
    per_reference = []
    for copies in (1, 4):
        calls.clear()
        trace = Copies(requests, nodes.parent, nodes.pages, copies)
        run(trace, Setup(blocks // 50, blocks // 25, blocks // 6, eviction=eviction, admission="all"))
        per_reference.append(calls.total() / trace.references)
    assert 0 < per_reference[0] < 8
    assert per_reference[1] < 1.2 * per_reference[0] + 0.2


@pytest.mark.parametrize("eviction", ["lru", "slru"])
def test_a_tree_of_a_hundred_times_the_nodes_is_no_more_work_per_reference(calls: Counter[str], eviction: str) -> None:
    per_reference = []
    for resident in (800, 80_000):
        calls.clear()
        trace = Turnover(resident, measured=1600)
        sizes = Setup(resident // 16, resident // 4, resident, eviction=eviction, admission="all")
        run(Counting(trace, calls), sizes, ceiling=False)
        assert trace.references == 1600
        per_reference.append(calls.total() / trace.references)
    assert per_reference[1] < 1.2 * per_reference[0]


class Counting:
    """The trace; forgets what was counted while the tiers were filled."""

    block_tokens = 64
    skipped = 0
    first_bad = None

    def __init__(self, trace: Turnover, calls: Counter[str]) -> None:
        self.nodes: Nodes = trace.nodes
        self._trace, self._calls = trace, calls

    def requests(self) -> Iterator[Request]:
        began = 0.0
        for request in self._trace.requests():
            if self._trace.began != began:
                began = self._trace.began
                self._calls.clear()
            yield request


def test_copies_share_nothing_and_follow_each_other() -> None:
    requests, nodes = small(60)
    trace = Copies(requests, nodes.parent, nodes.pages, 3)
    found = list(trace.requests())
    assert len(found) == 180 and len(trace.nodes) == 3 * len(nodes)
    assert [request.time for request in found] == sorted(request.time for request in found)
    first, last = ({node for request in part for node in request.path} for part in (found[:60], found[120:]))
    assert not first & last and {request.session for request in found[:60]}.isdisjoint(
        request.session for request in found[120:]
    )
    parents = trace.nodes.parent
    assert all(
        parents[node] == above for request in found for above, node in zip(request.path, request.path[1:], strict=False)
    )


def test_memory_of_the_orders_is_that_of_the_tiers() -> None:
    """Blocks that never come back leave nothing behind."""

    class Endless(Turnover):
        def requests(self) -> Iterator[Request]:
            for number in range(600):
                yield Request(float(number), number, self.path())

    trace = Endless(1600)
    seen: list[leaves.LeafOrder] = []
    inner = leaves.LeafOrder.__init__

    def remember(self: leaves.LeafOrder, *arguments: object) -> None:
        seen.append(self)
        inner(self, *arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leaves.LeafOrder, "__init__", remember)
        patch.setattr(tiers, "REMEMBERED", 100)
        run(trace, Setup(64, 128, 256, admission="all"), ceiling=False)
    assert len(trace.nodes) == 600 * DEPTH
    assert all(len(order._nodes) <= 64 + 128 + 256 + 100 + DEPTH for order in seen)


def test_the_bench_tells_both_ratios(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(bench, "RESIDENT", (160, 3200))
    monkeypatch.setattr(bench, "COPIES", (1, 2))
    file = tmp_path / "b.json"
    assert bench.main(["--eviction", "lru", "--json", str(file)]) == 0
    assert list(json.loads(file.read_text())["lru"]) == ["1x", "2x", "160 nodes", "3,200 nodes"]
    assert [line.split(" per reference: ")[0].strip() for line in capsys.readouterr().out.splitlines()] == [
        "lru",
        "lru",
    ]
    assert bench.main([str(tmp_path / "nope")]) == 2
    assert "nope" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        bench.main(["--eviction", "fifo"])
