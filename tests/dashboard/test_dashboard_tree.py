"""The tree by tier: picture, table, selection, zoom, search and hints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from dashboard_browser import until
from dashboard_server import FakeServer
from dashboard_tree import large_tree
from dashboard_world import World

Serve = Callable[..., FakeServer]
Show = Callable[..., Any]


def roots(fake: FakeServer) -> list[str | None]:
    return [each.fields.get("root") for each in fake.asked if each.path.endswith("/tree")]


def shown_root(page: Any, name: str) -> None:
    """Wait until the last crumb is `name`."""
    until(page, "name => document.querySelector('#crumbs [aria-current]')?.textContent === name", name)


def second_row(page: Any) -> dict[str, float]:
    """A place in the first node below the top."""
    return {"x": 20, "y": 1.5 * float(page.get_attribute("#icicle", "data-row"))}


ACCENT_PIXELS = """(async () => {
  const { palette } = await import("/radix_tier/dashboard/colours.js");
  const wanted = palette().accent;
  const canvas = document.querySelector("#icicle");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let found = 0;
  for (let i = 0; i < data.length; i += 4) found += wanted.every((c, k) => Math.abs(c - data[i + k]) < 3);
  return found;
})"""


def accent_pixels(page: Any) -> int:
    """Pixels of the picture in the colour in which a path is marked."""
    page.wait_for_timeout(200)  # it is drawn in the next frame
    found: int = page.evaluate(f"{ACCENT_PIXELS}()")
    return found


def test_the_keys_walk_and_zoom(server: Serve, show: Show) -> None:
    fake = server()
    page = show(fake)
    picture = page.locator("#icicle")
    picture.focus()
    picture.press("ArrowDown")
    title = page.locator("#detail h3")
    assert title.inner_text() == "node 1"  # the widest
    picture.press("ArrowLeft")
    assert title.inner_text() == "node 0"
    picture.press("ArrowDown")
    first = title.inner_text()
    assert first.startswith("user-")
    assert first in page.text_content("#icicle-live")
    picture.press("Enter")
    picture.press("Backspace")  # before the answer about the subtree has come
    shown_root(page, "node 0")
    picture.press("Enter")
    shown_root(page, first)
    assert page.locator("#crumbs li").all_inner_texts() == ["everything", "node 0", first]
    picture.press("Backspace")
    shown_root(page, "node 0")
    picture.press("Escape")
    shown_root(page, "everything")
    picture.press("Enter")
    shown_root(page, first)
    picture.press("Home")
    shown_root(page, "everything")
    assert roots(fake)[0] is None


def test_a_click_zooms_in_and_a_click_on_the_top_zooms_out(server: Serve, show: Show) -> None:
    page = show(server())
    picture = page.locator("#icicle")
    picture.click(position=second_row(page))
    shown_root(page, "node 0")
    picture.click(position={"x": 20, "y": 12})
    shown_root(page, "everything")


def test_a_crumb_leads_back(server: Serve, show: Show) -> None:
    page = show(server())
    picture = page.locator("#icicle")
    picture.focus()
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        picture.press(key)
    until(page, "document.querySelectorAll('#crumbs li').length === 3")
    page.locator("#crumbs").get_by_role("button", name="node 1").click()
    shown_root(page, "node 1")


def test_the_pointer_gets_a_read_out(server: Serve, show: Show) -> None:
    fake = server()
    page = show(fake)
    page.locator("#icicle").hover(position=second_row(page))
    tip = page.locator("#tip").inner_text()
    assert "node 0" in tip
    assert "100 % of 2.05k in HBM" in tip
    page.mouse.move(5, 5)
    assert page.locator("#tip").is_hidden()


def test_the_detail_of_a_node(server: Serve, show: Show) -> None:
    fake = server()
    page = show(fake)
    picture = page.locator("#icicle")
    picture.focus()
    picture.press("ArrowDown")
    picture.press("ArrowDown")
    detail = page.locator("#detail")
    detail.get_by_text("left DRAM").wait_for()
    node = int(detail.locator(".sub").inner_text().split(",")[0].removeprefix("node "))
    row = fake.world.rows[node]
    text = detail.inner_text()
    assert f"tokens {row['start_token']:,} to {row['start_token'] + row['tokens']:,}" in text
    assert f"{row['hits']} requests" in text
    assert detail.locator(".places li").count() == len(fake.world.explain_node(node, None, None)["nodes"][-1]["places"])
    detail.get_by_role("button", name="behind node 1").click()
    assert page.locator("#detail h3").inner_text() == "node 1"


@pytest.mark.parametrize(("label", "fields"), [("Prefetch", {}), ("Demote", {}), ("Retain", {"ttl_s": 3600}),
                                               ("Pin", {"ttl_s": 3600}), ("Release", {})])  # fmt: skip
def test_a_hint_goes_to_the_session(server: Serve, show: Show, label: str, fields: dict[str, int]) -> None:
    fake = server()
    page = show(fake)
    page.locator('[data-list="hottest"] button').filter(has_text="user-").first.click()
    session = page.locator("#detail h3").inner_text()
    page.get_by_label("How long a retain or a pin lasts").select_option("3600")
    page.get_by_role("button", name=label, exact=True).click()
    kind = label.lower()
    page.get_by_text(f"{kind}: clipped, 512 of 640 tokens: a cap").wait_for()
    (asked,) = [each for each in fake.asked if each.method == "POST"]
    assert (asked.path, asked.fields) == (f"/radix_tier/{kind}", {"session": session, **fields})


def test_without_a_session_there_is_no_hint_and_it_says_why(server: Serve, show: Show) -> None:
    page = show(server())
    page.locator("#icicle").focus()
    page.locator("#icicle").press("ArrowDown")
    buttons = page.locator(".buttons button")
    assert buttons.count() == 5
    assert all(buttons.nth(i).is_disabled() for i in range(5))
    assert "this node belongs to none, or to several" in page.locator("#hint-why").inner_text()


def test_a_refused_hint_says_why(server: Serve, show: Show) -> None:
    world = World(refused={"/radix_tier/pin": (400, "ttl_s 0: nothing would last. Write more than 0")})
    page = show(server(world), allowed=("400",))
    page.locator('[data-list="hottest"] button').filter(has_text="user-").first.click()
    page.get_by_role("button", name="Pin", exact=True).click()
    page.get_by_text("pin: ttl_s 0: nothing would last. Write more than 0").wait_for()


def test_hottest_and_coldest(server: Serve, show: Show) -> None:
    fake = server()
    page = show(fake)
    rows = sorted(fake.world.rows, key=lambda row: row["last_used"])
    coldest = page.locator('[data-list="coldest"] .name').all_inner_texts()
    assert coldest == [row["session"] for row in rows[:8]]
    assert page.locator('[data-list="hottest"] li').count() == 8


@pytest.mark.parametrize("by", ["session", "text"])
def test_a_search_lists_the_path_and_marks_it(server: Serve, show: Show, by: str) -> None:
    fake = server()
    page = show(fake, allowed=("willReadFrequently",))  # advice for those who read a canvas, as here
    assert accent_pixels(page) == 0
    page.get_by_label("Search by").select_option(by)
    page.get_by_label("Search for").fill("user-3")
    page.get_by_label("Search for").press("Enter")
    page.locator("#found li").first.wait_for()
    (asked,) = [each for each in fake.asked if each.method == "POST"]
    assert (asked.path, asked.fields) == ("/radix_tier/explain/node", {by: "user-3"})
    session, text = ("user-3", None) if by == "session" else (None, "user-3")
    path = fake.world.explain_node(None, session, text)["nodes"]
    listed = page.locator("#found li").evaluate_all("all => all.map(e => Number(e.dataset.node))")
    assert listed == [row["node"] for row in path]
    assert page.text_content("#search-note").startswith(f"{len(path)} node")
    assert accent_pixels(page) > 50
    page.get_by_role("button", name="Clear").click()
    assert page.locator("#found").is_hidden()
    until(page, f"{ACCENT_PIXELS}().then((n) => n === 0)")


def test_a_search_for_what_is_not_there(server: Serve, show: Show) -> None:
    page = show(server(), allowed=("400",))
    page.get_by_label("Search for").fill("nobody")
    page.get_by_role("button", name="Find").click()
    page.get_by_text("this path is not known. Take another").wait_for()


def test_a_subtree_that_is_forgotten_gives_way_to_everything(server: Serve, show: Show) -> None:
    fake = server()
    page = show(fake, allowed=("404", "400"))
    picture = page.locator("#icicle")
    picture.click(position=second_row(page))
    shown_root(page, "node 0")
    fake.world.rows = [row for row in fake.world.rows if row["node"] == 1]
    shown_root(page, "everything")
    assert page.text_content("#tree-sub") == "1 node"


# The table


def test_the_table_is_a_tree_for_the_keyboard(server: Serve, show: Show) -> None:
    page = show(server())
    page.get_by_role("radio", name="Table").check()
    grid = page.get_by_role("treegrid")
    rows = grid.locator("tbody tr")
    assert rows.count() == 4  # everything and three system prompts
    rows.first.focus()
    page.keyboard.press("ArrowDown")
    assert rows.nth(1).get_attribute("aria-expanded") == "false"
    page.keyboard.press("ArrowRight")
    assert rows.nth(1).get_attribute("aria-expanded") == "true"
    chats = rows.count() - 4
    assert rows.nth(2).get_attribute("aria-level") == "3"
    assert rows.nth(2).get_attribute("aria-setsize") == str(chats)
    page.keyboard.press("ArrowRight")
    page.keyboard.press(" ")
    assert rows.nth(2).get_attribute("aria-selected") == "true"
    assert page.locator("#detail h3").inner_text() == rows.nth(2).locator(".name").inner_text()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert rows.count() == 4
    page.keyboard.press("End")
    assert rows.nth(3).evaluate("row => row === document.activeElement")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    shown_root(page, "node 0")
    page.keyboard.press("Backspace")
    shown_root(page, "everything")


def test_the_table_has_the_figures_of_the_tree(server: Serve, show: Show) -> None:
    fake = server()
    page = show(fake)
    page.get_by_role("radio", name="Table").check()
    tree = fake.world.tree(None, 1500)
    item = next(item for item in tree["nodes"] if item["node"] == 0)
    cells = page.locator("tbody tr").nth(1).locator("td").all_inner_texts()
    count = 'async v => (await import("/radix_tier/dashboard/units.js")).count(v)'
    expected = [page.evaluate(count, item["below"][name]) for name in ("tokens", "hbm", "dram", "nvme")]
    assert cells[:5] == [*expected, str(item["hits"])]


# Large


def test_a_hundred_thousand_nodes(server: Serve, show: Show) -> None:
    fake = server(World(rows=large_tree()))
    page = show(fake)
    assert page.text_content("#tree-sub").startswith("100k nodes, ")
    items = fake.world.tree(None, 1500)["nodes"]
    assert len(items) <= 1500
    until(page, "n => document.querySelector('#icicle').dataset.drawn === n", str(len(items) + 1))
    merged = [item for item in items if item["merged"]]
    assert merged and sum(item["below"]["tokens"] for item in items if item["parent"] is None) == sum(
        row["tokens"] for row in fake.world.rows
    )
    page.get_by_role("radio", name="Table").check()
    tops = [item for item in items if item["parent"] is None]
    assert page.locator("tbody[role=rowgroup] tr").count() == len(tops) + 1


def test_merged_nodes_come_apart_one_level_down(server: Serve, show: Show) -> None:
    fake = server(World(rows=large_tree(20_000)))
    page = show(fake)
    before = fake.world.tree(None, 1500)
    top = max((item for item in before["nodes"] if item["parent"] is None), key=lambda item: item["below"]["tokens"])
    page.get_by_role("radio", name="Table").check()
    row = page.locator(f'tbody tr[data-key="{top["node"]}"]')
    row.focus()
    row.press("Enter")
    shown_root(page, f"node {top['node']}")
    after = fake.world.tree(top["node"], 1500)
    children = [item for item in after["nodes"] if item["parent"] == top["node"]]
    assert len(children) > len([item for item in before["nodes"] if item["parent"] == top["node"]])
    assert page.locator("tbody[role=rowgroup] tr").count() == len(children) + 1
