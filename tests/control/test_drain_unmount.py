"""After a drain the file system of the store can really be unmounted, with the endpoint's socket beside the store.

Runs in a mount namespace of its own, where the kernel lets us have one.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sglang")

WAIT_S = 180.0

PROGRAM = """
import subprocess, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from drain_rig import SIZES, drain, until_status
from harness import Server, ask
from radixtier.control import Address
from radixtier.control.client import ControlClient

def unmount():
    return subprocess.run(["umount", str(mount)], stderr=subprocess.DEVNULL).returncode == 0

mount = Path(sys.argv[2])
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(mount)], check=True)
server = Server(mount, **SIZES, control=Address(path=str(mount / "radixtier.sock")))
prompts = [server.prompt(4, seed) for seed in range(4)]
for prompt in prompts:
    server.serve(prompt)
    server.settle()
print("busy before:", not unmount())
client = ControlClient(server.cache.control.address)
ask(server, "drain", client=client)
until_status(server, "drained")
print("unmounted:", unmount(), list(mount.iterdir()))
print("answers:", ask(server, "drain", client=client)["status"], ask(server, "state", client=client)["nvme_drained"])
print("serves:", server.serve(prompts[-1]).device, server.serve(server.prompt(4, 9)).hit)
server.cache.release_host_resources()
print("left:", list(mount.iterdir()))
"""


def may_mount() -> bool:
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        return False
    trial = ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(trial, capture_output=True, timeout=WAIT_S).returncode == 0


@pytest.mark.skipif(not may_mount(), reason="this kernel gives us no mount namespace")
def test_the_file_system_can_be_unmounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvme", "run"):
        (tmp_path / name).mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    program = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), str(tmp_path / "nvme")]
    result = subprocess.run([*namespace, *program], capture_output=True, text=True, timeout=WAIT_S)
    assert result.stdout.splitlines() == [
        "busy before: True",
        "unmounted: True []",
        "answers: drained drained",
        "serves: 16 0",
        "left: []",
    ], result.stderr[-4000:]
