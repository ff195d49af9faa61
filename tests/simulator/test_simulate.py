"""``dra-operator simulate``: answers to files of cases, and verdicts on ordinary objects."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from allocator_lab import claim, device, device_class, first_available, pool, request, sub
from corpus import CONFORMANCE, cases, kit
from dra_operator.cli import main
from dra_operator.commands.file_items import BadInput
from dra_operator.commands.object_files import KINDS as READ_KINDS
from dra_operator.commands.object_files import decoded
from kit_cases import FOLDER, expected
from kit_compare import difference
from volume_lab import (
    CSI,
    LATE,
    attachment,
    capacity,
    csi,
    csi_driver,
    csi_node,
    storage_class,
    uses,
    volume,
    volume_claim,
)

Json = dict[str, Any]
KINDS = {"class": "DeviceClass", "claim": "ResourceClaim", "slice": "ResourceSlice"}


def answers(capsys: pytest.CaptureFixture[str], path: Path, *options: str, code: int = 0) -> list[Json]:
    """The answers to a file of cases."""
    assert main(["simulate", str(path), *options]) == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def small_case(**changes: Any) -> Json:
    """One node, two devices, a claim for one."""
    return {
        "name": "small",
        "classes": [device_class("any")],
        "slices": pool(device("a"), device("b")),
        "claims": [claim(request("r"))],
        "node": {"metadata": {"name": "n1"}},
        **changes,
    }


def written(folder: Path, document: object) -> Path:
    path = folder / "cases.json"
    path.write_text(json.dumps(document))
    return path


# --- files of cases -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "options", "semantics"),
    [
        ("random", [], "reference"),
        ("random", ["--semantics", "reference"], "reference"),
        ("random", ["--semantics", "documented"], "documented"),
        ("deviations", [], "documented"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_every_problem_of_the_kit_gets_its_answer_by_the_semantics_that_are_asked_for(
    capsys: pytest.CaptureFixture[str], file: str, options: list[str], semantics: str
) -> None:
    """Without an option a case with a recorded answer is decided as the reference does."""
    recorded = kit(f"allocator/{file}")
    found = answers(capsys, FOLDER / "allocator" / f"{file}.jsonl.gz", "--kubernetes-version", "1.36", *options)
    assert [answer["name"] for answer in found] == [case["name"] for case in recorded]
    for case, answer in zip(recorded, found, strict=True):
        assert difference(expected(case, semantics) or [], answer, "all") is None, case["name"]
        assert 0 < answer["micros_min"] <= answer["micros_median"]


def test_semantics_decide_about_objects_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A DeviceTaintRule without selector taints no device by the documentation, and every device in Kubernetes 1.36."""
    spec = {"taint": {"key": "bad", "effect": "NoSchedule"}}
    rule = kubernetes("DeviceTaintRule", {"metadata": {"name": "rule"}, "spec": spec}, "resource.k8s.io/v1beta2")
    objects = [CLASS, *SLICES, rule, kubernetes("claim", claim(request("r")))]
    gates = ["--feature-gates", "DRADeviceTaintRules=true"]
    assert "node n1: fits" in verdict(capsys, tmp_path, *objects, options=gates)
    assert "node n1: does not fit" in verdict(capsys, tmp_path, *objects, options=[*gates, "--semantics", "reference"])


@pytest.mark.parametrize("file", ["cases", "interrupt", "cases-1.37-dev"])
def test_other_files_of_the_reference_data_are_understood(capsys: pytest.CaptureFixture[str], file: str) -> None:
    recorded = cases(f"allocator/{file}.json")
    assert len(answers(capsys, CONFORMANCE / "allocator" / f"{file}.json")) == len(recorded)


def test_a_stream_gets_an_answer_to_every_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [json.dumps(small_case(name="good")), "{", json.dumps(small_case(name="bad", mode="best")), "", "7"]
    typed_in(monkeypatch, "\n".join(lines).encode())
    good, broken, bad, number = answers(capsys, Path("-"), code=2)
    assert (good["name"], good["nodes"][0]["outcome"]) == ("good", "allocated")
    assert (broken["name"], "not JSON" in broken["error"]) == (None, True)
    assert (bad["name"], "mode" in bad["error"]) == ("bad", True)
    assert "expected an object" in number["error"]


