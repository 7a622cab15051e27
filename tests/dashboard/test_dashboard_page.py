"""Each panel shows the figures of the JSON it is made from."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from dashboard_browser import until
from dashboard_lists import history, some_requests
from dashboard_server import FakeServer
from dashboard_world import BECAUSE, SOURCES, World, empty_world

Serve = Callable[..., FakeServer]
Show = Callable[..., Any]


def field(page: Any, tile: str, name: str) -> str:
    text: str = page.text_content(f'[data-tile="{tile}"] [data-field="{name}"]')
    return text


def told(page: Any, function: str, value: float | None) -> str:
    """A number as the page writes it."""
    program = 'async ([f, v]) => (await import("/radix_tier/dashboard/units.js"))[f](v)'
    text: str = page.evaluate(program, [function, value])
    return text


def mean(name: str, seconds: int) -> float:
    values = [value for value in history(300)["series"][name][-seconds:] if value is not None]
    return sum(values) / len(values)


@pytest.mark.parametrize("path", ["/", "/radix_tier/dashboard"])
def test_the_header_says_which_server_this_is(server: Serve, show: Show, path: str) -> None:
    page = show(server(), path)
    assert page.text_content('[data-field="model"]') == "meta-llama/Llama-3.1-8B-Instruct"
    assert page.text_content('[data-field="version"]') == "0.1.0, SGLang 0.5.23"
    assert page.text_content('[data-field="uptime"]') == "1 d 2 h"
    assert page.text_content("#health-word") == "Healthy"
    assert page.title() == "meta-llama/Llama-3.1-8B-Instruct \u2013 Healthy"


@pytest.mark.parametrize(
    ("tier", "used", "capacity", "meter", "size"),
    [
        ("hbm", "301k", "328k tokens", "92 %, 301,056 of 327,680 tokens", "36.8 GiB of 40 GiB, 92 %"),
        ("dram", "1.03M", "1.05M tokens", "98 %, 1,031,168 of 1,048,576 tokens", "126 GiB of 128 GiB, 98 %"),
        ("nvme", "9.44M", "16.8M tokens", "56 %, 9,437,184 of 16,777,216 tokens", "1.13 TiB of 2 TiB, 56 %"),
    ],
)
def test_a_tier_shows_what_it_holds(
    server: Serve, show: Show, tier: str, used: str, capacity: str, meter: str, size: str
) -> None:
    page = show(server())
    assert (field(page, tier, "used"), field(page, tier, "capacity")) == (used, capacity)
    assert page.get_attribute(f'[data-tile="{tier}"] .meter', "aria-valuetext") == meter
    assert page.get_attribute(f'[data-tile="{tier}"] .meter', "aria-valuenow") == meter.split(" ")[0]
    assert field(page, tier, "bytes") == size


def test_what_dram_has_twice_is_a_part_of_its_bar(server: Serve, show: Show) -> None:
    page = show(server())
    widths = page.eval_on_selector_all('[data-tile="dram"] .meter i', "all => all.map(e => parseFloat(e.style.width))")
    assert widths == pytest.approx([100 * (1_031_168 - 188_416) / 1_048_576, 100 * 188_416 / 1_048_576], abs=0.01)
    assert field(page, "dram", "both") == "188k tokens"


def test_rates_and_shares_are_those_of_the_last_minute(server: Serve, show: Show) -> None:
    page = show(server())
    until(page, """document.querySelector('[data-tile="hbm"] [data-field="share"]').textContent !== ''""")
    served = {name: mean(f"{name}_tokens_per_s", 60) for name in SOURCES}
    total = sum(served.values())
    for tier in ("hbm", "dram", "nvme"):
        assert field(page, tier, "served") == told(page, "tokensRate", served[tier])
    for tile in SOURCES:
        assert field(page, tile, "share") == f"{told(page, 'percent', served[tile] / total)} of prompts"
    assert field(page, "computed", "rate") == told(page, "tokensRate", served["computed"])
    assert field(page, "hbm", "new") == told(page, "tokensRate", served["computed"])
    assert field(page, "hbm", "in") == told(page, "tokensRate", served["dram"] + served["nvme"])
    assert field(page, "dram", "in") == told(page, "tokensRate", mean("promoted_tokens_per_s", 60))
    assert field(page, "dram", "out") == told(page, "tokensRate", mean("demoted_tokens_per_s", 60))
    assert field(page, "nvme", "in") == told(page, "bytesRate", mean("write_bytes_per_s", 60))
    assert field(page, "nvme", "out") == told(page, "bytesRate", mean("read_bytes_per_s", 60))
    assert field(page, "nvme", "queue") == "14 + 8"
    assert field(page, "nvme", "waiting") == "2"


def test_why_tokens_were_computed_most_first(server: Serve, show: Show) -> None:
    page = show(server())
    assert field(page, "computed", "total") == "since the start 967k tokens, 5.2 % of 18.7M"
    shown = page.eval_on_selector_all(".causes li", "all => all.map(e => e.querySelector('.cause').textContent)")
    known = {reason: tokens for reason, tokens in BECAUSE.items() if tokens}
    assert shown == sorted(known, key=lambda reason: -known[reason])
    amounts = page.eval_on_selector_all(".causes b", "all => all.map(e => e.textContent)")
    assert amounts == [told(page, "count", known[reason]) for reason in shown]


def test_drives_budget_and_wear(server: Serve, show: Show) -> None:
    page = show(server())
    assert page.locator(".drives li").count() == 2
    assert page.text_content(".drives li:first-child .path") == "/mnt/nvme0/kv"
    assert page.text_content(".drives li:first-child .state") == "56 % full"
    assert field(page, "drives", "budget") == "budget 466 GiB a day, 14 GiB of 19.4 GiB saved up"
    assert page.get_attribute('[data-tile="drives"] .meter', "aria-valuetext") == "28 % used"
    assert field(page, "drives", "written") == "3 TiB, 384 GiB a day"
    assert field(page, "drives", "wear") == "3.1 % of its life, worn out 2029-03"
    assert field(page, "drives", "journal") == "3 waiting"
    assert field(page, "drives", "errors") == "none"


# Over time


def columns(name: str, seconds: int) -> list[float | None]:
    """Means over the columns of a chart: each figure stands for the time since the one before it."""
    data, width = history(seconds), seconds / 120
    step, end = data["interval_s"], data["at"][-1]
    first = (end - seconds) // width
    parts: dict[int, list[float | None]] = {}
    for at, value in zip(data["at"], data["series"][name], strict=True):
        for tenth in range(10):
            when = at - step + step * (tenth + 0.5) / 10
            parts.setdefault(int(when // width - first), []).append(value)
    last = int(-(-end // width) - first)
    means = []
    for i in range(last):
        known = [value for value in parts.get(i, []) if value is not None]
        means.append(sum(known) / len(known) if known else None)
    return means


@pytest.mark.parametrize(("label", "seconds"), [("5 min", 300), ("15 min", 900), ("1 h", 3600), ("6 h", 21600)])
def test_charts_show_the_range_that_was_chosen(server: Serve, show: Show, label: str, seconds: int) -> None:
    fake = server()
    page = show(fake)
    page.get_by_role("radio", name=label, exact=True).check()
    plot = page.locator('[data-chart="split"] .plot')
    expected = told(page, "count", columns("dram_tokens_per_s", seconds)[-2])
    page.locator('[data-chart="split"] [data-value="dram_tokens_per_s"]').get_by_text(expected, exact=True).wait_for()
    assert str(seconds) in {each.fields.get("seconds") for each in fake.asked if each.path.endswith("/history")}
    assert plot.locator("path.area").count() == 4


def test_the_cursor_reads_all_charts_at_one_time(server: Serve, show: Show) -> None:
    page = show(server())
    plot = page.locator('[data-chart="split"] .plot')
    plot.focus()
    plot.press("Home")
    for chart, name, told_as in (
        ("split", "hbm_tokens_per_s", "count"),
        ("traffic", "read_bytes_per_s", "bytesRate"),
        ("latency", "write_p99_ms", "milliseconds"),
        ("queues", "waiting_requests", "count"),
    ):
        shown = page.text_content(f'[data-chart="{chart}"] [data-value="{name}"]')
        assert shown == told(page, told_as, columns(name, 300)[0])
    assert "Computed" in plot.get_attribute("aria-valuetext")
    plot.press("End")
    assert plot.get_attribute("aria-valuenow") == plot.get_attribute("aria-valuemax")
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)
    page.locator('[data-chart="tick"] .now').get_by_text(re.compile(r"^\d\d:\d\d:\d\d$")).wait_for()


def test_after_the_first_answer_only_what_is_new_is_asked_for(server: Serve, show: Show) -> None:
    fake = server()
    page = show(fake)
    page.get_by_role("radio", name="15 min").check()
    page.wait_for_timeout(5000)
    asked = [int(each.fields["seconds"]) for each in fake.asked if each.path.endswith("/history")]
    assert asked[0] == 300
    assert 900 in asked
    assert asked[-1] < 60


# Requests and events


def test_requests_show_their_split(server: Serve, show: Show) -> None:
    page = show(server())
    rows = page.locator("tr.request")
    assert rows.count() == 50
    request = some_requests()[1]
    served = request["served"] | {"computed": request["recomputed"]}
    bar = rows.nth(1).locator(".split")
    words = [told(page, "whole", served[name]) for name in SOURCES]
    assert bar.get_attribute("aria-label") == "HBM {}, DRAM {}, NVMe {}, Computed {}".format(*words)
    widths = bar.locator("i").evaluate_all("all => all.map(e => parseFloat(e.style.width))")
    assert widths == pytest.approx([100 * n / request["prompt_tokens"] for n in served.values() if n], abs=0.01)


def test_a_request_opens_with_its_way_and_stays_open(server: Serve, show: Show) -> None:
    fake = server()
    page = show(fake)
    request = fake.world.requests[1]
    toggle = page.locator("tr.request").nth(1).get_by_role("button")
    assert toggle.get_attribute("aria-expanded") == "false"
    toggle.click()
    assert toggle.get_attribute("aria-expanded") == "true"
    opened = page.locator("tr.opened")
    text = opened.inner_text()
    assert request["request"] in text
    for cause in request["causes"]:
        assert f"{told(page, 'whole', cause['tokens'])} {cause['reason']}" in text
    assert "retain: accepted, 640 of 640 tokens" in text
    fake.world.requests.insert(0, some_requests(51)[50])
    newest = "id => document.querySelector('tr.request').dataset.key.includes(id)"
    until(page, newest, fake.world.requests[0]["request"])
    assert opened.inner_text() == text
    toggle = page.locator("tr.request").nth(2).get_by_role("button")
    toggle.focus()
    page.keyboard.press("Enter")
    assert opened.count() == 0


def test_a_cause_without_a_record_is_told(server: Serve, show: Show) -> None:
    world = World()
    world.requests = [world.requests[0] | {"causes": [], "recomputed": 77}]
    page = show(server(world))
    page.locator("tr.request").get_by_role("button").click()
    assert "77 without a record of why" in page.locator("tr.opened").inner_text()


def test_events_newest_first_and_warnings_alone(server: Serve, show: Show) -> None:
    fake = server()
    page = show(fake)
    texts = page.locator(".events-list .text").all_inner_texts()
    assert texts == [event["text"] for event in fake.world.events]
    assert "3 times" in page.locator(".events-list li").nth(1).inner_text()
    assert page.locator(".events-list .mark").nth(1).get_attribute("aria-label") == "warning"
    page.get_by_label("warnings only").check()
    levels = [event["text"] for event in fake.world.events if event["level"] != "info"]
    assert page.locator(".events-list .text").all_inner_texts() == levels


def test_a_server_that_has_just_started(server: Serve, show: Show) -> None:
    page = show(server(empty_world()))
    assert field(page, "hbm", "used") == "0"
    assert field(page, "nvme", "bytes") == "This server has no NVMe tier; --radix-tier-nvme-path gives it one."
    assert field(page, "drives", "share") == "none"
    assert page.get_by_text("No request has ended yet.").is_visible()
    assert page.get_by_text("Nothing happened yet.").is_visible()
    assert page.text_content("#tree-sub") == "0 nodes"
    assert page.get_by_text("no figures yet").count() == 7
