"""``radixtier serve``: starts SGLang's server, on a CPU with the environment and defaults that a CPU needs.

Owns those defaults. Invariant: an argument the user gives, on the command line or in SGLang's ``--config`` file, is
passed on as it is; without ``--device cpu`` nothing is added to arguments or environment. Replaces this process.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence

# Argument, value ("" for a switch), and why a CPU server wants it.
_CPU_DEFAULTS = (
    ("--dtype", "float32", "bfloat16 is ten times slower on a CPU without instructions for it"),
    ("--attention-backend", "torch_native", "its cached prefix costs no attention here"),
    ("--sampling-backend", "pytorch", "the others need a GPU"),
    ("--disable-overlap-schedule", "", "a CPU has nothing to overlap: the first token would wait for the second"),
    ("--sleep-on-idle", "", "an idle scheduler would keep a core busy"),
)

_CPU_MEMORY = 0.8
"""Of a machine's memory, for weights and "HBM" of all ranks together."""

_SIZED = ("--max-total-tokens", "--mem-fraction-static", "--enable-radix-tier")
"""With any of these the memory is shared out already."""

_RANKS = ("--tp", "--tp-size", "--tensor-parallel-size")
"""Names of SGLang's flag for the number of tensor parallel ranks."""


def main(argv: Sequence[str]) -> int:
    """Hand over to ``python -m sglang.launch_server``; returns only if SGLang is not installed.

    Parameters
    ----------
    argv
        SGLang's own arguments, radixtier's flags among them.
    """
    if importlib.util.find_spec("sglang") is None:
        print(f"radixtier serve: {sys.executable} has no SGLang: pip install 'radixtier[sglang]'", file=sys.stderr)
        return 2
    arguments, env, notes = prepare(argv, os.environ)
    for note in notes:
        print(f"radixtier serve: {note}", file=sys.stderr, flush=True)
    os.execve(sys.executable, [sys.executable, "-m", "sglang.launch_server", *arguments], env)


def parser() -> argparse.ArgumentParser:
    """Return a parser of radixtier's own flags, for completion: SGLang reads the command line."""
    from radixtier.settings import SETTINGS
    from radixtier.sglang.flags import add_flags

    made = argparse.ArgumentParser(prog="radixtier serve", add_help=False, allow_abbrev=False)
    add_flags(made)
    choices = {setting.flag: setting.choices for setting in SETTINGS if setting.choices}
    for action in made._actions:
        action.choices = choices.get(action.option_strings[0])
    return made


def prepare(argv: Sequence[str], base_env: Mapping[str, str]) -> tuple[list[str], dict[str, str], list[str]]:
    """Decide the server's arguments and environment.

    Returns
    -------
    tuple
        Arguments, environment, and one line for each thing that was added.
    """
    given = _given(argv)
    arguments, env = list(argv), dict(base_env)
    notes: list[str] = []
    if given.get("--device") != "cpu":
        return arguments, env, notes
    for name, value, reason in _CPU_DEFAULTS:
        if name not in given:
            added = [name, value] if value else [name]
            arguments += added
            notes.append(f"adding {' '.join(added)} ({reason})")
    from radixtier.cpu import environment

    ranks = _ranks(given)
    if ranks > 1 and not given.keys() & set(_SIZED):
        added = ["--mem-fraction-static", f"{_CPU_MEMORY / ranks:.3f}"]
        arguments += added
        notes.append(f"adding {' '.join(added)} (each rank would take the machine's memory for itself)")
    env = environment(base_env, ranks)
    notes += [f"setting {name}={env[name]}" for name in sorted(env) if env[name] != base_env.get(name)]
    return arguments, env, notes


def _ranks(given: Mapping[str, str]) -> int:
    """Processes that compute; what SGLang would not accept counts as one, since SGLang is about to say so."""
    asked = next((given[name] for name in _RANKS if name in given), "1")
    return max(1, int(asked)) if asked.isdecimal() else 1


def _given(argv: Sequence[str]) -> dict[str, str]:
    """Names and values of the arguments; the command line wins over SGLang's ``--config`` file, as in SGLang."""
    given: dict[str, str] = {}
    for position, word in enumerate(argv):
        name, separator, value = word.partition("=")
        if name.startswith("--"):
            following = argv[position + 1] if position + 1 < len(argv) else ""
            given[name] = value if separator else following
    if "--config" in given:
        given = {**_config_file(given["--config"]), **given}
    return given


def _config_file(path: str) -> dict[str, str]:
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            content = yaml.safe_load(file)
    except (OSError, yaml.YAMLError):
        return {}  # SGLang reads the file again and says what is wrong with it.
    if not isinstance(content, dict):
        return {}
    return {f"--{str(key).replace('_', '-')}": str(value) for key, value in content.items()}
