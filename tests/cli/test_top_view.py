"""What ``radixtier top`` draws: the figures of the server, within the window, whatever the server says."""

from __future__ import annotations

from typing import Any

import cli_fakes as fakes
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from radixtier.cli import top_format as form
from radixtier.cli.top_format import ASCII, UNICODE
from radixtier.cli.top_sections import Look
from radixtier.cli.top_source import Picture, Silence
from radixtier.cli.top_view import WIDE, frame


def picture(state: dict[str, Any] | None = None) -> Picture:
    return Picture(state or fakes.state(), fakes.history(), fakes.events(), fakes.tree(), taken=fakes.NOW)


def drawn(what: Picture | None, width: int = 100, silence: Silence | None = None, **more: Any) -> str:
    return "\n".join(line.plain for line in frame(what, silence, Look(width, UNICODE, fakes.NOW), **more))


def test_the_tiers_show_tokens_and_bytes() -> None:
    lines = {line.split()[0]: line for line in drawn(picture()).splitlines() if line.strip()}
    assert "96 %  251k of 262k     30.6 GiB of 32.0 GiB" in lines["HBM"]
    assert "67 %  700k of 1.0M     85.5 GiB of 128.0 GiB" in lines["DRAM"]
    assert "38 %  3.2M of 8.4M     401.0 GiB of 1.0 TiB" in lines["NVMe"], "bytes on disk, journal included"


def test_what_may_be_written_at_once_is_not_called_the_rest_of_the_day() -> None:
    lines = {line.split()[0]: line.strip() for line in drawn(picture()).splitlines() if line.strip()}
    assert lines["budget"] == "budget  500.0 GiB a day; 17.0 GiB of at most 20.0 GiB saved up"
    assert lines["wear"] == "wear    402.0 GiB a day; 0.42 % worn, end 2041-05; 911.0 GiB written"
    without = fakes.state(wear={"bytes_written": 0, "budget_bytes_per_day": None})
    assert "budget" not in drawn(picture(without))


def test_the_split_is_that_of_the_last_minute() -> None:
    history = fakes.history(120)
    rates = {"hbm": 300.0, "dram": 200.0, "nvme": 400.0, "computed": 100.0}
    for name, rate in rates.items():
        history["series"][f"{name}_tokens_per_s"] = [9e9] * 60 + [rate] * 60
    text = drawn(Picture(fakes.state(), history, None, None))
    assert "1,000 tokens/s" in text
    for label, part, rate in (("HBM", 30, "300"), ("DRAM", 20, "200"), ("NVMe", 40, "400"), ("computed", 10, "100")):
        assert any(label in line and f"{part} %" in line and f"{rate} tok/s" in line for line in text.splitlines())


def test_every_part_has_its_cells() -> None:
    assert form.stacked({"hbm": 1, "dram": 0, "nvme": 998, "computed": 1}, 20, UNICODE).plain == "█" + "▒" * 18 + "░"
    assert form.stacked({"hbm": 0.0}, 5, UNICODE).plain == "·····"
    assert form.bar(3, 4, 8, "red", ASCII).plain == "######.."
    assert form.sparkline([0, None, 4, 8], 6, "red", UNICODE).plain == "  ▁ ▅█"
    assert form.thinned([1, 2, 3, 4, 5], 2) == [1.5, 4.0]


def test_trouble_comes_first_with_what_to_do() -> None:
    lines = drawn(picture(fakes.degraded())).splitlines()
    assert lines[0].endswith("▲ degraded")
    assert lines[1].startswith("▲ /mnt/nvme1/kv takes no new pages: writing 262144 bytes: Input/output error (since ")
    assert "look for errors of the device in the kernel's log" in "\n".join(lines[2:4])
    assert "write budget: used up for now" in "\n".join(lines[3:5])


def test_silence_is_told_and_the_old_figures_stay() -> None:
    text = drawn(picture(), silence=Silence(fakes.NOW - 72, "no answer from unix:/x: Connection refused"))
    said = " ".join(line.strip() for line in text.splitlines()[1:3])
    assert "(1 min): no answer from unix:/x: Connection refused; still trying. What is below is from" in said
    assert "251k of 262k" in text
    assert "still trying" in drawn(None, silence=Silence(fakes.NOW, "no answer"))
    assert "waiting for the first answer" in drawn(None)


