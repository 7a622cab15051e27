"""G1: every check passes and fails, and is skipped where it cannot be done; a running server's store is only read."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "store"))

from gate_run_fakes import FakeStand
from store_rig import IDENTITY, WAIT, Put, Rig, path_of

from radixtier.footprint import HEADER_BYTES
from radixtier.gate import acceptance, acceptance_doctor, acceptance_memory, acceptance_speed, acceptance_subject
from radixtier.gate.acceptance_store import HEALTH, INTEGRITY, health, identity, store
from radixtier.gate.acceptance_store import IDENTITY as IDENTITY_CHECK
from radixtier.gate.acceptance_subject import Part, Subject, engine_asked, look
from radixtier.gate.profiles import plan
from radixtier.gate.progress import Progress
from radixtier.gate.result import Check, Verdict
from radixtier.tools.drive import Drive
from radixtier.tools.findings import Finding
from radixtier.tools.offline import opened

TELLS = dataclasses.asdict(IDENTITY)


@pytest.fixture
def make_rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    def make(**options: Any) -> Rig:
        rigs.append(Rig(tmp_path / f"store{len(rigs)}", **{"identity": IDENTITY, **options}))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


def found(part: Part) -> dict[str, Check]:
    return {check.name: check for check in part.checks}


def verdicts(part: Part) -> dict[str, str]:
    return {check.name: check.verdict.value for check in part.checks}


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.suffix in (".slab", ".db")}


def damage(rig: Rig, put: Put, page: int) -> None:
    drive, start = rig.place(int(put.slots[page]))
    with rig.files(drive).slab.open("r+b") as file:
        file.seek(start + 5)
        byte = file.read(1)[0]
        file.seek(start + 5)
        file.write(bytes([byte ^ 1]))


# ---- doctor ------------------------------------------------------------------------------------------------------


@pytest.fixture
def doctored(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the doctor find what a test says."""

    def find(host: Any = (), drive: Any = (), room: Any = ()) -> None:
        monkeypatch.setattr(acceptance_doctor, "check_host", lambda: list(host))
        monkeypatch.setattr(acceptance_doctor, "check_drive", lambda directory: Drive(list(drive), None))
        monkeypatch.setattr(acceptance_doctor, "check_rooms", lambda directories, size: iter(room))

    return find


OK = Finding("ok", "space", "enough")
WARNING = Finding("warning", "file system", "overlay", "mount a volume")
PROBLEM = Finding("problem", "directory", "a symbolic link", "name the other")


@pytest.mark.parametrize("where", ["host", "drive", "room"])
def test_a_problem_fails_and_a_warning_is_told(doctored: Callable[..., None], tmp_path: Path, where: str) -> None:
    names = {"host": "doctor, this machine", "drive": f"doctor, {tmp_path}", "room": "doctor, room"}
    subject = Subject(directories=(tmp_path,))
    doctored(**{where: [OK, PROBLEM, WARNING]})
    part = acceptance_doctor.doctor(subject)
    assert verdicts(part) == {name: "fail" if kind == where else "pass" for kind, name in names.items()}
    check = found(part)[names[where]]
    assert check.reason == "1 problem and 1 warning: directory: a symbolic link" and check.fix == "name the other"
    doctored(**{where: [OK, WARNING]})
    part = acceptance_doctor.doctor(subject)
    assert set(verdicts(part).values()) == {"pass"}
    assert found(part)[names[where]].reason == "1 warning: file system: overlay"
    assert {finding["topic"] for finding in part.figures["findings"]} == {"space", "file system"}


