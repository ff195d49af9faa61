"""Which drivers' devices other schedulers allocate too."""

from __future__ import annotations

import time
from random import Random
from typing import Any

import msgspec
import pytest
from dra_api.codec import convert
from dra_api.core import Pod
from dra_api.resource import AllocationResult, DeviceClass, ResourceClaim
from dra_ledger.predicates import Predicate
from dra_operator.allocator import Features, Inventory
from dra_operator.cache import ClaimTemplate, Cluster
from dra_operator.cache.shared_drivers import SharedDrivers, driver_of
from dra_operator.scheduling import ANY_DRIVER
from objects import meta

GPU = {"request": "r", "driver": "gpu.example.com", "pool": "p", "device": "d"}


class NoLanguage:
    def compile(self, expression: str) -> Predicate:
        return lambda driver, device: True


def class_(name: str, *expressions: str) -> DeviceClass:
    selectors = [{"cel": {"expression": text}} for text in expressions]
    return convert(DeviceClass, {"metadata": {"name": name}, "spec": {"selectors": selectors}})


def claim(revision: int, *, allocated: bool = False, class_name: str = "gpu") -> ResourceClaim:
    exactly = {"deviceClassName": class_name, "allocationMode": "ExactCount", "count": 1}
    spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    status = {"allocation": {"devices": {"results": [GPU]}}} if allocated else {}
    return convert(ResourceClaim, {"metadata": meta("c", revision), "spec": spec, "status": status})


def pod(revision: int, scheduler: str, *, gate: str | None = None, **status: Any) -> Pod:
    spec: Any = {"schedulerName": scheduler, "resourceClaims": [{"name": "c", "resourceClaimName": "c"}]}
    spec["schedulingGates"] = [{"name": gate}] if gate else None
    return convert(Pod, {"metadata": meta("p", revision), "spec": spec, "status": status})


def templated(revision: int, **status: Any) -> Pod:
    spec = {"schedulerName": "default-scheduler", "resourceClaims": [{"name": "c", "resourceClaimTemplateName": "t"}]}
    return convert(Pod, {"metadata": meta("p", revision), "spec": spec, "status": status})


def is_shared(cluster: Cluster, driver: str) -> bool:
    results = [GPU | {"driver": driver}]
    return cluster.has_shared_driver(convert(AllocationResult, {"devices": {"results": results}}))


@pytest.fixture
def cluster() -> Cluster:
    """Two classes: one of a driver, one that may be of any."""
    made = Cluster(Inventory(Features(), language=NoLanguage()))
    made.apply(class_("gpu", 'device.driver == "gpu.example.com"'))
    made.apply(class_("any"))
    return made


@pytest.mark.parametrize(
    ("expressions", "driver"),
    [
        (('device.driver == "a"',), "a"),
        (("device.driver == 'a' && device.attributes['a'].b",), "a"),
        (('(device.driver == "a") && true',), "a"),
        (("true", 'device.driver == "a"'), "a"),
        (('device.driver == "a" || device.driver == "b"',), ANY_DRIVER),
        (('true ? device.driver == "a" : true',), ANY_DRIVER),
        (('device.driver != "a"',), ANY_DRIVER),
        (('!(device.driver == "a")',), ANY_DRIVER),
        ((), ANY_DRIVER),
    ],
)
def test_a_class_is_of_the_driver_that_a_selector_demands(expressions: tuple[str, ...], driver: str) -> None:
    assert driver_of(class_("c", *expressions)) == driver


def test_where_only_this_scheduler_allocates_nothing_is_shared(cluster: Cluster) -> None:
    cluster.apply(claim(1, allocated=True))
    cluster.apply(pod(2, "dra-scheduler"))
    assert not is_shared(cluster, "gpu.example.com")


@pytest.mark.parametrize("first", ["claim", "pod"])
@pytest.mark.parametrize("allocated", [True, False])
def test_a_claim_that_a_pod_of_others_uses_makes_its_driver_shared(
    allocated: bool, first: str, cluster: Cluster
) -> None:
    objects = [claim(1, allocated=allocated), pod(2, "default-scheduler")]
    for obj in objects if first == "claim" else reversed(objects):
        cluster.apply(obj)
    assert is_shared(cluster, "gpu.example.com")
    assert not is_shared(cluster, "nic.example.com")
    cluster.apply(pod(3, "default-scheduler", phase="Succeeded"))
    assert not is_shared(cluster, "gpu.example.com")


@pytest.mark.rule("AA-07")
def test_a_pod_of_others_shares_nothing_while_it_is_gated(cluster: Cluster) -> None:
    cluster.apply(claim(1))
    cluster.apply(pod(2, "default-scheduler", gate="dra.kopf.dev/allocate"))
    assert not is_shared(cluster, "gpu.example.com")
    cluster.apply(pod(3, "default-scheduler"))
    assert is_shared(cluster, "gpu.example.com")


