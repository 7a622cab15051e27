"""The picture of ``radixtier top``: which sections there are in a window of a given size.

Owns the layout. Invariants: never more lines than the window has, nor wider ones; what is wrong comes first and is cut
last. Pure; any thread.
"""

from __future__ import annotations

from dataclasses import replace

from rich.text import Text

from radixtier.cli import top_sections as section
from radixtier.cli.top_sections import Look
from radixtier.cli.top_source import Picture, Silence

WIDE = 130
"""Columns from which on two lists stand next to each other."""

LEAST_LISTED = 9
"""Lines that the two lists get before others are written out."""

LISTED = 12
"""Lines of each list where the window has no end."""


def frame(
    picture: Picture | None,
    silence: Silence | None,
    look: Look,
    *,
    height: int | None = None,
    which: str = "hottest",
    paused: bool = False,
    interval_s: float | None = None,
) -> list[Text]:
    """Draw everything.

    Parameters
    ----------
    picture, silence
        What the server said last, and whether it is silent.
    look
        Width, characters and time.
    height
        Lines of the window; None for as many as it takes.
    which
        The list that a narrow window shows: ``hottest`` or ``coldest``.
    paused
        Whether nothing is asked any more.
    interval_s
        Seconds between questions, for the last line, which tells the keys; None to leave it out.
    """
    found = [section.header(picture, look, paused)]
    warnings = section.alerts(picture, silence, look)
    found += warnings if height is None else warnings[: max(2, height // 3)]
    other = "" if look.width >= WIDE else "coldest" if which == "hottest" else "hottest"
    last = [] if interval_s is None else [section.footer(look, other, interval_s)]
    if picture is not None:
        room = None if height is None else height - len(found) - len(last)
        found += _body(picture, look, room, which)
    elif silence is None:
        found.append(Text(" waiting for the first answer", section.DIM))
    if height is not None:
        found = found[: max(0, height - len(last))]
        found += [Text()] * (height - len(last) - len(found))
    return [_cut(line, look.width) for line in [*found, *last]][: height or None]


def _body(picture: Picture, look: Look, room: int | None, which: str) -> list[Text]:
    wide = look.width >= WIDE
    half = replace(look, width=(look.width - 2) // 2)
    tiers = section.tiers(picture, look)
    whole = [section.answers(picture, look, False), section.drives(picture, half if wide else look, False)]
    brief = room is not None and room - len(tiers) - sum(map(len, whole)) < LEAST_LISTED
    answers = section.answers(picture, look, True) if brief else whole[0]
    drives = section.drives(picture, half if wide else look, True) if brief else whole[1]
    if wide:
        drives = section.beside(drives, section.events(picture, half, len(drives)), look)
        left = LISTED if room is None else room - len(tiers) - len(answers) - len(drives)
        hottest, coldest = (section.sessions(picture, half, each, left) for each in ("hottest", "coldest"))
        return [*tiers, *answers, *drives, *section.beside(hottest, coldest, look)]
    if room is None:
        both = [line for each in ("hottest", "coldest") for line in section.sessions(picture, look, each, LISTED)]
        return [*tiers, *answers, *drives, *both, *section.events(picture, look, LISTED)]
    left = max(0, room - len(tiers) - len(answers) - len(drives))
    told = section.events(picture, look, max(2, left // 3)) if left > 3 else []
    return [*tiers, *answers, *drives, *section.sessions(picture, look, which, left - len(told)), *told]


def _cut(line: Text, width: int) -> Text:
    line.truncate(width, overflow="crop")
    line.no_wrap = True
    return line
