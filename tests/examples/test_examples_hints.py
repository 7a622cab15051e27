"""examples/agents.py and examples/rag.py: the hints they give, the requests they send, the tables they end with."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from examples_stub import Run, Stub, Tier, control, tokens_of

from radixtier.control import Address

FAST = ("--words", "20", "--max-tokens", "4")
AGENTS = ("agents", *FAST, "--agents", "3", "--turns", "3", "--attached", "3", "--lines", "2", "--speed", "200")


@pytest.fixture
def tier() -> Tier:
    return Tier()


@pytest.fixture
def address(tier: Tier, tmp_path: Path) -> Iterator[str]:
    with control(tier, Address(path=str(tmp_path / "c.sock"))) as text:
        yield text


def rows(output: str) -> dict[str, list[str]]:
    """The rows of a table by their first column."""
    cut = [line.split("  ") for line in output.splitlines()]
    return {cells[0]: [cell.strip() for cell in cells[1:] if cell.strip()] for cells in cut if len(cells) > 4}


def test_agents_tell_when_they_are_back(run: Run, stub: Stub, tier: Tier, address: str) -> None:
    done = run(*AGENTS, control=address)
    assert done.returncode == 0, done.stderr
    sessions = Counter(body["session_id"] for body in stub.asked)
    assert sorted(sessions.values()) == [3, 3, 3]
    for kind, times in (("retain", 2), ("prefetch", 2), ("release", 1)):
        assert Counter(each.target.session for each in tier.given(kind)) == dict.fromkeys(sessions, times)
    # At 200 times the speed, no tool usually takes longer than 0.5 s.
    assert all(0 <= each.hint.by_s <= 0.5 for each in tier.given("prefetch"))
    assert {each.hint.ttl_s for each in tier.given("retain")} == {60.0}
    assert done.stdout.splitlines()[-3:] == ["prefetch accepted 6", "release accepted 3", "retain accepted 6"]
    assert rows(done.stdout)["first turns"][0] == "3"
    assert rows(done.stdout)["after a pause"][0] == "6"


def test_agents_send_what_the_tools_said_and_share_the_handbook(run: Run, stub: Stub) -> None:
    done = run(*AGENTS, "--no-hints")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "no hints"
    assert len({body["messages"][0]["content"] for body in stub.asked}) == 1
    assert len({body["messages"][1]["content"] for body in stub.asked}) == 3
    longest = [body["messages"] for body in stub.asked if len(body["messages"]) == 6]
    assert len(longest) == 3
    for messages in longest:
        assert [each["role"] for each in messages[1:]] == ["user", "assistant", "user", "assistant", "user"]
        assert all(" says:\n" in each["content"] for each in messages[3::2])
    total = sum(len(tokens_of(body["messages"])) + 1 for body in stub.asked)
    assert sum(told(done.stdout)) == total


def told(output: str) -> list[int]:
    """All tokens that the lines about turns tell of."""
    lines = [line for line in output.splitlines() if "first token after" in line]
    words = [line.partition(" tokens;")[0].partition("HBM ")[2] for line in lines]
    parts = [part.split()[-1] for line in words for part in line.split("|")]
    return [int(part.replace(",", "")) for part in parts]


def test_runs_share_no_handbook(run: Run, stub: Stub) -> None:
    for _ in range(2):
        assert run(*AGENTS, "--no-hints").returncode == 0
    assert len({body["messages"][0]["content"] for body in stub.asked}) == 2
    assert len({body["session_id"] for body in stub.asked}) == 6


def test_agents_whose_model_chooses_the_tools(run: Run, stub: Stub) -> None:
    arguments = json.dumps({"machine": "1"})
    stub.answer = lambda body: [] if len(body["messages"]) < 4 else ["done"]
    stub.calls = lambda body: [("run_checks", arguments), ("fly", arguments)] if len(body["messages"]) < 4 else []
    done = run(*AGENTS, "--no-hints", "--tools")
    assert done.returncode == 0, done.stderr
    assert "run_checks, fly took" in done.stdout
    assert len(stub.asked) == 6  # done after two turns of three
    second = next(body["messages"] for body in stub.asked if len(body["messages"]) > 2)
    assert [each["role"] for each in second] == ["system", "user", "assistant", "tool", "tool"]
    assert [call["function"] for call in second[2]["tool_calls"]] == [
        {"name": "run_checks", "arguments": arguments},
        {"name": "fly", "arguments": arguments},
    ]
    assert [each["tool_call_id"] for each in second[3:]] == ["c0", "c1"]
    assert "there is no tool fly" in second[4]["content"]


def test_agents_end_when_the_server_fails_one(run: Run, stub: Stub) -> None:
    stub.status = 500
    done = run(*AGENTS, "--no-hints")
    assert done.returncode == 1
    assert "answered 500: the prompt is too long" in done.stderr


def test_hint_is_repeated_until_the_server_knows_the_path(run: Run, tier: Tier, address: str) -> None:
    tier.refuse = 3
    done = run("rag", *FAST, "--questions", "2", control=address)
    assert done.returncode == 0, done.stderr
    assert "architecture.md: share accepted" in done.stdout
    assert tier.refuse == 0


def test_hint_that_fails_ends_nothing(run: Run, tier: Tier, address: str) -> None:
    tier.refuse = 10**6
    done = run("rag", *FAST, "--questions", "2", control=address)
    assert done.returncode == 0, done.stderr
    assert "architecture.md: share rejected: its backup is not over yet" in done.stdout


def test_hot_documents_are_shared_by_their_tokens(
    run: Run, stub: Stub, tier: Tier, address: str, tmp_path: Path
) -> None:
    files = [tmp_path / name for name in ("hot.txt", "warm.txt", "cold.txt")]
    for number, file in enumerate(files):
        file.write_text(f"Text {number} " + "of many words " * 30)
    names = [str(file) for file in files]
    done = run("rag", *FAST, "--questions", "20", "--hot", "2", "--document", *names, control=address)
    assert done.returncode == 0, done.stderr
    openings = {body["messages"][0]["content"]: None for body in stub.asked}
    assert [len(opening.split()) for opening in openings] == [20 + 7] * 3
    wanted = [
        [stub.number(word) for word in tokens_of([{"role": "system", "content": opening}])]
        for opening in [*openings][:2]
    ]
    assert [list(each.target.tokens or ()) for each in tier.given("share")] == wanted
    assert len(stub.asked) == 3 + 20
    assert len({json.dumps(body["messages"]) for body in stub.asked}) == 3 + 20
    table = rows(done.stdout)
    assert table["all"][0] == "20" and sum(int(table[file.name][0]) for file in files) == 20
    # Every document was computed once: later, only the question is.
    computed = [int(line.partition(" tokens;")[0].split()[-1]) for line in done.stdout.splitlines() if "| comp" in line]
    assert sum(computed[3:]) == int(table["all"][4])
    assert max(computed[3:]) < min(computed[:3])


def test_rag_finds_documents_of_an_earlier_run_unless_told_not_to(run: Run, stub: Stub) -> None:
    quick = ("rag", *FAST, "--questions", "1", "--no-hints")
    assert run(*quick).returncode == 0
    openings = {body["messages"][0]["content"] for body in stub.asked}
    assert run(*quick).returncode == 0
    assert {body["messages"][0]["content"] for body in stub.asked} == openings
    assert run(*quick, "--fresh").returncode == 0
    assert len({body["messages"][0]["content"] for body in stub.asked}) == 2 * len(openings)


def test_key_is_for_hints_as_well(run: Run, stub: Stub, tier: Tier, tmp_path: Path) -> None:
    stub.key = "secret"
    file = tmp_path / "key"
    file.write_text("secret\n")
    with control(tier, Address(host="127.0.0.1"), "secret") as address:
        done = run("rag", *FAST, "--questions", "1", "--key-file", str(file), "--control", address)
    assert done.returncode == 0, done.stderr
    assert len(tier.given("share")) == 1


@pytest.mark.parametrize("name", ["agents", "rag"])
@pytest.mark.parametrize(
    ("arguments", "status", "error"),
    [
        ([], 1, "error: --control is not given: say where the server takes hints"),
        (["--control", "unix:/no/such"], 1, "error: no control endpoint answers at unix:/no/such: [Errno 2]"),
        (["--control", "here"], 1, "error: --control here: not an address. Write unix:PATH or 127.0.0.1:PORT"),
        (["--no-hints", "--words", "0"], 2, "argument --words: '0' is not a whole number above 0"),
    ],
)
def test_bad_arguments_of_hints(run: Run, name: str, arguments: list[str], status: int, error: str) -> None:
    done = run(name, *arguments)
    assert done.returncode == status
    assert error in done.stderr.splitlines()[-1]


def test_bad_arguments_of_one(run: Run) -> None:
    assert "argument --speed: 'nan' is not a number above 0" in run("agents", "--speed", "nan").stderr
    assert "error: --hot 99: there are " in run("rag", "--no-hints", "--hot", "99").stderr
