"""Links as a repository's viewer follows them: from README and docs to files, anchors and pictures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from docs_rig import DOCS, PAGES, ROOT, anchors, links, name_of, slug, text_of

_OUTSIDE = re.compile(r"[a-z]+:")
LAUNCH = sorted((ROOT / "launch").rglob("*.md"))


@pytest.mark.parametrize("page", [*PAGES, *LAUNCH, ROOT / "CHANGELOG.md"], ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for link in links(page):
        if _OUTSIDE.match(link.target):
            continue
        path, _, anchor = link.target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or not file.is_relative_to(ROOT):
            broken.append(link.target)
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            broken.append(f"{link.target}: no such heading")
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pictures_are_ours_and_say_what_they_show(page: Path) -> None:
    assert not [link.target for link in links(page) if link.image and _OUTSIDE.match(link.target)]
    told = re.findall(r"!\[([^\]]*)\]\(", text_of(page)) + re.findall(r'<img\b[^>]*\balt="([^"]*)"', text_of(page))
    assert len(told) == len(re.findall(r"!\[|<img\b", text_of(page)))
    assert not [text for text in told if len(text.split()) < 3], "too short for those who do not see it"


@pytest.mark.parametrize("picture", sorted((DOCS / "images").glob("*.svg")), ids=name_of)
def test_drawings_are_self_contained_and_follow_the_reader(picture: Path) -> None:
    text = text_of(picture)
    assert "prefers-color-scheme: dark" in text
    assert "<title" in text and "<desc" in text
    assert set(re.findall(r'https?://[^"\s<]+', text)) == {"http://www.w3.org/2000/svg"}
    assert "<script" not in text and "@import" not in text


def test_every_picture_is_shown_somewhere() -> None:
    shown = {(page.parent / link.target).resolve() for page in PAGES for link in links(page) if link.image}
    pictures = {file.resolve() for file in (DOCS / "images").iterdir() if file.suffix in (".png", ".svg")}
    assert pictures <= shown, "nobody sees these: remove them, or show them in a page"


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("A match: `radixtier bench match`", "a-match-radixtier-bench-match"),
        ("What has and has not run on a GPU", "what-has-and-has-not-run-on-a-gpu"),
        ("Seams of SGLang 0.5.23 in use", "seams-of-sglang-0523-in-use"),
        ("Drain: take the drives - now", "drain-take-the-drives---now"),
    ],
)
def test_anchors_are_those_of_the_viewer(heading: str, anchor: str) -> None:
    assert slug(heading) == anchor
