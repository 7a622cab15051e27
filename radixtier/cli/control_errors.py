"""What an error of a question to a running server is as an exit status.

Owns that choice. Pure; any thread.
"""

from __future__ import annotations

from http import HTTPStatus

from radixtier.cli.exits import FAILED, USAGE
from radixtier.control.client import ControlError

_BAD_VALUES = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY)
"""With which a server says that a value cannot be used."""


def status_of(error: Exception) -> int:
    """Return 2 for a value or a file that cannot be used, whoever found that out; 1 when there is no other answer."""
    if isinstance(error, ControlError):
        return USAGE if error.status in _BAD_VALUES else FAILED
    return USAGE
