"""A package in miniature for what reads sources: written into a directory, file by file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write_package(directory: Path, files: Mapping[str, str]) -> Path:
    """Write files by their path in the package; every folder becomes a package. Returns the directory."""
    for name, text in {"__init__.py": "", **files}.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        (path.parent / "__init__.py").touch()
    return directory
