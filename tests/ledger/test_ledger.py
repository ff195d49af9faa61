"""What the ledger reads, what it answers, and that the operator's view says the same."""

from __future__ import annotations

import doctest
import gc
import io
import json
from collections import UserDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from types import MappingProxyType, SimpleNamespace
from typing import Any

import dra_ledger
import dra_ledger.ledger
import kubernetes.client
import pytest
import yaml
from dra_api.codec import DecodeError, convert
from dra_api.gates import GateError
from dra_api.resource import ResourceClaim, ResourceSlice
from dra_ledger import CounterEntry, DeviceEntry, Holder, Ledger, Left
from dra_ledger.basics import Journal
from dra_ledger.cli import prometheus
from dra_ledger.forms import KINDS
from ledger_worlds import played
from msgspec import structs
from rounds import each_of

Json = dict[str, Any]
DRIVER = "gpu.example.com"


def slice_(*devices: Json, name: str = "s", node: str = "n1", count: int = 1, generation: int = 1, **spec: Any) -> Json:
    pool = {"name": node, "generation": generation, "resourceSliceCount": count}
    about = {
        "driver": DRIVER,
        "pool": pool,
        "nodeName": node,
        **({"devices": list(devices)} if devices else {}),
        **spec,
    }
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": about}


def claim(name: str, *results: Json, namespace: str = "ml", pods: tuple[str, ...] = (), **status: Any) -> Json:
    given = [{"request": "gpu", "driver": DRIVER, "pool": "n1", **result} for result in results]
    users = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}},
        "status": {"allocation": {"devices": {"results": given}}, "reservedFor": users, **status},
    }


def states(ledger: Ledger, **which: Any) -> dict[str, str]:
    return {device.name: device.state for device in ledger.devices(**which)}


GPUS = slice_({"name": "gpu-0"}, {"name": "gpu-1"})
HELD = claim("train", {"device": "gpu-0"}, pods=("train-0",))
CLASS = {"kind": "DeviceClass", "apiVersion": "resource.k8s.io/v1", "metadata": {"name": "gpu"}, "spec": {}}


# --- forms ---


def client_object(kind: str, obj: Json) -> object:
    """The object as the ``kubernetes`` package reads it."""
    return kubernetes.client.ApiClient().deserialize(json.dumps(obj), kind, "application/json")


def kindless(kind: str, obj: Json) -> object:
    """The same as an item of a list that the ``kubernetes`` package returns."""
    return client_object(kind, {name: value for name, value in obj.items() if name not in ("kind", "apiVersion")})


def listed(device: str) -> Json:
    """A list of the claim with this device."""
    return {"kind": "List", "items": [claim("train", {"device": device}, pods=("train-0",))]}


class Raw:
    """As kr8s has it."""

    def __init__(self, raw: Json) -> None:
        self.raw = raw


