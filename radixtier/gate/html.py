"""The report of a run as one page: ``report.html``, with nothing outside of it.

Owns the page's frame and looks: headline, a row per gate, a page per gate when it is printed, an appendix. Invariant:
every text is escaped; what is not in ``report.json`` is not there. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from radixtier.gate import html_figures
from radixtier.gate.html_parts import Html, badge, rows_table, table
from radixtier.gate.plots import Plot, plots
from radixtier.gate.progress import clock
from radixtier.gate.report import TITLES
from radixtier.gate.report_text import brief, headlines, items, mapping, overall
from radixtier.units import format_bytes

HTML_NAME = "report.html"

QUESTIONS = {
    "G1": "Are machine, drives, store and server in order?",
    "G2": "What does a long prompt cost when it is computed again?",
    "G3": "What does it cost when its KV is on NVMe alone, and what does the tier cost where it cannot help?",
    "G4": "Does it stay right, fast and within its bounds, and does it recover from faults?",
}

_PASSED, _SOME_PASSED = (
    "The tier passed on this server.",
    "The gates that were asked for passed. Whether tiering pays is not said: that takes G3.",
)
_WORDS = {"fail": "The tier did not pass on this server.", "skipped": "No verdict."}

LIMITS_OF_PROOF = (
    "These figures hold for this machine, this model and these prompts; other loads reuse more or less.",
    "Recovered prompts were written to NVMe completely before they were asked for again. How often your load finds its "
    "prefixes there is a question for a recorded trace and the lab.",
    "A quick run has few requests per level, too few for intervals, and its soak shows no slow leak.",
    "Faults are those of the test: errors, flipped bits, slowness and a killed server. A power cut of the drive itself "
    "is none of them.",
    "The tier's authors have not proven it on a GPU: a report from one is the first evidence for such a machine, and a "
    "report from a CPU says nothing about GPUs.",
)

_CSS = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#59636e;--paper:#fff;--card:#f6f8fa;--line:#d1d9e0;--faint:#8886;
--pass:#116329;--passbg:#dafbe1;--fail:#a40e26;--failbg:#ffebe9;--skip:#7d4e00;--skipbg:#fff8c5}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9198a1;--paper:#0d1117;--card:#151b23;--line:#3d444d;
--faint:#8885;--pass:#7ee2a0;--passbg:#12301d;--fail:#ff9a92;--failbg:#3b1518;--skip:#f0c674;--skipbg:#352a10}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:66rem;margin:0 auto;padding:2rem 1.25rem 4rem}
h1{font-size:1.7rem;margin:0 0 .25rem}h2{font-size:1.3rem;margin:3rem 0 .25rem}h3{font-size:1rem;margin:1.75rem 0 .5rem}
p{margin:.25rem 0 .75rem;max-width:50rem}.soft{color:var(--soft)}
a{color:inherit}code,pre{font:13px/1.45 ui-monospace,SFMono-Regular,Menlo,monospace}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--card);border:1px solid var(--line);border-radius:6px;
padding:.6rem .8rem;margin:.25rem 0 1rem}
.badge{display:inline-block;padding:.05rem .55rem;border-radius:1rem;font-weight:600;font-size:.85em;white-space:nowrap}
.pass{color:var(--pass);background:var(--passbg)}.fail{color:var(--fail);background:var(--failbg)}
.skipped{color:var(--skip);background:var(--skipbg)}
.tiles{display:flex;flex-wrap:wrap;gap:.75rem;margin:1.25rem 0}
.tile{flex:1 1 11rem;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.8rem 1rem}
.tile b{display:block;font-size:1.5rem;line-height:1.25}.tile span{color:var(--soft)}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;margin:.25rem 0 1rem}
th,td{text-align:left;vertical-align:top;padding:.35rem .7rem .35rem 0;border-bottom:1px solid var(--line)}
th{font-weight:600;color:var(--soft);font-size:.87em}td{overflow-wrap:anywhere;min-width:5.5rem}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
header td:first-child{white-space:nowrap}td ul{margin:0;padding-left:1.1rem}.fix{color:var(--soft);display:block}
.plots{display:flex;flex-wrap:wrap;gap:1rem}figure{margin:0;flex:1 1 24rem;min-width:0}
figure.whole{flex-basis:100%}figure svg{width:100%;max-width:34rem;height:auto;display:block}
figure.whole svg{max-width:none}table.narrow{width:auto}table.narrow td{padding-right:2rem}
figcaption{font-weight:600;margin-bottom:.25rem}details{margin:.5rem 0}summary{cursor:pointer}
@media print{:root{color-scheme:light;--ink:#000;--soft:#444;--paper:#fff;--card:#fff;--line:#bbb;--pass:#0a4a1e;
--passbg:#fff;--fail:#8a0a1e;--failbg:#fff;--skip:#5a3800;--skipbg:#fff}
body{font-size:10pt}main{max-width:none;padding:0}section{break-before:page}h2{margin-top:0}
table{font-size:9pt}figure{flex-basis:16rem}tr,figure,.tile{break-inside:avoid}
.badge{border:1px solid currentColor}.wide{overflow:visible}}
"""


