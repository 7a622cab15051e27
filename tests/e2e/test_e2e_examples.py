"""The examples against a real server: they end with status 0, and what left HBM comes back from the tiers below."""

from __future__ import annotations

import http.client
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from e2e_rig import HBM, REQUEST_TIMEOUT_S, Tiered

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed"),
]

EXAMPLES = Path(__file__).parents[2] / "examples"
SHARED = 32
"""Tokens at most that prompts have in common which differ from their first letter on: the template's."""

ANSWER = ("--max-tokens", "8")


def run(tiered: Tiered, name: str, *arguments: str, says: str = "") -> str:
    """Run an example to its end; returns what it printed."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), "--url", tiered.server.url, *arguments],
        input=says,
        capture_output=True,
        text=True,
        timeout=4 * REQUEST_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "without the tier" not in done.stdout
    return done.stdout


def told(output: str) -> list[dict[str, int]]:
    """What the lines about turns tell: tokens by tier."""
    pattern = r"HBM ([\d,]+) \| DRAM ([\d,]+) \| NVMe ([\d,]+) \| computed ([\d,]+) tokens"
    names = ("hbm", "dram", "nvme", "computed")
    return [
        dict(zip(names, (int(cell.replace(",", "")) for cell in row), strict=True))
        for row in re.findall(pattern, output)
    ]


def below_hbm(turns: list[dict[str, int]]) -> int:
    return sum(turn["dram"] + turn["nvme"] for turn in turns)


def control(tiered: Tiered) -> str:
    return f"unix:{tiered.store}/radixtier.sock"


def test_chat_comes_back_from_below(tiered: Tiered) -> None:
    words = [f"{number} {'and so on, ' * 40}" for number in range(6)]
    assert sum(map(len, words)) > 2 * HBM
    talk = "\n/new\n".join(words) + "".join(f"\n/back {number}\nand then?" for number in range(1, 7))
    turns = told(run(tiered, "chat", *ANSWER, says=talk))
    assert len(turns) == 12
    assert below_hbm(turns[6:]) > 0


def test_agents_with_and_without_hints(tiered: Tiered) -> None:
    texts = ("--words", "40", "--attached", "4", "--lines", "2")
    size = ("--agents", "4", "--turns", "3", "--speed", "80", *texts, *ANSWER)
    output = run(tiered, "agents", *size, "--control", control(tiered))
    assert len(turns := told(output)) == 12
    assert below_hbm(turns) > 0
    hints = output.partition("hints, and the latest reason:")[2]
    for kind, times in (("retain", 8), ("prefetch", 8), ("release", 4)):
        assert sum(int(count) for count in re.findall(rf"^{kind} \w+ (\d+)", hints, re.MULTILINE)) == times, hints
    assert re.search(r"^retain (accepted|clipped) ", hints, re.MULTILINE), hints
    assert len(told(run(tiered, "agents", *size, "--no-hints"))) == 12


def test_rag_computes_every_document_once(tiered: Tiered, tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.txt" for number in range(7)]
    for number, file in enumerate(files):
        file.write_text(f"{number} {'and so on, ' * 30}")
    size = ("--questions", "12", *ANSWER, "--document", *map(str, files))
    output = run(tiered, "rag", *size, "--control", control(tiered))
    turns = told(output)
    assert len(turns) == 7 + 12
    first, later = turns[:7], turns[7:]
    assert sum(sum(turn.values()) for turn in first) > 2 * HBM
    assert below_hbm(later) > 0
    # Later, all of a document's whole pages were found, wherever they were by then.
    assert max(turn["computed"] for turn in later) < min(turn["computed"] for turn in first)
    (hint,) = re.findall(r"share (\w+)", output)
    assert hint in ("accepted", "clipped", "deferred")


def test_page_of_chats(tiered: Tiered) -> None:
    command = [sys.executable, str(EXAMPLES / "chat_web" / "server.py"), "--url", tiered.server.url, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            page = process.stdout.readline().split()[1]
            assert json.loads(fetch(page, "/api/server", None))["tier"] == "on"
            texts = [f"{number} {'and so on, ' * 40}" for number in range(6)]
            first = [cached(page, number, text) for number, text in enumerate(texts)]
            again = [cached(page, number, text) for number, text in enumerate(texts)]
        finally:
            process.terminate()
            process.wait(REQUEST_TIMEOUT_S)
    assert all(each.get("device", 0) <= SHARED for each in first)
    assert sum(each.get("host", 0) + (each.get("storage") or 0) for each in again) > 0


def cached(page: str, number: int, text: str) -> dict[str, int]:
    """Ask as the page does; returns the tokens that were cached, by tier."""
    messages = [{"role": "user", "content": text}]
    answer = fetch(page, "/api/chat", {"messages": messages, "max_tokens": 8, "session": f"page-{number}"})
    events = [json.loads(line[5:]) for line in answer.splitlines() if line.startswith("data: {")]
    assert answer.rstrip().endswith("data: [DONE]")
    found: dict[str, int] = {}
    for event in events:
        found = (event.get("sglext") or {}).get("cached_tokens_details") or found
    return found


def fetch(page: str, path: str, body: object) -> str:
    """Send one request to the page's server and return its answer."""
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(page).port, timeout=REQUEST_TIMEOUT_S)
    try:
        data = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200
        return response.read().decode()
    finally:
        connection.close()
