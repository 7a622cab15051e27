"""Lets pages that are written for a repository's viewer be built as a site.

Owns two differences. A link to a file of the repository that is no page of the documentation leads, in the site, to a
copy of that file as text. And Markdown as the viewer reads it is more lenient about lists than the site's: they begin
without an empty line, and two columns nest.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from markdown import Markdown
from markdown.blockprocessors import build_block_parser
from markdown.extensions import Extension
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

COPIES = "files"
"""Directory of the site that holds the copies."""

_LINK = re.compile(r"(?<=\]\()(\.\./[^)\s#]+)(#[^)\s]*)?(?=\))")
_ITEM = re.compile(r"\s*([-*]|1\.) ")
_ENDED = re.compile(r"[^\s#>]|\s*\|")
"""A line of a paragraph or of a table; what is indented otherwise belongs to an item."""
_FENCE = re.compile(r"\s*(```+|~~~+)")


class _Nesting(Extension):
    """Two columns nest, as in the viewer."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.tab_length = 2
        md.parser = build_block_parser(md)  # the one there was made for four


def on_config(config: Any) -> Any:
    """Add the extension, which has no name to be configured by; in front of those that change the parser."""
    config.markdown_extensions.insert(0, _Nesting())
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add a copy of each file of the repository that a page links to."""
    docs = Path(config.docs_dir)
    for page in [file for file in files if file.is_documentation_page()]:
        folder = posixpath.dirname(page.src_uri)
        for link, _ in _LINK.findall(page.content_string):
            source, uri = _target(docs, folder, link)
            if not source.is_file():
                raise PluginError(f"{page.src_uri}: the link {link} names no file of the repository")
            if files.get_file_from_path(uri) is None:
                files.append(File.generated(config, uri, abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Lead such links to the copies, and give lists the empty line that they need here."""
    folder = posixpath.dirname(page.file.src_uri)

    def copy(found: re.Match[str]) -> str:
        return posixpath.relpath(_target(Path(config.docs_dir), folder, found[1])[1], folder or ".")

    return spaced(_LINK.sub(copy, markdown))


def spaced(markdown: str) -> str:
    """Put an empty line in front of lists that follow a paragraph or a table at once."""
    lines: list[str] = []
    fence = ""
    for line in markdown.split("\n"):
        mark = _FENCE.match(line)
        if mark:
            fence = "" if fence and mark[1].startswith(fence) else fence or mark[1]
        before = lines[-1] if lines else ""
        if not fence and _ITEM.match(line) and _ENDED.match(before) and not _ITEM.match(before):
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def _target(docs: Path, folder: str, link: str) -> tuple[Path, str]:
    """Return the file that a link means, and the place of its copy in the site."""
    source = (docs / folder / link).resolve()
    name = source.relative_to(docs.resolve().parent).as_posix()
    return source, f"{COPIES}/{name}" + ("" if source.suffix in (".png", ".svg", ".json", ".txt") else ".txt")
