"""A server that can be asked: what every load needs of it, and SGLang's own protocol.

Owns the translation of a server's answer into an :class:`Answer`. Invariant: :meth:`Target.ask` never raises for what
a server or a network does; it says so in the answer. Any thread, many at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

from radixtier.live.client import Client, RequestFailed
from radixtier.load.answer import Answer, Cached, Piece


class Target(Protocol):
    """One server."""

    url: str

    def piece(self, tokens: int, number: int) -> Piece:
        """Make a part of a prompt, about or exactly ``tokens`` long; equal numbers give equal pieces."""

    def ask(
        self,
        prompt: Piece,
        answer_tokens: int,
        *,
        session: str | None = None,
        rid: str | None = None,
        cut_after: int | None = None,
    ) -> Answer:
        """Continue a prompt greedily.

        Parameters
        ----------
        prompt
            From the beginning of the conversation.
        answer_tokens
            Length of the answer; shorter only where the server cannot be told to go on after its end.
        session, rid
            Names for the conversation and the request, where the server takes them.
        cut_after
            Hang up after that many pieces of the answer.
        """


class SglangTarget:
    """Talks to ``/generate`` of an SGLang server in token ids.

    Parameters
    ----------
    url
        For example ``http://127.0.0.1:30000``.
    timeout_s
        Longest silence of the server, seconds.

    Raises
    ------
    RequestFailed, OSError
        The server does not answer.
    """

    def __init__(self, url: str, timeout_s: float = 600.0) -> None:
        self.url = url
        self.client = Client(url, timeout_s)
        self._vocabulary: tuple[int, ...] = ()

    def piece(self, tokens: int, number: int) -> tuple[int, ...]:
        """Return exactly ``tokens`` tokens of words; equal numbers give equal pieces, others share no page."""
        import random

        from radixtier.live.text import journal

        if not self._vocabulary:
            self._vocabulary = tuple(sorted(set(self.client.tokenize(journal(0, 4000)))))
        return tuple(random.Random(number).choices(self._vocabulary, k=tokens))

    def ask(
        self,
        prompt: Piece,
        answer_tokens: int,
        *,
        session: str | None = None,
        rid: str | None = None,
        cut_after: int | None = None,
    ) -> Answer:
        """See :meth:`Target.ask`; a request that is cut is aborted by the server."""
        sampling = {"temperature": 0, "max_new_tokens": answer_tokens, "ignore_eos": True}
        body: dict[str, Any] = {"sampling_params": sampling, "stream": True}
        body |= {"text": prompt} if isinstance(prompt, str) else {"input_ids": list(prompt)}
        body |= {} if session is None else {"session_id": session}
        body |= {} if rid is None else {"rid": rid}
        started = time.perf_counter()
        times: list[float] = []
        event: dict[str, Any] = {}
        error, cut = "", False
        stream = self.client.stream("/generate", body)
        try:
            for event in stream:  # noqa: B007 the last event says it all
                times.append(time.perf_counter())
                if cut_after is not None and len(times) >= cut_after:
                    cut = True
                    break
        except (RequestFailed, OSError) as failure:
            error = str(failure) or type(failure).__name__
        finally:
            stream.close()
        ended = time.perf_counter()
        meta = event.get("meta_info", {})
        return Answer(
            started_s=started,
            ttft_s=(times[0] if times else ended) - started,
            total_s=ended - started,
            gaps_s=_gaps(times),
            prompt_tokens=meta.get("prompt_tokens", 0),
            output_tokens=meta.get("completion_tokens", 0),
            cached=_cached(meta),
            split="cached_tokens_details" in meta,
            output=_output(event, prompt),
            error=error,
            cut=cut,
        )


def _gaps(times: Sequence[float]) -> tuple[float, ...]:
    return tuple(later - earlier for earlier, later in pairwise(times))


def _cached(meta: dict[str, Any]) -> Cached | None:
    details = meta.get("cached_tokens_details")
    if details is not None:
        return Cached(details.get("device", 0), details.get("host", 0), details.get("storage") or 0)
    return Cached(hbm=meta["cached_tokens"]) if "cached_tokens" in meta else None


def _output(event: dict[str, Any], prompt: Piece) -> Piece:
    return str(event.get("text", "")) if isinstance(prompt, str) else tuple(event.get("output_ids", ()))
