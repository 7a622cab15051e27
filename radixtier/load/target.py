"""A server that can be asked: what every load needs of it, and SGLang's own protocol.

Owns the translation of a server's answer into an :class:`Answer`. Invariant: :meth:`Target.ask` never raises for what
a server or a network does; it says so in the answer. Any thread, many at once.
"""

from __future__ import annotations

import random
from typing import Any, Protocol

from radixtier.live.client import Client
from radixtier.live.text import journal
from radixtier.load.answer import Answer, Cached, Piece
from radixtier.load.hearing import Event, listen


class Target(Protocol):
    """One server."""

    url: str

    def piece(self, tokens: int, number: int) -> Piece:
        """Make a part of a prompt, about or exactly ``tokens`` long.

        Equal numbers give equal pieces, a shorter one being the beginning of a longer one; others share no page.
        """

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
    api_key
        Of the server, "" for none.

    Raises
    ------
    RequestFailed, OSError
        The server does not answer (by :meth:`piece`).
    ValueError
        It is no URL.
    """

    api = "sglang"

    def __init__(self, url: str, timeout_s: float = 600.0, api_key: str = "") -> None:
        self.url = url
        self.client = Client(url, timeout_s, api_key)
        self.model = ""
        self._vocabulary: tuple[int, ...] = ()

    def piece(self, tokens: int, number: int) -> tuple[int, ...]:
        """Return exactly ``tokens`` tokens of words; see :meth:`Target.piece`."""
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
        last: Event = {}
        output: Piece = "" if isinstance(prompt, str) else ()

        def understand(event: Event) -> int:
            nonlocal last, output
            before, last = _meta(last).get("completion_tokens", 0), event
            if isinstance(prompt, str):
                output = str(event["text"])
            else:
                # With --incremental-streaming-output an event has the new tokens alone.
                new = tuple(event["output_ids"])
                output = new if len(new) == _meta(event)["completion_tokens"] else (*output, *new)
            return int(_meta(event)["completion_tokens"]) - int(before)

        heard = listen(self.client, "/generate", body, understand, cut_after)
        meta = _meta(last)
        return Answer(
            started_s=heard.started_s,
            ttft_s=heard.ttft_s,
            total_s=heard.total_s,
            gaps_s=heard.gaps_s,
            prompt_tokens=meta.get("prompt_tokens", 0),
            output_tokens=meta.get("completion_tokens", 0),
            cached=_cached(meta),
            split=meta.get("cached_tokens_details") is not None,
            output=output,
            error=heard.error or ("" if heard.cut else _aborted(meta)),
            cut=heard.cut,
        )


def _meta(event: Event) -> dict[str, Any]:
    return event.get("meta_info") or {}


def by_tier(details: dict[str, Any]) -> Cached:
    """Return what SGLang's ``cached_tokens_details`` say."""
    return Cached(details.get("device") or 0, details.get("host") or 0, details.get("storage") or 0)


def _cached(meta: dict[str, Any]) -> Cached | None:
    if (details := meta.get("cached_tokens_details")) is not None:
        return by_tier(details)
    return Cached(hbm=meta["cached_tokens"]) if "cached_tokens" in meta else None


def _aborted(meta: dict[str, Any]) -> str:
    """Say why the server gave a request up, "" if it did not."""
    reason = meta.get("finish_reason")
    if isinstance(reason, dict) and reason.get("type") == "abort":
        return f"the server gave it up: {reason.get('message') or 'no reason told'}"
    return ""
