"""Made-up prefix trees, as rows of the control endpoint and aggregated for drawing; same arguments, same tree."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

NOW = 1_780_000_000.0
"""Unix seconds at which every made-up server lives."""

AMOUNTS = ("tokens", "hbm", "dram", "nvme")
Row = dict[str, Any]


def small_tree(chats: int = 14, seed: int = 7) -> list[Row]:
    """Three system prompts, each with chats of a few turns: the younger a chat, the higher it lies."""
    rng = random.Random(seed)
    rows: list[Row] = []
    prompts = [_add(rows, None, tokens, 30.0, hits=chats) for tokens in (2048, 1024, 512)]
    for chat in range(chats):
        age = 4.0 * 2.2**chat
        parent = prompts[chat % 3]
        for turn in range(rng.randint(2, 6)):
            parent = _add(rows, parent, 64 * rng.randint(2, 24), age, session=f"user-{chat}", hits=9 - turn)
    rows[-1] |= {"hbm": 0, "dram": 0, "nvme": rows[-1]["tokens"] // 2, "lost": rows[-1]["tokens"] // 2}
    rows[5]["pinned"] = {"dram": 512.0}
    rows[4]["expected"] = NOW + 95.0
    return rows


def large_tree(nodes: int = 100_000, seed: int = 3) -> list[Row]:
    """Many sessions of a few turns below some hundred shared prefixes."""
    rng = random.Random(seed)
    rows: list[Row] = []
    prefixes = [_add(rows, None, 64 * rng.randint(8, 64), 20.0, hits=1000) for _ in range(200)]
    while len(rows) < nodes:
        parent = prefixes[min(199, int(rng.expovariate(0.03)))]
        age, session = 10.0 ** rng.uniform(0, 5.5), f"s{len(rows)}"
        for _ in range(rng.randint(1, 7)):
            parent = _add(rows, parent, 64 * rng.randint(1, 30), age, session=session, hits=1)
    return rows[:nodes]


def _add(
    rows: list[Row], parent: Row | None, tokens: int, age: float, session: str | None = None, hits: int = 1
) -> Row:
    start = 0 if parent is None else parent["start_token"] + parent["tokens"]
    row = {
        "node": len(rows),
        "parent": None if parent is None else parent["node"],
        "start_token": start,
        "tokens": tokens,
        "hbm": tokens if age < 120 else tokens // 2 // 16 * 16 if age < 400 else 0,
        "dram": tokens if age < 9000 else 0,
        "nvme": tokens if age > 8 else 0,
        "lost": 0,
        "last_used": NOW - age,
        "hits": hits,
        "session": session,
        "expected": None,
        "pinned": {},
    }
    rows.append(row)
    return row


def picture(rows: list[Row], root: int | None, most: int) -> dict[str, Any] | None:
    """Aggregate rows for drawing, by the contract of ``GET /radix_tier/tree``; None for a root that does not exist."""
    by_node = {row["node"]: row for row in rows}
    if root is not None and root not in by_node:
        return None
    children, below = _sums(rows)
    items = [] if root is None else [_item(by_node[root], below)]
    queue = children[root]
    while queue:
        layer = sorted(queue, key=lambda row: -below[row["node"]]["tokens"])
        room = max(0, (most - len(items)) * 2 // 3)
        shown, rest = layer[:room], layer[room:]
        items += [_item(row, below) for row in shown]
        items += _merged(rest, below, len(items), most)
        queue = [child for row in shown for child in children[row["node"]]]
    path: list[Row] = []
    at = root
    while at is not None:
        path.append(by_node[at])
        at = by_node[at]["parent"]
    used = sorted(rows, key=lambda row: -row["last_used"])
    return {
        "taken": NOW,
        "total_nodes": len(rows),
        "root": root,
        "path": path[::-1],
        "nodes": items,
        "hottest": sorted(rows, key=lambda row: (-row["hits"], -row["last_used"]))[:20],
        "coldest": used[:-21:-1],
    }


def _sums(rows: list[Row]) -> tuple[dict[int | None, list[Row]], dict[int, dict[str, int]]]:
    children: dict[int | None, list[Row]] = defaultdict(list)
    below = {row["node"]: {"nodes": 1, **{name: row[name] for name in AMOUNTS}} for row in rows}
    for row in rows:
        children[row["parent"]].append(row)
    for row in reversed(rows):  # children come after their parents
        if row["parent"] is not None:
            for name, amount in below[row["node"]].items():
                below[row["parent"]][name] += amount
    return children, below


def _item(row: Row, below: dict[int, dict[str, int]]) -> Row:
    return row | {"below": below[row["node"]], "merged": 0}


def _merged(rest: list[Row], below: dict[int, dict[str, int]], have: int, most: int) -> list[Row]:
    """One item per parent, as long as there is room."""
    groups: dict[int | None, list[Row]] = defaultdict(list)
    for row in rest:
        groups[row["parent"]].append(row)
    found = []
    for parent, group in list(groups.items())[: max(0, most - have)]:
        sums = {name: sum(row[name] for row in group) for name in (*AMOUNTS, "lost", "hits")}
        whole = {name: sum(below[row["node"]][name] for row in group) for name in ("nodes", *AMOUNTS)}
        found.append(
            group[0]
            | sums
            | {
                "node": -1 - have - len(found),
                "parent": parent,
                "last_used": max(row["last_used"] for row in group),
                "session": None,
                "below": whole,
                "merged": len(group),
            }
        )
    return found
