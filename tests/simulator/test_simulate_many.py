"""Many pods and nodes from files: nodes that answer alike once, a summary, and the same as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from allocator_lab import claim, device, device_class, first_available, pool, request, sub
from dra_api.codec import convert
from dra_api.core import Node
from dra_operator.allocator import AllocationError, GaveUp, Inventory
from dra_operator.cli import main
from dra_operator.scheduling import Faulty, NodeStatus, Undecided
from dra_operator.scheduling.state import LoadedNode
from dra_simulator import report as text_report
from dra_simulator.report import SimulatedAttempt, Verdict, document
from placement_lab import Attributes

Json = dict[str, Any]
NODES = 12


def kubernetes(kind: str, item: Json) -> Json:
    version = "v1" if kind in ("Namespace", "Node", "Pod") else "resource.k8s.io/v1"
    return {"apiVersion": version, "kind": kind, **item}


def node(name: str, **spec: Any) -> Json:
    return kubernetes("Node", {"metadata": {"name": name}, "spec": spec, "status": {"allocatable": {"cpu": "4"}}})


def pod(name: str, template: str = "one", **spec: Any) -> Json:
    uses = [{"name": "gpu", "resourceClaimTemplateName": template}]
    return kubernetes("Pod", {"metadata": {"name": name}, "spec": {"resourceClaims": uses, **spec}})


def template(name: str, **wanted: Any) -> Json:
    spec = {"spec": claim(request("r", **wanted))["spec"]}
    return kubernetes("ResourceClaimTemplate", {"metadata": {"name": name}, "spec": spec})


def cluster(*more: Json) -> list[Json]:
    """Twelve nodes: four cordoned, four with one device, four with two."""
    names = [f"n{number:02}" for number in range(NODES)]
    objects = [node(name, unschedulable=place < 4) for place, name in enumerate(names)]
    for place, name in enumerate(names):
        devices = [device("a"), device("b")][: 1 if place < 8 else 2]
        objects += [kubernetes("ResourceSlice", slice_) for slice_ in pool(*devices, name=name, nodeName=name)]
    return [kubernetes("DeviceClass", device_class("any")), template("one"), template("two", count=2), *objects, *more]


def simulate(capsys: pytest.CaptureFixture[str], folder: Path, objects: list[Json], *options: str) -> str:
    path = folder / "objects.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    assert main(["simulate", "-f", str(path), *options]) == 0
    return capsys.readouterr().out


def test_nodes_that_answer_alike_are_reported_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report = simulate(capsys, tmp_path, cluster(pod("web", "two"))).splitlines()
    assert report[:8] == [
        "pod default/web, claims default/web-gpu",
        "would fit 4 of 12 nodes",
        "node n08: fits",
        "  claim default/web-gpu",
        "    r: drv/n08/a",
        "    r: drv/n08/b",
        "  3 other nodes give as many devices: n09, n10, n11",
        "nodes n00, n01, n02, n03: the pod cannot run there: node(s) were unschedulable",
    ]
    assert report[8] == "node n04: does not fit (too few devices match)"
    assert report[-2:] == ["  3 other nodes fail for the same reason: n05, n06, n07", "summary: 1 pod: fits 1"]


ERRORS: dict[str, tuple[NodeStatus, str, str]] = {
    "faulty": (Faulty(AllocationError("claim c: no such key")), "error: claim c: no such key", "claim c: no such key"),
    "undecided": (Undecided(GaveUp("n1", 5).text), GaveUp("n1", 5).text, GaveUp("n1", 5).text),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_nodes_with_the_same_error_are_reported_once(kind: str) -> None:
    answer, text, message = ERRORS[kind]
    states = [LoadedNode(convert(Node, {"metadata": {"name": name}})) for name in ("n1", "n2")]
    attempt = SimulatedAttempt(None, (), answers=tuple((state, answer) for state in states))
    lines = list(text_report.report([attempt], Inventory(language=Attributes()), sequential=False))
    assert lines[1:] == ["would fit 0 of 2 nodes", f"nodes n1, n2: {text}"]
    (listed,) = document([attempt], [])["attempts"]
    assert listed["nodes"] == [{"node": name, "answer": kind, "message": message} for name in ("n1", "n2")]


def test_a_summary_counts_the_verdicts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pods = [pod(f"p{number}", "two") for number in range(6)] + [pod("old", nodeName="n00"), pod("odd", volumes=VOLUMES)]
    report = simulate(capsys, tmp_path, cluster(*pods), "--sequential").splitlines()
    assert report[-1] == (
        "summary: 8 pods: fits 4, refused 2, not-tried 1, placed 1; without a node: default/p4, default/p5, default/odd"
    )


VOLUMES = [{"name": "data", "iscsi": {}}]


def test_the_same_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pods = [pod("web", "two"), pod("odd", volumes=VOLUMES), pod("old", nodeName="n00"), pod("big", "eight")]
    objects = cluster(template("eight", count=8), *pods)
    found = json.loads(simulate(capsys, tmp_path, objects, "-o", "json"))
    assert (found["version"], found["notes"]) == (1, [])
    assert found["summary"] == {"fits": 1, "not-tried": 1, "placed": 1, "refused": 1}
    web, odd, old, big = found["attempts"]
    assert (web["pod"], web["claims"], web["verdict"]) == ("default/web", ["default/web-gpu"], "fits")
    assert [entry["answer"] for entry in web["nodes"]] == ["obstructed"] * 4 + ["lacking"] * 4 + ["fits"] * 4
    assert web["nodes"][0]["obstacle"] == {"kind": "cordoned", "subject": "", "text": "node(s) were unschedulable"}
    refusal = web["nodes"][4]["refusal"]
    assert (refusal["kind"], refusal["claim"], refusal["request"]) == ("selector", "default/web-gpu", "r")
    assert (refusal["needs"], refusal["devices"], refusal["matching"], refusal["lost"]) == (2, 1, 1, {})
    results = web["nodes"][8]["allocations"]["default/web-gpu"]["devices"]["results"]
    assert [given["device"] for given in results] == ["a", "b"]
    assert web["node"] == "n08"
    assert (odd["verdict"], odd["obstacle"]["kind"], odd["nodes"]) == ("not-tried", "unsupported", [])
    assert (old["verdict"], old["node"]) == ("placed", "n00")
    assert (big["verdict"], big["node"]) == ("refused", None)
    assert big["message"].startswith("0/12 nodes are available: 8 cannot satisfy claim default/big-gpu")


def test_as_json_each_pod_gets_what_the_pods_before_it_have_left(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    objects = cluster(*(pod(f"p{number}", "two") for number in range(5)))
    found = json.loads(simulate(capsys, tmp_path, objects, "-o", "json", "--sequential"))
    assert [attempt["node"] for attempt in found["attempts"]] == ["n08", "n09", "n10", "n11", None]
    lacking = found["attempts"][4]["nodes"][8]["refusal"]
    assert (lacking["kind"], lacking["lost"], lacking["held"]) == ("in-use", {"in-use": 2}, ["drv/n08/a", "drv/n08/b"])


def test_an_error_on_one_node_keeps_a_pod_from_that_node_only(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    selector = 'device.attributes["drv"].model == "A"'
    slices = [kubernetes("ResourceSlice", pool(it, name=at, nodeName=at)[0]) for at, it in MODELS.items()]
    wanted = template("picky", selectors=[{"cel": {"expression": selector}}])
    nodes = [node("n1"), node("n2")]
    objects = [kubernetes("DeviceClass", device_class("any")), wanted, *nodes, *slices, pod("web", "picky")]
    report = simulate(capsys, tmp_path, objects).splitlines()
    assert report[1] == "would fit 1 of 2 nodes"
    assert any(line.startswith("node n2: error: claim default/web-gpu: selector #0: ") for line in report)
    assert report[-1] == "summary: 1 pod: fits 1"
    (attempt,) = json.loads(simulate(capsys, tmp_path, objects, "-o", "json"))["attempts"]
    assert (attempt["verdict"], attempt["node"]) == ("fits", "n1")
    assert [entry["answer"] for entry in attempt["nodes"]] == ["fits", "faulty"]
    assert "no such key: model" in attempt["nodes"][1]["message"]


def test_an_error_of_the_claim_holds_a_pod_back_on_all_nodes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The selector of the second alternative does not compile, which only shows where the first one finds nothing."""
    slices = [kubernetes("ResourceSlice", pool(it, name=at, nodeName=at)[0]) for at, it in MODELS.items()]
    subs = [sub("a", 'device.attributes["drv"].?model.orValue("") == "A"'), sub("b", "device.nothing")]
    wanted = kubernetes(
        "ResourceClaimTemplate",
        {"metadata": {"name": "broken"}, "spec": {"spec": claim(first_available("r", *subs))["spec"]}},
    )
    objects = [kubernetes("DeviceClass", device_class("any")), wanted, node("n1"), node("n2"), *slices]
    report = simulate(capsys, tmp_path, [*objects, pod("web", "broken")]).splitlines()
    said = "would fit none of 2 nodes, although the devices of 1 would do: held back by an error: claim default/web-gpu"
    assert report[1].startswith(said)
    assert report[-1] == "summary: 1 pod: error 1; without a node: default/web"


