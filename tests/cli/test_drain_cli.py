"""``radixtier drain``: asks until it is done, and says when the directories can be unmounted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cli_fakes as fakes
import pytest

from radixtier.cli import drain
from radixtier.cli.main import main
from radixtier.control.arguments import ENVIRONMENT

DIRECTORIES = ["/mnt/nvme0/kv", "/mnt/nvme1/kv"]


def answers(*left: int, unwritten: int = 0) -> Callable[[Any], fakes.Answer]:
    """Drain in so many answers."""
    steps = iter(left)

    def answer(_: Any) -> fakes.Answer:
        pages = next(steps, None)
        if pages is None:
            return 200, {"status": "drained", "unwritten_pages": unwritten, "directories": DIRECTORIES}
        return 200, {"status": "draining", "unwritten_pages": pages, "directories": DIRECTORIES}

    return answer


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    monkeypatch.setattr(drain, "EVERY_S", 0.001)


def run(script: Callable[[Any], fakes.Answer], *argv: str) -> tuple[int, fakes.Script]:
    served = fakes.Script({"/radix_tier/drain": script})
    with fakes.endpoint(served) as address:
        return main(["drain", "--control", address, *argv]), served


def test_it_waits_for_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    status, script = run(answers(70, 5, 0), "--timeout", "7")
    assert status == 0
    assert [body for *_, body, _ in script.seen] == [{"timeout_s": 7.0}] * 4
    assert capsys.readouterr().out == (
        "drained: nothing of the server is open in /mnt/nvme0/kv, /mnt/nvme1/kv; its file systems can be unmounted\n"
        "what was on NVMe comes back when the server is started again\n"
    )


def test_what_was_not_written_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(answers(unwritten=1))[0] == 0
    assert "\n1 page had not been written;" in capsys.readouterr().out


def test_what_is_still_there_is_told_in_the_place_of_the_good_news(capsys: pytest.CaptureFixture[str]) -> None:
    left = "the socket of the control endpoint, /mnt/nvme0/kv/radixtier.sock"
    found = {"status": "drained", "unwritten_pages": 0, "directories": DIRECTORIES, "reason": left}
    assert run(lambda _: (200, found))[0] == 1
    out = capsys.readouterr().out
    assert "drained: the store in /mnt/nvme0/kv, /mnt/nvme1/kv is closed\n" in out
    assert f"until the server ends, its file system cannot be unmounted because of {left}\n" in out
    assert "nothing of the server is open" not in out


def test_a_control_endpoint_that_moves_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drained = {"status": "drained", "unwritten_pages": 0, "directories": DIRECTORIES}
    moved, same = "unix:/run/user/1/radixtier/17.sock", f"unix:{tmp_path}/c.sock"
    for control, said in ((moved, True), (same, False), (None, False)):
        script = fakes.Script({"/radix_tier/drain": (200, {**drained, "control": control})})
        with fakes.endpoint(script, tmp_path / "c.sock") as address:
            assert main(["drain", "--control", address]) == 0
        (tmp_path / "c.sock").unlink()
        assert (f"questions are taken at {control} from now on" in capsys.readouterr().out) is said


def test_it_need_not_wait(capsys: pytest.CaptureFixture[str]) -> None:
    status, script = run(answers(1234), "--no-wait")
    assert status == 1 and len(script.seen) == 1
    out = capsys.readouterr().out
    assert out == "still draining: 1,234 pages to write; do not unmount /mnt/nvme0/kv, /mnt/nvme1/kv yet\n"
    assert run(answers(), "--no-wait", "--json")[0] == 0
    assert json.loads(capsys.readouterr().out)["status"] == "drained"


def test_it_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(drain, "GRACE_S", 0.0)

    def stuck(_: Any) -> fakes.Answer:
        found = {"status": "draining", "unwritten_pages": 3, "directories": DIRECTORIES, "reason": "a write hangs"}
        return 200, found

    assert run(stuck, "--timeout", "0")[0] == 1
    assert "still draining (a write hangs): 3 pages to write" in capsys.readouterr().out


def test_an_interrupt_says_that_the_server_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)
    assert run(answers(*range(100)))[0] == 130
    assert "interrupted; the server goes on draining" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        ((503, {"error": "the server stops"}), 1, "the server stops"),
        ((400, {"error": "timeout_s: too long. Give less."}), 2, "timeout_s: too long"),
        ((404, {"error": "there is no such thing"}), 1, "no such thing"),
    ],
)
def test_a_refusal_is_one_line(
    answer: fakes.Answer, status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(lambda _: answer)[0] == status
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


@pytest.mark.parametrize("text", ["-1", "nan", "soon", "1e9"])
def test_a_timeout_that_is_none(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["drain", "--timeout", text])
    assert end.value.code == 2 and "give seconds from 0 to 3600" in capsys.readouterr().err
