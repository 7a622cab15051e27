"""Draining the real cache: everything on record comes back at the next start, nothing stays open, serving goes on."""

from __future__ import annotations

import errno
import socket
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sglang")

from drain_rig import SIZES, WAIT_S, drain, open_below, until_status
from harness import Server, ask

from radixtier.control import Address, Refusal, Target
from radixtier.control.client import ControlClient, ControlError
from radixtier.explain import Reason
from radixtier.policy.hints import Kind, read_hint
from radixtier.policy.promotion import Why
from radixtier.tree.residency import PARKED, State

ERRORS = ("read_errors", "write_errors", "verify_errors", "corrupt")


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    servers: list[Any] = []

    def make(**options: Any) -> Any:
        directory = options.pop("directory", tmp_path / f"nvme{len(servers)}")
        directory.mkdir(exist_ok=True)
        servers.append(Server(directory, **{**SIZES, **options}))
        return servers[-1]

    yield make
    for server in servers:
        server.close()
        server.cache.monitor.close()


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose name is short enough for a socket."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def restarted(make_server: Callable[..., Any], server: Any, **options: Any) -> Any:
    """Another server on the directory of one that has drained and goes on."""
    again = make_server(directory=server.directory, **options)
    for _ in range(100_000):
        if again.cache._restoration is None:
            return again
        again.events()
    raise AssertionError("the restoration never ended")


def errors(server: Any) -> list[float]:
    stats = server.store.stats()
    return [stats[name] for name in ERRORS]


def hits(server: Any, prompts: list[list[int]]) -> list[int]:
    found = []
    for prompt in prompts:
        found.append(server.serve(prompt).hit)
        server.settle()
    return found


def stored(server: Any, n: int, pages: int = 4) -> list[list[int]]:
    prompts = [server.prompt(pages, seed) for seed in range(n)]
    for prompt in prompts:
        server.serve(prompt)
        server.settle()
    return prompts


def on_record(server: Any) -> None:
    """Wait until the journal knows of everything that was stored."""
    end = time.monotonic() + WAIT_S
    while server.store.stats()["journal_waiting"]:
        assert time.monotonic() < end
        time.sleep(0.005)


def test_everything_is_on_record_and_nothing_is_open(make_server) -> None:
    server = make_server()
    prompts = stored(server, 8)
    late = server.prompt(4, 100)
    server.serve(late)
    server.settle_transfers()
    assert open_below(server.directory)
    answer = drain(server)
    assert answer == {
        "status": "drained",
        "unwritten_pages": 0,
        "directories": [str(server.directory)],
        "reason": None,
        "control": None,
    }
    assert open_below(server.directory) == []
    again = restarted(make_server, server)
    assert again.table.count[State.COLD] == 36
    assert hits(again, [*prompts, late]) == [16] * 9
    assert errors(server) == [0] * 4


def test_serving_goes_on_with_hbm_and_dram(make_server) -> None:
    server = make_server()
    prompts = stored(server, 8)
    drain(server)
    before = dict(server.store.stats())
    server.evict_hbm()
    assert {request.storage for request in map(server.serve, prompts)} == {0}
    assert any(server.cache.explain.history.find(f"r{n}").dram == 16 for n in range(9, 17)), "DRAM goes on"
    for seed in range(200, 240):
        prompt = server.prompt(4, seed)
        assert server.serve(prompt).hit == 0
        server.settle()
        assert server.serve(prompt).device == 16
        server.table.check()
    after = server.store.stats()
    assert {name: after[name] for name in before} == before, "the drives were left alone"
    assert server.table.marked(server.table.state == State.DIRTY, PARKED).all()
    again = restarted(make_server, server)
    assert hits(again, prompts) == [16] * 8


def test_pages_on_nvme_alone_are_computed_and_the_record_says_why(make_server) -> None:
    server = make_server()
    (prompt,) = stored(server, 1, pages=6)
    server.evict_hbm()
    server.demote_all()
    drain(server)
    request = server.request(prompt)
    server.arrive(request)
    assert server.cache.waiting.get(request.handle).plan.why is Why.DRAINED
    server.finish(request)
    assert request.hit == 0
    (cause,) = server.record(request).causes
    assert (cause.reason, cause.tokens, cause.detail) == (Reason.DECLINED, 24, "NVMe is drained")
    server.settle()
    assert server.serve(prompt).device == 24, "computed once, it is in HBM"
    assert errors(server) == [0] * 4


