"""The newer routes over real sockets: what they become, who may use them, and the page's files."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from control_rig import LOOPBACK, Script, client, dial, exchange, parse, post, read_all, serving

from radixtier import dashboard
from radixtier.control import Address, Command, Drain, ListNodes, ReadEvents, ReadHistory, ReadRows, Refusal, Rows
from radixtier.control import runtime as runtime_module
from radixtier.control.client import ControlClient, ControlError
from radixtier.control.openapi import document
from radixtier.control.pages import HEADERS
from radixtier.control.runtime import make_runtime_directory, runtime_directory, runtime_socket
from radixtier.control.sockets import Listener
from radixtier.units import BadValue


class Tree(Script):
    """Has no nodes, and drains at the second call."""

    def __call__(self, command: Command) -> Mapping[str, Any]:
        if isinstance(command, ListNodes):
            self.seen.append(command)
            return {"rows": Rows.empty(), "next": None, "total": 0}
        if isinstance(command, ReadRows):
            return {"parts": [], "next": None, "total": 0}
        if isinstance(command, Drain):
            self.seen.append(command)
            return {"status": "drained" if len(self.seen) > 1 else "draining"}
        return super().__call__(command)


def sources(seen: list[Any]) -> dict[type, Any]:
    def answer(command: Any) -> Mapping[str, Any]:
        seen.append(command)
        return {"asked": type(command).__name__}

    return {ReadHistory: answer, ReadEvents: answer}


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", *headers, "Connection: close", "", ""]).encode()


def raw(server: Any, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the only answer."""
    with dial(server) as sock:
        sock.sendall(request)
        head, _, body = read_all(sock).partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    return int(lines[0].split()[1]), dict(line.split(": ", 1) for line in lines[1:]), body


def test_every_route_becomes_its_command_or_question() -> None:
    script, asked = Tree(), []
    with serving(LOOPBACK, script, sources=sources(asked)) as server:
        to = client(server)
        assert to.nodes() == {"nodes": [], "next": None, "total": 0}
        to.nodes(after=7, limit=1000)
        tree = to.tree(most=2)
        assert (tree["total_nodes"], tree["nodes"], tree["root"]) == (0, [], None)
        with pytest.raises(ControlError, match="node 5 does not exist") as error:
            to.tree(root=5)
        assert error.value.status == 404
        assert to.history() == {"asked": "ReadHistory"} and to.events() == {"asked": "ReadEvents"}
        to.history(21600)
        to.events(512)
        assert to.call("GET", "/radix_tier/openapi.json") == document()
    assert asked == [ReadHistory(600), ReadEvents(100), ReadHistory(21600), ReadEvents(512)]
    assert script.seen[:2] == [ListNodes(-1, 100), ListNodes(7, 1000)]


def test_a_drain_needs_no_body() -> None:
    script = Tree()
    with serving(LOOPBACK, script) as server:
        assert client(server).drain(2.5) == {"status": "draining"}
        for request in (
            b"POST /radix_tier/drain HTTP/1.1\r\nConnection: close\r\n\r\n",
            b"POST /radix_tier/drain HTTP/1.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            post("/radix_tier/drain", b"{}"),
            post("/radix_tier/drain", b'{"timeout_s": null}'),
        ):
            assert exchange(server, request) == (200, {"status": "drained"})
    assert script.seen == [Drain(2.5), *[Drain(30.0)] * 4]


NO_TYPE = b"POST /radix_tier/drain HTTP/1.1\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