def test_directories_that_are_elsewhere_are_skipped_only_for_a_server_of_others(
    doctored: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    doctored(drive=[PROBLEM])
    gone = tmp_path / "gone"
    assert found(acceptance_doctor.doctor(Subject()))["doctor, directories"].verdict is Verdict.SKIPPED
    check = found(acceptance_doctor.doctor(Subject(attached=True, directories=(gone,))))[f"doctor, {gone}"]
    assert check.verdict is Verdict.SKIPPED and "not on this machine" in check.reason
    check = found(acceptance_doctor.doctor(Subject(directories=(gone,))))[f"doctor, {gone}"]
    assert check.verdict is Verdict.FAIL
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    check = found(acceptance_doctor.doctor(Subject(attached=True, directories=(tmp_path,))))[f"doctor, {tmp_path}"]
    assert check.verdict is Verdict.SKIPPED and "server's user" in check.reason


def test_room_is_held_against_what_the_store_may_take(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    told = Subject(directories=(rig.directory,), state={"store": {"bytes_cap": 1000}}, ranks=2)
    assert acceptance_doctor.needed(told) == 2000
    shared = Subject(directories=(rig.directory,), state={"store": {"bytes_cap": 1000, "shared": True}}, ranks=2)
    assert acceptance_doctor.needed(shared) == 1000
    seen = acceptance_doctor.needed(Subject(directories=(rig.directory,)))
    assert seen is not None and 32 * rig.page_bytes < seen
    assert acceptance_doctor.needed(Subject()) is None


# ---- store -------------------------------------------------------------------------------------------------------


def test_a_store_in_use_is_verified_and_left_as_it_is(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(drives=2)
    rig.put(path_of(6))
    assert rig.store.close(WAIT)
    rig.open(rig.store.n_slots)
    before = [content(directory) for directory in rig.directories]
    state = {"identity": TELLS, "store": {"checksum_failures": 0, "degraded": False}}
    part = store(Subject(directories=tuple(rig.directories), state=state), None)
    assert verdicts(part) == {IDENTITY_CHECK: "pass", INTEGRITY: "pass", HEALTH: "pass"}
    assert found(part)[INTEGRITY].reason.startswith("6 of 6 pages on record read")
    assert [content(directory) for directory in rig.directories] == before
    json.dumps(part.figures)


def test_damage_is_found_and_told(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(n_frames=16, n_slots=16)
    put = rig.put(path_of(8))
    for page in range(1, 6):
        damage(rig, put, page)
    assert rig.store.close(WAIT)
    check = found(store(Subject(directories=(rig.directory,)), None))[INTEGRITY]
    assert check.verdict is Verdict.FAIL and "and 2 more" in check.reason and "scrub" in check.fix
    assert check.reason.count("another checksum") == 3


def test_a_slab_without_its_journal_fails(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.put(path_of(2))
    assert rig.store.close(WAIT)
    for file in rig.files(0).databases:
        file.unlink(missing_ok=True)
    part = found(store(Subject(directories=(rig.directory,), state={"identity": TELLS}), None))
    assert part[INTEGRITY].verdict is Verdict.FAIL and part[IDENTITY_CHECK].verdict is Verdict.FAIL


def test_a_sample_reads_no_more_than_asked_and_still_finds_damage(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    puts = [rig.put(path_of(3, name=name)) for name in range(8)]
    slot = rig.store.slot_bytes
    assert rig.store.close(WAIT)
    shares: list[float] = []
    subject = Subject(directories=(rig.directory,))
    check = found(store(subject, 7 * slot, shares.append))[INTEGRITY]
    assert check.verdict is Verdict.PASS and check.reason.startswith("6 of 24 pages on record read")
    assert shares == sorted(shares) and shares[-1] == 1.0
    for put in puts:
        damage(rig, put, 1)
    check = found(store(subject, 7 * slot))[INTEGRITY]
    assert check.verdict is Verdict.FAIL and check.reason.count("another checksum") == 2


def test_identity_names_what_differs(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    assert rig.store.close(WAIT)
    with opened([rig.directory]) as drives:

        def judge(ranks: int = 1, shared: bool = False, **other: Any) -> Check:
            state = {"identity": {**TELLS, **other}, "store": {"shared": shared}}
            return identity(Subject(state=state, ranks=ranks), drives)

        assert judge().verdict is Verdict.PASS
        assert judge(tp_rank=1).verdict is Verdict.PASS
        check = judge(kv_dtype="bfloat16")
        assert check.verdict is Verdict.FAIL and "kv_dtype float32 instead of bfloat16" in check.reason
        check = judge(ranks=2)
        assert check.verdict is Verdict.FAIL and "rank 1: no store" in check.reason
        assert judge(ranks=2, shared=True).verdict is Verdict.PASS
        assert identity(Subject(), drives).verdict is Verdict.SKIPPED


def test_a_store_that_nothing_outlives_has_no_identity(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(identity=None)
    with opened([rig.directory]) as drives:
        check = identity(Subject(state={"identity": TELLS}), drives)
    assert check.verdict is Verdict.FAIL and "nothing of it outlives" in check.reason


def test_without_a_store_here_its_checks_are_skipped(tmp_path: Path) -> None:
    part = store(Subject(directories=(tmp_path, tmp_path / "gone")), None)
    assert set(verdicts(part).values()) == {"skipped"}


def test_health_is_what_the_server_says() -> None:
    writable = {"tiers": {"nvme": {"writable": True}}}
    assert health({}).verdict is Verdict.SKIPPED
    assert health(writable).verdict is Verdict.PASS
    assert health({"tiers": {"nvme": {"writable": False}}}).verdict is Verdict.FAIL
    told = {"checksum_failures": 2, "read_errors": 0}
    check = health({**writable, "store": {**told, "degraded": []}})
    assert check.verdict is Verdict.PASS and "checksum failures 2" in check.reason
    check = health({**writable, "store": {**told, "degraded": ["drive 1 is worn out"]}})
    assert check.verdict is Verdict.FAIL and "drive 1 is worn out" in check.reason


# ---- engine and bandwidth ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("running", "best", "asked", "direct", "verdict"),
    [
        ("posix O_DIRECT", "posix in /d, O_DIRECT", "auto", True, "pass"),
        ("kvikio", "kvikio in /d", "auto", True, "pass"),
        ("posix O_DIRECT", "kvikio in /d", "auto", True, "fail"),
        ("posix O_DIRECT", "kvikio in /d", "posix", True, "pass"),
        ("posix O_DIRECT", "kvikio in /d", "kvikio", True, "fail"),
        ("posix buffered", "posix in /d, buffered", "auto", False, "pass"),
        ("posix buffered", "posix in /d, O_DIRECT", "auto", True, "fail"),
    ],
)
def test_the_running_engine_is_held_against_the_best(
    running: str, best: str, asked: str, direct: bool, verdict: str
) -> None:
    assert acceptance_speed.judged(running, best, asked, direct).verdict.value == verdict


def test_engine_is_probed_where_the_store_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = {"error": None, "auto": "posix in /d, O_DIRECT", "posix_direct": {"ok": True}}
    monkeypatch.setattr(acceptance_speed, "probe_report", lambda directory: report)
    here = Subject(directories=(tmp_path,), state={"engine": "posix O_DIRECT with faults"})
    assert verdicts(acceptance_speed.engine(here)) == {"engine": "pass"}
    drives = [{"directory": str(tmp_path), "engine": "kvikio"}]
    other = dataclasses.replace(here, state={**here.state, "store": {"drives": drives}})
    assert verdicts(acceptance_speed.engine(other)) == {"engine": "fail"}
    two = tmp_path / "two"
    two.mkdir()
    both = acceptance_speed.engine(dataclasses.replace(other, directories=(tmp_path, two)))
    assert verdicts(both) == {f"engine, {tmp_path}": "fail", f"engine, {two}": "pass"}
    silent = acceptance_speed.engine(dataclasses.replace(here, state={}))
    assert verdicts(silent) == {"engine": "skipped"} and "best here: posix" in silent.checks[0].reason
    assert verdicts(acceptance_speed.engine(Subject())) == {"engine": "skipped"}
    report["error"] = "Read-only file system"
    assert verdicts(acceptance_speed.engine(here)) == {"engine": "fail"}


def test_the_engine_that_flags_ask_for_is_read_from_a_command_line() -> None:
    assert engine_asked(["serve", "--radix-tier-io-engine", "posix", "--x"]) == "posix"
    assert engine_asked(["serve", "--radix-tier-io-engine=kvikio"]) == "kvikio"
    assert engine_asked(["serve"]) == "auto"


REPORT = {
    "read_ratio": 0.8, "write_ratio": 0.5, "store_read_gbps": 1.6, "raw_read_gbps": 2.0, "store_write_gbps": 1.0,
    "raw_write_gbps": 2.0, "page_bytes": 737280, "noisy": True, "spread": 0.2,
}  # fmt: skip


def test_bandwidth_is_measured_with_the_servers_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = []

    def measure(made: Any, say: Callable[[str], None]) -> dict[str, Any]:
        plans.append(made)
        say("a round")
        return dict(REPORT)

    monkeypatch.setattr(acceptance_speed.bench_io, "measure", measure)
    monkeypatch.setattr(acceptance_speed.bench_io, "free_disk_bytes", lambda directory: 1 << 40)
    subject = Subject(attached=True, directories=(tmp_path,), state={"page_bytes": 32 << 20})
    said: list[str] = []
    part = acceptance_speed.bandwidth(subject, 0.7, True, said.append)
    assert verdicts(part) == {"store / raw bandwidth": "pass"} and said == ["a round"]
    assert plans[0].pages == [32 << 20] and plans[0].size == 512 << 20 and plans[0].rounds == 2
    reason = part.checks[0].reason
    assert reason.startswith("0.800, at least 0.7") and "noisy" in reason and "running server" in reason
    assert verdicts(acceptance_speed.bandwidth(subject, 0.9, True, said.append)) == {"store / raw bandwidth": "fail"}


def test_bandwidth_that_cannot_be_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> dict[str, Any]:
        raise OSError(5, "Input/output error")

    subject = Subject(directories=(tmp_path,))
    monkeypatch.setattr(acceptance_speed.bench_io, "measure", failing)
    monkeypatch.setattr(acceptance_speed.bench_io, "free_disk_bytes", lambda directory: 1 << 40)
    assert acceptance_speed.bandwidth(subject, 0.7, True, print).checks[0].verdict is Verdict.FAIL
    monkeypatch.setattr(acceptance_speed.bench_io, "free_disk_bytes", lambda directory: 1 << 20)
    assert acceptance_speed.bandwidth(subject, 0.7, True, print).checks[0].verdict is Verdict.SKIPPED
    assert acceptance_speed.bandwidth(Subject(), 0.7, True, print).checks[0].verdict is Verdict.SKIPPED


# ---- memory ------------------------------------------------------------------------------------------------------

STATE = {
    "page_tokens": 16, "page_bytes": 1600,
    "tiers": {"hbm": {"capacity": 32}, "dram": {"capacity": 160}, "nvme": {"capacity": 1600, "writable": True}},
}  # fmt: skip


def test_tiers_and_weights_must_fit_into_ram(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"x" * 500)
    (tmp_path / "tokenizer.json").write_bytes(b"x" * 500)
    free = 0
    monkeypatch.setattr(acceptance_memory.Machine, "probe", lambda: acceptance_memory.Machine(free))

    def taken(device: str) -> dict[str, Any]:
        return acceptance_memory.memory(Subject(state=STATE, device=device, model=tmp_path, ranks=2)).figures["memory"]

    assert {name: taken("cpu")[name] for name in ("dram", "hbm", "weights")} == {
        "dram": 32000,
        "hbm": 6400,
        "weights": 500,
    }
    assert "hbm" not in taken("cuda")
    needed = {"dram": 100, "weights": 50, "hbm": None}
    assert acceptance_memory.ram(needed, 60, 90).verdict is Verdict.PASS
    assert acceptance_memory.ram(needed, 60, 89).verdict is Verdict.FAIL
    assert acceptance_memory.ram({"dram": None}, 60, 89).verdict is Verdict.SKIPPED
    assert acceptance_memory.weights_bytes(None) is None


def process(proc: Path, files: int, most: str, locked: str) -> Path:
    (proc / "7" / "fd").mkdir(parents=True)
    for number in range(files):
        (proc / "7" / "fd" / str(number)).touch()
    lines = ["Limit    Soft Limit  Hard Limit  Units", f"Max open files   {most}  9999  files"]
    (proc / "7" / "limits").write_text("\n".join([*lines, f"Max locked memory   {locked}   {locked}   bytes"]))
    return proc


@pytest.mark.parametrize(("most", "verdict"), [("100", "pass"), ("unlimited", "pass"), ("90", "fail")])
def test_open_files_leave_room(tmp_path: Path, most: str, verdict: str) -> None:
    check = acceptance_memory.files(7, process(tmp_path, 80, most, "1"))
    assert check.verdict.value == verdict
    assert acceptance_memory.files(8, tmp_path).verdict is Verdict.SKIPPED
    assert acceptance_memory.files(None, tmp_path).verdict is Verdict.SKIPPED


def test_a_low_limit_of_locked_memory_is_a_warning(tmp_path: Path) -> None:
    proc = process(tmp_path, 1, "1", "65536")
    gpu = Subject(pid=7, device="cuda")
    assert "warning" in acceptance_memory.locked(gpu, 1 << 30, proc).reason
    assert "warning" not in acceptance_memory.locked(gpu, 1 << 10, proc).reason
    assert "CPU" in acceptance_memory.locked(Subject(device="cpu"), None, proc).reason
    assert acceptance_memory.locked(Subject(device="cuda"), 1, proc).verdict is Verdict.SKIPPED


# ---- the whole ---------------------------------------------------------------------------------------------------


def test_what_is_looked_at_comes_from_the_server_and_its_locks(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig()
    info = {"device": "cpu", "model_path": str(rig.directory), "tp_size": 4}
    monkeypatch.setattr(acceptance_subject, "server_info", lambda url: info)
    state = {**STATE, "directories": [str(rig.directory)], "rank": {"rank": 0, "size": 2}, "pid": 1}
    subject = look(FakeStand(state, attached=True))
    assert subject.directories == (rig.directory,) and subject.ranks == 2 and subject.device == "cpu"
    assert subject.pid == os.getpid() and subject.group == os.getpgid(0)
    assert subject.model == rig.directory and subject.page_bytes == 1600
    silent = look(FakeStand(None, (rig.directory,)))
    assert silent.ranks == 4 and silent.page_bytes == rig.page_bytes and silent.tier_bytes("dram") is None


def test_one_part_that_cannot_be_read_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(subject: Subject) -> Part:
        raise OSError(13, "Permission denied")

    fine = Part([Check("fine", Verdict.PASS, "")], {})
    monkeypatch.setattr(acceptance_subject, "server_info", lambda url: {})
    monkeypatch.setattr(acceptance, "doctor", broken)
    monkeypatch.setattr(acceptance, "engine", lambda subject: fine)
    monkeypatch.setattr(acceptance, "bandwidth", lambda *_: fine)
    monkeypatch.setattr(acceptance, "memory", lambda subject: fine)
    stand = FakeStand({"pages": {}})
    result = acceptance.run(stand, plan("chat", True), Progress(None))
    assert result.verdict is Verdict.FAIL and "Permission denied" in result.reasons[0]
    assert [check.name for check in result.checks].count("fine") == 3
    assert len(stand.tiered.target.asked) == 1
    stand = FakeStand({"pages": {}}, attached=True)
    acceptance.run(stand, plan("chat", True), Progress(None))
    assert not stand.tiered.target.asked


def test_header_stays_where_it_is(make_rig: Callable[..., Rig]) -> None:
    """A damaged header is told as what a restart would find."""
    rig = make_rig()
    rig.put(path_of(2))
    assert rig.store.close(WAIT)
    with rig.files(0).slab.open("r+b") as file:
        file.write(b"\0" * HEADER_BYTES)
    part = found(store(Subject(directories=(rig.directory,), state={"identity": TELLS}), None))
    assert part[INTEGRITY].verdict is Verdict.FAIL and "slab" in part[INTEGRITY].reason


@pytest.mark.parametrize(("attached", "verdict"), [(False, "fail"), (True, "skipped")])
def test_an_empty_store_shows_nothing(make_rig: Callable[..., Rig], attached: bool, verdict: str) -> None:
    rig = make_rig()
    assert rig.store.close(WAIT)
    check = found(store(Subject(attached=attached, directories=(rig.directory,)), None))[INTEGRITY]
    assert check.verdict.value == verdict and "no page" in check.reason
