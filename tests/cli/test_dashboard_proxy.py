"""``radixtier dashboard``: the page on loopback, and nothing forwarded for who has no key or comes from elsewhere."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cli_fakes as fakes
import pytest

from radixtier import dashboard
from radixtier.cli import dashboard_proxy
from radixtier.cli.dashboard_proxy import MOST_CONNECTIONS, DashboardServer
from radixtier.cli.main import main
from radixtier.control.address import parse_address
from radixtier.control.arguments import ENVIRONMENT
from radixtier.control.connection import BODY_BYTES
from radixtier.control.endpoint import Endpoint

PATIENCE_S = 60.0
JSON = "application/json"


@contextlib.contextmanager
def proxy(address: str, key: str | None = None) -> Iterator[DashboardServer]:
    target = parse_address(address, key=True)
    assert target is not None
    with DashboardServer(Endpoint(target, key, PATIENCE_S)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def script() -> fakes.Script:
    return fakes.Script.well()


@pytest.fixture(params=["unix", "tcp"])
def server(request: pytest.FixtureRequest, script: fakes.Script, tmp_path: Path) -> Iterator[DashboardServer]:
    path = tmp_path / "c.sock" if request.param == "unix" else None
    with fakes.endpoint(script, path) as address, proxy(address, "upstream-key") as running:
        yield running


def ask(
    server: DashboardServer, target: str, method: str = "GET", body: bytes | None = None, **headers: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=PATIENCE_S)
    try:
        connection.request(method, target, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def bearer(server: DashboardServer) -> dict[str, str]:
    return {"Authorization": f"Bearer {server.key.decode()}"}


def test_the_page_needs_no_key_and_may_load_nothing_else(server: DashboardServer, script: fakes.Script) -> None:
    for target in ("/", "/radix_tier/dashboard"):
        status, headers, body = ask(server, target)
        assert (status, body) == (200, dashboard.read("index.html"))
        assert headers["Content-Type"] == dashboard.FILES["index.html"]
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
    for name, media_type in dashboard.FILES.items():
        if (Path(dashboard.__file__).parent / name).exists():
            status, headers, body = ask(server, f"/radix_tier/dashboard/{name}")
            assert (status, headers["Content-Type"], body) == (200, media_type, dashboard.read(name))
    assert ask(server, "/radix_tier/dashboard/../__init__.py", **bearer(server))[0] == 404
    assert script.seen == []


def test_questions_are_forwarded_with_the_servers_key(server: DashboardServer, script: fakes.Script) -> None:
    status, headers, body = ask(server, "/radix_tier/history?seconds=60", **bearer(server))
    assert (status, headers["Content-Type"], json.loads(body)) == (200, "application/json", fakes.history())
    script.answers["/radix_tier/pin"] = lambda body: (400, {"error": f"no {body['session']}"})
    headers_of_body = {**bearer(server), "Content_Type": "application/json"}
    status, _, body = ask(server, "/radix_tier/pin", "POST", b'{"session": "x"}', **headers_of_body)
    assert (status, json.loads(body)) == (400, {"error": "no x"})
    assert script.seen == [
        ("GET", "/radix_tier/history?seconds=60", None, "Bearer upstream-key"),
        ("POST", "/radix_tier/pin", {"session": "x"}, "Bearer upstream-key"),
    ]


@pytest.mark.parametrize("key", [None, "", "Bearer ", "Bearer wrong", "Basic {key}", "Bearer {key}x", "{key}"])
def test_without_its_key_nothing_is_forwarded(server: DashboardServer, script: fakes.Script, key: str | None) -> None:
    given = {} if key is None else {"Authorization": key.format(key=server.key.decode())}
    for method, body in (("GET", None), ("POST", b"{}")):
        status, _, answer = ask(server, "/radix_tier/state", method, body, **given)
        assert status == 401 and "Bearer KEY" in json.loads(answer)["error"]
    assert script.seen == []


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "localhost.evil.example:80"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
    ],
)
def test_other_pages_and_other_names_are_refused(
    server: DashboardServer, script: fakes.Script, headers: dict[str, str]
) -> None:
    for target in ("/", "/radix_tier/state"):
        assert ask(server, target, **bearer(server), **headers)[0] == 403
    assert ask(server, "/radix_tier/pin", "POST", b"{}", **bearer(server), **headers)[0] == 403
    assert script.seen == []


@pytest.mark.parametrize("host", ["127.0.0.1:9000", "localhost", "LOCALHOST:80", "[::1]:4"])
def test_a_tunnel_may_have_another_port(server: DashboardServer, host: str) -> None:
    headers = {**bearer(server), "Host": host, "Origin": f"http://{host}"}
    assert ask(server, "/radix_tier/state", **headers)[0] == 200


@pytest.mark.parametrize(
    "target",
    ["/metrics", "/generate", "/radix_tier", "/radix_tierx/state",
     "//evil.example/radix_tier/state", "/radix_tier/../generate", "/radix_tier/%2e%2e/generate", "/flush_cache"],
)  # fmt: skip
def test_nothing_else_of_the_server_is_reached(server: DashboardServer, script: fakes.Script, target: str) -> None:
    assert ask(server, target, **bearer(server))[0] in (403, 404)
    assert script.seen == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content_Length": str(BODY_BYTES + 1)}, 413),
        ({"Content_Length": "9" * 30}, 413),
        ({"Content_Length": "-1"}, 400),
        ({"Content_Length": "x"}, 400),
        ({"Content_Length": "2", "Transfer_Encoding": "chunked"}, 411),
    ],
)
def test_bodies_that_are_refused(
    server: DashboardServer, script: fakes.Script, headers: dict[str, str], status: int
) -> None:
    assert ask(server, "/radix_tier/pin", "POST", None, **bearer(server), Content_Type=JSON, **headers)[0] == status
    assert script.seen == []


def test_a_server_that_is_gone(tmp_path: Path) -> None:
    with proxy(f"unix:{tmp_path}/none.sock") as running:
        status, _, body = ask(running, "/radix_tier/state", **bearer(running))
        assert status == 502 and "no answer from the server" in json.loads(body)["error"]


def test_the_key_is_new_each_time_and_only_loopback_listens(server: DashboardServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    with DashboardServer(server.upstream) as other:
        assert len(other.key) >= 32 and other.key != server.key
    assert server.url == f"http://127.0.0.1:{server.server_address[1]}/#key={server.key.decode()}"


@pytest.mark.parametrize("headers", ["", "Host: evil.example\r\n", "Origin: http://evil.example\r\n"])
def test_nothing_of_a_body_is_read_for_who_may_not_ask(server: DashboardServer, headers: str) -> None:
    head = f"POST /radix_tier/pin HTTP/1.1\r\n{headers}Content-Type: {JSON}\r\nContent-Length: 1000\r\n\r\n"
    status, rest = raw(server, head)
    assert status == (403 if headers else 401), "and that before the body came"
    assert "Connection: close" in rest


@pytest.mark.parametrize("extra", ["Content-Length: 4\r\n\r\nGET ", "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"])
def test_a_body_where_none_belongs_ends_the_connection(
    server: DashboardServer, script: fakes.Script, extra: str
) -> None:
    key = bearer(server)["Authorization"]
    smuggled = "GET /radix_tier/events HTTP/1.1\r\n\r\n"
    status, rest = raw(server, f"GET /radix_tier/state HTTP/1.1\r\nAuthorization: {key}\r\n{extra}{smuggled}")
    assert status == 200 and "Connection: close" in rest and rest.count("HTTP/1.1 ") == 0
    assert [target for _, target, *_ in script.seen] == ["/radix_tier/state"]


def raw(server: DashboardServer, text: str) -> tuple[int, str]:
    """Send bytes; return the status, and the rest of what came until the end of the connection."""
    with socket.create_connection(("127.0.0.1", server.server_address[1]), PATIENCE_S) as connection:
        connection.sendall(text.encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    return int(answer.split()[1]), answer.partition("\r\n")[2]


def test_connections_are_bounded(server: DashboardServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard_proxy, "ROOM_S", 0.01)
    place = ("127.0.0.1", server.server_address[1])
    with contextlib.ExitStack() as stack:
        kept = [stack.enter_context(socket.create_connection(place, PATIENCE_S)) for _ in range(MOST_CONNECTIONS)]
        with socket.create_connection(place, PATIENCE_S) as one_more:
            assert one_more.recv(1) == b"", "hung up on"
        for connection in kept:
            connection.sendall(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
            assert b"".join(iter(lambda: connection.recv(65536), b"")).startswith(b"HTTP/1.1 200 ")  # noqa: B023
    assert ask(server, "/")[0] == 200, "there is room again"


def test_a_request_has_a_time_to_arrive_in(server: DashboardServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixtier.control.metered.READ_S", 0.2)
    with socket.create_connection(("127.0.0.1", server.server_address[1]), PATIENCE_S) as connection:
        connection.sendall(b"GET / HT")
        assert connection.recv(1) == b"", "hung up on"


def test_a_server_whose_socket_moves_is_followed(script: fakes.Script, tmp_path: Path) -> None:
    before, after = tmp_path / "before.sock", tmp_path / "after.sock"
    script.answers["/radix_tier/state"] = (200, fakes.state(control=f"unix:{after}"))
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(fakes.endpoint(script, before))
        running = stack.enter_context(proxy(address))
        assert ask(running, "/radix_tier/state", **bearer(running))[0] == 200
        before.unlink()
        stack.enter_context(fakes.endpoint(script, after))
        assert ask(running, "/radix_tier/history", **bearer(running))[0] == 200


# ---- the command --------------------------------------------------------------------------------------------------


def test_the_command_prints_the_url_and_serves(script: fakes.Script, tmp_path: Path) -> None:
    with fakes.endpoint(script, tmp_path / "c.sock") as address:
        command = [sys.executable, "-m", "radixtier.cli", "dashboard", "--control", address, "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            url: str = json.loads(process.stdout.readline())["url"]
            place, key = url.split("/#key=")
            connection = http.client.HTTPConnection(place.removeprefix("http://"), timeout=PATIENCE_S)
            connection.request("GET", "/radix_tier/state", headers={"Authorization": f"Bearer {key}"})
            found: Any = json.loads(connection.getresponse().read())
            connection.close()
            assert found == fakes.state()
            process.send_signal(signal.SIGTERM)
            _, error = process.communicate(timeout=PATIENCE_S)
            assert (process.returncode, error) == (130, "")
        finally:
            process.kill()
            process.communicate()


def test_what_goes_wrong_is_one_line(
    script: fakes.Script, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    monkeypatch.setattr("radixtier.cli.dashboard.end_like_ctrl_c", lambda: None)
    with fakes.endpoint(script) as address:
        taken = address.rpartition(":")[2]
        for argv, status, words in (
            (["--control", address, "--port", taken], 1, f"--port {taken}: "),
            (["--control", "unix:/nowhere.sock"], 1, "no answer from unix:/nowhere.sock"),
            ([], 2, "Give --control ADDRESS"),
            (["--control", address, "--key-file", f"{os.devnull}/x"], 2, "Not a directory"),
        ):
            assert main(["dashboard", *argv]) == status
            error = capsys.readouterr().err
            assert words in error and error.count("\n") == 1
    with pytest.raises(SystemExit) as end:
        main(["dashboard", "--port", "70000"])
    assert end.value.code == 2
