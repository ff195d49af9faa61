"""The server as an object: its life, its files, its snapshot."""

from __future__ import annotations

import asyncio
import errno
import gc
import http.client
import json
import os
import shutil
import socket
import ssl
import stat
import urllib.request
from pathlib import Path

import pytest
from bare_client import CLAIMS, CONFIG_MAPS, NAMESPACES, PODS, Client, client_of, config_map, names, pod
from cryptography import x509
from dra_api import yaml_text
from dra_api.gates import GateError
from dra_devcluster.apiserver import DevApiServer, ServerError, serve_in_thread
from dra_devcluster.apiserver.identity import make_identity, read_kubeconfig, write_kubeconfig
from dra_devcluster.apiserver.registry import API_SERVER
from dra_kube import CONFIG_MAPS as CONFIG_MAP_RESOURCE
from dra_kube import Api, connection

WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget"},
        "versions": [
            {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
        ],
    },
}
WIDGET = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}}


async def test_a_kubeconfig_is_all_a_client_needs(server: DevApiServer, tmp_path: Path) -> None:
    path = server.write_kubeconfig(tmp_path / "config")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert yaml_text.load(path.read_text()) == server.kubeconfig
    async with Api(connection(path)) as api:
        await api.create(CONFIG_MAP_RESOURCE, config_map("a"), namespace="default")
        assert (await api.get(CONFIG_MAP_RESOURCE, "a", namespace="default"))["data"] == {"a": "b"}


async def test_a_port_in_use_is_named_with_the_remedy(server: DevApiServer) -> None:
    with pytest.raises(ServerError, match=f"port {server.port} on 127.0.0.1 is in use: choose another"):
        async with DevApiServer(port=server.port):
            pass


@pytest.mark.parametrize(
    ("gate", "said"),
    [
        ("DRANonsense", "unknown feature gate DRANonsense; known are"),
        ("DRADeviceTaintRules", "the API server does not look at DRADeviceTaintRules, only at DRAAdminAccess, "),
        ("DRASchedulerFilterTimeout", "the API server does not look at DRASchedulerFilterTimeout"),
    ],
)
def test_gates_that_do_not_exist_or_change_nothing_are_refused(gate: str, said: str) -> None:
    with pytest.raises(GateError, match=said):
        DevApiServer(feature_gates={gate: True})


def test_every_gate_that_is_accepted_decides_about_fields_or_who_writes() -> None:
    """That it does is shown one by one in tests/api/test_strategy.py, and in test_claim_status.py."""
    assert {
        "DRAAdminAccess",
        "DRAConsumableCapacity",
        "DRADerivedAttributes",
        "DRADeviceBindingConditions",
        "DRADeviceCompatibilityGroups",
        "DRADeviceTaints",
        "DRAExtendedResource",
        "DRAFractionalCapacityRange",
        "DRAListTypeAttributes",
        "DRANodeAllocatableResources",
        "DRAOptionalNodeOperations",
        "DRAPartitionableDevices",
        "DRAPartitionableDevicesType",
        "DRAPrioritizedList",
        "DRAResourceClaimDeviceStatus",
        "DRAResourceClaimGranularStatusAuthorization",
        "DRAWorkloadResourceClaims",
        "GangScheduling",
        "GenericWorkload",
        "PodGroupPreemptionPolicy",
        "TopologyAwareWorkloadScheduling",
        "WorkloadAwarePreemption",
    } == API_SERVER.gates


def test_tests_without_a_loop_have_a_server_too() -> None:
    with serve_in_thread() as server:
        context = ssl.create_default_context(cafile=str(server.ca_file))
        request = urllib.request.Request(server.url + NAMESPACES, headers={"Authorization": f"Bearer {server.token}"})
        with urllib.request.urlopen(request, context=context) as answer:
            assert names(json.load(answer))[0] == "default"
        ca_file = server.ca_file
    assert not ca_file.exists()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", server.port), timeout=1)


async def test_watches_end_when_the_server_stops() -> None:
    server = DevApiServer()
    await server.__aenter__()
    async with client_of(server) as client, client.watch(CONFIG_MAPS) as watch:
        await server.__aexit__(None, None, None)
        assert await watch.is_over()


async def test_a_connection_that_is_made_while_the_server_stops_is_closed() -> None:
    """Before its TLS handshake has ended."""
    async with DevApiServer() as server:
        client = socket.create_connection(("127.0.0.1", server.port), timeout=20)
        await asyncio.sleep(0.05)  # it is accepted
        context = ssl.create_default_context(cafile=str(server.ca_file))
    with client, pytest.raises((ConnectionError, ssl.SSLError)):
        await asyncio.to_thread(context.wrap_socket, client, server_hostname="127.0.0.1")


