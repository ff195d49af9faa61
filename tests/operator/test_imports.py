"""What commands for people load: never Kopf, nor anything else that only talks to an API server.

Each runs in a process of its own; the figures that this gives are in docs/performance.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

UNWANTED = {"aiohttp", "asyncio", "grpc", "kopf", "kubernetes", "prometheus_client", "requests"}
ROOMS = {"dra_operator.allocator", "dra_operator.cache"}
PROBE = """
import importlib, json, sys
module, *sys.argv = sys.argv[1:]
try:
    importlib.import_module(module).main()
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""
SLICES = """
{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": {
  "driver": "gpu.example.com", "nodeName": "n1",
  "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "gpu-0"}]}}
"""
CLAIM = """
{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "default"},
 "spec": {"devices": {"requests": [{"name": "req", "exactly": {"deviceClassName": "gpu"}}]}}}
---
{"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}
---
{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
"""


def loaded(module: str, *words: str, answers: bool = True) -> set[str]:
    """The top-level modules, and the large rooms, that a command has imported when it ends."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, module, "command", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert bool(done.stdout) == answers, done.stderr
    names: list[str] = json.loads(done.stderr.splitlines()[-1])
    return {name.partition(".")[0] for name in names} | ROOMS.intersection(names)


def test_cel_and_simulate_load_nothing_that_talks_to_a_server(tmp_path: Path) -> None:
    slices, claim = tmp_path / "slices.json", tmp_path / "claim.yaml"
    slices.write_text(SLICES)
    claim.write_text(f"{CLAIM}---{SLICES}")
    assert not loaded("dra_operator.cli", "cel", "-e", "true", "-f", str(slices)) & (UNWANTED | ROOMS)
    assert not loaded("dra_operator.cli", "simulate", "-f", str(claim)) & UNWANTED


def test_a_question_about_a_snapshot_loads_no_client(tmp_path: Path) -> None:
    """``kubectl dra why``, which a person asks again and again."""
    snapshot = tmp_path / "snapshot.yaml"
    snapshot.write_text(CLAIM)
    words = ("why", "claim/c", "-n", "default", "--from", str(snapshot))
    assert not loaded("dra_operator.kubectl.cli", *words) & UNWANTED


@pytest.mark.parametrize("command", ["top", "devices", "pools", "claims"])
def test_tables_of_devices_load_neither_client_nor_allocator_nor_cel(command: str, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot.yaml"
    snapshot.write_text(f"{CLAIM}---{SLICES}")
    found = loaded("dra_operator.kubectl.cli", command, "--from", str(snapshot))
    assert not found & {*UNWANTED, *ROOMS, "dra_cel", "dra_kube"}


def test_a_kubeconfig_without_plugins_is_read_without_the_kubernetes_package(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(
        "{current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}], clusters: [{name: k, cluster: "
        "{server: 'http://127.0.0.1:1'}}], users: [{name: u, user: {token: t}}]}"
    )
    found = loaded("dra_operator.kubectl.cli", "top", "--kubeconfig", str(file), answers=False)
    assert "aiohttp" in found
    assert not found & {*ROOMS, "dra_cel", "kubernetes", "requests", "grpc", "kopf"}
