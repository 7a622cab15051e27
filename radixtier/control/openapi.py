"""The schema of the control endpoint, as an OpenAPI 3.1 document made from its routes.

``python -m radixtier.control > docs/openapi.json`` writes the copy in the documentation. Pure; any thread.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from radixtier.control.routes import ROUTES, Route
from radixtier.control.schemas import COMPONENTS, named

VERSION = "1"
"""Of the interface: what is there stays, and fields are added."""

_JSON = "application/json"

_REFUSALS = {
    400: "A field, its value or the form of the request is wrong",
    401: "The key is missing or wrong",
    403: "Over TCP, a Host that is no address of this machine, or an Origin of another site",
    404: "There is no such thing, or not any more",
    405: "The path has other methods",
    409: "This server has no NVMe tier",
    411: "The length of the body is missing",
    413: "The body is too long",
    415: "The body is not JSON",
    431: "The head of the request is too long",
    500: "It failed in the server, whose log says why",
    503: "Too many ask at a time, the server stops, or it does not keep this",
    504: "The scheduler had no time for it",
}

_ALL = (400, 401, 403, 405, 431, 500, 503, 504)
"""What may happen to any request."""

_BODY = (411, 413, 415)
"""What may happen to one with a body."""


@cache
def document() -> dict[str, Any]:
    """Return the document; it is shared, so nobody changes it."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "radixtier control endpoint",
            "version": VERSION,
            "description": "Hints for and questions to a running server. Fields may be added to answers.",
        },
        "paths": paths,
        "components": {
            "schemas": COMPONENTS,
            "responses": {_refusal(status): _response(text, "Error") for status, text in _REFUSALS.items()},
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "the server's key, where it has one"}
            },
        },
        "security": [{}, {"key": []}],
    }


def _operation(route: Route) -> dict[str, Any]:
    found: dict[str, Any] = {"summary": route.summary, "operationId": _name(route)}
    if route.query:
        found["parameters"] = [_parameter(name, schema) for name, schema in route.query.items()]
    if route.body is not None:
        found["requestBody"] = {"required": route.body_needed, "content": {_JSON: {"schema": route.body}}}
    statuses = sorted({*_ALL, *route.refusals, *(() if route.body is None else _BODY)})
    found["responses"] = {"200": _response("The answer", route.answer)} | {
        str(status): {"$ref": f"#/components/responses/{_refusal(status)}"} for status in statuses
    }
    return found


def _refusal(status: int) -> str:
    return f"Refusal{status}"


def _name(route: Route) -> str:
    words = route.path.removesuffix(".json").split("/")[2:]
    return "_".join((*words, *(("by_body",) if route.path.endswith("/node") and route.body else ())))


def _parameter(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "in": "query", "schema": schema}
    return found | ({"style": "form", "explode": False} if schema["type"] == "array" else {})


def _response(text: str, schema: str) -> dict[str, Any]:
    return {"description": text, "content": {_JSON: {"schema": named(schema)}}}