async def test_a_client_that_does_not_answer_the_end_of_its_session_holds_no_connection_open() -> None:
    """As a client that is busy: TLS waits for 30 s until it answers."""
    async with DevApiServer() as server:
        context = ssl.create_default_context(cafile=str(server.ca_file))
        client = socket.create_connection(("127.0.0.1", server.port), timeout=20)
        secured = await asyncio.to_thread(context.wrap_socket, client, server_hostname="127.0.0.1")
    with secured, socket.fromfd(secured.fileno(), socket.AF_INET, socket.SOCK_STREAM) as raw:
        raw.settimeout(20)
        while await asyncio.to_thread(_received, raw):
            pass


def _received(raw: socket.socket) -> bytes:
    try:
        return raw.recv(4096)
    except ConnectionError:
        return b""


async def test_a_snapshot_brings_everything_back(tmp_path: Path) -> None:
    file = tmp_path / "snapshot"
    async with DevApiServer(snapshot=file) as server, client_of(server) as client:
        await client.post(DEFINITIONS, DEFINITION)
        await client.post(WIDGETS, WIDGET)
        await client.post(CONFIG_MAPS, config_map("a", finalizers=["example.com/x"]))
        marked = await client.delete(f"{CONFIG_MAPS}/a")
        listed = await client.get(CONFIG_MAPS)
        widget = await client.get(f"{WIDGETS}/w")
    async with DevApiServer(snapshot=file) as server, client_of(server) as client:
        assert await client.get(f"{CONFIG_MAPS}/a") == marked
        assert await client.get(f"{WIDGETS}/w") == widget
        assert int((await client.get(CONFIG_MAPS))["metadata"]["resourceVersion"]) >= int(
            listed["metadata"]["resourceVersion"]
        )
        await expired(client, listed["metadata"]["resourceVersion"])
        await client.patch(f"{CONFIG_MAPS}/a", {"metadata": {"finalizers": None}})
        await client.gone(f"{CONFIG_MAPS}/a")


async def expired(client: Client, revision: str) -> None:
    """What happened before the snapshot is not remembered: who watched before has to list again."""
    async with client.watch(CONFIG_MAPS, resourceVersion=str(int(revision) - 1)) as watch:
        kind, status = await watch.next()
    assert (kind, status["code"]) == ("ERROR", 410)


async def test_what_went_while_the_server_was_off_is_seen_when_it_starts(tmp_path: Path) -> None:
    """The pods of a ReplicaSet, and of a group in deletion, are no longer in the file."""
    file, gates = tmp_path / "snapshot", {"GenericWorkload": True}
    groups, sets = (
        "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups",
        "/apis/apps/v1/namespaces/default/replicasets",
    )
    labels = {"app": "x"}
    template = {"metadata": {"labels": labels}, "spec": pod("p", schedulerName="none")["spec"]}
    async with DevApiServer(snapshot=file, feature_gates=gates) as server, client_of(server) as client:
        await client.post(groups, {"metadata": {"name": "g"}, "spec": {"schedulingPolicy": {"basic": {}}}})
        await client.post(PODS, pod("member", schedulingGroup={"podGroupName": "g"}, schedulerName="none"))
        await client.post(
            sets, {"metadata": {"name": "r"}, "spec": {"selector": {"matchLabels": labels}, "template": template}}
        )
        await client.delete(f"{groups}/g")
        await client.until(f"{sets}/r", lambda answer: answer.json["status"].get("replicas") == 1)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(line for line in lines if b'"resource":"pods"' not in line))
    async with DevApiServer(snapshot=file, feature_gates=gates) as server, client_of(server) as client:
        await client.gone(f"{groups}/g")
        await client.until(PODS, lambda answer: len(answer.json["items"]) == 1)


async def test_a_quota_counts_anew_when_the_server_starts(tmp_path: Path) -> None:
    file, quotas = tmp_path / "snapshot", "/api/v1/namespaces/default/resourcequotas"
    async with DevApiServer(snapshot=file) as server, client_of(server) as client:
        await client.post(quotas, {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "5"}}})
        await client.post(PODS, pod("p", schedulerName="none"))
        await client.until(f"{quotas}/q", lambda answer: answer.json["status"].get("used") == {"pods": "1"})
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(line for line in lines if b'"resource":"pods"' not in line))
    async with DevApiServer(snapshot=file) as server, client_of(server) as client:
        await client.until(f"{quotas}/q", lambda answer: answer.json["status"]["used"] == {"pods": "0"})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"nonsense",
        b'{"format": 99, "revision": 1}\n',
        b'{"format": 1, "revision": 1}\n{}\n',
        b'{"format": 1, "revision": 1}\n{"group":"x","resource":"toys","object":{"metadata":{"name":"a"}}}\n',
    ],
)
async def test_a_file_that_is_no_snapshot_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "snapshot"
    file.write_bytes(content)
    with pytest.raises(ServerError, match=r"snapshot is not a snapshot of this server .*: remove it or pass another"):
        async with DevApiServer(snapshot=file):
            pass
    assert file.read_bytes() == content