@pytest.mark.parametrize(
    ("request_bytes", "status", "words"),
    [
        (get("/radix_tier/nodes?limit=1001"), 400, "limit 1001: not from 1 to 1000"),
        (get("/radix_tier/nodes?limit=0"), 400, "limit 0: not from 1"),
        (get("/radix_tier/nodes?after=-1"), 400, "after '-1': not a whole number"),
        (get("/radix_tier/nodes?from=1"), 400, "It takes after, limit"),
        (get("/radix_tier/tree?most=1"), 400, "most 1: not from 2 to 5000"),
        (get("/radix_tier/tree?root=x"), 400, "root 'x'"),
        (get("/radix_tier/history?seconds=90000"), 400, "not from 1 to 21600"),
        (get("/radix_tier/events?limit=%20"), 400, "limit ' '"),
        (get("/radix_tier/events?limit=%ff"), 400, "in UTF-8"),
        (get("/radix_tier/openapi.json?x=1"), 400, "It takes none"),
        (get("/radix_tier/drain"), 405, "use POST"),
        (post("/radix_tier/state", b"{}"), 405, "use GET"),
        (
            post("/radix_tier/drain", b'{"timeout_s": -1}'),
            400,
            "timeout_s -1: not a number of seconds. Write 0 to 3600",
        ),
        (post("/radix_tier/drain", b'{"timeout_s": 1e99}'), 400, "Write 0 to 3600"),
        (post("/radix_tier/drain", b'{"timeout_s": true}'), 400, "timeout_s True"),
        (post("/radix_tier/drain", b'{"timeout": 5}'), 400, "It takes timeout_s"),
        (post("/radix_tier/drain?timeout_s=5", b"{}"), 400, "send the fields in the body"),
        (post("/radix_tier/drain", b"[]"), 400, "not a JSON object"),
        (
            b"POST /radix_tier/drain HTTP/1.1\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
            415,
            "application/json",
        ),
        (get("/radix_tier/history"), 400, ""),
        (get("/radix_tier/dashboard/../state"), 404, "no such path"),
        (get("/radix_tier/dashboard/nothing.js"), 404, "no such path"),
        (get("/radix_tier/dashboard/__init__.py"), 404, "no such path"),
    ],
)
def test_what_is_wrong_is_one_sentence(request_bytes: bytes, status: int, words: str) -> None:
    def refuse(command: Any) -> Mapping[str, Any]:
        raise Refusal(400, "not now")

    with serving(LOOPBACK, Tree(), sources={ReadHistory: refuse}) as server:
        got, answer = exchange(server, request_bytes)
        assert got == status and words in answer["error"] and len(answer["error"]) < 400


def test_a_source_that_fails_is_a_500_without_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    def fail(command: Any) -> Mapping[str, Any]:
        raise ZeroDivisionError("secret")

    with serving(LOOPBACK, Tree(), sources={ReadHistory: fail}) as server:
        status, answer = exchange(server, get("/radix_tier/history"))
        assert status == 500 and "secret" not in answer["error"] and "ReadHistory" in caplog.text


def test_a_path_says_which_methods_it_has() -> None:
    with serving() as server:
        for request, allowed in (
            (get("/radix_tier/drain"), "POST"),
            (get("/radix_tier/state").replace(b"GET", b"PUT"), "GET, POST"),
            (post("/radix_tier/nodes", b"{}"), "GET"),
        ):
            status, headers, _ = raw(server, request)
            assert (status, headers["Allow"]) == (405, allowed)


# Who may


@pytest.mark.parametrize("path", ["/radix_tier/tree", "/radix_tier/history", "/radix_tier/openapi.json", "/nowhere"])
def test_without_the_key_only_the_page_is_shown(path: str) -> None:
    with serving(key="secret") as server:
        status, headers, _ = raw(server, get(path))
        assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
        assert raw(server, get("/"))[0] == raw(server, get("/radix_tier/dashboard"))[0]


HOSTS = [
    ("localhost", True),
    ("localhost:8080", True),
    ("LOCALHOST", True),
    ("127.0.0.1:80", True),
    ("10.1.2.3:9000", True),
    ("[::1]:80", True),
    ("[fe80::1]", True),
    ("", True),
    ("example.org", False),
    ("example.org:80", False),
    ("127.0.0.1.example.org", False),
    ("localhost.example.org", False),
    ("[::1", False),
    ("::1", False),
    ("[127.0.0.1]", False),
    ("2130706433", False),
    ("localhost:x", False),
]


@pytest.mark.parametrize(("host", "good"), HOSTS)
@pytest.mark.parametrize("path", ["/radix_tier/state", "/"])
def test_a_browser_gets_here_under_an_address_only(host: str, good: bool, path: str) -> None:
    with serving() as server:
        status, _, body = raw(server, get(path, f"Host: {host}"))
        assert (status != 403) == good
        assert good or "use the server's IP address" in json.loads(body)["error"]


@pytest.mark.parametrize(
    ("origin", "good"),
    [
        ("http://127.0.0.1:80", True),
        ("HTTPS://127.0.0.1:80", True),
        ("http://127.0.0.1:81", False),
        ("http://localhost:80", False),
        ("http://evil.example", False),
        ("null", False),
        ("", False),
    ],
)
def test_pages_of_other_sites_get_nothing(origin: str, good: bool) -> None:
    script = Tree()
    with serving(LOOPBACK, script) as server:
        request = post("/radix_tier/drain", b"{}", f"Origin: {origin}").replace(b"localhost", b"127.0.0.1:80", 1)
        assert (exchange(server, request)[0] == 200) == good
    assert len(script.seen) == good


def test_two_hosts_are_none() -> None:
    with serving() as server:
        assert exchange(server, get("/radix_tier/state", "Host: localhost", "Host: localhost"))[0] == 400


def test_a_unix_socket_is_out_of_reach_of_browsers(tmp_path: Path) -> None:
    with serving(Address(path=str(tmp_path / "c.sock"))) as server:
        assert exchange(server, get("/radix_tier/state", "Host: anything", "Origin: http://anything"))[0] == 200


