"""A bad day: degraded drives, a drain, a server that stops answering, a key, and text that means harm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from dashboard_browser import live, until
from dashboard_server import FakeServer
from dashboard_world import HOSTILE, World, degraded_state, drained_state, healthy_state, hostile_world

Serve = Callable[..., FakeServer]
Show = Callable[..., Any]
LOST = ("ERR_EMPTY_RESPONSE", "ERR_CONNECTION", "ERR_SOCKET")


def test_bad_news_opens_by_itself_and_says_what_to_do(server: Serve, show: Show) -> None:
    fake = server(World(state=degraded_state()))
    page = show(fake)
    assert page.text_content("#health-word") == "Degraded (2)"
    assert page.get_attribute("#health", "aria-expanded") == "true"
    text = page.locator("#reasons").inner_text()
    for reason in fake.world.state["health"]["reasons"]:
        assert reason["what"] in text and reason["why"] in text and reason["fix"] in text
    assert "7 min 11 s ago" in text
    assert page.text_content("#health-live").startswith("Health: Degraded. /mnt/nvme1/kv takes no new pages")
    page.locator("#health").click()
    assert page.locator("#reasons").is_hidden()
    drive = page.locator(".drives li").nth(1)
    assert "takes no new pages" in drive.inner_text()
    assert "a write has not ended for 12 s" in drive.inner_text()
    assert "96 slots set aside" in drive.inner_text()
    rows = [page.text_content(f'[data-tile="drives"] [data-field="{name}"]') for name in ("journal", "errors")]
    assert rows == ["210 waiting, 12 s behind, 512 pages dropped", "3 I/O, 1 checksums"]


def test_trouble_that_comes_and_goes_is_told(server: Serve, show: Show) -> None:
    fake = server()
    page = show(fake)
    assert page.locator("#reasons").is_hidden()
    fake.world.state = degraded_state()
    page.locator("#reasons").wait_for(state="visible")
    fake.world.state = healthy_state()
    until(page, "document.querySelector('#health-live').textContent.startsWith('Health: Healthy')")


def test_a_drained_server(server: Serve, show: Show) -> None:
    page = show(server(World(state=drained_state())))
    assert page.text_content("#health-word") == "Drained (1)"
    assert "unmount the file systems" in page.locator("#reasons").inner_text()


def test_a_status_of_a_later_version_is_shown_as_it_is(server: Serve, show: Show) -> None:
    state = healthy_state()
    state["health"] = {"status": "constructor", "reasons": []}
    page = show(server(World(state=state)))
    assert page.text_content("#health-word") == "constructor"


def test_a_server_that_stops_answering_and_comes_back(server: Serve, show: Show) -> None:
    fake = server()
    page = show(fake, allowed=LOST)
    fake.world.silent = True
    banner = page.locator("#banner")
    banner.wait_for(state="visible")
    assert "No answer since" in banner.inner_text()
    assert "Asked again in" in banner.inner_text()
    assert page.text_content("#fresh") == "not live"
    assert page.locator('[data-tile="hbm"] [data-field="used"]').inner_text() == "301k"  # what was known stays
    fake.world.silent = False
    banner.wait_for(state="hidden")
    assert page.text_content("#fresh") == "live"


def test_a_server_that_never_answered(server: Serve, show: Show) -> None:
    fake = server(World(silent=True))
    page = show(fake, ready=False, allowed=LOST)
    page.locator("#banner").wait_for(state="visible")
    assert page.locator("#banner").inner_text().startswith("No answer yet")


def test_routes_that_are_missing_leave_the_rest_alone(server: Serve, show: Show) -> None:
    refused = {
        "/radix_tier/history": (503, "no figures over time are kept"),
        "/radix_tier/events": (503, "no events are kept"),
    }
    page = show(server(World(refused=refused)), allowed=("503",))
    page.get_by_text("No figures over time: no figures over time are kept.").wait_for()
    page.get_by_text("No events: no events are kept.").wait_for()
    assert page.locator("#banner").is_hidden()
    assert page.locator('[data-tile="hbm"] [data-field="used"]').inner_text() == "301k"


def test_an_answer_that_lacks_what_is_needed_is_no_silence(server: Serve, show: Show) -> None:
    world = World()
    del world.state["tiers"]
    page = show(server(world), ready=False)
    page.locator("#banner").wait_for(state="visible")
    assert page.locator("#banner").inner_text().startswith("The answer cannot be shown")


def test_a_hidden_page_asks_nothing(server: Serve, show: Show) -> None:
    fake = server()
    page = show(fake)
    page.evaluate("Object.defineProperty(document, 'hidden', {get: () => true, configurable: true})")
    page.wait_for_timeout(6000)
    asked = len(fake.asked)
    page.wait_for_timeout(5000)
    assert len(fake.asked) == asked
    page.evaluate("""delete document.hidden; document.dispatchEvent(new Event("visibilitychange"))""")
    page.wait_for_timeout(1000)
    assert len(fake.asked) > asked


# Keys


def test_a_key_in_the_address_leaves_it_at_once(server: Serve, show: Show) -> None:
    fake = server(World(key="s3cret+/="))
    page = show(fake, "/#key=s3cret%2B%2F%3D")
    assert page.url == f"{fake.url}/"
    assert {each.key for each in fake.asked} == {"s3cret+/="}
    page.reload()
    live(page)
    assert {each.key for each in fake.asked} == {"s3cret+/="}


def test_a_person_is_asked_for_the_key(server: Serve, show: Show) -> None:
    fake = server(World(key="right"))
    page = show(fake, ready=False, allowed=("401",))
    dialog = page.get_by_role("dialog")
    dialog.wait_for()
    for _ in range(3):
        page.keyboard.press("Escape")
        dialog.wait_for(state="visible")
    field = page.get_by_role("textbox", name="Key")
    field.fill("wrong")
    page.keyboard.press("Enter")
    page.get_by_text("The server does not take this key.").wait_for()
    field.fill("right")
    page.get_by_role("button", name="Open").click()
    live(page)
    assert dialog.is_hidden()
    assert page.locator("tr.request").count() == 50


# Text from elsewhere


def test_text_is_never_markup(server: Serve, show: Show) -> None:
    page = show(server(hostile_world()))
    page.locator("tr.request").first.get_by_role("button").click()
    page.get_by_label("Search for").fill(HOSTILE)
    page.keyboard.press("Enter")
    page.locator("#found li").first.wait_for()
    page.locator('[data-list="hottest"] button').first.click()
    page.locator("#icicle").hover(position={"x": 20, "y": 50})
    page.get_by_role("radio", name="Table").check()
    for panel in ("#facts", "#reasons", ".drives", ".causes", "#requests", ".events-list", "#found", "#detail", "#tip"):
        assert HOSTILE in page.locator(panel).text_content(), panel
    assert page.locator("img").count() == 1  # the page's own
    assert page.evaluate("window.pwned") is None


@pytest.mark.parametrize("length", [0, 4096])
def test_names_of_any_length_stay_inside(server: Serve, show: Show, length: int) -> None:
    world = World()
    for row in world.rows:
        row["session"] = "x" * length
    world.state["model"] = "m" * length
    page = show(server(world))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
