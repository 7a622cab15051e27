"""The control endpoint of the real cache over a Unix socket, while the scheduler's steps go on."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import pytest
from harness import ask

from radixtier.control import Address
from radixtier.control.client import ControlClient, ControlError
from radixtier.policy.hints import Kind
from radixtier.policy.pins import Tier


@pytest.fixture
def asked(make_server, clock):
    """A server with an endpoint, and a function that asks it something while it goes on working."""
    with tempfile.TemporaryDirectory() as short:  # paths of sockets have at most 107 bytes
        address = Address(path=str(Path(short) / "control"))
        server = make_server(hbm=8, dram=16, nvme=64, clock=clock, control=address, control_key="key")
        client = ControlClient(server.cache.control.address, "key")
        yield server, partial(ask, server, client=client)


def test_state_tells_the_tiers(asked) -> None:
    server, ask = asked
    prompt = server.prompt(4, 1)
    server.serve(prompt)
    server.settle()
    state = ask("state")
    assert state["tiers"]["hbm"] == {"capacity": 32, "used": 16}
    assert state["tiers"]["dram"] == {"capacity": 64, "used": 16, "in_hbm_too": 16}
    assert state["tiers"]["nvme"] == {"capacity": 64 * 4, "used": 16, "writable": True}
    assert state["pages"]["clean"] == 4 and state["nodes"] == 1
    assert state["policies"] == {"eviction": "lru", "admission": "all"}
    assert state["counters"]["written"] == 4 and state["estimates"]["nvme_read_bytes_per_s"] > 0


def test_hints_by_tokens_session_and_text(asked) -> None:
    server, ask = asked
    prompt = server.prompt(4, 1)
    server.serve(prompt, session="chat")
    server.settle()
    server.evict_hbm()
    pinned = ask("give_hint", Kind.PIN, {"tokens": prompt, "ttl_s": 60})
    assert (pinned["status"], pinned["tokens_granted"]) == ("accepted", 16)
    assert server.cache.steering.pins.held(Tier.DRAM, server.clock.now) == 4
    assert ask("state")["pins"]["dram"]["held"] == 4
    assert ask("give_hint", Kind.DEMOTE, {"session": "chat"})["status"] == "accepted"
    assert server.table.is_cold(server.cache.steering.path_of(_target(prompt))).all()
    with pytest.raises(ControlError, match="tokenizer") as refused:
        ask("give_hint", Kind.PREFETCH, {"text": "words"})
    assert refused.value.status == 400
    server.cache.tokenizer = _Words()
    brought = ask("give_hint", Kind.PREFETCH, {"text": " ".join(map(str, prompt))})
    assert brought["status"] == "deferred"
    server.settle()
    assert server.serve(prompt).host == 16


def test_explanations(asked) -> None:
    server, ask = asked
    prompt = server.prompt(4, 1)
    first = server.serve(prompt, session="chat")
    server.settle()
    (record,) = ask("explain", first.handle.rid)["requests"]
    assert record["request"] == first.handle.rid and record["recomputed"] == 16
    assert record["causes"] == [{"reason": "never seen", "tokens": 16, "detail": "", "when": None, "rule": ""}]
    server.serve(prompt)
    latest = ask("explain", limit=5)["requests"]
    assert [each["served"]["hbm"] for each in latest] == [16, 0]
    (node,) = ask("explain_node", {"session": "chat"})["nodes"]
    assert node["tokens"] == 16 and node["places"] == {"HBM": 16, "DRAM and NVMe": 16}
    assert ask("explain_node", {"node": node["node"]})["nodes"] == [node]


def test_what_is_not_known_is_refused(asked) -> None:
    server, ask = asked
    with pytest.raises(ControlError, match="r77") as refused:
        ask("explain", "r77")
    assert refused.value.status == 404
    with pytest.raises(ControlError, match="nobody") as refused:
        ask("give_hint", Kind.PIN, {"session": "nobody"})
    assert refused.value.status == 400
    outcome = ask("give_hint", Kind.PIN, {"tokens": server.prompt(4, 3)})
    assert outcome["status"] == "rejected"
    address = server.cache.control.address
    with pytest.raises(ControlError, match="key") as refused:
        ControlClient(address).state()
    assert refused.value.status == 401


def test_questions_that_an_idle_scheduler_answers_take_nobodys_time(asked) -> None:
    server, ask = asked
    server.serve(server.prompt(4, 1))
    server.settle()
    control = server.cache.control
    real = control.step

    def slow(seconds: float, idle: bool) -> None:
        real(seconds, idle)
        server.clock.advance(3.0)

    control.step = slow
    before = ask("state")["tick"]["seconds"]
    assert ask("state")["tick"]["seconds"] - before < 3.0
    server.arrive(server.request(server.prompt(4, 2)))
    assert ask("state") and ask("state")["tick"]["seconds"] - before >= 3.0


def test_stop_closes_the_endpoint(asked) -> None:
    server, _ = asked
    address = server.cache.control.address
    server.cache.release_host_resources()
    assert server.cache.control.address is None and not Path(address.path).exists()
    server.cache.control.close()


def test_address_that_cannot_be_had_leaves_the_server_running(make_server, clock, tmp_path) -> None:
    address = Address(path=str(tmp_path / "missing" / "control"))
    server = make_server(hbm=8, dram=16, nvme=64, clock=clock, control=address)
    assert server.cache.control.address is None
    assert server.serve(server.prompt(3, 1)).hit == 0
    server.settle()


class _Words:
    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]


def _target(prompt):
    from array import array

    from radixtier.control import Target

    return Target(array("q", prompt))
