"""What the ledger makes of objects that no API server would store, of lies, and of half a dump."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from dra_ledger import Ledger
from dra_ledger.cli import prometheus

Json = dict[str, Any]
DRIVER = "gpu.example.com"
GPU: Json = {"name": "gpu-0"}


def sliced(devices: Any, name: str = "s", generation: Any = 1, count: Any = 1, **spec: Any) -> Json:
    pool = {"name": "n1", "generation": generation, "resourceSliceCount": count}
    about = {"driver": DRIVER, "nodeName": "n1", "pool": pool, "devices": devices, **spec}
    return {"kind": "ResourceSlice", "apiVersion": "resource.k8s.io/v1", "metadata": {"name": name}, "spec": about}


def claimed(name: str, *results: Json) -> Json:
    given = [{"request": "r", "driver": DRIVER, "pool": "n1", **result} for result in results]
    status = {"allocation": {"devices": {"results": given}}}
    return {"kind": "ResourceClaim", "metadata": {"namespace": "ml", "name": name}, "spec": {}, "status": status}


def asked(ledger: Ledger) -> dict[str, str]:
    """The states, after every question was asked."""
    ledger.pools()
    ledger.counters()
    ledger.draws()
    prometheus(ledger)
    return {device.id.removeprefix(f"{DRIVER}/n1/"): device.state for device in ledger.devices()}


def node(name: str, **more: Any) -> Json:
    return {"kind": "Node", "metadata": {"name": name}, **more}


def shared(amount: str) -> Json:
    return {"name": "gpu-0", "allowMultipleAllocations": True, "capacity": {"memory": {"value": amount}}}


def taking(**amounts: str) -> Json:
    return claimed("c", {"device": "gpu-0", "shareID": "s", "consumedCapacity": amounts})


def class_of(expression: str) -> Json:
    return {
        "kind": "DeviceClass",
        "metadata": {"name": "k"},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


@pytest.mark.parametrize(
    ("objects", "states"),
    [
        ([sliced([GPU, GPU]), claimed("c", {"device": "gpu-0"})], {"gpu-0": "taken"}),
        ([sliced([GPU], "a", -7), sliced([{"name": "new"}], "b", -5)], {"new": "free"}),
        ([sliced([GPU], generation=2**70)], {"gpu-0": "free"}),
        ([sliced([GPU], count=0)], {"gpu-0": "unusable"}),
        ([sliced([GPU], count=-1)], {"gpu-0": "unusable"}),
        ([sliced([GPU], generation="x")], {}),
        ([sliced([None])], {}),
        ([sliced(None)], {}),
        ([claimed("c", {"device": "x"}, {"device": "y"})], {"x": "gone", "y": "gone"}),
        ([sliced([GPU]), claimed("c", {"device": "gpu-0"}, {"device": "gpu-0"})], {"gpu-0": "taken"}),
        ([sliced([GPU]), claimed("c", {"device": "gpu-0"}), claimed("d", {"device": "gpu-0"})], {"gpu-0": "taken"}),
        (
            [sliced([shared("9" * 300)]), taking(memory="9" * 300)],
            {"gpu-0": "shared"},
        ),
        (
            [sliced([shared("9" * 400 + ".5")]), taking(memory="9" * 400 + ".5"), class_of("true")],
            {"gpu-0": "shared"},
        ),
        (
            [sliced([shared("5")]), taking(memory="-9", x="1")],
            {"gpu-0": "shared"},
        ),
        ([sliced([{"name": "p", "consumesCounters": [{"counterSet": "none", "counters": {}}]}])], {"p": "unusable"}),
        ([sliced([GPU]), class_of("(((")], {"gpu-0": "free"}),
        ([sliced([GPU]), class_of("device.attributes['x'].y > 1")], {"gpu-0": "free"}),
        ([sliced([GPU]), node("n1", status=7)], {"gpu-0": "free"}),
    ],
    ids=[
        "one name twice", "negative generations", "a generation beyond 64 bits", "no slices announced",
        "fewer than none",
        "a generation that is a word", "no device", "no devices", "devices that nobody publishes", "one device twice",
        "two holders of one device", "300 digits", "400 digits and a half",
        "negative amounts of unknown capacity", "unknown counters",
        "a selector that is no CEL", "a selector that fails", "no node that can be read",
    ],
)  # fmt: skip
def test_the_answer_is_one_that_makes_sense(objects: list[Json], states: dict[str, str]) -> None:
    assert asked(Ledger.of(objects)) == states
    assert asked(Ledger.of(json.dumps({"kind": "List", "items": objects[::-1]}))) == states


def test_a_claim_holds_one_of_two_devices_with_one_name() -> None:
    ledger = Ledger.of(sliced([GPU, GPU]), claimed("c", {"device": "gpu-0"}))
    assert [(entry.name, holder.claim) for entry, holder in ledger.holders()] == [("gpu-0", "c")]


def test_32000_labels_cost_nothing_to_keep() -> None:
    labels = {f"key-{number}": "v" * 60 for number in range(32_000)}
    published, held = sliced([GPU]), claimed("c", {"device": "gpu-0"})
    for obj in (published, held):
        obj["metadata"]["labels"] = labels
    ledger = Ledger.of(published, held)
    assert asked(ledger) == {"gpu-0": "taken"}
    assert all("key-" not in repr(kept) for kind in ("ResourceSlice", "ResourceClaim") for kept in ledger._every(kind))


def test_a_node_that_cannot_be_read_is_not_called_absent() -> None:
    ledger = Ledger.of(sliced([GPU]), node("n2"))
    assert [device.why for device in ledger.devices()] == ["node n1 does not exist"]
    ledger.feed(node("n1", spec=7))
    assert [device.why for device in ledger.devices()] == ["node n1 cannot be read"]
    ledger.feed(node("n1"))
    assert asked(ledger) == {"gpu-0": "free"}


def test_half_a_dump_says_which_kinds_it_lacks() -> None:
    ledger = Ledger.of({"kind": "ResourceClaimList", "items": []}, {"kind": "List", "items": [sliced([GPU])]})
    assert ledger.missing == ["DeviceClass", "DeviceTaintRule", "Node", "Pod"]
    ledger.replace("Node", [])
    ledger.feed({"kind": "Pod", "metadata": {"name": 7}})
    assert ledger.missing == ["DeviceClass", "DeviceTaintRule"]


def test_a_device_may_have_thousands_of_shares() -> None:
    ledger = Ledger.of(sliced([shared("5000")]))
    for number in range(2_000):
        given = {"device": "gpu-0", "shareID": f"s{number}", "consumedCapacity": {"memory": "1"}}
        ledger.feed(claimed(f"c{number}", given))
    (device,) = ledger.devices()
    assert (len(device.holders), device.capacity["memory"].left) == (2_000, "3k")
    for number in range(2_000):
        ledger.remove(claimed(f"c{number}"))
    assert asked(ledger) == {"gpu-0": "free"}


WHOLE: list[Json] = [
    sliced(
        [
            {
                **shared("80Gi"),
                "attributes": {"model": {"string": "A"}},
                "taints": [{"key": "k", "effect": "None", "timeAdded": "2026-01-01T00:00:00Z"}],
                "consumesCounters": [{"counterSet": "set", "counters": {"slices": {"value": "1"}}}],
            }
        ]
    ),
    taking(memory="10Gi"),
    class_of("true"),
    node("n1", spec={"taints": []}, status={"allocatable": {"cpu": "8"}}),
    {
        "kind": "Pod",
        "metadata": {"namespace": "ml", "name": "p"},
        "spec": {"resourceClaims": [{"name": "mine", "resourceClaimName": "c"}]},
        "status": {
            "containerStatuses": [
                {"name": "c", "allocatedResourcesStatus": [{"name": "claim:mine", "resources": [{"resourceID": "x"}]}]}
            ]
        },
    },
    {
        "kind": "DeviceTaintRule",
        "metadata": {"name": "r"},
        "spec": {"deviceSelector": {"pool": "n1"}, "taint": {"key": "k", "effect": "NoSchedule"}},
    },
]
for one in WHOLE:
    one["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
WHOLE[1]["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "u"}]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """The containers of all values in it, with their keys or numbers."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield value, key
        yield from places(inner)


@pytest.mark.parametrize("odd", [None, 7, "x", [], {}, [None], True, 1.5], ids=repr)
def test_a_wrong_value_spoils_its_object_alone(odd: Any) -> None:
    for number, whole in enumerate(WHOLE):
        meta = whole["metadata"]
        name = f"{whole['kind']} {'/'.join(meta[part] for part in ('namespace', 'name') if part in meta)}"
        objects = copy.deepcopy(WHOLE)
        for container, key in list(places(objects[number])):
            if key in ("kind", "apiVersion", "metadata", "name", "namespace"):
                continue
            good, container[key] = container[key], odd
            ledger = Ledger.of({"kind": "List", "items": objects})
            assert set(ledger.malformed) <= {name}, (name, key)
            asked(ledger)
            container[key] = good
