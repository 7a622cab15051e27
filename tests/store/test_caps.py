"""Bytes on disk stay under the cap, whatever is written, freed and recorded."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from store_rig import IDENTITY, PAGE_TOKENS, Put, Rig, path_of

from radixtier.footprint import footprint

MakeRig = Callable[..., Rig]


def bytes_on_disk(*directories: Path) -> int:
    """What all files take, by length or by blocks, whichever is more."""
    total = 0
    for directory in directories:
        for path in directory.iterdir():
            with contextlib.suppress(FileNotFoundError):
                found = path.stat()
                total += max(found.st_size, found.st_blocks * 512)
    return total


class Churn:
    """Writes, records and frees paths of random lengths; looks at the disk as it goes."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self.rig = rig
        self.rng = random.Random(seed)
        self.puts: list[Put] = []
        self.written = self.most = 0
        self.names = 0

    def step(self) -> None:
        n = self.rng.randint(1, 12)
        slots = self.rig.store.alloc(n)
        self.rig.store.poll()
        if slots is not None:
            self.names += 1
            self.puts.append(self.rig.put(path_of(n, name=self.names), slots=slots))
            self.written += n
        elif self.puts:
            put = self.puts.pop(self.rng.randrange(len(self.puts)))
            keep = self.rng.choice([0, 0, 1, len(put.slots) // 2])
            self.rig.store.free(put.slots[keep:])
            if keep:
                self.puts.append(put.part(0, keep))
        self.most = max(self.most, bytes_on_disk(*self.rig.directories))


@pytest.mark.parametrize("drives", [1, 2])
def test_ten_thousand_pages_through_a_store_of_64(make_rig: MakeRig, quick: None, drives: int) -> None:
    """CASES C19."""
    rig = make_rig(identity=IDENTITY, n_slots=64, n_frames=16, drives=drives, layout=(1, 4096, 0))
    churn = Churn(rig, 19)
    while churn.written < 10_000:
        churn.step()
    capacity = footprint(64, rig.page_bytes, PAGE_TOKENS, drives)
    assert churn.most <= capacity
    assert rig.store.stats()["journal_dropped"] == 0
    rig.reopen()
    assert bytes_on_disk(*rig.directories) <= capacity
    alive = {s: k.tobytes() for p in churn.puts for s, k in zip(p.slots.tolist(), p.stretch.keys, strict=True)}
    found = rig.restored()
    assert {s: k.tobytes() for p in found for s, k in zip(p.slots.tolist(), p.stretch.keys, strict=True)} == alive
    assert all(rig.get(put).ok.all() for put in found)


def test_two_ranks_in_one_directory_share_it(tmp_path: Path, quick: None) -> None:
    """CASES C20."""
    identities = [dataclasses.replace(IDENTITY, tp_rank=rank, tp_size=2) for rank in range(2)]
    rigs = [
        Rig(tmp_path / "shared", identity=identity, rank=rank, ranks=2, n_slots=24)
        for rank, identity in enumerate(identities)
    ]
    churns = [Churn(rig, rank) for rank, rig in enumerate(rigs)]
    for _ in range(300):
        for churn in churns:
            churn.step()
    capacity = 2 * footprint(24, rigs[0].page_bytes, PAGE_TOKENS)
    assert max(churn.most for churn in churns) <= capacity
    for rig, churn in zip(rigs, churns, strict=True):
        rig.reopen()
        found = rig.restored()
        assert sum(len(put.slots) for put in found) == sum(len(put.slots) for put in churn.puts)
        assert all(rig.get(put).ok.all() for put in found)
    for rig in rigs:
        rig.close()
