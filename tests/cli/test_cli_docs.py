"""docs/cli.md and ``--help``: every command is there, its help runs without SGLang and torch and tells the statuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from radixtier.cli.bench import BENCHES
from radixtier.cli.completion import everything
from radixtier.cli.exits import EPILOG, MEANINGS, subcommands
from radixtier.cli.main import SUBCOMMANDS

TEXT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
PATIENCE_S = 120.0

COMMANDS = [
    *([name] for name in SUBCOMMANDS if name != "serve"),
    *(["config", name] for name in ("check", "print", "schema")),
    *(["store", name] for name in ("ls", "stat", "verify", "scrub", "gc", "clear")),
    *(["hint", name] for name in ("prefetch", "demote", "pin", "retain", "share", "release")),
    *(["lab", name] for name in ("run", "timed", "sweep", "plan", "compare")),
    *(["gate", name] for name in ("run", "show")),
    *(["patch", name] for name in ("status", "apply", "revert")),
    ["bench", "serve"],
]
"""All whose help is radixtier's own; that of ``serve`` is SGLang's."""


def section(name: str) -> str:
    """Return what the page says about a command."""
    return re.split(r"^## ", TEXT, flags=re.MULTILINE)[sections().index(name) + 1]


def sections() -> list[str]:
    return re.findall(r"^## (.+)$", TEXT, flags=re.MULTILINE)


def test_the_page_lists_the_commands_of_the_program() -> None:
    table = re.findall(r"^\| \[`(\w+)`\]\(#(\w+)\) \|", TEXT, flags=re.MULTILINE)
    assert [name for name, _ in table] == list(SUBCOMMANDS) and all(name == anchor for name, anchor in table)
    assert sections()[-len(SUBCOMMANDS) :] == list(SUBCOMMANDS)
    assert re.findall(r"^\| `bench (\w+)` \|", TEXT, flags=re.MULTILINE) == list(BENCHES)


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_command_has_an_example(name: str) -> None:
    blocks = re.findall(r"^```bash\n(.*?)^```", section(name), flags=re.MULTILINE | re.DOTALL)
    assert any(f"radixtier {name}" in block for block in blocks)


def test_the_page_has_the_statuses() -> None:
    rows = re.findall(r"^\| (\d+) \| ([^|:]+)", TEXT, flags=re.MULTILINE)
    assert {int(status): meaning.strip() for status, meaning in rows} == MEANINGS


def test_every_option_on_the_page_exists() -> None:
    commands = subcommands(everything())
    for name in SUBCOMMANDS:
        known = set[str]()
        waiting = [commands[name]]
        while waiting:
            parser = waiting.pop()
            known |= {flag for action in parser._actions for flag in action.option_strings}
            waiting += subcommands(parser).values()
        if name != "serve":
            text = re.sub(r"\[[^]]*\]\([^)]*\)", "", section(name))
            foreign = {"--device", "--config", "--cpu-demo"} if name == "suggest" else {"--device"}
            assert set(re.findall(r"--[a-z][a-z-]+", text)) - known - foreign == set()


def test_all_commands_are_tried_here() -> None:
    found = []
    for name, parser in subcommands(everything()).items():
        found += [[name], *([name, each] for each in subcommands(parser) if name != "bench")]
    assert sorted(found) == sorted([*[c for c in COMMANDS if c[0] != "bench" or len(c) == 1], ["serve"]])


@pytest.fixture(scope="module")
def helps() -> dict[str, tuple[int, str]]:
    """Return status and text of every help, of one process that has neither SGLang nor torch."""
    program = f"""
import contextlib, io, json, sys
sys.modules.update(dict.fromkeys(("torch", "sglang", "sgl_kernel", "triton")))
from radixtier.cli.main import main
found = {{}}
for words in {COMMANDS!r}:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            status = main([*words, "--help"])
        except SystemExit as end:
            status = end.code
    found[" ".join(words)] = status or 0, out.getvalue()
print(json.dumps(found))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    found: dict[str, tuple[int, str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_help_runs_and_tells_the_statuses(words: list[str], helps: dict[str, tuple[int, str]]) -> None:
    status, text = helps[" ".join(words)]
    assert status == 0 and text.startswith(f"usage: radixtier {' '.join(words)}")
    assert " ".join(EPILOG.split()) in " ".join(text.split())
