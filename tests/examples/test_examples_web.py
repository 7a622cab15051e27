"""examples/chat_web/server.py without a browser: what it lets through, and what becomes of a request."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from examples_stub import PATIENCE_S, Stub, sglang
from web_page import SERVER, chat, fetch, send, web_page


@pytest.fixture
def page(url: str) -> Iterator[str]:
    with web_page(url) as address:
        yield address


def test_files_of_the_page(page: str) -> None:
    for path, kind, start in [("/", "text/html", "<!doctype html>"), ("/app.js", "text/javascript", "//")]:
        connection, response = send(page, "GET", path)
        assert response.status == 200
        assert response.headers["Content-Type"] == f"{kind}; charset=utf-8"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        policy = response.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy
        assert response.read().decode().startswith(start)
        connection.close()


@pytest.mark.parametrize(
    "path", ["/server.py", "/../chat.py", "/app.js/../server.py", "/app.js?x", "/%2e%2e/chat.py", "/style.css/"]
)
def test_no_other_files(page: str, path: str) -> None:
    assert fetch(page, "GET", path) == (404, {"error": "there is no such page"})


def test_question_is_passed_on_and_the_answer_back(page: str, stub: Stub) -> None:
    status, text = fetch(page, "POST", "/api/chat", chat("hello", temperature=2, stream=False, n=4))
    assert status == 200
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line]
    assert lines.pop() == "[DONE]"
    events = [json.loads(line) for line in lines]
    said = [choice["delta"]["content"] for event in events for choice in event["choices"]]
    assert said == ["", "Yes", ", ", "indeed."]
    assert events[-1]["usage"]["prompt_tokens"] == 3
    (body,) = stub.asked
    assert body == {
        "model": "default",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 9,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_cached_tokens_details": True,
        "session_id": "s",
    }


def test_answer_comes_back_piece_by_piece(page: str, stub: Stub) -> None:
    go_on = threading.Event()
    stub.between = lambda: go_on.wait(PATIENCE_S)
    connection, response = send(page, "POST", "/api/chat", chat("hello"))
    seen = b""
    while b"Yes" not in seen:
        seen += response.read1(4096)
    assert b"indeed" not in seen
    go_on.set()
    assert response.read().endswith(b"data: [DONE]\n\n")
    connection.close()


def test_browser_that_leaves_in_the_middle_of_an_answer_ends_it(page: str, stub: Stub) -> None:
    go_on = threading.Event()
    stub.answer = lambda body: ["word"] * 10_000
    stub.between = lambda: go_on.wait(PATIENCE_S)
    connection, response = send(page, "POST", "/api/chat", chat("hello"))
    response.close()
    connection.close()
    go_on.set()
    assert stub.gone.wait(PATIENCE_S)


def test_browser_that_leaves_before_the_first_token_ends_the_request(page: str, stub: Stub) -> None:
    """SGLang has not said anything by then, so nothing but the browser's own connection can tell."""
    arrived, left = threading.Event(), threading.Event()

    def prefill(connection: socket.socket) -> None:
        arrived.set()
        connection.settimeout(PATIENCE_S)
        if not connection.recv(1):
            left.set()

    stub.before = prefill
    parts = urlsplit(page)
    data = json.dumps(chat("hello")).encode()
    head = f"POST /api/chat HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
    connection = _raw(parts.port or 0, head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data)
    assert arrived.wait(PATIENCE_S)
    connection.close()
    assert left.wait(PATIENCE_S)
    assert fetch(page, "GET", "/api/server")[0] == 200


def _raw(port: int, data: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
    connection.sendall(data)
    return connection


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "[::1]:{port}", ""]
)
@pytest.mark.parametrize(("method", "path"), [("GET", "/"), ("GET", "/api/server"), ("POST", "/api/chat")])
def test_other_hosts_are_refused(page: str, stub: Stub, host: str, method: str, path: str) -> None:
    named = host.format(port=urlsplit(page).port)
    status, answer = fetch(page, method, path, chat("hello") if method == "POST" else None, Host=named)
    assert status == 403
    assert answer == {"error": f"this page is at {page} only"}
    assert stub.asked == []


