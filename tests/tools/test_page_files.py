"""A file per page holds its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from radixtier.tools.page_files import PageFiles

PAGES = [b"a" * 5000, b"b" * 5000]


def test_pages_are_written_and_come_back(tmp_path: Path) -> None:
    memory = [memoryview(bytearray(page)) for page in PAGES]
    side = PageFiles(tmp_path / "pages", memory, 3)
    for _ in range(2):
        assert side.write() > 0
    files = sorted((tmp_path / "pages").iterdir())
    assert [file.read_bytes() for file in files] == [PAGES[0], PAGES[1], PAGES[0]]
    for page in memory:
        page[:] = bytes(5000)
    assert side.read() > 0
    assert [bytes(page) for page in memory] == PAGES
    files[1].write_bytes(b"short")
    with pytest.raises(OSError, match="short read"):
        side.read()
