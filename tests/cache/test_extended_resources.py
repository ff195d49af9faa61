"""What the view keeps for pods that ask for extended resources: who is woken, what is counted, who holds devices."""

from __future__ import annotations

from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.core import Pod
from dra_api.resource import AllocationResult, DeviceClass, ResourceClaim
from dra_operator.allocator import DeviceId, Inventory
from dra_operator.cache import EVERYTHING, LEFTOVERS, Cluster, Key, Keys, WakeConditions
from objects import meta

GPU = "example.com/gpu"
IMPLICIT = "deviceclass.resource.kubernetes.io/gpu"
DEVICE = {"driver": "d", "pool": "p", "device": "x"}
PLACE, CLAIM = Key("placement", "ns/p"), Key("release", "ns/made")


@pytest.fixture
def cluster() -> Cluster:
    class NoSelectors:
        def compile(self, expression: str) -> Any:
            raise ValueError("no selectors in these tests")

    return Cluster(Inventory(language=NoSelectors()))


def pod(version: int, resource: str = GPU, node: str = "", **status: Any) -> Pod:
    containers = [{"name": "c", "resources": {"requests": {resource: "1", "cpu": "1"}}}]
    spec = {"schedulerName": "dra-scheduler", "containers": containers, "nodeName": node}
    metadata = meta("p", version)
    return convert(Pod, {"metadata": metadata, "spec": spec, "status": status})


def recorded(name: str, resource: str = GPU) -> dict[str, Any]:
    mapping = {"containerName": "c", "resourceName": resource, "requestName": "container-0-request-1"}
    return {"extendedResourceClaimStatus": {"resourceClaimName": name, "requestMappings": [mapping]}}


def device_class(
    version: int, resource: str | None = GPU, name: str = "gpu", uid: str = "1", created: str | None = None
) -> DeviceClass:
    metadata = {"name": name, "uid": uid, "resourceVersion": str(version), "creationTimestamp": created}
    return convert(DeviceClass, {"metadata": metadata, "spec": {"extendedResourceName": resource}})


def made(version: int, *, owner: str = "uid-p", allocated: bool = False) -> ResourceClaim:
    controller = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": True}
    metadata = {
        "namespace": "ns",
        "name": "made",
        "uid": "uid-made",
        "resourceVersion": str(version),
        "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
        "ownerReferences": [controller],
    }
    results = [{"request": "r", **DEVICE}]
    status = {"allocation": {"devices": {"results": results}}} if allocated else {}
    return convert(ResourceClaim, {"metadata": metadata, "status": status})


def test_a_class_that_serves_the_resource_wakes_the_pod(cluster: Cluster) -> None:
    cluster.apply(pod(1))
    assert cluster.apply(device_class(2, "example.com/other")) == ()
    assert cluster.apply(device_class(3)) == (PLACE,)
    assert cluster.apply(device_class(4)) == ()


def test_a_class_wakes_who_asks_for_it_by_its_own_name(cluster: Cluster) -> None:
    cluster.apply(pod(1, IMPLICIT))
    assert cluster.apply(device_class(2, None, "other")) == ()
    assert cluster.apply(device_class(3, None)) == (PLACE,)


def test_a_class_that_no_longer_serves_the_resource_wakes_the_pod_since_another_one_may_now(cluster: Cluster) -> None:
    cluster.apply(pod(1))
    cluster.apply(device_class(2))
    assert cluster.apply(device_class(3, "example.com/other")) == (PLACE,)
    cluster.apply(device_class(4))
    assert cluster.delete(DeviceClass, "gpu") == (PLACE,)


