"""Which SGLang is installed, and where; found out without importing it.

Owns the look-up only. Invariant: nothing of SGLang is imported, so that neither torch nor a driver is loaded. Any
thread.
"""

from __future__ import annotations

import importlib.util
import re
from importlib import metadata
from pathlib import Path

_VERSION = re.compile(r"""^__version__\b[^\n]*=\s*["']([^"'\n]+)["']""", re.MULTILINE)


def installed_version() -> str | None:
    """Return the version of the SGLang of this environment, as pip or else its files have it; None without one."""
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:
        directory = package_directory()
        return None if directory is None else version_in(directory)


def package_directory() -> Path | None:
    """Return the directory of the package ``sglang`` that Python would import; None without one."""
    try:
        spec = importlib.util.find_spec("sglang")
    except ValueError:  # a stand-in in sys.modules without a spec
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))).resolve()


def version_in(directory: Path) -> str | None:
    """Return the version that the files of a package directory carry; None where they carry none."""
    try:
        found = _VERSION.search((directory / "_version.py").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
    return found[1] if found else None
