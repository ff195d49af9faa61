"""``dra-operator simulate -f`` on what ``kubectl get`` wrote of a cluster: incomplete, doubled, limited by quotas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from allocator_lab import claim, device, device_class, pool, request
from dra_operator.cli import main

Json = dict[str, Any]
DEVICES = ".deviceclass.resource.k8s.io/devices"
COUNT = "count/resourceclaims.resource.k8s.io"


def obj(kind: str, name: str, version: str = "v1", /, *, meta: Json | None = None, **fields: Any) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **(meta or {})}, **fields}


def dra(kind: str, name: str, **fields: Any) -> Json:
    return obj(kind, name, "resource.k8s.io/v1", **fields)


def pod(name: str, *, template: str = "", claim: str = "", **spec: Any) -> Json:
    source = {"resourceClaimTemplateName": template} if template else {"resourceClaimName": claim}
    return obj("Pod", name, spec={"resourceClaims": [{"name": "gpu", **source}], **spec})


def template(name: str, **wanted: Any) -> Json:
    return dra("ResourceClaimTemplate", name, spec={"spec": claim(request("r", **wanted))["spec"]})


def existing(name: str) -> Json:
    """A claim as the server stores it, without devices."""
    return dra("ResourceClaim", name, meta={"uid": f"uid-{name}"}, spec=claim(request("r"))["spec"])


def serving(name: str, resource: str) -> Json:
    return dra("DeviceClass", name, spec={"extendedResourceName": resource})


def quota(hard: Json, used: Json | None = None, **spec: Any) -> Json:
    status = {"hard": hard, "used": used} if used is not None else {}
    return obj("ResourceQuota", "limits", spec={"hard": hard, **spec}, status=status)


CLUSTER = [
    dra("DeviceClass", "any", spec=device_class("any")["spec"]),
    *({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **it} for it in pool(*map(device, "abcd"))),
    obj("Node", "n1"),
    template("one"),
]


def simulated(
    capsys: pytest.CaptureFixture[str], folder: Path, *objects: Json, code: int = 0, options: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The attempts, by the name of the pod, and the notes."""
    path = folder / "dump.yaml"
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [*CLUSTER, *objects]}))
    assert main(["simulate", "-f", str(path), "-o", "json", *options]) == code
    found = json.loads(capsys.readouterr().out)
    named = {(attempt["pod"] or "").rpartition("/")[2]: attempt for attempt in found["attempts"]}
    named["notes"] = found["notes"]
    return named


def held_back(attempt: Json) -> tuple[str, str, str]:
    """Kind and subject of the obstacle, and its text, which the message repeats."""
    assert (attempt["verdict"], attempt["node"], attempt["nodes"]) == ("not-tried", None, [])
    obstacle = attempt["obstacle"]
    assert attempt["message"] == f"is not tried: {obstacle['text']}"
    return obstacle["kind"], obstacle["subject"], obstacle["text"]


def devices(attempt: Json) -> list[str]:
    """What the attempt's claims get on the one node."""
    (node,) = attempt["nodes"]
    allocated = (allocation["devices"]["results"] for allocation in node["allocations"].values())
    return [given["device"] for results in allocated for given in results]


RECORDED = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "web-gpu-x1"}]}
MISSING: dict[str, tuple[Json, tuple[str, str], str]] = {
    "a template": (
        pod("web", template="gone"),
        ("template-missing", "default/gone"),
        "entry gpu: ResourceClaimTemplate default/gone is not in the files: "
        "add it, or correct resourceClaimTemplateName",
    ),
    "a claim": (
        pod("web", claim="gone"),
        ("claim-missing", "default/gone"),
        "entry gpu: ResourceClaim default/gone is not in the files: add it, or correct resourceClaimName",
    ),
    "a claim that was made already, and its template": (
        {**pod("web", template="gone"), "status": RECORDED},
        ("claim-missing", "default/web-gpu-x1"),
        "entry gpu: ResourceClaim default/web-gpu-x1 is not in the files, nor is ResourceClaimTemplate default/gone, "
        "of which it would be made again: add one of them",
    ),
}


@pytest.mark.parametrize(("lacking", "about", "text"), MISSING.values(), ids=MISSING.keys())
def test_a_pod_that_lacks_its_claim_costs_no_other_pod_its_answer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, lacking: Json, about: tuple[str, str], text: str
) -> None:
    found = simulated(capsys, tmp_path, pod("before", template="one"), lacking, pod("after", template="one"), code=1)
    assert held_back(found["web"]) == (*about, text)
    assert [found[name]["verdict"] for name in ("before", "after")] == ["fits", "fits"]


