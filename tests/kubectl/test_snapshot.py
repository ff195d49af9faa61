"""``kubectl dra snapshot`` and ``--from``: what goes in comes out, apart from what may be secret."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any, Final

import pytest
from dra_api.releases import Release
from dra_operator.kubectl.cli import main
from dra_operator.kubectl.settings import Settings
from dra_operator.kubectl.snapshot import load
from scheduling_causes import claim, device_class, node, pod, slice_

CLUSTER = Path(__file__).parent / "cluster.yaml"
SECRET = "hunter2"


def test_a_snapshot_of_a_snapshot_is_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = tmp_path / "first.json"
    assert main(["snapshot", str(first), "--from", str(CLUSTER)]) == 0
    assert main(["snapshot", "--from", str(first)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == first.read_text().splitlines()
    assert first.stat().st_mode & 0o077 == 0, "names and messages are not for other users"
    assert load(str(first)).objects == load(str(CLUSTER)).objects


def test_a_snapshot_keeps_which_gates_are_on_beside_the_api_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They count unless a release is named, in which case that alone decides."""
    file = tmp_path / "gates.json"
    header = {"kubernetes": "1.37", "gates": {"DRAFractionalCapacityRange": True}}
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "snapshot": header, "items": []}))
    assert main(["snapshot", str(tmp_path / "again.json"), "--from", str(file)]) == 0
    seen = load(str(tmp_path / "again.json"))
    for chosen, is_on in ((None, True), (Release.V1_37, False)):
        assert Settings(release=chosen).features(seen).fractional_capacity_ranges is is_on


def hostile() -> list[dict[str, Any]]:
    """Objects with something secret wherever the API lets users and drivers write."""
    meta = {"namespace": "ns", "annotations": {"note": SECRET}}
    config = [{"opaque": {"driver": "d", "parameters": {"token": SECRET}}}]
    devices = {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}], "config": config}
    given = [{"source": "FromClaim", **config[0]}]
    env = [{"name": "main", "image": SECRET, "args": [SECRET], "env": [{"name": "A", "value": SECRET}]}]
    volumes = [{"name": "v", "iscsi": {"secretRef": {"name": SECRET}}}, {"name": "s", "secret": {"secretName": SECRET}}]
    status = {"allocation": {"devices": {"results": [], "config": given}}}
    status["devices"] = [{"driver": "d", "pool": "p", "device": "x", "data": {"key": SECRET}}]  # type: ignore[assignment]
    dra = {"apiVersion": "resource.k8s.io/v1"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", **meta},
            "spec": {"containers": env, "volumes": volumes},
        },
        {
            **dra,
            "kind": "ResourceClaim",
            "metadata": {"name": "c", **meta},
            "spec": {"devices": devices},
            "status": status,
        },
        {
            **dra,
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "t", **meta},
            "spec": {"metadata": meta, "spec": {"devices": devices}},
        },
        {
            **dra,
            "kind": "DeviceClass",
            "metadata": {"name": "c", "annotations": {"note": SECRET}},
            "spec": {"config": config},
        },
    ]


def test_a_snapshot_holds_no_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "cluster.json"
    source.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": hostile()}))
    assert main(["snapshot", "--from", str(source)]) == 0
    written = capsys.readouterr().out
    assert {item["kind"] for item in json.loads(written)["items"]} == {item["kind"] for item in hostile()}
    assert SECRET not in written


def test_what_was_read_is_not_made_into_a_text_when_the_reads_end() -> None:
    """Up to Python 3.12, ``asyncio.run`` makes the repr of what it returns."""
    seen = load(str(CLUSTER))
    assert len(seen.objects) > 5
    assert len(repr(seen)) < 200


NODE: Final = '{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}}'
HEADER: Final = '{"kind": "List", "snapshot": {"namespace": "team"}, "items": []}'


