"""A sandbox for the commands of the documentation: small stores, traces and a model, in the place of what they name.

Owns what the placeholders and paths of the documentation stand for. A directory of a store is a copy of a small one, so
that each command finds pages and none sees what another did.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path

from sglang_rig import write_model
from store_rig import IDENTITY, WAIT, Rig, path_of

PLACES = re.compile(r"/mnt/[\w/-]+|~/[\w-]+|DIR(ECTORY)?|STORE")
"""Words that name a directory of a store."""

TRACES = re.compile(r"TRACE|(/var/tmp/)?[\w-]+\.jsonl(\.gz)?")

WORDS = {
    "MODEL": ["MODEL"],
    "POLICY": ["lru"],
    "RATES": ["--prefill-rate", "100000", "--copy-rate", "200GB/s", "--read-rate", "40GB/s", "--write-rate", "16GB/s"],
    "TRACES": ["one.jsonl", "two.jsonl"],
    "[--mirror]": ["--mirror"],
    "...": [],
}
"""What other words of the documentation stand for."""


class Sandbox:
    """A directory with everything that a documented command may need; commands run with it as working directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        rig = Rig(directory / "template", identity=IDENTITY)
        rig.put(path_of(3), used=10.0)
        rig.put(path_of(4, name=1), used=20.0)
        assert rig.store.close(WAIT)
        self._store = rig.directories[0]
        self._commands = 0

    def ready(self, words: tuple[str, ...]) -> tuple[Path, list[str]]:
        """Return a new working directory and the words with everything they name in it."""
        self._commands += 1
        place = self.directory / f"command{self._commands}"
        place.mkdir()
        made = [word for each in words for word in WORDS.get(each, [each])]
        return place, [self._made(place, word) for word in made]

    def _made(self, place: Path, word: str) -> str:
        if word == "MODEL" or word.startswith("/models/"):
            return write_model(place / "model")
        if PLACES.fullmatch(word):
            store = place / word.strip("/~").replace("/", "-")
            if not store.exists():
                shutil.copytree(self._store, store)
            return str(store)
        if TRACES.fullmatch(word):
            file = place / Path(word).name
            if not file.exists():
                _write_trace(file)
            return str(file)
        if re.fullmatch(r"[\w/.-]+\.ya?ml", word):
            file = place / Path(word).name
            file.write_text("enable: true\ndram-size: 64MiB\nnvme-size: 0\n")
            return str(file)
        return word


def _write_trace(file: Path) -> None:
    """Write a small trace of the kind that its name tells."""
    if "sessions" in file.name or "agents" in file.name:
        rows: list[object] = [
            [0, 0.0, 200, 64, 1.0, 0, 3],
            [0, 9.0, 320, 64, None, 3, 5],
            [1, 0.0, 100, 20, None, 0, 2],
        ]
    elif "load" in file.name:
        keys = [f"{n:016x}" for n in range(6)]
        rows = [
            {"radixtier_trace": 1, "page_tokens": 64, "page_bytes": 65536, "hbm_pages": 4, "dram_pages": 8,
             "nvme_pages": 16, "eviction": "lru", "admission": "all", "write_budget": "none"},
            {"t": 0.5, "arrive": 1, "session": 1, "in": 200, "keys": keys[:3]},
            {"t": 0.6, "start": 1, "hit": [0, 0, 0]},
            {"t": 1.0, "end": 1, "out": 60, "after": keys[2], "keys": keys[3:4]},
            {"t": 9.0, "arrive": 2, "session": 1, "in": 330, "after": keys[3], "keys": keys[4:5]},
            {"t": 9.1, "start": 2, "hit": [256, 0, 0]},
            {"t": 9.5, "end": 2, "out": 20, "keys": []},
        ]  # fmt: skip
    else:
        turns = [[0, 1], [0, 1, 2, 3], [10, 11], [0, 1, 2, 3, 4], [10, 11, 12], [10, 11, 12, 13]]
        rows = [{"timestamp": 2_400_000 * n, "hash_ids": ids} for n, ids in enumerate(turns)]
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)