def test_a_line_that_is_no_text_is_reported_and_the_others_are_answered(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = b"\xff{}\n" + json.dumps(small_case(name="good")).encode()
    typed_in(monkeypatch, text)
    broken, good = answers(capsys, Path("-"), code=2)
    assert "case 0: not JSON: 'utf-8' codec can't decode byte 0xff" in broken["error"]
    assert good["name"] == "good"
    (tmp_path / "cases.jsonl").write_bytes(text)
    (good,) = answers(capsys, tmp_path / "cases.jsonl", code=2)
    assert good["name"] == "good"


def typed_in(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Standard input has this, of which it knows that it is UTF-8."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


def test_json_lines_may_be_compressed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines = "".join(json.dumps(small_case(name=name)) + "\n" for name in "ab")
    (tmp_path / "cases.jsonl").write_text(lines)
    (tmp_path / "cases.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "cases.json.gz").write_bytes(gzip.compress(json.dumps([small_case(name="a")]).encode()))
    named = {path.name: [answer["name"] for answer in answers(capsys, path)] for path in sorted(tmp_path.iterdir())}
    assert named == {"cases.json.gz": ["a"], "cases.jsonl": ["a", "b"], "cases.jsonl.gz": ["a", "b"]}


def test_a_plain_list_of_cases_will_do(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (answer,) = answers(capsys, written(tmp_path, [small_case()]), "--repeat", "3")
    (node,) = answer["nodes"]
    assert (node["node"], node["outcome"], node["error"], node["refusal"]) == ("n1", "allocated", None, None)
    assert node["results"][0]["devices"]["results"][0]["device"] == "a"


def test_first_stops_at_the_first_node_that_fits_and_all_does_not(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    nodes = [{"metadata": {"name": name}} for name in ("n0", "n1", "n2")]
    several = [small_case(nodes=nodes, mode=mode) for mode in ("first", "all")]
    first, every = answers(capsys, written(tmp_path, several))
    assert [(node["node"], node["outcome"]) for node in first["nodes"]] == [("n0", "none"), ("n1", "allocated")]
    assert [node["outcome"] for node in every["nodes"]] == ["none", "allocated", "none"]


def crowd(count: int, **devices: list[Json]) -> Json:
    """Slices for so many nodes ``n000``, ..., each with one plain device unless asked for more."""
    names = [f"n{number:03}" for number in range(count)]
    slices = [pool(*devices.get(name, [device("a")]), name=name, nodeName=name)[0] for name in names]
    return {"nodes": [{"metadata": {"name": name}} for name in names], "slices": slices, "mode": "first"}


RARE = 'device.attributes["drv"].?rare.orValue(false)'


@pytest.mark.parametrize(
    ("selector", "tried", "last"),
    [(RARE, 97, "allocated"), ("true", 1, "allocated"), ("false", 100, "none")],
    ids=["one node fits", "all nodes fit", "no node fits"],
)
def test_among_many_nodes_the_answers_are_those_of_each_node(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, selector: str, tried: int, last: str
) -> None:
    case = small_case(**crowd(100, n096=[device("a", rare=True)]), claims=[claim(request("r", selector))])
    (answer,) = answers(capsys, written(tmp_path, [case]), "--repeat", "2")
    found = [(node["node"], node["outcome"]) for node in answer["nodes"]]
    assert found == [*((f"n{number:03}", "none") for number in range(tried - 1)), (f"n{tried - 1:03}", last)]


def test_an_error_on_a_node_that_the_index_leaves_out_is_still_met(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """All devices of n003 cannot have equal values, which is fatal in the reference, although it lacks others."""
    every = request("all", 'device.attributes["drv"].?k.orValue(-1) >= 0', allocationMode="All")
    several = crowd(100, n003=[device("a", k=1), device("b", k=2)], n090=[device("a", k=1), device("b", rare=True)])
    wanted = claim(every, request("r", RARE), constraints=[{"matchAttribute": "drv/k", "requests": ["all"]}])
    file = written(tmp_path, [small_case(**several, claims=[wanted])])
    (answer,) = answers(capsys, file, "--semantics", "reference")
    assert [node["outcome"] for node in answer["nodes"]] == ["none", "none", "none", "error"]
    (answer,) = answers(capsys, file)  # the error is that node's, and the others are asked
    outcomes = [node["outcome"] for node in answer["nodes"]]
    assert outcomes == [*["none"] * 3, "nodeError", *["none"] * 86, "allocated"]


def test_a_refusal_is_reported_with_its_numbers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    state = {"allocatedDevices": [{"driver": "drv", "pool": "p", "device": "a"}]}
    case = small_case(claims=[claim(request("r", count=2))], allocatedState=state)
    (answer,) = answers(capsys, written(tmp_path, [case]))
    (node,) = answer["nodes"]
    assert (node["outcome"], node["results"]) == ("none", None)
    assert (node["refusal"]["rule"], node["refusal"]["needs"], node["refusal"]["devices"]) == ("in-use", 2, 2)
    assert "1 in use" in node["refusal"]["text"]


def test_an_error_is_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (answer,) = answers(capsys, written(tmp_path, [small_case(classes=[])]))
    assert answer["nodes"][0]["outcome"] == "error"
    assert "device class any" in answer["nodes"][0]["error"]


BAD_FILES = {
    "no JSON": ("{", ["not JSON"]),
    "an object without cases": ('{"kind": "Pod"}', ["expected a list of cases", "-f"]),
    "a case that is no object": ("[7]", ["case 0", "expected an object"]),
    "no node": (json.dumps([small_case(node=None)]), ["case small", "neither node nor nodes"]),
    "an unknown mode": (json.dumps([small_case(mode="best")]), ["case small", "mode", "'best'"]),
    "a malformed slice": (
        json.dumps([small_case(slices=[{"metadata": {"name": "s"}, "spec": {"driver": 3}}])]),
        ["case small", "slices[0]", "spec.driver"],
    ),
    "malformed state": (
        json.dumps([small_case(allocatedState={"allocatedDevices": [{"driver": "d"}]})]),
        ["case small", "allocatedState", "allocatedDevices[0]", "pool"],
    ),
    "features that are no list": (json.dumps([small_case(features="all")]), ["case small", "features"]),
}


@pytest.mark.parametrize(("text", "said"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_bad_file_is_named_with_case_and_field(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, said: list[str]
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    assert main(["simulate", str(path)]) == 2
    message = capsys.readouterr().err
    assert all(part in message for part in [str(path), *said]), message


def test_a_bad_case_costs_only_its_own_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "cases.json"
    path.write_text(json.dumps([small_case(mode="best"), 7, small_case(name="good")]))
    assert main(["simulate", str(path)]) == 2
    said = capsys.readouterr()
    assert [json.loads(line)["name"] for line in said.out.splitlines()] == ["good"]
    assert "case small: mode" in said.err
    assert "case 1: expected an object, got int" in said.err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["x.json", "-f", "y.yaml"],
        ["x.json", "--repeat", "0"],
        ["-f", "y.yaml", "--repeat", "5"],
        ["x.json", "--node", "n"],
        ["x.json", "--placement-strategy", "frag"],
        ["x.json", "--device-order", "aligned"],
        ["x.json", "--placement-mix", "mix.yaml"],
        ["missing.json"],
    ],
)
def test_wrong_usage_ends_with_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main(["simulate", *arguments]) == 2
    assert capsys.readouterr().err.startswith("dra-operator simulate: ")


# --- ordinary objects ---------------------------------------------------------------------------


def kubernetes(kind: str, item: Json, version: str = "resource.k8s.io/v1") -> Json:
    return {"apiVersion": version, "kind": KINDS.get(kind, kind), **item}


def verdict(
    capsys: pytest.CaptureFixture[str], folder: Path, *documents: Json, options: list[str] | None = None
) -> str:
    """What is printed for the objects, all in one YAML file."""
    path = folder / "objects.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    assert main(["simulate", "-f", str(path), *(options or [])]) == 0
    return capsys.readouterr().out


CLASS = kubernetes("class", device_class("any"))
SLICES = [kubernetes("slice", slice_) for slice_ in pool(device("a"), device("b"))]


def test_the_devices_of_each_node_are_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    wanted = kubernetes("claim", claim(first_available("r", sub("many", count=9), sub("few"))))
    report = verdict(capsys, tmp_path, CLASS, *SLICES, wanted)
    assert report.splitlines() == [
        "claims default/c",
        "would fit 1 of 1 node",
        "node n1: fits",
        "  claim default/c",
        "    r/few: drv/p/a",
    ]


@pytest.mark.parametrize(
    ("options", "taken", "best"),
    [
        (["--placement-strategy", "first-fit"], "big", []),
        (["--placement-strategy", "first-fit", "--device-order", "best-fit"], "small", []),
        (["--placement-strategy", "best-fit"], "small", ["best is n1 by the placement strategy best-fit"]),
    ],
)
def test_settings_of_the_operator_decide_as_in_the_operator(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: list[str], taken: str, best: list[str]
) -> None:
    devices = device("big", capacity={"memory": "80Gi"}), device("small", capacity={"memory": "24Gi"})
    slices = [kubernetes("slice", it) for it in pool(*devices)]
    report = verdict(capsys, tmp_path, CLASS, *slices, kubernetes("claim", claim(request("r"))), options=options)
    assert report.splitlines()[4:] == [f"    r: drv/p/{taken}", *best]


def test_a_mix_says_what_devices_are_kept_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    slices = [kubernetes("slice", it) for it in pool(device("a", kind="rare"), device("b", kind="common"))]
    documents = (CLASS, *slices, kubernetes("claim", claim(request("r"))))
    mix, order = tmp_path / "mix.txt", ["--device-order", "least-loss"]
    assert "drv/p/a" in verdict(capsys, tmp_path, *documents, options=order)
    selectors = [{"cel": {"expression": 'device.attributes["drv"].kind == "rare"'}}]
    mix.write_text(json.dumps([{"weight": 1, "exactly": {"deviceClassName": "any", "selectors": selectors}}]))
    assert "drv/p/b" in verdict(capsys, tmp_path, *documents, options=[*order, "--placement-mix", str(mix)])
    mix.write_text("[{weight: 1}]")
    assert main(["simulate", "-f", str(tmp_path / "objects.yaml"), "--placement-mix", str(mix)]) == 2
    assert "mix.txt: entry 1: expected the fields weight, exactly and" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("storage", "said"),
    [
        pytest.param([csi_driver(tells_capacity=False), csi_node(1)], "fits", id="room for one volume"),
        pytest.param(
            [csi_driver(tells_capacity=False), csi_node(1), volume("other", spec=csi("handle")), attachment("other")],
            "the pod cannot run there: node(s) exceed max volume count",
            id="a volume is attached already",
        ),
        pytest.param(
            [csi_driver(tells_capacity=True), capacity("much", LATE, {}, capacity="10Gi")], "fits", id="enough room"
        ),
        pytest.param(
            [csi_driver(tells_capacity=True), capacity("little", LATE, {}, capacity="9Gi")],
            "the pod cannot run there: node(s) did not have enough free storage",
            id="too little room",
        ),
    ],
)
def test_storage_in_the_files_decides_where_a_pod_with_volumes_fits(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, storage: list[Json], said: str
) -> None:
    pod = {"metadata": {"name": "web", "namespace": "ns"}, "spec": {"volumes": uses("data")}}
    others = [
        kubernetes("Node", {"metadata": {"name": "n1", "labels": {"kubernetes.io/hostname": "n1"}}}, "v1"),
        volume_claim("data", size="10Gi"),
        storage_class(LATE, CSI),
        *storage,
    ]
    assert f"node n1: {said}" in verdict(capsys, tmp_path, kubernetes("Pod", pod, "v1"), *others)


def test_defaults_are_filled_in_and_older_versions_converted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    devices = {"requests": [{"name": "r", "deviceClassName": "any"}]}
    old = kubernetes("claim", {"metadata": {"name": "c"}, "spec": {"devices": devices}}, "resource.k8s.io/v1beta1")
    assert "r: drv/p/a" in verdict(capsys, tmp_path, CLASS, *SLICES, old)


def test_a_refusal_is_reported_in_full(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    wanted = kubernetes("claim", claim(request("r", count=3)))
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    report = verdict(capsys, tmp_path, CLASS, *SLICES, wanted, node, options=["--node", "n1", "--node", "n2"])
    assert "node n1: does not fit" in report
    assert 'default/c request "r" needs 3 devices' in report
    assert "node n2: does not fit" in report
    assert report.startswith("node n2 is not in the files, and tried as one without labels\n")


def test_an_allocated_claim_holds_its_devices(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    allocation = {"devices": {"results": [{"request": "r", "driver": "drv", "pool": "p", "device": "a"}]}}
    held = kubernetes("claim", {**claim(request("r"), name="held"), "status": {"allocation": allocation}})
    wanted = kubernetes("claim", claim(request("r"), name="open"))
    report = verdict(capsys, tmp_path, CLASS, *SLICES, held, wanted)
    assert "claims default/open" in report
    assert "r: drv/p/b" in report


def test_a_pod_brings_its_claims_and_what_it_asks_of_a_node(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    spec = {"spec": claim(request("r"))["spec"]}
    template = kubernetes("ResourceClaimTemplate", {"metadata": {"name": "t"}, "spec": spec})
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web"},
        "spec": {"nodeSelector": {"zone": "a"}, "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]},
    }
    nodes = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"zone": zone}}}
        for name, zone in (("n1", "a"), ("n2", "b"))
    ]
    listed = {"apiVersion": "v1", "kind": "List", "items": [template, pod, *nodes]}
    report = verdict(capsys, tmp_path, CLASS, *SLICES, listed)
    assert "pod default/web, claims default/web-gpu" in report
    assert "node n1: fits" in report
    assert "node n2: the pod cannot run there" in report


def test_a_pod_that_placement_does_not_try_is_named_with_the_reason(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    volumes = [{"name": "data", "iscsi": {}}]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {"volumes": volumes}}
    report = verdict(capsys, tmp_path, CLASS, *SLICES, pod).splitlines()
    assert report[1].startswith("is not tried: spec.volumes[0].iscsi is not supported")
    assert report[2:] == ["summary: 1 pod: not-tried 1; without a node: default/web"]


def test_each_pod_finds_what_the_pods_before_it_have_left(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    template = {"metadata": {"name": "t"}, "spec": {"spec": claim(request("r"))["spec"]}}
    uses = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"resourceClaims": uses}}
        for name in ("one", "two", "three")
    ]
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    objects = (CLASS, *SLICES, node, kubernetes("ResourceClaimTemplate", template), *pods)
    assert verdict(capsys, tmp_path, *objects).count("r: drv/p/a") == 3
    report = verdict(capsys, tmp_path, *objects, options=["--sequential"])
    assert [report.count(f"r: drv/p/{name}") for name in "ab"] == [1, 1]
    ends = [line for line in report.splitlines() if line.startswith(("gets", "waits"))]
    assert ends[:2] == ["gets node n1", "gets node n1"]
    assert ends[2].startswith(
        'waits: 0/1 nodes are available: 1 cannot satisfy claim default/three-gpu request "r" (needs 1 device; '
    )


def test_extended_resources_are_tried_as_the_class_serves_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    serving = kubernetes("class", {"metadata": {"name": "any"}, "spec": {"extendedResourceName": "example.com/gpu"}})
    containers = [{"name": "main", "resources": {"limits": {"example.com/gpu": "2"}}}]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {"containers": containers}}
    plugin = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "plugin"},
        "status": {"allocatable": {"example.com/gpu": "1"}},
    }
    bare = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "bare"}}
    report = verdict(capsys, tmp_path, serving, *SLICES, pod, plugin, bare, options=["--node", "n1"])
    assert "node n1: fits" in report
    assert report.count("container-0-request-0: drv/p/") == 2
    report = verdict(capsys, tmp_path, serving, *SLICES, pod, plugin, bare)
    assert "node plugin: the pod cannot run there: Insufficient example.com/gpu" in report
    assert "node bare: does not fit" in report
    assert 'extended resource example.com/gpu (device class any) request "container-0-request-0"' in report


