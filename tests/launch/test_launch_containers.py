"""Image, compose file, unit and manifest: whole, consistent with each other, and closed to the network."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from launch_rig import LAUNCH, ROOT

from radixtier import SGLANG_VERSION, __version__
from radixtier.units import parse_size

GIB = 1 << 30
SERVERS_OWN = 16 * GIB
"""What SGLang itself needs of RAM beside the DRAM tier and shared memory, at least."""

STOPS_WITHIN_S = 60
"""Looking for the signal (5 s), SGLang's 15 s, and some time for running requests."""

DOCKERFILE = (LAUNCH / "docker" / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((LAUNCH / "docker" / "compose.yaml").read_text())
UNIT = (LAUNCH / "systemd" / "radixtier.service").read_text()
MANIFEST = [each for each in yaml.safe_load_all((LAUNCH / "kubernetes" / "radixtier.yaml").read_text()) if each]
SETTINGS = yaml.safe_load((LAUNCH / "server.yaml").read_text())


def memory(text: str) -> int:
    """Bytes of Kubernetes' ``96Gi`` or Docker's ``96g``."""
    return int(re.sub(r"[gG]i?$", "", text)) * GIB


def kind(name: str) -> dict[str, Any]:
    [found] = [each for each in MANIFEST if each["kind"] == name]
    return dict(found)


def pod() -> dict[str, Any]:
    return dict(kind("StatefulSet")["spec"]["template"]["spec"])


def container() -> dict[str, Any]:
    [only] = pod()["containers"]
    return dict(only)


# ---------------------------------------------------------------- the image


def instructions(name: str) -> list[str]:
    joined = DOCKERFILE.replace("\\\n", " ")
    return re.findall(rf"^{name} +(.+)$", joined, re.MULTILINE)


def test_the_image_has_the_right_sglang_and_all_that_is_installed() -> None:
    assert f":v{SGLANG_VERSION}" in instructions("ARG")[0]
    for sources in instructions("COPY"):
        assert all((ROOT / source).exists() for source in sources.split()[:-1])
    needed = {"pyproject.toml", "README.md", "LICENSE", "radixtier"}
    assert needed == {source for sources in instructions("COPY") for source in sources.split()[:-1]}
    assert (
        f"radixtier:{__version__}" in DOCKERFILE
        and COMPOSE["services"]["sglang"]["image"] == f"radixtier:{__version__}"
    )


def test_the_image_runs_as_an_ordinary_user_and_stops_by_sigterm() -> None:
    assert instructions("USER") == ["10001"] and instructions("STOPSIGNAL") == ["SIGTERM"]
    assert json.loads(instructions("ENTRYPOINT")[0]) == ["python3", "-m", "sglang.launch_server"]
    [probe] = re.findall(r"CMD +(\[.+\])$", instructions("HEALTHCHECK")[0])
    compile(json.loads(probe)[2], "probe", "exec")


@pytest.mark.parametrize(("version", "status"), [(SGLANG_VERSION, 0), ("0.5.22", 1)])
def test_the_image_is_not_built_for_another_sglang(tmp_path: Path, version: str, status: int) -> None:
    """The build's own check, with a pip that does nothing and an SGLang that has only a version."""
    info = tmp_path / f"sglang-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\n[ "$2" = pip ] || exec {sys.executable} "$@"\n')
    python.chmod(0o700)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(
        ["sh", "-c", instructions("RUN")[0]], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == status, done.stderr
    assert not status or f"SGLang {version} instead of {SGLANG_VERSION}" in done.stderr


# ---------------------------------------------------------------- compose


def test_compose_publishes_nothing_but_on_loopback() -> None:
    [service] = COMPOSE["services"].values()
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert service["cap_drop"] == ["ALL"] and "privileged" not in service and "network_mode" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_compose_mounts_what_the_settings_name() -> None:
    [service] = COMPOSE["services"].values()
    targets = {each["target"]: each for each in service["volumes"]}
    assert set(SETTINGS["radix-tier-nvme-path"]) <= set(targets) and SETTINGS["model-path"] in targets
    assert service["command"][:2] == ["--config", "/etc/radixtier/server.yaml"] and service["command"][1] in targets
    assert (LAUNCH / "docker" / targets["/etc/radixtier/server.yaml"]["source"]).resolve() == LAUNCH / "server.yaml"
    assert (LAUNCH / "docker" / service["build"]["context"]).resolve() == ROOT


def test_compose_gives_memory_and_time() -> None:
    [service] = COMPOSE["services"].values()
    needed = parse_size(SETTINGS["radix-tier-dram-size"]).amount + memory(service["shm_size"]) + SERVERS_OWN
    assert memory(service["mem_limit"]) >= needed and service["ulimits"]["memlock"] == -1
    assert int(service["stop_grace_period"].removesuffix("m")) * 60 >= STOPS_WITHIN_S and service["init"] is True


def compose_client() -> list[str] | None:
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]):
            asked = subprocess.run([*command, "version"], capture_output=True, timeout=60, check=False)
            if asked.returncode == 0:
                return command
    return None