@pytest.mark.parametrize("law", ["timeout", "wait_complete", "best_effort"])
def test_a_request_that_waits_when_it_begins_goes_on_at_once(make_server, law: str) -> None:
    server = make_server(threads=1)
    server.cache.waiting._law = law
    first, second = stored(server, 2, pages=8)
    server.evict_hbm()
    server.demote_all()
    held = server.engine.hold("read")
    waiting = [server.request(prompt) for prompt in (first, second)]
    for request in waiting:
        server.arrive(request)
    server.events()
    server.cache.draining.start(30.0)
    done = server.serve_all(50)
    assert [request.hit for request in done] == [0, 0]
    assert server.cache.draining.status == "draining", "a read is on its way"
    held.release()
    until_status(server, "drained")
    assert errors(server) == [0] * 4
    server.settle_transfers()
    server.table.check()


def test_what_hbm_loses_is_still_copied_to_dram(make_server) -> None:
    server = make_server(hbm=16, dram=16, chunk=4)
    prompts = stored(server, 6)
    drain(server)
    staged = server.cache.mover.stats.staged
    for seed in range(300, 320):
        server.serve(server.prompt(4, seed))
        server.settle_transfers()
    assert server.cache.mover.stats.staged > staged
    server.table.check()
    assert hits(restarted(make_server, server), prompts) == [16] * 6


def test_hints_go_on(make_server) -> None:
    server = make_server()
    prompts = stored(server, 3)
    drain(server)
    path = server.cache.steering.path_of(Target(array("q", prompts[0])))
    for kind in Kind:
        outcome = server.cache.steering.carry_out(read_hint(kind, "", {}), path)
        assert outcome.status.value in ("accepted", "deferred", "clipped", "rejected")
        server.events()
    server.table.check()


def test_a_flush_and_new_weights_after_it(make_server, caplog: pytest.LogCaptureFixture) -> None:
    server = make_server()
    prompts = stored(server, 4)
    drain(server)
    server.cache.seal_store("weights were updated")
    server.cache.reset()
    server.events()
    assert "radixtier store clear" in caplog.text and "no page on NVMe will be found" not in caplog.text
    assert server.serve(prompts[0]).hit == 0
    server.settle_transfers()
    server.cache.release_host_resources()
    assert hits(restarted(make_server, server), prompts) == [16] * 4


def test_new_weights_while_it_writes_leave_nothing_behind(make_server) -> None:
    server = make_server()
    stored(server, 4)
    held = server.engine.hold("write")
    late = server.prompt(4, 100)
    server.serve(late)
    server.settle_transfers()
    server.cache.draining.start(30.0)
    server.events()
    server.cache.seal_store("weights were updated")
    held.release()
    until_status(server, "drained")
    assert restarted(make_server, server).table.count[State.COLD] == 0


@pytest.mark.parametrize("steps", [0, 1, 5, 1000])
def test_a_graceful_stop_at_any_time(make_server, steps: int) -> None:
    server = make_server()
    prompts = stored(server, 4)
    late = server.prompt(4, 100)
    server.serve(late)
    server.settle_transfers()
    server.cache.draining.start(30.0)
    for _ in range(steps):
        server.events()
    server.cache.release_host_resources()
    assert open_below(server.directory) == []
    assert hits(restarted(make_server, server), [*prompts, late]) == [16] * 5


def test_during_a_restoration_nothing_is_lost(make_server, monkeypatch: pytest.MonkeyPatch) -> None:
    first = make_server()
    prompts = stored(first, 12)
    first.cache.release_host_resources()
    monkeypatch.setattr("radixtier.sglang.restore.FIRST_S", 0.0)
    server = make_server(directory=first.directory)
    assert server.cache._restoration is not None
    drain(server)
    assert open_below(first.directory) == [] and server.cache._restoration is None
    monkeypatch.setattr("radixtier.sglang.restore.FIRST_S", 2.0)
    assert hits(restarted(make_server, server), prompts) == [16] * 12


