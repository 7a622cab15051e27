"""The dashboard: one page that shows what the tiers hold and do, from the JSON of the control endpoint alone.

Owns the page's files: plain HTML, CSS and JavaScript modules, without a build step and without a request to another
origin. The page expects itself at ``/`` or ``/radix_tier/dashboard``, and its files below ``/radix_tier/dashboard/``.
Invariant: only what :data:`FILES` names is ever read. Any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

__all__ = ["FILES", "read"]

_HTML = "text/html; charset=utf-8"
_CSS = "text/css; charset=utf-8"
_SCRIPT = "text/javascript; charset=utf-8"
_SVG = "image/svg+xml"

_STYLES = ("style.css", "panels.css")
_SCRIPTS = (
    "api.js",
    "app.js",
    "areachart.js",
    "charting.js",
    "colours.js",
    "detail.js",
    "dom.js",
    "drives.js",
    "events.js",
    "header.js",
    "history.js",
    "hottest.js",
    "icicle.js",
    "icicle_layout.js",
    "icicle_paint.js",
    "key.js",
    "poll.js",
    "rates.js",
    "requests.js",
    "search.js",
    "split.js",
    "theme.js",
    "tile.js",
    "tiles.js",
    "tree_model.js",
    "tree_panel.js",
    "treegrid.js",
    "units.js",
    "words.js",
)

FILES: Mapping[str, str] = MappingProxyType(
    {"index.html": _HTML} | dict.fromkeys(_STYLES, _CSS) | dict.fromkeys(_SCRIPTS, _SCRIPT) | {"icon.svg": _SVG}
)
"""Media type of each file, by name."""

_HERE = Path(__file__).parent


def read(name: str) -> bytes:
    """Return the content of a file.

    Parameters
    ----------
    name : str
        One of :data:`FILES`.

    Raises
    ------
    KeyError
        For any other name.
    """
    if name not in FILES:
        raise KeyError(name)
    return (_HERE / name).read_bytes()
