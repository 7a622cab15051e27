"""Sizes of the tiers and what a run is set up from, for the subcommands of ``radixtier lab`` that take one server.

Owns their flags. Main thread.
"""

from __future__ import annotations

import argparse

from radixtier.cli import lab_options as shared
from radixtier.lab.geometry import Geometry
from radixtier.lab.setup import Setup
from radixtier.lab.traces.recorded import RecordedTrace
from radixtier.lab.traces.trace import Trace
from radixtier.units import BadValue

TIERS = ("hbm", "dram", "nvme")


def add_server(command: argparse.ArgumentParser) -> None:
    """Add everything that describes the server: trace, sizes, model, policies and speeds."""
    shared.add_traces(command)
    sizes = command.add_argument_group("sizes", f"Write {shared.SIZE_FORMS}.")
    sizes.add_argument("--hbm", metavar="SIZE", help="KV in HBM (default: the recording's)")
    sizes.add_argument("--dram", metavar="SIZE", help="KV in DRAM (default: the recording's, or 0)")
    sizes.add_argument("--nvme", metavar="SIZE", help="KV on NVMe (default: the recording's, or 0)")
    shared.add_geometry(command)
    shared.add_policies(command)
    shared.add_rates(command)


def setup(options: argparse.Namespace, trace: Trace, geometry: Geometry) -> Setup:
    """Return sizes and policies: as asked for, as recorded, or the defaults."""
    recorded = trace.recorded if isinstance(trace, RecordedTrace) else {}
    sizes = {}
    for tier in TIERS:
        text, there = getattr(options, tier), recorded.get(f"{tier}_pages")
        if text is not None:
            sizes[tier] = shared.blocks(text, f"--{tier}", geometry, trace.block_tokens, tier == "nvme")
        elif there is not None or tier != "hbm":
            sizes[tier] = there or 0
        else:
            raise BadValue("--hbm is missing", f"Write {shared.SIZE_FORMS}")
    return Setup(
        sizes["hbm"],
        sizes["dram"],
        sizes["nvme"],
        kv_bytes_per_token=geometry.bytes_per_token,
        **shared.policies(options, trace),
    )
