"""One Hypothesis profile for all tests: a red run is red again, and nothing is timed.

``RADIXTIER_TEST_SCALE=20`` runs so many times the examples of the state machines, other ones every time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from radixtier.demo.pictures import ARGUMENTS, FIX, find_chromium

SCALE = int(os.environ.get("RADIXTIER_TEST_SCALE", "1"))

settings.register_profile("radixtier", derandomize=SCALE == 1, deadline=None, print_blob=True)
settings.load_profile("radixtier")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium. Playwright keeps an event loop running as long as it lives: never two at a time, nor longer
    than one file of tests."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    with sync_api.sync_playwright() as playwright:
        path = find_chromium(playwright.chromium.executable_path)
        if path is None:
            pytest.skip(f"no Chromium: {FIX}")
        chromium = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield chromium
        chromium.close()