@pytest.mark.parametrize(
    "sources",
    [
        [GPUS, HELD],
        [json.dumps(GPUS), json.dumps(HELD).encode()],
        [[GPUS, json.dumps(HELD)]],
        [convert(ResourceSlice, GPUS), convert(ResourceClaim, HELD)],
        [client_object("V1ResourceSlice", GPUS), client_object("ResourceV1ResourceClaim", HELD)],
        [Raw(GPUS), Raw(HELD)],
        [json.dumps({"apiVersion": "v1", "kind": "List", "items": [GPUS, HELD, {"kind": "Secret"}]})],
        [{"kind": "ResourceSliceList", "items": [GPUS]}, {"kind": "ResourceClaimList", "items": [HELD]}],
        [{"type": "ADDED", "object": GPUS}, json.dumps({"type": "MODIFIED", "object": HELD})],
        [{"type": "ADDED", "object": client_object("V1ResourceSlice", GPUS), "raw_object": GPUS}, HELD],
        [iter([GPUS, HELD])],
        [HELD, GPUS],
        [kindless("V1ResourceSlice", GPUS), [kindless("ResourceV1ResourceClaim", HELD)]],
        [MappingProxyType(GPUS), UserDict(HELD)],
        [SimpleNamespace(obj=GPUS), SimpleNamespace(obj=HELD)],
        [{"type": None, "object": GPUS}, {"type": None, "object": HELD}],
        [f"{json.dumps(GPUS)}\n{json.dumps(HELD, indent=2)}\n"],
        [json.dumps([GPUS, [HELD]])],
        [f"\ufeff{json.dumps(GPUS)}".encode(), json.dumps(HELD).encode("utf-16")],
        [{"kind": "List", "items": [{"kind": "List", "items": [GPUS]}, HELD]}],
        [GPUS, HELD, *({"kind": kind, "apiVersion": "longhorn.io/v1", "metadata": {"name": "n2"}} for kind in KINDS)],
        [{**GPUS, "apiVersion": "resource.k8s.io/v1alpha3"}, {**HELD, "apiVersion": "resource.k8s.io/v1alpha3"}],
        [GPUS, ("DELETED", HELD), ("ADDED", HELD)],
        [io.StringIO(json.dumps([GPUS, HELD], indent=2))],
        [yaml.safe_load_all(f"---\n{yaml.safe_dump_all([GPUS, HELD])}---\n")],
        [*({**it, "metadata": {**it["metadata"], "creationTimestamp": None}} for it in (GPUS, HELD))],
        [{"kind": "List", "items": [listed("gpu-1"), listed("gpu-0"), GPUS]}],
    ],
    ids=[
        "dictionaries", "JSON", "lists", "structs", "kubernetes", "raw", "kubectl get", "lists of a kind", "events",
        "events of kubernetes", "an iterator", "claims first", "items of kubernetes", "mappings", "pykube", "Kopf",
        "JSON lines", "an array", "as Windows writes", "lists in a list", "namesakes", "v1alpha3", "pairs", "a file",
        "YAML", "nulls as Go writes them", "the last of a claim's versions counts",
    ],
)  # fmt: skip
def test_an_object_may_have_any_form(sources: list[object]) -> None:
    ledger = Ledger.of(*sources)
    assert states(ledger) == {"gpu-0": "taken", "gpu-1": "free"}
    held = ledger.device(DRIVER, "n1", "gpu-0")
    assert held is not None
    assert held.holders == (Holder(namespace="ml", claim="train", request="gpu", pods=("train-0",)),)


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1", "v1alpha3"])
def test_every_version_is_read(version: str) -> None:
    device: Json = {"attributes": {"model": {"string": "A"}}, "capacity": {"memory": {"value": "80Gi"}}}
    published = slice_(
        {"name": "gpu-0", "basic": device} if version in ("v1beta1", "v1alpha3") else {"name": "gpu-0", **device}
    )
    ledger = Ledger.of({**published, "apiVersion": f"resource.k8s.io/{version}"})
    (found,) = ledger.devices()
    assert found.attributes == {"model": "A"}
    assert found.capacity == {"memory": Left(total="80Gi", left="80Gi")}


def test_the_shape_of_v1beta1_is_seen_without_a_version() -> None:
    tainted = {"name": "gpu-0", "basic": {"taints": [{"key": "broken", "effect": "NoSchedule"}]}}
    item = {name: part for name, part in slice_(tainted).items() if name in ("metadata", "spec")}
    ledger = Ledger()
    ledger.replace("ResourceSlice", [item])
    assert states(ledger) == {"gpu-0": "tainted"}


