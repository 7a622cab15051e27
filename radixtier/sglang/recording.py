"""Records the server's load as a trace for the lab, without any token, text or name in it.

Owns the trace file, what a request in flight needs until its end, and the numbers of sessions. The format is
:mod:`radixtier.lab.traces.recording`. The laws:

- keys of pages are chained as those of the store, but from a salt of this file that is written nowhere: nobody can
  tell from the file whether a known prompt was sent, two files share no key, and neither do two namespaces;
- arrival is the first match of a request, admission its first one, with the tokens of its prompt that it got from
  each tier, counted where they were when it came (what it was prefilled with again after a retraction does not count);
- the end lists what went into the tree: pages of prompt and answer without the answer's last token;
- a session is what the client says it is, or else a request continues the one that ended with the longest part of its
  path. Two conversations that ended on the same page, such as one that only a system prompt fills, are taken for one;
- a recording that cannot be written ends with one warning, and so does one that is longer than :data:`MOST_BYTES` or
  whose file was moved away; the server goes on.

Where it is wrong: SGLang matches less of a prompt whose input logprobs are asked for, and keeps less of an answer whose
reasoning it strips; the first looks like a miss, the second like a shorter answer's pages. What is not in the trace at
all: flushes, and what the tiers held when it began.

Cost on the scheduler thread: one hash per page of the prompt at its arrival and of the answer at its end, and one line
of text per event. The arrival of a new prompt takes 0.07 ms for 2,000 tokens and 1.1 ms for 32,000 at 64 tokens a page,
0.2 ms and 3 to 7 ms at 16 a page; that of a known one half to two thirds of it; the rest of a request 0.1 ms
(``python -m radixtier.sglang.bench_recording``, two shared cores). Pages of one token cost 64 times as many hashes:
100 ms for 32,000 tokens. Scheduler thread only.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import numpy as np
import numpy.typing as npt
from sglang.srt.constants import HEALTH_CHECK_RID_PREFIX

from radixtier.explain import RequestRecord
from radixtier.identity import DIGEST_BYTES, chain, namespace_seed
from radixtier.lab.traces.recording import Header, TraceWriter

logger = logging.getLogger(__name__)

MOST_BYTES = 4 << 30
"""Longest recording, as far as one look per :data:`FLUSH_S` can tell."""

FLUSH_S = 1.0
"""Longest that an event stays in memory; a server that is killed loses no more than that."""

MOST_IN_FLIGHT = 65536
"""Requests on their way; more than that only after errors."""

MOST_SESSIONS = 65536
"""Sessions that are recognised again, those with a name and those without; the one seen longest ago is forgotten."""

Keys = npt.NDArray[np.uint64]

P = ParamSpec("P")


@dataclass(slots=True)
class _Flight:
    """A request between arrival and end."""

    number: int
    session: int
    tokens: int
    """Of the prompt."""
    keys: Keys
    """Of the prompt's whole pages."""
    front: bytes
    """What the chain goes on from behind them."""


class Sessions:
    """Numbers of sessions, in the order of their first request."""

    def __init__(self, salt: bytes, most: int = MOST_SESSIONS) -> None:
        self._salt = salt
        self._most = most
        self._numbers = 0
        self._named: OrderedDict[bytes, int] = OrderedDict()
        self._ends: OrderedDict[int, int] = OrderedDict()
        """By the key of the last page that a turn ended with."""

    def number(self, name: str | None, keys: Keys) -> int:
        """Return the session that a request belongs to, by the client's name for it or by the keys of its prompt."""
        if name is None:
            return self._continued(keys)
        digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES, key=self._salt).digest()
        number = self._named.get(digest)
        number = self._new() if number is None else number
        self._keep(self._named, digest, number)
        return number

    def ended(self, number: int, keys: Keys) -> None:
        """A turn of a session ended with a path."""
        if len(keys):
            self._keep(self._ends, int(keys[-1]), number)

    def _continued(self, keys: Keys) -> int:
        for key in reversed(keys.tolist()):
            number = self._ends.get(key)
            if number is not None:
                self._ends.move_to_end(key)
                return number
        return self._new()

    def _new(self) -> int:
        self._numbers += 1
        return self._numbers - 1

    def _keep(self, numbers: OrderedDict[Any, int], key: Any, number: int) -> None:
        numbers[key] = number
        numbers.move_to_end(key)
        if len(numbers) > self._most:
            numbers.popitem(last=False)