MODELS = {"n1": device("a", model="A"), "n2": device("b")}


def test_alternative_templates_without_a_pod_are_tried_alone_as_well(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Templates of one folder are seldom for one pod."""
    one_each = [node("n1"), kubernetes("ResourceSlice", pool(device("a"), name="n1", nodeName="n1")[0])]
    two = [kubernetes("DeviceClass", device_class("any")), template("other"), template("small"), *one_each]
    report = simulate(capsys, tmp_path, two).splitlines()
    assert report[1:3] == [
        "would fit 0 of 1 node",
        "each of these claims would fit alone: add a pod that uses the ones that belong together",
    ]
    three = [*two, template("large", count=2)]
    assert "alone would fit: default/other, default/small" in simulate(capsys, tmp_path, three)
    (attempt,) = json.loads(simulate(capsys, tmp_path, three, "-o", "json"))["attempts"]
    assert sorted(attempt["fitsAlone"]) == ["default/other", "default/small"]
    alone = [kubernetes("DeviceClass", device_class("any")), template("large", count=2), *one_each]
    assert "alone" not in simulate(capsys, tmp_path, alone)
    assert "alone" not in simulate(capsys, tmp_path, [it for it in two if it["metadata"]["name"] != "other"])


def test_claims_without_a_pod_are_one_attempt(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    objects = [*cluster(), kubernetes("ResourceClaim", claim(request("r")))]
    (attempt,) = json.loads(simulate(capsys, tmp_path, objects, "-o", "json"))["attempts"]
    assert (attempt["pod"], attempt["verdict"], len(attempt["nodes"])) == (None, "refused", NODES)
    assert attempt["claims"] == ["default/c", "default/one", "default/two"]


def test_the_page_names_every_verdict() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "simulate.md").read_text()
    assert [verdict for verdict in Verdict if f"`{verdict.value}`" not in page] == []


def test_pods_near_others_of_a_namespace_with_labels(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Namespaces count, and with --sequential so do pods that an earlier one was placed beside."""
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "db"}}}
    term["namespaceSelector"] = {"matchLabels": {"team": "x"}}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    objects = [node("n0"), node("n1")]
    for each in objects:
        each["metadata"]["labels"] = {"zone": each["metadata"]["name"]}
    meta = {"namespace": "other", "labels": {"app": "db"}}
    objects.append(kubernetes("Pod", {"metadata": {"name": "db", **meta}, "spec": {"nodeSelector": {"zone": "n1"}}}))
    objects.append(kubernetes("Pod", {"metadata": {"name": "near"}, "spec": {"affinity": affinity}}))
    rule = "node(s) didn't match pod affinity rules (topology key zone)"
    assert f"nodes n0, n1: the pod cannot run there: {rule}" in simulate(capsys, tmp_path, objects, "--sequential")
    namespace = {"metadata": {"name": "other", "labels": {"team": "x"}}}
    report = simulate(capsys, tmp_path, [*objects, kubernetes("Namespace", namespace)], "--sequential").splitlines()
    assert report[report.index("pod default/near, claims none") + 1 :][-2:] == [
        "gets node n1",
        "summary: 2 pods: fits 2",
    ]