NAMES = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "s"}}


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        (client_object("V1ResourceSlice", GPUS).to_dict(), r"names of to_dict\(\)"),  # type: ignore[attr-defined]
        ({"api_version": "v1", "kind": None, "items": [HELD]}, r"names of to_dict\(\)"),
        ({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "rows": [{"object": NAMES}]}, "a Table has no spec"),
        (("ADDED", NAMES), "a PartialObjectMetadata has no spec"),
        ({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "items": [NAMES]}, "List has no spec"),
        (42, "a int is no object"),
        ("no JSON", "it is no JSON"),
        (b"[", "it is no JSON"),
        ("[" * 5000 + "]" * 5000, "it is no JSON"),
        ("[" * 400 + "]" * 400, ""),
        (json.dumps(GPUS) + "\0", "it is no JSON"),
        ('{"type": "ERROR", "object": {"code": 410}}', "the watch ended"),
        ({"type": ["ADDED"], "object": GPUS}, "without a kind .* it has type, object"),
        ({"type": "added", "object": GPUS}, "without a kind .* it has type, object"),
        (object(), "a object is no object"),
        ({"metadata": {}, "spec": {}}, "without a kind .* it has metadata, spec"),
        ({"metadata": {"name": "s"}, "spec": {}}, "without a kind .* s has metadata, spec"),
        ({}, "it has nothing"),
        ({"gpu": GPUS}, "it has gpu"),
        ({**GPUS, "status": object()}, "a object is no part"),
        ({"kind": "Status", "status": "Failure", "message": "it is forbidden"}, "answered: it is forbidden"),
    ],
)
def test_what_is_no_source_is_refused(source: object, fault: str) -> None:
    ledger = Ledger()
    if not fault:
        ledger.feed(source)
        return
    with pytest.raises(DecodeError, match=fault):
        ledger.feed(source)


@pytest.mark.parametrize(
    ("obj", "name", "fault"),
    [
        ({**GPUS, "apiVersion": "resource.k8s.io/v1alpha2"}, "ResourceSlice s", "v1alpha2 is not known"),
        ({**GPUS, "metadata": {}}, "ResourceSlice ", "no metadata.name"),
        ({**HELD, "metadata": {"name": "x"}}, "ResourceClaim x", "no metadata.namespace"),
        ({"metadata": {"name": "x"}}, "items[1]", "no kind"),
        (
            {
                "kind": "DeviceTaintRule",
                "apiVersion": "resource.k8s.io/v1alpha3",
                "metadata": {"name": "x"},
                "spec": {"deviceSelector": {"deviceClassName": "gpu"}, "taint": {"key": "k", "effect": "NoExecute"}},
            },
            "DeviceTaintRule x",
            "deviceClassName or selectors, which went with Kubernetes 1.35",
        ),
        (None, "items[1]", "got `null`"),
        (NAMES, "items[1]", "a PartialObjectMetadata has no spec"),
        ({"items": 7}, "items[1]", "got `int`"),
        ({**HELD, "metadata": {**HELD["metadata"], "creationTimestamp": 7}}, "ResourceClaim ml/train", "creationTime"),
    ],
)
def test_an_item_that_cannot_be_read_is_named(obj: Any, name: str, fault: str) -> None:
    ledger = Ledger.of({"kind": "List", "items": [CLASS, obj]})
    assert (list(ledger.malformed), ledger.devices()) == ([name], [])
    assert fault in ledger.malformed[name]


def test_a_malformed_object_does_not_spoil_the_others() -> None:
    wrong = {**HELD, "status": {"allocation": 7}}
    ledger = Ledger.of(GPUS, HELD, {"kind": "List", "items": [wrong, CLASS]})
    assert states(ledger) == {"gpu-0": "taken", "gpu-1": "free"}
    assert list(ledger.malformed) == ["ResourceClaim ml/train"]
    assert ledger.classes == ["gpu"]
    ledger.feed({"type": "DELETED", "object": wrong})
    assert (states(ledger), ledger.malformed) == ({"gpu-0": "free", "gpu-1": "free"}, {})
    ledger.feed(wrong)
    ledger.feed(HELD)
    assert ledger.malformed == {}


