"""A headless Chromium for the tests of the page, and a page that may not misbehave."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

PATIENCE_MS = 30_000


@dataclass
class Watch:
    """What a page did that it should not."""

    origin: str
    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    allowed: tuple[str, ...] = ()
    """Parts of console messages that a test expects, such as a status that it makes the server answer with."""

    def console(self, message: Any) -> None:
        if message.type in ("error", "warning") and not any(part in message.text for part in self.allowed):
            self.errors.append(message.text)

    def request(self, request: Any) -> None:
        parts = urlsplit(request.url)
        if parts.scheme != "data" and f"{parts.scheme}://{parts.netloc}" != self.origin:
            self.foreign.append(request.url)


@contextmanager
def watched_page(browser: Any, url: str, allowed: tuple[str, ...] = (), **options: Any) -> Iterator[Any]:
    """Open an address in a context of its own; at the end nothing may have gone wrong in it."""
    defaults = {"viewport": {"width": 1280, "height": 900}, "timezone_id": "UTC", "locale": "en-US"}
    context = browser.new_context(**(defaults | options))
    context.set_default_timeout(PATIENCE_MS)
    parts = urlsplit(url)
    watch = Watch(f"{parts.scheme}://{parts.netloc}", allowed=allowed)
    page = context.new_page()
    page.on("console", watch.console)
    page.on("pageerror", lambda error: watch.errors.append(str(error)))
    page.on("request", watch.request)
    try:
        page.goto(url)
        yield page
        assert not watch.errors
        assert not watch.foreign
    finally:
        context.close()


def until(page: Any, program: str, argument: Any = None) -> None:
    """Wait until a function of the page returns true; playwright's own way needs eval, which the page forbids."""
    end = time.monotonic() + PATIENCE_MS / 1000
    while not page.evaluate(program, argument):
        assert time.monotonic() < end, f"never true: {program} of {argument!r}"
        page.wait_for_timeout(50)


def live(page: Any) -> None:
    """Wait until the page has a state."""
    page.locator("#fresh").get_by_text("live", exact=True).wait_for()
