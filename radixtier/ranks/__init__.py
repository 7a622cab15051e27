"""Ranks of one server that decide alike: what they agree on, and how.

Every rank of a tensor parallel group has a tree, a table and a store of its own, and SGLang has all of them take the
same steps. What would differ is what a machine adds: when a transfer ends and how, what time it is, how long something
took, how much room a drive has. Here that becomes the same everywhere, by one small reduction per step (the minimum
over the ranks of a vector of integers), and none where nothing is pending. Nothing in here decides anything.
"""

from radixtier.ranks.agreed_store import AgreedStore
from radixtier.ranks.agreement import Agreement, Alone, Group, Ranks, Section
from radixtier.ranks.completions import Completion, Completions
from radixtier.ranks.shared_store import SharedStore
from radixtier.ranks.words import Words

__all__ = [
    "AgreedStore", "Agreement", "Alone", "Completion", "Completions", "Group", "Ranks", "Section",
    "SharedStore", "Words",
]  # fmt: skip