def test_all_that_a_pod_lacks_is_said_at_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    uses = [{"name": "a", "resourceClaimTemplateName": "t"}, {"name": "b", "resourceClaimName": "c"}]
    path = tmp_path / "dump.yaml"
    path.write_text(yaml.safe_dump_all([*CLUSTER, pod("web", template="one", resourceClaims=uses)]))
    assert main(["simulate", "-f", str(path)]) == 1
    assert capsys.readouterr().out.splitlines()[:2] == [
        "pod default/web, claims none",
        "is not tried: entry a: ResourceClaimTemplate default/t is not in the files: add it, or correct "
        "resourceClaimTemplateName; entry b: ResourceClaim default/c is not in the files: add it, or correct "
        "resourceClaimName",
    ]


def test_a_recorded_claim_that_is_gone_is_made_again_of_its_template(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = simulated(capsys, tmp_path, {**pod("web", template="one"), "status": RECORDED})
    assert (found["web"]["verdict"], found["web"]["claims"]) == ("fits", ["default/web-gpu-x1"])


def test_pods_whose_claims_would_have_one_name_get_claims_of_their_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def uses(*entries: str) -> list[Json]:
        return [{"name": entry, "resourceClaimTemplateName": "one"} for entry in entries]

    pods = [pod("a", template="one", resourceClaims=uses("b-c")), pod("a-b", template="one", resourceClaims=uses("c"))]
    there = {**template("one"), "metadata": {"name": "one", "namespace": "other"}}
    away = pod("a", template="one", resourceClaims=uses("b-c"))
    away["metadata"]["namespace"] = "other"
    path = tmp_path / "dump.yaml"
    path.write_text(yaml.safe_dump_all([*CLUSTER, there, *pods, away]))
    assert main(["simulate", "-f", str(path), "-o", "json", "--sequential"]) == 0
    attempts = json.loads(capsys.readouterr().out)["attempts"]
    assert [attempt["verdict"] for attempt in attempts] == ["fits"] * 3
    assert [attempt["claims"] for attempt in attempts] == [["default/a-b-c"], ["default/a-b-c-2"], ["other/a-b-c"]]
    given = [result for attempt in attempts for result in devices(attempt)]
    assert sorted(given) == ["a", "b", "c"]


@pytest.mark.parametrize("ends", ["placed", "done"])
def test_a_pod_that_has_its_node_or_is_done_needs_no_claim(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, ends: str
) -> None:
    """A Job's pod often outlives its template, and its claim always."""
    status = {"phase": "Succeeded" if ends == "done" else "Running", **RECORDED}
    old = {**pod("old", template="gone", nodeName="n1" if ends == "placed" else ""), "status": status}
    older = {**pod("older", claim="gone", nodeName="n1" if ends == "placed" else ""), "status": status}
    found = simulated(capsys, tmp_path, old, older, pod("web", template="one"))
    assert [found[name]["verdict"] for name in ("old", "older", "web")] == [ends, ends, "fits"]


def test_a_pod_behind_the_gate_of_somebody_else_is_not_tried(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def gated(*names: str) -> Json:
        return pod("web", template="one", schedulingGates=[{"name": name} for name in names])

    queue, ours = "kueue.x-k8s.io/admission", "dra.kopf.dev/allocate"
    kind, subject, text = held_back(simulated(capsys, tmp_path, gated(queue))["web"])
    assert (kind, subject) == ("scheduling-gate", queue)
    assert text == f"the pod waits for its scheduling gates to be removed: {queue}"
    *_, text = held_back(simulated(capsys, tmp_path, gated(queue, ours))["web"])
    assert text.endswith(f"{queue}; then the operator allocates its devices and removes {ours}")
    assert simulated(capsys, tmp_path, gated(ours))["web"]["verdict"] == "fits"


LABEL = {"resource.kubernetes.io/admin-access": "true"}


@pytest.mark.parametrize("source", ["template", "claim", "no pod"])
def test_admin_access_needs_the_label_on_the_namespace(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, source: str
) -> None:
    admin = claim(request("r", adminAccess=True))["spec"]
    wanted = dra("ResourceClaim", "c", spec=admin)
    if source == "template":
        wanted = template("t", adminAccess=True)
    pods = {"template": [pod("web", template="t")], "claim": [pod("web", claim="c")], "no pod": []}[source]
    name, objects = "web" if pods else "", (wanted, *pods)
    for labels in ({}, {next(iter(LABEL)): "yes"}):
        found = simulated(capsys, tmp_path, *objects, obj("Namespace", "default", meta={"labels": labels}))
        kind, subject, text = held_back(found[name])
        assert (kind, subject) == ("admin-access", "default")
        assert "namespace default" in text
        assert "resource.kubernetes.io/admin-access: true" in text
    found = simulated(capsys, tmp_path, *objects, obj("Namespace", "default", meta={"labels": LABEL}))
    assert (found[name]["verdict"], found["notes"]) == ("fits", [])
    found = simulated(capsys, tmp_path, *objects)
    assert found[name]["verdict"] == "fits"
    assert found["notes"] == [
        "Namespace default is not in the files: admin access is taken as permitted there "
        "(label resource.kubernetes.io/admin-access: true)"
    ]


def test_admin_access_that_was_granted_stays(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    result = {"request": "r", "driver": "drv", "pool": "p", "device": "a", "adminAccess": True}
    spec = claim(request("r", adminAccess=True))["spec"]
    held = dra("ResourceClaim", "c", spec=spec, status={"allocation": {"devices": {"results": [result]}}})
    assert simulated(capsys, tmp_path, held, pod("web", claim="c"), obj("Namespace", "default"))["web"]["node"] == "n1"


REFUSED: dict[str, tuple[list[Json], str]] = {
    "claims": ([quota({COUNT: 0})], f"requested: {COUNT}=1, used: {COUNT}=0, limited: {COUNT}=0"),
    "claims that exist": (
        [quota({COUNT: 2}), existing("x"), existing("y")],
        f"requested: {COUNT}=1, used: {COUNT}=2, limited: {COUNT}=2",
    ),
    "as the quota itself counts": (
        [quota({COUNT: "7"}, {COUNT: "7"})],
        f"requested: {COUNT}=1, used: {COUNT}=7, limited: {COUNT}=7",
    ),
    "devices of the class": (
        [quota({f"any{DEVICES}": 2})],
        f"requested: any{DEVICES}=3, used: any{DEVICES}=0, limited: any{DEVICES}=2",
    ),
    "devices by the name of an extended resource": (
        [quota({"requests.deviceclass.resource.kubernetes.io/any": "1"})],
        "limited: requests.deviceclass.resource.kubernetes.io/any=1",
    ),
}


@pytest.mark.parametrize(("objects", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_a_quota_that_forbids_a_claim_from_a_template_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, objects: list[Json], said: str
) -> None:
    found = simulated(capsys, tmp_path, *objects, template("three", count=3), pod("web", template="three"))
    kind, subject, text = held_back(found["web"])
    assert (kind, subject) == ("quota", "default/limits")
    assert text.startswith("claim default/web-gpu: exceeded quota: limits, requested: ")
    assert said in text


def test_a_quota_that_counts_an_extended_resource_counts_the_devices_of_its_class(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    limits = quota({"requests.example.com/gpu": "1"})
    objects = [serving("gpus", "example.com/gpu"), template("two", deviceClassName="gpus", count=2), limits]
    found = simulated(capsys, tmp_path, *objects, pod("web", template="two"))
    assert "limited: requests.example.com/gpu=1" in held_back(found["web"])[2]


def test_a_claim_that_is_in_the_cluster_is_charged_already_and_one_without_uid_is_not(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    full = quota({COUNT: "1"}, {COUNT: "1"})
    assert simulated(capsys, tmp_path, full, existing("c"), pod("web", claim="c"))["web"]["verdict"] == "fits"
    new = dra("ResourceClaim", "c", spec=claim(request("r"))["spec"])
    assert held_back(simulated(capsys, tmp_path, full, new, pod("web", claim="c"))["web"])[0] == "quota"
    assert held_back(simulated(capsys, tmp_path, full, new)[""])[0] == "quota"


UNCONCERNED: dict[str, Json] = {
    "room": quota({COUNT: 1, f"any{DEVICES}": 1}),
    "another class": quota({f"other{DEVICES}": 0}),
    "a quota of pods only": quota({COUNT: 0}, scopes=["BestEffort"]),
    "a quota of other pods": quota({COUNT: 0}, scopeSelector={"matchExpressions": []}),
    "another namespace": obj("ResourceQuota", "limits", meta={"namespace": "other"}, spec={"hard": {COUNT: 0}}),
}


@pytest.mark.parametrize("limits", UNCONCERNED.values(), ids=UNCONCERNED.keys())
def test_a_quota_that_leaves_room_forbids_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, limits: Json
) -> None:
    assert simulated(capsys, tmp_path, limits, pod("web", template="one"))["web"]["verdict"] == "fits"


def test_the_claims_of_earlier_pods_count_where_each_pod_finds_what_they_have_left(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A claim that two pods share is charged once."""
    shared = dra("ResourceClaim", "shared", spec=claim(request("r"))["spec"])
    pods = [pod("x", claim="shared"), pod("y", claim="shared"), pod("a", template="one"), pod("b", template="one")]
    objects = [quota({COUNT: 2}), shared, *pods]
    found = simulated(capsys, tmp_path, *objects, options=("--sequential",))
    assert [found[name]["verdict"] for name in "xyab"] == ["fits", "fits", "fits", "not-tried"]
    assert f"used: {COUNT}=2" in held_back(found["b"])[2]
    found = simulated(capsys, tmp_path, *objects)
    assert [found[name]["verdict"] for name in "xyab"] == ["fits"] * 4


@pytest.mark.parametrize(("limit", "verdict"), [(1, "not-tried"), (2, "fits")])
@pytest.mark.parametrize("counts", [COUNT, f"gpus{DEVICES}"])
def test_the_claim_for_extended_resources_is_charged(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, counts: str, limit: int, verdict: str
) -> None:
    """Not under the name of the resource: the pod is charged with that."""
    limit = limit - 1 if counts == COUNT else limit
    wanted = {"resources": {"requests": {"example.com/gpu": "2"}, "limits": {"example.com/gpu": "2"}}}
    web = obj("Pod", "web", spec={"containers": [{"name": "main", **wanted}]})
    limits = quota({counts: limit, "requests.example.com/gpu": 0})
    found = simulated(capsys, tmp_path, serving("gpus", "example.com/gpu"), limits, web)
    assert found["web"]["verdict"] == verdict
    if verdict == "not-tried":
        assert held_back(found["web"])[2].startswith("the claim for extended resources: exceeded quota: limits")


# --- what else a dump may be --------------------------------------------------------------------


def test_a_kind_of_another_group_is_left_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Longhorn, for example, has Nodes and Volumes of its own, named as those of Kubernetes."""
    other = obj("Node", "n1", "longhorn.io/v1beta2", spec={"taints": 7})
    found = simulated(capsys, tmp_path, other, pod("web", template="one"))
    assert [it["node"] for it in found["web"]["nodes"]] == ["n1"]


def test_of_an_object_that_two_dumps_hold_the_newer_one_counts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def node(version: str, **spec: Any) -> Json:
        return obj("Node", "n2", meta={"uid": "u2", "resourceVersion": version}, spec=spec)

    web = pod("web", template="one", nodeSelector={})
    for objects in ([node("9", unschedulable=True), node("10")], [node("10"), node("9", unschedulable=True)]):
        found = simulated(capsys, tmp_path, *objects, web)
        assert [(it["node"], it["answer"]) for it in found["web"]["nodes"]] == [("n1", "fits"), ("n2", "lacking")]


def test_items_of_a_typed_list_have_the_kind_of_the_list(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """As ``kubectl get --raw /api/v1/pods`` writes them."""
    web = {key: value for key, value in pod("web", template="one").items() if key not in ("kind", "apiVersion")}
    pods = {"apiVersion": "v1", "kind": "PodList", "items": [web]}
    path = tmp_path / "dump.yaml"
    path.write_text(yaml.safe_dump_all([*CLUSTER, pods]))
    assert main(["simulate", "-f", str(path)]) == 0
    assert "pod default/web" in capsys.readouterr().out


def test_items_of_an_object_that_is_no_list_are_its_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    menu = obj("Menu", "lunch", "example.com/v1", items=["soup", 7])
    path = tmp_path / "dump.yaml"
    path.write_text(yaml.safe_dump_all([*CLUSTER, menu, pod("web", template="one")]))
    assert main(["simulate", "-f", str(path)]) == 0
    assert "summary: 1 pod: fits 1" in capsys.readouterr().out