def _never_raises(method: Callable[Concatenate[Recording, P], None]) -> Callable[Concatenate[Recording, P], None]:
    """Do nothing once the recording is over, and end it when it fails."""

    def guarded(self: Recording, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if self.over:
            return
        try:
            method(self, *args, **kwargs)
        except OSError as error:
            self.stop(f"{self.file} cannot be written ({error.strerror})")
        except Exception:  # a trace that ends early is legal, the end of the scheduler is not
            logger.exception("radixtier: a request cannot be recorded")
            self.stop("that is an error of radixtier, please report it")

    functools.update_wrapper(guarded, method)
    return guarded


class Recording:
    """The recording of one cache.

    Parameters
    ----------
    cache
        The :class:`~radixtier.sglang.cache.RadixTierCache`, built.
    file
        Where to; nothing may be there.
    eviction, admission, write_budget
        As the server runs them, for the header.
    ranks
        That hold a part of each page.
    clock
        Seconds.

    Raises
    ------
    OSError
        When the file cannot be made, `FileExistsError` when there is one.
    """

    def __init__(
        self,
        cache: Any,
        file: Path,
        *,
        eviction: str | None = None,
        admission: str | None = None,
        write_budget: str | None = None,
        ranks: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.file = file
        table = cache.mover.table
        self._page_tokens: int = cache.page_size
        header = Header(
            page_tokens=cache.page_size,
            page_bytes=cache.mover.page_bytes * ranks,
            hbm_pages=cache.token_to_kv_pool_allocator.size // cache.page_size,
            dram_pages=table.n_frames,
            nvme_pages=table.n_handles - table.n_frames,
            eviction=eviction,
            admission=admission,
            write_budget=write_budget,
        )
        self._writer = TraceWriter(file, header)
        self._clock = clock
        self._began = self._flushed = clock()
        self._salt = os.urandom(DIGEST_BYTES)
        self._sessions = Sessions(self._salt)
        self._numbers = 0
        self._flights: OrderedDict[str, _Flight] = OrderedDict()
        self.over = False
        """Whether nothing is recorded any more."""
        logger.info("radixtier: the load is recorded in %s, without any of its text", file)

    @_never_raises
    def arrived(self, req: Any) -> None:
        """SGLang matches a request; its first match is its arrival."""
        if req.rid in self._flights or req.rid.startswith(HEALTH_CHECK_RID_PREFIX):
            return
        tokens = req.origin_input_ids
        seed = namespace_seed(req.extra_key, req.cache_salt)
        if getattr(req, "skip_radix_cache_insert", False):  # its tokens do not tell its KV: nothing is shared
            seed = os.urandom(DIGEST_BYTES)
        front = blake2b(seed, digest_size=DIGEST_BYTES, key=self._salt).digest()
        keys, front = self._keys(front, tokens)
        flight = _Flight(self._numbers, self._sessions.number(req.session_id, keys), len(tokens), keys, front)
        self._numbers += 1
        self._flights[req.rid] = flight
        self._writer.arrive(self._now, flight.number, flight.session, flight.tokens, keys)
        if len(self._flights) > MOST_IN_FLIGHT:
            self._writer.abort(self._now, self._flights.popitem(last=False)[1].number)

    @_never_raises
    def admitted(self, record: RequestRecord) -> None:
        """A request is admitted with the hit that its record tells, the first time."""
        flight = self._flights.get(record.rid)
        if flight is not None:
            self._writer.start(self._now, flight.number, record.hbm, record.dram, record.nvme)

    @_never_raises
    def ended(self, req: Any, kept_tokens: int) -> None:
        """A request has ended; the tree was given its first ``kept_tokens`` tokens."""
        flight = self._flights.pop(req.rid, None)
        if flight is None:
            return
        size, output = self._page_tokens, len(req.output_ids)
        # The last token of an answer was never computed.
        pages = min(kept_tokens, flight.tokens + output - 1) // size
        first = len(flight.keys)
        keys = flight.keys[:pages]
        if pages > first:
            more, _ = self._keys(flight.front, req.full_untruncated_fill_ids[first * size : pages * size])
            keys = np.concatenate((keys, more))
        self._sessions.ended(flight.session, keys)
        self._writer.end(self._now, flight.number, output, keys)

    @_never_raises
    def aborted(self, rid: str) -> None:
        """A request is gone; nothing to do for one that has ended."""
        flight = self._flights.pop(rid, None)
        if flight is not None:
            self._writer.abort(self._now, flight.number)

    @_never_raises
    def forget(self) -> None:
        """The cache forgets all requests: no end of those on their way will be seen."""
        while self._flights:
            self._writer.abort(self._now, self._flights.popitem(last=False)[1].number)

    @_never_raises
    def step(self) -> None:
        """Once per scheduler step: see that nothing stays in memory for long, and that the file is in its bounds."""
        now = self._clock()
        if now - self._flushed < FLUSH_S:
            return
        self._flushed = now
        self._writer.flush()
        if not self.file.exists():
            self.stop(f"{self.file} was moved away")
        elif self.file.stat().st_size >= MOST_BYTES:
            self.stop(f"{self.file} has {MOST_BYTES >> 30} GiB, which is the most for one")

    def close(self) -> None:
        """The server stops."""
        self.stop(None)

    def stop(self, why: str | None) -> None:
        """End the recording, with a warning if there is a reason."""
        if self.over:
            return
        self.over = True
        self._flights.clear()
        try:
            self._writer.close()
        except OSError as error:
            why = why or f"{self.file} cannot be written ({error.strerror})"
        if why is not None:
            logger.warning("radixtier: the recording ends here: %s. What was written can be replayed", why)

    @property
    def _now(self) -> float:
        return self._clock() - self._began

    def _keys(self, front: bytes, tokens: Any) -> tuple[Keys, bytes]:
        """Return the keys of all whole pages behind one, and what the chain goes on from."""
        digests = chain(front, tokens, self._page_tokens)
        if not len(digests):
            return np.empty(0, np.uint64), front
        return digests[:, :8].copy().view("<u8").ravel(), digests[-1].tobytes()
