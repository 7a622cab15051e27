"""``radixtier explain`` and ``radixtier hint`` against a server with a script."""

from __future__ import annotations

import io
import json
import socket
import threading
from array import array
from pathlib import Path
from typing import Any

import pytest
from control_rig import LOOPBACK, Script, client, serving

from radixtier.cli.main import main
from radixtier.control import Address, Command, ControlServer, ExplainNode, ExplainRequests, GiveHint, Target
from radixtier.control.arguments import ENVIRONMENT
from radixtier.control.client import ControlClient, ControlError
from radixtier.explain import NodeReport, RequestRecord
from radixtier.explain.render import node_json, request_json
from radixtier.policy.hints import Hint, Kind
from radixtier.policy.pins import Tier


class Server(Script):
    """Knows one request and one node, and rejects what is to be demoted."""

    def __call__(self, command: Command) -> dict[str, Any]:
        self.seen.append(command)
        if isinstance(command, GiveHint):
            hint = command.hint
            return (
                hint.rejected("all of it is in use", 64) if hint.kind is Kind.DEMOTE else hint.granted(64, 64)
            ).to_json()
        if isinstance(command, ExplainNode):
            return {"nodes": [node_json(NodeReport(4, tokens=64))]}
        return {"requests": [request_json(RequestRecord("r1", prompt_tokens=64, hbm=60))]}


@pytest.fixture
def script() -> Server:
    return Server()


@pytest.fixture
def server(script: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with serving(Address(path=str(tmp_path / "c.sock")), script) as running:
        monkeypatch.setenv(ENVIRONMENT, str(running.address))
        yield running


def test_explain(server: ControlServer, script: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    assert "computed" in (out := capsys.readouterr().out) and out.splitlines()[1].endswith("0.000  r1")
    assert main(["explain", "r1"]) == 0
    assert "  from HBM          60" in capsys.readouterr().out
    assert main(["explain", "--limit", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["requests"][0]["request"] == "r1"
    assert main(["explain", "--node", "4"]) == 0
    assert "node 4: tokens 0 to 64, behind the root" in capsys.readouterr().out
    assert main(["explain", "--text", "hello", "--cache-salt", "y"]) == 0
    assert script.seen == [
        ExplainRequests(None, 20),
        ExplainRequests("r1"),
        ExplainRequests(None, 3),
        ExplainNode(Target(node=4)),
        ExplainNode(Target(text="hello", cache_salt="y")),
    ]


def test_hint(
    server: ControlServer,
    script: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "ids"
    file.write_text("1 2\n3\n")
    argv = ["--tokens", str(file), "--extra-key", "x", "--ttl", "5", "--tier", "nvme", "--start-token", "1"]
    assert main(["hint", "pin", *argv]) == 0
    assert capsys.readouterr().out == "pin: accepted, 64 of 64 tokens\n"
    file.write_text("[4, 5]")
    assert main(["hint", "prefetch", "--tokens", str(file), "--by", "2.5", "--end-token", "9", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "accepted"
    monkeypatch.setattr("sys.stdin", io.StringIO("6"))
    assert main(["hint", "share", "--tokens", "-"]) == 0
    capsys.readouterr()
    assert main(["hint", "demote", "--session", "s"]) == 1
    assert capsys.readouterr().out == "demote: rejected, 0 of 64 tokens: all of it is in use\n"
    assert script.seen == [
        GiveHint(
            Hint(Kind.PIN, ttl_s=5.0, tier=Tier.NVME, start_token=1),
            Target(tokens=array("q", [1, 2, 3]), extra_key="x"),
        ),
        GiveHint(Hint(Kind.PREFETCH, by_s=2.5, end_token=9), Target(tokens=array("q", [4, 5]))),
        GiveHint(Hint(Kind.SHARE), Target(tokens=array("q", [6]))),
        GiveHint(Hint(Kind.DEMOTE, tier=Tier.NVME), Target(session="s")),
    ]


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_can_be_given(kind: Kind, server: ControlServer, script: Server) -> None:
    main(["hint", kind.value, "--session", "s"])
    assert [type(command) for command in script.seen] == [GiveHint]


def test_the_key_is_read_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "key"
    file.write_text("s\u00e9cret\n")
    with serving(LOOPBACK, Server(), key="s\u00e9cret") as running:
        argv = ["explain", "--control", str(running.address)]
        assert main(argv) == 1
        assert "Bearer KEY" in capsys.readouterr().err
        assert main([*argv, "--key-file", str(file)]) == 0
        assert main([*argv, "--key-file", str(tmp_path / "none")]) == 2
        assert "No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "status", "words"),
    [
        (["explain"], 2, "Give --control ADDRESS or set RADIXTIER_CONTROL"),
        (["explain", "--control", "nowhere"], 2, "nowhere: not an address"),
        (["explain", "--control", "off"], 2, "the control endpoint is off"),
        (["explain", "--control", "unix:/nowhere.sock"], 1, "no answer from unix:/nowhere.sock"),
        (["explain", "r", "--node", "4", "--control", "unix:/nowhere.sock"], 2, "Ask for one of them"),
        (["hint", "pin", "--tokens", "/dev/null/no", "--control", "unix:/nowhere.sock"], 2, "radixtier hint: "),
        (["hint", "pin", "--session", "s"], 2, "Give --control ADDRESS"),
    ],
)
def test_what_goes_wrong_is_one_line(
    argv: list[str], status: int, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    assert main(argv) == status
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def test_tokens_that_are_none(server: ControlServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ids"
    for text, words in (("1 x", "not token ids"), ("[1", "not token ids"), ("[-1]", "-1 is not a token id")):
        file.write_text(text)
        assert main(["hint", "pin", "--tokens", str(file)]) == 2
        assert words in capsys.readouterr().err


def test_the_servers_refusal_is_shown(server: ControlServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hint", "pin", "--session", "s", "--ttl", "-1"]) == 2
    assert "radixtier hint: ttl_s -1.0: not a number of seconds" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["hint"], ["hint", "pin"], ["hint", "demote", "--session", "s", "--ttl", "5"]])
def test_wrong_arguments_are_usage_errors(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 2 and "usage: radixtier hint" in capsys.readouterr().err


def test_something_else_at_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ControlError, match="is it radixtier's"):
            ControlClient(Address(host="127.0.0.1", port=listening.getsockname()[1])).state()
        thread.join()


def test_an_answer_names_its_status(server: ControlServer) -> None:
    with pytest.raises(ControlError) as error:
        client(server).call("GET", "/radix_tier/nowhere")
    assert error.value.status == 404