# The page


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """A dashboard of two files, and one that is missing."""
    content = {"index.html": b"<!doctype html>", "app.js": b"export {};"}
    types = {
        "index.html": "text/html; charset=utf-8",
        "app.js": "text/javascript; charset=utf-8",
        "gone.css": "text/css",
    }

    def read(name: str) -> bytes:
        if name not in content:
            raise FileNotFoundError(name)
        return content[name]

    monkeypatch.setattr(dashboard, "FILES", types)
    monkeypatch.setattr(dashboard, "read", read)
    return content


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/", "index.html"),
        ("/?x=1", "index.html"),
        ("/radix_tier/dashboard", "index.html"),
        ("/radix_tier/dashboard/", "index.html"),
        ("/radix_tier/dashboard/index.html", "index.html"),
        ("/radix_tier/dashboard/app.js", "app.js"),
    ],
)
def test_the_page_is_shown_to_everybody_and_kept_to_itself(path: str, name: str, files: dict[str, bytes]) -> None:
    with serving(key="secret") as server:
        status, headers, body = raw(server, get(path))
        assert (status, body) == (200, files[name])
        assert headers["Content-Type"] == dashboard.FILES[name] and headers["Content-Length"] == str(len(body))
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert {name: headers[name] for name in HEADERS} == HEADERS
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]


def test_a_file_that_is_missing_is_not_found(files: dict[str, bytes], caplog: pytest.LogCaptureFixture) -> None:
    with serving() as server:
        assert exchange(server, get("/radix_tier/dashboard/gone.css"))[0] == 404
    assert "install radixtier again" in caplog.text


def test_answers_are_neither_kept_nor_guessed_at() -> None:
    with serving() as server:
        for request in (get("/radix_tier/state"), get("/nowhere")):
            _, headers, _ = raw(server, request)
            assert headers["Cache-Control"] == "no-store" and headers["X-Content-Type-Options"] == "nosniff"


# Where sockets lie without a store


def test_the_runtime_directory_is_this_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = runtime_socket(77)
    assert path == f"{tmp_path}/radixtier/77.sock"
    with serving(Address(path=path)) as server:
        assert client(server).state() == {"asked": "ReadState"}
        assert stat.S_IMODE(os.stat(tmp_path / "radixtier").st_mode) == 0o700
    (tmp_path / "radixtier").chmod(0o755)
    Listener(Address(path=path)).socket.close()
    assert stat.S_IMODE(os.stat(tmp_path / "radixtier").st_mode) == 0o700


@pytest.mark.parametrize("runtime", [None, "relative", "/nowhere/at/all"])
def test_without_one_the_directory_for_temporary_files_will_do(
    runtime: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_module.tempfile, "gettempdir", lambda: str(tmp_path))
    if runtime is None:
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    else:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    assert runtime_directory() == f"{tmp_path}/radixtier-{os.geteuid()}"
    make_runtime_directory()
    make_runtime_directory()
    assert stat.S_IMODE(os.stat(runtime_directory()).st_mode) == 0o700


@pytest.mark.parametrize("what", ["file", "link", "someone"])
def test_what_others_may_have_put_there_is_not_used(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    place = tmp_path / "radixtier"
    if what == "file":
        place.write_text("")
    elif what == "link":
        (tmp_path / "other").mkdir()
        place.symlink_to(tmp_path / "other")
    else:
        place.mkdir()
        monkeypatch.setattr(runtime_module.os, "geteuid", lambda: 12345)
    with pytest.raises(BadValue, match="not a directory of this user"):
        Listener(Address(path=str(place / "1.sock")))


# A client whose server goes elsewhere


def test_a_client_follows_a_server_whose_socket_is_given_up(tmp_path: Path) -> None:
    first, second = Address(path=str(tmp_path / "a.sock")), Address(path=str(tmp_path / "b.sock"))
    moved = {"status": "draining", "control": str(second)}
    with serving(second, lambda command: {"status": "drained", "control": str(second)}) as later:
        with serving(first, lambda command: moved) as server:
            to = ControlClient(server.address)
            assert to.drain() == moved
        assert to.drain()["status"] == "drained" and to.state()
        assert later.address == second
    with pytest.raises(ControlError, match=r"no answer from unix:.*b\.sock"):
        to.state()


def test_a_client_that_was_not_told_does_not_guess(tmp_path: Path) -> None:
    with serving(Address(path=str(tmp_path / "a.sock"))) as server:
        to = ControlClient(server.address)
        assert to.state() and parse(b"") == (0, {})
    with pytest.raises(ControlError, match=r"a\.sock"):
        to.state()