def test_taint_rules_count(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    spec = {"deviceSelector": {"device": "a"}, "taint": {"key": "bad", "effect": "NoSchedule"}}
    rule = kubernetes("DeviceTaintRule", {"metadata": {"name": "rule"}, "spec": spec}, "resource.k8s.io/v1beta2")
    objects, old = [CLASS, *SLICES, rule, kubernetes("claim", claim(request("r")))], ["--kubernetes-version", "1.36"]
    report = verdict(capsys, tmp_path, *objects, options=old)
    assert "DeviceTaintRule rule is left out: --feature-gates DRADeviceTaintRules=true" in report
    assert "r: drv/p/a" in report
    for options in ([*old, "--feature-gates", "DRADeviceTaintRules=true"], []):  # by default from 1.37 on
        report = verdict(capsys, tmp_path, *objects, options=options)
        assert "left out" not in report
        assert "r: drv/p/b" in report


def test_the_release_decides_about_gates_and_refuses_those_that_it_lacks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tainted = pool(device("a", extra={"taints": [{"key": "bad", "effect": "NoSchedule"}]}), device("b"))
    slices = [kubernetes("slice", slice_) for slice_ in tainted]
    objects = [CLASS, *slices, kubernetes("claim", claim(request("r")))]
    assert "r: drv/p/b" in verdict(capsys, tmp_path, *objects)
    old = ["--kubernetes-version", "1.35"]
    assert "r: drv/p/a" in verdict(capsys, tmp_path, *objects, options=old)
    off = "the feature gate DRADeviceTaints is off in Kubernetes 1.35: its API server drops spec.devices.*.taints of"
    assert off in verdict(capsys, tmp_path, *objects, options=old)
    gates = [*old, "--feature-gates", "DRADeviceTaints=true"]
    assert "r: drv/p/b" in (said := verdict(capsys, tmp_path, *objects, options=gates))
    assert "feature gate" not in said


def test_what_a_node_cannot_be_asked_is_reported_instead(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    selector = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}]}
    held = {**claim(request("r"), name="held"), "status": {"allocation": {"nodeSelector": selector}}}
    spec = {"resourceClaims": [{"name": "e", "resourceClaimName": "held"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec}
    report = verdict(capsys, tmp_path, CLASS, *SLICES, kubernetes("claim", held), pod)
    assert "node n1: claim default/held is allocated for other nodes" in report
    serving = kubernetes("class", {"metadata": {"name": "any"}, "spec": {"extendedResourceName": "example.com/gpu"}})
    pod["spec"] = {"containers": [], "overhead": {"example.com/gpu": "1"}}
    assert "node n1: error: pod default/web: no container asks" in verdict(capsys, tmp_path, serving, *SLICES, pod)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (None, "    no devices"),
        ({"adminAccess": True}, "    r: drv/p/a (admin access)"),
        ({"deviceClassName": "none"}, "node n1: error: claim default/c, request r: could not retrieve device class"),
        ({"capacity": {"requests": {"memory": "1Gi"}}}, "    r: drv/p/a (a share: memory 1Gi)"),
    ],
    ids=["no devices", "admin access", "an error", "a share"],
)
def test_an_answer_for_objects_is_reported_in_words(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, fields: Json | None, said: str
) -> None:
    shared = device("a", capacity={"memory": "4Gi"}, extra={"allowMultipleAllocations": "capacity" in (fields or {})})
    wanted = kubernetes("claim", claim(*([] if fields is None else [request("r", **fields)])))
    report = verdict(capsys, tmp_path, CLASS, kubernetes("slice", pool(shared)[0]), wanted)
    assert any(line.startswith(said) for line in report.splitlines()), report


