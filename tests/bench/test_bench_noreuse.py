"""The no-reuse benchmark without servers: what is sent, what is reported, and when it refuses to report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from radixtier.demo import bench_noreuse
from radixtier.live.client import Reply


class FakeServer:
    """Answers at once, in the client's and the server's role."""

    def __init__(self, name: str, cached: int = 0) -> None:
        self.name = name
        self.client = self
        self.pid = 0
        self.cached = cached
        self.prompts: list[tuple[int, ...]] = []

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def generate(self, prompt: Sequence[int], max_tokens: int) -> Reply:
        self.prompts.append(tuple(prompt))
        return Reply("", len(prompt), self.cached, 0, 0, (1,) * max_tokens, tuple(prompt), 0.1, 0.2)


def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, servers: list[FakeServer]) -> int:
    @contextmanager
    def no_servers(*_: Any) -> Iterator[list[FakeServer]]:
        yield servers

    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 1000}))
    seconds = count(1)
    monkeypatch.setattr(bench_noreuse, "_servers", no_servers)
    monkeypatch.setattr("radixtier.load.paired.cpu_seconds", lambda _: float(next(seconds)))
    monkeypatch.setattr(bench_noreuse, "end_like_ctrl_c", lambda: None)
    return bench_noreuse.main(["--quick", "--model", str(tmp_path), "--json", str(tmp_path / "out.json")])


def test_both_get_the_same_prompts_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    servers = [FakeServer("stock"), FakeServer("radixtier")]
    assert run(monkeypatch, tmp_path, servers) == 0
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["turns"] == 4 and result["target"] == 0.98 and result["cpu_ratio"] == 1.0
    assert {"ratio", "spread", "cpu_spread", "stock_tokens_per_s", "radixtier_tokens_per_s"} < result.keys()
    stock, tiered = (sorted(server.prompts) for server in servers)
    assert stock == tiered
    long = [prompt for prompt in stock if len(prompt) == bench_noreuse.PROMPT_TOKENS]
    assert len(long) == (4 + bench_noreuse.WARM_TURNS) * bench_noreuse.PROMPTS
    assert len({prompt[: bench_noreuse.PAGE_SIZE] for prompt in long}) == len(long)


def test_reuse_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, tmp_path, [FakeServer("stock"), FakeServer("radixtier", cached=16)]) == 1
    assert "radixtier reused tokens" in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()
