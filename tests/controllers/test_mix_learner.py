"""What pods ask for is told to the allocator once for each pod, and found again after a restart."""

from __future__ import annotations

from typing import Any

from dra_api.codec import convert
from dra_api.core import Pod
from dra_api.resource import DeviceClass, ResourceClaim
from dra_operator.allocator import Allocator, Features, Inventory
from dra_operator.cache import Cluster
from dra_operator.cel_language import CelSelectors
from dra_operator.controllers.scheduling.mix_learner import MixLearner


def claim(name: str, kind: str) -> ResourceClaim:
    selector = {"cel": {"expression": f'device.attributes["d"].kind == "{kind}"'}}
    exactly = {"deviceClassName": "any", "allocationMode": "ExactCount", "count": 1, "selectors": [selector]}
    spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    return convert(ResourceClaim, {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": spec})


def pod(name: str, node: str | None = None) -> Pod:
    entries = [{"name": "device", "resourceClaimName": name}]
    spec: dict[str, Any] = {"containers": [], "resourceClaims": entries, "schedulerName": "dra-scheduler"}
    spec |= {"nodeName": node} if node else {}
    return convert(Pod, {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": spec, "status": {}})


def cluster() -> Cluster:
    features = Features()
    return Cluster(Inventory(features, language=CelSelectors(features)))


def learner(of: Cluster, order: str = "least-loss") -> tuple[MixLearner, Allocator]:
    of.inventory.put_class(convert(DeviceClass, {"metadata": {"name": "any"}, "spec": {}}))
    allocator = Allocator(of.inventory, new_share_id=str, order=order)
    return MixLearner(of, allocator), allocator


def kinds(allocator: Allocator) -> dict[str, int]:
    return {it.alternative.expressions[0].split('"')[3]: it.weight for it in allocator.learned.mix.classes}


def test_a_pod_that_is_tried_again_counts_once() -> None:
    made, allocator = learner(cluster())
    for _ in range(30):
        made.see(pod("a"), [claim("a", "large")])
    for number in range(19):
        made.see(pod(f"b{number}"), [claim("b", "small")])
    assert kinds(allocator) == {"small": 1024 * 19 // 20, "large": 1024 // 20}


def test_a_process_that_begins_counts_the_pods_that_have_devices() -> None:
    seen = cluster()
    for number in range(15):
        seen.apply(pod(f"p{number}", "n1"))
        seen.apply(claim(f"p{number}", "placed"))
    seen.apply(pod("waits"))
    seen.apply(claim("waits", "waiting"))
    made, allocator = learner(seen)
    for number in range(5):
        made.see(pod(f"new{number}"), [claim("new", "new")])
    assert kinds(allocator) == {"placed": 1024 * 15 // 20, "new": 1024 * 5 // 20}


def test_nothing_is_learned_for_orders_that_do_not_ask() -> None:
    made, allocator = learner(cluster(), "best-fit")
    made.see(pod("a"), [claim("a", "large")])
    assert kinds(allocator) == {}
