"""Who may ask: the key, and which web pages a browser may ask for.

Law: with a key every question has to bring it. Over TCP a request that names a host by anything but an IP address or
``localhost`` is refused, because a browser can be led here under any other name (DNS rebinding), and so is one that a
page of another origin sent. Pure functions; any thread.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from email.message import Message

from radixtier.control.commands import Refusal

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(:[0-9]{1,5})?", re.ASCII)


def check_origin(headers: Message) -> None:
    """Refuse what a browser was tricked into; for connections over TCP. Raises `Refusal` with status 400 or 403."""
    hosts = headers.get_all("Host", [])
    if len(hosts) > 1:
        raise Refusal(400, "Host: given twice; give it once")
    host = hosts[0].strip() if hosts else ""
    if host and not _is_address(host):
        raise Refusal(403, f"Host: {host[:100]!r} is no address; use the server's IP address, or localhost")
    for origin in headers.get_all("Origin", []):
        # Behind something that ends TLS the scheme differs, the rest does not.
        if not host or origin.strip().lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
            raise Refusal(403, "Origin: pages of other sites may not ask; open the page from this server")


def check_key(headers: Message, key: bytes | None) -> None:
    """Refuse who does not bring the key, if there is one; raises `Refusal` with status 401."""
    if key is None:
        return
    scheme, _, given = headers.get("Authorization", "").partition(" ")
    # Headers are read as Latin-1; the key may be any text.
    right = hmac.compare_digest(given.strip().encode("latin-1", "replace"), key)
    if scheme.lower() != "bearer" or not right:
        raise Refusal(401, "send the key as Authorization: Bearer KEY", {"WWW-Authenticate": "Bearer"})


def _is_address(host: str) -> bool:
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    name = found["name"]
    if name.lower() == "localhost":
        return True
    try:
        ip = ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return (ip.version == 6) == name.startswith("[")