def test_empty_documents_and_other_kinds_are_left_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "objects.yaml"
    documents = [{"apiVersion": "v1", "kind": "ConfigMap"}, CLASS, *SLICES, kubernetes("claim", claim(request("r")))]
    path.write_text(f"---\n---\n{yaml.safe_dump_all(documents)}")
    assert main(["simulate", "-f", str(path)]) == 0
    assert "r: drv/p/a" in capsys.readouterr().out
    path.write_text("a: [")
    assert main(["simulate", "-f", str(path)]) == 2
    assert "not YAML: while parsing a flow node" in capsys.readouterr().err


def test_fields_that_the_api_server_refuses_are_told_and_the_answer_is_not_trusted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A ``selector`` for ``selectors`` makes a claim that takes any device. A server's object has no such field."""
    wanted = kubernetes("claim", claim(request("r", selector=[{"cel": {"expression": "false"}}]), request("r")))
    wanted["metadata"] = {"name": "c"}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}}
    template = {"spec": {"containers": [{"name": "c"}]}}
    path = tmp_path / "objects.yaml"
    path.write_text(yaml.safe_dump_all([CLASS, *SLICES, wanted, {**deployment, "spec": {"template": template}}]))
    assert main(["simulate", "-f", str(path), "-o", "json"]) == 1
    unknown, twice, left_out = json.loads(capsys.readouterr().out)["notes"]
    assert 'unknown field "selector", which the API server refuses; did you mean "selectors"?' in unknown
    assert "document 3: ResourceClaim " in twice
    assert 'Duplicate value: "r"' in twice
    assert left_out == "left out: Deployment; kubectl dra fit -f places the pods of workloads"
    many = [{**wanted, "metadata": {"name": f"c{number}"}} for number in range(11)]  # with two faults each
    for written, more in ((many[:10], []), (many, ["and 2 more faults: kubectl dra lint -f tells them all"])):
        path.write_text(yaml.safe_dump_all([CLASS, *SLICES, *written]))
        assert main(["simulate", "-f", str(path), "-o", "json"]) == 1
        assert json.loads(capsys.readouterr().out)["notes"][20:] == more
    of_server = {**wanted, "metadata": {**wanted["metadata"], "uid": "u", "resourceVersion": "1"}}
    path.write_text(yaml.safe_dump_all([CLASS, *SLICES, of_server]))
    assert main(["simulate", "-f", str(path)]) == 0
    assert "error" not in capsys.readouterr().out


