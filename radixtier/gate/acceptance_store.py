"""The store's part of the acceptance: whose pages it holds, whether they are there byte for byte, and its health.

Owns which rows are read when only a sample is wanted. Invariant: read only, beside a running server. Main thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from radixtier.gate.acceptance_doctor import readable
from radixtier.gate.acceptance_subject import Part, Subject
from radixtier.gate.result import Check, Verdict
from radixtier.store.journal import JournalReader, Row
from radixtier.store.paths import VOLATILE, find_stores
from radixtier.store.rows import Ints
from radixtier.tools.offline import OfflineDrive, opened
from radixtier.tools.verification import verify
from radixtier.units import format_bytes

SAMPLE_BYTES = 1 << 30
"""Of pages per directory and rank, that ``--quick`` reads."""

RANK_FIELDS = ("tp_rank", "pp_rank")
"""Of an identity, in which the ranks of one server differ."""

ERRORS = ("checksum_failures", "read_errors", "write_errors", "verify_errors", "quarantined")
MOST_TOLD = 3

IDENTITY, INTEGRITY, HEALTH = "identity of the store", "integrity of the store", "health of the store"


def store(subject: Subject, sample_bytes: int | None, progress: Callable[[float], None] = lambda share: None) -> Part:
    """Check identity, integrity and health.

    Parameters
    ----------
    sample_bytes
        The most that is read of each directory and rank; None for every page.
    progress
        Called with the share of pages read so far.

    Raises
    ------
    StoreError, JournalError, OSError
        When a directory or a journal cannot be read.
    """
    directories = [path for path in readable(subject) if find_stores(path)]
    if not directories:
        reason = "no store of the server can be read from here"
        return Part(
            [*(Check(name, Verdict.SKIPPED, reason) for name in (IDENTITY, INTEGRITY)), health(subject.state)], {}
        )
    with opened(directories) as drives:
        checks = [
            identity(subject, drives),
            integrity(drives, sample_bytes, progress, empty=subject.attached),
            health(subject.state),
        ]
        told = [{"directory": str(d.directory), "rank": d.files.rank, "identity": d.identity} for d in drives]
    return Part(checks, {"stores": told})


def identity(subject: Subject, drives: Sequence[OfflineDrive]) -> Check:
    """Compare what the running server says that its pages are valid for with the header of each of its slabs."""
    wanted = subject.state.get("identity")
    if not wanted:
        return Check(IDENTITY, Verdict.SKIPPED, "the server does not tell what its pages are valid for")
    faults = []
    for directory in sorted({drive.directory for drive in drives}):
        for rank in range(subject.stores):
            there = [d for d in drives if d.directory == directory and d.files.rank == rank]
            if fault := _stranger(wanted, there):
                faults.append(f"{directory}, rank {rank}: {fault}")
    if faults:
        fix = "restart the server on these directories; radixtier store stat shows what lies there"
        return Check(IDENTITY, Verdict.FAIL, "; ".join(faults), fix)
    weights = str(wanted.get("weights", ""))[:12]
    return Check(IDENTITY, Verdict.PASS, f"every slab has the running server's, weights {weights or 'unnamed'}")


def _stranger(wanted: Mapping[str, Any], drives: Sequence[OfflineDrive]) -> str:
    """Say why none of these stores is the server's; "" if one is."""
    if not drives:
        return "no store"
    found = []
    for drive in drives:
        names = [name for name in wanted if name not in RANK_FIELDS]
        other = [
            f"{name} {drive.identity.get(name)} instead of {wanted[name]}"
            for name in names
            if drive.identity.get(name) != wanted[name]
        ]
        why = drive.trouble or ", ".join(other)
        if drive.files.id == VOLATILE:
            why = "it has no identity: nothing of it outlives its server"
        if not why:
            return ""
        found.append(f"store {drive.files.id}: {why}")
    return "; ".join(found)


