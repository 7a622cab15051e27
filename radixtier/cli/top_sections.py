"""The sections of ``radixtier top``: each makes lines of one kind of figure.

Owns what is shown of what a server says. Invariants: no line is wider than asked for; a field that is missing leaves a
dash. Pure; any thread.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from radixtier.cli import top_format as form
from radixtier.cli.top_format import LABELS, SOURCES, STYLES, TIERS, Glyphs
from radixtier.cli.top_source import Picture, Silence
from radixtier.monitor.reading import figure, number, part

MINUTE_S = 60.0
MOMENT_S = 10.0
"""Over which rates of now are means."""

DIM = "bright_black"
_LEVELS = {"warning": "yellow", "error": "bold red", "critical": "bold red"}
_HEALTH = {"ok": "green", "degraded": "bold red", "draining": "yellow", "drained": "yellow"}


@dataclass(frozen=True)
class Look:
    """How wide lines are, what pictures are made of, and what time it is (Unix seconds)."""

    width: int
    glyphs: Glyphs
    now: float


def rule(look: Look, title: str, remark: str = "") -> Text:
    """Head a section: a title at the left and a remark at the right of a thin line."""
    remark = form.words(remark, min(len(remark), max(0, look.width - len(title) - 6)), look.glyphs).rstrip()
    line = look.glyphs.rule * max(0, look.width - len(title) - len(remark) - (4 if remark else 1))
    parts: list[tuple[str, str]] = [(f"{title} ", "bold"), (line, DIM)]
    return Text.assemble(*parts, *([(f" {remark}", ""), (f" {look.glyphs.rule}", DIM)] if remark else []))


def header(picture: Picture | None, look: Look, paused: bool) -> Text:
    """Tell which server this is and how it is."""
    state = {} if picture is None else picture.state
    health = part(state, "health.status") or ("ok" if picture is not None else None)
    style = _HEALTH.get(str(health), DIM)
    glyph = look.glyphs.ok if health == "ok" else look.glyphs.bad
    right = [("paused  ", "yellow")] if paused else []
    right += [(f"{form.clock(look.now)}  ", DIM), (f"{glyph} {form.plain(health)}", style)]
    end = Text.assemble(*right)
    about = [f"radixtier {form.plain(part(state, 'version') or '')}".strip()]
    if part(state, "started") is not None:
        about.append(f"up {form.span((figure(state, 'now') or look.now) - (figure(state, 'started') or 0.0))}")
    model = form.plain(part(state, "model") or "")
    line = Text(about[0], "bold")
    room = look.width - end.cell_len - sum(len(each) + 2 for each in about) - 2
    if model and room > 4:
        line.append(f"  {form.words(model, min(len(model), room), look.glyphs)}", "bright_cyan")
    line.append("".join(f"  {each}" for each in about[1:]), DIM)
    return _ends(line, end, look)


def alerts(picture: Picture | None, silence: Silence | None, look: Look) -> list[Text]:
    """Tell what is wrong, since when and what to do about it; nothing when all is well."""
    found: list[Text] = []
    if silence is not None:
        old = "" if picture is None else f" What is below is from {form.clock(picture.taken)}."
        since = f"silent since {form.clock(silence.since)} ({form.span(look.now - silence.since)})"
        found += _wrapped(f"{since}: {form.plain(silence.why)}; still trying.{old}", look, "bold red", look.glyphs.bad)
    if picture is None:
        return found
    for reason in form.rows(picture.state, "health.reasons"):
        began = number(reason.get("since"))
        when = f" (since {form.clock(began)}, {form.span(look.now - began)})" if began else ""
        text = f"{form.plain(reason.get('what'))}: {form.plain(reason.get('why'))}{when}"
        found += _wrapped(text, look, "red", look.glyphs.bad)
        if reason.get("fix"):
            found += _wrapped(form.plain(reason["fix"]), look, "", f"  {look.glyphs.fix}")
    return found


def tiers(picture: Picture, look: Look) -> list[Text]:
    """Show what each tier holds, of tokens and of bytes."""
    page = [figure(picture.state, name) or 0.0 for name in ("page_bytes", "page_tokens")]
    weight = page[0] / page[1] if page[1] else None
    found = [rule(look, "tiers", f"{form.count(part(picture.state, 'nodes'))} nodes")]
    for tier in TIERS:
        used, capacity = (figure(picture.state, f"tiers.{tier}.{name}") for name in ("used", "capacity"))
        held = [None if tokens is None or weight is None else tokens * weight for tokens in (used, capacity)]
        if tier == "nvme" and part(picture.state, "store") is not None:
            held = [figure(picture.state, f"store.{name}") for name in ("bytes_used", "bytes_cap")]
        tokens = f"{form.count(used)} of {form.count(capacity)}"
        figures = f" {form.share(used, capacity):>5}  {tokens:<16} {form.nbytes(held[0])} of {form.nbytes(held[1])}"
        if not capacity:
            figures = "  none"
        drawn = form.bar(used, capacity, max(4, look.width - 56), STYLES[tier], look.glyphs)
        found.append(Text.assemble((f" {LABELS[tier]:<5}", STYLES[tier]), drawn, figures))
    return found


def answers(picture: Picture, look: Look, brief: bool) -> list[Text]:
    """Show where prompt tokens came from: the last minute as one bar, and unless ``brief`` the last minutes each."""
    series = {name: _series(picture, f"{name}_tokens_per_s") for name in SOURCES}
    last = {name: _mean_of(picture, f"{name}_tokens_per_s", MINUTE_S) for name in SOURCES}
    whole = sum(value or 0.0 for value in last.values())
    requests = _mean_of(picture, "requests_per_s", MINUTE_S)
    remark = f"{form.count(whole)} tokens/s, {form.count(requests)} requests/s"
    if picture.history is None:
        remark = f"no history: {form.plain(picture.missing.get('history', ''))}"
    found = [rule(look, "prompt tokens, last minute", remark)]
    drawn = form.stacked({name: value or 0.0 for name, value in last.items()}, look.width - 2, look.glyphs)
    found.append(Text.assemble(" ", drawn))
    if brief:
        legend = Text()
        for name in SOURCES:
            legend.append(f" {look.glyphs.sources[name]} {LABELS[name]}", STYLES[name])
            legend.append(f" {form.share(last[name], whole)}  ")
        return [*found, legend]
    room = look.width - 35
    shown = {name: form.thinned(values, room) for name, values in series.items()}
    top = max([value for values in shown.values() for value in values if value is not None], default=0.0)
    for name in SOURCES:
        label = (f" {look.glyphs.sources[name]} {LABELS[name]:<9}", STYLES[name])
        figures = f"{form.share(last[name], whole):>6} {form.count(last[name]):>7} tok/s  "
        line = form.sparkline(shown[name], room, STYLES[name], look.glyphs, top or None)
        found.append(Text.assemble(label, figures, line))
    return found


def drives(picture: Picture, look: Look, brief: bool) -> list[Text]:
    """Show what moves: reads and writes, promotions, the write budget and wear, who waits."""
    state = picture.state
    queue, running = (part(state, f"io.{name}") for name in ("queue", "running"))
    waiting = figure(state, "requests.waiting_for_nvme")
    remark = f"{form.count(queue)} chunks queued, {form.count(running)} running, {_requests(waiting)} waiting"
    found = [rule(look, "drives", "no NVMe tier" if part(state, "io") is None else remark)]
    for kind in ("read", "write"):
        rate = form.speed(_mean_of(picture, f"{kind}_bytes_per_s", MOMENT_S))
        middle = f"p50 {form.milliseconds(_last(picture, 'read_p50_ms')):<8}" if kind == "read" else " " * 12
        tail = f"p99 {form.milliseconds(_last(picture, f'{kind}_p99_ms')):<8}"
        text = f" {kind:<8}{rate:<12}{middle} {tail} "
        room = look.width - len(text) - 1
        values = form.thinned(_series(picture, f"{kind}_bytes_per_s"), room)
        found.append(Text.assemble(text, form.sparkline(values, room, STYLES["nvme"], look.glyphs)))
    found += [] if brief else [_labelled("moves", _moves(picture), look)]
    budget = _budget(state)
    found += [_labelled("budget", budget, look)] if budget and not brief else []
    found.append(_labelled("wear", _wear(state), look))
    return found if brief else [*found, _labelled("waits", _waits(picture), look)]


def _moves(picture: Picture) -> str:
    up, down, lost = (_mean_of(picture, f"{name}_tokens_per_s", MOMENT_S) for name in ("promoted", "demoted", "lost"))
    told = f"{form.count(up)} tok/s up, {form.count(down)} tok/s down, {form.count(lost)} tok/s lost"
    used, room = (figure(picture.state, f"landing.{name}") for name in ("used", "capacity"))
    return told if room is None else f"{told}; landing {form.share(used, room)}"


def _waits(picture: Picture) -> str:
    waited = figure(picture.state, "requests.waited_s")
    longest = figure(picture.state, "tick.longest_s")
    worst = form.milliseconds(None if longest is None else longest * 1e3)
    step = form.milliseconds(_last(picture, "tick_ms"))
    return f"for NVMe {form.span(waited)} so far; scheduler step {step}, longest {worst}"


def _requests(number: float | None) -> str:
    return f"{form.count(number)} request{'' if number == 1 else 's'}"


def _budget(state: Mapping[str, Any]) -> str:
    """Tell what may be written at once: that is not what is left of a day's budget, which comes in bit by bit."""
    daily = figure(state, "wear.budget_bytes_per_day")
    if daily is None:
        return ""
    most = figure(state, "wear.budget_bytes_most")
    room = "" if most is None else f" of at most {form.nbytes(most)}"
    return f"{form.nbytes(daily)} a day; {form.nbytes(part(state, 'wear.budget_bytes_left'))}{room} saved up"


