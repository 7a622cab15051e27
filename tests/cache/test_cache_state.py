"""The state of the real cache: every figure is there, right, and read without touching a device."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from types import SimpleNamespace

import pytest
from harness import PAGE
from test_waiting import bring_to_nvme

from radixtier.explain import Reason
from radixtier.monitor.series import SERIES
from radixtier.policy.admission import AdmitAll
from radixtier.policy.write_budget import Budgeted, WriteBudget
from radixtier.sglang.rolling import PART, PARTS_AT_ONCE, RollingCount


def state_of(server) -> dict:
    return json.loads(json.dumps(server.cache.figures.read(), allow_nan=False))


@pytest.fixture
def server(make_server, clock):
    return make_server(hbm=16, dram=16, nvme=64, clock=clock)


def test_a_state_has_what_the_contract_says(server) -> None:
    state = state_of(server)
    assert {
        "version", "sglang", "model", "started", "now", "requests", "io", "journal", "tick", "promotions", "health",
        "control", "nvme_drained", "tiers", "pages", "store", "wear", "counters", "pins", "estimates", "policies",
    } <= set(state)  # fmt: skip
    assert (state["version"], state["sglang"]) == ("0.1.0", "0.5.23")
    assert state["started"] <= state["now"]
    assert set(state["requests"]["computed_because"]) == {reason.value for reason in Reason}
    assert state["health"] == {"status": "ok", "reasons": []} and state["nvme_drained"] is None
    assert state["control"] is None


def test_every_series_is_read_from_a_real_state(make_server, clock) -> None:
    budgeted = lambda: Budgeted(AdmitAll(), WriteBudget(1 << 40))  # noqa: E731
    server = make_server(hbm=16, dram=16, nvme=64, clock=clock, admission=budgeted, landing=8)
    state = state_of(server)
    assert state["landing"] == {"capacity": 32, "used": 0, "given_up": False, "read_bytes_per_s": None}
    wear = state["wear"]
    assert 0 < wear["budget_bytes_left"] <= wear["budget_bytes_most"] < wear["budget_bytes_per_day"] == 1 << 40
    for series in SERIES:
        if series.observe is None and series.name != "radixtier_written_bytes_per_day":  # not in the first minutes
            assert list(series.read(state)), series.name


def test_without_nvme_figures_that_do_not_apply_are_null(make_server, clock) -> None:
    server = make_server(hbm=16, dram=16, nvme=0, clock=clock)
    server.serve(server.prompt(4, 1))
    server.settle()
    state = state_of(server)
    assert [state[name] for name in ("store", "io", "journal", "wear", "landing")] == [None] * 5
    assert state["rank"] == {"rank": 0, "size": 1}
    assert state["tiers"]["nvme"] == {"capacity": 0, "used": 0, "writable": False}
    assert state["requests"]["finished"] == 1 and state["health"]["status"] == "ok"


def test_requests_add_up(server) -> None:
    first, second = server.prompt(4, 1), server.prompt(6, 2)
    for prompt in (first, second, first):
        server.serve(prompt)
        server.settle()
    bring_to_nvme(server, first)
    server.serve(first)
    server.settle()
    requests = state_of(server)["requests"]
    assert requests["finished"] == 5
    assert requests["tokens"] == {"hbm": 8 * PAGE, "dram": 0, "nvme": 4 * PAGE, "computed": 10 * PAGE}
    assert requests["computed_because"]["never seen"] == 10 * PAGE
    assert sum(requests["computed_because"].values()) == requests["tokens"]["computed"]


def test_promises_that_are_kept_and_those_that_come_late(server, clock) -> None:
    prompt = server.prompt(6, 1)
    bring_to_nvme(server, prompt)
    server.serve(prompt)
    server.settle()
    state = state_of(server)
    assert (state["promotions"]["in_time"], state["promotions"]["late"]) == (6, 0)
    arrival = state["promotions"]["by"]["arrival"]
    assert arrival == {"promoted": 6, "used": None, "wasted": None}
    server.evict_hbm()
    server.demote_all()
    held = server.engine.hold("read")
    request = server.request(prompt)
    server.arrive(request)
    assert not server.admit(request)
    assert state_of(server)["requests"]["waiting_for_nvme"] == 1
    clock.advance(1000.0)
    assert server.admit(request)
    server.start_loads()
    server.forward(request)
    held.release()
    server.settle()
    state = state_of(server)
    assert (state["promotions"]["in_time"], state["promotions"]["late"]) == (6, 6)
    assert state["requests"]["waiting_for_nvme"] == 0 and state["requests"]["waited_s"] > 0


def test_a_request_that_goes_away_while_it_waits_is_not_late(server) -> None:
    prompt = server.prompt(6, 1)
    bring_to_nvme(server, prompt)
    held = server.engine.hold("read")
    request = server.request(prompt)
    server.arrive(request)
    assert not server.admit(request)
    server.abort(request)
    held.release()
    server.settle()
    promotions = state_of(server)["promotions"]
    assert (promotions["in_time"], promotions["late"]) == (0, 0)


def test_transfers_and_wear(server) -> None:
    prompt = server.prompt(6, 1)
    bring_to_nvme(server, prompt)
    server.serve(prompt)
    server.settle()
    state = state_of(server)
    slot = server.store.slot_bytes
    for kind in ("read", "write"):
        assert (state["io"][kind]["pages"], state["io"][kind]["bytes"], state["io"][kind]["errors"]) == (6, 6 * slot, 0)
        assert state["io"][kind]["busy_s"] > 0
    assert (state["io"]["queue"], state["io"]["running"], state["io"]["corrupt"]) == (0, 0, 0)
    assert state["wear"]["bytes_written"] == 6 * slot and state["wear"]["rated_life_used"] > 0
    assert state["wear"]["bytes_per_day"] is None and state["wear"]["budget_bytes_left"] is None


def test_ticks_are_counted(server) -> None:
    before = state_of(server)["tick"]["count"]
    for _ in range(5):
        server.events()
    tick = state_of(server)["tick"]
    assert tick["count"] == before + 5 and 0 <= tick["longest_s"] <= tick["seconds"] + 1e-9


def test_a_drive_in_trouble_is_told_with_what_to_do(server) -> None:
    server.engine.error("write", errno.EIO)
    server.serve(server.prompt(4, 1))
    end = time.monotonic() + 20
    while server.store.writable:
        assert time.monotonic() < end, "nothing was written"
        server.events()
    state = state_of(server)
    assert state["health"]["status"] == "degraded"
    (reason,) = [each for each in state["health"]["reasons"] if "new pages" in each["what"]]
    assert str(server.directory) in reason["what"] and "kernel's log" in reason["fix"] and reason["since"] > 1e9
    (drive,) = state["store"]["drives"]
    assert drive["kind"] == "io" and drive["reason"] == reason["why"]


def test_a_sealed_store_and_a_drain_are_told(server) -> None:
    server.cache.seal_store("weights were updated")
    (reason,) = state_of(server)["health"]["reasons"]
    assert reason["why"] == "weights were updated"
    server.cache.draining = SimpleNamespace(status="drained")
    state = state_of(server)
    assert state["nvme_drained"] == state["health"]["status"] == "drained" and len(state["health"]["reasons"]) == 2


def test_a_flush_takes_nothing_back(server) -> None:
    prompt = server.prompt(4, 1)
    for _ in range(2):
        server.serve(prompt)
        server.settle()
    before = state_of(server)
    server.cache.reset()
    after = state_of(server)
    assert after["requests"] == before["requests"] and after["counters"] == before["counters"]
    assert after["nodes"] == 0 and after["tiers"]["dram"]["in_hbm_too"] == 0


def test_reading_asks_no_device(server, monkeypatch) -> None:
    def refuse(*args, **kwargs):
        raise AssertionError("a device was asked")

    for module, name in ((os, "stat"), (os, "statvfs"), (shutil, "disk_usage"), (os, "listdir")):
        monkeypatch.setattr(module, name, refuse)
    state = server.cache.figures.read()
    monkeypatch.undo()
    assert state["wear"]["rating"]


def test_events_begin_with_the_start(make_server, clock, caplog) -> None:
    with caplog.at_level("INFO", "radixtier"):
        server = make_server(hbm=16, dram=16, nvme=64, clock=clock)
    texts = [event["text"] for event in server.cache.monitor.events.to_json(100)["events"]]
    assert any("pages of 4 tokens" in text for text in texts)


def test_the_monitor_follows_the_steps_and_ends_with_the_server(server) -> None:
    monitor = server.cache.monitor
    monitor._due = 0.0
    server.serve(server.prompt(4, 1))
    server.settle()
    server.cache.release_host_resources()
    assert not monitor._thread.is_alive()
    assert monitor.timeline._tracks[0]._before is not None


@pytest.mark.parametrize("parts", [1, PARTS_AT_ONCE, 3 * PARTS_AT_ONCE])
def test_a_rolling_count_is_exact_at_first_and_soon_after_a_change(parts: int) -> None:
    rows, asked = parts * PART - 7, []

    def count(part: slice) -> int:
        asked.append(part)
        return (part.stop - part.start) * factor

    factor, rolling = 1, RollingCount(parts * PART - 7, count)
    assert rolling() == rows and len(asked) == parts
    factor = 2
    for _ in range(max(1, parts // PARTS_AT_ONCE)):
        asked.clear()
        last = rolling()
        assert len(asked) <= PARTS_AT_ONCE
    assert last == 2 * rows


def test_metrics_that_cannot_be_had_leave_the_server_running(make_server, clock, monkeypatch, caplog) -> None:
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    observability = SimpleNamespace(enable_metrics=True)
    monkeypatch.setattr("radixtier.sglang.monitoring.get_observability", lambda: observability)
    server = make_server(hbm=16, dram=16, nvme=64, clock=clock)
    (record,) = [record for record in caplog.records if "/metrics" in record.message]
    assert record.levelname == "WARNING" and record.message.startswith("radixtier: none of our series")
    assert server.serve(server.prompt(4, 1)).hit == 0
    server.settle()


def test_a_look_learns_nothing_that_decides(server) -> None:
    """Each rank looks in its own time, and its coefficients are fitted when somebody asks for them."""
    bring_to_nvme(server, server.prompt(4, seed=1))
    server.serve(server.prompt(4, seed=1))
    fits = [server.cache.copies._fit, server.cache.prefill.cost._fit, server.cache.mover.rate._reads]
    for fit in fits:
        fit.add(1, [1.0] * len(fit.theta), 1.0)
    before = [fit._fitted for fit in fits]
    assert all(fit.seen > fitted for fit, fitted in zip(fits, before, strict=True))
    state_of(server)
    assert [fit._fitted for fit in fits] == before
