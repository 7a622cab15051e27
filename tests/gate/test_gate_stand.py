from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from radixtier.control.client import ControlError
from radixtier.gate import cooling, launched
from radixtier.gate.attached import AttachedStand
from radixtier.gate.launched import LaunchedStand, check_flags, values_of, without_tier
from radixtier.gate.profiles import plan
from radixtier.gate.progress import Progress
from radixtier.gate.stand import Side, Unavailable, cap_bytes, check_alive, store_bytes
from radixtier.live.client import Client, RequestFailed
from radixtier.live.processes import measured
from radixtier.live.server import ServerFailed
from radixtier.policy.hints import Kind
from radixtier.store.slab import lock, unlock
from radixtier.units import BadValue

STUB = [sys.executable, str(Path(__file__).with_name("gate_stub_server.py"))]

FLAGS = [
    "--model-path", "some/model", "--device", "cpu", "--enable-radix-tier", "--radix-tier-hbm-size", "4096tok",
    "--radix-tier-nvme-path", "/a", "/b", "--radix-tier-dram-size=1GiB", "--page-size", "16",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launched, "SEEN_S", 0.0)
    monkeypatch.setattr(cooling, "LOOK_S", 0.0)
    impatient = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: time.sleep(0.02))
    monkeypatch.setattr("radixtier.live.server.time", impatient)


# ---- arguments


def test_the_stock_server_has_the_other_arguments() -> None:
    assert without_tier(FLAGS) == ["--model-path", "some/model", "--device", "cpu", "--page-size", "16"]
    assert values_of(FLAGS, "--radix-tier-nvme-path") == ["/a", "/b"]
    assert values_of(FLAGS, "--radix-tier-dram-size") == ["1GiB"]
    assert values_of(FLAGS, "--model", "--model-path") == ["some/model"]
    assert values_of(FLAGS, "--port") == []


@pytest.mark.parametrize("missing", ["--enable-radix-tier", "--radix-tier-nvme-path", "--model-path"])
def test_arguments_that_are_no_server_with_a_store(missing: str) -> None:
    check_flags(FLAGS)
    with pytest.raises(BadValue, match=missing):
        check_flags([word for word in FLAGS if word != missing])


# ---- launched


def stand_of(tmp_path: Path, *flags: str, apart: bool | None = None) -> LaunchedStand:
    store = tmp_path / "store"
    store.mkdir(exist_ok=True)
    scratch = tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    base = ["--model-path", str(tmp_path), "--device", "cpu", "--enable-radix-tier", "--page-size", "16"]
    return LaunchedStand(
        [*base, "--radix-tier-nvme-path", str(store), *flags],
        plan("chat", True, cpu=True),
        scratch,
        Progress(None),
        apart=apart,
        command=STUB,
    )


def running(side: Side | None) -> bool:
    return side is not None and side.server is not None and side.server.running()


def process_state(side: Side) -> str:
    assert side.server is not None
    return Path(f"/proc/{side.server.pid}/stat").read_text().rpartition(")")[2].split()[0]


def eventually(true: Callable[[], bool]) -> bool:
    """Signals arrive a little later than they are sent."""
    for _ in range(500):
        if true():
            return True
        time.sleep(0.01)
    return False


def arguments(side: Side) -> list[str]:
    told: list[str] = json.loads(Client(side.target.url).call("GET", "/server_info"))["arguments"]
    return told


def test_nothing_is_started_before_it_is_needed(tmp_path: Path) -> None:
    with stand_of(tmp_path) as stand:
        assert not running(stand.stock) and not running(stand.tiered)
        assert stand.model == tmp_path
        assert stand.directories == (tmp_path / "store",)
        assert stand.usage() is None
        assert stand.state() is None


def test_beside_each_other_one_sleeps_while_the_other_works(tmp_path: Path) -> None:
    with stand_of(tmp_path, "--radix-tier-hbm-size", "4096tok") as stand:
        stock = stand.stock
        assert stock is not None and stand.beside
        with stand.tiered.awake(), stand.tiered.awake():
            assert process_state(stand.tiered) in "SR"
        assert eventually(lambda: process_state(stand.tiered) == "T")
        with stock.awake():
            assert "--max-total-tokens 4096" in " ".join(arguments(stock))
            assert not any("radix" in word for word in arguments(stock))
        with stand.tiered.awake():
            assert "--enable-radix-tier" in arguments(stand.tiered)
            assert stand.room().prompt == 1000
            used = stand.usage()
            assert used is not None and used.processes == 1
    assert not running(stand.stock) and not running(stand.tiered)