def test_opaque_parameters_of_any_depth_are_read_past() -> None:
    deep = b'{"a":' * 4000 + b"1" + b"}" * 4000
    text = json.dumps({**HELD, "spec": {"devices": {"config": [{"opaque": {"driver": "d", "parameters": "DEEP"}}]}}})
    assert states(Ledger.of(GPUS, text.encode().replace(b'"DEEP"', deep)))["gpu-0"] == "taken"


def test_a_new_list_takes_out_what_it_does_not_have() -> None:
    ledger = Ledger.of(GPUS, HELD, claim("other", {"device": "gpu-1"}))
    ledger.replace("ResourceClaim", {"kind": "ResourceClaimList", "items": [HELD]})
    assert states(ledger) == {"gpu-0": "taken", "gpu-1": "free"}
    ledger.replace("ResourceSlice", [])
    assert states(ledger) == {"gpu-0": "gone"}
    its = [{"type": type_, "object": HELD} for type_ in ("DELETED", "ADDED", "DELETED")]
    ledger.replace("ResourceClaim", its[:2])
    assert states(ledger) == {"gpu-0": "gone"}
    ledger.replace("ResourceClaim", its)
    assert states(ledger) == {}


def test_a_new_list_may_lack_the_kind_but_no_page_and_has_no_other_kind() -> None:
    ledger = Ledger.of(GPUS, HELD)
    ledger.replace("ResourceClaim", [{"metadata": HELD["metadata"], "status": HELD["status"]}])
    ledger.replace("ResourceClaim", [kindless("ResourceV1ResourceClaim", HELD)])
    page = {"kind": "ResourceClaimList", "metadata": {"continue": "x"}, "items": []}
    for kind, source, fault in (
        ("ResourceClaim", page, "further pages"),
        ("ResourceClaim", {"kind": "ResourceSliceList", "items": [GPUS]}, "it has a ResourceSlice"),
        ("claims", [], "choose one of ResourceSlice, ResourceClaim"),
    ):
        with pytest.raises(ValueError, match=fault):
            ledger.replace(kind, source)
    assert states(ledger) == {"gpu-0": "taken", "gpu-1": "free"}
    ledger.replace("ResourceClaim", [page, {"kind": "ResourceClaimList", "items": [HELD]}])
    assert states(ledger) == {"gpu-0": "taken", "gpu-1": "free"}


def test_a_list_without_its_last_page_is_named() -> None:
    first, last = ({"kind": "ResourceClaimList", "metadata": meta, "items": []} for meta in ({"continue": "x"}, {}))
    ledger = Ledger.of(GPUS, first)
    assert ledger.malformed == {"ResourceClaimList": "the last page is missing (metadata.continue)"}
    ledger.feed(last)
    assert ledger.malformed == {}
    ledger.feed(first)
    ledger.replace("ResourceClaim", [HELD])
    assert ledger.malformed == {}


def test_an_object_that_is_deleted_is_gone_by_its_name() -> None:
    ledger = Ledger.of(GPUS, HELD)
    ledger.remove({"kind": "ResourceClaim", "metadata": {"name": "train", "namespace": "ml"}})
    ledger.remove({"kind": "ResourceClaim", "metadata": {"name": "unknown", "namespace": "ml"}})
    ledger.feed({"type": "DELETED", "object": {"kind": "ResourceSlice", "metadata": {"name": "unknown"}}})
    assert states(ledger) == {"gpu-0": "free", "gpu-1": "free"}


def test_an_object_without_its_names_is_not_taken_for_a_deleted_one() -> None:
    ledger = Ledger.of(GPUS, HELD)
    nameless = {"kind": "ResourceClaim", "metadata": {"name": "train"}}
    for source in (nameless, {"kind": "ResourceSlice"}, {"kind": "List", "items": [{"metadata": {}}]}):
        with pytest.raises(DecodeError, match=r"ResourceClaim train: .*namespace|ResourceSlice : .*name|items\[0\]"):
            ledger.remove(source)
    ledger.feed({"type": "DELETED", "object": nameless})
    assert ledger.malformed == {"ResourceClaim train": "it has no metadata.namespace"}
    assert states(ledger) == {"gpu-0": "taken", "gpu-1": "free"}


