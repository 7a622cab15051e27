"""A client finds a server where it listens: first where it was told to ask, then where the server says it goes on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from control_rig import Script, serving

from radixtier.control import Address, Command, ControlServer, Desk
from radixtier.control.client import ControlClient, ControlError
from radixtier.control.endpoint import Endpoint


class Telling(Script):
    """Tells where it goes on."""

    def __init__(self, control: object) -> None:
        super().__init__()
        self.control = control

    def __call__(self, command: Command) -> Mapping[str, Any]:
        return {**super().__call__(command), "control": self.control}


@pytest.mark.parametrize("call", ["state", "drain"])
def test_it_goes_on_where_an_answer_said(tmp_path: Path, call: str) -> None:
    old, new = Address(path=str(tmp_path / "old")), Address(path=str(tmp_path / "new"))
    client = ControlClient(old)
    with serving(old, Telling(str(new))):
        getattr(client, call)()
        assert client.endpoint.address == old
    with pytest.raises(ControlError, match=f"no answer from unix:{tmp_path}/old") as gone:
        client.state()
    assert gone.value.status == 0
    with serving(new, Telling(str(new))):
        assert client.explain()["asked"] == "ExplainRequests"
        assert client.endpoint.address == new
    with serving(old, Telling(str(new))):
        assert client.state()["control"] == str(new)
        assert client.endpoint.address == old, "a server that was started again"


@pytest.mark.parametrize("control", [None, 7, "", "nowhere", "off", ["unix:/x"]])
def test_what_is_no_address_is_none(tmp_path: Path, control: object) -> None:
    address = Address(path=str(tmp_path / "a"))
    client = ControlClient(address)
    with serving(address, Telling(control)):
        client.state()
    with pytest.raises(ControlError, match="no answer"):
        client.state()
    with serving(address):
        assert client.state()["asked"] == "ReadState"


def test_an_answer_to_something_else_tells_nothing(tmp_path: Path) -> None:
    old, new = Address(path=str(tmp_path / "old")), Address(path=str(tmp_path / "new"))
    client = ControlClient(old)
    with serving(old, Telling(str(new))):
        client.explain()
    with serving(new), pytest.raises(ControlError, match="no answer"):
        client.state()


def test_a_server_that_is_slow_is_not_asked_elsewhere(tmp_path: Path) -> None:
    new, seen = Address(path=str(tmp_path / "new")), Script()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent, serving(new, seen):
        silent.bind(str(tmp_path / "old"))
        silent.listen()
        client = ControlClient(Address(path=str(tmp_path / "old")), timeout=0.05)
        client.endpoint._later = new
        with pytest.raises(ControlError, match="timed out"):
            client.state()
    assert seen.seen == []


def test_a_server_that_hangs_up_without_an_answer_is(tmp_path: Path) -> None:
    new = Address(path=str(tmp_path / "new"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening, serving(new):
        listening.bind(str(tmp_path / "old"))
        listening.listen()
        leaving = threading.Thread(target=lambda: listening.accept()[0].close())
        leaving.start()
        client = ControlClient(Address(path=str(tmp_path / "old")))
        client.endpoint._later = new
        assert client.state()["asked"] == "ReadState"
        leaving.join()


def test_an_answer_is_passed_on_as_it_came(tmp_path: Path) -> None:
    address = Address(path=str(tmp_path / "a"))
    with ControlServer(address, Desk(), "secret"):
        status, kind, body = Endpoint(address, "secret", 20.0).exchange("GET", "/radix_tier/nowhere")
        assert (status, kind) == (404, "application/json") and b"no such path" in body
        assert Endpoint(address, None, 20.0).exchange("GET", "/").media_type.startswith("text/html")
        assert Endpoint(address, None, 20.0).exchange("GET", "/radix_tier/state").status == 401
        sent = Endpoint(address, "secret", 20.0).exchange("POST", "/radix_tier/pin", b"x", "text/plain")
        assert sent.status == 415
