"""Finds out what kind of server answers at a URL.

Owns the order in which that is tried: SGLang's own protocol, where prompts are exact and every tier is told; then
OpenAI's. Any thread.
"""

from __future__ import annotations

import json
import ssl
from typing import Any, Literal, TypeAlias

from radixtier.live.client import Client, Refused, RequestFailed
from radixtier.load.openai import CHAT, COMPLETIONS, OpenAITarget, learn
from radixtier.load.target import SglangTarget

Api = Literal["auto", "sglang", "openai", "chat"]
APIS: tuple[Api, ...] = ("auto", "sglang", "openai", "chat")

Found: TypeAlias = "SglangTarget | OpenAITarget"

DETECT_S = 30.0
"""Longest silence of a server that is asked what it is, seconds."""

_INFO = ("/server_info", "/get_server_info")


class NoTarget(RuntimeError):
    """No server that can be asked; one line that says why and what to do."""


def connect(
    url: str, *, api: Api = "auto", model: str | None = None, api_key: str = "", timeout_s: float = 600.0
) -> Found:
    """Connect to a server.

    Parameters
    ----------
    url
        ``http://host:port``, also with ``/v1`` or a base path behind it.
    api
        How to talk to it; ``auto`` takes SGLang's own protocol where there is one.
    model
        Its name, for OpenAI's protocols; the first that the server lists by default.
    api_key
        "" for none.
    timeout_s
        Longest silence of the server, seconds.

    Raises
    ------
    NoTarget
        See there.
    ValueError
        The URL cannot be one of a server, in one line.
    """
    probe = Client(url, min(DETECT_S, timeout_s), api_key)
    try:
        info = _server_info(probe)
        if api == "sglang" or (api == "auto" and info is not None):
            if info is None:
                raise NoTarget(f"{url} is no SGLang server (it has no {_INFO[0]}). Use --api openai or --api chat.")
            target = SglangTarget(url, timeout_s, api_key)
            target.model = model or str(info.get("served_model_name") or info.get("model_path") or "")
            try:
                target.piece(1, 0)
                return target
            except Refused as refused:
                if api == "sglang":
                    raise NoTarget(
                        f"{url} does not tokenize ({refused}), which --api sglang needs. Use --api openai."
                    ) from None
        name = model or _first_model(probe)
        return learn(Client(url, timeout_s, api_key), name, chat=api == CHAT, sglang=info is not None)
    except Refused as refused:
        raise NoTarget(f"{url}: {_advice(refused, api)}") from None
    except ssl.SSLCertVerificationError as error:
        raise NoTarget(
            f"the certificate of {url} is not trusted ({error.verify_message}). Name one that is in SSL_CERT_FILE."
        ) from None
    except ssl.SSLError as error:
        raise NoTarget(f"{url} does not speak https as it should ({error}). Is it http?") from None
    except (RequestFailed, OSError) as error:
        raise NoTarget(f"no server answers at {url} ({error}). Is it running, and is that its port?") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NoTarget(f"what answers at {url} is no server of a language model ({error!r}).") from None


def _server_info(client: Client) -> dict[str, Any] | None:
    """Return what SGLang tells of itself; None if it is another server."""
    for path in _INFO:
        try:
            info = json.loads(client.call("GET", path))
        except Refused as refused:
            if refused.status in (401, 403):
                raise
        except ValueError:
            return None
        else:
            return info if isinstance(info, dict) and "version" in info else None
    return None


def _first_model(client: Client) -> str:
    try:
        models = json.loads(client.call("GET", "/v1/models"))["data"]
    except Refused as refused:
        if refused.status in (401, 403):
            raise
        raise NoTarget(f"{client.url} lists no models ({refused}). Name one with --model.") from None
    if not models:
        raise NoTarget(f"{client.url} has no model. Name one with --model.")
    return str(models[0]["id"])


def _advice(refused: Refused, api: str) -> str:
    text = str(refused)
    if refused.status in (401, 403):
        return f"{text}. Give the key with --api-key or OPENAI_API_KEY."
    if refused.status == 404 and api != CHAT:
        return f"{text}. Does it have no {COMPLETIONS} completions? Try --api chat, and check --model."
    return f"{text}. Check --model and --api."
