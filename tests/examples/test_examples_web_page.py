"""The page of examples/chat_web in a real browser: answers, bars, documents, stopping, keys, names, foreign text."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from examples_stub import PATIENCE_S, Stub
from web_page import web_page

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
expect.set_options(timeout=PATIENCE_S * 1000)

HOSTILE = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script> **&amp;** </p>'


@pytest.fixture
def address(url: str) -> Iterator[str]:
    with web_page(url) as page:
        yield page


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """The page, 1280 pixels wide; nothing may be asked of others, and nothing may go wrong unseen."""
    asked: list[str] = []
    trouble: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    shown = context.new_page()
    shown.set_default_timeout(PATIENCE_S * 1000)
    shown.on("request", lambda request: asked.append(request.url))
    shown.on("pageerror", lambda error: trouble.append(str(error)))
    shown.on("console", lambda said: trouble.append(said.text) if "Content Security" in said.text else None)
    shown.goto(address)
    expect(shown.get_by_role("status")).to_contain_text("stub-1b at http://127.0.0.1:")
    yield shown
    assert [each for each in asked if not each.startswith((address, "data:"))] == []
    assert trouble == []
    assert shown.evaluate("window.pwned") is None
    context.close()


def column(page: Any, number: int) -> Any:
    return page.get_by_role("region", name=f"Conversation {number}", exact=True)


def ask(page: Any, number: int, text: str) -> None:
    """Ask in a conversation, and wait for the end of the answer."""
    draft = column(page, number).get_by_label(f"Message in conversation {number}")
    draft.fill(text)
    draft.press("Enter")
    expect(column(page, number).get_by_role("button", name="Send")).to_be_visible()


def test_three_conversations_are_in_view_and_more_can_be_added_and_removed(page: Any) -> None:
    for number in (1, 2, 3):
        box = column(page, number).bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 1280
        assert box["y"] + box["height"] <= 800
    expect(page.get_by_label("Message in conversation 1")).to_be_focused()
    page.get_by_role("button", name="New conversation").click()
    expect(page.get_by_label("Message in conversation 4")).to_be_focused()
    expect(page.get_by_label("Message in conversation 4")).to_be_in_viewport()
    page.get_by_role("button", name="Remove conversation 2").click()
    expect(column(page, 2)).to_have_count(0)
    expect(page.get_by_label("Message in conversation 3")).to_be_focused()
    for number in (1, 3, 4):
        page.get_by_role("button", name=f"Remove conversation {number}").click()
    expect(page.get_by_role("button", name="New conversation")).to_be_focused()


def test_every_answer_tells_its_tiers(page: Any, stub: Stub) -> None:
    for number in (1, 2, 3):
        ask(page, number, f"question {number} of a few words")
    ask(page, 1, "back again")
    for number in (2, 3):
        ask(page, number, "and on")
    for number in (4, 5):
        page.get_by_role("button", name="New conversation").click()
        ask(page, number, f"other {number}")
    ask(page, 1, "and back from far away")
    first = column(page, 1)
    expect(first.get_by_role("article")).to_have_count(6)
    expect(first.get_by_role("img")).to_have_count(3)
    names = [each.get_attribute("aria-label") for each in first.get_by_role("img").all()]
    assert names == [
        "8 tokens of prompt: computed 8",
        "14 tokens of prompt: DRAM 8, computed 6",
        "23 tokens of prompt: NVMe 14, computed 9",
    ]
    last = first.get_by_role("article").last
    expect(last.locator(".numbers")).to_contain_text("NVMe 14")
    expect(last.locator(".numbers")).to_contain_text("first token")
    widths = {part: last.locator(f".bar .{part}").bounding_box()["width"] for part in ("nvme", "computed")}
    assert abs(widths["nvme"] / widths["computed"] - 14 / 9) < 0.05
    sessions = [body["session_id"] for body in stub.asked]
    assert len(set(sessions)) == 5
    assert sessions[0] == sessions[3] == sessions[-1]


def test_answer_grows_as_it_comes_and_can_be_stopped(page: Any, stub: Stub) -> None:
    go_on = threading.Event()
    stub.answer = lambda body: ["one ", "two ", *["more "] * 10_000]
    stub.between = lambda: go_on.wait(PATIENCE_S)
    draft = page.get_by_label("Message in conversation 1")
    draft.fill("count")
    draft.press("Enter")
    expect(column(page, 1).get_by_role("article").last.locator("p").first).to_have_text("one")
    draft.fill("the next one")
    draft.press("Enter")  # not while an answer comes
    assert len(stub.asked) == 1
    column(page, 1).get_by_role("button", name="Stop").click()
    expect(column(page, 1).get_by_role("button", name="Send")).to_be_visible()
    go_on.set()
    assert stub.gone.wait(PATIENCE_S)
    expect(column(page, 1).get_by_role("article").last).to_contain_text("stopped")
    stub.answer = lambda body: ["fine"]
    draft.press("Enter")
    expect(column(page, 1).get_by_role("article").last).to_contain_text("fine")
    assert [each["content"] for each in stub.asked[-1]["messages"]] == ["count", "one ", "the next one"]


def test_question_that_is_stopped_before_its_answer_can_be_asked_again(page: Any, stub: Stub) -> None:
    go_on = threading.Event()
    stub.before = lambda connection: go_on.wait(PATIENCE_S)
    draft = page.get_by_label("Message in conversation 1")
    draft.fill("hello")
    draft.press("Enter")
    expect(column(page, 1).get_by_role("button", name="Stop")).to_be_visible()
    draft.press("Escape")
    expect(column(page, 1).get_by_role("article")).to_have_count(0)
    expect(draft).to_have_value("hello")
    go_on.set()
    draft.press("Enter")
    expect(column(page, 1).get_by_role("img")).to_have_count(1)
    assert len(stub.asked[-1]["messages"]) == 1


def test_document_opens_a_conversation(page: Any, stub: Stub, tmp_path: Path) -> None:
    file = tmp_path / "notes.md"
    file.write_text(f"Notes of a few words, {HOSTILE}")
    first, second = column(page, 1), column(page, 2)
    first.get_by_text("Opening document").click()
    first.get_by_label("This text goes in front of every question").fill("A text that was pasted.")
    expect(first.locator(".words")).to_have_text("5 words")
    second.get_by_text("Opening document").click()
    second.get_by_label("or choose a text file").set_input_files(file)
    expect(second.locator(".words")).to_have_text("notes.md, 10 words")
    for number in (1, 2):
        ask(page, number, "what is it about?")
        ask(page, number, "and else?")
    roles = [[each["role"] for each in body["messages"]] for body in stub.asked]
    assert roles == [["system", "user"], ["system", "user", "assistant", "user"]] * 2
    assert stub.asked[1]["messages"][0]["content"].startswith("A text that was pasted.\n\n")
    assert stub.asked[3]["messages"][0]["content"].startswith(f"Notes of a few words, {HOSTILE}\n\n")
    first.get_by_text("Opening document").click()
    expect(first.get_by_label("This text goes in front of every question")).not_to_be_editable()


def test_file_that_is_too_long_is_not_read(page: Any, tmp_path: Path) -> None:
    file = tmp_path / "long.txt"
    file.write_bytes(b"word " * (1 << 20))
    first = column(page, 1)
    first.get_by_text("Opening document").click()
    first.get_by_label("or choose a text file").set_input_files(file)
    expect(first.get_by_role("alert")).to_have_text("long.txt is larger than 4 MiB. Choose a shorter text.")
    expect(first.locator(".words")).to_have_text("none")


def test_end_of_a_conversation_stays_in_view(page: Any, stub: Stub) -> None:
    stub.answer = lambda body: ["a long answer, "] * 60
    for text in ("one", "two", "three"):
        ask(page, 1, text)
    last = column(page, 1).get_by_text("first token").last
    expect(last).to_be_in_viewport()
    page.get_by_role("button", name="New conversation").click()  # all columns become narrower
    page.set_viewport_size({"width": 1280, "height": 600})
    column(page, 1).scroll_into_view_if_needed()
    expect(last).to_be_in_viewport(ratio=1)


def test_foreign_text_stays_text(page: Any, stub: Stub) -> None:
    stub.answer = lambda body: [HOSTILE[:9], HOSTILE[9:]]
    ask(page, 1, HOSTILE)
    articles = column(page, 1).get_by_role("article")
    assert articles.first.locator("p").text_content() == HOSTILE
    assert articles.last.locator("p").first.text_content() == HOSTILE
    assert page.locator("main img, main script").count() == 0


def test_errors_are_shown_and_the_question_is_kept(page: Any, stub: Stub) -> None:
    stub.status = 400
    ask(page, 1, "too much")
    expect(column(page, 1).get_by_role("alert")).to_have_text("SGLang answered 400: the prompt is too long")
    expect(page.get_by_label("Message in conversation 1")).to_have_value("too much")
    stub.status, stub.cut = 200, True
    ask(page, 1, "too much")
    expect(column(page, 1).get_by_role("alert")).to_have_text("The answer ended in the middle.")
    stub.cut, stub.error = False, "out of memory"
    ask(page, 1, "too much")
    expect(column(page, 1).get_by_role("alert")).to_have_text("out of memory")
    stub.error = ""
    ask(page, 1, "too much")
    expect(column(page, 1).get_by_role("alert")).to_have_count(0)
    assert [body["messages"] for body in stub.asked] == [[{"role": "user", "content": "too much"}]] * 3


@pytest.mark.parametrize(
    ("tier", "sglang", "says"), [(False, True, "--enable-radix-tier"), (True, False, "not SGLang")]
)
def test_server_without_the_tier_is_told(page: Any, stub: Stub, tier: bool, sglang: bool, says: str) -> None:
    expect(page.locator("#notice")).to_be_hidden()
    stub.tier, stub.sglang = tier, sglang
    page.reload()
    expect(page.locator("#notice")).to_contain_text(says)


def test_everything_can_be_reached_and_has_a_name(page: Any) -> None:
    names = page.evaluate(
        """() => [...document.querySelectorAll("button, input, textarea")].map((each) => each.getAttribute("aria-label")
            || each.textContent.trim() || [...each.labels].map((label) => label.textContent).join())"""
    )
    assert all(names) and len(names) == 2 + 3 * 5
    assert len(set(names)) >= 2 + 3 * 3
    reached = set()
    page.get_by_label("Answers up to").focus()
    for _ in range(24):
        reached.add(page.evaluate("document.activeElement.className || document.activeElement.id"))
        page.keyboard.press("Tab")
    assert {"most", "add", "remove quiet", "log", "draft", "send"} <= reached


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(page: Any, scheme: str) -> None:
    """Contrast of WCAG's AA: 4.5 for text, 3 for what is drawn."""
    page.emulate_media(color_scheme=scheme)
    ask(page, 1, "hello")
    ask(page, 1, "hello again")
    for selector in ("h1", "#server", ".legend li", ".question p", ".answer p", ".numbers .time", "summary"):
        assert contrast(page, selector, "color") >= 4.5, selector
    for selector in (".bar .hbm", ".bar .computed"):
        assert contrast(page, selector, "backgroundColor") >= 3, selector


def contrast(page: Any, selector: str, name: str) -> float:
    """Ratio of an element's colour to what is behind it."""
    pair = page.evaluate(
        """([selector, name]) => {
            const element = document.querySelector(selector);
            let behind = name === "color" ? element : element.parentElement;
            while (getComputedStyle(behind).backgroundColor.endsWith(", 0)")) behind = behind.parentElement;
            return [getComputedStyle(element)[name], getComputedStyle(behind).backgroundColor];
        }""",
        [selector, name],
    )
    light, dark = sorted((luminance(each) for each in pair), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    """Relative luminance of ``rgb(r, g, b)``."""
    parts = [int(each) / 255 for each in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [each / 12.92 if each <= 0.03928 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
