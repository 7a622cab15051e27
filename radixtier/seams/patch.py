"""The patch for SGLang: what state its files are in, and how it is applied and taken back.

Owns the files that the patch touches, while one of the functions runs. Invariants: a file is only written when its
bytes are known, by their SHA-256, to be those before or after the patch, and only with bytes that are known in the same
way; new bytes are written beside and renamed; what fails half-way is undone. The file with the marker comes last when
applying and first when taking back, so that a machine that dies in between leaves an SGLang that does not start, not
one that runs without a part. Main thread; servers of that SGLang should not be starting meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Literal, NamedTuple

from radixtier.seams.diff import Hunk, apply, read_diff, take_back

PATCHES = Path(__file__).parents[1] / "patches"
"""One directory per release of SGLang, ``sglang-VERSION``."""

State = Literal["stock", "patched", "changed", "missing"]
"""Of a file: as SGLang ships it, with the patch, something else, not there."""

Whole = Literal["stock", "patched", "half", "foreign"]
"""Of all files: none patched, all patched, some; or at least one that is neither."""


class PatchError(RuntimeError):
    """The patch cannot be applied or taken back, and nothing was changed; says in one line what to do."""


class PatchedFile(NamedTuple):
    """A file of SGLang that the patch touches; ``stock`` and ``patched`` are SHA-256 in hex."""

    path: str
    stock: str
    patched: str
    hunks: Sequence[Hunk]


class Patch(NamedTuple):
    """The patch of one release; the last file has the marker."""

    version: str
    files: Sequence[PatchedFile]


def versions() -> list[str]:
    """Return the releases of SGLang that there is a patch for."""
    return sorted(path.name.removeprefix("sglang-") for path in PATCHES.glob("sglang-*"))


def read_patch(version: str) -> Patch:
    """Read the patch of a release, which must be one of :func:`versions`."""
    directory = PATCHES / f"sglang-{version}"
    listed = json.loads((directory / "files.json").read_text(encoding="utf-8"))
    hunks = read_diff((directory / "radixtier.patch").read_bytes())
    return Patch(version, [PatchedFile(**entry, hunks=hunks[entry["path"]]) for entry in listed["files"]])


def states(patch: Patch, package: Path) -> dict[str, State]:
    """Return the state of every file that the patch touches.

    Raises
    ------
    OSError
        When a file is there and cannot be read.
    """
    return {file.path: _state(file, package / file.path) for file in patch.files}


def whole(found: Mapping[str, State]) -> Whole:
    """Return what the states of the files come to."""
    kinds = set(found.values())
    if kinds - {"stock", "patched"}:
        return "foreign"
    return "half" if len(kinds) > 1 else "patched" if "patched" in kinds else "stock"


def apply_patch(patch: Patch, package: Path) -> list[str]:
    """Apply the patch to the files that do not have it yet; return their names.

    Raises
    ------
    PatchError
        When a file is neither as shipped nor patched, or cannot be written; nothing has changed then.
    """
    return _turn(patch.files, package, "patched", apply)


def revert_patch(patch: Patch, package: Path) -> list[str]:
    """Take the patch out of the files that have it; return their names. Raises as :func:`apply_patch` does."""
    return _turn(patch.files[::-1], package, "stock", take_back)


def _turn(
    files: Sequence[PatchedFile], package: Path, wanted: State, make: Callable[[Sequence[Hunk], bytes], bytes]
) -> list[str]:
    new: dict[Path, tuple[bytes, bytes]] = {}
    try:
        for file in files:
            path = package / file.path
            state = _state(file, path)
            if state not in ("stock", "patched"):
                why = "is missing" if state == "missing" else "was changed by somebody else"
                raise PatchError(f"{path} {why}: reinstall SGLang, then run this again")
            if state != wanted:
                old = path.read_bytes()
                made = make(file.hunks, old)
                if sha256(made).hexdigest() != getattr(file, wanted):
                    raise PatchError(f"{path} would not become what it should: report this; reinstalling SGLang helps")
                new[path] = (old, made)
        _write({path: made for path, (_, made) in new.items()}, {path: old for path, (old, _) in new.items()})
    except OSError as error:
        raise PatchError(f"{error.filename}: {error.strerror}: run this as the user who installed SGLang") from None
    return [str(path.relative_to(package)) for path in new]


def _write(new: Mapping[Path, bytes], old: Mapping[Path, bytes]) -> None:
    """Replace files, all or none."""
    done: list[Path] = []
    beside = {path: path.with_name(f".{path.name}.radixtier-{os.getpid()}") for path in new}
    try:
        for path, content in new.items():
            _write_beside(beside[path], content, path)
        for path in new:
            os.replace(beside[path], path)
            done.append(path)
    except BaseException:
        for path in reversed(done):
            _write_beside(beside[path], old[path], path)
            os.replace(beside[path], path)
        raise
    finally:
        for path in beside.values():
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def _write_beside(path: Path, content: bytes, like: Path) -> None:
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    shutil.copymode(like, path)


def _state(file: PatchedFile, path: Path) -> State:
    try:
        found = sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return "missing"
    return "stock" if found == file.stock else "patched" if found == file.patched else "changed"