def _slips(kind: str) -> list[str]:
    """Slips of the pen that no other kind's name is."""
    return [f"{kind}s", kind.lower(), kind.upper(), kind[:-1] + kind[-1] * 2, f"{kind[:3]}s{kind[3:]}"]


SLIPS = [(kind, slip) for kind in READ_KINDS for slip in _slips(kind)]


@pytest.mark.parametrize(("kind", "slip"), SLIPS, ids=[slip for _, slip in SLIPS])
def test_a_kind_that_is_misspelt_is_an_error_and_not_another_kind(kind: str, slip: str) -> None:
    item = {"apiVersion": READ_KINDS[kind][0].api_version(), "kind": slip, "metadata": {"name": "x"}}
    with pytest.raises(BadInput, match=f'did you mean "{kind}"'):
        decoded("file", item)


@pytest.mark.parametrize("kind", READ_KINDS)
def test_a_group_that_is_misspelt_is_an_error(kind: str) -> None:
    resource, _ = READ_KINDS[kind]
    wrong = "v1" if resource.group else "core/v1"
    with pytest.raises(BadInput, match=f"a {kind} is of {resource.api_version()}, not {wrong}"):
        decoded("file", {"apiVersion": wrong, "kind": kind, "metadata": {"name": "x"}})


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        ("longhorn.io/v1beta2", "Node"),
        ("scheduling.x-k8s.io/v1alpha1", "PodGroup"),
        ("scheduling.volcano.sh/v1beta1", "PodGroup"),
        ("scheduling.k8s.io/v1alpha1", "Workload"),
        ("events.k8s.io/v1", "Event"),
        ("coordination.k8s.io/v1alpha2", "LeaseCandidate"),
        ("v1", "PodTemplate"),
        ("v1", "ConfigMap"),
        ("resource.k8s.io/v1alpha2", "ResourceClass"),
        ("gpu.resource.example.com/v1alpha1", "ResourceClaim"),
    ],
)
def test_kinds_of_others_are_left_out(version: str, kind: str) -> None:
    assert decoded("file", {"apiVersion": version, "kind": kind, "metadata": {"name": "x"}}) is None


