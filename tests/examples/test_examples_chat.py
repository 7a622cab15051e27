"""examples/chat.py: what it asks, what it shows, and what it says when something is wrong."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from examples_stub import EXAMPLES, PATIENCE_S, Run, Stub


def test_every_turn_tells_where_its_prompt_came_from(run: Run, stub: Stub) -> None:
    talk = "hello old friend\nagain\n/new\nnews\n/back 1\nstill there?\n/back 9\n/quit\nnever asked\n"
    done = run("chat", "--session", "ada", "--max-tokens", "7", says=talk)
    assert done.returncode == 0, done.stderr
    facts = [line.partition(" tokens;")[0] for line in done.stdout.splitlines() if line.startswith("[HBM ")]
    assert facts == [
        "[HBM 0 | DRAM 0 | NVMe 0 | computed 5",
        "[HBM 5 | DRAM 0 | NVMe 0 | computed 5",
        "[HBM 1 | DRAM 0 | NVMe 0 | computed 2",
        "[HBM 0 | DRAM 10 | NVMe 0 | computed 6",
    ]
    assert "conversation 2, 0 messages so far, session ada-2" in done.stdout
    assert "there are conversations 1 to 2: write /back N" in done.stdout
    assert [body["session_id"] for body in stub.asked] == ["ada-1", "ada-1", "ada-2", "ada-1"]
    assert {body["max_tokens"] for body in stub.asked} == {7}
    assert stub.asked[3]["messages"] == [
        {"role": "user", "content": "hello old friend"},
        {"role": "assistant", "content": "Yes, indeed."},
        {"role": "user", "content": "again"},
        {"role": "assistant", "content": "Yes, indeed."},
        {"role": "user", "content": "still there?"},
    ]


def test_every_conversation_starts_with_the_document(run: Run, stub: Stub, tmp_path: Path) -> None:
    file = tmp_path / "document"
    file.write_text("A long text.")
    assert run("chat", "--document", str(file), says="one\n/new\ntwo\n").returncode == 0
    assert [body["messages"][0]["role"] for body in stub.asked] == ["system", "system"]
    assert all(body["messages"][0]["content"].startswith("A long text.\n") for body in stub.asked)


@pytest.mark.parametrize(("tier", "sglang", "note"), [(False, True, "--enable-radix-tier"), (True, False, "no SGLang")])
def test_server_that_tells_no_tiers(run: Run, stub: Stub, tier: bool, sglang: bool, note: str) -> None:
    stub.tier, stub.sglang = tier, sglang
    done = run("chat", says="hello\n")
    assert done.returncode == 0
    assert note in done.stdout.splitlines()[0]
    stub.tier = stub.sglang = True
    assert done.stdout.splitlines()[1:2] == run("chat", says="hello\n").stdout.splitlines()[:1]


def test_request_that_the_server_refuses_is_not_the_end(run: Run, stub: Stub) -> None:
    stub.status = 400
    done = run("chat", says="hello\nhello again\n")
    assert done.returncode == 0
    assert done.stdout.count("answered 400: the prompt is too long") == 2


@pytest.mark.parametrize(("cut", "error", "status"), [(True, "", 1), (False, "out of memory", 0)])
def test_answer_that_does_not_end(run: Run, stub: Stub, cut: bool, error: str, status: int) -> None:
    stub.cut, stub.error = cut, error
    done = run("chat", says="hello\n")
    assert done.returncode == status
    assert (error or "error:") in done.stdout + done.stderr
    assert "[HBM" not in done.stdout


def test_key(run: Run, stub: Stub, tmp_path: Path) -> None:
    stub.key = "secret"
    file = tmp_path / "key"
    file.write_text("secret\n")
    refused = run("chat", says="hello\n")
    assert refused.returncode == 1
    assert "401" in refused.stderr
    assert "[HBM" in run("chat", "--key-file", str(file), says="hello\n").stdout


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--url", "localhost:3"], "error: --url localhost:3: not the address of a server. Write http://"),
        (["--url", "http://127.0.0.1:9"], "error: no server answers at http://127.0.0.1:9: "),
        (["--document", "/no/such"], "error: --document /no/such: No such file or directory. Name a readable"),
        (["--key-file", "/"], "error: --key-file /: Is a directory."),
    ],
)
def test_bad_arguments(run: Run, arguments: list[str], error: str) -> None:
    done = run("chat", *arguments, says="hello\n")
    assert done.returncode == 1
    assert done.stderr.startswith(error)
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("value", "colours"), [("", True), ("1", False)])
def test_colours_on_a_terminal(url: str, stub: Stub, value: str, colours: bool) -> None:
    stub.answer = lambda body: ["\x1b[2J", "clear\r", " the\x07 screen"]
    shown = on_terminal(["--url", url], "hello\n", {"NO_COLOR": value, "TERM": "xterm"})
    assert "[2Jclear the screen" in shown
    assert "\x07" not in shown
    assert ("\x1b[30;43m computed \x1b[0m [HBM 0 | " in shown) is colours
    assert ("\x1b" in shown) is colours


def on_terminal(arguments: list[str], says: str, env: dict[str, str]) -> str:
    """Run the chat with its output on a terminal, and return what came."""
    ours, theirs = pty.openpty()
    command = [sys.executable, str(EXAMPLES / "chat.py"), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=theirs, env=os.environ | env) as process:
        os.close(theirs)
        assert process.stdin is not None
        process.stdin.write(says.encode())
        process.stdin.close()
        shown = b""
        with open(ours, "rb", buffering=0) as screen:
            try:
                while piece := screen.read(4096):
                    shown += piece
            except OSError:
                pass  # the other side is closed
        assert process.wait(PATIENCE_S) == 0
    return shown.decode()
