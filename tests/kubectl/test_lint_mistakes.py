"""Manifests with one mistake each, and right ones: ``lint`` says something of the first, and nothing of the others."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from dra_api import conversion
from dra_api.releases import Release
from dra_devcluster.apiserver.registry import exists_in
from dra_operator.cli import main as operator
from dra_operator.commands.object_files import Item
from dra_operator.kubectl.cli import main
from dra_operator.kubectl.lint.answer import findings
from dra_operator.kubectl.lint.manifest import Manifests, Severity, faults_of
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.settings import Settings

JSON = dict[str, Any]
V1 = "resource.k8s.io/v1"
GPU, NIC = "gpu.example.com", "nic.example.com"


def slice_(node: str, driver: str, *devices: JSON, of: int = 1) -> JSON:
    pool = {"name": node, "generation": 1, "resourceSliceCount": of}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": list(devices)}
    return {"apiVersion": V1, "kind": "ResourceSlice", "metadata": {"name": f"{node}-{driver}"}, "spec": spec}


def gpu(name: str, model: str = "a100", numa: int = 0) -> JSON:
    attributes = {"model": {"string": model}, "numa": {"int": numa}, "driverVersion": {"version": "1.2.3"}}
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": "40Gi"}}}


def drawing(name: str, counter_set: str) -> JSON:
    """A device that draws from the counter ``memory`` of a set."""
    consumed = {"counterSet": counter_set, "counters": {"memory": {"value": "40Gi"}}}
    return {**gpu(name), "consumesCounters": [consumed]}


def counters(node: str, name: str, *names: str, of: int = 2) -> JSON:
    """A slice that defines a counter set."""
    made = slice_(node, GPU, of=of)
    made["metadata"]["name"] = f"{node}-counters"
    del made["spec"]["devices"]
    made["spec"]["sharedCounters"] = [{"name": name, "counters": {it: {"value": "80Gi"} for it in names}}]
    return made


def nic(name: str) -> JSON:
    return {"name": name, "attributes": {"numa": {"int": 0}, f"{GPU}/numa": {"int": 0}}}


def class_(name: str, driver: str, **spec: Any) -> JSON:
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    return {
        "apiVersion": V1,
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [selector], **spec},
    }


def node(name: str) -> JSON:
    allocatable = {"cpu": "8", "memory": "32Gi", "pods": "110", "old.example.com/card": "2"}
    status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}


CLUSTER = [
    node("n1"),
    node("n2"),
    node("n3"),
    slice_("n1", GPU, gpu("gpu-0"), gpu("gpu-1", numa=1)),
    slice_("n2", GPU, gpu("gpu-0", "h100"), gpu("gpu-1", "h100")),
    slice_("n1", NIC, nic("nic-0"), nic("nic-1")),
    slice_("n3", "fpga.example.com", {"name": "fpga-0"}),
    class_("gpu", GPU, extendedResourceName="example.com/gpu"),
    class_("nic", NIC),
    class_("fpga", "fpga.example.com"),
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}},
    {
        "apiVersion": V1,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "of-web", "namespace": "web"},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}},
    },
]


def claim(**exactly: Any) -> JSON:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu", **exactly}}
    spec = {"devices": {"requests": [request]}}
    return {"apiVersion": V1, "kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "ml"}, "spec": spec}


def selecting(expression: str, **exactly: Any) -> JSON:
    return claim(selectors=[{"cel": {"expression": expression}}], **exactly)


def template(name: str = "t", device_class: str = "gpu", count: int = 1) -> JSON:
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": device_class, "count": count}}]}}
    meta = {"name": name, "namespace": "ml"}
    return {"apiVersion": V1, "kind": "ResourceClaimTemplate", "metadata": meta, "spec": {"spec": spec}}


def pod_spec(*templates: str) -> JSON:
    entries = [{"name": f"e-{name}", "resourceClaimTemplateName": name} for name in templates or ("t",)]
    uses = [{"name": entry["name"]} for entry in entries]
    return {"containers": [{"name": "c", "image": "busybox", "resources": {"claims": uses}}], "resourceClaims": entries}


def pod(*templates: str) -> JSON:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "ml"},
        "spec": pod_spec(*templates),
    }


def rule(**selector: str) -> JSON:
    spec = {"deviceSelector": selector, "taint": {"key": "example.com/broken", "effect": "NoExecute"}}
    return {"apiVersion": V1, "kind": "DeviceTaintRule", "metadata": {"name": "r"}, "spec": spec}


def workload(kind: str, api: str, path: str) -> JSON:
    """An object whose pod template lies below these fields; a number is a place of a list."""
    inner: Any = {"spec": pod_spec()}
    for word in reversed(path.split(".")):
        inner = [inner] if word == "0" else {word: inner}
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "w", "namespace": "ml"}, **inner}


def configured(driver: str, **more: Any) -> JSON:
    made = claim()
    made["spec"]["devices"]["config"] = [{"opaque": {"driver": driver, "parameters": {"a": None}}, **more}]
    return made


def constrained(**constraint: Any) -> JSON:
    made = claim(count=2)
    made["spec"]["devices"]["constraints"] = [constraint]
    return made


def first_available(*classes: str) -> JSON:
    made = claim()
    alternatives = [{"name": f"a{place}", "deviceClassName": name} for place, name in enumerate(classes)]
    made["spec"]["devices"]["requests"] = [{"name": "gpu", "firstAvailable": alternatives}]
    return made


def asking(**resources: str) -> JSON:
    made = pod()
    made["spec"] = {"containers": [{"name": "c", "image": "x", "resources": {"limits": resources}}]}
    return made


RIGHT: dict[str, list[JSON]] = {
    "claim": [claim()],
    "claim of two": [claim(count=2)],
    "all of a node": [claim(allocationMode="All")],
    "selector of a string": [selecting(f'device.attributes["{GPU}"].model == "h100"')],
    "selector of a quantity": [selecting(f'device.capacity["{GPU}"].memory.compareTo(quantity("20Gi")) >= 0')],
    "selector of a version": [selecting(f'device.attributes["{GPU}"].driverVersion.isGreaterThan(semver("1.0.0"))')],
    "constraint": [constrained(matchAttribute=f"{GPU}/numa")],
    "configuration": [configured(GPU)],
    "configuration of a request": [configured(GPU, requests=["gpu"])],
    "alternatives": [first_available("gpu", "nic")],
    "template": [template()],
    "pod": [template(), pod()],
    "pod with a claim": [
        claim(),
        {**pod(), "spec": {**pod_spec(), "resourceClaims": [{"name": "e-t", "resourceClaimName": "c"}]}},
    ],
    "pod of two templates on one node": [template(), template("u", "nic"), pod("t", "u")],
    "class": [class_("mine", GPU, extendedResourceName="example.com/mine")],
    "class with configuration": [class_("mine", GPU, config=[{"opaque": {"driver": GPU, "parameters": {}}}])],
    "extended resource": [asking(**{"example.com/gpu": "1"})],
    "extended resource of a device plugin": [asking(**{"old.example.com/card": "1", "cpu": "1"})],
    "rule for a device": [rule(driver=GPU, pool="n1", device="gpu-0")],
    "rule for a driver": [rule(driver=GPU)],
    "slice": [slice_("n9", GPU, gpu("gpu-0"))],
    "slices with counters": [counters("n9", "c", "memory"), slice_("n9", GPU, drawing("gpu-0", "c"), of=2)],
    "deployment": [template(), workload("Deployment", "apps/v1", "spec.template")],
    "cron job": [template(), workload("CronJob", "batch/v1", "spec.jobTemplate.spec.template")],
    "job set": [
        template(),
        workload("JobSet", "jobset.x-k8s.io/v1alpha2", "spec.replicatedJobs.0.template.spec.template"),
    ],
    "other kinds": [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"selector": {"app": "x"}}},
        {"apiVersion": "example.com/v1", "kind": "ResourceClaim", "metadata": {"name": "o"}, "spec": {"size": "big"}},
    ],
    "name that the API server completes": [
        {**template(), "metadata": {"generateName": "t-", "namespace": "ml"}},
        {**claim(), "metadata": {"generateName": "c-", "namespace": "ml"}},
    ],
    "pod of a node by its own claim": [
        claim(),
        {
            **pod(),
            "spec": {**pod_spec(), "nodeName": "n1", "resourceClaims": [{"name": "e-t", "resourceClaimName": "c"}]},
        },
    ],
    "nulls": [{**claim(selectors=None, count=None), "status": None}],
    "tolerating for some time": [
        claim(tolerations=[{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}])
    ],
    "tolerating every taint": [claim(tolerations=[{"operator": "Exists", "effect": "NoExecute"}])],
    "tolerating": [claim(tolerations=[{"key": "example.com/broken", "operator": "Exists"}])],
}
assert len(RIGHT) >= 25


def changed(objects: list[JSON], path: str, value: Any, *, number: int = 0, drop: str = "") -> list[JSON]:
    """The objects with another value at a path of one of them; ``drop``: a field beside it that goes."""
    made = copy.deepcopy(objects)
    *before, last = path.split(".")
    place: Any = made[number]
    for word in before:
        place = place[int(word)] if isinstance(place, list) else place[word]
    if drop:
        del place[drop]
    place[int(last) if isinstance(place, list) else last] = value
    return made


REQUEST = "spec.devices.requests.0"
ENTRY = "spec.resourceClaims.0"
CONTAINER = "spec.containers.0"
FULL = [template(), pod()]
WRONG: dict[str, list[JSON]] = {
    # what is written in the wrong place, or misspelt
    "selector": changed([claim()], f"{REQUEST}.exactly.selector", [{"cel": {"expression": "true"}}]),
    "deviceClass": changed([claim()], f"{REQUEST}.exactly.deviceClass", "gpu", drop="deviceClassName"),
    "class beside exactly": changed([claim()], f"{REQUEST}.deviceClassName", "gpu"),
    "requests beside devices": changed([claim()], "spec.requests", []),
    "device": changed([claim()], "spec.device", {}),
    "exactly misspelt": changed([claim()], f"{REQUEST}.exact", {"deviceClassName": "gpu"}, drop="exactly"),
    "cel as text": changed([claim(selectors=[])], f"{REQUEST}.exactly.selectors", [{"cel": "true"}]),
    "expressions": changed([claim()], f"{REQUEST}.exactly.selectors", [{"cel": {"expressions": "true"}}]),
    "template without inner spec": changed([template()], "spec", claim()["spec"]),
    "count in a template beside spec": changed([template()], "spec.count", 2),
    "constraint beside devices": changed([claim()], "spec.constraints", [{"matchAttribute": f"{GPU}/numa"}]),
    "matchAttributes": [constrained(matchAttributes=f"{GPU}/numa")],
    "basic in v1": [slice_("n9", GPU, {"name": "d", "basic": {}})],
    "attribute without a type": [slice_("n9", GPU, {"name": "d", "attributes": {"model": "a100"}})],
    "source in a pod": changed(FULL, ENTRY, {"name": "e-t", "source": {"resourceClaimTemplateName": "t"}}, number=1),
    "claims of a pod": changed(FULL, "spec.claims", [], number=1),
    "resourceClaim of a pod": changed(FULL, "spec.resourceClaim", [], number=1),
    "claims beside resources": changed(FULL, f"{CONTAINER}.claims", [{"name": "e-t"}], number=1),
    "claim for claims": changed(FULL, f"{CONTAINER}.resources.claim", [], number=1),
    "templateName": changed(FULL, ENTRY, {"name": "e-t", "templateName": "t"}, number=1),
    "claimName": changed(FULL, ENTRY, {"name": "e-t", "claimName": "c"}, number=1),
    "requests of a use": changed(FULL, f"{CONTAINER}.resources.claims.0.requests", ["gpu"], number=1),
    "kind misspelt": changed([claim()], "kind", "ResourceClaims"),
    "kind in parts": changed([template()], "kind", "ResourceClaimTemplat"),
    "version v1 of core": changed([claim()], "apiVersion", "v1"),
    "group misspelt": changed([claim()], "apiVersion", "resources.k8s.io/v1"),
    "version that is gone": changed([claim()], "apiVersion", "resource.k8s.io/v1alpha2"),
    "version that never was": changed([claim()], "apiVersion", "resource.k8s.io/v2"),
    "deprecated version": changed([claim()], "apiVersion", "resource.k8s.io/v1beta2"),
    "v1beta1 in a class": changed([class_("mine", GPU)], "apiVersion", "resource.k8s.io/v1beta1"),
    # values
    "mode in small letters": [claim(allocationMode="all")],
    "count and all": [claim(allocationMode="All", count=2)],
    "count of zero": [claim(count=-1)],
    "count as text": [claim(count="two")],
    "request without a name": changed([claim()], f"{REQUEST}.name", ""),
    "request with a capital": changed([claim()], f"{REQUEST}.name", "GPU"),
    "two requests of a name": changed([claim()], "spec.devices.requests", claim()["spec"]["devices"]["requests"] * 2),
    "both kinds of a request": changed([first_available("gpu")], f"{REQUEST}.exactly", {"deviceClassName": "gpu"}),
    "more than there are": [claim(count=9)],
    "more than a node has": [claim(count=3)],
    "unknown class": [claim(deviceClassName="gpus")],
    "unknown class in an alternative": [first_available("gpu", "fgpa")],
    "toleration with an operator": [claim(tolerations=[{"key": "a", "operator": "Is"}])],
    "capacity beyond the device": [claim(capacity={"requests": {"memory": "80Gi"}})],
    # expressions
    "syntax": [selecting("device.driver == ")],
    "unknown field of a device": [selecting('device.model == "a100"')],
    "unknown domain": [selecting('device.attributes["nvidia.com"].model == "a100"')],
    "unknown attribute": [selecting(f'device.attributes["{GPU}"].modell == "a100"')],
    "value that no device has": [selecting(f'device.attributes["{GPU}"].model == "A100"')],
    "string against a number": [selecting(f'device.attributes["{GPU}"].numa == "0"')],
    "string against a version": [selecting(f'device.attributes["{GPU}"].driverVersion >= "1.0.0"')],
    "number against a quantity": [selecting(f'device.capacity["{GPU}"].memory >= 40')],
    "capacity as an attribute": [selecting(f'device.attributes["{GPU}"].memory == "40Gi"')],
    "no boolean": [selecting(f'device.attributes["{GPU}"].model')],
    "assignment": [selecting('device.driver = "gpu.example.com"')],
    "other driver than the class": [selecting(f'device.driver == "{NIC}"')],
    # what leads nowhere
    "absent template": [pod()],
    "template of another namespace": [pod("of-web")],
    "entry that no container uses": changed(FULL, f"{CONTAINER}.resources", {}, number=1),
    "use of an absent entry": changed(FULL, f"{CONTAINER}.resources.claims", [{"name": "e-x"}], number=1),
    "use of an absent request": changed(
        FULL, f"{CONTAINER}.resources.claims", [{"name": "e-t", "request": "nic"}], number=1
    ),
    "entry with claim and template": changed(
        FULL, ENTRY, {"name": "e-t", "resourceClaimName": "c", "resourceClaimTemplateName": "t"}, number=1
    ),
    "entry with neither": changed(FULL, ENTRY, {"name": "e-t"}, number=1),
    "two templates on different nodes": [template(), template("u", "fpga"), pod("t", "u")],
    "constraint on an attribute of no device": [constrained(matchAttribute=f"{GPU}/numaNode")],
    "constraint without a domain": [constrained(matchAttribute="numa")],
    "constraint on an absent request": [constrained(matchAttribute=f"{GPU}/numa", requests=["nic"])],
    "configuration for another driver": [configured(NIC)],
    "configuration for a misspelt driver": [configured("gpu.exmaple.com")],
    "configuration of an absent request": [configured(GPU, requests=["nic"])],
    "misspelt driver in a class": [class_("mine", "gpu.exmaple.com")],
    "configuration of a class for another driver": [
        class_("mine", GPU, config=[{"opaque": {"driver": NIC, "parameters": {}}}])
    ],
    "class for a resource that another serves": [class_("mine", GPU, extendedResourceName="example.com/gpu")],
    "resource name without a domain": [class_("mine", GPU, extendedResourceName="gpu")],
    "extended resource that no class serves": [asking(**{"example.com/gpus": "1"})],
    "rule for all devices": [rule()],
    "rule with a misspelt driver": [rule(driver="gpu.exmaple.com")],
    "rule with an absent pool": [rule(driver=GPU, pool="n7")],
    "rule with an absent device": [rule(driver=GPU, pool="n1", device="gpu-7")],
    "rule with an effect": changed([rule(driver=GPU)], "spec.taint.effect", "NoExec"),
    "one attribute under two names": [
        slice_("n9", GPU, {"name": "d", "attributes": {"m": {"string": "a"}, f"{GPU}/m": {"string": "b"}}})
    ],
    "whole device beside its parts": [
        slice_(
            "n9",
            GPU,
            {"name": "gpu-0", "attributes": {"uuid": {"string": "U"}}},
            {"name": "mig-0", "attributes": {"parentUUID": {"string": "U"}}},
        )
    ],
    "slice without a pool": changed([slice_("n9", GPU, gpu("gpu-0"))], "spec.pool", {}),
    "slice of two places": changed([slice_("n9", GPU, gpu("gpu-0"))], "spec.allNodes", True),
    "device that draws from a counter set of no slice": [slice_("n9", GPU, drawing("gpu-0", "gpu-0-counters"))],
    "device that draws from a counter set of another pool": [
        counters("n8", "c", "memory"),
        slice_("n9", GPU, drawing("gpu-0", "c")),
    ],
    "device that draws from a counter that its set does not have": [
        counters("n9", "c", "cores"),
        slice_("n9", GPU, drawing("gpu-0", "c"), of=2),
    ],
    "counter set that is defined twice": [
        counters("n9", "c", "memory", of=3),
        {**counters("n9", "c", "memory", of=3), "metadata": {"name": "again"}},
        slice_("n9", GPU, drawing("gpu-0", "c"), of=3),
    ],
    "slice of two without the other": [slice_("n9", GPU, gpu("gpu-0"), of=2)],
    "device of a name that a slice of the cluster has": [
        slice_("n1", GPU, gpu("gpu-0"), of=2) | {"metadata": {"name": "more"}},
        slice_("n1", GPU, gpu("gpu-0"), gpu("gpu-1", numa=1), of=2),
    ],
    "two devices of a name": [slice_("n9", GPU, gpu("gpu-0"), gpu("gpu-0"))],
    # pods at any depth
    **{
        f"absent template in a {kind}": [workload(kind, api, path)]
        for kind, api, path in (
            ("Job", "batch/v1", "spec.template"),
            ("StatefulSet", "apps/v1", "spec.template"),
            ("MPIJob", "kubeflow.org/v2beta1", "spec.mpiReplicaSpecs.Worker.template"),
            ("PyTorchJob", "kubeflow.org/v1", "spec.pytorchReplicaSpecs.Master.template"),
            ("JobSet", "jobset.x-k8s.io/v1alpha2", "spec.replicatedJobs.0.template.spec.template"),
            ("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", "spec.leaderWorkerTemplate.workerTemplate"),
            ("RayCluster", "ray.io/v1", "spec.headGroupSpec.template"),
            ("Job", "batch.volcano.sh/v1alpha1", "spec.tasks.0.template"),
            ("PodTemplate", "v1", "template"),
        )
    },
    "claim without a name": changed([claim()], "metadata", {"namespace": "ml"}),
    "both kinds of a constraint": [constrained(matchAttribute=f"{GPU}/numa", distinctAttribute=f"{GPU}/numa")],
    "fewer devices than none": [asking(**{"example.com/gpu": "-1"})],
    "claims of a pod that no scheduler sees": changed(FULL, "spec.nodeName", "n1", number=1),
    "values that no node has twice": [constrained(distinctAttribute=f"{GPU}/model")],
    "claims of another driver by a mistyped name": [selecting('device.driver == "gpu.exmaple.com"')],
    "class that no device matches": [
        class_(
            "mine", GPU, selectors=[{"cel": {"expression": f'device.attributes["{GPU}"].?model.orValue("") == "H100"'}}]
        )
    ],
    "class with a selector that fails": [
        class_("mine", GPU, selectors=[{"cel": {"expression": f'device.attributes["{GPU}"].modle == "h100"'}}])
    ],
    "rule without a selector": [changed([rule(driver=GPU)], "spec.deviceSelector", None)[0]],
    "rule of a deprecated version": [rule(driver=GPU) | {"apiVersion": "resource.k8s.io/v1alpha3"}],
    "template with the spec of a claim": [{**template(), "spec": claim()["spec"]}],
    "template named as a claim": [
        template(),
        {**pod(), "spec": {**pod_spec(), "resourceClaims": [{"name": "e-t", "resourceClaimName": "t"}]}},
    ],
    "extended resource without a limit": [
        changed(
            [asking(**{"example.com/gpu": "1"})], "spec.containers.0.resources", {"requests": {"example.com/gpu": "1"}}
        )[0]
    ],
    "half an extended resource": [asking(**{"example.com/gpu": "500m"})],
    "seconds of a toleration that evicts nobody": [
        claim(tolerations=[{"key": "a", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 5}])
    ],
    "toleration of a value without a key": [
        claim(tolerations=[{"operator": "Equal", "value": "x", "effect": "NoSchedule"}])
    ],
    "extended resource of a pod, not of a container": [
        changed([asking()], "spec.resources", {"limits": {"example.com/gpu": "1"}})[0]
    ],
    "count of 64 bits": [claim(count=1 << 63)],
    "time of a toleration beyond 64 bits": [
        claim(tolerations=[{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": -(1 << 63) - 1}])
    ],
    "priority beyond 64 bits in a Job": [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "j", "namespace": "ml"},
            "spec": {"template": {"spec": {"priority": 1 << 64, "containers": [{"name": "c", "image": "x"}]}}},
        }
    ],
    "negative cpu": [changed([asking()], "spec.containers.0.resources", {"requests": {"cpu": "-1"}})[0]],
    "more memory than its limit": [
        changed(
            [asking()], "spec.containers.0.resources", {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}
        )[0]
    ],
    "pool of one name on two nodes": [
        changed([slice_(it, NIC, nic("a"))], "spec.pool.name", "pool")[0] for it in ("n8", "n9")
    ],
    "capacity read as an attribute": [selecting(f'device.attributes["{GPU}"].memory.compareTo(quantity("1Gi")) > 0')],
    "domain without brackets": [selecting(f'device.attributes.{GPU}.model == "a100"')],
    "attribute without a domain": [selecting('device.attributes["model"] == "a100"')],
    "field that no device has": [selecting('device.nodeName == "n1"')],
    "pod in lower case": [{**asking(), "kind": "pod"}],
    "pod of another version": [{**asking(), "apiVersion": "v1beta1"}],
    "expression that costs too much on some devices only": [
        selecting(
            "device.attributes.all(a, device.attributes.all(b, device.attributes.all(c, "
            + " || ".join([f'device.driver == "{GPU}"', *(f'"{it}" in device.attributes' for it in "abcdef")])
            + ")))"
        )
    ],
    "replicas in words": [
        template(),
        changed([workload("Deployment", "apps/v1", "spec.template")], "spec.replicas", "two")[0],
    ],
    "class of one of two mistyped drivers": [
        class_(
            "mine", GPU, selectors=[{"cel": {"expression": 'device.driver in ["gpu.exmaple.com", "b.example.com"]'}}]
        )
    ],
    "old form with a list for its devices": [
        {**claim(), "apiVersion": "resource.k8s.io/v1beta1", "spec": {"devices": [{"name": "gpu"}]}}
    ],
    "toleration without an effect of a taint that evicts": [
        claim(tolerations=[{"key": "example.com/broken", "operator": "Exists"}]),
        rule(driver=GPU),
    ],
}
Linted = Callable[[list[JSON]], JSON]


@pytest.fixture
def linted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Linted:
    cluster = tmp_path / "cluster.json"
    cluster.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": CLUSTER}))

    def lint(objects: list[JSON]) -> JSON:
        file = tmp_path / "manifests.yaml"
        file.write_text(yaml.safe_dump_all(objects))
        main(["lint", "-f", str(file), "--from", str(cluster), "-n", "ml", "-o", "json"])
        found: JSON = json.loads(capsys.readouterr().out)
        return found

    return lint


def test_there_are_sixty_mistakes() -> None:
    assert len(WRONG) >= 60


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_found(name: str, linted: Linted) -> None:
    found = linted(WRONG[name])
    assert found["errors"] + found["warnings"] > 0, found


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_manifest_is_left_alone(name: str, linted: Linted) -> None:
    found = linted(RIGHT[name])
    assert [one for one in found["findings"] if one["severity"] != "note"] == []


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("selector", 'did you mean "selectors"?'),
        ("string against a version", "semver("),
        ("both kinds of a constraint", "is ignored beside matchAttribute"),
        ("fewer devices than none", "must not be negative"),
        ("extended resource of a pod, not of a container", "ask for it in a container"),
        ("count of 64 bits", "has more than 64 bits"),
        ("priority beyond 64 bits in a Job", "has more than 64 bits"),
        ("negative cpu", "the request of cpu must not be negative"),
        ("more memory than its limit", "is more than its limit, 1Gi"),
        ("pool of one name on two nodes", "nodes n8, n9 publish the same pool: name it after the node"),
        ("capacity read as an attribute", f'did you mean device.capacity["{GPU}"].memory?'),
        ("domain without brackets", f'did you mean device.attributes["{GPU}"].model?'),
        ("attribute without a domain", f'did you mean device.attributes["{GPU}"].model?'),
        (
            "field that no device has",
            "a device has driver, attributes, capacity, allowMultipleAllocations, and nothing",
        ),
        ("claims of a pod that no scheduler sees", 'nodeSelector: {kubernetes.io/hostname: "n1"}'),
        ("device that draws from a counter set of no slice", "counter set gpu-0-counters, which no slice of the pool"),
        ("device that draws from a counter that its set does not have", "counter memory of counter set c, which does"),
        ("counter set that is defined twice", "counter set c is defined twice, by slice again and slice n9-counters"),
        ("slice of two without the other", "announces 2 slices of its newest generation and has fewer"),
        ("value that no device has", "a100, h100"),
        ("template of another namespace", "there is one in namespace web"),
        ("misspelt driver in a class", "did you mean gpu.example.com?"),
        ("rule for all devices", "evicts every pod"),
        ("two templates on different nodes", "no single node"),
        ("version that is gone", "write resource.k8s.io/v1"),
        ("claims of another driver by a mistyped name", "did you mean gpu.example.com"),
        ("class with a selector that fails", "correct the name: no device publishes it"),
        ("template with the spec of a claim", "spec.spec of the template"),
        ("template named as a claim", "write resourceClaimTemplateName"),
        ("toleration without an effect of a taint that evicts", "write effect: NoExecute"),
        (
            "expression that costs too much on some devices only",
            "on some devices it may cost more than the 1000000 units at which it is stopped",
        ),
        ("replicas in words", "spec.replicas: expected a number, 0 or more, got 'two'"),
        ("class of one of two mistyped drivers", "did you mean gpu.example.com?"),
        ("old form with a list for its devices", "spec.devices"),
    ],
)
def test_a_finding_says_what_to_write(name: str, says: str, linted: Linted) -> None:
    assert any(says in one["message"] for one in linted(WRONG[name])["findings"])


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
@pytest.mark.parametrize("form", ["v1", "v1beta1"])
@pytest.mark.parametrize("made", [claim(), template(), slice_("n1", GPU, gpu("gpu-0"))], ids=lambda it: it["kind"])
def test_fields_that_another_version_has_elsewhere_are_found(version: str, form: str, made: JSON) -> None:
    item = conversion.convert(made, f"resource.k8s.io/{form}") | {"apiVersion": f"resource.k8s.io/{version}"}
    said = [reason for severity, _, reason in faults_of(item, None) if severity is Severity.ERROR]
    is_right = (version == "v1beta1") == (form == "v1beta1")
    assert bool(said) != is_right, said
    assert all("unknown field" in one and ": " in one for one in said)


@pytest.mark.parametrize("where", ["template metadata", "claim status", "selectors", "containers"])
def test_a_null_is_taken_as_the_server_takes_it_by_simulate_as_well(
    where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = template()
    if where == "template metadata":
        made["spec"]["metadata"] = None
    elif where == "claim status":
        made = {**claim(), "status": None}
    elif where == "selectors":
        made["spec"]["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = None
    else:
        made = asking(cpu="1")
        made["spec"]["containers"][0]["resources"]["claims"] = None
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all([*CLUSTER, made]))
    assert operator(["simulate", "-f", str(file)]) in (0, 1)
    assert "expected" not in capsys.readouterr().err


def test_what_the_viewer_may_not_read_is_not_said_to_be_absent() -> None:
    """Of another namespace, too, nothing is known to somebody who reads his own."""
    names = ("deviceclasses", "resourceslices", "resourceclaims", "resourceclaimtemplates")
    forbidden = {f"{name}.resource.k8s.io": "forbidden" for name in names} | {"nodes": "forbidden"}
    of_others = {**pod(), "metadata": {"name": "p", "namespace": "web"}}
    own, claims, extended = pod(), claim(), asking(**{"example.com/gpus": "1"})
    cases: tuple[tuple[dict[str, str], JSON, bool], ...] = (
        ({}, own, True),
        (forbidden, own, False),
        (dict.fromkeys(forbidden, "read only in namespace ml"), own, True),
        (dict.fromkeys(forbidden, "read only in namespace ml"), of_others, False),
        ({}, claims, True),
        (forbidden, claims, False),
        ({}, extended, True),
        (forbidden, extended, False),
    )
    for unseen, written, is_told in cases:
        manifests = Manifests("ml")
        manifests.take(Item("f", written))
        seen = Observed([], datetime.now(UTC), namespace="ml", unseen=unseen)
        found = list(findings(seen, manifests, Settings(), has_cluster=True))
        assert any("does not exist" in one.message or "offers" in one.message for one in found) is is_told, (
            unseen,
            found,
        )


@pytest.mark.parametrize("release", Release)
@pytest.mark.parametrize(
    ("kind", "plural"), [("ResourceClaim", "resourceclaims"), ("DeviceTaintRule", "devicetaintrules")]
)
@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1", "v1alpha3"])
def test_a_version_is_right_for_the_release_that_serves_it(
    version: str, kind: str, plural: str, release: Release
) -> None:
    """Of the versions that a server knows the newest is right, apart from new ones; others are refused there."""
    if version not in conversion.VERSIONS[kind]:
        return
    item = claim() if kind == "ResourceClaim" else rule(driver=GPU)
    found = list(faults_of({**item, "apiVersion": f"resource.k8s.io/{version}"}, release))
    errors = [text for severity, _, text in found if severity is Severity.ERROR and "does not serve" in text]
    assert bool(errors) == (not exists_in(release, "resource.k8s.io", version, plural))
    served = [it for it in conversion.VERSIONS[kind] if exists_in(release, "resource.k8s.io", it, plural)]
    if errors and served:
        assert errors[0].endswith(f": write resource.k8s.io/{served[0]}")
    if served and version == served[0]:
        assert not [text for _, path, text in found if path == "apiVersion"]


def test_a_key_that_stands_twice_is_told_since_kubectl_takes_the_last_in_silence(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    text = yaml.safe_dump_all([claim(), claim()])
    path.write_text(text + "  devices: {requests: [{name: other, exactly: {deviceClassName: gpu}}]}\n")
    found = Manifests("default").read([str(path)])
    said = [(one.where, one.message) for _, faults in found.each() for one in faults]
    again = f"line {len(text.splitlines()) + 1} has devices once more in the same place"
    assert said == [(f"{path}: document 2", f"{again}, and only the last one counts: keep one")]


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ({**pod(), "spec": None}, "a pod needs a container"),
        ({**pod(), "spec": {**pod_spec(), "priority": 1 << 31}}, "2147483648 has more than 32 bits"),
    ],
    ids=["no spec", "priority"],
)
def test_a_pod_that_the_server_cannot_take_is_an_error(made: JSON, says: str, linted: Linted) -> None:
    assert any(says in one["message"] and one["severity"] == "error" for one in linted([made])["findings"])


def test_a_priority_of_32_bits_is_right(linted: Linted) -> None:
    made = {**pod(), "spec": {**pod_spec(), "priority": (1 << 31) - 1}}
    assert not any("bits" in one["message"] for one in linted([made])["findings"])


def test_of_an_attribute_without_a_value_the_slice_is_blamed(linted: Linted) -> None:
    device = {**gpu("gpu-9"), "attributes": {"valueless": {}}}
    reads = class_("valueless", GPU)
    expression = f'device.driver == "{GPU}" && "valueless" in device.attributes["{GPU}"]'
    expression += f' && device.attributes["{GPU}"].valueless == "x"'
    reads["spec"]["selectors"] = [{"cel": {"expression": expression}}]
    found = linted([slice_("n9", GPU, device), reads])["findings"]
    said = [one["message"] for one in found if one["object"].startswith("DeviceClass")]
    assert any("the ResourceSlice is at fault" in one for one in said), said
    assert not any("correct the expression" in one for one in said)


@pytest.mark.parametrize("has_devices", [True, False], ids=["slices in the files", "none"])
def test_devices_of_the_files_are_not_said_to_be_unchecked(
    has_devices: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "manifests.yaml"
    file.write_text(yaml.safe_dump_all([class_("gpu", GPU), claim(), *([slice_("n1", GPU, gpu("a"))] * has_devices)]))
    main(["lint", "-f", str(file)])
    said = capsys.readouterr()
    assert ("which devices match" not in said.out + said.err) == has_devices
    assert ("1 device matches" in said.out) == has_devices


@pytest.mark.parametrize(
    ("absent", "said"),
    [
        ("ResourceSlice", "not checked: which devices match, since no ResourceSlice is published"),
        ("DeviceClass", "the cluster has no DeviceClass"),
    ],
)
def test_what_a_cluster_lacks_to_check_by_is_told(
    absent: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, cluster = tmp_path / "manifests.yaml", tmp_path / "cluster.json"
    file.write_text(yaml.safe_dump_all([claim()]))
    for items in ([it for it in CLUSTER if it["kind"] != absent], CLUSTER):
        cluster.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        main(["lint", "-f", str(file), "--from", str(cluster), "-n", "ml"])
        told = capsys.readouterr()
        assert (said in told.out + told.err) == (items is not CLUSTER)
