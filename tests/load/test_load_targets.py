"""Both dialects over HTTP: what is sent, what is understood, and every way in which an answer can fail."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from load_fakes import Behaviour, fake_server

from radixtier.live.client import Client, RequestFailed
from radixtier.load.answer import Cached
from radixtier.load.connect import NoTarget, connect
from radixtier.load.openai import SAID, OpenAITarget
from radixtier.load.target import SglangTarget

APIS = ("sglang", "openai", "chat")


@pytest.fixture
def behaviour() -> Behaviour:
    return Behaviour()


@pytest.fixture
def url(behaviour: Behaviour) -> Iterator[str]:
    with fake_server(behaviour) as url:
        yield url


def found(url: str, api: Any, **fields: Any) -> Any:
    return connect(url, api=api, timeout_s=5.0, **fields)


# ---- SGLang's own -----------------------------------------------------------------------------------


def test_sglang_answer(url: str, behaviour: Behaviour) -> None:
    behaviour.details = {"device": 1, "host": 2, "storage": 3}
    target = found(url, "auto")
    assert isinstance(target, SglangTarget) and target.model == "fake-model"
    answer = target.ask((4, 5, 6, 7, 8, 9), 4, session="s", rid="r")
    assert answer.ok and answer.output == (0, 1, 2, 3)
    assert (answer.prompt_tokens, answer.output_tokens, len(answer.gaps_s)) == (6, 4, 3)
    assert answer.cached == Cached(1, 2, 3) and answer.split and answer.source == "mixed"
    assert 0 < answer.ttft_s <= answer.total_s
    sent = behaviour.requests[-1]
    assert (sent["input_ids"], sent["session_id"], sent["rid"]) == ([4, 5, 6, 7, 8, 9], "s", "r")
    assert sent["sampling_params"] == {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}


def test_sglang_without_a_tier_does_not_split(url: str, behaviour: Behaviour) -> None:
    answer = found(url, "sglang").ask((4, 5), 1)
    assert answer.cached == Cached() and not answer.split and answer.source == "recompute"


@pytest.mark.parametrize("incremental", [False, True])
def test_tokens_that_come_at_once_share_their_time(url: str, behaviour: Behaviour, incremental: bool) -> None:
    behaviour.tokens_per_event, behaviour.incremental = 3, incremental
    answer = found(url, "sglang").ask((4, 5), 8)
    assert answer.output == tuple(range(8))
    # Events of 3, 3 and 2 tokens: the gaps of the last two.
    assert len(answer.gaps_s) == 5 and len(set(answer.gaps_s[:3])) == 1 and len(set(answer.gaps_s[3:])) == 1
    assert sum(answer.gaps_s) <= answer.total_s - answer.ttft_s


def test_sglang_text(url: str, behaviour: Behaviour) -> None:
    answer = found(url, "sglang").ask("two words", 3)
    assert answer.output == "xxx" and behaviour.requests[-1]["text"] == "two words"


def test_a_request_that_the_server_gives_up_failed(url: str, behaviour: Behaviour) -> None:
    behaviour.trouble = "abort"
    answer = found(url, "sglang").ask((4, 5), 2)
    assert answer.error == "the server gave it up: too late"


def test_pieces_are_of_their_number(url: str) -> None:
    target = found(url, "sglang")
    assert len(target.piece(70, 3)) == 70
    assert target.piece(70, 3) == target.piece(70, 3) != target.piece(70, 4)
    assert target.piece(20, 3) == target.piece(70, 3)[:20]


# ---- OpenAI's ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["openai", "chat"])
def test_openai_answer(url: str, behaviour: Behaviour, api: str) -> None:
    behaviour.sglang, behaviour.cached = False, 5
    target = found(url, api)
    answer = target.ask(" one two three", 4)
    assert answer.ok and (answer.prompt_tokens, answer.output_tokens) == (9, 4)
    assert answer.cached == Cached(hbm=5) and not answer.split and answer.source == "cached"
    text = " yes yes yes yes"
    assert answer.output == (f"{SAID}{text}{SAID}" if api == "chat" else text)
    # The event with the role alone is no part of the answer.
    assert len(answer.gaps_s) == 3
    sent = behaviour.requests[-1]
    assert sent["model"] == "fake-model" and sent["max_tokens"] == 4 and sent["ignore_eos"]
    assert "session_id" not in sent and "return_cached_tokens_details" not in sent


def test_words_are_as_long_as_the_server_counts_them(url: str, behaviour: Behaviour) -> None:
    behaviour.sglang = False
    target = found(url, "openai")
    assert target.manners.tokens_per_word == 2.0
    assert target.ask(target.piece(100, 7), 1).prompt_tokens == 103
    assert target.piece(20, 7) == target.piece(100, 7)[: len(target.piece(20, 7))]


def test_a_server_that_counts_nothing(url: str, behaviour: Behaviour) -> None:
    behaviour.sglang, behaviour.usage = False, False
    answer = found(url, "openai").ask(" one", 3)
    assert answer.ok and (answer.prompt_tokens, answer.output_tokens) == (0, 3)
    assert answer.cached is None and answer.source == "unknown"


@pytest.mark.parametrize(
    ("refuses", "sent"),
    [
        (("ignore_eos",), {"max_tokens", "stream_options"}),
        (("ignore_eos", "stream_options"), {"max_tokens"}),
        (("ignore_eos", "max_tokens"), {"max_completion_tokens", "stream_options"}),
    ],
)
def test_a_strict_server_gets_what_it_takes(
    url: str, behaviour: Behaviour, refuses: tuple[str, ...], sent: set[str]
) -> None:
    behaviour.sglang, behaviour.refuses = False, refuses
    answer = found(url, "chat").ask(" one", 2)
    assert answer.ok
    assert set(behaviour.requests[-1]) == {"model", "temperature", "stream", "messages", *sent}


def test_sglang_tells_tiers_in_openai_dialects(url: str, behaviour: Behaviour) -> None:
    behaviour.details = {"device": 0, "host": 0, "storage": 9}
    target = found(url, "openai")
    assert target.ask(" one two three", 1, session="s").source == "nvme"
    assert behaviour.requests[-1]["session_id"] == "s"
    # It says nothing where nothing was cached.
    behaviour.details = None
    assert target.ask(" one two three", 1).source == "recompute"


def test_what_an_assistant_said_is_sent_back_as_the_assistants(url: str, behaviour: Behaviour) -> None:
    target = found(url, "chat")
    first = target.ask(" hello", 2)
    target.ask(" hello" + first.output + " and now?", 1)
    assert behaviour.requests[-1]["messages"] == [
        {"role": "user", "content": " hello"},
        {"role": "assistant", "content": " yes yes"},
        {"role": "user", "content": " and now?"},
    ]


# ---- trouble ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("trouble", "text"),
    [
        ("truncated", "ended in the middle"),
        ("error", "out of memory"),
        ("garbage", "not understood"),
    ],
)
def test_a_broken_answer_is_a_failed_one(url: str, behaviour: Behaviour, api: str, trouble: str, text: str) -> None:
    target = found(url, api)
    prompt = target.piece(8, 1)
    behaviour.trouble = trouble
    answer = target.ask(prompt, 5)
    assert text in answer.error and not answer.ok and not answer.cut
    assert 0 < answer.ttft_s <= answer.total_s


@pytest.mark.parametrize("api", APIS)
def test_status_500(url: str, behaviour: Behaviour, api: str) -> None:
    target = found(url, api)
    prompt = target.piece(8, 1)
    behaviour.status = 500
    assert "status 500" in target.ask(prompt, 5).error


def test_an_answer_without_an_event_failed(url: str, behaviour: Behaviour) -> None:
    target = found(url, "sglang")
    behaviour.trouble = "empty"
    assert "no event" in target.ask((1, 2), 5).error


@pytest.mark.parametrize("api", APIS)
def test_nobody_there(behaviour: Behaviour, api: str) -> None:
    with fake_server(behaviour) as url:
        target = found(url, api)
        prompt = target.piece(8, 1)
    answer = target.ask(prompt, 5)
    assert "refused" in answer.error and answer.output_tokens == 0


@pytest.mark.parametrize("api", APIS)
def test_a_slow_answer_is_cut(url: str, behaviour: Behaviour, api: str) -> None:
    target = found(url, api)
    prompt = target.piece(8, 1)
    behaviour.trouble = "slow"
    answer = target.ask(prompt, 50, cut_after=1)
    assert answer.cut and not answer.error and not answer.ok
    assert behaviour.gone.wait(5)


def test_a_silent_server_is_given_up(url: str, behaviour: Behaviour) -> None:
    target = found(url, "sglang")
    behaviour.trouble = "slow"
    target.client._timeout_s = 0.01  # type: ignore[attr-defined]
    assert target.ask((1, 2), 5).error


@pytest.mark.parametrize("api", APIS)
def test_hanging_up_ends_what_is_under_way_and_what_comes(url: str, behaviour: Behaviour, api: str) -> None:
    target = found(url, api)
    prompt = target.piece(8, 1)
    behaviour.trouble = "slow"
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(target.ask(prompt, 50))) for _ in range(3)]
    asked = len(behaviour.requests)
    for thread in threads:
        thread.start()
    end = time.monotonic() + 5
    while len(behaviour.requests) < asked + 3 and time.monotonic() < end:
        time.sleep(0.005)
    target.client.hang_up()
    for thread in threads:
        thread.join(5)
    answers.append(target.ask(prompt, 5))
    assert [(answer.cut, answer.error) for answer in answers] == [(True, "")] * 4


# ---- finding out ------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
@pytest.mark.parametrize("api", ["auto", "openai", "chat"])
def test_base_paths(behaviour: Behaviour, suffix: str, api: str) -> None:
    with fake_server(behaviour, "/models/a") as url:
        target = found(url + suffix, api)
        assert target.ask(target.piece(8, 1), 1).ok


def test_auto_takes_openai_where_there_is_no_sglang(url: str, behaviour: Behaviour) -> None:
    behaviour.sglang = False
    target = found(url, "auto")
    assert isinstance(target, OpenAITarget) and (target.api, target.model) == ("openai", "fake-model")


def test_auto_takes_openai_where_sglang_does_not_tokenize(url: str, behaviour: Behaviour) -> None:
    behaviour.tokenizes = False
    assert found(url, "auto").api == "openai"
    with pytest.raises(NoTarget, match="does not tokenize"):
        found(url, "sglang")


def test_a_key(url: str, behaviour: Behaviour) -> None:
    behaviour.key = "secret"
    with pytest.raises(NoTarget, match="--api-key"):
        found(url, "auto")
    for api in APIS:
        target = found(url, api, api_key="secret")
        assert target.ask(target.piece(8, 1), 1).ok


def test_no_server_says_so_in_one_line(behaviour: Behaviour) -> None:
    with fake_server(behaviour) as url:
        pass
    with pytest.raises(NoTarget, match="no server answers") as error:
        found(url, "auto")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "api", "text"),
    [
        ({"sglang": False}, "sglang", "no SGLang server"),
        ({"sglang": False, "chat_only": True}, "openai", "--api chat"),
        ({"sglang": False, "status": 500}, "openai", "status 500"),
        ({"sglang": False, "refuses": ("model",)}, "chat", "--model"),
    ],
)
def test_what_does_not_fit_says_what_to_do(
    url: str, behaviour: Behaviour, change: dict[str, Any], api: str, text: str
) -> None:
    for name, value in change.items():
        setattr(behaviour, name, value)
    with pytest.raises(NoTarget, match=text) as error:
        found(url, api)
    assert "\n" not in str(error.value)


def test_something_else_than_a_server_of_models(
    url: str, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client, "call", lambda *_: b"<html>")
    with pytest.raises(NoTarget, match="no server of a language model"):
        found(url, "auto")


@pytest.mark.parametrize(
    "url", ["", "localhost:30000", "ftp://a", "http://", "http://a:99999", "http://me:word@a", "https://[::1"]
)
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL") as error:
        Client(url)
    assert "word" not in str(error.value)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
def test_https(behaviour: Behaviour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with fake_server(behaviour, "/base", tls=tls) as url:
        with pytest.raises(NoTarget, match="SSL_CERT_FILE"):
            found(url, "auto")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        for api in APIS:
            target = found(f"{url}/v1", api)
            assert target.ask(target.piece(8, 1), 3).ok


def test_https_has_its_own_port_and_speaks_tls(url: str) -> None:
    assert Client("https://example.org/v1")._port == 443  # type: ignore[attr-defined]
    with pytest.raises(NoTarget, match="https"):
        found(url.replace("http:", "https:"), "auto")
    with pytest.raises((RequestFailed, OSError)):
        Client(url.replace("http:", "https:"), 5.0).call("GET", "/health")
