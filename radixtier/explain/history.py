"""What the last requests were served from, and why the rest was computed again.

Owns the records. Invariant: at most `most` of them, each of bounded size: :data:`MOST_CAUSES` causes,
:data:`MOST_HINTS` hints and names cut to :data:`MOST_NAME` characters, about 2 KiB in all as a rule. Scheduler thread
only.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import islice
from typing import Any, NamedTuple

MOST = 4096
MOST_CAUSES = 16
MOST_HINTS = 16
MOST_NAME = 256


class Reason(Enum):
    """Why tokens were computed although they, or others like them, might have been served."""

    NEVER_SEEN = "never seen"
    EVICTED = "evicted"
    """Forgotten by all tiers; the cause says when, and by which rule."""
    LOST = "lost"
    """A read failed or a checksum was wrong, or the drive failed while DRAM was needed."""
    NOT_WORTH_WAITING = "not worth waiting for"
    """Computing was faster than reading."""
    DECLINED = "declined"
    """A budget was used up; the cause says which."""
    ALWAYS = "always computed"
    """The last token of a prompt, and what shares its page."""


class Cause(NamedTuple):
    """Why some tokens of a request were computed."""

    reason: Reason
    tokens: int
    detail: str = ""
    when: float | None = None
    """For EVICTED: Unix seconds."""
    rule: str = ""
    """For EVICTED: the rule that chose them."""


@dataclass(slots=True)
class RequestRecord:
    """One request, filled in while it is admitted.

    Attributes
    ----------
    rid : str
        The id that the client or SGLang gave it.
    session : str or None
        Its session.
    arrived : float
        Unix seconds.
    waited_s : float
        Seconds that its admission waited for NVMe.
    prompt_tokens : int
        Length of the prompt.
    hbm, dram, nvme : int
        Tokens served from each tier, where they were when the request came.
    causes : list of Cause
        Why the others were computed; see :meth:`because`.
    hints : list of mapping
        Outcomes of the hints it carried, as plain data.
    counted : Counter or None
        Tokens by reason that the totals have; None until it has ended.
    """

    rid: str
    session: str | None = None
    arrived: float = 0.0
    waited_s: float = 0.0
    prompt_tokens: int = 0
    hbm: int = 0
    dram: int = 0
    nvme: int = 0
    causes: list[Cause] = field(default_factory=list)
    hints: list[Mapping[str, Any]] = field(default_factory=list)
    counted: Counter[Reason] | None = None

    @property
    def recomputed(self) -> int:
        """Tokens of the prompt that no tier served."""
        return max(0, self.prompt_tokens - self.hbm - self.dram - self.nvme)

    def because(self, reason: Reason, tokens: int, detail: str = "", when: float | None = None, rule: str = "") -> None:
        """Add a cause for ``tokens`` recomputed tokens; equal ones are added up.

        When there are :data:`MOST_CAUSES`, the tokens go to the last one of the same reason, else to the last one.
        """
        if tokens <= 0:
            return
        new = Cause(reason, tokens, detail[:MOST_NAME], when, rule[:MOST_NAME])
        same = [i for i, old in enumerate(self.causes) if old._replace(tokens=tokens) == new]
        if not same and len(self.causes) < MOST_CAUSES:
            self.causes.append(new)
            return
        same = same or [i for i, old in enumerate(self.causes) if old.reason is reason] or [-1]
        self.causes[same[-1]] = self.causes[same[-1]]._replace(tokens=self.causes[same[-1]].tokens + tokens)


class History:
    """The last ``most`` requests, by id; a later one with the same id takes the place of the earlier."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._records: OrderedDict[str, RequestRecord] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: RequestRecord) -> None:
        """Add a record, which the caller does not change any more."""
        key = record.rid[:MOST_NAME]
        session = None if record.session is None else record.session[:MOST_NAME]
        record = replace(
            record, rid=key, session=session, causes=record.causes[:MOST_CAUSES], hints=record.hints[:MOST_HINTS]
        )
        self._records.pop(key, None)
        self._records[key] = record
        while len(self._records) > self._most:
            self._records.popitem(last=False)

    def find(self, rid: str) -> RequestRecord | None:
        """Return the latest record of a request."""
        return self._records.get(rid[:MOST_NAME])

    def latest(self, limit: int) -> list[RequestRecord]:
        """Return up to ``limit`` records, the latest first."""
        return list(islice(reversed(self._records.values()), max(0, limit)))

    def clear(self) -> None:
        """Forget all requests."""
        self._records.clear()