def test_releases_and_gates_that_are_not_known_are_refused() -> None:
    with pytest.raises(ValueError, match=r"1\.31"):
        Ledger("1.31")
    with pytest.raises(GateError, match="Nothing"):
        Ledger(gates={"Nothing": True})


# --- answers ---


def test_shares_say_what_they_consume_and_admin_access_stands_apart() -> None:
    shared = {"name": "gpu-0", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}}
    one = claim("one", {"device": "gpu-0", "shareID": "a", "consumedCapacity": {"memory": "30Gi"}})
    two = claim("two", {"device": "gpu-0", "shareID": "b", "consumedCapacity": {"memory": "10Gi"}})
    admin = claim("look", {"device": "gpu-0", "adminAccess": True}, namespace="ops")
    ledger = Ledger.of(slice_(shared), one, two, admin)
    (found,) = ledger.devices()
    assert (found.state, found.capacity) == ("shared", {"memory": Left(total="80Gi", left="40Gi")})
    assert [(holder.claim, holder.share, holder.consumed) for holder in found.holders] == [
        ("one", "a", {"memory": "30Gi"}),
        ("two", "b", {"memory": "10Gi"}),
    ]
    assert [holder.key for holder in found.observers] == ["ops/look"]
    assert [(entry.name, holder.claim) for entry, holder in ledger.holders("ml")] == [
        ("gpu-0", "one"),
        ("gpu-0", "two"),
    ]
    assert list(ledger.holders("ops")) == []
    assert [entry.state for entry in Ledger.of(slice_(shared), one, release="1.33").devices()] == ["taken"]


def test_counters_say_who_drew_on_them_and_stay_drawn_when_the_device_is_published_otherwise() -> None:
    def partitions(**sizes: str) -> list[Json]:
        sets = [{"name": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}]
        devices = [
            {"name": name, "consumesCounters": [{"counterSet": "gpu-0", "counters": {"memory": {"value": size}}}]}
            for name, size in sizes.items()
        ]
        return [slice_(name="c", count=2, sharedCounters=sets), slice_(*devices, name="d", count=2)]

    ledger = Ledger.of(partitions(half="40Gi", whole="80Gi"), claim("train", {"device": "half"}))
    assert states(ledger) == {"half": "taken", "whole": "drawn"}
    expected = CounterEntry(
        driver=DRIVER, pool="n1", counter_set="gpu-0", name="memory", total="80Gi", drawn="40Gi", left="40Gi",
        devices=("half",),
    )  # fmt: skip
    assert ledger.counters() == [expected]
    ledger.feed(partitions(quarter="20Gi", most="60Gi"))
    assert states(ledger) == {"quarter": "free", "most": "drawn", "half": "gone"}
    assert ledger.counters() == [expected]
    unseen = Ledger.of(partitions(quarter="20Gi"), claim("train", {"device": "half"}))
    assert unseen.counters() == [structs.replace(expected, drawn="0", left="0", devices=(), unknown=("half",))]
    assert states(unseen) == {"quarter": "drawn", "half": "gone"}


def test_pools_say_why_they_cannot_be_used() -> None:
    ledger = Ledger.of(
        slice_({"name": "a"}, name="1", node="n1", count=2),
        slice_({"name": "a"}, {"name": "a"}, name="2", node="n2"),
        slice_({"name": "a"}, name="3", node="n3", generation=2),
        slice_({"name": "b"}, name="4", node="n3", generation=1),
    )
    assert [(pool.name, pool.status, pool.obsolete, pool.devices) for pool in ledger.pools()] == [
        ("n1", "incomplete", (), {"unusable": 1}),
        ("n2", "invalid", (), {"unusable": 2}),
        ("n3", "usable", ("4",), {"free": 1}),
    ]
    assert [bool(pool.why) for pool in ledger.pools()] == [True, True, False]
    assert {device.why for device in ledger.devices(node="n2")} == {
        "resource pool gpu.example.com/n2 is currently invalid, since two devices are named a"
    }


