"""Talks to any server with OpenAI's completions or chat completions, in text.

Owns what such a server can be told and how long its words are: both are found out once, by :func:`learn`. Invariant:
see :class:`radixtier.load.target.Target`. Any thread, many at once.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from radixtier.live.client import Client, Refused, RequestFailed
from radixtier.live.text import journal
from radixtier.load.answer import Answer, Cached, Piece
from radixtier.load.hearing import Event, listen
from radixtier.load.target import by_tier

COMPLETIONS, CHAT = "openai", "chat"

SAID = "\x1e"
"""In the text of a chat, around what the assistant said."""

WORDS = (40, 240)
"""Lengths of the prompts by which words are measured."""

TOKENS_PER_WORD = 1.4
"""Where the server counts no tokens."""

_REFUSALS = (400, 422)


@dataclass(frozen=True)
class Manners:
    """What the server takes and tells.

    Attributes
    ----------
    limit
        Name of the field with the most tokens of an answer.
    extras
        Fields of every request beyond OpenAI's oldest.
    tokens_per_word
        As it counts them.
    tells_tiers
        Whether it tells where a prefix came from; then it tells nothing where there was none.
    """

    limit: str = "max_tokens"
    extras: tuple[tuple[str, Any], ...] = ()
    tokens_per_word: float = TOKENS_PER_WORD
    tells_tiers: bool = False


_USAGE = ("stream_options", {"include_usage": True})
_ON = ("ignore_eos", True)


class OpenAITarget:
    """One model of one server.

    A chat is the text of all its turns; what the assistant said stands between two :data:`SAID`, so that it is sent
    back as the assistant's, which an answer of this target has around it. A chat with scripted answers is one message.

    Parameters
    ----------
    client
        Of the server.
    model
        As the server calls it.
    chat
        Whether to chat: ``/v1/chat/completions`` instead of ``/v1/completions``.
    sglang
        Whether it is SGLang, which tells the tiers and takes names of sessions.
    manners
        See :func:`learn`.
    """

    def __init__(
        self, client: Client, model: str, *, chat: bool, sglang: bool = False, manners: Manners | None = None
    ) -> None:
        self.url = client.url
        self.client = client
        self.model = model
        self.api = CHAT if chat else COMPLETIONS
        self.manners = manners or Manners()
        self._sglang = sglang
        self.path = "/v1/chat/completions" if chat else "/v1/completions"
        self._vocabulary = sorted({word.lower() for word in journal(0, 4000).split() if word.isalpha()})

    def piece(self, tokens: int, number: int) -> str:
        """Return words that are about ``tokens`` long, one at least; see :meth:`Target.piece`."""
        return self.words(max(1, round(tokens / self.manners.tokens_per_word)), number)

    def words(self, count: int, number: int) -> str:
        """Return so many words, a space in front of each."""
        return "".join(f" {word}" for word in random.Random(number).choices(self._vocabulary, k=count))

    def body(self, prompt: Piece, answer_tokens: int) -> dict[str, Any]:
        """Return a request."""
        body: dict[str, Any] = {"model": self.model, "temperature": 0, "stream": True}
        body |= {self.manners.limit: answer_tokens, **dict(self.manners.extras)}
        return body | ({"messages": _messages(str(prompt))} if self.api == CHAT else {"prompt": prompt})

    def ask(
        self,
        prompt: Piece,
        answer_tokens: int,
        *,
        session: str | None = None,
        rid: str | None = None,
        cut_after: int | None = None,
    ) -> Answer:
        """See :meth:`Target.ask`."""
        chat = self.api == CHAT
        body = self.body(prompt, answer_tokens)
        if self._sglang:
            body |= {"return_cached_tokens_details": True}
            body |= {} if session is None else {"session_id": session}
            body |= {} if rid is None else {"rid": rid}
        text: list[str] = []
        usage: dict[str, Any] = {}
        details: dict[str, Any] | None = {} if self.manners.tells_tiers else None

        def understand(event: Event) -> int:
            nonlocal usage, details
            usage = event.get("usage") or usage
            details = (event.get("sglext") or {}).get("cached_tokens_details") or details
            said, thought = "", ""
            for choice in event.get("choices") or ():
                delta = (choice.get("delta") or {}) if chat else {"content": choice.get("text")}
                said += delta.get("content") or ""
                thought += delta.get("reasoning_content") or ""
            text.append(said)
            return 1 if said or thought else 0

        heard = listen(self.client, self.path, body, understand, cut_after)
        whole = "".join(text)
        return Answer(
            started_s=heard.started_s,
            ttft_s=heard.ttft_s,
            total_s=heard.total_s,
            gaps_s=heard.gaps_s,
            prompt_tokens=usage.get("prompt_tokens") or 0,
            output_tokens=usage.get("completion_tokens") or heard.pieces,
            cached=_cached(usage) if details is None else by_tier(details),
            split=details is not None,
            output=SAID + whole.replace(SAID, "") + SAID if chat else whole,
            error=heard.error,
            cut=heard.cut,
        )


def learn(client: Client, model: str, *, chat: bool, sglang: bool = False) -> OpenAITarget:
    """Find out what a server can be told, and how many tokens a word has.

    Asks for one token with all fields that are of use; a server that refuses is asked again with fewer.

    Raises
    ------
    RequestFailed
        It does not answer in any of these ways; the text is what it said last.
    """
    tries = [
        Manners("max_tokens", (_USAGE, _ON)),
        Manners("max_tokens", (_USAGE,)),
        *([Manners("max_completion_tokens", (_USAGE,))] if chat else []),
        Manners("max_tokens"),
    ]
    for manners in tries:
        target = OpenAITarget(client, model, chat=chat, sglang=sglang, manners=manners)
        try:
            for _ in client.stream(target.path, target.body(target.words(4, 0), 1)):
                pass
        except Refused as refused:
            if refused.status not in _REFUSALS or manners is tries[-1]:
                raise
        else:
            return _measured(target)
    raise AssertionError("the last try returns or raises")


def _measured(target: OpenAITarget) -> OpenAITarget:
    """Measure words by two prompts, so that what a chat's template adds to both is not in the difference."""
    short, long = (target.words(count, number) for number, count in enumerate(WORDS, 1))
    # The second time, the long one is cached: a server that can tell where from does so.
    answers = [target.ask(prompt, 1) for prompt in (short, long, long)]
    for answer in answers:
        if answer.error:
            raise RequestFailed(answer.error)
    less, more, _ = (answer.prompt_tokens for answer in answers)
    if more > less > 0:
        per_word = (more - less) / (WORDS[1] - WORDS[0])
        target.manners = replace(target.manners, tokens_per_word=per_word)
    target.manners = replace(target.manners, tells_tiers=answers[-1].split)
    return target


def _messages(text: str) -> list[dict[str, str]]:
    """Cut a chat into messages: what stands at an odd place was said by the assistant."""
    parts = text.split(SAID)
    return [{"role": ("user", "assistant")[place % 2], "content": part} for place, part in enumerate(parts)]


def _cached(usage: dict[str, Any]) -> Cached | None:
    tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    return None if tokens is None else Cached(hbm=tokens)