def test_a_drive_that_fails_leaves_what_was_on_record(make_server) -> None:
    server = make_server()
    prompts = stored(server, 4)
    server.engine.error("write", errno.EIO)
    late = server.prompt(4, 100)
    server.serve(late)
    server.settle_transfers()
    answer = drain(server, 0.2)
    assert (answer["status"], answer["unwritten_pages"]) == ("drained", 4)
    assert open_below(server.directory) == []
    assert server.serve(late).device == 16, "HBM has it"
    server.engine.clear()
    assert hits(restarted(make_server, server), [*prompts, late]) == [16] * 4 + [0]


def test_a_drive_that_hangs_keeps_it_draining(make_server) -> None:
    server = make_server()
    prompts = stored(server, 4)
    held = server.engine.hold("write")
    server.serve(server.prompt(4, 100))
    server.settle_transfers()
    server.cache.draining.start(0.0)
    for _ in range(50):
        server.events()
    answer = server.cache.draining.start(0.0)
    assert (answer["status"], answer["reason"]) == ("draining", "transfers have not ended")
    assert server.serve(prompts[0]).hit == 16, "serving goes on"
    held.release()
    until_status(server, "drained")
    assert server.cache.draining.start(0.0)["unwritten_pages"] == 0
    assert hits(restarted(make_server, server), prompts) == [16] * 4


def test_a_transfer_that_is_stuck_is_told_once(make_server, caplog: pytest.LogCaptureFixture) -> None:
    server = make_server()
    held = server.engine.hold("write")
    server.serve(server.prompt(4, 100))
    server.settle_transfers()
    assert held.wait()
    assert [server.store.close(0.05) for _ in range(3)] == [False] * 3
    assert caplog.text.count("is stuck: it stays open") == 1
    held.release()
    assert server.store.close(WAIT_S)


def test_what_the_record_does_not_take_counts_as_unwritten(make_server) -> None:
    server = make_server()
    prompts = stored(server, 2)
    on_record(server)
    server.engine.error("sync", errno.EIO)
    late = server.prompt(4, 100)
    server.serve(late)
    server.settle()
    answer = drain(server)
    assert answer["unwritten_pages"] == 4
    server.engine.clear()
    assert hits(restarted(make_server, server), [*prompts, late]) == [16, 16, 0]


def test_a_server_without_nvme_refuses(make_server) -> None:
    server = make_server(nvme=0)
    with pytest.raises(Refusal, match="no NVMe tier") as refused:
        server.cache.draining.start(30.0)
    assert refused.value.status == 409 and server.cache.draining.status is None


# Over HTTP


def test_over_http(make_server, short: Path) -> None:
    server = make_server(control=Address(path=str(short / "c.sock")))
    prompts = stored(server, 4)
    assert ask(server, "state")["nvme_drained"] is None
    first = ask(server, "drain", 10)
    assert first["status"] == "draining" and first["directories"] == [str(server.directory)]
    until_status(server, "drained")
    assert ask(server, "drain")["status"] == "drained"
    state = ask(server, "state")
    assert (state["nvme_drained"], state["health"]["status"]) == ("drained", "drained")
    assert state["tiers"]["nvme"]["writable"] is False
    assert {each["node"] for each in ask(server, "nodes")["nodes"]} == set(server.cache.mover.tree.runs)
    assert hits(restarted(make_server, server), prompts) == [16] * 4


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime directory on another file system than the store's."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is one file system only")
    with tempfile.TemporaryDirectory(dir=memory) as name:
        monkeypatch.setenv("XDG_RUNTIME_DIR", name)
        yield Path(name)


