"""What a store holds: its paths, and its figures.

Owns nothing. Invariant: read only; a salt is shown by a digest of it alone, since it is a tenant's secret. Main thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from radixtier.footprint import footprint
from radixtier.identity import Space
from radixtier.store.catalog import Catalog
from radixtier.store.journal import JournalError
from radixtier.store.rows import Ints
from radixtier.store.slab import StoreError
from radixtier.tools.holders import lock_holders
from radixtier.tools.offline import OfflineDrive


class StoredPath(NamedTuple):
    """A path from the root to a leaf; what two paths share is counted in both."""

    extra_key: str | None
    salt: str | None
    """Digest of the salt."""
    pages: int
    tokens: int
    nbytes: int
    used: float
    """Last use, in Unix seconds."""


class Listing(NamedTuple):
    """The paths of one store, hottest first, and its pages, each counted once."""

    paths: list[StoredPath]
    pages: int
    nbytes: int
    orphans: int
    """Pages that no way leads to from the root, or that are there twice: a restart drops them."""


def list_paths(drives: Sequence[OfflineDrive]) -> Listing:
    """Link the rows of all drives of one store; raises `StoreError` when a journal fails."""
    usable = [drive for drive in drives if drive.journal is not None and drive.header is not None]
    if not usable:
        return Listing([], 0, 0, 0)
    try:
        indexes = [drive.journal.index() for drive in usable if drive.journal is not None]
    except JournalError as error:
        raise StoreError(f"{usable[0].directory}: {error}: run radixtier store scrub") from error
    catalog = Catalog(indexes)
    spaces = [index.spaces[number] for index in indexes for number in index.space.tolist()]
    headers = [drive.header for drive in usable if drive.header is not None]
    page_tokens, slot_bytes = headers[0].page_tokens, headers[0].slot_bytes
    paths = []
    for row in _ends(catalog):
        pages = int(catalog.depth[row] + catalog.pages[row] - catalog.skip[row])
        extra_key, salt = _shown(spaces[row])
        used = float(catalog.used[row])
        paths.append(StoredPath(extra_key, salt, pages, pages * page_tokens, pages * slot_bytes, used))
    orphans = int(catalog.orphans[:, 2].sum())
    total = int(catalog.pages.sum()) - orphans
    return Listing(paths, total, total * slot_bytes, orphans)


def _ends(catalog: Catalog) -> list[int]:
    """Return the rows behind whose last page nothing hangs, hottest first; what forks off earlier is another path."""
    rows = catalog.order
    parent = catalog.parent[rows]
    continued = (parent >= 0) & (catalog.parent_pages[rows] == catalog.pages[parent])
    ends = np.ones(len(catalog), dtype=np.bool_)
    ends[parent[continued]] = False
    rows = rows[ends[rows]]
    found: list[int] = rows[np.argsort(-catalog.used[rows], kind="stable")].tolist()
    return found


def _shown(space: Space) -> tuple[str | None, str | None]:
    if space.cache_salt is None:
        return space.extra_key, None
    salt = space.cache_salt.encode("utf-8", "surrogatepass")
    return space.extra_key, blake2b(salt, digest_size=4, person=b"radixtier/salt").hexdigest()


def figures(drive: OfflineDrive) -> dict[str, Any]:
    """Return what there is to know about one drive of a store.

    Returns
    -------
    dict
        ``directory``, ``rank``, ``store``, ``identity``, ``trouble``, ``server`` (pid or None), ``bytes`` on disk.
        Where the slab can be read also ``page_bytes``, ``page_tokens``, ``slot_bytes``, ``slots``, ``cap`` (most bytes
        that it may take). Where the journal can be read also ``rows``, ``pages`` that they name, ``free_extents`` and
        ``largest_extent`` of the slots that none names, ``quarantined``, and ``status`` as the server noted it last.
    """
    files = drive.files
    found: dict[str, Any] = {
        "directory": str(drive.directory),
        "rank": files.rank,
        "store": files.id,
        "identity": drive.identity,
        "trouble": drive.trouble,
        "server": lock_holders(drive.directory).get(files.rank),
        "bytes": files.nbytes(),
    }
    if drive.header is not None:
        header = drive.header
        found |= {name: getattr(header, name) for name in ("page_bytes", "page_tokens", "slot_bytes")}
        found["slots"] = drive.n_slots
        found["cap"] = footprint(drive.n_slots, header.page_bytes, header.page_tokens)
    if drive.journal is not None:
        try:
            found |= _occupancy(drive.journal.extents(), drive.n_slots)
            found["status"] = drive.journal.status()
        except JournalError as error:
            raise StoreError(f"{drive.directory}: {error}: run radixtier store scrub") from error
        found["quarantined"] = found["status"].pop("quarantined", 0)
        found["status"].pop("quarantined_slots", None)
    return found


def _occupancy(extents: Ints, n_slots: int) -> dict[str, int]:
    """Count rows, their pages, and the extents of slots between them."""
    starts, pages = extents[:, 0], extents[:, 1]
    gaps = np.append(starts, n_slots) - np.append(0, starts + pages)
    gaps = gaps[gaps > 0]
    return {
        "rows": len(extents),
        "pages": int(pages.sum()),
        "free_extents": len(gaps),
        "largest_extent": int(gaps.max(initial=0)),
    }
