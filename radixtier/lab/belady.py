"""The ceiling for one tier: Belady's choice, leaves only, and a block may pass without being kept.

The law: after each request, blocks whose next use is farthest leave first, the deepest of equal ones before the
others; those of the request itself are no exception (bypass). A block is used whenever a block behind it is, so its
next use is never later and farthest-first is leaf-first by itself. No policy that keeps prefixes can have more hits.
Reads the trace twice.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from radixtier.lab.future import Future
from radixtier.lab.tier import Tier
from radixtier.lab.traces.trace import Nodes, Request


def belady(requests: Sequence[Request], nodes: Nodes, blocks: int) -> tuple[int, int]:
    """Return hits and references, in blocks, of a tier of ``blocks`` blocks."""
    future = Future(requests)
    tier = Tier()
    farthest: list[tuple[int, int, int]] = []
    """Next use and depth, negated, and node; stale when the node was used since."""
    hits = references = 0
    for position, request in enumerate(requests):
        complete = True
        for node in request.path:
            pages = nodes.pages[node]
            have = tier.have.get(node, 0)
            references += pages
            hits += have if complete else 0
            complete = complete and have == pages
            tier.set(node, pages)
            heapq.heappush(farthest, (-future.next_use(node, position), -nodes.depth[node], node))
        while tier.used > blocks:
            when, depth, node = heapq.heappop(farthest)
            have = tier.have.get(node, 0)
            if not have or -when != future.next_use(node, position):
                continue
            gone = min(have, tier.used - blocks)
            tier.set(node, have - gone)
            if gone < have:
                heapq.heappush(farthest, (when, depth, node))
    return hits, references
