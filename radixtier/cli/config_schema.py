"""The JSON Schema of the YAML file with settings, for editors and for checks without radixtier.

Owns its form; names, meanings, defaults and choices are those of :data:`radixtier.settings.SETTINGS`. Law: whatever the
schema takes, radixtier can read, but for what JSON Schema cannot say (a plain number of bytes in a text that is less
than a page, a budget that is none); radixtier reads words in capitals too, which the schema does not. Pure; any thread.
"""

from __future__ import annotations

from typing import Any

from radixtier.settings import FILE_VERSION, SETTINGS, Kind, Setting
from radixtier.units import SMALLEST_PLAIN_BYTES

_BYTES = r"^\s*[0-9]+(\.[0-9]+)?\s*(([KkMmGgTt][Ii]?)?[Bb])?\s*$"
_SIZE = r"^\s*[0-9]+(\.[0-9]+)?\s*(([KkMmGgTt][Ii]?)?[Bb]|[KkMmGg]?[Tt][Oo][Kk])?\s*$"

_PLAIN = [{"type": "number", "minimum": SMALLEST_PLAIN_BYTES}, {"const": 0}, {"type": "null"}]
_TEXT = {"type": "string", "pattern": r"\S"}

_FORMS: dict[Kind, dict[str, Any]] = {
    "switch": {"enum": [True, False, "on", "off", "yes", "no", "true", "false", 0, 1, "0", "1", None]},
    "size": {"anyOf": [{"type": "string", "pattern": _SIZE}, *_PLAIN]},
    "bytes": {"anyOf": [{"type": "string", "pattern": _BYTES}, *_PLAIN]},
    "paths": {
        "anyOf": [
            {"type": "string", "minLength": 1},
            {"type": "array", "items": {"type": "string", "minLength": 1}},
            {"type": "null"},
        ]
    },
    "text": {"anyOf": [_TEXT, {"type": "null"}]},
    "file": {"anyOf": [_TEXT, {"type": "null"}]},
}


def schema() -> dict[str, Any]:
    """Return the schema: each setting under its name with dashes, and under the other ways to write it."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of radixtier",
        "description": "What --radix-tier-config reads. Flags and the environment win over it.",
        "type": ["object", "null"],
        "properties": {
            "version": {"description": "Of this file's form.", "const": FILE_VERSION},
            **{_dashed(each): {"$ref": f"#/$defs/{each.name}"} for each in SETTINGS},
        },
        "patternProperties": {_other_names(each): {"$ref": f"#/$defs/{each.name}"} for each in SETTINGS},
        "additionalProperties": False,
        "$defs": {each.name: _form(each) for each in SETTINGS},
    }


def _form(setting: Setting) -> dict[str, Any]:
    told = f"{setting.help} Default: {setting.default}. Flag: {setting.flag}. Environment: {setting.env}."
    if setting.kind == "word":
        return {"description": told, "enum": [*setting.choices, None]}
    return {"description": told, **_FORMS[setting.kind]}


def _dashed(setting: Setting) -> str:
    return setting.name.replace("_", "-")


def _other_names(setting: Setting) -> str:
    if setting.name == "enable":
        return "^enable[-_]radix[-_]tier$"
    return f"^(radix[-_]tier[-_])?{setting.name.replace('_', '[-_]')}$"