@pytest.mark.parametrize(
    ("name", "text", "objects", "namespace"),
    [
        ("begins-empty.yaml", f"---\n---\n{NODE}", 1, "default"),
        ("begins-with-a-comment.yaml", f"# a comment\n---\n---\n{HEADER}\n---\n{NODE}", 1, "team"),
        ("list.yaml", f"- {NODE}", 1, "default"),
        ("list.json", f"[{NODE}]", 1, "default"),
    ],
)
def test_a_file_may_begin_with_an_empty_document_or_be_a_list(
    name: str, text: str, objects: int, namespace: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    seen = load(str(tmp_path / name))
    assert (len(seen.objects), seen.namespace) == (objects, namespace)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.yaml", "kind: Pod\nmetadata: {name: x\n", "not YAML: while parsing a flow mapping, did not find expected "),
        ("b.json", '{"apiVersion": "v1", "kind": "List", "items": 5}', "document 1: items is no list"),
        ("", "", "kubectl dra: --from '' is not possible: name a file"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(
    name: str, text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    if name:
        path.write_text(text)
    assert main(["why", "pod/x", "--from", str(path) if name else ""]) == 2
    complaint = capsys.readouterr().err
    assert said in complaint
    assert complaint.count("\n") == 1


DUMP: Final = """
{apiVersion: v1, kind: List, items: [
 {apiVersion: resource.k8s.io/v1, kind: ResourceSlice, metadata: {name: s}, spec: {driver: d.example.com, nodeName: n,
  pool: {name: n, generation: 1, resourceSliceCount: 1}, devices: [{name: x}]}},
 {apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: c, namespace: ns, uid: c}, spec: {devices: {}},
  status: {allocation: {devices: {results: [{request: r, driver: d.example.com, pool: n, device: x}]}},
           reservedFor: [{resource: pods, name: p, uid: p}]}}]}
"""


@pytest.mark.parametrize("words", [["free"], ["why", "-A"], ["doctor"], ["why", "claim/c", "-n", "ns"]])
def test_a_kind_that_a_dump_does_not_hold_is_unknown(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``kubectl get resourceslices,resourceclaims -o yaml`` has no nodes, which says nothing about the cluster."""
    (tmp_path / "dump.yaml").write_text(DUMP)
    main([*words, "--from", str(tmp_path / "dump.yaml")])
    said = capsys.readouterr()
    text = said.out + said.err
    assert "holds no Node" in text
    assert "does not exist" not in text
    assert "Nothing is free" not in text
    assert "you may not list" not in text


RUNS: Final = pod("runs", nodeName="gpu-1", resourceClaims=[{"name": "gpu", "resourceClaimName": "c"}])
DUMPED: Final = [
    device_class(),
    node("gpu-1"),
    slice_("gpu-1"),
    claim(held=["gpu-1/gpu-0"], users=["runs"]),
    RUNS | {"metadata": {**RUNS["metadata"], "uid": "uid-runs"}},
]
"""What kubectl prints of a cluster in which one pod runs with a device."""


@pytest.mark.parametrize(
    ("missing", "command"),
    [
        ("ResourceSlice", "free"),
        ("ResourceSlice", "top"),
        ("ResourceClaim", "free"),
        ("ResourceClaim", "who gpu-1"),
        ("DeviceClass", "free"),
        ("DeviceClass", "top classes"),
        ("Node", "free"),
    ],
)
def test_a_kind_that_a_dump_lacks_is_unknown_and_not_empty(
    missing: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "dump.json"
    file.write_text(json.dumps({"kind": "List", "items": [it for it in DUMPED if it["kind"] != missing]}))
    assert main([*command.split(), "--from", str(file)]) == 1
    assert f"holds no {missing}" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["Node", "Pod", "ResourceSlice", "ResourceClaim", "DeviceClass"])
def test_doctor_deletes_nothing_for_want_of_a_kind(
    missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "dump.json"
    file.write_text(json.dumps({"kind": "List", "items": [it for it in DUMPED if it["kind"] != missing]}))
    main(["doctor", "--from", str(file)])
    assert "kubectl delete" not in capsys.readouterr().out


def test_a_lease_of_a_tenant_with_the_name_of_the_operators_does_not_count(tmp_path: Path) -> None:
    """A dump has the Leases of all namespaces, and tenants may create some in theirs."""
    said = {"dra.kopf.dev/settings": json.dumps({"preemption": True})}
    spec = {"holderIdentity": "x", "leaseDurationSeconds": 15, "renewTime": "2030-01-01T12:00:00.000000Z"}
    file = tmp_path / "dump.json"
    for namespace in ("tenant", "kube-system"):
        meta = {"name": "dra-operator-dra-scheduler", "namespace": namespace, "annotations": said}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [lease, node("n")]}))
        assert Settings().completed(load(str(file))).preemption is (namespace == "kube-system")


def test_a_snapshot_through_a_pipe_keeps_what_it_says_of_itself(tmp_path: Path) -> None:
    """As in ``--from <(zcat snapshot.json.gz)``: a pipe can be read only once."""
    pipe, header = tmp_path / "pipe", {"taken": "2030-01-01T12:00:00Z", "kubernetes": "1.35", "namespace": "ml"}
    text = json.dumps({"apiVersion": "v1", "kind": "List", "snapshot": header, "items": [node("gpu-1")]})
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(text,))
    writer.start()
    seen = load(str(pipe))
    writer.join()
    assert (seen.release, seen.namespace, seen.taken.year, seen.is_whole) == (Release.V1_35, "ml", 2030, True)
    assert [obj.metadata.name for obj in seen.objects] == ["gpu-1"]
