"""Pictures of what people look at: the dashboard, ``radixtier top`` in a terminal, and the page with several chats.

Owns how each is brought into a state worth a picture, one function per picture. Nothing is made up: what is shown comes
from the server that is given. Needs playwright, and a Chromium that :func:`find_chromium` finds. Main thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FIX = "install a Chromium, name one with $RADIXTIER_CHROMIUM, or run: python -m playwright install chromium"

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
"""No request but those of the page, and no need for a user namespace."""

PATIENCE_MS = 60_000
DENSITY = 1.5
"""Pixels per CSS pixel of the pictures."""

ROWS, COLUMNS = 42, 118
"""Of the terminal that ``radixtier top`` is shown in."""

TOP_S = 8.0
"""Seconds that it runs before the picture is taken."""

QUESTIONS = ("What did the night of the first entry bring?", "Who is named first in the journal?")
ANSWER_TOKENS = 48
CHATS = Path(__file__).parents[2] / "examples" / "chat_web" / "server.py"


def find_chromium(own: str) -> str | None:
    """Return the path of a Chromium: that of $RADIXTIER_CHROMIUM, the first on PATH, or `own`, playwright's."""
    named = os.environ.get("RADIXTIER_CHROMIUM")
    found = [named] if named else [*(shutil.which(name) for name in NAMES), own]
    return next((path for path in found if path and Path(path).exists()), None)


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Run a headless Chromium.

    Raises
    ------
    RuntimeError
        There is none; says what to do.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = find_chromium(playwright.chromium.executable_path)
        if path is None:
            raise RuntimeError(f"no Chromium: {FIX}")
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


def take_dashboard(browser: Any, url: str, scheme: str, target: Path) -> None:
    """Take the whole dashboard with a node selected and a request opened.

    Parameters
    ----------
    browser
        Of :func:`chromium`.
    url : str
        Address of the page.
    scheme : str
        ``light`` or ``dark``.
    target : Path
        PNG file to write.
    """
    with _page(browser, {"width": 1440, "height": 900}, scheme) as page:
        page.goto(url)
        page.locator("#fresh").get_by_text("live", exact=True).wait_for()
        page.locator('[data-list="hottest"] button').nth(2).click()
        page.locator("tr.request").first.get_by_role("button").click()
        page.locator(".places li").first.wait_for()
        page.mouse.move(0, 0)
        page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
        page.wait_for_timeout(1000)  # the zoom ends
        page.screenshot(path=target, full_page=True)


def take_top(browser: Any, control: str, target: Path) -> None:
    """Take ``radixtier top`` as a terminal of :data:`COLUMNS` by :data:`ROWS` shows it; ``control`` as its flag."""
    command = [sys.executable, "-m", "radixtier.cli", "top", "--control", control]
    _draw_terminal(browser, last_screen(in_terminal(command, TOP_S, b"q")), target)


def take_chats(browser: Any, server_url: str, documents: Sequence[str], target: Path) -> None:
    """Take the page of ``examples/chat_web`` after a question on each document, and a second one on the first."""
    command = [sys.executable, str(CHATS), "--url", server_url, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as example:
        try:
            assert example.stdout is not None
            found = re.search(r"http://\S+", example.stdout.readline())
            if found is None:
                raise RuntimeError(f"{CHATS} did not say where its page is")
            with _page(browser, {"width": 1280, "height": 800}, "light") as page:
                page.goto(found.group())
                _chat(page, documents)
                page.screenshot(path=target)
        finally:
            example.terminate()


@contextlib.contextmanager
def _page(browser: Any, viewport: dict[str, int], scheme: str) -> Iterator[Any]:
    context = browser.new_context(viewport=viewport, color_scheme=scheme, device_scale_factor=DENSITY, locale="en-US")
    context.set_default_timeout(PATIENCE_MS)
    try:
        yield context.new_page()
    finally:
        context.close()


# A terminal


def in_terminal(command: list[str], seconds: float, last_keys: bytes) -> bytes:
    """Run a command in a terminal of its own, press keys after some seconds, and return everything it wrote."""
    us, them = pty.openpty()
    fcntl.ioctl(them, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(command, stdin=them, stdout=them, stderr=them, env=environment, start_new_session=True)
    os.close(them)
    written, pressed, until = b"", False, time.monotonic() + seconds
    try:
        while time.monotonic() < until + seconds:
            if not pressed and time.monotonic() > until:
                pressed = True
                os.write(us, last_keys)
            if select.select([us], [], [], 0.1)[0]:
                try:
                    written += os.read(us, 65536)
                except OSError:  # it has ended
                    break
    finally:
        process.kill()
        process.wait()
        os.close(us)
    return written


def last_screen(written: bytes) -> str:
    """Return the last whole screen of a program that draws each from the upper left corner on, with its colours."""
    screens = written.decode(errors="replace").split("\x1b[H")
    # What comes after the last one is how the terminal is given back.
    whole = [screen for screen in screens if screen.count("\n") >= ROWS // 2]
    if not whole:
        raise RuntimeError(f"it drew no screen: {screens[-1][:300]!r}")
    return re.sub(r"\x1b\[\?[0-9;]*[a-zA-Z]|\r", "", whole[-1])


def _draw_terminal(browser: Any, screen: str, target: Path) -> None:
    from rich.console import Console
    from rich.terminal_theme import TerminalTheme
    from rich.text import Text

    theme = TerminalTheme(
        (22, 27, 34),
        (224, 228, 234),
        [(72, 79, 88), (255, 125, 115), (86, 201, 138), (242, 181, 68), (95, 147, 245), (214, 140, 220), (52, 191, 172),
         (224, 228, 234)],
    )  # fmt: skip
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(Text.from_ansi(screen), end="")
        page_text = console.export_html(theme=theme, inline_styles=True)
    with _page(browser, {"width": 1200, "height": 900}, "dark") as page:
        page.set_content(page_text)
        style = "pre { display: inline-block; margin: 0; padding: 16px 20px; font-size: 13px; line-height: 1.35; }"
        page.add_style_tag(content=style)
        page.locator("pre").screenshot(path=target)


# The page with chats


def _chat(page: Any, documents: Sequence[str]) -> None:
    columns = page.locator(".conversation")
    page.locator(".conversation").first.wait_for()
    while columns.count() < len(documents):
        page.locator("#add").click()
    page.locator("#most").fill(str(ANSWER_TOKENS))
    for i, document in enumerate(documents):
        columns.nth(i).locator("summary").first.click()
        columns.nth(i).locator("textarea.text").fill(document)
        columns.nth(i).locator("summary").first.click()
    for i in (*range(len(documents)), 0):
        answered = columns.nth(i).locator(".facts:not([hidden])").count()
        columns.nth(i).locator("textarea.draft").fill(QUESTIONS[answered])
        columns.nth(i).locator("button.send").click()
        columns.nth(i).locator(".facts:not([hidden])").nth(answered).wait_for()
