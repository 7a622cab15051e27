"""Command-line arguments of what talks to the control endpoint: which server, which path.

Owns their names and what becomes of them. Main thread.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from radixtier.control.address import ACCEPTED_FORMS, parse_address
from radixtier.control.client import ControlClient
from radixtier.units import BadValue

ENVIRONMENT = "RADIXTIER_CONTROL"
"""Where the address is read from when it is not given; the server takes its own from there as well."""


def add_server(parser: argparse.ArgumentParser) -> None:
    """Add what names the server."""
    address_help = f"where the server listens: {ACCEPTED_FORMS.removesuffix(' or off')} (default: ${ENVIRONMENT})"
    parser.add_argument("--control", metavar="ADDRESS", default=os.environ.get(ENVIRONMENT), help=address_help)
    parser.add_argument("--key-file", type=Path, metavar="FILE", help="file with the server's key")
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_path(parser: argparse.ArgumentParser, required: bool) -> argparse._MutuallyExclusiveGroup:
    """Add what names a path, and return the group that further ways can be added to."""
    which = parser.add_mutually_exclusive_group(required=required)
    which.add_argument("--text", help="the path of this text")
    which.add_argument("--tokens", metavar="FILE", help="the path of the token ids in FILE (- for standard input)")
    which.add_argument("--session", metavar="ID", help="the paths of this session")
    parser.add_argument("--extra-key", metavar="KEY", help="namespace of the text or tokens, as in the request")
    parser.add_argument("--cache-salt", metavar="SALT", help="salt of the text or tokens, as in the request")
    return which


def client(options: argparse.Namespace) -> ControlClient:
    """Build the client; raises `BadValue`, or `OSError` for the key's file."""
    if not options.control:
        raise BadValue("no server is named", f"Give --control ADDRESS or set {ENVIRONMENT}")
    try:
        address = parse_address(options.control, key=True)
    except BadValue as bad:
        raise BadValue(f"{options.control}: {bad.why}", bad.fix) from None
    if address is None:
        raise BadValue("the control endpoint is off", "Start the server with an address for it")
    key = None if options.key_file is None else options.key_file.read_text().strip()
    return ControlClient(address, key or None)


def path(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a body that name the path; raises `BadValue` or `OSError` for the file of tokens."""
    fields = {
        "text": options.text,
        "tokens": None if options.tokens is None else _tokens(options.tokens),
        "session": options.session,
        "extra_key": options.extra_key,
        "cache_salt": options.cache_salt,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _tokens(file: str) -> list[int]:
    text = sys.stdin.read() if file == "-" else Path(file).read_text()
    try:
        value = json.loads(text) if text.lstrip().startswith("[") else [int(word) for word in text.split()]
    except ValueError:
        raise BadValue(f"{file}: not token ids", "Write numbers with spaces between them, or a JSON list") from None
    if not isinstance(value, list):
        raise BadValue(f"{file}: not token ids", "Write numbers with spaces between them, or a JSON list")
    return value
