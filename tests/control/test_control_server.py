"""The HTTP server of the control endpoint, over real sockets: what it answers, and what it cannot be made to do."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
import threading
from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from control_rig import (
    LOOPBACK,
    PATIENCE_S,
    Script,
    client,
    dial,
    exchange,
    parse,
    post,
    read_all,
    scheduler,
    serving,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from radixtier.control import (
    Address,
    Command,
    ControlServer,
    Desk,
    ExplainNode,
    ExplainRequests,
    GiveHint,
    ReadState,
    Refusal,
    Target,
    connection,
    metered,
)
from radixtier.control import server as server_module
from radixtier.control.client import ControlError
from radixtier.policy.hints import Hint, Kind
from radixtier.policy.pins import Tier
from radixtier.units import BadValue

STATE = b"GET /radix_tier/state HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture(params=["tcp", "tcp6", "unix"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Address:
    if request.param == "tcp6":
        try:
            with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as trial:
                trial.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6 here")
    return {
        "tcp": LOOPBACK,
        "tcp6": Address(host="::1"),
        "unix": Address(path=str(tmp_path / "control.sock")),
    }[request.param]


# What it does


def test_every_route_becomes_its_command(address: Address) -> None:
    script = Script()
    with serving(address, script) as server:
        to = client(server)
        for kind in Kind:
            assert to.give_hint(kind, {"session": "s", "action_id": "a"})["kind"] == kind.value
        fields: dict[str, Any] = {"tokens": [1, 2, 3], "extra_key": "x", "cache_salt": "y", "ttl_s": 5, "tier": "nvme"}
        to.give_hint(Kind.PIN, fields)
        assert to.explain("r 1&") == {"asked": "ExplainRequests"}
        to.explain(limit=7)
        to.explain()
        to.explain_node({"text": "hello"})
        to.call("GET", "/radix_tier/explain/node?tokens=1,2,3&cache_salt=y")
        to.call("GET", "/radix_tier/explain/node/?node=4")
        assert to.state() == {"asked": "ReadState"}
    n = len(Kind)
    assert [command.hint.kind for command in script.seen[:n] if isinstance(command, GiveHint)] == list(Kind)
    assert all(isinstance(each, GiveHint) and each.target == Target(session="s") for each in script.seen[:n])
    tokens = array("q", [1, 2, 3])
    assert script.seen[n:] == [
        GiveHint(Hint(Kind.PIN, "", 5.0, Tier.NVME), Target(tokens=tokens, extra_key="x", cache_salt="y")),
        ExplainRequests("r 1&"),
        ExplainRequests(None, 7),
        ExplainRequests(None, 20),
        ExplainNode(Target(text="hello")),
        ExplainNode(Target(tokens=tokens, cache_salt="y")),
        ExplainNode(Target(node=4)),
        ReadState(),
    ]


def test_a_connection_is_kept_for_the_next_request() -> None:
    with serving() as server, dial(server) as sock:
        keep = STATE.replace(b"Connection: close\r\n", b"")
        sock.sendall(keep + keep + STATE)
        assert read_all(sock).count(b"200 OK") == 3


def test_the_handlers_refusal_reaches_the_client() -> None:
    def handle(command: Command) -> dict[str, Any]:
        if isinstance(command, ReadState):
            raise ZeroDivisionError("secret")
        raise Refusal(404, "no request 'r' in the last 4096")

    with serving(handle=handle) as server:
        with pytest.raises(ControlError, match="no request 'r'") as error:
            client(server).explain("r")
        assert error.value.status == 404
        status, answer = exchange(server, STATE)
        assert status == 500 and "secret" not in str(answer) and "Traceback" not in str(answer)


def test_numbers_of_numpy_are_numbers_and_what_is_not_json_is_an_error() -> None:
    np = pytest.importorskip("numpy")
    answers: list[dict[str, Any]] = [{"n": np.int64(3), "x": np.float32(0.5)}, {"n": object()}, {"n": float("nan")}]
    with serving(handle=lambda command: answers.pop(0)) as server:
        assert client(server).state() == {"n": 3, "x": 0.5}
        assert [exchange(server, STATE)[0] for _ in range(2)] == [500, 500]


# Who may


@pytest.mark.parametrize(
    "header", ["", "Authorization: Bearer wrong", "Authorization: Basic k\u00e9y", "Authorization: x"]
)
def test_without_the_key_nothing_is_done(address: Address, header: str) -> None:
    script = Script()
    with serving(address, script, key="k\u00e9y") as server:
        request = post("/radix_tier/pin", b'{"session": "s"}', *filter(None, [header]))
        status, answer = exchange(server, request)
        assert status == 401 and "Bearer" in answer["error"]
        assert exchange(server, b"GET /nowhere HTTP/1.1\r\n\r\n")[0] == 401
        assert script.seen == []
        assert client(server, "k\u00e9y").state() == {"asked": "ReadState"}


def test_a_unix_socket_is_for_its_user_only(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with serving(Address(path=str(path))):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()


def test_a_stale_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(path))
    address = Address(path=str(path))
    with serving(address) as server:
        with pytest.raises(BadValue, match="somebody listens on"):
            ControlServer(address, Desk())
        assert client(server).state()
    path.write_text("not a socket")
    with pytest.raises(BadValue, match="not a socket"):
        ControlServer(address, Desk())
    assert path.read_text() == "not a socket"
    with pytest.raises(BadValue, match="cannot listen there: No such file"):
        ControlServer(Address(path=str(tmp_path / "no" / "x.sock")), Desk())


def test_a_lock_that_another_server_holds_for_a_moment_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = Address(path=str(tmp_path / "c"))
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(BadValue, match="another process holds a lock"):
        ControlServer(address, Desk())
    let_go = SimpleNamespace(sleep=lambda _: fcntl.flock(other, fcntl.LOCK_UN))
    monkeypatch.setattr("radixtier.control.sockets.time", let_go)
    ControlServer(address, Desk()).close()
    os.close(other)


def test_without_a_thread_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoThread:
        def __init__(self, **_: Any) -> None: ...

        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    address, before = Address(path=str(tmp_path / "c")), len(os.listdir("/proc/self/fd"))
    lacking = SimpleNamespace(Thread=NoThread, Semaphore=threading.Semaphore, Lock=threading.Lock)
    with monkeypatch.context() as patch:
        patch.setattr(server_module, "threading", lacking)
        with pytest.raises(BadValue, match="no more threads"):
            ControlServer(address, Desk())
    assert os.listdir(tmp_path) == [] and len(os.listdir("/proc/self/fd")) == before
    ControlServer(address, Desk()).close()


def test_closing_leaves_the_socket_of_a_successor_alone(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with serving(Address(path=str(path))):
        os.unlink(path)
        path.write_text("successor")
    assert path.read_text() == "successor"


def test_a_port_in_use_is_refused() -> None:
    with serving() as server, pytest.raises(BadValue, match="in use"):
        ControlServer(server.address, Desk())


# What is wrong with a request


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("pin", b"", "not JSON"),
        ("pin", b"{", "not JSON"),
        ("pin", b"\xff\xfe", "not JSON"),
        ("pin", b'{"tokens": [1], "ttl_s": NaN}', "NaN is not a JSON number"),
        ("pin", b'{"tokens": [1], "ttl_s": ' + b"9" * 5000 + b"}", "not JSON"),
        ("pin", b"[" * 100_000, "nested too deeply"),
        ("pin", b"[1]", "not a JSON object"),
        ("pin", b"{}", "Give one of tokens, text, session"),
        ("pin", b'{"text": "a", "session": "s"}', "text and session are given"),
        ("pin", b'{"tokens": "abc"}', "tokens 'abc': not a list"),
        ("pin", b'{"tokens": []}', "tokens []: empty"),
        ("pin", b'{"tokens": [1, "2"]}', "tokens: '2' is not a token id"),
        ("pin", b'{"tokens": [1, true]}', "tokens: True is not a token id"),
        ("pin", b'{"tokens": [1, 2.0]}', "tokens: 2.0 is not a token id"),
        ("pin", b'{"tokens": [1, -2]}', "tokens: -2 is not a token id"),
        ("pin", b'{"tokens": [4294967296]}', "tokens: 4294967296 is not a token id"),
        ("pin", b'{"text": ""}', "text '': not a text"),
        ("pin", b'{"text": "\\ud800"}', "text: not valid Unicode"),
        ("pin", b'{"session": 5}', "session 5: not a text"),
        ("pin", b'{"session": "' + b"s" * 5000 + b'"}', "session: 5000 characters"),
        ("pin", b'{"session": "s", "cache_salt": "c"}', "say nothing beside a session"),
        ("pin", b'{"node": 4}', "Give one of tokens, text, session"),
        ("pin", b'{"session": "s", "action_id": 4}', "action_id 4: not a text"),
        ("pin", b'{"session": "s", "ttl": 4}', "Write ttl_s"),
        ("pin", b'{"session": "s", "tier": "hbm"}', "Write dram or nvme"),
        ("demote", b'{"session": "s", "ttl_s": 4}', "demote: no such field: 'ttl_s'"),
        ("explain/node", b'{"node": -4}', "node -4: not a number of a node"),
        ("explain/node", b'{"tokens": [1], "ttl_s": 4}', "no such field: 'ttl_s'"),
    ],
)
def test_a_bad_body_names_field_value_and_fix(path: str, body: bytes, words: str, running: ControlServer) -> None:
    status, answer = exchange(running, post(f"/radix_tier/{path}", body))
    assert status == 400 and words in answer["error"] and len(answer["error"]) < 400


@pytest.fixture(scope="module")
def _served() -> Any:
    with serving() as server:
        yield server


@pytest.fixture
def running(_served: ControlServer) -> ControlServer:
    return _served


@pytest.mark.parametrize(
    ("request_line", "status", "words"),
    [
        ("GET /radix HTTP/1.1", 404, "/radix_tier/state"),
        ("GET /radix_tier/evict HTTP/1.1", 404, "no such path"),
        ("GET /radix_tier/pin HTTP/1.1", 405, "use POST"),
        ("PUT /radix_tier/pin HTTP/1.1", 405, "use GET or POST"),
        ("BREW /radix_tier/pin HTTP/1.1", 405, "use GET or POST"),
        ("GET /radix_tier/explain?limit=x HTTP/1.1", 400, "limit 'x': not a whole number"),
        ("GET /radix_tier/explain?limit= HTTP/1.1", 400, "limit '': not a whole number"),
        ("GET /radix_tier/explain?rid=x HTTP/1.1", 400, "no such field: 'rid'. It takes request, limit"),
        ("GET /radix_tier/explain?limit=1&limit=2 HTTP/1.1", 400, "a name twice"),
        ("GET /radix_tier/explain?" + "a&" * 50 + " HTTP/1.1", 400, "cannot be read"),
        ("GET /radix_tier/explain/node HTTP/1.1", 400, "Give one of tokens, text, session, node"),
        ("GET /radix_tier/explain/node?tokens=1,,2 HTTP/1.1", 400, "tokens '': not a whole number"),
        ("GET /radix_tier/state?x=1 HTTP/1.1", 400, "It takes none"),
        ("GET http://[ HTTP/1.1", 400, "cannot be read"),
        ("GET /radix_tier/state HTTP/9.9", 400, "HTTP/1.1"),
        ("GET /radix_tier/state HTTP/x", 400, ""),
        ("GET /" + "a" * 100_000 + " HTTP/1.1", 431, "at most 65536 bytes"),
        ("nonsense", 400, ""),
    ],
)
def test_a_bad_request_line(request_line: str, status: int, words: str, running: ControlServer) -> None:
    got, answer = exchange(running, f"{request_line}\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert got == status and words in answer["error"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (["Content-Type: text/plain", "Content-Length: 2"], 415),
        (["Content-Length: 2"], 415),
        (["Content-Type: application/json"], 411),
        (["Content-Type: application/json", "Transfer-Encoding: chunked"], 411),
        (["Content-Type: application/json", "Content-Length: -2"], 400),
        (["Content-Type: application/json", "Content-Length: 2", "Content-Length: 3"], 400),
        (["Content-Type: application/json", "Content-Length: 20"], 400),
        (["Content-Type: application/json", f"Content-Length: {10**30}"], 413),
        (["X: " + "y" * 60_000, "Z: " + "y" * 60_000], 431),
        (["Content-Type: application/json", *(f"X{i}: y" for i in range(200))], 431),
    ],
)
def test_bad_headers(headers: list[str], status: int, running: ControlServer) -> None:
    lines = ["POST /radix_tier/pin HTTP/1.1", "Host: localhost", *headers, "", ""]
    got, answer = exchange(running, "\r\n".join(lines).encode() + b"{}")
    assert got == status and answer["error"]


def test_a_huge_body_is_refused_and_the_client_reads_so(running: ControlServer) -> None:
    body = json.dumps({"tokens": [1] * 1_000_000}).encode()
    assert len(body) > connection.BODY_BYTES
    status, answer = exchange(running, post("/radix_tier/pin", body))
    assert status == 413 and "2097152 bytes" in answer["error"]
    assert client(running).state()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = [
    "tokens",
    "text",
    "session",
    "node",
    "extra_key",
    "cache_salt",
    "ttl_s",
    "tier",
    "by_s",
    "action_id",
    "end_token",
]
LIKELY = st.sampled_from([[1, 2], "dram", 5, 0.5, "s"])
PATHS = st.sampled_from([*(kind.value for kind in Kind), "explain/node", "explain", "state", "x"])


@settings(max_examples=300)
@given(PATHS, JSON | st.dictionaries(st.sampled_from(NAMES), JSON | LIKELY, max_size=5))
def test_no_json_breaks_the_server(running_for_all: ControlServer, path: str, body: Any) -> None:
    status, answer = exchange(running_for_all, post(f"/radix_tier/{path}", json.dumps(body).encode()))
    assert 200 <= status < 500 and isinstance(answer, dict)
    assert ("error" in answer) == (status != 200)


@settings(max_examples=200)
@given(st.binary(max_size=200) | st.text(max_size=60).map(lambda t: f"GET /radix_tier/{t} HTTP/1.1\r\n\r\n".encode()))
def test_no_bytes_break_the_server(running_for_all: ControlServer, request_bytes: bytes) -> None:
    with dial(running_for_all) as sock:
        sock.sendall(request_bytes)
        sock.shutdown(socket.SHUT_WR)
        answer = read_all(sock)
    if answer.startswith(b"HTTP/"):
        assert int(answer.split()[1]) < 500
    assert b"Traceback" not in answer
    assert exchange(running_for_all, STATE)[0] == 200


@pytest.fixture(scope="module")
def running_for_all(_served: ControlServer) -> ControlServer:
    return _served


# Load and bad manners


def test_a_full_desk_is_503_and_a_busy_scheduler_504(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(room=1)
    with ControlServer(LOOPBACK, desk) as server, ThreadPoolExecutor() as pool:
        waiting = pool.submit(exchange, server, STATE)
        until_pending(desk)
        assert exchange(server, STATE)[0] == 503
        with scheduler(desk, Script()):
            assert waiting.result()[0] == 200
        monkeypatch.setattr(server_module, "ANSWER_S", 0.01)
        status, answer = exchange(server, STATE)
        assert status == 504 and "nothing was done" in answer["error"]


def test_closing_while_somebody_asks() -> None:
    desk = Desk()
    with ThreadPoolExecutor() as pool:
        with ControlServer(LOOPBACK, desk) as server, dial(server):
            waiting = pool.submit(exchange, server, STATE)
            until_pending(desk)
        status, answer = waiting.result()
    assert status == 503 and "stops" in answer["error"]
    with pytest.raises(ControlError, match="no answer from 127"):
        client(server).state()
    server.close()


@pytest.mark.parametrize(
    "sent", [b"", b"GET /radix", b"GET /radix_tier/state HTTP/1.1\r\nX: y", post("/radix_tier/pin", b"{}")[:-1]]
)
def test_a_slow_client_is_left_after_a_while(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metered, "READ_S", 0.1)
    with serving() as server:
        assert exchange(server, sent, end=False)[0] == 0
        assert exchange(server, STATE)[0] == 200


def test_the_time_of_a_request_is_counted_from_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then does not win more time."""
    clock = iter([0.0, 1.0, 9.0, 11.0])
    monkeypatch.setattr(metered.time, "monotonic", lambda: next(clock))
    mine, theirs = socket.socketpair()
    with mine, theirs:
        incoming = metered.Metered(mine)
        incoming.begin()
        theirs.sendall(b"GET")
        buffer = bytearray(1)
        assert [incoming.readinto(buffer), incoming.readinto(buffer)] == [1, 1]
        with pytest.raises(TimeoutError):
            incoming.readinto(buffer)


def test_a_bounded_number_of_connections_is_served_and_the_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MOST_CONNECTIONS", 2)
    with serving() as server, ThreadPoolExecutor() as pool:
        with dial(server) as first, dial(server):
            first.sendall(STATE.replace(b"Connection: close\r\n", b""))
            assert first.recv(65536).startswith(b"HTTP/1.1 200")
            third = pool.submit(exchange, server, STATE)
            serving_threads = [t for t in threading.enumerate() if t.name == "radixtier-control-client"]
            assert len(serving_threads) <= 2 and not third.done()
        assert third.result(PATIENCE_S)[0] == 200


def test_closing_with_more_connections_than_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MOST_CONNECTIONS", 1)
    with serving() as server, dial(server), dial(server) as second:
        pass
    assert second.fileno() == -1


def test_a_client_that_hangs_up_leaves_nothing(running: ControlServer) -> None:
    for part in (b"", b"GET", post("/radix_tier/pin", b'{"session": "s"}')):
        with dial(running) as sock:
            sock.sendall(part)
    assert parse(b"") == (0, {}) and client(running).state()


def until_pending(desk: Desk) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.001)):
        if desk.pending:
            return
        pause.wait(0.001)
    raise AssertionError("nobody asked")