@pytest.mark.skipif(compose_client() is None, reason="no docker compose here")
def test_the_client_takes_the_compose_file() -> None:
    client = compose_client()
    assert client is not None
    command = [*client, "-f", str(LAUNCH / "docker" / "compose.yaml"), "config", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------- systemd


def directive(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)


def test_the_unit_stops_the_first_process_only_and_waits() -> None:
    assert (directive("KillMode"), directive("KillSignal")) == (["mixed"], ["SIGTERM"])
    assert int(directive("TimeoutStopSec")[0]) >= STOPS_WITHIN_S
    assert directive("RestartPreventExitStatus") == ["2"] and directive("LimitMEMLOCK") == ["infinity"]


def test_the_unit_may_write_its_store_and_little_else() -> None:
    assert directive("ProtectSystem") == ["strict"] and directive("NoNewPrivileges") == ["yes"]
    [store] = directive("ReadWritePaths")
    assert store.startswith(directive("RequiresMountsFor")[0] + "/")
    assert directive("StateDirectory") == ["radixtier"] and directive("StateDirectoryMode") == ["0700"]
    assert directive("User") == ["radixtier"] and "PrivateDevices=" not in UNIT


def test_the_environment_file_has_variables_and_no_secrets() -> None:
    for line in (LAUNCH / "systemd" / "radixtier.env").read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"[A-Z_]+=\S+", line)
        assert "KEY=" not in line


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "radixtier.service"
    unit.write_text(UNIT.replace("/opt/radixtier/bin/python", sys.executable))
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "radixtier" in line]) == (0, [])


# ---------------------------------------------------------------- Kubernetes

VERSIONS = {
    "Namespace": "v1",
    "PersistentVolume": "v1",
    "Secret": "v1",
    "Service": "v1",
    "StorageClass": "storage.k8s.io/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "StatefulSet": "apps/v1",
}
CLUSTER_WIDE = {"Namespace", "PersistentVolume", "StorageClass"}


def test_every_object_is_named_and_of_a_known_kind() -> None:
    assert {each["kind"]: each["apiVersion"] for each in MANIFEST} == VERSIONS and len(MANIFEST) == len(VERSIONS)
    for each in MANIFEST:
        assert re.fullmatch(r"[a-z0-9-]+", each["metadata"]["name"])
        assert each["metadata"].get("namespace") == (None if each["kind"] in CLUSTER_WIDE else "radixtier")