def test_taints_of_devices_and_of_rules_count() -> None:
    rule = {
        "kind": "DeviceTaintRule",
        "apiVersion": "resource.k8s.io/v1",
        "metadata": {"name": "r"},
        "spec": {"deviceSelector": {"device": "gpu-1"}, "taint": {"key": "broken", "effect": "NoExecute"}},
    }
    ledger = Ledger.of(GPUS, rule)
    assert [(device.state, device.why) for device in ledger.devices()] == [
        ("free", ""),
        ("tainted", "broken:NoExecute"),
    ]
    ledger.remove(rule)
    assert states(ledger) == {"gpu-0": "free", "gpu-1": "free"}


def test_devices_are_counted_by_class_node_namespace_and_driver() -> None:
    selector = {"cel": {"expression": 'device.attributes["gpu.example.com"].model == "A"'}}
    fast = {**CLASS, "metadata": {"name": "fast"}, "spec": {"selectors": [selector]}}
    slow = {"name": "gpu-2", "attributes": {"model": {"string": "B"}}}
    quick = {"name": "gpu-3", "attributes": {"model": {"string": "A"}}}
    ledger = Ledger.of(GPUS, slice_(slow, quick, name="t", node="n2"), HELD, CLASS, fast)
    counted = {by: [(it.name, it.devices, it.free, it.taken) for it in ledger.tally(by)] for by in dra_ledger.ledger.BY}
    assert counted == {
        "class": [("fast", 1, 1, 0), ("gpu", 4, 3, 1)],
        "node": [("n1", 2, 1, 1), ("n2", 2, 2, 0)],
        "namespace": [("ml", 1, 0, 1)],
        "driver": [(DRIVER, 4, 3, 1)],
    }
    assert states(ledger, device_class="fast") == {"gpu-3": "free"}
    ledger.feed({**fast, "spec": {"selectors": [selector, {"kind to come": {}}]}})
    assert states(ledger, device_class="fast") == {}
    assert states(ledger, namespace="ml") == {"gpu-0": "taken"}
    with pytest.raises(ValueError, match="choose one of"):
        ledger.tally("weekday")
    with pytest.raises(KeyError):
        ledger.devices(device_class="unknown")


def test_pods_say_who_is_behind_a_pod_group_and_how_devices_are() -> None:
    group = claim("shared", {"device": "gpu-0"}, {"device": "gpu-1"})
    group["status"]["reservedFor"] = [
        {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "u"}
    ]
    health = [
        {"name": "claim:mine/gpu", "resources": [
            {"resourceID": f"{DRIVER}/n1/gpu-0", "health": "Unhealthy"},
            {"resourceID": "k8s.gpu.example.com/gpu=gpu-1", "health": "Healthy"},
        ]}
    ]  # fmt: skip
    pod = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": "p-0", "namespace": "ml", "uid": "u"},
        "spec": {
            "schedulingGroup": {"podGroupName": "g"},
            "resourceClaims": [{"name": "mine", "resourceClaimName": "shared"}],
        },
        "status": {"phase": "Running", "containerStatuses": [{"name": "c", "allocatedResourcesStatus": health}]},
    }
    ledger = Ledger.of(GPUS, group, pod)
    assert [(device.health, device.holders[0].pods) for device in ledger.devices()] == [
        ("Unhealthy", ("p-0",)),
        ("Healthy", ("p-0",)),
    ]
    ledger.feed({**pod, "status": {"phase": "Succeeded"}})
    assert [(device.health, device.holders[0].pods) for device in ledger.devices()] == [("", ()), ("", ())]


