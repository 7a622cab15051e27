"""Which weights a model directory holds, as a short fingerprint.

Owns the definition of the fingerprint. Invariant: equal files give equal fingerprints wherever they lie and whenever
they were written; files of another size, with other tensors or with other values in what is sampled give other ones.
It samples instead of reading all: some hundred gigabytes would take minutes at every start. Pure functions that read
files; any thread.
"""

from __future__ import annotations

import fnmatch
import json
import os
import struct
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path

FINGERPRINT_BYTES = 16

TENSOR_SAMPLE = 512
"""Bytes from the middle of each tensor: training changes values everywhere, so a few hundred of them are enough."""

FILE_SAMPLES, FILE_SAMPLE = 64, 4096
"""Samples, and bytes per sample, of a file whose tensors are not known."""

MAX_HEADER = 100_000_000
"""Bytes; the limit of the safetensors format itself."""

_CONFIGS = (
    *("config.json", "params.json", "adapter_config.json", "*.safetensors.index.json"),
    *("quant_config.json", "quantize_config.json", "quantization_config.json", "hf_quant_config.json"),
)
"""Files that say what the weights mean. How text is generated from them (generation_config.json) is not among them."""

_TENSORS = ".safetensors"
_WEIGHTS = (_TENSORS, ".bin", ".pt", ".pth", ".gguf")
_THREADS = 8


def weights_fingerprint(
    model_dir: Path,
    *,
    revision: str | None = None,
    extra: Sequence[str] = (),
    adapters: Sequence[Path] = (),
) -> str | None:
    """Return a digest of all that a model's KV depends on, as far as its files tell.

    Parameters
    ----------
    model_dir : Path
        Directory of the model, or its one weight file. Its own name does not matter; links in it are followed.
    revision : str or None
        The revision that was asked for, if any.
    extra : sequence of str
        What else makes the weights what they are: overrides of the configuration, names of adapters.
    adapters : sequence of Path
        Directories of LoRA adapters, in the order in which they are named.

    Returns
    -------
    str or None
        32 hex digits. None when the model, or one of the adapters, has no weight files here: then nothing is known.

    Raises
    ------
    OSError
        When a file of the model is there but cannot be read.
    """
    digests = [_directory_digest(directory) for directory in (model_dir, *adapters)]
    known = [digest for digest in digests if digest is not None]
    if len(known) < len(digests):
        return None
    told = [b"" if revision is None else b"=" + _encoded(revision), *(_encoded(text) for text in extra)]
    return _digest([_digest(known), _digest(told)]).hex()


def _directory_digest(directory: Path) -> bytes | None:
    files = [directory] if directory.is_file() else _files(directory)
    weights = [file for file in files if file.suffix in _WEIGHTS]
    if not weights:
        return None
    configs = [file for file in files if any(fnmatch.fnmatchcase(file.name, pattern) for pattern in _CONFIGS)]
    parts = [part for file in configs for part in (_encoded(file.name), file.read_bytes())]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="radixtier-weights") as pool:
        digests = list(pool.map(_weight_digest, weights))
    return _digest([_digest(parts), *digests])


def _files(directory: Path) -> list[Path]:
    return sorted(file for file in directory.iterdir() if file.is_file()) if directory.is_dir() else []


def _weight_digest(file: Path) -> bytes:
    """Digest the name, the size and samples of one weight file; of safetensors also the header."""
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no reading ahead around each sample
        size = os.fstat(fd).st_size
        header = _header(fd, size) if file.suffix == _TENSORS else b""
        spans = _tensor_spans(header, size) or _even_spans(size)
        samples = (os.pread(fd, length, start) for start, length in spans)
        return _digest([_encoded(file.name), str(size).encode(), header, *samples])
    finally:
        os.close(fd)


def _header(fd: int, size: int) -> bytes:
    """Return the header of a safetensors file: a little-endian u64 length, then so much JSON; b"" if it is none."""
    start = os.pread(fd, 8, 0)
    if len(start) < 8:
        return b""
    [length] = struct.unpack("<Q", start)
    return os.pread(fd, length, 8) if length <= min(MAX_HEADER, size - 8) else b""


def _tensor_spans(header: bytes, size: int) -> list[tuple[int, int]]:
    """Return ``(start, length)`` of a sample of each tensor in file order; none for a header that makes no sense."""
    try:
        tensors = json.loads(header)
        ranges = sorted(tuple(tensors[name]["data_offsets"]) for name in tensors if name != "__metadata__")
        good = all(type(begin) is type(end) is int and 0 <= begin <= end for begin, end in ranges)
    except (ValueError, TypeError, KeyError, RecursionError):
        return []
    data = 8 + len(header)
    if not good or (ranges and max(end for _, end in ranges) > size - data):
        return []
    return [_middle(data + begin, data + end) for begin, end in ranges]


def _middle(begin: int, end: int) -> tuple[int, int]:
    length = min(TENSOR_SAMPLE, end - begin)
    return begin + (end - begin - length) // 2, length


def _even_spans(size: int) -> list[tuple[int, int]]:
    """Return ``(start, length)`` of samples from the first byte to the last; all of a small file."""
    if size <= FILE_SAMPLES * FILE_SAMPLE:
        return [(0, size)]
    last = size - FILE_SAMPLE
    return [(last * i // (FILE_SAMPLES - 1), FILE_SAMPLE) for i in range(FILE_SAMPLES)]


def _digest(parts: Iterable[bytes]) -> bytes:
    """Digest a sequence of texts, each with its length, so that ``("a", "bc")`` and ``("ab", "c")`` differ."""
    digest = blake2b(digest_size=FINGERPRINT_BYTES, person=b"radixtier/wght")
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
