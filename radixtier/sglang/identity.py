"""What the pages of this server are valid for: which weights, in which shape.

Owns nothing; importing it imports no torch, since the commands of benchmarks do. Called once per scheduler process,
after the model was loaded and before the store is opened.
"""

from __future__ import annotations

import logging
import os
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from radixtier import SGLANG_VERSION
from radixtier.identity import StoreIdentity
from radixtier.seams.installed import installed_version
from radixtier.weights import weights_fingerprint

logger = logging.getLogger(__name__)


class PageShape(NamedTuple):
    """Shape of a page on this rank: element type, order of the bytes, and counts, as in :class:`StoreIdentity`."""

    kv_dtype: str
    layout: str
    page_size: int
    layers: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    attention: str = "mha"

    @property
    def same_bytes(self) -> bool:
        """Whether every rank of a server has the whole page, and not a part of its own."""
        return self.attention == "mla"

    @property
    def planes(self) -> tuple[int, ...]:
        """Parts of a page (K and V, or the one of latents), and of each: layers, tokens, rows and their elements."""
        if self.attention == "mla":
            return 1, self.layers, self.page_size, 1, self.head_dim + self.v_head_dim
        return 2, self.layers, self.page_size, self.kv_heads, self.head_dim

    @property
    def nbytes(self) -> int:
        """Bytes of a page."""
        import torch

        elements = self.page_size * self.layers * self.kv_heads * (self.head_dim + self.v_head_dim)
        item: int = getattr(torch, self.kv_dtype).itemsize
        return elements * item


def store_identity(server_args: Any, shape: PageShape, rank: int = 0, ranks: int = 1) -> StoreIdentity | None:
    """Return the identity of a rank's store for this server, None when its weights cannot be told from others.

    Then nothing is kept for a restart.
    """
    weights = _fingerprint(server_args)
    if weights is None:
        logger.warning(
            "radixtier: the weights of %s cannot be fingerprinted, so what is on NVMe will not be found again after a "
            "restart; serve a local directory with weight files for that", server_args.model_path,
        )  # fmt: skip
        return None
    # Not the tested version: one that is allowed untested may compute other KV.
    version = installed_version() or SGLANG_VERSION
    return StoreIdentity(weights=weights, **shape._asdict(), tp_rank=rank, tp_size=ranks, sglang=version)


def _fingerprint(server_args: Any) -> str | None:
    from sglang.srt.arg_groups.overrides import resolving_view

    view = resolving_view(server_args)
    if view.load_format == "dummy":
        return None
    try:
        model = _local_directory(view.model_path, view.revision, view.download_dir)
        adapters = [_local_directory(getattr(ref, "lora_path", ref), None, None) for ref in view.lora_paths or ()]
        extra = [f"{name}={getattr(view, name)}" for name in _WHAT_ELSE]
        if view.quantization_param_path:
            extra.append(f"scales={blake2b(Path(view.quantization_param_path).read_bytes()).hexdigest()}")
        return weights_fingerprint(model, revision=view.revision, extra=extra, adapters=adapters)
    except (OSError, ValueError) as e:
        logger.warning("radixtier: cannot read the weights for a fingerprint: %s", e)
        return None


_WHAT_ELSE = (
    "dtype",
    "quantization",
    "json_model_override_args",
    "context_length",
    "load_format",
    "modelopt_quant",
    "quantize_and_serve",
    "rl_quant_profile",
)
"""Arguments of SGLang that change the KV of the same weights."""


def _local_directory(name: str, revision: str | None, download_dir: str | None) -> Path:
    """Return where a model's files are; SGLang has downloaded what it needed by now.

    Raises
    ------
    OSError
        When they are neither there nor in the hub's cache.
    """
    if os.path.exists(name):
        return Path(name).resolve()
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, revision=revision, cache_dir=download_dir, local_files_only=True))