def test_localhost_is_a_name_of_the_page(page: str) -> None:
    assert fetch(page, "GET", "/", Host=f"localhost:{urlsplit(page).port}")[0] == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "http://127.0.0.1", "http://["]
)
def test_other_pages_are_refused(page: str, stub: Stub, origin: str) -> None:
    assert fetch(page, "POST", "/api/chat", chat("hello"), Origin=origin)[0] == 403
    assert stub.asked == []
    assert fetch(page, "POST", "/api/chat", chat("hello"), Origin=page.rstrip("/"))[0] == 200


@pytest.mark.parametrize(
    ("body", "headers", "status", "error"),
    [
        (chat(), {}, 400, "messages: not a list of objects with role and content"),
        (chat("a", messages=[{"role": "tool", "content": "a"}]), {}, 400, "messages: "),
        (chat("a", messages=[{"role": "user", "content": ["a"]}]), {}, 400, "messages: "),
        (chat("a", max_tokens=0), {}, 400, "max_tokens: not a whole number from 1 to 4096"),
        (chat("a", max_tokens=True), {}, 400, "max_tokens: "),
        (chat("a", max_tokens=4097), {}, 400, "max_tokens: "),
        (chat("a", session=""), {}, 400, "session: not a name of at most 128 characters"),
        (chat("a", session="s" * 129), {}, 400, "session: "),
        ([], {}, 400, "messages: "),
        ("{oops", {}, 400, "the body is not JSON"),
        ("[" * 100_000, {}, 400, "the body is not JSON"),
        (b"\xff\xfe", {}, 400, "the body is not JSON"),
        (chat("a"), {"Content-Type": "text/plain"}, 415, "the body has to be application/json"),
        (chat("a"), {"Content-Length": "-1"}, 411, "the length of the body is missing"),
        (chat("a"), {"Content-Length": str(9 << 20)}, 413, "the conversation is longer than 8 MiB"),
        (chat("a"), {"Content-Length": "9" * 5000}, 413, "the conversation is longer than 8 MiB"),
    ],
)
def test_bad_questions(page: str, stub: Stub, body: object, headers: dict[str, str], status: int, error: str) -> None:
    got, answer = fetch(page, "POST", "/api/chat", body, **headers)
    assert got == status
    assert answer["error"].startswith(error)
    assert stub.asked == []


def test_other_paths_take_no_questions(page: str) -> None:
    assert fetch(page, "POST", "/v1/chat/completions", chat("a"))[0] == 404


def test_errors_of_the_server_are_told(page: str, stub: Stub) -> None:
    stub.status = 400
    assert fetch(page, "POST", "/api/chat", chat("a")) == (
        502,
        {"error": "SGLang answered 400: the prompt is too long"},
    )


@pytest.mark.parametrize(
    ("backend", "known", "tier"), [(True, True, "on"), (False, True, "off"), (True, False, "unknown")]
)
def test_what_is_known_about_the_server(page: str, url: str, stub: Stub, backend: bool, known: bool, tier: str) -> None:
    stub.tier, stub.sglang = backend, known
    model = "stub-1b" if known else ""
    assert fetch(page, "GET", "/api/server") == (200, {"url": url, "model": model, "tier": tier})


def test_no_server() -> None:
    with web_page("http://127.0.0.1:9") as page:
        for answer in (fetch(page, "GET", "/api/server"), fetch(page, "POST", "/api/chat", chat("a"))):
            assert answer[0] == 502
            assert answer[1]["error"].startswith("no server answers at http://127.0.0.1:9: ")


def test_key_stays_on_this_side(stub: Stub, tmp_path: Path) -> None:
    stub.key = "secret"
    file = tmp_path / "key"
    file.write_text("secret\n")
    with sglang(stub) as url, web_page(url + "/v1/", "--key-file", str(file)) as page:
        assert fetch(page, "POST", "/api/chat", chat("a"))[0] == 200
        assert "secret" not in json.dumps(fetch(page, "GET", "/api/server"))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ["--url", "http://127.0.0.1:99999"],
            "error: --url http://127.0.0.1:99999: a port is a number up to 65535. Write http://127.0.0.1:30000",
        ),
        (["--url", "nowhere"], "error: --url nowhere: not the address of a server. Write http://127.0.0.1:30000"),
        (["--port", "70000"], "error: --port 70000: "),
        (["--key-file", "/no/such"], "error: --key-file /no/such: "),
    ],
)
def test_bad_arguments_of_the_page(arguments: list[str], error: str) -> None:
    command = [sys.executable, str(SERVER), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(error) and len(done.stderr.splitlines()) == 1
