"""``radixtier bench``: the measurements that can be repeated on any machine.

Owns the list of measurements. Invariant: imports none of them before it runs. Main thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from radixtier.cli.exits import with_statuses
from radixtier.cli.main import Table, add_names, dispatch

BENCHES: Table = {
    "lab": ("radixtier.lab.bench", "cost of a replay per block reference, for longer traces and larger trees"),
    "match": ("radixtier.sglang.bench_match", "cost of a prefix match per tier, against stock SGLang"),
    "io": ("radixtier.tools.bench_io", "bandwidth of the store on a drive, against what the drive can do"),
    "ranks": ("radixtier.sglang.bench_ranks", "what agreeing over tensor parallel ranks costs a step"),
    "restart": ("radixtier.sglang.bench_restart", "how fast a full store comes back at a restart"),
    "serve": ("radixtier.cli.bench_serve", "how a server answers what its users ask; two servers in one run"),
    "noreuse": ("radixtier.demo.bench_noreuse", "throughput of a load without reuse, against stock SGLang"),
    "promote": ("radixtier.demo.bench_promote", "slow drives, predicted returns and overlap on a real server"),
    "peers": ("radixtier.demo.bench_peers", "beside stock SGLang and HiCache, in one run on one machine"),
}


def main(argv: Sequence[str]) -> int:
    """Run one measurement; ``argv`` starts with its name."""
    return dispatch(BENCHES[parser().parse_args(list(argv[:1])).bench][0], argv[1:])


def parser() -> argparse.ArgumentParser:
    """Return the parser of the name."""
    made = argparse.ArgumentParser(prog="radixtier bench", description="Measure the tier.")
    add_names(made, BENCHES, "bench")
    return with_statuses(made)
