"""What ships for Prometheus and Grafana fits what is exported: dashboard, alerts, scrape example, reference."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from radixtier.monitor.reference import render
from radixtier.monitor.series import SERIES

pytest.importorskip("promql_parser", reason="pip install promql-parser, which reads the expressions")

from promql_rig import check, labels_of, parse, selectors, series_of

ROOT = Path(__file__).parents[2]
GRAFANA = ROOT / "launch" / "grafana"

DASHBOARD: dict[str, Any] = json.loads((GRAFANA / "radixtier.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((GRAFANA / "alerts.yml").read_text())["groups"] for rule in group["rules"]
]

EACH_PANEL = pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
EACH_RULE = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])


def used(expr: str) -> set[str]:
    return {series_of(selector.name).name for selector in selectors(parse(expr))}


# ---- the dashboard --------------------------------------------------------------------------------------


@EACH_PANEL
def test_a_panel_asks_for_what_is_exported(panel: dict[str, Any]) -> None:
    assert panel["targets"]
    for target in panel["targets"]:
        node = check(target["expr"])
        for selector in selectors(node):
            matched = {matcher.name: matcher.value for matcher in selector.matchers.matchers}
            assert matched["model_name"] == "$model" and matched["tp_rank"] == "$rank"
            assert matched["instance"] == "$instance"
        wanted = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert wanted <= labels_of(node)


@EACH_PANEL
def test_a_panel_says_what_it_shows(panel: dict[str, Any]) -> None:
    assert panel["description"].endswith(".") and panel["title"]
    assert panel["datasource"]["uid"] == "${datasource}"
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    lines = [target["legendFormat"] for target in panel["targets"]]
    assert len(lines) == 1 or all(lines), "several lines have names"


def test_every_series_is_on_the_dashboard() -> None:
    shown = set().union(*(used(target["expr"]) for panel in PANELS for target in panel["targets"]))
    assert shown == {series.name for series in SERIES}


def test_panels_do_not_overlap_and_have_numbers_of_their_own() -> None:
    cells = Counter(
        (x, y)
        for panel in DASHBOARD["panels"]
        for at in [panel["gridPos"]]
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    )
    assert max(cells.values()) == 1 and max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    titles = Counter(panel["title"] for panel in DASHBOARD["panels"])
    assert max(titles.values()) == 1


def test_variables_choose_data_source_model_server_and_rank() -> None:
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert list(variables) == ["datasource", "model", "instance", "rank"]
    for name, label in (("model", "model_name"), ("instance", "instance"), ("rank", "tp_rank")):
        query = variables[name]["query"]["query"]
        series, _, asked = query.removeprefix("label_values(").removesuffix(")").rpartition(", ")
        assert asked == label and {s.name for s in selectors(parse(series))} == {"radixtier_build_info"}


# ---- the alerts -----------------------------------------------------------------------------------------


@EACH_RULE
def test_a_rule_is_about_what_is_exported(rule: dict[str, Any]) -> None:
    node = check(rule["expr"])
    wanted = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
    assert wanted <= labels_of(node)
    assert {"instance", "model_name", "tp_rank"} <= labels_of(node), "an alert says which server"


@EACH_RULE
def test_a_rule_says_how_bad_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    kebab = re.sub(r"(?<!^)(?=[A-Z])", "-", rule["alert"]).lower()
    assert rule["annotations"]["runbook_url"] == f"docs/operations.md#{kebab}"
    assert rule["annotations"]["description"].endswith(".") and not rule["annotations"]["summary"].endswith(".")
    assert rule["alert"].startswith("Radixtier")


def test_operations_says_what_to_do_about_each() -> None:
    headings = re.findall(r"^#+ (.+)$", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9-]", "", heading.lower().replace(" ", "-")) for heading in headings}
    for rule in RULES:
        assert rule["annotations"]["runbook_url"].partition("#")[2] in anchors


def test_rules_have_names_of_their_own_and_a_full_tier_is_none() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    asked = set().union(*(used(rule["expr"]) for rule in RULES))
    assert not {name for name in asked if name.startswith("radixtier_tier_")}
    for name in (
        "radixtier_drive_degraded", "radixtier_checksum_failures_total", "radixtier_journal_dropped_pages_total",
        "radixtier_journal_lag_seconds", "radixtier_write_budget_left_bytes", "radixtier_awaited_tokens_total",
        "radixtier_rated_life_used_ratio", "radixtier_io_seconds", "radixtier_tick_seconds_total",
    ):  # fmt: skip
        assert name in asked


def test_flags_and_commands_in_the_advice_exist() -> None:
    text = " ".join(rule["annotations"]["description"] for rule in RULES)
    from radixtier.settings import SETTINGS

    flags = {setting.flag for setting in SETTINGS}
    assert set(re.findall(r"--radix-tier-[a-z-]+", text)) <= flags
    assert set(re.findall(r"'radixtier (\w+)", text)) <= {"top", "store", "doctor"}


def test_every_rule_is_tested_by_promtool() -> None:
    cases = yaml.safe_load((GRAFANA / "alerts_test.yml").read_text())["tests"]
    text = json.dumps(cases)
    assert {rule["alert"] for rule in RULES} <= set(re.findall(r"Radixtier\w+", text))
    for case in cases:
        for line in case["input_series"]:
            check(line["series"])


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool on PATH: apt install prometheus")
@pytest.mark.parametrize(
    "command",
    ["check rules alerts.yml", "test rules alerts_test.yml", "check config prometheus.yml"],
)
def test_promtool_is_content(command: str) -> None:
    run = subprocess.run(
        ["promtool", *command.split()], cwd=GRAFANA, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


# ---- the scrape example and the reference ---------------------------------------------------------------


def test_the_scrape_example_reads_the_alerts_that_ship() -> None:
    config = yaml.safe_load((GRAFANA / "prometheus.yml").read_text())
    assert [(GRAFANA / file).is_file() for file in config["rule_files"]] == [True]
    (job,) = config["scrape_configs"]
    assert job["metrics_path"] == "/metrics" and job["static_configs"][0]["targets"]


def test_the_reference_is_that_of_the_code() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == render(), "run python -m radixtier.monitor.reference"


@pytest.mark.parametrize("expr", re.findall(r"\| `(.+radixtier_.+\))` \|", render()))
def test_questions_of_the_reference_can_be_asked(expr: str) -> None:
    check(expr)