def test_labels_find_each_other() -> None:
    labels = kind("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert kind("StatefulSet")["spec"]["selector"]["matchLabels"] == labels
    assert kind("Service")["spec"]["selector"] == labels
    assert kind("NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels
    assert kind("StatefulSet")["spec"]["serviceName"] == kind("Service")["metadata"]["name"]


def test_nothing_is_on_the_public_network() -> None:
    service = kind("Service")["spec"]
    assert service["clusterIP"] == "None" and service.get("type", "ClusterIP") == "ClusterIP"
    assert "hostNetwork" not in pod() and all("hostPort" not in port for port in container()["ports"])
    policy = kind("NetworkPolicy")["spec"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"} and policy["egress"] == []
    assert all("ipBlock" not in source for rule in policy["ingress"] for source in rule["from"])


def test_the_pod_is_an_ordinary_user_without_privileges() -> None:
    assert pod()["securityContext"]["runAsNonRoot"] is True
    # A group for files would change the owner's mode of the store at each start.
    assert pod()["securityContext"]["runAsUser"] == 10001 and "fsGroup" not in pod()["securityContext"]
    assert pod()["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    own = container()["securityContext"]
    assert own["capabilities"] == {"drop": ["ALL"]} and own["allowPrivilegeEscalation"] is False
    assert own["readOnlyRootFilesystem"] is True and pod()["automountServiceAccountToken"] is False


def test_memory_is_above_the_dram_tier() -> None:
    settings = yaml.safe_load(kind("Secret")["stringData"]["server.yaml"])
    resources = container()["resources"]
    assert resources["limits"] == resources["requests"] and resources["limits"]["nvidia.com/gpu"] == "1"
    assert not any(name.startswith("hugepages") for name in resources["limits"])
    [shared] = [each["emptyDir"] for each in pod()["volumes"] if each["name"] == "shm"]
    needed = parse_size(settings["radix-tier-dram-size"]).amount + memory(shared["sizeLimit"]) + SERVERS_OWN
    assert memory(resources["limits"]["memory"]) >= needed


def test_the_store_lies_on_the_claimed_volume_and_fits() -> None:
    settings = yaml.safe_load(kind("Secret")["stringData"]["server.yaml"])
    mounts = {each["mountPath"]: each["name"] for each in container()["volumeMounts"]}
    [claim] = kind("StatefulSet")["spec"]["volumeClaimTemplates"]
    [path] = settings["radix-tier-nvme-path"]
    assert mounts[path] == claim["metadata"]["name"]
    volumes = {each["name"] for each in pod()["volumes"]} | {claim["metadata"]["name"]}
    assert set(mounts.values()) == volumes
    volume = kind("PersistentVolume")["spec"]
    assert claim["spec"]["storageClassName"] == volume["storageClassName"] == kind("StorageClass")["metadata"]["name"]
    capacity = memory(volume["capacity"]["storage"])
    assert parse_size(settings["radix-tier-nvme-size"]).amount < memory(
        claim["spec"]["resources"]["requests"]["storage"]
    )
    assert memory(claim["spec"]["resources"]["requests"]["storage"]) <= capacity
    assert volume["persistentVolumeReclaimPolicy"] == "Retain"


def test_the_settings_are_mounted_and_readable() -> None:
    [config] = [each["secret"] for each in pod()["volumes"] if each["name"] == "config"]
    assert config["secretName"] == kind("Secret")["metadata"]["name"] and config["defaultMode"] & 0o004
    assert container()["args"] == ["--config", "/etc/radixtier/server.yaml"]
    settings = yaml.safe_load(kind("Secret")["stringData"]["server.yaml"])
    assert settings | {"host": "127.0.0.1"} == SETTINGS


def test_probes_ask_the_server_and_give_it_time() -> None:
    one = container()
    paths = {name: one[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert paths == {"startupProbe": "/health", "readinessProbe": "/health", "livenessProbe": "/health_generate"}
    # SGLang gives its own check 20 s.
    assert all(one[name]["timeoutSeconds"] > 20 for name in paths)
    assert one["startupProbe"]["periodSeconds"] * one["startupProbe"]["failureThreshold"] >= 1800
    assert pod()["terminationGracePeriodSeconds"] >= STOPS_WITHIN_S


@pytest.mark.skipif(shutil.which("nginx") is None, reason="no nginx here")
def test_nginx_takes_the_proxy() -> None:
    command = ["nginx", "-t", "-c", str(LAUNCH / "nginx.conf")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    # The rest of the test needs directories that only root can make.
    assert "syntax is ok" in done.stderr, done.stderr


def test_every_recipe_says_that_no_gpu_has_seen_it() -> None:
    for path in ("docker/Dockerfile", "docker/compose.yaml", "systemd/radixtier.service", "kubernetes/radixtier.yaml"):
        text = " ".join((LAUNCH / path).read_text().replace("#", " ").split())
        assert re.search(r"(not|Neither has been built or) run on a (cluster or a )?(machine with a )?GPU", text), path
