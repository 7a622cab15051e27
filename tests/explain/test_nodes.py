"""The log of decisions about nodes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from radixtier.explain.nodes import PER_NODE, Event, NodeEvents


def test_the_last_decisions_of_a_node_in_order() -> None:
    events = NodeEvents()
    for i in range(PER_NODE + 3):
        events.note(7, float(i), ("demoted", "promoted")[i % 2], "lru")
    kept = [Event(float(i), ("demoted", "promoted")[i % 2], "lru") for i in range(3, PER_NODE + 3)]
    assert events.of(7) == kept
    events.note(7, 99.0, kept[-1].what, "lru")
    assert events.of(7) == [*kept[:-1], kept[-1]._replace(when=99.0)], "what is repeated counts as one"
    assert events.of(8) == []
    events.forget(7)
    events.forget(7)
    assert events.of(7) == [] and len(events) == 0


@given(st.lists(st.tuples(st.sampled_from(["note", "forget"]), st.integers(0, 9)), max_size=80))
def test_the_node_decided_about_longest_ago_goes_first(steps: list[tuple[str, int]]) -> None:
    events = NodeEvents(most=4)
    kept: list[int] = []
    for i, (step, node) in enumerate(steps):
        kept = [each for each in kept if each != node]
        if step == "note":
            events.note(node, float(i), "promoted")
            kept = [*kept, node][-4:]
        else:
            events.forget(node)
        assert {each for each in range(10) if events.of(each)} == set(kept) and len(events) == len(kept)
    events.clear()
    assert len(events) == 0
