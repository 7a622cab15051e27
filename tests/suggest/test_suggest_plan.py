"""From facts to servers: shares of RAM and drives, estimates, and what is in the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from suggest_rig import GIB

from radixtier.config import RadixTierConfig
from radixtier.machine import Machine
from radixtier.suggest.command import as_json
from radixtier.suggest.drives import Directory
from radixtier.suggest.gpus import Gpu
from radixtier.suggest.model import Model, Refused
from radixtier.suggest.plan import Plan, plan
from radixtier.suggest.ranks import ranks_for
from radixtier.suggest.servers import Facts, Wishes
from radixtier.tools.findings import Finding

KV = 128 << 10
EIGHT_B = Model("/models/8b", KV, "as given", weights=16 * GIB)


def gpus(count: int, memory: int | None = 80 * GIB, **fields: object) -> tuple[Gpu, ...]:
    return tuple(Gpu(str(i), "H100", memory)._replace(**fields) for i in range(count))


def facts(**fields: object) -> Facts:
    given = {"ram": 512 * GIB, "gpus": gpus(1), "directories": (), "others": (), "model": EIGHT_B, **fields}
    return Facts(**given)  # type: ignore[arg-type]


def directories(tmp_path: Path, count: int) -> tuple[Directory, ...]:
    made = []
    for i in range(count):
        (tmp_path / f"d{i}").mkdir()
        made.append(Directory(str(tmp_path / f"d{i}"), "ext4 on x", ()))
    return tuple(made)


def line(found: Plan, topic: str) -> str:
    [text] = [finding.found for finding in found.findings if finding.topic == topic]
    return text


def problem(found: Plan) -> Finding:
    assert found.servers == ()
    [one] = found.problems
    return one


def test_one_gpu(tmp_path: Path, separate: None) -> None:
    found = plan(facts(directories=directories(tmp_path, 1)), Wishes())
    [server] = found.servers
    assert (server.device, server.port, server.environment, server.make) == ("cuda", 30000, (), ())
    assert server.config.hbm_size is None
    assert server.config.dram_size is not None and server.config.dram_size.amount == 256 * GIB
    assert server.config.nvme_size is not None and server.config.nvme_size.amount == 249 * GIB
    assert server.sizes.dram_tokens == 256 * GIB // KV
    assert server.hbm_tokens == (64 - 16) * GIB // KV
    assert server.config.write_budget == "1000GB/day"
    assert f"{256 * GIB // KV:,} tokens, 256 chats of 8k" in line(found, "DRAM")
    assert server.config.control == f"unix:{tmp_path}/d0/radixtier.sock"


def test_a_cpu(tmp_path: Path, separate: None) -> None:
    found = plan(facts(gpus=(), ram=64 * GIB, directories=directories(tmp_path, 1)), Wishes(port=81))
    [server] = found.servers
    assert (server.device, server.port, server.sizes.page_size) == ("cpu", 81, 16)
    assert server.config.hbm_size == server.config.dram_size
    assert server.config.dram_size is not None and server.config.dram_size.amount == 16 * GIB
    assert server.hbm_tokens == server.sizes.hbm_tokens


def test_dram_only() -> None:
    found = plan(facts(others=("/mnt/nvme (ext4, 1 TiB free)",)), Wishes())
    [server] = found.servers
    assert server.config.nvme_path == () and server.config.control is None
    assert server.config.nvme_size is not None and server.config.nvme_size.amount == 0
    assert "DRAM only" in line(found, "NVMe") and "/mnt/nvme" in line(found, "also there")


def test_a_socket_without_a_store_lies_in_the_users_directory() -> None:
    [server] = plan(facts(runtime="/run/user/7"), Wishes()).servers
    assert server.config.control == "unix:/run/user/7/radixtier-30000.sock"
    [server] = plan(facts(runtime="/run/" + "x" * 100), Wishes()).servers
    assert server.config.control is None


def test_several_gpus_share_one_drive(tmp_path: Path, separate: None) -> None:
    found = plan(facts(gpus=gpus(4), directories=directories(tmp_path, 1)), Wishes())
    assert [s.port for s in found.servers] == [30000, 30001, 30002, 30003]
    assert [dict(s.environment)["CUDA_VISIBLE_DEVICES"] for s in found.servers] == ["0", "1", "2", "3"]
    assert [s.config.nvme_path for s in found.servers] == [(f"{tmp_path}/d0/gpu{i}",) for i in range(4)]
    assert all(s.make == s.config.nvme_path for s in found.servers)
    assert all(s.config.dram_size and s.config.dram_size.amount == 64 * GIB for s in found.servers)
    assert sum(s.config.nvme_size.amount for s in found.servers if s.config.nvme_size) <= 250 * GIB
    assert all(s.config.write_budget == "250GB/day" for s in found.servers)
    assert "a directory on every drive" in line(found, "drives")
    assert line(found, "servers").startswith("4 GPUs, one server each")
    assert [s.sizes.ranks for s in found.servers] == [1] * 4


def test_drives_that_divide_evenly_go_to_one_server_each(tmp_path: Path, separate: None) -> None:
    found = plan(facts(gpus=gpus(2), directories=directories(tmp_path, 4)), Wishes())
    first, second = (s.config for s in found.servers)
    assert first.nvme_path == (f"{tmp_path}/d0", f"{tmp_path}/d1")
    assert second.nvme_path == (f"{tmp_path}/d2", f"{tmp_path}/d3")
    assert first.nvme_size is not None and first.nvme_size.amount == 499 * GIB
    assert first.write_budget == "2000GB/day"
    assert not any(s.make for s in found.servers)
    assert len({s.config.control for s in found.servers}) == 2


def test_directories_of_one_drive_are_not_dealt_out(tmp_path: Path, room: None) -> None:
    found = plan(facts(gpus=gpus(2), directories=directories(tmp_path, 2)), Wishes())
    assert all(len(s.config.nvme_path) == 2 and s.make for s in found.servers)
    assert any("one file system" in f.found and f.level == "warning" for f in found.findings)


def test_the_only_visible_gpu_is_named_unless_it_is_the_first() -> None:
    [server] = plan(facts(gpus=(Gpu("3", "H100", 80 * GIB),)), Wishes()).servers
    assert server.environment == (("CUDA_VISIBLE_DEVICES", "3"),)


def test_every_server_must_be_worth_it_not_only_the_first(
    tmp_path: Path, separate: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from radixtier import config
    from radixtier.machine import FileSystem

    given = facts(gpus=gpus(2), directories=directories(tmp_path, 2))
    room = {given.directories[0].path: 500 * GIB, given.directories[1].path: 2 * GIB}
    monkeypatch.setattr(config, "file_systems", lambda paths: [FileSystem((str(p),), room[p]) for p in paths])
    assert problem(plan(given, Wishes())).topic == "NVMe"
    small = (Gpu("0", "H100", 80 * GIB), Gpu("1", "L4", 18 * GIB))
    assert problem(plan(facts(gpus=small), Wishes())).topic == "HBM"


def test_gpus_of_two_kinds_are_counted_by_the_bus() -> None:
    mixed = (Gpu("0", "H100", 80 * GIB), Gpu("1", "L40S", 48 * GIB))
    servers = plan(facts(gpus=mixed), Wishes()).servers
    assert [dict(s.environment).get("CUDA_DEVICE_ORDER") for s in servers] == ["PCI_BUS_ID"] * 2


def test_the_sizes_of_all_servers_can_be_configured_together(tmp_path: Path, separate: None) -> None:
    servers = plan(facts(gpus=gpus(3), directories=directories(tmp_path, 2)), Wishes()).servers
    for path in {path for s in servers for path in s.make}:
        Path(path).mkdir()
    taken = 0
    for server in servers:
        assert RadixTierConfig.validate(server.config, Machine(512 * GIB - taken)) == []
        taken += server.sizes.dram_bytes


@pytest.mark.parametrize(("dwpd", "budget"), [(3.0, "3000GB/day"), (0.3, "300GB/day"), (0.01, "10GB/day")])
def test_endurance(tmp_path: Path, separate: None, dwpd: float, budget: str) -> None:
    [server] = plan(facts(directories=directories(tmp_path, 1)), Wishes(dwpd=dwpd)).servers
    assert server.config.write_budget == budget


def test_no_budget_is_told(tmp_path: Path, separate: None) -> None:
    found = plan(facts(directories=directories(tmp_path, 1)), Wishes(dwpd=None))
    assert found.servers[0].config.write_budget == "none" and "no budget" in line(found, "writes")


def test_a_model_that_the_tier_refuses() -> None:
    found = problem(plan(facts(model=EIGHT_B._replace(refused=Refused("it is MLA"))), Wishes()))
    assert "it is MLA" in found.found and "--enable-radix-tier" in found.fix


SEVENTY_B = Model("/models/70b", 320 << 10, "as given", weights=140 * GIB, heads=64, kv_heads=8)


@pytest.mark.parametrize(
    ("count", "visible", "left"),
    [
        (4, ["0,1,2,3"], ""),
        (8, ["0,1,2,3", "4,5,6,7"], ""),
        (6, ["0,1,2,3"], "GPU 4, 5 stays free"),
    ],
)
def test_weights_that_need_several_gpus(
    tmp_path: Path, separate: None, count: int, visible: list[str], left: str
) -> None:
    found = plan(facts(gpus=gpus(count), model=SEVENTY_B, directories=directories(tmp_path, 2)), Wishes())
    assert [s.visible for s in found.servers] == visible
    assert [dict(s.environment) for s in found.servers] == [{"CUDA_VISIBLE_DEVICES": each} for each in visible]
    assert "--tp-size 4" in line(found, "servers") and left in line(found, "servers")
    assert ("router" in line(found, "servers")) == (len(visible) > 1)
    servers = len(visible)
    for server in found.servers:
        assert (server.sizes.ranks, server.sizes.bytes_per_token) == (4, 80 << 10)
        assert server.config.dram_size is not None and server.config.nvme_size is not None
        assert server.config.dram_size.amount == 256 * GIB // servers
        assert server.sizes.dram_bytes * 4 <= 256 * GIB // servers
        assert server.sizes.dram_tokens == 256 * GIB // servers // (64 * 320 << 10) * 64
        # Two drives for one server: both; for two servers: one each.
        assert len(server.config.nvme_path) == 2 // servers and not server.make
        assert server.sizes.nvme_bytes * 4 <= server.config.nvme_size.amount
        assert server.hbm_tokens == (64 - 35) * GIB // (80 << 10)
    assert "on each of 4 ranks" in line(found, "page")
    assert "of each GPU less weights" in line(found, "HBM")


def test_a_latent_gets_all_of_nvme_on_several_gpus(tmp_path: Path, separate: None) -> None:
    """Every rank has the same bytes, so that they are stored once."""
    model = SEVENTY_B._replace(kv_heads=1, latent=True)
    found = plan(facts(gpus=gpus(4), model=model, directories=directories(tmp_path, 2)), Wishes())
    [server] = found.servers
    assert (server.sizes.ranks, server.sizes.stores, server.sizes.bytes_per_token) == (4, 1, 320 << 10)
    assert server.config.dram_size is not None and server.config.nvme_size is not None
    assert server.sizes.dram_tokens == 256 * GIB // 4 // (64 * 320 << 10) * 64
    assert 0.99 * server.config.nvme_size.amount < server.sizes.nvme_bytes <= server.config.nvme_size.amount
    assert as_json(server)["nvme_bytes"] == server.sizes.nvme_bytes


def test_as_few_gpus_as_will_do() -> None:
    given = {0: 1, 60: 1, 70: 2, 100: 2, 140: 4, 260: 8}
    for weights, ranks in given.items():
        model = SEVENTY_B._replace(weights=weights * GIB)
        assert ranks_for(gpus(8), model) == ranks, weights
    assert ranks_for(gpus(8), SEVENTY_B._replace(weights=None)) == 1, "nothing tells"
    assert ranks_for(gpus(8, None), SEVENTY_B) == 1
    assert ranks_for((), SEVENTY_B) == 1


@pytest.mark.parametrize(
    ("heads", "kv_heads", "ranks"),
    [(64, 8, 4), (64, 1, 4), (64, 16, 4), (12, 3, 1), (6, 6, 1), (None, None, 4), (64, None, 4)],
)
def test_heads_decide_over_how_many_gpus_it_can_go(heads: int | None, kv_heads: int | None, ranks: int) -> None:
    model = SEVENTY_B._replace(heads=heads, kv_heads=kv_heads)
    assert ranks_for(gpus(8), model) == ranks


def test_kv_heads_that_are_on_several_gpus_are_counted_on_each() -> None:
    few = SEVENTY_B._replace(kv_heads=2)
    assert [few.rank_bytes(ranks) for ranks in (1, 2, 4)] == [320 << 10, 160 << 10, 160 << 10]
    [server] = plan(facts(gpus=gpus(4), model=few), Wishes()).servers
    assert server.sizes.dram_tokens == 256 * GIB // 4 // (64 * 160 << 10) * 64


def test_weights_that_no_number_of_gpus_holds() -> None:
    found = plan(facts(gpus=gpus(8), model=SEVENTY_B._replace(weights=1400 * GIB)), Wishes())
    assert found.servers == () and len(found.problems) == 8
    assert "do not fit" in found.problems[0].found


@pytest.mark.parametrize(
    "given",
    [
        (Gpu("0", "H100", 80 * GIB), Gpu("1", "H200", 140 * GIB), Gpu("2", "H200", 140 * GIB)),
        gpus(4, split=True),
    ],
)
def test_gpus_that_differ_or_are_divided_do_not_work_together(given: tuple[Gpu, ...]) -> None:
    found = plan(facts(gpus=given, model=SEVENTY_B), Wishes())
    assert found.servers == ()


def test_a_gpu_without_room_for_one_prompt() -> None:
    tight = EIGHT_B._replace(weights=18 * GIB)
    assert problem(plan(facts(gpus=gpus(1, 23 * GIB), model=tight), Wishes())).topic == "HBM"


def test_memory_that_is_not_known() -> None:
    found = plan(facts(gpus=gpus(1, None)), Wishes())
    assert found.servers[0].hbm_tokens is None and "SGLang's choice" in line(found, "HBM")


def test_a_gpu_that_others_use_or_that_is_divided() -> None:
    found = plan(facts(gpus=gpus(1, split=True, used=40 * GIB)), Wishes())
    assert found.servers and len([f for f in found.findings if f.level == "warning"]) == 2


def test_ram_that_holds_no_prompt() -> None:
    found = problem(plan(facts(ram=GIB), Wishes()))
    assert found.topic == "DRAM" and "not one long prompt" in found.found


def test_a_cpu_without_ram_for_the_weights() -> None:
    big = EIGHT_B._replace(weights=40 * GIB)
    assert problem(plan(facts(gpus=(), ram=64 * GIB, model=big), Wishes())).topic == "RAM"


def test_no_space(tmp_path: Path, separate: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from radixtier import config
    from radixtier.machine import FileSystem

    def free(nbytes: int) -> None:
        monkeypatch.setattr(config, "file_systems", lambda paths: [FileSystem((str(p),), nbytes) for p in paths])

    given = facts(directories=directories(tmp_path, 1))
    free(GIB // 2)
    assert "more than is free" in problem(plan(given, Wishes())).found
    free(2 * GIB)
    assert problem(plan(given, Wishes())).topic == "NVMe"
    free(64 * GIB)
    found = plan(given, Wishes())
    assert found.servers and any("smaller than DRAM" in f.found for f in found.findings)


def test_a_directory_named_twice(tmp_path: Path, room: None) -> None:
    [one] = directories(tmp_path, 1)
    assert "the same directory" in problem(plan(facts(directories=(one, one)), Wishes())).found


def test_a_directory_in_trouble(tmp_path: Path) -> None:
    bad = Directory("/mnt/x", "unknown", (Finding("problem", "/mnt/x", "does not answer", "look"),))
    assert problem(plan(facts(directories=(bad,)), Wishes())).found == "does not answer"
