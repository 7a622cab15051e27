"""The page's files: all of them are there, none is left over, and none asks for anything from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import radixtier.dashboard
from radixtier.dashboard import FILES, read

HERE = Path(radixtier.dashboard.__file__).parent
TEXTS = sorted(name for name in FILES if not name.endswith(".svg"))


def test_files_are_those_of_the_directory() -> None:
    there = {file.name for file in HERE.iterdir() if file.is_file() and file.suffix != ".py"}
    assert set(FILES) == there


@pytest.mark.parametrize("name", sorted(FILES))
def test_each_file_has_content_and_its_media_type(name: str) -> None:
    kinds = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    assert FILES[name].partition(";")[0] == kinds[name.rpartition(".")[2]]
    assert read(name).strip()
    read(name).decode("utf-8")


@pytest.mark.parametrize("name", ["../__init__.py", "__init__.py", "", "app.js/", "/etc/passwd", "INDEX.HTML"])
def test_nothing_else_is_read(name: str) -> None:
    with pytest.raises(KeyError):
        read(name)


@pytest.mark.parametrize("name", TEXTS)
def test_nothing_comes_from_another_origin(name: str) -> None:
    text = read(name).decode().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|@import|url\(", text)


@pytest.mark.parametrize("name", [name for name in TEXTS if name.endswith(".js")])
def test_data_never_becomes_markup(name: str) -> None:
    text = read(name).decode()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)


def test_the_page_has_no_inline_script_or_style() -> None:
    page = read("index.html").decode()
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert not re.search(r"<style|\sstyle=|\son\w+=", page)


def test_modules_import_files_that_exist() -> None:
    for name in TEXTS:
        if name.endswith(".js"):
            for imported in re.findall(r'from "\./([^"]+)"', read(name).decode()):
                assert imported in FILES, f"{name} imports {imported}"
