"""Where a prompt came from, apart from what it has in common with all others.

Owns that law: a shared part, such as a system prompt, is in the fastest tier that has any of the prompt, since others
used it a moment ago. Pure functions, any thread.
"""

from __future__ import annotations

from dataclasses import replace

from radixtier.gate.profiles import Returning
from radixtier.load.answer import Answer, Cached


def own_cached(cached: Cached, shared: int) -> Cached:
    """Return the cached tokens by tier without the first ``shared`` tokens of the prompt."""
    left = {}
    for tier in ("hbm", "dram", "nvme"):
        tokens = getattr(cached, tier)
        taken = min(tokens, shared)
        left[tier], shared = tokens - taken, shared - taken
    return Cached(**left)


def own_source(load: Returning, answer: Answer) -> str:
    """Return where what only this conversation has came from, as `Answer.source` names it."""
    if answer.cached is None or not load.shared:
        return answer.source
    own = own_cached(answer.cached, load.shared)
    return replace(answer, cached=own, prompt_tokens=max(0, answer.prompt_tokens - load.shared)).source