def _wear(state: Mapping[str, Any]) -> str:
    wear = part(state, "wear")
    if not isinstance(wear, Mapping):
        return "no NVMe tier"
    told = [f"{form.nbytes(wear.get('bytes_per_day'))} a day"]
    used, end = number(wear.get("rated_life_used")), wear.get("worn_out")
    if used is not None:
        told.append(f"{form.small_percent(used)} worn" + (f", end {form.plain(end)[:7]}" if end else ""))
    return "; ".join([*told, f"{form.nbytes(wear.get('bytes_written'))} written"])


def sessions(picture: Picture, look: Look, which: str, most: int) -> list[Text]:
    """List the ``hottest`` or ``coldest`` subtrees."""
    total = part(picture.tree, "total_nodes")
    remark = f"of {form.count(total)} nodes" if picture.tree is not None else ""
    if picture.tree is None:
        remark = f"no tree: {form.plain(picture.missing.get('tree', ''))}"
    found = [rule(look, which, remark)]
    room = max(8, look.width - 44)
    heading = f" {'session':<{room}} {'tokens':>7}  {'where':<12}  {'used':>10}  {'hits':>6}"
    found.append(Text(heading, DIM))
    for row in form.rows(picture.tree, which)[: max(0, most - 2)]:
        name = row["session"] if row.get("session") is not None else f"node {row.get('node')}"
        last = number(row.get("last_used"))
        ago = form.age(None if last is None else look.now - last)
        where = {place: number(row.get(place)) or 0.0 for place in (*TIERS, "lost")}
        figures = f"{ago:>10}  {form.count(row.get('hits')):>6}"
        held = (f" {form.words(name, room, look.glyphs)} {form.count(row.get('tokens')):>7}  ", "")
        found.append(Text.assemble(held, form.stacked(where, 12, look.glyphs), f"  {figures}"))
    return found[:most]


