"""No change that decides about a pod's eviction goes by without naming the pod (TE-05)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from controllers_world import keys_of
from dra_api.codec import convert
from dra_api.core import Pod, PodResourceClaim
from dra_api.meta import Object
from dra_api.resource import Device, DeviceTaintRule
from dra_api.scheduling import PodGroup
from dra_operator.allocator import Features, Inventory
from dra_operator.cache import BulkLimits, Cluster, Key, evictions
from dra_operator.eviction import Eviction
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from objects import claim, owner, pod, result, rule, slice_of, taint

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BEFORE = datetime.min.replace(tzinfo=UTC)
PODS, CLAIMS, DEVICES = ("p", "q"), ("c", "d"), ("dev-0", "dev-1")


class NoSelectors:
    def compile(self, expression: str) -> Callable[[str, Device], bool]:
        raise ValueError("no selectors in these tests")


def make_cluster(limits: BulkLimits | None = None) -> Cluster:
    return Cluster(Inventory(Features(taint_rules=True), language=NoSelectors()), limits=limits)


Change = Callable[[int], Object]
"""Makes an object of the given resourceVersion."""


@st.composite
def slices(draw: st.DrawFn) -> Change:
    name, generation = draw(st.sampled_from(["s", "t"])), draw(st.integers(1, 2))
    effects = draw(st.tuples(*[st.sampled_from(["", "NoExecute", "NoSchedule"])] * 2))
    devices = {
        device: [taint(effect=effect)] if effect else [] for device, effect in zip(DEVICES, effects, strict=True)
    }
    return lambda version: slice_of(devices, name=name, generation=generation, version=version)


@st.composite
def rules(draw: st.DrawFn) -> Change:
    selector = draw(st.sampled_from([None, {}, {"device": "dev-0"}, {"driver": "other"}]))
    effect, uid = draw(st.sampled_from(["NoExecute", "None"])), draw(st.sampled_from(["one", "two"]))
    return lambda version: rule(selector=selector, effect=effect, uid=uid, version=version)


@st.composite
def claims(draw: st.DrawFn) -> Change:
    name, devices = draw(st.sampled_from(CLAIMS)), draw(st.lists(st.sampled_from(DEVICES), max_size=2))
    forever = {"operator": "Exists", "effect": "NoExecute"}
    tolerations = [forever] if draw(st.booleans()) else []
    users = tuple(draw(st.lists(st.sampled_from(PODS), unique=True)))
    owned = {"ownerReferences": [owner(draw(st.sampled_from(PODS)))]} if draw(st.booleans()) else {}
    results = [result(device, *tolerations) for device in devices]
    return lambda version: claim(*results, name=name, users=users, version=version, **owned)


@st.composite
def pods(draw: st.DrawFn) -> Change:
    name, uses = draw(st.sampled_from(PODS)), draw(st.lists(st.sampled_from(CLAIMS), unique=True))
    node, successor = draw(st.sampled_from(["", "node-a"])), draw(st.booleans())
    extended: Any = {"resourceClaimName": draw(st.sampled_from(CLAIMS))} if draw(st.booleans()) else None
    status: Any = {"extendedResourceClaimStatus": extended} if extended else {}
    if draw(st.booleans()):
        status["resourceClaimStatuses"] = [{"name": "generated", "resourceClaimName": draw(st.sampled_from(CLAIMS))}]
    uid = f"uid-{name}-2" if successor else f"uid-{name}"
    return lambda version: pod(*uses, "", name=name, node=node, uid=uid, version=version, **status)


CHANGES = st.tuples(st.one_of(slices(), rules(), claims(), pods()), st.booleans())


def verdicts(cluster: Cluster) -> dict[str, tuple[str, Eviction | None]]:
    return {it.key: (it.metadata.uid, evictions.eviction_of(cluster, it, NOW, BEFORE)) for it in cluster.pods}


def with_many_names(it: Pod) -> Pod:
    """Return the pod with twenty claims before its own, so that these are not kept."""
    more = tuple([PodResourceClaim(name=f"more-{n}", resource_claim_name=f"{n}".ljust(253, "x")) for n in range(20)])
    return replace(it, spec=replace(it.spec, resource_claims=(*more, *(it.spec.resource_claims or ()))))


@pytest.mark.rule("TE-05")
@pytest.mark.parametrize("is_greedy", [False, True], ids=["few claims", "more claims than are kept"])
@given(st.lists(CHANGES, max_size=10))
def test_every_pod_whose_eviction_changes_is_named(is_greedy: bool, history: list[tuple[Change, bool]]) -> None:
    cluster = make_cluster(BulkLimits(short=500, whole=0)) if is_greedy else make_cluster()
    cluster.apply(slice_of({"dev-0": [taint()], "dev-1": []}, name="s"))
    for name, device in zip(CLAIMS, DEVICES, strict=True):
        cluster.apply(claim(result(device), name=name, users=PODS, ownerReferences=[owner("p")]))
    cluster.apply(pod("c", name="p"))
    cluster.apply(rule(selector={"device": "dev-1"}))
    for version, (change, removes) in enumerate(history, start=2):
        before = verdicts(cluster)
        obj = change(version)
        if is_greedy and isinstance(obj, Pod):
            obj = with_many_names(obj)
        keys = {*keys_of(cluster.delete(type(obj), obj.key) if removes else cluster.apply(obj))}
        for key in [key for key in keys if key.controller == "taint-rules"]:
            keys.update(*evictions.users_of_changed(cluster, key.object))
        after = verdicts(cluster)
        changed = {key for key in before.keys() | after.keys() if due(before.get(key)) != due(after.get(key))}
        assert {Key("eviction", key) for key in changed} <= keys
        keys = {key for part in evictions.everything(cluster) for key in keys_of(part)}
        for key in [key for key in keys if key.controller == "taint-rules"]:
            keys.update(*evictions.users_of_changed(cluster, key.object))
        named = {key.object for key in keys if key.controller == "eviction"}
        assert {key for key, verdict in after.items() if verdict[1] is not None} <= named


def due(verdict: tuple[str, Eviction | None] | None) -> object:
    """None for a pod that may stay, or is not there."""
    return verdict if verdict is not None and verdict[1] is not None else None


def test_without_evicting_taints_no_pod_is_named() -> None:
    cluster = make_cluster()
    objects: list[Object] = [
        slice_of({"dev-0": [taint(effect="NoSchedule")]}),
        claim(result(), users=("p",)),
        pod("claim", name="p"),
    ]
    for obj in objects:
        assert [key for key in keys_of(cluster.apply(obj)) if key.controller in ("evict", "rule")] == []


def test_a_rule_names_itself_only_when_it_is_new_or_its_spec_changed() -> None:
    cluster = make_cluster()
    assert Key("taint-rules", "rule") in cluster.apply(rule(selector={}, version=1))
    condition = {"type": "EvictionInProgress", "status": "True"}
    assert cluster.apply(rule(selector={}, version=2, conditions=[condition])) == ()
    assert Key("taint-rules", "rule") in cluster.apply(rule(selector={}, uid="successor", version=3))
    assert Key("taint-rules", "rule") in cluster.apply(rule(selector={}, effect="None", uid="successor", version=4))
    assert Key("taint-rules", "rule") in cluster.delete(DeviceTaintRule, "rule")


def test_the_pods_of_a_group_end_together_unless_it_is_too_large_to_be_looked_at_for_each_of_them() -> None:
    cluster = Cluster(Inventory(Features(generic_workload=True), language=NoSelectors()))
    spec: dict[str, Any] = {"schedulingPolicy": {"basic": {}}, "disruptionMode": {"all": {}}}
    cluster.apply(convert(PodGroup, {"metadata": {"name": "group", "namespace": "ns", "uid": "group"}, "spec": spec}))

    def member(number: int) -> Pod:
        meta = {"name": f"p-{number}", "namespace": "ns", "uid": f"uid-{number}", "resourceVersion": "1"}
        return convert(
            Pod,
            {"metadata": meta, "spec": {"nodeName": "node-a", "schedulingGroup": {"podGroupName": "group"}}},
        )

    first = member(0)
    for number in range(1000):
        cluster.apply(member(number))
    assert len(list(cluster.ending_with(first))) == 999
    assert cluster.gang_of_pod(first) == "ns/group"
    cluster.apply(member(1000))
    assert not list(cluster.ending_with(first))
    assert cluster.gang_of_pod(first) is None