def page(report: Mapping[str, Any]) -> str:
    """Return the page of a report."""
    pictures = plots(report)
    body = Html("").join(
        [
            _head(report),
            *(_gate(key, report, [plot for plot in pictures if plot.gate == key]) for key in TITLES),
            _appendix(report),
        ]
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>radixtier gate: {escape(overall(report))}</title><style>{_CSS}</style></head>\n"
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


def _head(report: Mapping[str, Any]) -> Html:
    verdict = report["verdict"]
    tiles = "".join(
        f'<div class="tile"><b>{escape(each.figure)}</b><span>{escape(each.text)}</span></div>'
        for each in headlines(report)
    )
    incomplete = "" if report["complete"] else f"<p><b>Incomplete:</b> {escape(str(report.get('note') or ''))}</p>"
    gates = [
        [
            Html(f'<a href="#{key}">{key}&ensp;{escape(title)}</a>'),
            badge(verdict[key]),
            _reasons(report["reasons"][key], verdict[key]),
            _took(mapping(report["gates"].get(key))),
        ]
        for key, title in TITLES.items()
    ]
    plan = mapping(report.get("plan"))
    about = [str(report["started"]), f"profile {plan['profile']}" if "profile" in plan else ""]
    about += ["quick" if plan.get("quick") else "", f"took {clock(report['seconds'])}"]
    return Html(
        f"<header><h1>radixtier gate {badge(verdict['overall'])}</h1>"
        f'<p class="soft">{escape(", ".join(filter(None, about)))}</p>'
        f"<p>{escape(_words(report))}</p>{incomplete}"
        f'<div class="tiles">{tiles}</div>{table(["gate", "verdict", "why", "time"], gates, right=(3,))}</header>'
    )


def _words(report: Mapping[str, Any]) -> str:
    """Return what became of the whole in a sentence."""
    verdict = report["verdict"]
    if verdict["overall"] == "pass":
        return _PASSED if verdict["G3"] == "pass" else _SOME_PASSED
    told = report["reasons"].get("overall") or [] if verdict["overall"] == "skipped" else []
    return " ".join([_WORDS[verdict["overall"]], *(f"{reason}." for reason in told)])


def _reasons(reasons: Sequence[str], verdict: str) -> Html:
    told = brief([str(reason) for reason in reasons], verdict)
    return Html(f"<ul>{''.join(f'<li>{escape(reason)}</li>' for reason in told)}</ul>")


def _took(gate: Mapping[str, Any]) -> str:
    return clock(gate["seconds"]) if "seconds" in gate else ""


def _gate(key: str, report: Mapping[str, Any], pictures: Sequence[Plot]) -> Html:
    gate = mapping(report["gates"].get(key))
    verdict = report["verdict"][key]
    title = f'<h2 id="{key}">{key}&ensp;{escape(TITLES[key])} {badge(verdict)}</h2>'
    parts = [title, f'<p class="soft">{escape(QUESTIONS[key])}</p>']
    if not gate:
        return Html(f"<section>{''.join(parts)}{_reasons(report['reasons'][key], verdict)}</section>")
    checks = [
        [check["name"], badge(check["verdict"]), Html(escape(str(check["reason"])) + _fix(check))]
        for check in items(gate.get("checks"))
    ]
    parts.append(table(["check", "verdict", "why"], checks))
    figures = mapping(gate.get("figures"))
    parts += [f"<p>{escape(str(note))}</p>" for note in notes(figures)]
    parts.append(_figures(pictures))
    parts += html_figures.tables(key, figures)
    return Html(f"<section>{''.join(parts)}</section>")


def notes(figures: Mapping[str, Any]) -> list[str]:
    """Return what a reader of a gate's figures has to know."""
    told = figures.get("notes")
    found = [str(note) for note in told] if isinstance(told, list) else []
    side = figures.get("baseline_side") or figures.get("side")
    return [*found, f"The baseline was measured on: {side}."] if side else found


def _fix(check: Mapping[str, Any]) -> str:
    shown = check.get("fix") and check["verdict"] == "fail"
    return f'<span class="fix">What to do: {escape(str(check["fix"]))}</span>' if shown else ""


def _figures(pictures: Iterable[Plot]) -> Html:
    drawn = [
        f"<figure{_whole(plot)}><figcaption>{escape(plot.title)}</figcaption>"
        + plot.svg.replace("<svg", f'<svg role="img" aria-label="{escape(plot.title)}"', 1)
        + "</figure>"
        for plot in pictures
    ]
    return Html(f'<div class="plots">{"".join(drawn)}</div>' if drawn else "")


def _whole(plot: Plot) -> str:
    return ' class="whole"' if plot.gate == "G4" else ""


def _appendix(report: Mapping[str, Any]) -> Html:
    machine, server = dict(mapping(report.get("machine"))), mapping(report.get("server"))
    if isinstance(machine.get("ram_bytes"), int):
        machine["RAM"] = format_bytes(machine.pop("ram_bytes"))
    proof = "".join(f"<li>{escape(text)}</li>" for text in LIMITS_OF_PROOF)
    return Html(
        "<section><h2>What this does not prove</h2>"
        f"<ul>{proof}</ul><h2>How it was run</h2><h3>Command</h3><pre>{escape(str(report['command']))}</pre>"
        f"<h3>Server</h3>{rows_table(server)}<h3>Machine</h3>{rows_table(machine)}"
        f"<h3>Versions</h3>{rows_table(mapping(report.get('versions')))}"
        f"<h3>Plan and limits</h3>{rows_table(mapping(report.get('plan')))}</section>"
    )