@pytest.mark.parametrize("sick", ["nic.example.com/n1/gpu-0", "k8s.nic.example.com/nic=gpu-0", f"{DRIVER}/other/gpu-0"])
def test_health_is_of_one_of_two_devices_with_one_name(sick: str) -> None:
    ids = [f"{DRIVER}/n1/gpu-0", "nic.example.com/n1/gpu-0", f"{DRIVER}/other/gpu-0"]
    names = [dict(zip(("driver", "pool", "device"), id_.split("/"), strict=True)) for id_ in ids]
    said = [{"name": "claim:mine", "resources": [{"resourceID": sick, "health": "Unhealthy"}]}]
    pod = {
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "ml"},
        "spec": {"resourceClaims": [{"name": "mine", "resourceClaimName": "train"}]},
        "status": {"containerStatuses": [{"name": "c", "allocatedResourcesStatus": said}]},
    }
    ledger = Ledger.of(claim("train", *names, pods=("p",)), pod)
    meant = ids[1] if "nic" in sick else sick
    assert [device.id for device in ledger.devices() if device.health] == [meant]


def test_a_device_of_a_node_that_does_not_exist_is_of_no_use() -> None:
    ledger = Ledger.of(GPUS)
    assert states(ledger) == {"gpu-0": "free", "gpu-1": "free"}  # no node was told
    ledger.feed({"kind": "Node", "metadata": {"name": "n2"}})
    assert {device.why for device in ledger.devices()} == {"node n1 does not exist"}
    ledger.feed({"kind": "Node", "metadata": {"name": "n1"}})
    assert states(ledger) == {"gpu-0": "free", "gpu-1": "free"}
    ledger.remove([{"kind": "Node", "metadata": {"name": name}} for name in ("n1", "n2")])
    assert states(ledger) == {"gpu-0": "free", "gpu-1": "free"}


def test_an_answer_is_kept_until_its_pool_changes() -> None:
    ledger = Ledger.of(GPUS, slice_({"name": "gpu-2"}, name="t", node="n2"), HELD)
    before: dict[str, DeviceEntry] = {device.name: device for device in ledger.devices()}
    ledger.feed(claim("train", {"device": "gpu-1"}))
    after = {device.name: device for device in ledger.devices()}
    assert states(ledger) == {"gpu-0": "free", "gpu-1": "taken", "gpu-2": "free"}
    assert after["gpu-2"] is before["gpu-2"]


def test_answers_are_worked_out_anew_where_more_has_changed_than_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journal, "_LIMIT", 1)
    ledger = Ledger.of(GPUS, slice_({"name": "gpu-2"}, name="t", node="n2"))
    assert len(states(ledger)) == 3
    ledger.feed([slice_({"name": "gpu-4"}, node="n1"), slice_({"name": "gpu-5"}, name="t", node="n2")])
    assert states(ledger) == {"gpu-4": "free", "gpu-5": "free"}


def test_one_device_is_answered_as_it_is_now_also_if_only_a_claim_names_it() -> None:
    def state(name: str, pool: str = "n1") -> str | None:
        found = ledger.device(DRIVER, pool, name)
        return found.state if found is not None else None

    ledger = Ledger.of(GPUS)
    assert (state("gpu-0"), state("gpu-9"), state("gpu-0", "n2")) == ("free", None, None)
    ledger.feed(slice_({"name": "gpu-9"}))
    assert (state("gpu-0"), state("gpu-9")) == (None, "free")
    ledger = Ledger.of(HELD)
    assert (state("gpu-0"), state("gpu-1")) == ("gone", None)