async def test_a_snapshot_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(ServerError, match=r"cannot write the snapshot .*: No such file or directory"):
        async with DevApiServer(snapshot=folder / "snapshot"):
            shutil.rmtree(folder)


async def test_versions_can_be_switched_off() -> None:
    """An old cluster: only the first beta of the DRA kinds is served, and everything works all the same."""
    off = {"resource.k8s.io/v1": False, "resource.k8s.io/v1beta2": False}
    async with DevApiServer(api_versions=off) as server, client_of(server) as client:
        group = await client.get("/apis/resource.k8s.io")
        assert [version["version"] for version in group["versions"]] == ["v1beta1", "v1alpha3"]
        assert await client.code(CLAIMS) == 404
        owner = await client.post(CONFIG_MAPS, config_map("owner"))
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
        lost = {**reference, "uid": "absent"}
        body = {
            "apiVersion": "resource.k8s.io/v1beta1",
            "kind": "ResourceClaim",
            "metadata": {"name": "c", "ownerReferences": [reference, lost]},
            "spec": {"devices": {"requests": [{"name": "gpu", "deviceClassName": "gpu"}]}},
        }
        path = CLAIMS.replace("/v1/", "/v1beta1/")
        await client.post(path, body)
        answer = await client.until(
            f"{path}/c", lambda answer: answer.json["metadata"]["ownerReferences"] == [reference]
        )
        assert answer.json["spec"]["devices"]["requests"][0]["deviceClassName"] == "gpu"
        await client.delete(f"{CONFIG_MAPS}/owner")
        await client.gone(f"{path}/c")


def test_unknown_versions_are_refused() -> None:
    with pytest.raises(ServerError, match="unknown API versions apps/v9; known are "):
        DevApiServer(api_versions={"apps/v9": True})


async def test_a_full_disk_leaves_the_snapshot_of_before_and_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "snapshot"

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ServerError, match=r"cannot write the snapshot .*: No space left on device"):
        async with DevApiServer(snapshot=file):
            before = file.read_bytes()
            monkeypatch.setattr("dra_devcluster.apiserver.server.os.fsync", full)
    assert os.listdir(tmp_path) == ["snapshot"]
    assert file.read_bytes() == before


def test_a_client_that_only_connects_leaves_no_socket_behind() -> None:
    """Its TLS handshake is under way when the server ends; pytest reports a socket that is collected open."""
    with socket.socket() as mute:
        with serve_in_thread() as server:
            mute.connect((server.host, server.port))
            context = ssl.create_default_context(cadata=server.ca.decode())
            caller = http.client.HTTPSConnection(server.host, server.port, context=context)
            caller.request("GET", "/version")
            caller.getresponse().read()  # so the connection before it has been accepted
            caller.close()
        del server
        gc.collect()


def test_a_server_that_does_not_run_says_so() -> None:
    server = DevApiServer()
    for ask in (lambda: server.ca_file, server.end_watches, server.expire_watches):
        with pytest.raises(RuntimeError, match="the server is not running"):
            ask()


async def test_clients_in_an_outage_meet_each_answer_of_a_server_in_trouble(
    server: DevApiServer, client: Client
) -> None:
    server.fail_requests(server.token, but="kubectl")
    assert [await client.code(CONFIG_MAPS) for _ in range(4)] == [500, 503, 429, 500]
    answers = [await client.call("PUT", f"{CONFIG_MAPS}/a", {}) for _ in range(4)]
    assert sorted(answer.code for answer in answers) == [409, 429, 500, 503]
    server.answer_again(server.token)
    assert await client.code(CONFIG_MAPS) == 200


def test_a_certificate_names_the_host_that_clients_use() -> None:
    for host, kind in (
        ("cluster.example.com", x509.DNSName),
        ("192.0.2.7", x509.IPAddress),
        ("localhost", x509.DNSName),
    ):
        certificates = x509.load_pem_x509_certificates(_server_certificate(host))
        names_ = certificates[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert [str(it) for it in names_.get_values_for_type(kind)].count(host) == 1


def _server_certificate(host: str) -> bytes:
    loaded: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dra_devcluster.apiserver.identity._context", lambda certificate, key: loaded.append(certificate))
        make_identity(host)
    return loaded[0]


def test_a_kubeconfig_that_cannot_be_replaced_leaves_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").mkdir()
    with pytest.raises(IsADirectoryError):
        write_kubeconfig(tmp_path / "kubeconfig", {})
    assert [it.name for it in tmp_path.iterdir()] == ["kubeconfig"]
    for text in ("[]", "clusters: x", "users: [1]"):
        (tmp_path / "other").write_text(text)
        with pytest.raises(ValueError, match="it is not a kubeconfig"):
            read_kubeconfig(tmp_path / "other")
