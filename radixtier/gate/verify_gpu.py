"""``launch/verify_gpu.sh``: does the way from NVMe to HBM work on this machine, and what does it give?

Owns the steps and their report. Invariant: nothing but scratch files of its own is changed in the directory, and no
step that needs a GPU runs without one. Main thread. It takes under five minutes; ``--rehearse`` goes through the same
steps on a CPU, with ordinary memory in the place of the GPU's, in some minutes more.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from radixtier.gate.gpu_server import Load, Served, serve
from radixtier.gate.gpu_transfers import Transfers, measure
from radixtier.io.probe import probe_report
from radixtier.live.tiny import make_tiny_model
from radixtier.machine import directory_fault

OK, BAD, NO_GPU = 0, 1, 3
"""Exit statuses; 2 is a command line that cannot be used."""

MOST_DIFFERENCE = 0.25
"""Of a log-probability: bfloat16 in batches of other shapes differs by some hundredths."""

BUDGET_S = 280.0
REHEARSAL_S = 600.0
"""For the start of a server: what is left of the one on a GPU, all of the other on a CPU."""

GPU_LOAD = Load(prompt=8192, prompts=12, vocabulary=258)
GPU_MODEL = {"layers": 16, "hidden": 1024, "heads": 16, "kv_heads": 8, "head_dim": 64, "context": 16384}
"""Random weights of some 300 MB: KV of 32 KiB a token, so that a prompt is 256 MiB."""
GPU_PAGES, GPU_PAGE_BYTES = 128, 8 << 20

CPU_LOAD = Load(prompt=512, prompts=12, vocabulary=258)
CPU_PAGES, CPU_PAGE_BYTES = 16, 256 << 10


def main(argv: Sequence[str] | None = None) -> int:
    """Run every step; print the report."""
    options = _parser().parse_args(argv)
    if fault := directory_fault(str(options.directory)):
        _parser().error(f"{options.directory}: {fault[0]}. {fault[1]}")
    device = "cpu" if options.rehearse else "cuda"
    name = "none: a rehearsal on this CPU" if options.rehearse else _gpu()
    if name is None:
        print("verify_gpu: there is no CUDA GPU here that torch can use, so nothing was verified", file=sys.stderr)
        return NO_GPU
    began = time.monotonic()
    report: dict[str, Any] = {"gpu": name}
    problems: list[str] = []
    _say("GPU", name)
    _probe(options.directory, report, problems, required=device == "cuda")
    if not problems:
        _transfers(options.directory, device, report, problems)
    if not problems:
        _server(options, device, report, problems, BUDGET_S - (time.monotonic() - began))
    for problem in problems:
        _say("PROBLEM", problem)
    _say("took", f"{time.monotonic() - began:.0f} s")
    report["problems"] = problems
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return BAD if problems else OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="verify_gpu", description=__doc__.partition("\n")[0].split(": ", 1)[1])
    parser.add_argument("directory", type=Path, help="an existing directory on the drive, with 8 GiB free")
    parser.add_argument("--model-path", type=Path, help="a model to serve; its tokens up to 258 must be words")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here as well")
    parser.add_argument(
        "--rehearse", action="store_true", help="go through the steps on a CPU: proves nothing of a GPU"
    )
    return parser


def _gpu() -> str | None:
    import torch

    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(0)
    return f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"


def _probe(directory: Path, report: dict[str, Any], problems: list[str], required: bool) -> None:
    found = report["probe"] = probe_report(directory)
    _say("engine", found["error"] or found["auto"])
    for key, title in (("gds", "GDS"), ("device", "GPU memory")):
        _say(title, "works" if found[key]["ok"] else f"no: {found[key]['why']}")
    if required and not found["device"]["ok"]:
        problems.append(f"nothing can be read into GPU memory from {directory}: {found['device']['why']}")


def _transfers(directory: Path, device: str, report: dict[str, Any], problems: list[str]) -> None:
    import torch

    gpu = device == "cuda"
    size = (GPU_PAGES, GPU_PAGE_BYTES) if gpu else (CPU_PAGES, CPU_PAGE_BYTES)
    try:
        found: Transfers = measure(directory, *size, torch.device(device))
    except Exception as error:  # of drivers and libraries; the report goes on to say which
        problems.append(f"transfers: {type(error).__name__}: {error}")
        return
    report["transfers"] = found._asdict()
    _say("NVMe to HBM", f"straight {found.straight_gbps:.2f} GB/s, through DRAM {found.through_gbps:.2f} GB/s")
    verdict = "equal" if found.equal else "NOT EQUAL"
    _say("bytes", f"{found.pages} pages of {found.page_bytes >> 10} KiB, both ways: {verdict}")
    if not found.equal:
        problems.append("pages came up with other bytes than were written")
    if not found.noticed:
        problems.append("a byte that was changed on the drive was not noticed")
    if gpu and not found.engine.startswith("kvikio"):
        problems.append(f"KvikIO gave up in the middle: {found.engine} did the rest")


def _server(options: Any, device: str, report: dict[str, Any], problems: list[str], left_s: float) -> None:
    gpu = device == "cuda"
    with tempfile.TemporaryDirectory(prefix="radixtier-verify-", dir=options.directory) as place:
        store = Path(place) / "kv"
        store.mkdir(mode=0o700)
        shape: dict[str, int] = GPU_MODEL if gpu else {}
        model = options.model_path or make_tiny_model(Path(place) / "model", **shape)
        load, limit_s = (GPU_LOAD, left_s) if gpu else (CPU_LOAD, REHEARSAL_S)
        try:
            found: Served = serve(model, load, store, Path(place) / "log", device, limit_s)
        except Exception as error:  # the server's log is part of the text
            problems.append(f"server: {error}")
            return
    report["server"] = found._asdict()
    _say("TTFT", f"computed {_ms(found.computed_s)}, from NVMe {_ms(found.nvme_s)}, from HBM {_ms(found.hbm_s)}")
    _say("straight", f"{found.landed} of {found.promoted} pages that came up from NVMe")
    _say("answers", f"log-probabilities within {found.worst:.4f}; tokens {'the same' if found.same else 'differ'}")
    if not found.landed:
        problems.append("no page went straight to HBM")
    if found.worst > MOST_DIFFERENCE:
        problems.append(f"log-probabilities differ by {found.worst:.3f} from when they were computed")
    if not found.flushed:
        problems.append("something was found after a flush")


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.0f} ms"


def _say(title: str, text: object) -> None:
    print(f"{title:<12}  {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