def test_prj_018_the_youngest_class_serves_whatever_happened_before_and_every_class_its_own_name(
    cluster: Cluster,
) -> None:
    def serving() -> str | None:
        return cluster.classes_serving(pod(1)).get(GPU)

    old = device_class(1, name="old", uid="old", created="2026-01-01T00:00:00Z")
    young = device_class(2, name="young", uid="young", created="2026-02-01T00:00:00Z")
    assert serving() is None
    for class_ in (young, old):
        cluster.apply(class_)
        assert serving() == "young"
    for name in ("old", "young"):
        implicit = "deviceclass.resource.kubernetes.io/" + name
        assert cluster.classes_serving(pod(1, implicit)) == {implicit: name}
    cluster.apply(device_class(3, "example.com/other", "young", "young", created="2026-02-01T00:00:00Z"))
    assert serving() == "old"
    cluster.delete(DeviceClass, "old")
    assert serving() is None
    implicit = "deviceclass.resource.kubernetes.io/young"
    assert cluster.classes_serving(pod(1, implicit)) == {implicit: "young"}


def test_a_pod_that_has_its_node_is_not_woken(cluster: Cluster) -> None:
    cluster.apply(pod(1))
    cluster.apply(pod(2, node="n"))
    assert cluster.apply(device_class(3)) == ()


@pytest.mark.parametrize(("wake_on", "keys"), [(LEFTOVERS, (PLACE,)), (EVERYTHING, ())])
def test_only_who_waits_for_a_leftover_to_go_is_woken_when_it_does(
    wake_on: WakeConditions, keys: Keys, cluster: Cluster
) -> None:
    """Not a pod whose attempt just failed and that has deleted its claim itself: that one waits for its back-off."""
    cluster.apply(pod(1))
    cluster.apply(made(2))
    cluster.set_wake_conditions("ns/p", wake_on)
    assert cluster.delete(ResourceClaim, "ns/made") == keys


def test_claims_beside_the_one_with_which_a_pod_got_its_node_are_looked_at(cluster: Cluster) -> None:
    cluster.apply(pod(1))
    cluster.apply(made(2))
    assert CLAIM in cluster.apply(pod(3, node="n", **recorded("other")))
    assert CLAIM not in cluster.apply(pod(4, node="n", **recorded("other"), phase="Running"))


def test_the_end_of_a_pod_has_every_claim_that_was_made_for_it_looked_at(cluster: Cluster) -> None:
    cluster.apply(pod(1))
    cluster.apply(made(2))
    assert CLAIM in cluster.apply(pod(3, phase="Failed"))


def test_what_devices_serve_takes_nothing_of_what_the_node_counts(cluster: Cluster) -> None:
    cluster.apply(pod(1))
    cluster.assume_placed(pod(1), "n", (GPU,))
    assert GPU not in cluster.loads.used("n")
    cluster.apply(pod(2, node="n", **recorded("made")))
    assert GPU not in cluster.loads.used("n")
    cluster.apply(pod(3, node="n"))
    assert cluster.loads.used("n")[GPU] == 10**9


def test_devices_change_hands_once_when_the_claim_that_was_thought_up_exists(cluster: Cluster) -> None:
    """The allocation is counted once, whichever comes first: the answer to the write or its end."""
    thought_up = convert(ResourceClaim, {"metadata": {"namespace": "ns", "name": "<>", "uid": "uid-thought-up"}})
    allocation = convert(AllocationResult, {"devices": {"results": [{"request": "r", **DEVICE}]}})
    device = DeviceId("d", "p", "x")
    allocated_devices = cluster.allocated_devices
    allocated_devices.assume(thought_up, allocation, pod(1))
    allocated_devices.follow("uid-thought-up", made(1))
    assert allocated_devices.assumed("uid-thought-up") is None
    assert [entry.claim.metadata.uid for entry in allocated_devices.assumed_for("ns/p")] == ["uid-made"]
    assert not allocated_devices.usage.is_free(device)
    cluster.apply(made(2, allocated=True))
    assert [uid for uid, _ in allocated_devices.holders()] == ["uid-made"]
    allocated_devices.confirm("uid-made")
    assert not allocated_devices.usage.is_free(device)
    cluster.apply(made(3))
    assert allocated_devices.usage.is_free(device)
