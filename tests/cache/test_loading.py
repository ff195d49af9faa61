"""Objects that are loaded in one go lead to the same state as objects that are applied one by one, in any order."""

from __future__ import annotations

from typing import Any

from dra_api.codec import convert
from dra_api.core import Node, Pod
from dra_api.meta import Object
from dra_api.resource import DeviceClass, ResourceClaim
from dra_ledger.predicates import Predicate
from dra_operator.allocator import Features, Inventory
from dra_operator.cache import Cluster
from hypothesis import given
from hypothesis import strategies as st
from objects import meta

NAMES = ("a", "b", "c")
NODES = ("", "n-0", "n-1")
SCHEDULERS = ("dra-scheduler", "default-scheduler")
INDEXES = ("pods_by_claim", "pods_by_template", "pods_by_volume_claim", "pods_by_gang", "claims_by_owner")
CLAIM_INDEXES = ("claims_by_class", "claims_by_device")


class NoLanguage:
    def compile(self, expression: str) -> Predicate:
        return lambda driver, device: True


@st.composite
def pods(draw: st.DrawFn) -> Object:
    spec = {
        "schedulerName": draw(st.sampled_from(SCHEDULERS)),
        "nodeName": draw(st.sampled_from(NODES)),
        "containers": [{"name": "main", "resources": {"requests": {"cpu": draw(st.sampled_from(("1", "500m")))}}}],
        "resourceClaims": [{"name": "c", "resourceClaimName": draw(st.sampled_from(NAMES))}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": draw(st.sampled_from(NAMES))}}],
    }
    phase = draw(st.sampled_from(("Pending", "Running", "Succeeded")))
    return convert(Pod, {"metadata": _meta(draw, "pod"), "spec": spec, "status": {"phase": phase}})


@st.composite
def claims(draw: st.DrawFn) -> Object:
    device: dict[str, Any] = {"request": "r", "driver": "d", "pool": "p", "device": draw(st.sampled_from(NAMES))}
    if draw(st.booleans()):
        device |= {"shareID": draw(st.sampled_from(NAMES)), "consumedCapacity": {"memory": "1Gi"}}
    status = {"allocation": {"devices": {"results": [device]}}} if draw(st.booleans()) else {}
    requests = [{"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}}]
    spec = {"devices": {"requests": requests}}
    return convert(ResourceClaim, {"metadata": _meta(draw, "claim"), "spec": spec, "status": status})


def _meta(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    name = draw(st.sampled_from(NAMES))
    return meta(name, draw(st.integers(1, 3)), uid=f"{kind}-{name}-{draw(st.sampled_from('uv'))}")


@st.composite
def nodes(draw: st.DrawFn) -> Object:
    name = draw(st.sampled_from(NODES[1:]))
    return convert(Node, {"metadata": meta(name), "status": {"allocatable": {"cpu": "4", "pods": "10"}}})


def _cluster() -> Cluster:
    made = Cluster(Inventory(Features(), language=NoLanguage()))
    selector = {"cel": {"expression": 'device.driver == "d"'}}
    made.apply(convert(DeviceClass, {"metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}}))
    return made


def _state(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in (*INDEXES, *CLAIM_INDEXES):
        index = getattr(cluster, name)
        found[name] = (
            {key: index.values_of(key) for key in index},
            {value: set(index.keys(value)) for value in index.values()},
        )
    found["rooms"] = {state.name: dict(state.used) for state in cluster.loaded_nodes()}
    found["placed"] = dict(iter(cluster.pods_by_node))
    found["waiting"] = set(cluster.waiting)
    found["usage"] = cluster.allocated_devices.usage._pools
    found["others"] = cluster.others_decide(frozenset({"d"}))[:3]
    return found


@given(st.lists(pods() | claims() | nodes(), max_size=12), st.integers(0, 12))
def test_a_load_is_as_one_change_after_the_other(objects: list[Object], known: int) -> None:
    """``known``: how many are there before."""
    loaded, applied = _cluster(), _cluster()
    for obj in objects[:known]:
        loaded.apply(obj)
    loaded.load(objects[known:])
    for obj in objects:
        applied.apply(obj)
    assert _state(loaded) == _state(applied)
