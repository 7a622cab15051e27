"""Where settings come from: the names of every setting, and flag > environment > YAML > default.

Owns the table of names and the reading of the three sources into a :class:`RadixTierConfig`. Invariant:
nothing given is dropped without a word: what cannot be used becomes a :class:`Problem`. Any thread.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import yaml

from radixtier import __version__
from radixtier.config import DIRECT, IO_ENGINES, OTHERS, Origin, Problem, RadixTierConfig
from radixtier.policy.admission import NAMES as ADMISSIONS
from radixtier.policy.eviction import NAMES as EVICTIONS
from radixtier.units import BadValue, Size, Unit, parse_size

ENV_PREFIX = "RADIXTIER_"

FILE_VERSION = 1
"""Of the YAML file: what its key ``version`` may say. A change that gives an old key another meaning raises it."""

Kind = Literal["switch", "size", "bytes", "paths", "word", "text", "file"]
"""How a value is read."""


@dataclass(frozen=True)
class Setting:
    """One setting under its three names.

    Attributes
    ----------
    name : str
        Field of :class:`RadixTierConfig`; also the YAML key (dashes or underscores).
    help : str
        One sentence for ``--help``.
    default : str
        What happens when it is not given, in words.
    metavar : str
        How the value is written; empty for a switch.
    flag : str
        The command-line flag.
    kind : str
        How the value is read, from a text or from what YAML makes of it.
    choices : tuple of str
        The words that it may be, of a setting of kind ``word``.
    """

    name: str
    help: str
    default: str
    metavar: str = ""
    flag: str = ""
    kind: Kind = "text"
    choices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.flag:
            object.__setattr__(self, "flag", f"--radix-tier-{self.name.replace('_', '-')}")

    @property
    def env(self) -> str:
        """The environment variable."""
        return ENV_PREFIX + self.name.upper()


SETTINGS = (
    Setting(
        "enable",
        "Stretch the radix tree over HBM, DRAM and NVMe, in the place of SGLang's hierarchical cache.",
        "off",
        flag="--enable-radix-tier",
        kind="switch",
    ),
    Setting(
        "hbm_size",
        "KV cache in HBM, in bytes or tokens; becomes SGLang's --max-total-tokens.",
        "SGLang's own choice; on --device cpu 1/4 of the available RAM",
        "SIZE",
        kind="size",
    ),
    Setting(
        "dram_size",
        "KV pages in host memory, per server.",
        "1/2 of the available RAM; on --device cpu 1/4",
        "SIZE",
        kind="size",
    ),
    Setting(
        "nvme_size",
        "The store on NVMe, journal included, per server and over all directories; 0 for a DRAM-only tier.",
        "1/2 of the free space of the path; 0 without a path",
        "SIZE",
        kind="size",
    ),
    Setting(
        "nvme_path",
        "Existing directories that hold the store, one per NVMe drive; each gets an equal share of the size.",
        "no NVMe tier",
        "DIRECTORY",
        kind="paths",
    ),
    Setting(
        "nvme_min_free",
        "Space on each file system of the path that is left to others, in bytes.",
        "1GiB",
        "SIZE",
        kind="bytes",
    ),
    Setting(
        "nvme_others",
        "What to do with the store of another model or shape in the path: reclaim its space, or keep it there, counted "
        "against the size.",
        "reclaim",
        "ACTION",
        kind="word",
        choices=OTHERS,
    ),
    Setting(
        "io_engine",
        "How pages are read and written: auto, posix (O_DIRECT in threads) or kvikio (NVIDIA KvikIO).",
        "auto",
        "ENGINE",
        kind="word",
        choices=IO_ENGINES,
    ),
    Setting(
        "direct",
        "Read pages that are used once straight from NVMe to HBM, past DRAM: auto (where KvikIO reads to GPU memory), "
        "on or off.",
        "auto",
        "MODE",
        kind="word",
        choices=DIRECT,
    ),
    Setting(
        "landing_size",
        "GPU memory that these are read to before they go into the KV pool.",
        "256MiB",
        "SIZE",
        kind="size",
    ),
    Setting(
        "scrub",
        "Bytes per second read from NVMe in the background to verify pages; 0 for none.",
        "16MiB",
        "SIZE",
        kind="bytes",
    ),
    Setting(
        "eviction",
        f"Which pages leave DRAM first: {', '.join(EVICTIONS)}.",
        "auto",
        "POLICY",
        kind="word",
        choices=EVICTIONS,
    ),
    Setting(
        "admission",
        f"Which pages are written to NVMe: {', '.join(ADMISSIONS)}.",
        "auto",
        "POLICY",
        kind="word",
        choices=ADMISSIONS,
    ),
    Setting(
        "write_budget",
        "Most bytes written to NVMe: per day (500GB/day), or in drive writes per day (1DWPD); none for no limit.",
        "none",
        "BUDGET",
    ),
    Setting(
        "control",
        "Where hints and questions are taken: unix:PATH, 127.0.0.1:PORT or off.",
        "radixtier.sock in the first directory of the store; without one, a socket in the runtime directory",
        "ADDRESS",
    ),
    Setting(
        "record",
        "New file that the load is recorded in, without any text, for radixtier lab.",
        "none",
        "FILE",
        kind="file",
    ),
    Setting(
        "allow_untested",
        "Start with a release of SGLang that was not tested, if it has every name that radixtier uses.",
        "off",
        kind="switch",
    ),
)

BACKEND = "radixtier"
"""Name of the tier in SGLang's registry of radix cache backends."""

