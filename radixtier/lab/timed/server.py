"""SGLang's scheduler in virtual time, around the cache that it calls.

Owns the clock, the queue of those who wait, and who runs. The laws:

- first come, first served; whoever waits for pages from NVMe is passed over until they are up or the deadline is over;
- prefill goes before decode, in batches of a chunk of tokens; a longer prompt goes on in the next batch;
- a batch takes what :class:`~radixtier.policy.prefill.PrefillCost` says under the true rates, or what its loads from
  DRAM take, if that is longer: layers are loaded under the forward pass;
- everybody who decodes gets a token in a step of ``decode_s``, whatever their number;
- a request is admitted if its whole answer has room as well, so that nobody has to be retracted.

The scheduler looks at the tiers before each batch and each step; an idle one looks when something is over, and at
least every :data:`SLEEP_S`. One thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from radixtier.lab.rates import Rates
from radixtier.lab.timed.cache import TimedCache
from radixtier.lab.timed.clock import Clock
from radixtier.lab.timed.source import Source
from radixtier.lab.timed.turn import Turn
from radixtier.policy.prefill import PrefillCost

SLEEP_S = 1.0
"""Between two looks of an idle scheduler."""

STEP_S = 0.0005
"""Between two looks while requests wait for pages and nobody runs."""


class TimedServer:
    """The scheduler.

    Parameters
    ----------
    cache
        Its cache.
    clock
        That this server turns.
    rates
        Of the machine.
    chunk_tokens
        Of a batch of prefill.
    """

    def __init__(self, cache: TimedCache, clock: Clock, rates: Rates, chunk_tokens: int) -> None:
        self.cache = cache
        self.busy_s = 0.0
        """Seconds of prefill and decode."""
        self._clock = clock
        self._rates = rates
        self._chunk = chunk_tokens
        self._cost = PrefillCost(rates.prefill)
        self._waiting: list[Turn] = []
        self._running: list[Turn] = []
        self._unfinished: Turn | None = None
        """Whose prompt was longer than the last batch."""

    def serve(self, source: Source) -> Iterator[Turn]:
        """Serve every request; yields each when its answer is complete, or when it was refused."""
        while source.next_time < math.inf or self._waiting or self._running or self._unfinished:
            for turn in source.arrived(self._clock.now):
                if turn.pages_for(turn.input_tokens + turn.output_tokens) + 2 > self.cache.tree.capacity:
                    turn.refused, turn.ended = True, self._clock.now
                    source.ended(turn)
                    yield turn
                    continue
                self.cache.arrive(turn)
                self._waiting.append(turn)
            self.cache.tick(not (self._waiting or self._running or self._unfinished))
            batch = self._batch()
            if batch:
                over = self._prefill(batch)
            elif self._running:
                over = self._decode(source.next_time)
            else:
                self._idle(source.next_time)
                continue
            for turn in over:
                source.ended(turn)
                yield turn

    # ---- prefill ------------------------------------------------------------------------------------

    def _batch(self) -> list[tuple[Turn, int]]:
        """Choose who is prefilled next, and up to which token."""
        batch: list[tuple[Turn, int]] = []
        left = self._chunk
        if self._unfinished is not None:
            left = self._take(batch, self._unfinished, left)
            self._unfinished = None
        reserved = sum(self._still(turn) for turn in self._running) + sum(self._still(turn) for turn, _ in batch)
        for turn in list(self._waiting):
            if left < turn.page_tokens:
                break
            admitted = self.cache.admit(turn, reserved)
            if admitted is None:
                break
            if admitted:
                self._waiting.remove(turn)
                left = self._take(batch, turn, left)
                reserved += self._still(turn)
        return batch

    def _take(self, batch: list[tuple[Turn, int]], turn: Turn, left: int) -> int:
        end = min(turn.input_tokens, turn.computed + left)
        left -= end - turn.computed
        if end < turn.input_tokens:
            # Only whole pages go into the tree between two chunks, and nobody else begins behind one that is cut.
            end -= end % turn.page_tokens
            left = 0
        self.cache.extend(turn, end)
        batch.append((turn, end))
        return left

    def _still(self, turn: Turn) -> int:
        """Pages that a request may still need."""
        return turn.pages_for(turn.input_tokens + turn.output_tokens) + 1 - turn.inserted - turn.held

    def _prefill(self, batch: list[tuple[Turn, int]]) -> list[Turn]:
        work = [(end - turn.computed, turn.computed) for turn, end in batch]
        seconds = self._cost.batch_seconds(work)
        loading = sum(len(turn.loading) for turn, _ in batch) * self.cache.page_bytes
        if loading:
            copied = loading / self._rates.copy
            self.cache.copies.observe(loading, copied)
            seconds = max(seconds, copied)
        self.cache.prefill.cost.observe(work, seconds)
        self._clock.now += seconds
        self.busy_s += seconds
        over: list[Turn] = []
        for turn, end in batch:
            self.cache.loaded(turn)
            turn.computed = end
            if end < turn.input_tokens:
                self._unfinished = turn
                self.cache.insert(turn, end)
                continue
            turn.first_token = self._clock.now
            turn.answered = 1
            if turn.output_tokens == 1:
                self.cache.insert(turn, turn.input_tokens, last=True)
                over.append(turn)
            else:
                self.cache.insert(turn, turn.input_tokens)
                self._running.append(turn)
        return over

    # ---- decode -------------------------------------------------------------------------------------

    def _decode(self, arrival: float) -> list[Turn]:
        """Decode until somebody is done or something happens, a step at least."""
        step = self._rates.decode_s
        steps = min(turn.output_tokens - turn.answered for turn in self._running)
        if self._waiting:
            steps = 1
        else:
            until = min(arrival, self.cache.next_event, self._clock.now + SLEEP_S) - self._clock.now
            steps = max(1, min(steps, math.ceil(until / step)))
        self._clock.now += steps * step
        self.busy_s += steps * step
        over: list[Turn] = []
        for turn in self._running:
            turn.answered += steps
            # The last token of an answer is never fed to the model, so its KV does not exist.
            self.cache.extend(turn, turn.input_tokens + turn.answered - 1)
            if turn.answered >= turn.output_tokens:
                over.append(turn)
        for turn in over:
            self._running.remove(turn)
            self.cache.insert(turn, turn.input_tokens + turn.output_tokens - 1, last=True)
        return over

    # ---- idle ---------------------------------------------------------------------------------------

    def _idle(self, arrival: float) -> None:
        now = self._clock.now
        event = self.cache.next_event
        if self._waiting:
            event = min(event, now + STEP_S)
        self._clock.now = max(now + 1e-6, min(arrival, event, now + SLEEP_S))