BAD_OBJECTS: dict[str, tuple[list[Json], list[str]]] = {
    "no object": ([{"a": 1}], ["bad.yaml: document 1: expected", "kind and apiVersion"]),
    "an item that is no object": (
        [CLASS, {"kind": "List", "items": [SLICES[0], 7]}],
        ["bad.yaml: document 2, item 2: expected", "kind and apiVersion"],
    ),
    "no name": ([{"kind": "Pod", "apiVersion": "v1", "metadata": {}}], ["Pod", "metadata.name"]),
    "an unknown version": (
        [{"kind": "DeviceClass", "apiVersion": "resource.k8s.io/v9", "metadata": {"name": "x"}}],
        ["DeviceClass x", "v9", "known: "],
    ),
    "a malformed field": (
        [kubernetes("slice", {"metadata": {"name": "s"}, "spec": {"devices": 5}})],
        ["document 1: ResourceSlice s", "spec.devices"],
    ),
    "no claim": ([CLASS, *SLICES], ["no claim to try"]),
    "no node": ([CLASS, kubernetes("claim", claim(request("r")))], ["no node to try", "--node"]),
    "an object that is there twice": (
        [CLASS, CLASS],
        ["document 2: DeviceClass any appears twice", "document 1: remove"],
    ),
    "a document that is no object": ([SLICES[0], 7], ["document 2", "kind and apiVersion"]),  # type: ignore[list-item]
}