@pytest.mark.parametrize("learnt_from", ["state", "drain"])
def test_the_endpoint_leaves_the_drive_too_and_clients_follow(
    make_server, short: Path, elsewhere: Path, learnt_from: str
) -> None:
    directory = short / "store"
    before = Address(path=str(directory / "radixtier.sock"))
    server = make_server(directory=directory, control=before)
    stored(server, 2)
    client = ControlClient(before)
    if learnt_from == "state":
        later = ask(server, "state", client=client)["control"]
        server.cache.draining.start(30.0)
    else:
        answer = ask(server, "drain", client=client)
        later = answer["control"]
        assert answer["status"] == "draining"
    assert later.startswith(f"unix:{elsewhere}/radixtier/")
    until_status(server, "drained")
    assert not (directory / "radixtier.sock").exists()
    assert ask(server, "tree", client=client)["total_nodes"] == 2
    assert str(client.endpoint.address) == later
    answer = ask(server, "drain", client=client)
    assert (answer["status"], answer["reason"], answer["control"]) == ("drained", None, later)
    assert str(server.cache.control.address) == later == ask(server, "state", client=client)["control"]
    with pytest.raises(ControlError, match="no answer"):
        ControlClient(before).state()
    server.cache.release_host_resources()
    assert list(elsewhere.rglob("*.sock")) == []
    again = make_server(directory=directory, control=before)
    assert ask(again, "state", client=client)["control"] == later, "a server that is started again is found as well"
    assert client.endpoint.address == before


def test_an_endpoint_that_cannot_move_stays_and_says_so(
    make_server, short: Path, elsewhere: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (elsewhere / "radixtier").write_text("in the way")
    directory = short / "store"
    server = make_server(directory=directory, control=Address(path=str(directory / "radixtier.sock")))
    answer = drain(server)
    assert answer["control"] == f"unix:{directory}/radixtier.sock" and "cannot be unmounted" in caplog.text
    assert answer["status"] == "drained"
    assert answer["reason"] == f"the socket of the control endpoint, {directory}/radixtier.sock"
    state = ask(server, "state")
    assert (state["nvme_drained"], state["control"]) == ("drained", answer["control"])


def test_a_second_socket_that_cannot_be_opened_stops_no_drain(
    make_server, short: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = short / "store"
    server = make_server(directory=directory, control=Address(path=str(directory / "radixtier.sock")))

    def no_thread(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(server.cache.control, "_open", no_thread)
    assert "radixtier.sock" in drain(server)["reason"]


def test_a_recording_on_the_drive_is_told(make_server, tmp_path: Path) -> None:
    from radixtier.sglang.recording import Recording

    server = make_server()
    server.cache.recording = Recording(server.cache, tmp_path / "load.jsonl")
    assert drain(server)["reason"] == f"the recording of the load, {tmp_path}/load.jsonl"
    server.cache.recording.close()


def test_a_server_that_stops_while_its_endpoint_moves(make_server, short: Path, elsewhere: Path) -> None:
    directory = short / "store"
    server = make_server(directory=directory, control=Address(path=str(directory / "radixtier.sock")))
    control = server.cache.control
    control.prepare_to_move()
    control.prepare_to_move()
    movers = [threading.Thread(target=control.move) for _ in range(4)]
    for mover in movers:
        mover.start()
    control.close()
    for mover in movers:
        mover.join(WAIT_S)
    assert control.address is None and control.address_later is None
    assert not (directory / "radixtier.sock").exists() and list(elsewhere.rglob("*.sock")) == []


def test_what_cannot_hold_on_nvme_is_rejected(make_server) -> None:
    server = make_server()
    (prompt,) = stored(server, 1)
    drain(server)
    path = server.cache.steering.path_of(Target(array("q", prompt)))
    for kind, fields, status in (
        (Kind.RETAIN, {}, "rejected"),
        (Kind.PIN, {"tier": "nvme"}, "rejected"),
        (Kind.PIN, {"tier": "dram"}, "accepted"),
        (Kind.SHARE, {}, "accepted"),
    ):
        outcome = server.cache.steering.carry_out(read_hint(kind, "", fields), path).to_json()
        assert outcome["status"] == status
        assert ("NVMe is drained" in outcome["reason"]) == (status == "rejected")


def test_a_connection_that_is_open_does_not_keep_the_socket(make_server, short: Path, elsewhere: Path) -> None:
    directory = short / "store"
    path = str(directory / "radixtier.sock")
    server = make_server(directory=directory, control=Address(path=path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as idle:
        idle.connect(path)
        idle.settimeout(20.0)
        time.sleep(0.05)
        drain(server)
        assert idle.recv(1) == b""
