"""The stand-in for SGLang, and running an example against it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from examples_stub import EXAMPLES, PATIENCE_S, Run, Stub, sglang


@pytest.fixture
def stub() -> Stub:
    return Stub()


@pytest.fixture
def url(stub: Stub) -> Iterator[str]:
    with sglang(stub) as address:
        yield address


@pytest.fixture
def run(url: str) -> Run:
    """Run an example against the stub to its end."""

    def run_example(
        name: str, *arguments: str, says: str = "", to: str | None = None, control: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        env = {each: value for each, value in os.environ.items() if each not in ("RADIXTIER_CONTROL", "NO_COLOR")}
        env |= {} if control is None else {"RADIXTIER_CONTROL": control}
        return subprocess.run(
            [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), "--url", to or url, *arguments],
            input=says,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            env=env,
        )

    return run_example
