"""Parts of a page: escaped text, tables, badges.

Owns the rule that text becomes part of a page only escaped; :class:`Html` marks what is so already. Pure, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any


class Html(str):
    """Text that is HTML already."""


def cell(value: object) -> str:
    """Return a value as HTML."""
    if isinstance(value, Html):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return escape(f"{value:,.4g}")
    if isinstance(value, int):
        return f"{value:,}"
    return "" if value is None else escape(str(value))


def table(head: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[int] = ()) -> Html:
    """Return a table, as narrow as it can be without a head; columns in ``right`` are set to the right."""
    if not rows:
        return Html("")

    def line(tag: str, values: Sequence[object]) -> str:
        kinds = (' class="n"' if at in right else "" for at in range(len(values)))
        cells = (f"<{tag}{kind}>{cell(value)}</{tag}>" for kind, value in zip(kinds, values, strict=True))
        return f"<tr>{''.join(cells)}</tr>"

    body = "".join(line("td", row) for row in rows)
    if not any(head):
        return Html(f'<table class="narrow"><tbody>{body}</tbody></table>')
    return Html(f'<div class="wide"><table><thead>{line("th", head)}</thead><tbody>{body}</tbody></table></div>')


def rows_table(values: Mapping[str, Any]) -> Html:
    """Return names and values, one a row; what is nested is written as in a program."""
    rows = [
        [str(name).replace("_", " "), Html(f"<code>{escape(_flat(value))}</code>")] for name, value in values.items()
    ]
    return table(["", ""], rows)


def badge(verdict: object) -> Html:
    """Return a verdict in its colour."""
    word = escape(str(verdict))
    return Html(f'<span class="badge {word}">{word}</span>')


def _flat(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_flat(each)}" for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return " ".join(_flat(each) for each in value)
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
