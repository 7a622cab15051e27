"""The dashboard's files, which need no key: they are the same for everybody and tell nothing.

Owns where they are found and the headers that keep a browser to them. Any thread.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from radixtier import dashboard
from radixtier.control.routes import ROOT

logger = logging.getLogger(__name__)

FRONT = ("/", f"{ROOT}/dashboard")
FILES = f"{ROOT}/dashboard/"

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""The page may use what comes from here and nothing else, and nobody may frame it."""


class Page(NamedTuple):
    """A file."""

    media_type: str
    content: bytes


def find_page(path: str) -> Page | None:
    """Return the file that belongs to a path, None if there is none."""
    name = "index.html" if path in FRONT else path.removeprefix(FILES) if path.startswith(FILES) else ""
    if name not in dashboard.FILES:
        return None
    try:
        return Page(dashboard.FILES[name], dashboard.read(name))
    except OSError as error:
        logger.warning("radixtier: a file of the dashboard cannot be read, install radixtier again: %s", error)
        return None