CONFIG_FILE = Setting("config", "YAML file with the settings above; flags and environment win over it.", "none", "FILE")

_BY_NAME = {setting.name: setting for setting in SETTINGS}
_SWITCH = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


class _Given(NamedTuple):
    value: Any
    where: str
    precedence: int  # flag 2, environment 1, YAML 0


def load_config(
    flags: Mapping[str, Any], env: Mapping[str, str], name_of: Callable[[Setting], str] = attrgetter("flag")
) -> tuple[RadixTierConfig, list[Problem], list[str]]:
    """Read every source and build the configuration.

    Parameters
    ----------
    flags : Mapping
        Setting name (and ``config``) -> value, only of flags that were given.
    env : Mapping
        The environment.
    name_of : Callable
        How messages call a setting that ``flags`` gives.

    Returns
    -------
    config : RadixTierConfig
        What could be understood; not validated yet.
    problems : list of Problem
        What could not be.
    notes : list of str
        What an operator should see in the log, one line each.
    """
    problems: list[Problem] = []
    notes: list[str] = []
    given = {name: _Given(value, name_of(_BY_NAME[name]), 2) for name, value in flags.items() if name in _BY_NAME}
    from_env = {s.name: _Given(env[s.env], s.env, 1) for s in SETTINGS if env.get(s.env, "").strip()}
    file = flags.get("config") or env.get(CONFIG_FILE.env, "").strip()
    where = name_of(CONFIG_FILE) if flags.get("config") else CONFIG_FILE.env
    from_yaml = _read_yaml(str(file), where, problems) if file else {}
    for source in (from_env, from_yaml):
        for name, item in source.items():
            given.setdefault(name, item)
    problems += _misspelt_variables(env)
    size, path = given.get("nvme_size"), given.get("nvme_path")
    if size and path and size.precedence > path.precedence and _is_zero(size.value):
        notes.append(f"{size.where} 0 overrides {path.where}: no NVMe tier")
        del given["nvme_path"]
    config = _build(given, problems)
    if not config.enable:
        problems += _stray_flags(flags, name_of, notes, [item.where for item in given.values() if item.precedence < 2])
    return config, problems, notes


def _build(given: Mapping[str, _Given], problems: list[Problem]) -> RadixTierConfig:
    values: dict[str, Any] = {}
    for name, item in given.items():
        try:
            values[name] = _PARSERS[_BY_NAME[name].kind](item.value)
        except BadValue as error:
            problems.append(Problem(item.where, item.value, error.why, error.fix))
    return RadixTierConfig(
        **values, origin={name: Origin(item.where, _shown(item.value)) for name, item in given.items()}
    )


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _parse_switch(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    try:
        return _SWITCH[str(value).strip().lower()]
    except KeyError:
        raise BadValue("neither on nor off", "Write 1 or 0") from None


def _parse_given_size(value: Any) -> Size:
    # YAML reads 1e9 as a float; its text is a plain number again.
    return parse_size(f"{value:f}" if isinstance(value, float) else value)


def _parse_bytes(value: Any) -> Size:
    size = _parse_given_size(value)
    if size.unit is not Unit.BYTES:
        raise BadValue("a number of tokens where bytes are meant", "Write 1GiB, 16MiB, 2GB or plain bytes")
    return size


def _parse_word(value: Any) -> str:
    return str(value).strip().lower()


def _parse_text(value: Any) -> str:
    return str(value).strip()


def _parse_file(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise BadValue("not the name of a file", "Name a file that does not exist yet")
    return os.path.abspath(os.path.expanduser(value.strip()))


def _parse_paths(value: Any) -> tuple[str, ...]:
    items = value.split(os.pathsep) if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) and item for item in items):
        raise BadValue("not a directory name", "Name existing directories")
    return tuple(os.path.abspath(os.path.expanduser(item)) for item in items)


