"""How many bytes of KV a token takes on a server, and how many blocks of a trace fit into a number of bytes.

Owns the presets. **A size that a user gives is that of the whole server, the sum over its ranks**, and so are the bytes
of a token here; :mod:`radixtier.tools.attention` has the law of what a rank holds. Pure; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from radixtier.footprint import slots_for
from radixtier.tools.attention import Attention
from radixtier.tools.breakeven import DEFAULT_KV_BYTES
from radixtier.units import BadValue


@dataclass(frozen=True)
class Geometry:
    """Bytes of a token on a server.

    Attributes
    ----------
    bytes_per_token : int
        Of all layers, on all ranks together.
    tp : int
        Ranks that share a page.
    same_bytes : bool
        Whether each of them has all of it, as with MLA: a store then has it once. Reads and writes are counted for
        every rank all the same, of which only the reads are so.
    """

    bytes_per_token: int = DEFAULT_KV_BYTES
    tp: int = 1
    same_bytes: bool = False

    @classmethod
    def of(cls, attention: Attention, tp: int = 1) -> Geometry:
        """Geometry of a model on ``tp`` ranks."""
        return cls(attention.rank_bytes(tp) * tp, tp, attention.latent is not None)

    def blocks(self, nbytes: int, block_tokens: int, *, nvme: bool = False) -> int:
        """Return how many blocks fit.

        Parameters
        ----------
        nbytes
            Of the whole server.
        block_tokens
            Tokens of a block.
        nvme
            Whether they lie in a store: each rank has its own, or the first one for all that have the same bytes. It
            rounds what it has of a block up to 4 KiB and keeps a journal. A block is taken for a page; a server whose
            pages are smaller loses more.
        """
        if not nvme:
            return nbytes // (self.bytes_per_token * block_tokens)
        stores = 1 if self.same_bytes else self.tp
        return slots_for(nbytes // stores, -(-self.bytes_per_token * block_tokens // self.tp), block_tokens)


PRESETS = {
    "deepseek-v2-lite": Attention(27, 0, 0, latent=512 + 64),
    "deepseek-v3": Attention(61, 0, 0, latent=512 + 64),
    "gpt-oss-20b": Attention(24, 8, 64),
    "gpt-oss-120b": Attention(36, 8, 64),
    "llama-3.1-8b": Attention(32, 8, 128),
    "llama-3.1-70b": Attention(80, 8, 128),
    "llama-3.3-70b": Attention(80, 8, 128),
    "mistral-7b": Attention(32, 8, 128),
    "mixtral-8x7b": Attention(32, 8, 128),
    "qwen2.5-7b": Attention(28, 4, 128),
    "qwen2.5-32b": Attention(64, 8, 128),
    "qwen2.5-72b": Attention(80, 8, 128),
    "qwen3-8b": Attention(36, 8, 128),
    "qwen3-14b": Attention(40, 8, 128),
    "qwen3-32b": Attention(64, 8, 128),
    "qwen3-30b-a3b": Attention(48, 4, 128),
    "qwen3-235b-a22b": Attention(94, 4, 128),
    "smollm2-135m": Attention(30, 3, 64),
}
"""Common models by name, in bfloat16."""


def preset(name: str, dtype: str | None = None) -> Attention:
    """Look a model up; ``dtype`` is one of :data:`radixtier.tools.attention.DTYPES`."""
    if name not in PRESETS:
        raise BadValue(f"no preset {name}", f"Choose one of {', '.join(PRESETS)}, or give --model-config FILE")
    return PRESETS[name].of_dtype(dtype)