def test_hbm_in_bytes_is_what_the_tiered_server_made_of_it(tmp_path: Path) -> None:
    with stand_of(tmp_path, "--radix-tier-hbm-size", "1GiB") as stand:
        assert stand.stock is not None
        with stand.stock.awake():
            assert "--max-total-tokens 2048" in " ".join(arguments(stand.stock))


def test_apart_only_one_runs(tmp_path: Path) -> None:
    with stand_of(tmp_path, apart=True) as stand:
        assert stand.stock is not None and not stand.beside
        with stand.tiered.awake():
            with pytest.raises(RuntimeError, match="at work"), stand.stock.awake():
                pass
            assert running(stand.tiered)
        with stand.stock.awake():
            assert running(stand.stock) and not running(stand.tiered)
        with stand.tiered.awake():
            assert running(stand.tiered) and not running(stand.stock)


def test_between_its_death_and_its_start_a_killed_server_is_gone(tmp_path: Path) -> None:
    seen: list[bool] = []
    with stand_of(tmp_path) as stand, stand.tiered.awake():
        stand.kill(lambda: seen.append(running(stand.tiered)))
        assert seen == [False] and running(stand.tiered)


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_a_restarted_server_is_another_process_at_the_same_place(how: str, tmp_path: Path) -> None:
    with stand_of(tmp_path) as stand, stand.tiered.awake() as target:
        server = stand.tiered.server
        assert server is not None
        before = server.pid
        assert getattr(stand, how)() > 0
        assert server.pid != before
        assert target.ask((1, 2, 3), 1).ok
        assert sorted(file.name for file in (tmp_path / "scratch").glob("*.log")) == ["tiered-1.log", "tiered.log"]


def test_a_dead_server_is_noticed(tmp_path: Path) -> None:
    with stand_of(tmp_path) as stand, stand.tiered.awake():
        check_alive(stand.tiered)
        assert stand.tiered.server is not None
        stand.tiered.server.kill()
        with pytest.raises(ServerFailed, match="tiered died"):
            check_alive(stand.tiered)


def test_faults_are_handed_to_the_server_by_file(tmp_path: Path) -> None:
    with stand_of(tmp_path) as stand:
        faults = tmp_path / "scratch" / "faults"
        assert faults.read_text() == ""
        stand.misbehave("slow=3")
        assert faults.read_text() == "slow=3"


def test_numbers_are_new_in_every_run(tmp_path: Path) -> None:
    with stand_of(tmp_path) as one, stand_of(tmp_path) as two:
        numbers = [one.number(), one.number(), two.number(), two.number()]
    assert len(set(numbers)) == 4


@pytest.mark.parametrize(
    ("flag", "value", "why"),
    [
        ("--radix-tier-control", "off", "cannot ask"),
        ("--radix-tier-control", "0.0.0.0:7000", "other machines"),
        ("--radix-tier-control", "127.0.0.1:0", "which port"),
        ("--radix-tier-control", "zork", "not an address"),
        ("--radix-tier-hbm-size", "zork", "not a size"),
        ("--api-key", "secret", "without a key"),
    ],
)
def test_a_value_that_the_gate_cannot_use_is_refused_with_flag_and_fix(flag: str, value: str, why: str) -> None:
    shown = flag if flag == "--api-key" else f"{flag} {value}"
    for words in ([flag, value], [f"{flag}={value}"]):
        with pytest.raises(BadValue, match=re.escape(shown)) as caught:
            check_flags([*FLAGS, *words])
        assert why in caught.value.why and caught.value.fix
        assert "secret" not in str(caught.value)


# ---- attached