def test_a_claim_with_another_uid_takes_the_place_of_the_one_with_its_name() -> None:
    ledger = Ledger.of(GPUS, HELD)
    again = claim("train", {"device": "gpu-1"})
    again["metadata"]["uid"] = "another"
    ledger.feed(again)
    assert states(ledger) == {"gpu-0": "free", "gpu-1": "taken"}


def test_a_ledger_answers_while_its_stream_waits() -> None:
    ledger = Ledger()
    said: list[dict[str, str]] = []

    def stream() -> Iterator[object]:
        yield GPUS
        assert gc.isenabled()
        with ThreadPoolExecutor(1) as thread:
            said.append(thread.submit(states, ledger).result(timeout=5))
        yield {"type": "DELETED", "object": GPUS}

    ledger.feed(stream())
    assert (said, states(ledger)) == ([{"gpu-0": "free", "gpu-1": "free"}], {})


def test_metrics_are_of_one_moment_while_another_thread_feeds(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger.of(GPUS, CLASS)
    draws = Ledger.draws
    with ThreadPoolExecutor(1) as thread:

        def feeding(self: Ledger) -> Any:
            wait([thread.submit(ledger.replace, "ResourceSlice", [])], timeout=0.2)
            return draws(self)

        monkeypatch.setattr(Ledger, "draws", feeding)
        text = prometheus(ledger)
    assert 'dra_class_devices{class="gpu",driver="gpu.example.com",state="free"} 2' in text
    assert states(ledger) == {}


@pytest.mark.parametrize("module", [dra_ledger, dra_ledger.ledger])
def test_the_examples_in_docstrings_are_true(module: Any) -> None:
    tried = doctest.testmod(module)
    assert (tried.failed, tried.attempted > 0) == (0, True)


GROUPED = {"DRADeviceCompatibilityGroups": True}


def drawing(name: str, *groups: str, size: int = 1) -> Json:
    drawn = {"counterSet": "c", "counters": {"memory": {"value": str(size)}}, "compatibilityGroups": list(groups)}
    return {"name": name, "consumesCounters": [drawn]}


def of_one_gpu(*devices: Json) -> tuple[Json, Json]:
    counters = [{"name": "c", "counters": {"memory": {"value": "8"}}}]
    return slice_(name="counters", count=2, sharedCounters=counters), slice_(*devices, name="devices", count=2)


def test_devices_that_go_with_none_of_those_in_use_are_drawn() -> None:
    parts = drawing("a", "x"), drawing("b", "x", "y"), drawing("c", "y"), drawing("d")
    ledger = Ledger.of(*of_one_gpu(*parts), claim("one", {"device": "a"}), gates=GROUPED, release="1.37")
    assert states(ledger) == {"a": "taken", "b": "free", "c": "drawn", "d": "drawn"}
    ledger.feed(of_one_gpu(*(drawing(part["name"]) for part in parts)))
    assert states(ledger) == {"a": "taken", "b": "drawn", "c": "drawn", "d": "drawn"}, "in its group when it was taken"


@pytest.mark.parametrize(
    ("declared", "gates", "state"),
    [
        (["DRAOptionalNodeOperations"], True, "free"),
        ([], True, "unusable"),
        (["DRAOptionalNodeOperations"], False, "unusable"),
    ],
)
def test_a_device_without_all_calls_is_for_nodes_that_declare_it(declared: bool, gates: bool, state: str) -> None:
    node = {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"name": "n1"},
        "status": {"declaredFeatures": ["DRAOptionalNodeOperations"] if declared else []},
    }
    offered = slice_({"name": "gpu"}, skipNodeOperations=["*"])
    ledger = Ledger.of(offered, node, gates={"DRAOptionalNodeOperations": gates}, release="1.37")
    assert states(ledger) == {"gpu": state}


# --- agreement ---


@each_of(range(60))
def test_the_ledger_agrees_with_the_operator_after_every_step(seed: int) -> None:
    """``python -m campaign ledger --seeds 0:10000`` plays as many clusters."""
    assert played(seed).findings == ()
