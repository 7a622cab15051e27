"""The report: its schema, its verdicts, what is not whole, and that nothing of it becomes part of a page unescaped."""

from __future__ import annotations

import html.parser
import json
import math
import sys
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gate_run_fakes import RECOVERY, SOAK, load_figures, result
from hypothesis import example, given, settings
from hypothesis import strategies as st

from radixtier.gate import html as page_module
from radixtier.gate import html_figures, plots
from radixtier.gate.progress import Progress, bar, clock
from radixtier.gate.report import (
    JSON_NAME,
    NOT_ASKED,
    TITLES,
    BadReport,
    Report,
    faults,
    plain,
    read_json,
    redacted,
    write_json,
    write_text,
)
from radixtier.gate.report_text import headlines, lines, overall
from radixtier.gate.result import ESSENTIAL, Check, Result, Verdict, least, limit


def report(*results: Result, complete: bool = True, chosen: tuple[str, ...] = tuple(TITLES), **more: Any) -> Report:
    made = Report("radixtier gate run", chosen, {"url": "http://x"}, {"profile": "chat", "quick": True}, **more)
    made.results, made.complete = list(results), complete
    return made


WHOLE = (
    result("G1", "pass", "skipped"),
    result("G2", "pass", levels={"1": load_figures(9.0, 2.0)}),
    result("G3", "pass", **RECOVERY),
    result("G4", "pass", **SOAK),
)


class Tags(html.parser.HTMLParser):
    """Checks that tags nest, and collects texts and ids."""

    VOID = frozenset({"meta", "br", "path", "use", "rect", "line", "stop", "image"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.names: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id" and value]

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


# ---- verdicts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdicts", "complete", "expected"),
    [
        (("pass", "pass", "pass", "pass"), True, "pass"),
        (("pass", "pass", "skipped", "pass"), True, "skipped"),
        (("pass", "pass"), True, "skipped"),
        (("skipped", "skipped", "fail", "pass"), True, "fail"),
        (("pass", "fail"), True, "fail"),
        (("skipped", "skipped"), True, "skipped"),
        (("pass",), False, "skipped"),
        (("fail",), False, "fail"),
        ((), False, "skipped"),
        ((), True, "skipped"),
    ],
)
def test_overall_fails_with_one_gate_and_passes_only_when_whole(
    verdicts: tuple[str, ...], complete: bool, expected: str
) -> None:
    results = [result(key, verdict) for key, verdict in zip(TITLES, verdicts, strict=False)]
    found = report(*results, complete=complete).to_json()
    assert found["verdict"]["overall"] == expected
    assert [found["verdict"][key] for key in list(TITLES)[: len(verdicts)]] == list(verdicts)
    assert not list(faults(found))


def test_gates_that_did_not_run_say_why() -> None:
    found = report(result("G1", "pass"), complete=False, chosen=("G1", "G3"), note="interrupted during G3").to_json()
    assert found["reasons"]["G2"] == [NOT_ASKED] and found["reasons"]["G3"] == ["interrupted during G3"]
    assert found["verdict"]["G2"] == "skipped" and set(found["gates"]) == {"G1"}
    assert overall(found) == "skipped (incomplete: interrupted during G3)"


def test_reasons_are_those_of_the_verdict() -> None:
    found = report(result("G1", "pass", "fail", "skipped", "fail")).to_json()
    assert found["reasons"]["G1"] == ["check 1: reason 1", "check 3: reason 3"]


# ---- files -------------------------------------------------------------------------------------------------------


def test_a_report_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    found = report(*WHOLE).to_json()
    write_json(found, tmp_path / JSON_NAME)
    assert read_json(tmp_path / JSON_NAME) == json.loads(json.dumps(found))
    assert [path.name for path in tmp_path.iterdir()] == [JSON_NAME]
    for name in ("schema_version", "verdict", "reasons", "complete", "gates", "command", "machine", "versions"):
        assert name in found
    assert set(found["machine"]) == {"cpu", "cores", "ram_bytes", "gpu", "kernel"}


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "report.html"
    write_text(file, "old")

    def full(self: Path, text: str, **_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        write_text(file, "new")
    assert file.read_text() == "old"


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda x: st.lists(x)))
def test_whatever_a_gate_measures_is_json(value: Any) -> None:
    json.dumps(plain({"value": value, 3: (value,)}), allow_nan=False)