def test_the_lists() -> None:
    text = drawn(picture(), height=35, interval_s=2.0)
    assert "hottest" in text and "user-1/chat-31" in text and " s  coldest" in text
    assert "coldest ──" in drawn(picture(), height=35, which="coldest", interval_s=2.0)
    wide = drawn(picture(), WIDE, height=35, interval_s=2.0)
    assert "hottest ──" in wide and "coldest ──" in wide and " s  coldest" not in wide
    assert "12x /mnt/nvme1/kv takes" in drawn(picture())


def test_what_a_server_does_not_have_is_said() -> None:
    bare = Picture({"tiers": {}}, missing={"history": "not here", "tree": "nor this", "events": "nor that"})
    text = drawn(bare)
    assert "no history: not here" in text and "no tree: nor this" in text and "none: nor that" in text


def test_names_of_others_reach_the_terminal_without_escapes() -> None:
    hostile = "\x1b[2J\x07[red]\u202e\n" + "長" * 80
    tree = {"total_nodes": 1, "hottest": [fakes.row(1, session=hostile)], "coldest": []}
    events = {"events": [{"at": fakes.NOW, "level": "info", "text": hostile}]}
    state = fakes.state(model=hostile, health={"status": hostile, "reasons": [{"what": hostile, "why": hostile}]})
    text = drawn(Picture(state, None, events, tree), height=40)
    assert all(letter.isprintable() or letter == "\n" for letter in text)
    assert "[red]" in text and all(cell_len(line) <= 100 for line in text.splitlines())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)


def garbled(well: Any) -> st.SearchStrategy[Any]:
    """Objects like ``well`` with anything in the place of some of it."""
    if isinstance(well, dict):
        return st.fixed_dictionaries({}, optional={key: garbled(value) for key, value in well.items()}) | JSON
    if isinstance(well, list) and well:
        return st.lists(garbled(well[0]), max_size=4) | JSON
    return st.just(well) | JSON


@settings(max_examples=150, deadline=None)
@given(
    st.fixed_dictionaries({}, optional={key: garbled(value) for key, value in fakes.degraded().items()}),
    garbled({"interval_s": 1.0, "series": {name: [1.0, None] for name in fakes.history(2)["series"]}}),
    garbled(fakes.events()),
    garbled(fakes.tree()),
    st.integers(10, 220),
    st.integers(1, 60) | st.none(),
    st.sampled_from([UNICODE, ASCII]),
    st.booleans(),
)
def test_no_answer_breaks_the_window(
    state: Any, history: Any, events: Any, tree: Any, width: int, height: int | None, glyphs: Any, silent: bool
) -> None:
    silence = Silence(fakes.NOW - 5, "no answer") if silent else None
    what = Picture(state, history, events, tree)
    lines = frame(
        what, silence, Look(width, glyphs, fakes.NOW), height=height, interval_s=None if height is None else 2
    )
    assert all(line.cell_len <= width and "\n" not in line.plain for line in lines)
    assert height is None or len(lines) == height


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (form.count(831), "831"),
        (form.count(8310), "8,310"),
        (form.count(12_345), "12.3k"),
        (form.count(4_560_000), "4.6M"),
        (form.count(0.25), "0.2"),
        (form.count(None), "-"),
        (form.count("12"), "-"),
        (form.count(10**400), "-"),
        (form.count(float("nan")), "-"),
        (form.speed(1.21e9), "1.21 GB/s"),
        (form.speed(0), "0 B/s"),
        (form.milliseconds(0.314), "0.31 ms"),
        (form.milliseconds(1500), "1.5 s"),
        (form.span(8000), "2 h 13 min"),
        (form.span(200_000), "2 d 7 h"),
        (form.age(59), "59 s ago"),
        (form.age(7200), "2 h ago"),
        (form.clock(1e30), "-"),
        (form.share(1, 3), "33 %"),
        (form.share(1, 0), "-"),
        (form.small_percent(0.0042), "0.42 %"),
        (form.small_percent(0.31), "31 %"),
        (form.small_percent(5e-9), "<0.01 %"),
        (form.words("a\tb", 5, UNICODE), "a?b  "),
        (form.words("長長長", 5, UNICODE), "長長…"),
    ],
)
def test_forms(made: str, text: str) -> None:
    assert made == text
