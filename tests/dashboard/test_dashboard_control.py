"""The page on the real control endpoint: its files, its policy, its key, and its picture of the tree."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from dashboard_browser import live, until, watched_page
from dashboard_tree import Row, large_tree
from dashboard_world import World

from radixtier.control import Address, Command, ControlServer, Desk, ExplainNode, ExplainRequests, GiveHint, ReadState
from radixtier.control.commands import ReadEvents, ReadHistory, ReadRows
from radixtier.control.rows import NONE, Rows

PAGE = 1000
"""Rows that a step of the scheduler has time for."""

COUNTS = ("node", "start_token", "tokens", "hbm", "dram", "nvme", "lost", "hits")


def columns(rows: list[Row]) -> Rows:
    """Rows as the scheduler hands them out."""
    return Rows(
        **{name: np.array([row[name] for row in rows], np.int64) for name in COUNTS},
        parent=np.array([NONE if row["parent"] is None else row["parent"] for row in rows], np.int64),
        last_used=np.array([row["last_used"] for row in rows], np.float64),
        expected=np.array([math.nan if row["expected"] is None else row["expected"] for row in rows], np.float64),
        session={row["node"]: row["session"] for row in rows if row["session"] is not None},
        pinned={row["node"]: row["pinned"] for row in rows if row["pinned"]},
    )


def scheduler_of(world: World) -> Callable[[Command], Mapping[str, Any]]:
    def handle(command: Command) -> Mapping[str, Any]:
        if isinstance(command, ReadState):
            return world.state
        if isinstance(command, ExplainRequests):
            return {"requests": world.requests[: command.limit]}
        if isinstance(command, ExplainNode):
            target = command.target
            found = world.explain_node(target.node, target.session, target.text)
            assert found is not None
            return found
        if isinstance(command, GiveHint):
            return command.hint.granted(64, 64).to_json()
        assert isinstance(command, ReadRows)
        rows = [row for row in world.rows if row["node"] > command.after]
        page = rows[:PAGE]
        more = len(rows) > len(page)
        return {"parts": [columns(page)], "next": page[-1]["node"] if more else None, "total": len(world.rows)}

    return handle


@contextmanager
def endpoint(world: World, key: str | None = None) -> Iterator[ControlServer]:
    desk, stop = Desk(), threading.Event()
    handle = scheduler_of(world)

    def ticks() -> None:
        while not stop.wait(0.001):
            desk.serve(handle)

    sources = {
        ReadHistory: lambda command: world.history(command.seconds),
        ReadEvents: lambda command: {"events": world.events[: command.limit]},
    }
    thread = threading.Thread(target=ticks)
    with ControlServer(Address(host="127.0.0.1"), desk, key, sources) as server:
        thread.start()
        try:
            yield server
        finally:
            stop.set()
            thread.join()


@pytest.mark.parametrize(("path", "key"), [("/", None), ("/radix_tier/dashboard", "s3cret"), ("/", "s3cret")])
def test_the_page_works_on_the_control_endpoint(browser: Any, path: str, key: str | None) -> None:
    with endpoint(World(), key) as server:
        fragment = "" if key is None else f"#key={key}"
        with watched_page(browser, f"http://{server.address}{path}{fragment}") as page:
            live(page)
            page.locator("tr.request").nth(49).wait_for()
            page.get_by_text("radixtier: hint pin failed").wait_for()
            page.locator('[data-list="hottest"] button').filter(has_text="user-").first.click()
            page.locator(".decisions li").first.wait_for()
            page.get_by_role("button", name="Retain").click()
            page.get_by_text("retain: accepted, 64 of 64 tokens").wait_for()
            page.get_by_label("Search for").fill("user-2")
            page.keyboard.press("Enter")
            page.locator("#found li").first.wait_for()
            assert page.text_content("#tree-sub") == "56 nodes"


def test_the_tree_of_the_control_endpoint_is_drawn_and_zoomed(browser: Any) -> None:
    world = World(rows=large_tree(20_000))
    with endpoint(world) as server, watched_page(browser, f"http://{server.address}/") as page:
        until(page, "Number(document.querySelector('#icicle').dataset.drawn) > 1000")
        assert page.text_content("#tree-sub").startswith("20k nodes, 1.")
        page.locator("#icicle").focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        until(page, "document.querySelectorAll('#crumbs li').length === 2")
        name = page.text_content("#crumbs [aria-current]")
        assert page.text_content("#detail h3") == name
        below = sum(row["tokens"] for row in world.rows if root_of(world.rows, row) == int(name.split()[1]))
        program = 'async (n) => (await import("/radix_tier/dashboard/units.js")).count(n)'
        assert f", {page.evaluate(program, below)} tokens" in page.text_content("#detail .rows")


def root_of(rows: list[Row], row: Row) -> int:
    while row["parent"] is not None:
        row = rows[row["parent"]]
    found: int = row["node"]
    return found
