from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from dashboard_browser import live, until, watched_page
from dashboard_server import FakeServer, serve
from dashboard_world import World


@pytest.fixture
def server() -> Iterator[Callable[..., FakeServer]]:
    """Start a made-up server that answers as a world says."""
    with ExitStack() as stack:
        yield lambda world=None: stack.enter_context(serve(world or World()))


@pytest.fixture
def show(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open the page of a server and wait until it shows a state and, where there is one, a tree."""
    with ExitStack() as stack:

        def open_page(fake: FakeServer, path: str = "/", ready: bool = True, **options: Any) -> Any:
            page = stack.enter_context(watched_page(browser, fake.url + path, **options))
            if ready:
                live(page)
                until(page, "document.querySelector('#tree-sub').textContent !== ''")
            return page

        yield open_page
