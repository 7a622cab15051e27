"""Every command of the documentation is run in a sandbox, or read by the parser that it is for.

:data:`RULES` says which, by the beginning of the command; the first that fits counts. A command that none fits fails
the test: give it a rule, so that nobody can write one that nobody checks.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from docs_rig import PAGES, ROOT, SHELL, Command, blocks, commands, name_of
from docs_sandbox import Sandbox

from radixtier.cli.main import main
from radixtier.control.routes import ROUTES
from radixtier.settings import load_config

COMMANDS = [c for page in PAGES for block in blocks(page) if block.language in SHELL for c in commands(block)]

SECONDS = 120
"""Longest a script or an example may take to print its help."""


class Read(BaseException):
    """The arguments were read to the end; nothing has been done yet."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options


def run(command: Command, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, *fine: int) -> None:
    """Run a command of ours on what the sandbox has; its status is 0, or one of ``fine``."""
    place, words = sandbox.ready(command.words[1:])
    if words[:2] in (["store", "gc"], ["store", "clear"]) and "--yes" not in words:
        words.append("--yes")  # nobody is there to be asked
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", ["radixtier", *words])
    try:
        status = main(words)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 2
    assert status in {0, *fine}, f"{command.line}: status {status}"


def run_or_no(command: Command, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for a command whose answer may be no: it depends on the machine, or on the load."""
    run(command, sandbox, monkeypatch, 1)


def read(command: Command, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a command of ours read its arguments, and stop before it does anything."""
    real = argparse.ArgumentParser.parse_args
    dispatchers = {"radixtier", "radixtier bench"}

    def stop(self: argparse.ArgumentParser, *arguments: Any, **more: Any) -> argparse.Namespace:
        options = real(self, *arguments, **more)
        if self.prog not in dispatchers:
            raise Read(options)
        return options

    words = [word for word in command.words[1:] if word != "..."]
    options = argparse.Namespace()
    with monkeypatch.context() as patched:
        patched.setattr(argparse.ArgumentParser, "parse_args", stop)
        try:
            main(words)
        except Read as end:
            options = end.options
        except SystemExit as end:
            pytest.fail(f"{command.line}: {end}")
    assert vars(options), f"{command.line}: no arguments were read"
    for name in ("launch", "compare"):
        given = getattr(options, name, None) or []
        for line in [given] if isinstance(given, str) else given:
            if "--" in line:
                check_server(shlex.split(line))


_SERVER: list[argparse.ArgumentParser] = []


def server_parser() -> argparse.ArgumentParser:
    """SGLang's own parser with our flags on it."""
    if not _SERVER:
        from sglang.srt.plugins import load_plugins
        from sglang.srt.server_args import ServerArgs

        load_plugins()
        made = argparse.ArgumentParser(exit_on_error=False)
        ServerArgs.add_cli_args(made)
        _SERVER.append(made)
    return _SERVER[0]


def check_server(words: Sequence[str]) -> None:
    """Read the arguments of a server, and ours among them as its start would."""
    from radixtier.sglang.flags import given_flags

    arguments = [word for word in words if word != "..."]
    arguments += [] if "--model-path" in arguments else ["--model-path", "MODEL"]
    try:
        flags = given_flags(server_parser().parse_args(arguments))
    except SystemExit:
        pytest.fail(f"{' '.join(words)}: SGLang does not take this")
    # The docs leave the switch out where they show only what is added to a command.
    _, problems, _ = load_config({"enable": True, **flags}, {})
    assert not problems


def server(command: Command, *_: Any) -> None:
    words = list(command.words)
    after = words.index("sglang.launch_server") if "sglang.launch_server" in words else words.index("serve")
    rest = words[after + 1 :]
    # `sglang serve MODEL` is its own way to say it.
    check_server(rest if not rest or rest[0].startswith("-") or rest[0] == "..." else ["--model-path", *rest])


def module(command: Command, *_: Any) -> None:
    """A module of Python that can be run."""
    name = command.words[command.words.index("-m") + 1]
    assert importlib.util.find_spec(name) is not None, f"{command.line}: no module {name}"
    if name.startswith("radixtier"):
        _takes([sys.executable, "-m", name], command.words[command.words.index("-m") + 2 :])


def example(command: Command, *_: Any) -> None:
    _takes([sys.executable, str(_file(command.words[1]))], command.words[2:])


def script(command: Command, *_: Any) -> None:
    """A script of launch: it is there, its syntax is right, and it or what it starts knows the flags."""
    words = command.words[1:] if command.words[0] == "bash" else command.words
    file = _file(words[0])
    subprocess.run(["bash", "-n", str(file)], check=True, timeout=SECONDS)
    text = file.read_text(encoding="utf-8")
    started = re.search(r"-m (radixtier\S*)", text)
    known = text
    for name in ["radixtier.cli.gate_options"] if "gate run" in text else [started[1]] if started else []:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        known += Path(spec.origin).read_text(encoding="utf-8")
    for flag in [word.partition("=")[0] for word in words[1:] if word.startswith("--")]:
        assert flag in known, f"{command.line}: {flag} stands nowhere in {file.name}"


def asked(command: Command, *_: Any) -> None:
    """A request by curl: to a route of ours, or of SGLang's server."""
    for path in re.findall(r"http://[^/\s]+(/[\w/.]+)", command.line):
        assert path in {route.path for route in ROUTES} | SGLANG_ROUTES, f"{command.line}: no route {path}"


SGLANG_ROUTES = {"/flush_cache", "/generate", "/health", "/health_generate", "/metrics", "/v1/chat/completions"}


def installed(command: Command, *_: Any) -> None:
    """What pip is to install: extras of ours that exist."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for extra in re.findall(r"\[([\w,]+)\]", command.line):
        for name in extra.split(","):
            assert re.search(rf"^{name} = \[", project, re.MULTILINE), f"{command.line}: no extra {name}"


def outside(command: Command, *_: Any) -> None:
    """A command of others; what it names of ours is there."""
    for word in command.words[1:]:
        if re.match(r"(\./)?(docs|examples|launch|tests)/\w", word):
            assert next(ROOT.glob(word.removeprefix("./")), None), f"{command.line}: {word} is not there"


def checked(command: Command, *_: Any) -> None:
    """ruff, mypy and pytest: the folders that are named are there; CI runs them."""
    outside(command)


SHELLS = (
    "apt-get", "cat", "cd", "chmod", "chown", "cp", "df", "dirname", "dmesg", "du", "echo", "export", "git", "grep",
    "head", "install", "kill", "ls", "mkdir", "mount", "mv", "rm", "set", "sleep", "ssh", "tail", "ulimit", "umount",
    "useradd",
)  # fmt: skip
"""Commands that every machine has."""

OTHERS = (
    "docker", "findmnt", "fio", r"(/\S+/)?gdscheck", "journalctl", "kubectl", "lsblk", "mdadm", r"mkfs\.\w+",
    "nvidia-smi", "nvme", "promtool", "sysctl", "systemctl", "systemd-analyze",
)  # fmt: skip
"""Commands of what the tier is run with."""

RULES: Sequence[tuple[str, Callable[..., None]]] = (
    (r"radixtier serve ", server),
    (r"radixtier --(help|version) ", run),
    (r"radixtier completion ", run),
    (r"radixtier config (print|schema)", run),
    (r"radixtier config check --env", run_or_no),
    (r"radixtier config check ", run),
    (r"radixtier store ", run),
    (r"radixtier (doctor|suggest|patch status) ", run_or_no),
    (r"radixtier lab (plan|compare) ", run_or_no),
    (r"radixtier lab ", run),
    (r"radixtier (bench|dashboard|drain|explain|gate|hint|patch|top)\b", read),
    (r"sglang serve |python3? -m sglang\.launch_server ", server),
    (r"python3? -m (pytest|venv|http\.server) ", checked),
    (r"python3? -m ", module),
    (r"python3? examples/", example),
    (r"(bash )?(\./)?launch/\S+\.sh", script),
    (r"curl ", asked),
    (r"pip install ", installed),
    (r"(ruff|mypy)\b", checked),
    (rf"({'|'.join(SHELLS)}) ", outside),
    (rf"({'|'.join(OTHERS)})\b", outside),
    (r"\. ", outside),
)
"""How the command begins, and what is done with it."""


def _takes(start: Sequence[str], words: Sequence[str]) -> None:
    """Check that the help of a program has the flags that are given."""
    result = subprocess.run([*start, "--help"], capture_output=True, text=True, timeout=SECONDS, check=False, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    for word in words:
        if word.startswith("--"):
            assert word.partition("=")[0] in result.stdout, f"{' '.join(start)} has no {word}"


def _file(word: str) -> Path:
    file = ROOT / word.removeprefix("./")
    assert file.is_file(), f"{word} is not there"
    return file


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    return Sandbox(tmp_path_factory.mktemp("sandbox"))


def distinct() -> dict[str, Command]:
    """Commands without repetitions, by what tells them apart."""
    found: dict[str, Command] = {}
    for command in COMMANDS:
        found.setdefault(command.line, command)
    return {f"{command.where}-{command.words[0]}": command for command in found.values()}


DISTINCT = distinct()


@pytest.mark.parametrize("command", DISTINCT.values(), ids=DISTINCT.keys())
def test_the_command_works(command: Command, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    for beginning, check in RULES:
        if re.match(beginning, f"{command.line} "):
            check(command, sandbox, monkeypatch)
            return
    pytest.fail(f"{command.where}: {command.line}: nobody checks this: add a rule to {name_of(Path(__file__))}")


def test_every_page_with_commands_has_them_in_a_block_that_is_checked() -> None:
    """A block without a language may show a form or an output, but one that can be pasted is named bash."""
    pasted = [
        f"{name_of(page)}:{block.line}"
        for page in PAGES
        for block in blocks(page)
        if not block.language and re.match(r"(\$ |pip |curl |systemctl |kubectl |docker )", block.text)
    ]
    assert not pasted
