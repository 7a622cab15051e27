"""A scheduler process in miniature: publishes states that come on standard input, a line of JSON each.

Usage: ``prometheus_child.py MODEL RANK``; answers every line with one of its own.
"""

from __future__ import annotations

import json
import sys

from radixtier.monitor.prometheus import Prometheus


def main() -> None:
    publisher = Prometheus(model_name=sys.argv[1], tp_rank=int(sys.argv[2]))
    for line in sys.stdin:
        state, latencies = json.loads(line)
        publisher.publish(state, [tuple(each) for each in latencies])
        print("done", flush=True)


main()