@pytest.mark.parametrize(("documents", "said"), BAD_OBJECTS.values(), ids=BAD_OBJECTS.keys())
def test_bad_objects_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, documents: list[Json], said: list[str]
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    assert main(["simulate", "-f", str(path)]) == 2
    message = capsys.readouterr().err
    assert all(part in message for part in said), message


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("x.json -f y.yaml", "give one of"),
        ("", "give one of"),
        ("x.json -o csv", "-o csv: only with --trace"),
        ("x.json --node n", "--node: only for Kubernetes objects"),
        ("x.json --sequential", "--sequential: only for Kubernetes objects"),
        ("x.json --feature-gates DRADeviceTaints=false", "a case names its features itself"),
        ("x.json --placement-mix 1", "--placement-mix: only for Kubernetes objects"),
        ("x.json --device-order best-fit", "--placement-mix: only for Kubernetes objects"),
        ("x.json --compare-strategies", "--compare-strategies: only for Kubernetes objects"),
        ("-f y.yaml --compare-strategies --node n", "without --node and -o"),
        ("-f y.yaml --compare-strategies -o json", "without --node and -o"),
        ("x.json --repeat 0", "--repeat: expected at least 1, got 0"),
        ("-f y.yaml --repeat 2", "--repeat: only for a file of cases"),
        ("--trace t.csv -f y.yaml", "--trace: not together with"),
        ("--trace t.csv x.json", "--trace: not together with"),
        ("--trace t.csv --node n", "--trace: not together with"),
        ("--trace t.csv --sequential", "--trace: not together with"),
        ("x.json --placement-strategy best-fit", "--placement-mix: only for Kubernetes objects"),
        ("--trace t.csv --feature-gates DRADeviceTaints=false", "of a trace only with a snapshot"),
        ("-f - --feature-gates Absent=true", "simulate: --feature-gates:"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    words: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"{}")))
    assert main(["simulate", *words.split()]) == 2
    assert said in capsys.readouterr().err
