"""``--radix-tier-direct`` and ``--radix-tier-landing-size``: what they mean, what is refused, and in which words."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from radixtier.config import LANDING, RadixTierConfig
from radixtier.io.trial import Verdict
from radixtier.machine import Machine
from radixtier.sglang import direct, resolution, startup
from radixtier.units import Size, Unit

PAGE = 1 << 20
GIB = 1 << 30
BIG = Machine(ram_bytes=1 << 40)


class Engines:
    """What was tried: why each directory cannot."""

    def __init__(self, *faults: str | None) -> None:
        self._faults = list(faults)

    def no_device(self, directory: Path) -> str | None:
        return self._faults.pop(0)


def frames(
    *, mode: str = "auto", device: str = "cuda", size: Size = LANDING, page: int = PAGE, free: int = 64 * GIB,
    faults: tuple[str | None, ...] = (None,), paths: tuple[str, ...] = ("/kv",),
) -> int:  # fmt: skip
    config = RadixTierConfig(enable=True, direct=mode, landing_size=size, nvme_path=paths)
    engines: Any = Engines(*faults)
    return direct.landing_frames(config, page, 64, device, engines, lambda: free)


@pytest.mark.parametrize(
    ("expected", "given"),
    [
        (256, {}),
        (256, {"mode": "on"}),
        (0, {"mode": "off"}),
        (0, {"device": "cpu"}),
        (256, {"device": "cpu", "mode": "on", "faults": ()}),
        (0, {"paths": ()}),
        (0, {"faults": ("KvikIO is not installed",)}),
        (0, {"paths": ("/a", "/b"), "faults": (None, "no GPU")}),
        (16, {"size": Size(1024, Unit.TOKENS)}),
        (0, {"size": Size(4096)}),
        (0, {"page": PAGE + 2}),
        (0, {"free": 300 << 20}),
        (256, {"free": 300 << 20, "mode": "on"}),
    ],
)
def test_how_many_frames_there_are(expected: int, given: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "radixtier")
    assert frames(**given) == expected
    told = [record.message for record in caplog.records]
    on = [f"radixtier: pages may go straight from NVMe to HBM, {expected} at a time"]
    assert len(told) <= 1 and (not expected or told == on)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"faults": ("no GPU",)}, "no GPU"),
        ({"size": Size(4096)}, "less than a page"),
        ({"free": GIB // 8}, "lower it, or --mem-fraction-static"),
        ({"page": PAGE + 2}, "whole words"),
    ],
)
def test_what_was_demanded_and_cannot_be_ends_the_start(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"radixtier: --radix-tier-direct on: .*{words}.* Set it to auto or off"):
        frames(mode="on", **given)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"direct": "maybe"}, "--radix-tier-direct maybe: neither of the three. Use one of auto, on, off."),
        ({"direct": "on"}, "--radix-tier-direct on: there is no NVMe tier to read from. Add --radix-tier-nvme-path"),
        (
            {"landing_size": Size(0)},
            "--radix-tier-landing-size 0 B: nothing can be read into no memory. Give it a size",
        ),
    ],
)
def test_what_is_refused_before_anything_is_tried(fields: dict[str, Any], line: str) -> None:
    (problem,) = RadixTierConfig(enable=True, **fields).validate(BIG)
    assert str(problem).startswith(line)
    assert RadixTierConfig(enable=True, direct="off", landing_size=Size(0)).validate(BIG) == []


def test_what_is_demanded_is_tried_in_every_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = tuple(str(tmp_path / name) for name in "ab")
    for path in paths:
        Path(path).mkdir()
    gpu = {"a": None, "b": "no GPU"}
    monkeypatch.setattr("radixtier.io.probe.try_posix", lambda path: Verdict())
    monkeypatch.setattr(
        "radixtier.io.probe.try_kvikio", lambda path: Verdict(imports=True, no_gds=None, no_device=gpu[path.name])
    )
    config = RadixTierConfig(enable=True, direct="on", nvme_path=paths)
    (problem,) = direct.direct_problems(config, "cuda")
    assert f"nothing can be read straight to HBM from {paths[1]}: KvikIO: no GPU. Set it to auto" in str(problem)
    assert direct.direct_problems(config, "cpu") == []
    posix = RadixTierConfig(enable=True, direct="on", nvme_path=paths, io_engine="posix")
    assert all("posix, which is used there, does not" in str(each) for each in direct.direct_problems(posix, "cuda"))
    auto = RadixTierConfig(enable=True, nvme_path=paths)
    assert direct.direct_problems(auto, "cuda") == [] == direct.direct_problems(auto, "cpu")
    monkeypatch.setattr("radixtier.io.probe.try_kvikio", lambda path: Verdict(imports=True, no_device=None))
    problem, _ = direct.direct_problems(config, "cuda")
    assert "posix, which is used there, does not read into GPU memory; KvikIO: no GPUDirect Storage" in str(problem)


def test_the_start_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = RadixTierConfig(enable=True, direct="on", nvme_path=(str(tmp_path),))
    monkeypatch.setattr(resolution, "device_of", lambda server_args: "cuda")
    monkeypatch.setattr(startup, "direct_problems", lambda config, device: [config.problem("direct", device, "Fix")])
    assert [str(each) for each in startup._check_engine(config, None)] == ["--radix-tier-direct on: cuda. Fix."]