class FakeControl:
    """A control endpoint with paths in places; every look moves writes on."""

    def __init__(self, looks: int = 2) -> None:
        self.left = looks
        self.hints: list[Mapping[str, Any]] = []
        self.refusal = ""
        self.stuck = False
        self.broken = False
        self.told: dict[str, Any] = {"pages": {"dirty": 3, "filling": 0}, "page_tokens": 16}

    def give_hint(self, kind: Kind, fields: Mapping[str, Any]) -> dict[str, Any]:
        if self.broken:
            raise ControlError(0, "no answer")
        if kind is Kind.PREFETCH:
            self.left = 10**6
            return {"status": "deferred"}
        assert kind is Kind.DEMOTE and fields["hbm"] is True
        self.hints.append(fields)
        if self.refusal:
            raise ControlError(400, self.refusal)
        return {"status": "deferred"}

    def explain_node(self, target: Mapping[str, Any]) -> dict[str, Any]:
        tokens = (len(target["tokens"]) - 1) // 16 * 16
        if not self.stuck:
            self.left -= 1
        places = {"NVMe": tokens} if self.left <= 0 else {"HBM": tokens, "DRAM and NVMe": tokens}
        return {"nodes": [{"places": places}]}

    def state(self) -> dict[str, Any]:
        if self.broken:
            raise ControlError(0, "no answer")
        if not self.stuck:
            self.told["pages"]["dirty"] = max(0, self.told["pages"]["dirty"] - 1)
        return self.told


@pytest.fixture
def url(tmp_path: Path) -> Any:
    with stand_of(tmp_path) as stand, stand.tiered.awake() as target:
        yield target.url


def test_a_users_server_is_only_asked(url: str, tmp_path: Path) -> None:
    control = FakeControl()
    with AttachedStand(url, control, [tmp_path]) as stand:  # type: ignore[arg-type]
        assert stand.stock is None and stand.attached and not stand.disturb
        assert stand.directories == (tmp_path,)
        assert stand.room().prompt == 1000
        assert stand.chill([tuple(range(100))]) == 96
        assert stand.settle()
        for forbidden in (stand.restart, stand.kill, lambda: stand.misbehave("slow=2")):
            with pytest.raises(Unavailable, match="--launch"):
                forbidden()
        with pytest.raises(Unavailable, match="--disturb"):
            stand.flush(stand.tiered)
        control.broken = True
        assert stand.state() is None and not stand.settle()
        with pytest.raises(Unavailable, match="no answer"):
            stand.chill([tuple(range(100))])


def test_with_disturb_it_may_be_flushed(url: str) -> None:
    AttachedStand(url, None, disturb=True).flush(AttachedStand(url, None).tiered)


def test_without_a_control_endpoint_nothing_can_be_brought_down(url: str) -> None:
    stand = AttachedStand(url, None)
    with pytest.raises(Unavailable, match="--control"):
        stand.chill([(1, 2)])
    assert stand.state() is None and stand.usage() is None and stand.store_bytes() is None


def test_the_store_of_a_server_on_this_machine_is_where_it_says(url: str, tmp_path: Path) -> None:
    control = FakeControl()
    control.told |= {"directories": [str(tmp_path)], "pid": os.getpid()}
    held = lock(tmp_path, 0)
    stand = AttachedStand(url, control)  # type: ignore[arg-type]
    unlock(held)
    assert stand.directories == (tmp_path,)
    used = stand.usage()
    assert used is not None and used.processes >= 1


def test_a_pid_that_holds_no_lock_here_is_another_machines(url: str, tmp_path: Path) -> None:
    control = FakeControl()
    control.told |= {"directories": [str(tmp_path)], "pid": os.getpid()}
    assert AttachedStand(url, control).usage() is None  # type: ignore[arg-type]


