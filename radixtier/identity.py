"""Whose bytes a page holds: a digest per page, chained over its tokens from the root of its namespace.

Owns the definition of page keys. Invariant: equal keys mean equal namespace, equal tokens from the root and
equal page size, on every machine and in every process; nothing here depends on Python's own string hashing.
Pure functions; any thread.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt

DIGEST_BYTES = 16
"""128 bits: a collision among 2**40 pages has a chance of about 2**-49 (birthday bound)."""

_NAMESPACE = b"radixtier/space"
_PAGE = b"radixtier/page1"
_ABSENT, _PRESENT = b"\0", b"\1"


def namespace_seed(extra_key: str | None = None, cache_salt: str | None = None) -> bytes:
    """Return the digest that the chain of a namespace starts from.

    Parameters
    ----------
    extra_key : str or None
        What else than tokens the KV depends on, such as a LoRA adapter.
    cache_salt : str or None
        The tenant's salt.

    Returns
    -------
    bytes
        16 bytes. Each part has its place, says whether it is there, and carries its length, so that
        ``("a", "bc")``, ``("ab", "c")``, an adapter ``X`` and a salt ``X`` are four namespaces.
    """
    digest = blake2b(digest_size=DIGEST_BYTES, person=_NAMESPACE)
    for part in (extra_key, cache_salt):
        if part is None:
            digest.update(_ABSENT)
        else:
            text = part.encode("utf-8", "surrogatepass")
            digest.update(_PRESENT + len(text).to_bytes(8, "little") + text)
    return digest.digest()


def chain(parent: bytes, tokens: npt.ArrayLike, page_size: int) -> npt.NDArray[np.uint8]:
    """Return the key of every complete page of a run of tokens.

    Parameters
    ----------
    parent : bytes
        Key of the page before the run, or :func:`namespace_seed` at the root. 16 bytes.
    tokens : array_like of int, shape (t,)
        Token ids; an incomplete page at the end is left out.
    page_size : int
        Tokens per page.

    Returns
    -------
    ndarray of uint8, shape (t // page_size, 16)
        ``key[i] = blake2b(key[i - 1] + tokens of page i as little-endian int64)``.
    """
    if len(parent) != DIGEST_BYTES:
        raise ValueError(f"a page key has {DIGEST_BYTES} bytes, got {len(parent)}")
    values = np.ascontiguousarray(tokens, dtype="<i8")
    pages = len(values) // page_size
    step = page_size * values.itemsize
    data = values.tobytes()
    keys = bytearray()
    key = parent
    for start in range(0, pages * step, step):
        digest = blake2b(key, digest_size=DIGEST_BYTES, person=_PAGE)
        digest.update(data[start : start + step])
        key = digest.digest()
        keys += key
    return np.frombuffer(keys, dtype=np.uint8).reshape(pages, DIGEST_BYTES)


def checksum_seed(key: npt.NDArray[np.uint8] | bytes) -> int:
    """Return the first 8 bytes of a page key as an unsigned integer, which seeds the checksum of the page."""
    return int.from_bytes(bytes(key)[:8], "little")
