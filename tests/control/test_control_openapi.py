"""The schema: it is valid, says all there is, and the copy in the documentation is that of the code."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from radixtier.control.commands import Refusal
from radixtier.control.openapi import document
from radixtier.control.requests import find_route, read_command
from radixtier.control.routes import ROUTES
from radixtier.control.schemas import COMPONENTS, TAKES
from radixtier.policy.hints import Kind

COPY = Path(__file__).parents[2] / "docs" / "openapi.json"


def test_the_copy_in_the_documentation() -> None:
    how = "run: python -m radixtier.control > docs/openapi.json"
    assert json.loads(COPY.read_text()) == document(), how


def test_it_is_a_valid_document() -> None:
    found = document()
    assert (found["openapi"], found["info"]["version"]) == ("3.1.0", "1")
    for schema in COMPONENTS.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    names = [operation["operationId"] for path in found["paths"].values() for operation in path.values()]
    assert len(names) == len(set(names)) == len(ROUTES)
    for route in ROUTES:
        operation = found["paths"][route.path][route.method.lower()]
        assert ("requestBody" in operation) == (route.method == "POST")
        assert operation["summary"] and "200" in operation["responses"] and "401" in operation["responses"]
        if route.body is not None:
            jsonschema.Draft202012Validator.check_schema(route.body)


def test_every_reference_leads_somewhere() -> None:
    text = json.dumps(document())
    for kind, there in document()["components"].items():
        names = {part.split('"')[0] for part in text.split(f"#/components/{kind}/")[1:]}
        assert names <= there.keys()


def test_hints_take_the_fields_that_the_schema_names() -> None:
    values = {"ttl_s": 5, "by_s": 5, "hbm": True, "tier": "nvme", "start_token": 1, "end_token": 2}
    for kind in Kind:
        route = find_route("POST", f"/radix_tier/{kind.value}")
        assert route.body is not None
        named = {*TAKES[kind], "start_token", "end_token"}
        assert named <= set(route.body["properties"])
        for name, value in values.items():
            body = {"session": "s", name: value}
            if name in named:
                read_command(route, body)
            else:
                with pytest.raises(Refusal):
                    read_command(route, body)
