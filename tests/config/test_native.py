"""What a patched SGLang calls, on the installed one: its fields, its marks, and that the plugin stands back."""

from __future__ import annotations

import argparse
import subprocess
import sys
import types
from typing import Any

import pytest

pytest.importorskip("sglang")

from radixtier.config import RadixTierConfig
from radixtier.settings import CONFIG_FILE, SETTINGS
from radixtier.sglang import factory, native, plugin, startup
from radixtier.sglang.flags import add_flags, effective, field_of, given_flags
from radixtier.units import Size


@pytest.fixture(scope="module")
def namespace() -> Any:
    return native.namespace()


def test_the_fields_give_the_flags_of_the_plugin(namespace: Any) -> None:
    from sglang.srt.arg_groups.arg_utils import add_cli_args_from_dataclass

    patched, plugged = argparse.ArgumentParser(), argparse.ArgumentParser()
    add_cli_args_from_dataclass(patched, namespace)
    add_flags(plugged)

    def told(parser: argparse.ArgumentParser) -> set[tuple[Any, ...]]:
        return {(*action.option_strings, action.dest, action.help, action.nargs) for action in parser._actions}

    assert told(patched) == told(plugged)
    words = ["--enable-radix-tier", "--radix-tier-nvme-path", "/a", "/b", "--radix-tier-dram-size", "0"]
    assert given_flags(patched.parse_args(words)) == given_flags(plugged.parse_args(words))
    assert given_flags(patched.parse_args([])) == {}


def test_sglang_collects_them(namespace: Any) -> None:
    from sglang.srt.arg_groups.arg_utils import resolvable_fields
    from sglang.srt.arg_groups.fields import collect_input_fields
    from sglang.srt.arg_groups.fields.memory import Memory

    types_, defaults, places = collect_input_fields([Memory, namespace])
    names = {field_of(setting) for setting in (*SETTINGS, CONFIG_FILE)}
    assert names <= types_.keys() and names <= resolvable_fields(namespace)
    assert {places[name] for name in names} == {native.NAMESPACE}
    assert {name: defaults[name] for name in names} == {
        field_of(setting): False if setting.kind == "switch" else None for setting in (*SETTINGS, CONFIG_FILE)
    }


def test_what_server_info_shows_are_values_of_the_fields() -> None:
    shown = effective(RadixTierConfig(enable=True, dram_size=Size(1 << 30), nvme_path=("/a", "/b")))
    assert shown["enable_radix_tier"] is True and shown["radix_tier_hbm_size"] is None
    assert (shown["radix_tier_dram_size"], shown["radix_tier_nvme_path"]) == ("1.0 GiB", ["/a", "/b"])


def test_arguments_of_a_command_line_are_marked(namespace: Any) -> None:
    record = native.marked(types.SimpleNamespace)(enable_radix_tier=True, radix_tier_dram_size="1GiB")
    assert record._radix_tier_flags == {"enable": True, "dram_size": "1GiB"}
    given, name_of = startup._given(record)
    assert given == record._radix_tier_flags and name_of(SETTINGS[2]) == "--radix-tier-dram-size"


def test_fields_of_engine_are_named_as_they_were_given() -> None:
    record = types.SimpleNamespace(enable_radix_tier=True, radix_tier_nvme_size=0, radix_cache_backend=None)
    given, name_of = startup._given(record)
    assert given == {"enable": True, "nvme_size": 0}
    assert name_of(SETTINGS[2]) == "radix_tier_dram_size"


@pytest.mark.parametrize("several", [False, True])
def test_the_plugin_hooks_only_what_the_patch_does_not_call(several: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt import plugins
    from sglang.srt.plugins.hook_registry import HookRegistry

    hooked: list[str] = []
    monkeypatch.setattr(HookRegistry, "register", lambda target, *_: hooked.append(target))
    monkeypatch.setattr(HookRegistry, "apply_hooks", lambda: None)
    monkeypatch.setattr(plugins, "radix_tier", None, raising=False)
    plugin.register()
    factory.open_gates(several=several)
    sharing = list(factory.SHARING) if several else []
    assert hooked == [*plugin.HOOKS, *sharing, *factory.GATES]
    hooked.clear()
    monkeypatch.setattr(plugins, "radix_tier", native)
    plugin.register()
    factory.open_gates(several=several)
    assert hooked == sharing


def test_importing_it_loads_nothing() -> None:
    """SGLang's first import of all must not become slower or circular."""
    program = "import sys; from radixtier.sglang import native, plugin\n"
    program += "sys.exit(bool({'torch', 'sglang', 'msgspec', 'numpy', 'yaml'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60).returncode == 0