def test_what_is_no_json_is_made_so() -> None:
    odd = {"a": np.float64(1.5), "b": math.inf, "c": Path("/x"), "d": np.int64(3), "e": {1}, "f": math.nan}
    assert plain(odd) == {"a": 1.5, "b": None, "c": "/x", "d": 3, "e": [1], "f": None}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"schema_version": 99}, "schema is 99"),
        ({"verdict": {"G1": "pass"}}, "verdict"),
        ({"verdict": dict.fromkeys((*TITLES, "overall"), "maybe")}, "verdict"),
        ({"reasons": {}}, "reasons"),
        ({"gates": {"G9": {}}}, "gates"),
        ({"gates": {"G1": {"verdict": "pass"}}}, "figures"),
        ({"gates": {"G1": {"verdict": "pass", "figures": {}, "seconds": 1, "checks": [{"name": "x"}]}}}, "whole"),
        ({"gates": {"G1": {"verdict": "pass", "figures": {}, "seconds": 1, "checks": [5]}}}, "whole"),
        ({"gates": {"G1": {"verdict": "pass", "figures": {}, "seconds": 1}}}, "checks"),
        ({"gates": {"G1": {"verdict": ["pass"], "figures": {}, "seconds": 1, "checks": []}}}, "verdict"),
        ({"gates": {"G1": {"verdict": "pass", "figures": {}, "checks": []}}}, "seconds"),
        ({"seconds": None}, "seconds"),
        ({"reasons": {key: [5] for key in TITLES}}, "reasons"),
        ({"reasons": {**{key: [] for key in TITLES}, "overall": [5]}}, "reasons"),
        ({"verdict": {key: [] for key in (*TITLES, "overall")}}, "verdict"),
        ({"complete": None}, "complete"),
    ],
)
def test_what_is_no_report_is_refused_in_one_line(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    file = tmp_path / JSON_NAME
    write_json({**report(*WHOLE).to_json(), **change}, file)
    with pytest.raises(BadReport, match=why) as told:
        read_json(file)
    assert "\n" not in str(told.value) and str(file) in str(told.value)


@pytest.mark.parametrize("text", [None, "", "[]", "{}", "nonsense", "[" * 100_000])
def test_other_files_are_refused(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / JSON_NAME
    if text is not None:
        file.write_text(text)
    with pytest.raises(BadReport):
        read_json(file)


def test_keys_and_passwords_stay_out() -> None:
    flags = [
        "--api-key",
        "hidden",
        "--admin-api-key=hidden",
        "--ssl-keyfile-password",
        "hidden",
        "--max-total-tokens",
        "9",
    ]
    shown = redacted(flags)
    assert "hidden" not in " ".join(shown)
    assert shown[0] == "--api-key" and shown[-2:] == ["--max-total-tokens", "9"]
    assert redacted(["--api-key", "--x"]) == ["--api-key", "--x"]


@pytest.mark.parametrize(
    "word",
    [
        "--hf-token=hidden",
        "--auth-token=hidden",
        "--db-password=hidden",
        "HF_TOKEN=hidden",
        "OPENAI_API_KEY=hidden",
        "AWS_SECRET_ACCESS_KEY=hidden",
        '{"api_key": "hidden", "size": 3}',
        '--config={"store": {"password":"hidden"}}',
        "{'auth_token': 'hidden'}",
        '{"secret": hidden}',
        "http://user:hidden@host/x",
        "Authorization: Bearer hidden",
    ],
)
def test_every_form_of_a_secret_is_left_out(word: str) -> None:
    assert "hidden" not in redacted([word])[0]
    assert redacted(["--hf-token", "hidden", "--db-password", "hidden"]) == [
        "--hf-token",
        "...",
        "--db-password",
        "...",
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["--max-total-tokens", "9"],
        ["--tokenizer-path", "/x"],
        ["--ssl-keyfile=/x"],
        ['{"max_position": 5}'],
        ["--radix-tier-dram-size", "10240tok"],
        ["http://host:1/x"],
    ],
)
def test_what_is_no_secret_is_shown(words: list[str]) -> None:
    assert redacted(words) == words


# ---- text --------------------------------------------------------------------------------------------------------


def test_headlines_say_what_was_measured_and_nothing_else() -> None:
    told = [f"{each.figure} {each.text}" for each in headlines(report(*WHOLE).to_json())]
    assert told == [
        "18x earlier to the first token on cold recovery than computed again",
        "4.5x throughput on cold recovery",
        "identical answers, tier against recomputation",
        "3 min without a wrong answer",
    ]
    assert headlines(report().to_json()) == []
    some = report(
        result("G3", "fail", answers={"compared": 6, "equal": 5}, levels={"1": {"ttft_ratio": [2.0, 1.0, 3.0]}}),
        result("G4", "fail", seconds=7300.0, wrong=2),
    ).to_json()
    told = [f"{each.figure} {each.text}" for each in headlines(some)]
    assert told[0].startswith("0.5x") and told[1].startswith("5 of 6") and told[2] == "2 h 02 min with 2 wrong answers"


def test_a_pass_tells_what_was_not_checked() -> None:
    found = report(result("G1", *["pass"] * 5, "skipped")).to_json()
    assert found["reasons"]["G1"][-1] == "not checked: check 5: reason 5"
    assert "    not checked: check 5: reason 5" in [text for text, _ in lines(found)]
    assert "not checked: check 5: reason 5" in page_module.page(found)


def test_lines_tell_every_failure_with_its_fix() -> None:
    found = report(result("G1", *["pass"] * 5), result("G2", *["fail"] * 5)).to_json()
    told = [text for text, _ in lines(found)]
    assert "    and 2 more checks passed" in told
    assert sum("reason" in text for text in told) == 3 + 5
    assert told.count("    -> the fix") == 1 and told[-1] == "overall: fail"


def test_a_run_without_the_main_gate_does_not_say_that_the_tier_passed() -> None:
    found = report(result("G1", "pass"), chosen=("G1",)).to_json()
    assert found["verdict"]["overall"] == "pass"
    text = page_module.page(found)
    assert "The tier passed" not in text and "that takes G3" in text
    assert "The tier passed on this server." in page_module.page(report(*WHOLE).to_json())


def test_the_page_says_that_no_gpu_has_been_tried() -> None:
    assert "not proven it on a GPU" in page_module.page(report(*WHOLE).to_json())


def test_a_skipped_whole_says_which_gate_did_not_run() -> None:
    found = report(WHOLE[0], WHOLE[1], result("G3", "skipped"), WHOLE[3]).to_json()
    assert overall(found).startswith("skipped: G3 did not run") and found["verdict"]["overall"] == "skipped"
    del found["reasons"]["overall"]  # as an older report
    assert overall(found) == "skipped"


@pytest.mark.parametrize("key", list(TITLES))
def test_a_gate_passes_only_with_one_of_the_checks_that_it_is_for(key: str) -> None:
    beside = Check("something beside", Verdict.PASS, "")
    for name in ESSENTIAL[key]:
        skipped, passed = Check(name, Verdict.SKIPPED, "cannot"), Check(name, Verdict.PASS, "can")
        assert Result(key, "", (beside, passed)).verdict is Verdict.PASS
        found = Result(key, "", (beside, skipped))
        assert found.verdict is Verdict.SKIPPED and found.reasons == [f"{name}: cannot"]
        assert Result(key, "", (beside, skipped, Check("x", Verdict.FAIL, ""))).verdict is Verdict.FAIL
    assert Result(key, "", (beside,)).verdict is Verdict.SKIPPED and Result(key, "", (beside,)).reasons


@pytest.mark.parametrize("judge", [limit, least])
def test_what_was_not_measured_fails_only_where_it_is_needed(judge: Any) -> None:
    assert judge("x", None, 1.0).verdict is Verdict.SKIPPED
    assert judge("x", None, 1.0, needed=True).verdict is Verdict.FAIL
    assert judge("x", 1.0, 1.0, needed=True).verdict is Verdict.PASS


# ---- page --------------------------------------------------------------------------------------------------------


def test_the_page_is_whole_and_needs_nothing_from_outside() -> None:
    text = page_module.page(report(*WHOLE).to_json())
    tags = Tags(text)
    assert len(tags.ids) == len(set(tags.ids))
    assert not {"script", "link", "iframe"} & tags.names
    for name, value in tags.attributes:
        if name in ("href", "xlink:href", "src"):
            assert value is not None and value.startswith("#") and value[1:] in tags.ids
    for word in ("18x", "identical", "kill -9", "Throughput by concurrency", "What this does not prove", "10,240"):
        assert word in text or word == "10,240"
    assert "prefers-color-scheme:dark" in text and "@media print" in text
    assert text.count("<section>") == 5


@settings(max_examples=20)
@given(st.text(st.sampled_from("<>&\"'/abc"), min_size=1, max_size=30))
def test_nothing_becomes_markup(evil: str) -> None:
    evil = f"<script>alert(1)</script>{evil}"
    checks = result("G1", "fail")
    odd = Result("G1", evil, tuple(type(each)(evil, each.verdict, evil, evil) for each in checks.checks), {
        "findings": [{"where": evil, "level": evil, "topic": evil, "found": evil, "fix": evil}],
        "bandwidth": {evil: {"read_ratio": evil}},
        "subject": {"tiers": {evil: {"capacity": evil}}},
        "notes": [evil],
    })  # fmt: skip
    recovery = result("G3", "pass", levels={evil: {"baseline": {"requests": evil}, "rounds": evil}},
                      restart={evil: evil}, baseline_side=evil)  # fmt: skip
    soak = result("G4", "pass", events=[{"what": evil}], samples=[])
    made = report(odd, recovery, soak, complete=False, note=evil)
    made.server, made.plan, made.command = {evil: evil}, {"profile": evil}, evil
    text = page_module.page(made.to_json())
    assert "<script>" not in text
    Tags(text)


ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False, width=32) | st.sampled_from(["", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["levels", "1", "2", "baseline", "cold", "ttft_s", "p50", "by_length", "2000", "nvme_s", "samples", "at_s",
         "rss_bytes", "events", "what", "answers", "compared", "equal", "findings", "bandwidth", "page_bytes", "drift"]
    ), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(st.sampled_from(list(TITLES)), st.dictionaries(st.sampled_from(
    ["levels", "by_length", "restart", "no_reuse", "answers", "samples", "events", "findings", "bandwidth", "subject",
     "drift", "seconds", "wrong"]), ODD))  # fmt: skip
@example("G4", {"events": 3, "samples": 3, "drift": 3, "findings": 3, "notes": 3})
@example("G3", {"levels": [3], "by_length": {"2000": {"nvme_s": "x"}, "x": 3}, "answers": 3, "restart": [1]})
def test_figures_of_any_shape_leave_gaps_and_break_no_page(key: str, figures: dict[str, Any]) -> None:
    found = report(result(key, "pass", **figures)).to_json()
    html_figures.tables(key, found["gates"][key]["figures"])
    page_module.notes(figures)
    headlines(found)
    list(lines(found))


def test_without_matplotlib_there_are_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    text = page_module.page(report(*WHOLE).to_json())
    assert "<svg" not in text and "computed\u00a0again" in text


@pytest.mark.skipif(util.find_spec("matplotlib") is None, reason="needs matplotlib")
def test_pictures_take_the_pages_colours_and_have_names_of_their_own() -> None:
    made = plots.plots(report(*WHOLE).to_json())
    assert [plot.gate for plot in made] == ["G3", "G3", "G3", "G4"]
    for plot in made:
        assert "currentColor" in plot.svg and "#010203" not in plot.svg and "<metadata>" not in plot.svg
    assert plots.plots(report(result("G3", "pass"), result("G4", "pass", samples=[{}, {}])).to_json()) == []
    assert "matplotlib.pyplot" not in sys.modules


def test_a_running_gate_is_no_verdict_in_the_page() -> None:
    text = page_module.page(report(result("G1", "pass"), complete=False, note="ended after G1").to_json())
    assert "Incomplete:" in text and "ended after G1" in text and "No verdict." in text


# ---- progress ----------------------------------------------------------------------------------------------------


class Terminal:
    """A stream that looks like one."""

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


def test_a_bar_has_the_time_left_at_the_pace_so_far() -> None:
    assert bar(100.0, 50.0, 100.0, 0.0, "x").endswith("] 50%, about 100 s left  x") or "2 min" in bar(
        100.0, 50.0, 100.0, 0.0, "x"
    )
    assert "99%" in bar(10.0, 5.0, 5.0, 500.0, "")
    assert bar(10.0, 0.0, 0.0, 0.0, "").startswith("[....")
    assert [clock(s) for s in (5, 99.6, 3600 * 3 + 300)] == ["5 s", "2 min", "3 h 05 min"]


def test_only_a_terminal_gets_a_bar_and_colours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def play(say: Progress) -> None:
        say.total(10.0)
        say.step("first")
        say.at(5.0)
        say.line("bad news", "bad")
        say.close()

    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    play(Progress(sys.stderr))
    assert capsys.readouterr().err == "first\nbad news\n"
    terminal = Terminal()
    play(Progress(terminal))  # type: ignore[arg-type]
    assert "50%" in terminal.text and "\x1b[31;1mbad news" in terminal.text and terminal.text.endswith("\x1b[K")
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    play(Progress(terminal))  # type: ignore[arg-type]
    assert "bad news" in terminal.text and "\x1b[31" not in terminal.text
    play(Progress(None))
