"""Health: a status, and reasons that say what, why, since when and what to do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from monitor_rig import drive, make_state, without_nvme

from radixtier.monitor.health import RECENT_S, Health


def store(**changed: Any) -> dict[str, Any]:
    return {"store": make_state()["store"] | changed}


def io(corrupt: int) -> dict[str, Any]:
    return {"io": make_state()["io"] | {"corrupt": corrupt}}


def test_a_server_that_is_well_has_no_reasons() -> None:
    assert Health().look(make_state(), 1.0) == {"status": "ok", "reasons": []}
    assert Health().look(without_nvme(), 1.0) == {"status": "ok", "reasons": []}


@pytest.mark.parametrize(
    ("changed", "what", "why"),
    [
        (store(drives=[drive(), drive("/b", reason="it hangs", since=5.0, fix="look")]), "/b takes no", "it hangs"),
        (store(quarantined=3), "slots", "3 slots"),
        (store(sealed="weights were updated"), "kept for a restart", "weights were updated"),
        ({"wear": {"budget_bytes_left": 100.0, "budget_bytes_per_day": 10**9}}, "budget", "1000000000 bytes a day"),
        ({"journal": {"waiting": 0, "dropped": 7, "lag_s": 0}}, "restart", "7 pages"),
        (io(2), "damaged", "2 pages"),
        ({"nvme_drained": "drained"}, "NVMe", "drain"),
    ],
)
def test_reasons(changed: dict[str, Any], what: str, why: str) -> None:
    health = Health().look(make_state(**changed), 1000.0)
    (reason,) = health["reasons"]
    assert what in reason["what"] and why in reason["why"] and reason["fix"]
    assert health["status"] == (changed.get("nvme_drained") or "degraded")
    assert reason["since"] == (5.0 if why == "it hangs" else 1000.0)


def test_since_is_when_a_reason_was_first_seen_and_ends_with_it() -> None:
    health = Health()
    for now, slots, since in ((10.0, 1, 10.0), (20.0, 5, 10.0), (30.0, 0, None), (40.0, 2, 40.0)):
        reasons = health.look(make_state(**store(quarantined=slots)), now)["reasons"]
        assert [reason["since"] for reason in reasons] == ([] if since is None else [since])


def test_an_event_counts_for_an_hour_after_the_last_one() -> None:
    health = Health()

    def since(now: float, corrupt: int) -> list[float]:
        return [reason["since"] for reason in health.look(make_state(**io(corrupt)), now)["reasons"]]

    assert since(0.0, 0) == []
    assert since(100.0, 1) == [100.0]
    assert since(100.0 + RECENT_S - 1, 1) == [100.0]
    assert since(100.0 + RECENT_S, 1) == []
    assert since(9000.0, 2) == [9000.0]
    assert since(9100.0, 3) == [9000.0]
    assert since(9200.0, 0) == []


@settings(max_examples=100, deadline=None)
@given(states=st.lists(st.integers(0, 5), max_size=20))
def test_the_status_is_ok_exactly_without_reasons(states: list[int]) -> None:
    health = Health()
    for now, corrupt in enumerate(states):
        found = health.look(make_state(**io(corrupt)), float(now))
        assert (found["status"] == "ok") == (not found["reasons"])
