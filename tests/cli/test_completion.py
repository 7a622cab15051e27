"""``radixtier completion``: the scripts complete what there is, and nothing is loaded for them that is not needed."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from radixtier.cli.bench import BENCHES
from radixtier.cli.completion import SHELLS, everything
from radixtier.cli.exits import subcommands
from radixtier.cli.main import SUBCOMMANDS, main
from radixtier.settings import CONFIG_FILE, SETTINGS

PATIENCE_S = 120.0

_DRIVE = """
source {script}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
function=$(complete -p radixtier | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
"$function" radixtier "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD - 1]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the script for bash, by a process that has neither SGLang nor torch."""
    blocked = "import sys; sys.modules.update(dict.fromkeys(('torch', 'sglang', 'sgl_kernel', 'triton')))"
    program = f"{blocked}\nfrom radixtier.cli.main import main\nsys.exit(main(['completion', 'bash']))"
    made = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert made.returncode == 0, made.stderr
    file = tmp_path_factory.mktemp("completion") / "radixtier.bash"
    file.write_text(made.stdout)
    return file


def complete(script: Path, *words: str) -> list[str]:
    """Return what bash offers for the last word."""
    program = _DRIVE.format(script=shlex.quote(str(script)), words=shlex.join(["radixtier", *words]))
    command = ["bash", "--norc", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=script.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["com"], ["completion"]),
        (["dr"], ["drain"]),
        (["store", "ver"], ["verify"]),
        (["store", "ls", "--j"], ["--json"]),
        (["top", "--on"], ["--once"]),
        (["hint", "pin", "--tier", ""], ["dram", "nvme"]),
        (["lab", "run", "--eviction", "s"], ["slru", "s3fifo"]),
        (["bench", "se"], ["serve"]),
        (["bench", "io", "--ro"], ["--rounds"]),
        (["bench", "serve", "--workl"], ["--workload"]),
        (["config", "pr"], ["print"]),
        (["config", "check", "--e"], ["--env"]),
        (["gate", "run", "--profile", "a"], ["agents"]),
        (["serve", "--radix-tier-dr"], ["--radix-tier-dram-size"]),
        (["serve", "--radix-tier-io-engine", "k"], ["kvikio"]),
        (["serve", "--tp"], []),
        (["completion", "z"], ["zsh"]),
    ],
)
def test_bash_completes(script: Path, words: list[str], found: list[str]) -> None:
    assert complete(script, *words) == found


def test_files_and_directories(script: Path) -> None:
    (script.parent / "a-folder").mkdir(exist_ok=True)
    (script.parent / "a-file.yaml").touch()
    assert set(complete(script, "config", "check", "a-")) >= {"a-file.yaml"}
    assert complete(script, "store", "ls", "a-") == ["a-folder"]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_knows_every_subcommand(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in (*SUBCOMMANDS, *BENCHES))
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=text, text=True, capture_output=True, timeout=PATIENCE_S)
        assert checked.stderr == ""


def test_every_subcommand_has_its_parser() -> None:
    commands = subcommands(everything())
    assert list(commands) == list(SUBCOMMANDS)
    assert list(subcommands(commands["bench"])) == list(BENCHES)
    every = commands | subcommands(commands["bench"])
    assert [name for name, parser in every.items() if not parser._actions] == []
    ours = {flag for action in commands["serve"]._actions for flag in action.option_strings}
    assert ours == {setting.flag for setting in (*SETTINGS, CONFIG_FILE)}, "the rest is SGLang's"