_PARSERS: dict[Kind, Callable[[Any], Any]] = {
    "switch": _parse_switch,
    "size": _parse_given_size,
    "bytes": _parse_bytes,
    "paths": _parse_paths,
    "word": _parse_word,
    "text": _parse_text,
    "file": _parse_file,
}


def _is_zero(value: Any) -> bool:
    try:
        return _parse_given_size(value).amount == 0
    except BadValue:
        return False


def _read_yaml(file: str, where: str, problems: list[Problem]) -> dict[str, _Given]:
    try:
        with open(file, encoding="utf-8") as stream:
            content = yaml.safe_load(stream)
    except OSError as error:
        problems.append(Problem(where, file, f"cannot be read ({error.strerror})", "Name an existing YAML file"))
        return {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        problems.append(Problem(where, file, f"not valid YAML ({error})", "Write one 'name: value' per line"))
        return {}
    if content is None:
        return {}
    if not isinstance(content, dict):
        problems.append(Problem(where, file, "not a mapping", "Write one 'name: value' per line"))
        return {}
    if "version" in content:
        version = content.pop("version")
        if type(version) is not int or version != FILE_VERSION:
            why = f"radixtier {__version__} does not know this version of the file"
            fix = f"Write version: {FILE_VERSION}, or use the radixtier that the file was written for"
            problems.append(Problem(f"version in {file}", version, why, fix))
            return {}
    found: dict[str, _Given] = {}
    for key, value in content.items():
        name = _yaml_name(str(key))
        label = f"{key} in {file}"
        if name not in _BY_NAME:
            problems.append(Problem(label, value, "unknown key", nearest(name, list(_BY_NAME))))
        elif name in found:
            problems.append(Problem(label, value, f"given twice, also as {found[name].where}", "Keep one of them"))
        elif value is not None:
            found[name] = _Given(value, label, 0)
    return found


def _yaml_name(key: str) -> str:
    """Strip the flag's decoration from a key: ``radix-tier-dram-size`` and ``dram_size`` are one."""
    name = key.strip().lower().replace("-", "_")
    return "enable" if name == "enable_radix_tier" else name.removeprefix("radix_tier_")


def _misspelt_variables(env: Mapping[str, str]) -> list[Problem]:
    """Find variables that were meant for us: near misses only, other parts of radixtier have their own."""
    known = {setting.env for setting in (*SETTINGS, CONFIG_FILE)}
    found = []
    for name in env:
        if name.startswith(ENV_PREFIX) and name not in known:
            near = difflib.get_close_matches(name.removeprefix(ENV_PREFIX).lower(), _BY_NAME, n=1, cutoff=0.8)
            if near:
                found.append(Problem(name, env[name], "unknown variable", f"Did you mean {_BY_NAME[near[0]].env}?"))
    return found


def nearest(name: str, known: list[str]) -> str:
    """Return the fix for a name that does not exist: the one that looks most like it, and all that do."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return f"Did you mean {near[0].replace('_', '-')}? Known are {', '.join(k.replace('_', '-') for k in known)}"


def _stray_flags(
    flags: Mapping[str, Any], name_of: Callable[[Setting], str], notes: list[str], others: list[str]
) -> list[Problem]:
    """Refuse flags that would have no effect; variables and files may be kept while the tier is off."""
    if others:
        notes.append(f"{', '.join(others)} without effect: --enable-radix-tier is not given")
    named = [(name_of(s), flags[s.name]) for s in (*SETTINGS, CONFIG_FILE) if s.name in flags and s.name != "enable"]
    return [Problem(flag, _shown(value), "no effect without --enable-radix-tier", "Add it") for flag, value in named]