def integrity(
    drives: Sequence[OfflineDrive], sample_bytes: int | None, progress: Callable[[float], None], *, empty: bool
) -> Check:
    """Read pages and compare their checksums; see :func:`store` for the arguments and errors.

    ``empty`` says whether there may be no page: a server that the gate has started was given some to write.
    """
    faults = [f"{drive.directory}: {drive.trouble}" for drive in drives if drive.trouble]
    whole = [(drive, drive.header, drive.journal) for drive in drives if drive.header and drive.journal]
    pages = nbytes = on_record = n_bad = 0
    for number, (drive, header, journal) in enumerate(whole):
        sample = Sample(journal, None if sample_bytes is None else sample_bytes // header.slot_bytes)
        seen = _share(progress, number, len(whole), sample.pages)
        verdict = verify(drive.files.slab, header, cast(JournalReader, sample), seen)
        told = verdict.bad[: max(0, MOST_TOLD - n_bad)]
        faults += [f"{drive.directory}: slot {bad.slot}, {bad.pages} pages: {bad.why}" for bad in told]
        n_bad += len(verdict.bad)
        pages, on_record = pages + verdict.pages, on_record + sample.on_record
        nbytes += verdict.pages * header.page_bytes
    read = f"{pages} of {on_record} pages on record read ({format_bytes(nbytes)})"
    if faults:
        faults += [f"and {n_bad - MOST_TOLD} more"] if n_bad > MOST_TOLD else []
        fix = "stop the server and run radixtier store scrub on its directories"
        return Check(INTEGRITY, Verdict.FAIL, "; ".join([*faults, read]), fix)
    if not pages and empty:
        return Check(INTEGRITY, Verdict.SKIPPED, "it can be read, and holds no page yet")
    if not pages:
        fix = "see the server's log, and whether --radix-tier-admission lets anything through to NVMe"
        return Check(INTEGRITY, Verdict.FAIL, "it holds no page, though the server was given a prompt to store", fix)
    return Check(INTEGRITY, Verdict.PASS, f"{read}, every checksum right")


def _share(progress: Callable[[float], None], number: int, drives: int, pages: int) -> Callable[[int], None]:
    """Return what turns pages read of one drive into a share of all drives."""
    return lambda seen: progress((number + min(1.0, seen / max(1, pages))) / drives)


class Sample:
    """A journal of which only some rows are looked at: all, or as many as hold about ``most`` pages, drawn evenly."""

    def __init__(self, journal: JournalReader, most: int | None) -> None:
        self._journal = journal
        extents = journal.extents()
        self.on_record = int(extents[:, 1].sum())
        if most is not None and self.on_record > most:
            order = np.random.default_rng(0).permutation(len(extents))
            count = int(np.searchsorted(np.cumsum(extents[order, 1]), most, side="right"))
            extents = extents[np.sort(order[: max(1, count)])]
        self.pages = int(extents[:, 1].sum())
        self._extents = extents

    def extents(self) -> Ints:
        """Return the rows that are looked at, as `JournalReader.extents`."""
        return self._extents

    def rows(self, slots: Sequence[int]) -> list[Row]:
        """Return rows as they are now, as `JournalReader.rows`."""
        return self._journal.rows(slots)


def health(state: Mapping[str, Any]) -> Check:
    """Judge what a running server says about its store: it must take writes; errors since its start are told."""
    told, nvme = state.get("store") or {}, state.get("tiers", {}).get("nvme", {})
    if not told and not nvme:
        reason = "the server does not tell: it has no control endpoint, or --control does not name it"
        return Check(HEALTH, Verdict.SKIPPED, reason)
    counts = [f"{name.replace('_', ' ')} {told[name]}" for name in ERRORS if name in told]
    errors = f"since its start: {', '.join(counts)}" if counts else "errors are not told"
    degraded = told.get("degraded")
    if degraded or not nvme.get("writable", True):
        why = "the drive takes no writes" if degraded in (None, False, True) else _words(degraded)
        fix = "see the server's log, and radixtier doctor on the directories"
        return Check(HEALTH, Verdict.FAIL, f"degraded: {why}; {errors}", fix)
    return Check(HEALTH, Verdict.PASS, f"not degraded; {errors}")


def _words(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
