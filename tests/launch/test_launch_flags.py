"""The files with settings are taken as they are by SGLang's parser and by the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from launch_rig import LAUNCH

from radixtier.settings import load_config


def in_the_secret() -> str:
    documents = yaml.safe_load_all((LAUNCH / "kubernetes" / "radixtier.yaml").read_text())
    [secret] = [each for each in documents if each["kind"] == "Secret"]
    text: str = secret["stringData"]["server.yaml"]
    return text


@pytest.mark.parametrize("text", [(LAUNCH / "server.yaml").read_text(), in_the_secret()], ids=["file", "secret"])
@pytest.mark.parametrize("more", [[], ["--host", "0.0.0.0"]])
def test_a_server_takes_them(tmp_path: Path, text: str, more: list[str]) -> None:
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    load_plugins()
    file = tmp_path / "server.yaml"
    file.write_text(text)
    record: Any = prepare_server_args(["--config", str(file), *more])
    config, problems, _ = load_config(record._radix_tier_flags, {})
    assert problems == [] and config.enable and config.control_address(key=False) is not None
    assert config.nvme_path == ("/var/lib/radixtier/kv0",) and config.bytes_per_day() == 3840 * 10**9
    assert (record.page_size, record.attention_backend, record.enable_metrics) == (64, "flashinfer", True)
    if more:
        assert record.host == "0.0.0.0"
