"""One request as its client saw it.

Owns the times, which are the client's; everything else was reported by the server. Immutable, any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias, cast

Piece: TypeAlias = "tuple[int, ...] | str"
"""A part of a prompt: token ids for a server that takes them, else text; see :func:`joined`."""

TIERS = ("hbm", "dram", "nvme")

MAIN_SHARE = 0.9
"""A prompt counts as served by a tier when at least this share of it came from there."""

LEAST_SHARE = 0.1
"""Less than this share of a prompt is no prefix that is worth the name: a system message, a template."""


def joined(*parts: Piece) -> Piece:
    """Put parts of one kind behind each other; one at least."""
    if isinstance(parts[0], str):
        return "".join(str(part) for part in parts)
    return cast("tuple[int, ...]", tuple(chain.from_iterable(parts)))


@dataclass(frozen=True)
class Cached:
    """Tokens of a prompt by the tier that delivered them."""

    hbm: int = 0
    dram: int = 0
    nvme: int = 0

    @property
    def total(self) -> int:
        """Tokens that were not computed."""
        return self.hbm + self.dram + self.nvme


@dataclass(frozen=True)
class Answer:
    """One answered, cut or failed request.

    Attributes
    ----------
    started_s
        When it was sent, on the clock of ``time.perf_counter``.
    ttft_s, total_s
        Seconds from sending it to the first piece of the answer, and to its end; what a failed one has is the time
        until it failed.
    gaps_s
        Seconds between successive pieces of the answer: inter-token latencies where the server tells its tokens, times
        between events otherwise. Pieces that come at once share the time since the one before.
    prompt_tokens, output_tokens
        As the server counts them; 0 where it did not say.
    cached
        By tier; None where the server does not tell. A server that only tells how many tokens were cached in all has
        them under ``hbm`` and ``split`` false.
    split
        Whether the server told the tiers apart.
    output
        What was answered, in the kind of the prompt.
    error
        Why it failed; "" if it did not. A request that was cut on purpose did not fail.
    cut
        Whether the client hung up on purpose.
    """

    started_s: float
    ttft_s: float
    total_s: float
    gaps_s: tuple[float, ...] = ()
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached: Cached | None = None
    split: bool = True
    output: Piece = ()
    error: str = ""
    cut: bool = False

    @property
    def ok(self) -> bool:
        """Whether it was answered to the end."""
        return not self.error and not self.cut

    @property
    def source(self) -> str:
        """Where the prompt came from.

        ``recompute`` (no cached token), a tier of :data:`TIERS`, ``mixed``, ``cached`` (the server does not tell which
        tier), or ``unknown`` (it does not tell anything).
        """
        if self.cached is None:
            return "unknown"
        if self.cached.total == 0:
            return "recompute"
        if not self.split:
            return "cached"
        name, tokens = max(((tier, getattr(self.cached, tier)) for tier in TIERS), key=lambda pair: pair[1])
        return name if tokens >= MAIN_SHARE * self.prompt_tokens else "mixed"

    @property
    def prefix(self) -> str:
        """Where what was not computed came from, however much of the prompt that was.

        The names are those of :attr:`source`: ``recompute`` where it was less than :data:`LEAST_SHARE` of the prompt, a
        tier where that delivered :data:`MAIN_SHARE` of it, otherwise ``mixed``.
        """
        if self.cached is None:
            return "unknown"
        total = self.cached.total
        if total == 0 or total < LEAST_SHARE * self.prompt_tokens:
            return "recompute"
        if not self.split:
            return "cached"
        return next((tier for tier in TIERS if getattr(self.cached, tier) >= MAIN_SHARE * total), "mixed")