def events(picture: Picture, look: Look, most: int) -> list[Text]:
    """List what the log said last, the newest first."""
    remark = f"none: {form.plain(picture.missing.get('events', ''))}" if picture.events is None else ""
    found = [rule(look, "events", remark)]
    for event in form.rows(picture.events, "events")[: max(0, most - 1)]:
        times = number(event.get("times")) or 1
        often = f"{times:.0f}x " if times > 1 else ""
        said = form.plain(event.get("text")).removeprefix("radixtier: ")
        text = form.words(f"{often}{said}", max(0, look.width - 11), look.glyphs)
        style = _LEVELS.get(str(event.get("level")).lower(), "")
        found.append(Text.assemble((f" {form.clock(event.get('at'))} ", DIM), (text, style)))
    return found[:most]


def footer(look: Look, other: str, interval_s: float) -> Text:
    """Tell the keys; ``other`` is the list that one of them brings, empty where both are there."""
    line = Text()
    for key, meaning in (("q", "quit"), ("p", "pause"), *([("s", other)] if other else [])):
        line.append(f" {key} ", "reverse").append(f" {meaning}  ", DIM)
    return _ends(line, Text(f"every {interval_s:g} s", DIM), look)


def beside(left: Sequence[Text], right: Sequence[Text], look: Look) -> list[Text]:
    """Put lines of half the width next to each other."""
    half = (look.width - 2) // 2
    found = []
    for place in range(max(len(left), len(right))):
        line = left[place].copy() if place < len(left) else Text()
        line.truncate(half, overflow="crop", pad=True)
        found.append(Text.assemble(line, "  ", right[place] if place < len(right) else ""))
    return found


def _labelled(label: str, text: str, look: Look) -> Text:
    return Text(f" {label:<8}{form.words(text, max(0, look.width - 9), look.glyphs).rstrip()}")


def _ends(left: Text, right: Text, look: Look) -> Text:
    gap = look.width - left.cell_len - right.cell_len
    return Text.assemble(left, " " * gap, right) if gap > 0 else left


def _wrapped(text: str, look: Look, style: str, mark: str) -> list[Text]:
    indent = len(mark) + 1
    lines = textwrap.wrap(text, max(20, look.width - indent - 1)) or [""]
    return [Text(f"{mark if number == 0 else ' ' * len(mark)} {line}", style) for number, line in enumerate(lines)]


# ---- history ----------------------------------------------------------------------------------------


def _series(picture: Picture, name: str) -> list[Any]:
    found = part(picture.history, f"series.{name}")
    return found if isinstance(found, list) else []


def _mean_of(picture: Picture, name: str, seconds: float) -> float | None:
    """Return the mean of the last ``seconds`` of a series."""
    step = number(part(picture.history, "interval_s")) or 1.0
    recent = [number(value) for value in _series(picture, name)[-max(1, round(seconds / step)) :]]
    found = [value for value in recent if value is not None]
    return sum(found) / len(found) if found else None


def _last(picture: Picture, name: str) -> float | None:
    """Return the last value of a series that is one, within the last minute."""
    step = number(part(picture.history, "interval_s")) or 1.0
    recent = (number(value) for value in reversed(_series(picture, name)[-max(1, round(MINUTE_S / step)) :]))
    return next((value for value in recent if value is not None), None)
