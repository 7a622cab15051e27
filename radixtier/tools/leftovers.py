"""What killed runs left in a directory of the store.

Owns nothing. Invariant: only names of ours count, and only what no process can be using any more. Any thread.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from radixtier.store.leftovers import PROBE_LIFE_S, age
from radixtier.store.paths import find_stores, probe_files
from radixtier.store.slab import remove_own
from radixtier.tools.scratch import abandoned


def find_leftovers(directory: Path, *, settled: bool = False) -> list[Path]:
    """Return test files, scratch directories, and databases whose slab is gone; raises `OSError`.

    Files that are young enough to be those of a test or a start that goes on are left out, but for databases when
    ``settled``: nobody can be starting, since the caller holds the locks.
    """
    found = [path for path in probe_files(directory) if age(path) > PROBE_LIFE_S]
    found += abandoned(directory)
    for files in find_stores(directory):
        if not files.slab.exists():
            there = [path for path in files.databases if path.exists()]
            found += [path for path in there if settled or age(path) > PROBE_LIFE_S]
    return found


def remove_leftover(path: Path) -> None:
    """Delete one of them; raises `OSError` or `StoreError`, the latter for what is not ours."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        remove_own(path)
