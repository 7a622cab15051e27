"""Where the control endpoint listens: a Unix socket, a TCP port, or nowhere.

Owns the grammar: ``unix:PATH``, ``127.0.0.1:PORT``, ``[::1]:PORT``, ``off``. Invariant: without a key an address can be
reached from this machine only. Pure functions; any thread.
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass

from radixtier.units import BadValue

ACCEPTED_FORMS = "unix:PATH, 127.0.0.1:PORT, [::1]:PORT or off"

LONGEST_PATH = 107
"""Bytes of a Unix socket's path that Linux takes (``sun_path`` without the closing zero)."""


@dataclass(frozen=True)
class Address:
    """A Unix socket when `path` is given, else a TCP port.

    Attributes
    ----------
    path : str
        Absolute path of the socket; empty for TCP.
    host : str
        IPv4 or IPv6 address without brackets; empty for a Unix socket.
    port : int
        TCP port; 0 to let the system choose.
    """

    path: str = ""
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, key: bool = False) -> Address | None:
    """Parse an address.

    Parameters
    ----------
    text : str
        ``unix:PATH``, ``HOST:PORT`` with an IP address, IPv6 in brackets, ``localhost:PORT``, or ``off``.
    key : bool
        Whether a key protects the endpoint: without one only loopback addresses are taken.

    Returns
    -------
    Address or None
        None for ``off``.

    Raises
    ------
    BadValue
        Saying what is wrong and what to write.
    """
    text = text.strip()
    if text.lower() == "off":
        return None
    if text.startswith("unix:"):
        return _unix(text.removeprefix("unix:"))
    host, colon, port = text.rpartition(":")
    if not colon:
        raise BadValue("not an address", f"Write {ACCEPTED_FORMS}")
    if not (port.isascii() and port.isdigit() and len(port) < 6 and int(port) < 65536):
        raise BadValue(f"port {port!r} is not a number from 0 to 65535", f"Write {ACCEPTED_FORMS}")
    ip = _ip(host)
    if not ip.is_loopback and not key:
        raise BadValue(
            f"{host} can be reached from other machines, and no key is set",
            "Use 127.0.0.1, a Unix socket, or set a key",
        )
    return Address(host=str(ip), port=int(port))


def _unix(path: str) -> Address:
    if not path or "\0" in path or path.endswith("/"):
        raise BadValue("not the path of a socket", "Write unix:PATH, such as unix:/run/radixtier/control.sock")
    path = os.path.abspath(path)
    length = len(os.fsencode(path))
    if length > LONGEST_PATH:
        why = f"the path has {length} bytes, a Unix socket's has at most {LONGEST_PATH}"
        raise BadValue(why, "Choose a shorter one")
    return Address(path=path)


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    if host.lower() == "localhost":
        host = "127.0.0.1"
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        ip = ipaddress.ip_address(host[1:-1] if bracketed else host)
    except ValueError:
        raise BadValue(f"{host!r} is not an IP address", f"Write {ACCEPTED_FORMS}") from None
    if bracketed != (ip.version == 6):
        raise BadValue("IPv6 addresses, and only they, stand in brackets", f"Write {ACCEPTED_FORMS}")
    return ip
