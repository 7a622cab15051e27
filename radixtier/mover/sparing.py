"""Sparing: which leaves SGLang's tree does not drop when NVMe is full.

SGLang evicts leaves below HBM itself, by ``--radix-eviction-policy`` (least recently used unless told otherwise), and
takes no list of victims. What it allows is to spare some: a leaf with a host lock is passed over. So the policy's
order is followed this far: of the leaves that SGLang would take first, up to :data:`MOST_SPARED` that the policy
rates warmer than the others are locked for the duration of the eviction. Leaves whose node was split off since, or
that are in HBM as well, are left to SGLang. With ``lru`` there is nothing to do.

Owns nothing. Scheduler thread only.
"""

from __future__ import annotations

from radixtier.tree.tiertree import TierTree

MOST_SPARED = 256
"""Leaves that are passed over in one eviction."""


def spared(tree: TierTree, pages: int) -> list[int]:
    """Return the nodes to lock while ``pages`` pages are evicted."""
    if tree.below is None or tree.recency is None:
        return []
    victims: set[int] = set()
    left = pages
    for run in tree.below.coldest():
        if left <= 0:
            break
        victims.add(run)
        left -= tree.runs[run].live
    nodes: list[int] = []
    left = pages
    for run in tree.recency.coldest():
        if left <= 0 or len(nodes) >= MOST_SPARED:
            break
        if run in victims:
            left -= tree.runs[run].live
        elif (node := tree.node_of(run)) is not None:
            nodes.append(node)
    return nodes