def test_a_users_server_is_asked_with_its_key(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[str | None] = []
    real = Client.call

    def call(self: Client, method: str, path: str, body: Any = None) -> bytes:
        keys.append(self._headers.get("Authorization"))
        return real(self, method, path, body)

    monkeypatch.setattr(Client, "call", call)
    stand = AttachedStand(url, None, disturb=True, api_key="secret")
    stand.room()
    stand.flush(stand.tiered)
    assert keys == ["Bearer secret"] * 3
    assert stand.tiered.target.client._headers["Authorization"] == "Bearer secret"  # type: ignore[attr-defined]


def test_no_server_no_stand() -> None:
    with pytest.raises((RequestFailed, OSError)):
        AttachedStand("http://127.0.0.1:9", None)


# ---- cooling


def test_chilling_waits_until_every_path_is_on_nvme_alone() -> None:
    control = FakeControl(looks=5)
    assert cooling.chill(control, [tuple(range(100)), tuple(range(40))], 16) == 96 + 32
    assert len(control.hints) == 6


def test_chilling_gives_up_after_a_bound() -> None:
    control = FakeControl()
    control.stuck = True
    times = iter(range(0, 10_000, 20))
    assert cooling.chill(control, [tuple(range(100))], 16, clock=lambda: float(next(times))) == 0


def test_lifting_waits_until_nothing_is_cold() -> None:
    control = FakeControl(looks=0)
    assert cooling.cold_tokens(control, tuple(range(100))) == 96
    cooling.lift(control, [tuple(range(100))])
    assert cooling.cold_tokens(control, tuple(range(100))) == 0


def test_a_server_that_cannot_demote_from_hbm_says_so() -> None:
    control = FakeControl()
    control.refusal = "demote: no such field: 'hbm'"
    with pytest.raises(Unavailable, match="HBM"):
        cooling.chill(control, [tuple(range(100))], 16)
    control.refusal = "something else"
    with pytest.raises(ControlError):
        cooling.chill(control, [tuple(range(100))], 16)


def test_settling_waits_for_what_admission_lets_through() -> None:
    control = FakeControl()
    control.told |= {"parked_pages": 1}
    assert cooling.settle(control)
    assert control.told["pages"]["dirty"] == 1
    control.stuck, control.told["pages"]["dirty"] = True, 5
    times = iter(range(0, 1000, 20))
    assert not cooling.settle(control, clock=lambda: float(next(times)))


# ---- files


def test_bytes_of_a_store_are_those_allocated(tmp_path: Path) -> None:
    assert store_bytes([]) is None
    (tmp_path / "radixtier-r0-0123456789ab.slab").touch()
    for elsewhere in ("other", "missing"):  # no store is no measurement of 0
        assert store_bytes([tmp_path, tmp_path / elsewhere]) is None
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_bytes(b"x" * 100_000)
    assert store_bytes([tmp_path / "other"]) is None
    (tmp_path / "other" / "file").unlink()
    (tmp_path / "deep").mkdir()
    with (tmp_path / "deep" / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    (tmp_path / "full").write_bytes(b"x" * 100_000)
    taken = store_bytes([tmp_path])
    assert taken is not None and 100_000 <= taken < 1 << 20


def test_the_cap_is_what_the_server_tells() -> None:
    assert cap_bytes({"store": {"bytes_cap": 7}}) == 7
    assert cap_bytes({"store": {"bytes_cap": 7}, "rank": {"rank": 0, "size": 2}, "identity": None}) == 14
    assert cap_bytes({"store": {"bytes_cap": 7}, "rank": {"rank": 0, "size": 2}, "identity": {"pp_size": 3}}) == 42
    assert cap_bytes({"store": {"bytes_cap": 7, "shared": True}, "rank": {"rank": 0, "size": 2}, "identity": None}) == 7
    assert [cap_bytes(each) for each in (None, {}, {"store": None}, {"store": {"bytes_cap": 0}})] == [None] * 4


def process(proc: Path, pid: int, group: int) -> None:
    (proc / str(pid) / "fd").mkdir(parents=True)
    (proc / str(pid) / "fd" / "0").touch()
    fields = ["S", "1", str(group), *["0"] * 14, "3", "0", "0", "0", "5"]
    (proc / str(pid) / "stat").write_text(f"{pid} (a b) {' '.join(fields)}")


def test_what_cannot_be_seen_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process(tmp_path, 10, 7)
    process(tmp_path, 11, 7)
    assert measured(7, tmp_path) == (2, 10 * os.sysconf("SC_PAGE_SIZE"), 2, 6)
    assert measured(8, tmp_path) is None
    real = os.listdir

    def listdir(path: Path) -> list[str]:
        if "11" in path.parts:
            raise PermissionError
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    found = measured(7, tmp_path)
    assert found is not None and (found.processes, found.descriptors, found.threads) == (2, None, 6)
