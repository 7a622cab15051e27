"""The site: it builds without a complaint, nothing in it leads nowhere, and nothing is fetched from elsewhere."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from docs_rig import PAGES, ROOT

LIMIT_S = 300
FETCHED = {"script": "src", "img": "src", "source": "src", "iframe": "src", "link": "href", "object": "data"}


class Page(HTMLParser):
    """What a page links to, fetches, and can be linked at."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.ids: set[str] = set()
        self.paragraphs: list[str] = []
        self._in_paragraph = False
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in FETCHED and FETCHED[tag] in given and given.get("rel") != "canonical":
            self.fetched.append(given[FETCHED[tag]])
        if tag in ("p", "td"):
            self._in_paragraph = True
            self.paragraphs.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_paragraph &= tag not in ("p", "td")

    def handle_data(self, data: str) -> None:
        if self._in_paragraph:
            self.paragraphs[-1] += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    command = ["bash", "launch/docs.sh", str(directory)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert result.returncode == 0, result.stderr
    assert "WARNING" not in result.stderr
    return directory


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {file.resolve(): Page(file) for file in site.rglob("*.html")}


def local(file: Path, link: str, site: Path) -> Iterator[tuple[Path, str]]:
    """The file of the site and the anchor that a link means; nothing for one that leads elsewhere."""
    parts = urlsplit(link)
    if not parts.scheme and not parts.netloc:
        start = site if parts.path.startswith("/") else file.parent
        target = (start / unquote(parts.path).lstrip("/")).resolve() if parts.path else file
        yield target / "index.html" if target.is_dir() else target, unquote(parts.fragment)


def test_every_page_is_there(site: Path) -> None:
    expected = {page.stem for page in PAGES} - {"README"}
    assert expected <= {file.stem for file in site.glob("*.html")}


def test_every_link_and_anchor_of_the_site_leads_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    broken = []
    for file, page in pages.items():
        for link in [*page.links, *page.fetched]:
            for target, anchor in local(file, link, site):
                found = pages.get(target)
                if not target.exists() or (found and anchor and anchor not in found.ids):
                    broken.append(f"{file.name}: {link}")
    assert not broken


def test_nothing_is_fetched_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    for file, page in pages.items():
        assert not [link for link in page.fetched if urlsplit(link).netloc], file.name
        # What the theme would load from a network to draw them.
        assert 'class="mermaid"' not in file.read_text(encoding="utf-8")
    for sheet in site.rglob("*.css"):
        outside = re.findall(r"(?:@import|url\()\s*['\"]?((?:https?:)?//[^)'\"]+)", sheet.read_text(encoding="utf-8"))
        assert not outside, sheet.name


def test_markdown_means_the_same_here_and_in_the_repository(pages: dict[Path, Page]) -> None:
    """A list or a table that is not recognised ends up as text of a paragraph."""
    odd = [
        f"{file.name}: {text[:60]}"
        for file, page in pages.items()
        for text in page.paragraphs
        if re.search(r"^\s*(\|.*\||[-*] |```|#{2,} )", text, re.MULTILINE)
    ]
    assert not odd
    # What is indented by chance would be code.
    assert not [file.name for file in pages if "<pre><code>" in file.read_text(encoding="utf-8")]


def test_a_directory_with_other_content_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    command = ["bash", str(ROOT / "launch" / "docs.sh"), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert result.returncode == 2 and "name a new one" in result.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("words", [[], ["--what"], ["a", "b"], [""]])
def test_wrong_words_tell_the_usage(words: list[str]) -> None:
    command = ["bash", str(ROOT / "launch" / "docs.sh"), *words]
    result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert result.returncode == 2 and "usage: launch/docs.sh" in result.stderr
