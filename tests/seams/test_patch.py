"""The patch on copies of SGLang's files: applied, taken back byte for byte, and refused where it does not belong."""

from __future__ import annotations

import json
import os
import shutil
from hashlib import sha256
from pathlib import Path

import pytest

from radixtier import SGLANG_VERSION
from radixtier.cli.patch import main
from radixtier.seams import patch as patching
from radixtier.seams.diff import Misfit, apply, read_diff, take_back
from radixtier.seams.installed import package_directory, version_in
from radixtier.seams.patch import PATCHES, PatchError, apply_patch, read_patch, revert_patch, states, versions, whole

PATCH = read_patch(SGLANG_VERSION)
INSTALLED = package_directory()
MARKER = "srt/plugins/__init__.py"

pytestmark = pytest.mark.skipif(INSTALLED is None, reason="SGLang is not installed")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of what the patch needs of the installed SGLang."""
    assert INSTALLED is not None
    copied = tmp_path / "site" / "sglang"
    for name in ("_version.py", *(file.path for file in PATCH.files)):
        (copied / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(INSTALLED / name, copied / name)
    return copied


def contents(package: Path) -> dict[str, bytes]:
    """Every file there is, by its path: nothing may be left beside."""
    return {str(path.relative_to(package)): path.read_bytes() for path in package.rglob("*") if path.is_file()}


def test_there_and_back(package: Path) -> None:
    stock = contents(package)
    assert whole(states(PATCH, package)) == "stock"
    assert apply_patch(PATCH, package) == [file.path for file in PATCH.files]
    patched = contents(package)
    assert whole(states(PATCH, package)) == "patched"
    assert patched.keys() == stock.keys() and patched != stock
    assert apply_patch(PATCH, package) == []
    assert contents(package) == patched
    assert len(revert_patch(PATCH, package)) == len(PATCH.files)
    assert contents(package) == stock
    assert revert_patch(PATCH, package) == []


def test_what_is_patched_is_python_and_only_longer(package: Path) -> None:
    apply_patch(PATCH, package)
    assert INSTALLED is not None
    for file in PATCH.files:
        text = (package / file.path).read_text()
        compile(text, file.path, "exec")
        assert set((INSTALLED / file.path).read_text().splitlines()) < set(text.splitlines())


def test_the_file_with_the_marker_is_last_to_come_and_first_to_go(package: Path) -> None:
    assert apply_patch(PATCH, package)[-1] == MARKER
    assert revert_patch(PATCH, package)[0] == MARKER
    assert b"radix_tier = None" in b"".join(line for hunk in PATCH.files[-1].hunks for line in hunk.after)


def test_permissions_stay(package: Path) -> None:
    (package / MARKER).chmod(0o640)
    apply_patch(PATCH, package)
    assert (package / MARKER).stat().st_mode & 0o777 == 0o640


def test_a_link_is_replaced_and_not_followed(package: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "shared.py"
    shutil.move(package / MARKER, elsewhere)
    (package / MARKER).symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    apply_patch(PATCH, package)
    assert elsewhere.read_bytes() == before and not (package / MARKER).is_symlink()


@pytest.mark.parametrize("turn", [apply_patch, revert_patch])
@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_files_that_are_not_as_shipped_are_refused(package: Path, turn: object, damage: str) -> None:
    victim = package / PATCH.files[1].path
    if damage == "missing":
        victim.unlink()
    else:
        victim.write_bytes(victim.read_bytes() + b"# mine\n")
    before = contents(package)
    assert whole(states(PATCH, package)) == "foreign"
    with pytest.raises(PatchError, match=f"{victim} .*reinstall SGLang"):
        turn(PATCH, package)  # type: ignore[operator]
    assert contents(package) == before


@pytest.mark.parametrize("turn", [apply_patch, revert_patch])
def test_half_applied_is_finished_either_way(package: Path, turn: object) -> None:
    stock = contents(package)
    apply_patch(PATCH, package)
    (package / MARKER).write_bytes(stock[MARKER])
    assert whole(states(PATCH, package)) == "half"
    turn(PATCH, package)  # type: ignore[operator]
    assert whole(states(PATCH, package)) == ("patched" if turn is apply_patch else "stock")


@pytest.mark.parametrize("fails_at", range(2 * len(PATCH.files)))
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_fails_half_way_is_undone(
    package: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int, error: BaseException
) -> None:
    """Whichever of the writes and renames fails."""
    before = contents(package)
    calls = iter(range(100))

    def failing(real: object) -> object:
        def call(*arguments: object) -> object:
            if next(calls) == fails_at:
                raise error
            return real(*arguments)  # type: ignore[operator]

        return call

    monkeypatch.setattr(patching, "_write_beside", failing(patching._write_beside))
    monkeypatch.setattr(os, "replace", failing(os.replace))
    with pytest.raises((PatchError, KeyboardInterrupt)):
        apply_patch(PATCH, package)
    assert contents(package) == before


def test_a_patch_that_would_make_something_else_is_not_written(package: Path) -> None:
    before = contents(package)
    wrong = PATCH._replace(files=[PATCH.files[0]._replace(patched="0" * 64)])
    with pytest.raises(PatchError, match="report this"):
        apply_patch(wrong, package)
    assert contents(package) == before


# ---- the files of the patch -------------------------------------------------------------------------


def test_one_copy_of_the_patch() -> None:
    """The directory at the top of the repository is the one that the wheel has."""
    top = Path(__file__).parents[2] / "patches"
    assert top.resolve() == PATCHES.resolve()
    assert versions() == [SGLANG_VERSION]


def test_hashes_and_diff_name_the_same_files() -> None:
    assert INSTALLED is not None
    diff = read_diff((PATCHES / f"sglang-{SGLANG_VERSION}" / "radixtier.patch").read_bytes())
    assert list(diff) == [file.path for file in PATCH.files]
    for file in PATCH.files:
        stock = (INSTALLED / file.path).read_bytes()
        assert sha256(stock).hexdigest() == file.stock
        assert take_back(file.hunks, apply(file.hunks, stock)) == stock


@pytest.mark.parametrize("line", ["-gone", "?", "+early"])
def test_only_insertions_can_be_read(line: str) -> None:
    head = "" if line == "+early" else "--- a/sglang/x.py\n+++ b/sglang/x.py\n@@ -1 +1,2 @@\n"
    with pytest.raises(Misfit):
        read_diff(f"{head}{line}\n".encode())


def test_a_hunk_that_does_not_fit() -> None:
    diff = read_diff(b"--- a/sglang/x.py\n+++ b/sglang/x.py\n@@ -2 +2,2 @@\n two\n+three\n")
    assert apply(diff["x.py"], b"one\ntwo\n") == b"one\ntwo\nthree\n"
    for content in (b"one\n", b"two\none\n", b""):
        with pytest.raises(Misfit):
            apply(diff["x.py"], content)


# ---- the command ------------------------------------------------------------------------------------


def test_the_command(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["--target", str(package.parent)]
    statuses = [main([command, *at]) for command in ("status", "apply", "apply", "status", "revert", "revert")]
    assert statuses == [1, 0, 0, 0, 0, 0]
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith("SGLang")] == [
        *("5 files changed", "nothing to do", "5 files changed", "nothing to do")
    ]
    assert ": not applied;" in lines[0] and ": applied;" in lines[1]


def test_json(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["apply", "--target", str(package), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["sglang"], report["state"], report["directory"]) == (SGLANG_VERSION, "patched", str(package))
    assert set(report["files"].values()) == {"patched"} and report["changed"] == list(report["files"])


def test_a_changed_file_ends_with_1_and_is_named(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (package / MARKER).write_text("")
    assert [main([command, "--target", str(package)]) for command in ("apply", "status")] == [1, 1]
    told = capsys.readouterr()
    assert str(package / MARKER) in told.err and told.err.count("\n") == 1
    assert f"changed  {MARKER}" in told.out


def test_another_version_is_refused(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (package / "_version.py").write_text("__version__ = version = '0.5.24'\n")
    assert version_in(package) == "0.5.24"
    assert main(["apply", "--target", str(package)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "SGLang 0.5.24" in line and f"the patch is for {SGLANG_VERSION}" in line


def test_a_directory_without_sglang(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--target", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_without_sglang_at_all(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("radixtier.cli.patch.package_directory", lambda: None)
    assert main(["status"]) == 2
    assert "--target DIR" in capsys.readouterr().err


def test_a_directory_that_cannot_be_written(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(path: Path, *_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(patching, "_write_beside", refused)
    assert main(["apply", "--target", str(package)]) == 1
    assert "Permission denied: run this as the user who installed SGLang" in capsys.readouterr().err