def test_a_waiting_claim_of_a_class_without_driver_makes_all_shared(cluster: Cluster) -> None:
    cluster.apply(claim(1, class_name="any"))
    cluster.apply(pod(2, "default-scheduler"))
    assert is_shared(cluster, "nic.example.com")
    cluster.delete(ResourceClaim, "ns/c", "uid-c")
    assert not is_shared(cluster, "nic.example.com")


def test_a_pod_of_others_shares_the_classes_of_its_template_before_its_claim_is_known(cluster: Cluster) -> None:
    cluster.apply(convert(ClaimTemplate, {"metadata": meta("t"), "spec": {"spec": msgspec.to_builtins(claim(1).spec)}}))
    waiting = templated(2)
    cluster.apply(waiting)
    assert is_shared(cluster, "gpu.example.com")
    assert not is_shared(cluster, "nic.example.com")
    cluster.apply(templated(3, resourceClaimStatuses=[{"name": "c", "resourceClaimName": "c"}]))
    assert is_shared(cluster, "gpu.example.com")
    cluster.apply(templated(4, resourceClaimStatuses=[{"name": "c"}]))  # its entry needs no claim
    assert not is_shared(cluster, "gpu.example.com")
    cluster.apply(templated(5))
    cluster.delete(Pod, "ns/p", "uid-p")
    assert not is_shared(cluster, "gpu.example.com")


def test_a_pod_of_others_with_an_extended_resource_shares_the_driver_of_its_class(cluster: Cluster) -> None:
    asking = {"name": "main", "resources": {"requests": {"deviceclass.resource.kubernetes.io/gpu": "1"}}}
    body = {"metadata": meta("e"), "spec": {"schedulerName": "default-scheduler", "containers": [asking]}}
    cluster.apply(convert(Pod, body))
    assert is_shared(cluster, "gpu.example.com")
    drivers = frozenset({"gpu.example.com"})
    came = cluster.others_decide(drivers)
    cluster.apply(convert(Pod, body | {"metadata": meta("e", 2, annotations={"a": "b"})}))
    assert cluster.others_decide(drivers) == came, "its scheduler decides on nothing new"
    cluster.apply(convert(Pod, body | {"metadata": meta("e", 3) | {"uid": "uid-f"}}))
    assert cluster.others_decide(drivers).cluster_events == came.cluster_events + 1, "another pod came"
    cluster.delete(Pod, "ns/e", "uid-f")
    assert not is_shared(cluster, "gpu.example.com")


@pytest.mark.parametrize("seed", range(20))
def test_names_of_deleted_classes_go_with_the_last_pod_that_wants_them(seed: int) -> None:
    """In any order of classes that come and go, and of pods that want them."""
    random, shared = Random(seed), SharedDrivers()
    names, keys = [f"class-{it}" for it in range(4)], [f"pod ns/p{it}" for it in range(4)]
    for _ in range(200):
        if random.random() < 0.5:
            shared.file(random.choice(keys), classes=random.sample(names, random.randint(0, 3)), is_queued=True)
        elif random.random() < 0.5:
            shared.put_class(class_(random.choice(names), 'device.driver == "gpu.example.com"'))
        else:
            shared.remove_class(random.choice(names))
        wanted = {name for key in keys for name in shared._classes.values_of(key)}
        assert shared._gone_classes <= wanted
    for name in names:
        shared.remove_class(name)
    for key in keys:
        shared.file(key)
    assert (shared._gone_classes, shared._class_drivers, list(shared._queued), bool(shared)) == (set(), {}, [], False)


def test_a_class_that_is_made_again_keeps_its_driver_when_nobody_wants_it() -> None:
    drivers, gpu = SharedDrivers(), class_("gpu", 'device.driver == "gpu.example.com"')
    drivers.put_class(gpu)
    drivers.file("ns/p", classes=["gpu"])
    drivers.remove_class("gpu")
    drivers.put_class(gpu)
    drivers.file("ns/p")
    assert drivers.driver_of_class("gpu") == "gpu.example.com"


def test_classes_that_do_not_exist_cost_nothing_however_many_pods_name() -> None:
    """Each decision of the operator went through all of them: 8,000 of one claim, in the claims of hundreds of pods."""
    shared = SharedDrivers()
    shared.put_class(class_("gpu", 'device.driver == "gpu.example.com"'))
    shared.file("pod ns/p", classes=[f"absent-{number}" for number in range(50_000)], is_queued=True)
    begun = time.process_time()
    assert not any(shared.others_decide({"gpu.example.com"}).present for _ in range(500))
    assert time.process_time() - begun < 0.5
