"""Words of ours in the documentation: what is named exists, and what has to be told is told."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from docs_rig import DOCS, PAGES, ROOT, anchors, blocks, name_of, text_of

import radixtier
from radixtier.cli.completion import everything
from radixtier.cli.exits import subcommands
from radixtier.config import IO_ENGINES, OTHERS
from radixtier.control.routes import ROUTES
from radixtier.monitor.series import SERIES
from radixtier.policy.admission import NAMES as ADMISSIONS
from radixtier.policy.eviction import NAMES as EVICTIONS
from radixtier.settings import CONFIG_FILE, SETTINGS
from radixtier.sglang.refusals import CONTRADICTIONS, UNSUPPORTED

PACKAGE = Path(radixtier.__file__).parent
FLAGS = {setting.flag for setting in (*SETTINGS, CONFIG_FILE)}
ALERTS = ROOT / "launch" / "grafana" / "alerts.yml"
OPERATIONS = DOCS / "operations.md"


@pytest.fixture(scope="module")
def sources() -> str:
    """Everything of the repository that is no documentation."""
    files = [file for part in ("radixtier", "launch", "examples", "tests") for file in (ROOT / part).rglob("*")]
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in files if file.suffix in (".py", ".sh")]
    return "\n".join(texts)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_flag_that_is_named_exists(page: Path) -> None:
    named = set(re.findall(r"--(?:enable-radix-tier|radix-tier-[a-z-]*[a-z])(?![\w*-])", text_of(page)))
    assert named <= FLAGS


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_variable_that_is_named_is_read_somewhere(page: Path, sources: str) -> None:
    known = {setting.env for setting in (*SETTINGS, CONFIG_FILE)}
    for variable in set(re.findall(r"\bRADIXTIER_[A-Z][A-Z_]*[A-Z]", text_of(page))) - known:
        assert variable in sources, f"nothing reads {variable}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_subcommand_that_is_named_exists(page: Path) -> None:
    commands = subcommands(everything())
    for first, second in re.findall(r"`radixtier ([a-z]+)(?: ([a-z]+(?:\|[a-z]+)*))?\b", text_of(page)):
        assert first in commands, f"no subcommand {first}"
        below = subcommands(commands[first])
        for each in second.split("|") if second and below else []:
            assert each in below, f"radixtier {first} has no {each}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_route_that_is_named_exists(page: Path) -> None:
    known = {route.path for route in ROUTES} | {"/radix_tier/dashboard"}
    named = set(re.findall(r"(/radix_tier/[a-z_]+(?:/[a-z_]+)?(?:\.json)?)(?![\w/])", text_of(page)))
    assert named <= known


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "benchmarks.md"], ids=name_of)
def test_every_metric_that_is_named_exists(page: Path) -> None:
    """Keys of the benchmarks' JSON, and the mark of a recording, only look like series."""
    known = {series.name for series in SERIES} | {"radixtier_trace"}
    named = set(re.findall(r"\bradixtier_[a-z0-9_]*[a-z0-9]", text_of(page)))
    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in named - known} <= known


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_of_json_and_yaml_can_be_read(page: Path) -> None:
    for block in blocks(page):
        if block.language == "json":
            json.loads(block.text)
        elif block.language in ("yaml", "yml"):
            list(yaml.safe_load_all(block.text))


# ---- README: the table of flags ---------------------------------------------------------------------


def test_the_flags_of_the_readme_are_those_of_the_server() -> None:
    text = text_of(ROOT / "README.md")
    rows = re.findall(r"^\| `(--\S+?)(?: ([A-Z]+)(?:\.\.\.)?)?` \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    assert [(flag, metavar) for flag, metavar, _, _ in rows] == [(s.flag, s.metavar) for s in (*SETTINGS, CONFIG_FILE)]
    defaults = {setting.flag: setting.default for setting in (*SETTINGS, CONFIG_FILE)}
    for flag, _, _, told in rows:
        if " " not in defaults[flag]:
            assert re.sub(r"[` ]", "", told) == defaults[flag], flag
    choices = {"io-engine": IO_ENGINES, "nvme-others": OTHERS, "eviction": EVICTIONS, "admission": ADMISSIONS}
    for flag, _, meaning, _ in rows:
        for choice in choices.get(flag.removeprefix("--radix-tier-"), ()):
            assert f"`{choice}`" in meaning, f"{flag} does not tell {choice}"


# ---- compatibility: the refusals --------------------------------------------------------------------


def test_every_flag_that_is_refused_is_told_and_no_other() -> None:
    text = text_of(DOCS / "compatibility.md")
    section = text[text.index("## Flags of SGLang that are refused") : text.index("## Models")]
    assert set(re.findall(r"`(--[a-z0-9-]+)`", section)) == {row.flag for row in (*UNSUPPORTED, *CONTRADICTIONS)}


# ---- operations: log lines and alerts ---------------------------------------------------------------


def log_lines() -> Iterator[tuple[str, str]]:
    """Where a line of at least INFO is logged, and its words."""
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(text_of(file))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("info", "warning", "error", "exception", "critical")
                and node.args
                and isinstance(node.args[0], ast.Constant)
                and str(node.args[0].value).startswith("radixtier: ")
            ):
                yield f"{file.relative_to(ROOT)}:{node.lineno}", str(node.args[0].value).removeprefix("radixtier: ")


LINES = {text: where for where, text in log_lines()}


@pytest.mark.parametrize("text", LINES, ids=list(LINES.values()))
def test_every_log_line_is_told(text: str) -> None:
    """What stands between the placeholders of a line stands in the tables of operations.md, in that order."""
    told = " ".join(text_of(OPERATIONS).replace("``", "`").split())
    fragments = [part for part in re.split(r"%[\d.]*[a-z]", text) if len(part.strip(" :,;()=@")) > 3]
    at = 0
    for fragment in fragments:
        at = told.find(" ".join(fragment.split()).strip(" :,;()=@"), at)
        assert at >= 0, f"{LINES[text]} logs {text!r}: give it a row in docs/operations.md"


def test_no_line_is_told_that_is_not_logged(sources: str) -> None:
    """The first words of each row are words of the code."""
    text = text_of(OPERATIONS)
    section = text[text.index("## What the log says") : text.index("## Alerts")]
    code = " ".join(re.sub(r'"\s*f?"', "", sources).split())
    for told in re.findall(r"^\| ``?(.+?)``? ?[|,]", section, re.MULTILINE):
        words = max(re.split(r"\b[A-Z]+\b|[.,:;()=@]", told), key=len).strip()
        assert words in code, f"nothing logs {told!r}"


def test_every_reason_of_health_is_told() -> None:
    tree = ast.parse(text_of(PACKAGE / "monitor" / "health.py"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = [call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Reason"]
    told = {words.value for words in named if isinstance(words, ast.Constant)} | {"DIRECTORY takes no new pages"}
    assert len(told) > 3
    assert not [words for words in told if f"| `{words}` |" not in text_of(OPERATIONS)]


def kebab(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower()


def test_every_alert_has_its_place_in_operations() -> None:
    rules = yaml.safe_load(text_of(ALERTS))
    alerts = [rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule]
    assert alerts
    missing = {kebab(alert) for alert in alerts} - anchors(OPERATIONS)
    assert not missing


# ---- architecture: the packages ---------------------------------------------------------------------


def test_every_package_has_its_row_in_the_architecture() -> None:
    text = text_of(DOCS / "architecture.md")
    section = text[text.index("## Packages") : text.index("## Seams")]
    told = {
        name for row in re.findall(r"^\| (`.+?`) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    there = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert told == there - {"__init__"}
