"""Whose bytes a page holds: a digest per page, chained over its tokens from the root of its namespace.

Owns the definition of page keys, of a stretch of a path, and of what a store is valid for. Invariant: equal keys mean
equal namespace, equal tokens from the root and equal page size, on every machine and in every process; nothing here
depends on Python's own string hashing. Pure functions; any thread.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

DIGEST_BYTES = 16
"""128 bits: a collision among 2**40 pages has a chance of about 2**-49 (birthday bound)."""

Tokens = npt.NDArray[np.integer[Any]]
"""Token ids, int32 where all of an array fit, else int64."""

_NAMESPACE = b"radixtier/space"
_PAGE = b"radixtier/page1"
_ABSENT, _PRESENT = b"\0", b"\1"


class Space(NamedTuple):
    """A namespace of prefixes: what else than tokens the KV depends on, and the tenant's salt."""

    extra_key: str | None = None
    cache_salt: str | None = None


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


def narrow(tokens: npt.ArrayLike) -> Tokens:
    """Return token ids as int32 where all fit, else as int64: what stands for an image is a number of 62 bits."""
    wide: npt.NDArray[np.int64] = np.asarray(tokens, dtype=np.int64)
    small = wide.astype(np.int32)
    return small if np.array_equal(small, wide) else wide


def checksum_seed(key: npt.NDArray[np.uint8] | bytes) -> int:
    """Return the first 8 bytes of a page key as an unsigned integer, which seeds the checksum of the page."""
    return int.from_bytes(bytes(key)[:8], "little")


@dataclass(frozen=True, eq=False)
class Stretch:
    """Consecutive pages of one path, root-side first, and where they hang.

    Attributes
    ----------
    space : Space
        Namespace of the path.
    front : bytes
        Key of the page in front of the first one, :func:`namespace_seed` at the root. 16 bytes.
    keys : ndarray of uint8, shape (pages, 16)
        Keys of the pages.
    tokens : ndarray of int32 or int64, shape (pages, page_size)
        Their tokens, see :func:`narrow`.
    """

    space: Space
    front: bytes
    keys: npt.NDArray[np.uint8]
    tokens: Tokens

    @classmethod
    def chained(cls, space: Space, front: bytes, tokens: npt.ArrayLike, page_size: int) -> Stretch:
        """Build the stretch of all complete pages of ``tokens`` that follows the page with key ``front``."""
        keys = chain(front, tokens, page_size)
        flat = narrow(np.asarray(tokens)[: len(keys) * page_size])
        return cls(space, front, keys, flat.reshape(len(keys), page_size))

    def __len__(self) -> int:
        return len(self.keys)

    def part(self, lo: int, hi: int) -> Stretch:
        """Return pages ``lo .. hi - 1``."""
        front = self.keys[lo - 1].tobytes() if lo else self.front
        return Stretch(self.space, front, self.keys[lo:hi], self.tokens[lo:hi])

    def intact(self) -> bool:
        """Whether the keys follow from front and tokens: a stretch read back from disk is worth nothing otherwise."""
        expected = chain(self.front, self.tokens.reshape(-1), self.tokens.shape[1])
        return bool(np.array_equal(expected, self.keys))


@dataclass(frozen=True)
class StoreIdentity:
    """All that the bytes of a stored page depend on beside their key; a store with another identity is never read.

    Attributes
    ----------
    weights : str
        Fingerprint of weights, adapters and overrides, hex.
    kv_dtype : str
        Element type of the KV, such as ``float32`` or ``float8_e4m3fn``.
    layout : str
        Order of the bytes in a page.
    page_size, layers, kv_heads, head_dim, v_head_dim : int
        Shape of a page on one rank: tokens, layers, heads, elements per head of K and of V. With ``mla`` there is one
        head: its latent, and the rotary part of the key.
    attention : str
        ``mha`` (with GQA) or ``mla``.
    tp_rank, tp_size, pp_rank, pp_size : int
        Which part of the model's KV this rank holds.
    sglang : str
        Release whose kernels wrote the pages.
    """

    weights: str
    kv_dtype: str
    layout: str
    page_size: int
    layers: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    attention: str = "mha"
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    sglang: str = ""

    def to_json(self) -> str:
        """Return a canonical text: equal identities have equal texts."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> StoreIdentity:
        """Read a text back; raises `ValueError` or `TypeError` for anything that :meth:`to_json` does not write."""
        fields: dict[str, Any] = json.loads(text)
        return cls(**fields)

    def differences(self, other: StoreIdentity) -> list[str]:
        """Name the fields in which another identity differs, with both values."""
        mine, theirs = dataclasses.asdict(self), dataclasses.asdict(other)
        return [f"{name} {theirs[name]} instead of {mine[name]}" for name in mine if mine[name] != theirs[name]]
