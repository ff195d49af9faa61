"""One change costs no more than what it concerns, where hundreds of pods name the same thousand claims."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from controllers_world import TinyLanguage, keys_of
from dra_api.codec import convert
from dra_api.core import Pod
from dra_api.meta import Object
from dra_api.resource import ResourceClaim, ResourceClaimStatus
from dra_api.scheduling import PodGroup
from dra_operator.allocator import Features, Inventory
from dra_operator.cache import Cluster, filing, wakeups
from msgspec import structs
from objects import Make, meta

PODS_OF_TENANT, CLAIMS_OF_TENANT = 30, 100

Looks = Callable[[Object], int]


def claim(number: int, version: int) -> ResourceClaim:
    named = meta(f"c{number}", version, labels={"version": str(version)})
    return convert(ResourceClaim, {**Make.claim("any"), "metadata": named})


def pod(number: int, version: int, scheduler: str) -> Pod:
    entries = [{"name": f"e{it}", "resourceClaimName": f"c{it}"} for it in range(CLAIMS_OF_TENANT)]
    spec = {"schedulerName": scheduler, "resourceClaims": entries, "containers": []}
    return convert(Pod, {"metadata": meta(f"p{number}", version, labels={"version": str(version)}), "spec": spec})


def test_an_event_beside_thousands_of_users_of_a_claim_looks_at_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside 20,000 pods of another scheduler, placed with a claim without devices, the end of one took 0.6 s."""
    cluster = Cluster(Inventory(Features(), language=TinyLanguage()))
    cluster.apply(claim(0, 1))

    def user(number: int, version: int, phase: str) -> Pod:
        spec = {"schedulerName": "another", "resourceClaims": [{"name": "e", "resourceClaimName": "c0"}]}
        body = {"spec": {**spec, "nodeName": "node", "containers": []}, "status": {"phase": phase}}
        return convert(Pod, {"metadata": meta(f"p{number}", version), **body})

    for number in range(200):
        cluster.apply(user(number, 1, "Running"))
    assert "ns/c0" in cluster.shared_drivers
    looks = counted(monkeypatch, filing, "_has_other_scheduler", cluster)
    assert looks(claim(0, 2)) < 10
    assert looks(user(0, 2, "Succeeded")) < 10
    for number in range(200):
        cluster.apply(user(number, 3, "Succeeded"))
    assert "ns/c0" not in cluster.shared_drivers


@pytest.mark.parametrize("is_there", [True, False], ids=["there", "gone"])
def test_a_pod_group_of_thousands_is_not_looked_through(is_there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its pods that are done, nor all users of the claim for each of its pods."""
    features = Features(generic_workload=True, workload_resource_claims=True, gang_scheduling=True)
    cluster = Cluster(Inventory(features, language=TinyLanguage()))
    group = convert(PodGroup, {"metadata": meta("group", 1), "spec": {"schedulingPolicy": {"basic": {}}}})
    consumer = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "group", "uid": group.metadata.uid}
    reserved = structs.replace(claim(0, 1), status=convert(ResourceClaimStatus, {"reservedFor": [consumer]}))
    if is_there:
        cluster.apply(group)
    cluster.apply(reserved)

    def member(number: int, version: int, phase: str, name: str = "c0") -> Pod:
        entries = [{"name": "e", "resourceClaimName": name}]
        its = {"schedulingGroup": {"podGroupName": "group"}}
        spec = {"containers": [], "nodeName": "node", "resourceClaims": entries, **its}
        return convert(Pod, {"metadata": meta(f"p{number}", version), "spec": spec, "status": {"phase": phase}})

    for number in range(50):
        cluster.apply(member(number, 1, "Succeeded"))
    cluster.apply(member(50, 1, "Running"))
    found: list[str] = []
    get = cluster.pods.get

    def find(key: str) -> Pod | None:
        found.append(key)
        return get(key)

    monkeypatch.setattr(cluster.groups, "_find_pod", find)
    monkeypatch.setattr(cluster.pods_by_claim, "keys", lambda _: pytest.fail("all users of the claim"))
    assert reserved.status.reserved_for is not None
    [reference] = reserved.status.reserved_for
    assert cluster.groups.needs(reserved, reference)
    monkeypatch.undo()
    cluster.apply(member(50, 2, "Running", "another") if not is_there else member(50, 2, "Failed"))
    assert not cluster.groups.needs(reserved, reference)
    assert len(found) <= 1


def crowd(scheduler: str) -> Cluster:
    cluster = Cluster(Inventory(Features(), language=TinyLanguage()))
    for number in range(CLAIMS_OF_TENANT):
        cluster.apply(claim(number, 1))
    for number in range(PODS_OF_TENANT):
        cluster.apply(pod(number, 1, scheduler))
    return cluster


def counted(monkeypatch: pytest.MonkeyPatch, where: object, name: str, cluster: Cluster) -> Looks:
    """How often this function of a module, which looks at one pod, is called with a change."""
    calls = 0
    real = getattr(where, name)

    def counting(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        return real(*arguments)

    def looks(obj: Object) -> int:
        nonlocal calls
        calls = 0
        cluster.apply(obj)
        return calls

    monkeypatch.setattr(where, name, counting)
    return looks


def test_a_changed_label_of_a_claim_has_none_of_its_pods_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look goes through all entries of a pod: of 300 pods with 1,000 entries it took 0.2 s."""
    cluster = crowd("dra-scheduler")
    looks = counted(monkeypatch, wakeups, "pod_needs_work", cluster)
    assert looks(claim(0, 2)) == 0


def test_a_claim_that_comes_wakes_pods_with_many_entries_without_a_look_at_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = crowd("dra-scheduler")
    cluster.delete(ResourceClaim, "ns/c0", claim(0, 1).metadata.uid)
    looks = counted(monkeypatch, wakeups, "pod_needs_work", cluster)
    new = claim(0, 2)
    assert looks(structs.replace(new, metadata=structs.replace(new.metadata, uid="successor"))) == 0
    keys = keys_of(cluster.delete(ResourceClaim, "ns/c0", "successor"))
    assert len({key.object for key in keys if key.controller == "templates"}) == PODS_OF_TENANT


def test_a_pod_of_another_scheduler_costs_as_many_looks_as_it_has_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a change that means nothing for its claims costs a few."""
    cluster = crowd("another")
    looks = counted(monkeypatch, filing, "_has_other_scheduler", cluster)
    assert looks(pod(PODS_OF_TENANT, 1, "another")) < 2 * CLAIMS_OF_TENANT
    assert looks(pod(0, 2, "another")) < 10
    assert looks(claim(0, 2)) < 10
