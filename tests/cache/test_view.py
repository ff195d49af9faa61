"""The view: which version wins, what is counted, who is woken (claim-controller.md 5 and 6, scheduling.md 5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from controllers_world import keys_of
from dra_api.codec import convert
from dra_api.core import Node, Pod
from dra_api.meta import Object
from dra_api.resource import AllocationResult, Device, DeviceClass, ResourceClaim, ResourceClaimStatus, ResourceSlice
from dra_operator.allocator import DeviceId, Inventory
from dra_operator.cache import (
    EVERYTHING,
    NONE,
    ClaimTemplate,
    Cluster,
    DeviceTaken,
    InvariantViolated,
    Key,
    Keys,
    ObjectChange,
    UidMemory,
    check,
    needs,
    wakeups,
)
from dra_operator.cache.index import Duplicates, duplicates
from dra_operator.scheduling.state import Nomination
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from objects import meta, owner

FINALIZERS = ["resource.kubernetes.io/delete-protection"]
DRIVER = "gpu.example.com"


class NoSelectors:
    def compile(self, expression: str) -> Callable[[str, Device], bool]:
        raise ValueError("no selectors in these tests")


def make_cluster() -> Cluster:
    return Cluster(Inventory(language=NoSelectors()))


def allocation(*devices: str) -> dict[str, Any]:
    results = [{"request": "r", "driver": DRIVER, "pool": "pool", "device": device} for device in devices]
    return {"devices": {"results": results}}


def claim(name: str, version: int = 1, *devices: str, uid: str | None = None, **more: Any) -> ResourceClaim:
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
    status = {"allocation": allocation(*devices)} if devices else {}
    body = {
        "metadata": meta(name, version, uid, **({"finalizers": FINALIZERS} if devices else {}), **more),
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
        "status": status,
    }
    return convert(ResourceClaim, body)


def pod(name: str, version: int = 1, *claims: str, uid: str | None = None, **more: Any) -> Pod:
    spec = {
        "schedulerName": "dra-scheduler",
        "resourceClaims": [{"name": f"e{number}", "resourceClaimName": name} for number, name in enumerate(claims)],
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
        **more.pop("spec", {}),
    }
    return convert(Pod, {"metadata": meta(name, version, uid, **more.pop("metadata", {})), "spec": spec, **more})


def from_template(name: str, version: int = 1, recorded: str | None = None, **more: Any) -> Pod:
    statuses = [{"name": "e", "resourceClaimName": recorded}] if recorded else []
    entries = [{"name": "e", "resourceClaimTemplateName": "tmpl"}]
    more["spec"] = {**more.get("spec", {}), "resourceClaims": entries}
    more["status"] = {"resourceClaimStatuses": statuses, **more.get("status", {})}
    return pod(name, version, **more)


def node(name: str, version: int = 1, **more: Any) -> Node:
    return convert(Node, {"metadata": {"name": name, "uid": name, "resourceVersion": str(version), **more}})


def published(name: str, version: int) -> ResourceSlice:
    spec = {"driver": DRIVER, "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1}, "nodeName": "n"}
    return convert(
        ResourceSlice, {"metadata": {"name": name, "uid": name, "resourceVersion": str(version)}, "spec": spec}
    )


def place(*pods: str) -> set[Key]:
    return {Key("placement", f"ns/{name}") for name in pods}


# --- which version wins ---


def test_a_newer_version_wins_whatever_the_order() -> None:
    cluster = make_cluster()
    cluster.apply(claim("c", 9, "dev-0"))
    cluster.apply(claim("c", 10))
    assert cluster.apply(claim("c", 9, "dev-0")) == ()
    assert cluster.claims.get("ns/c") == claim("c", 10)


def test_versions_are_compared_as_numbers() -> None:
    cluster = make_cluster()
    cluster.apply(claim("c", 99))
    cluster.apply(claim("c", 100, "dev-0"))
    assert cluster.claims.get("ns/c") == claim("c", 100, "dev-0")


def test_an_answer_that_arrives_after_the_deletion_does_not_bring_the_object_back() -> None:
    cluster = make_cluster()
    cluster.apply(claim("c", 1))
    cluster.delete(ResourceClaim, "ns/c", "uid-c")
    assert cluster.apply(claim("c", 5, "dev-0")) == ()
    assert cluster.allocated_devices.usage.is_free(DeviceId(DRIVER, "pool", "dev-0"))


def test_what_was_only_supposed_may_come_again_and_what_was_deleted_may_not() -> None:
    cluster = make_cluster()
    for _ in range(2):
        cluster.apply(claim("c", 1))
        cluster.retract(ResourceClaim, "ns/c")
        assert cluster.claims.get("ns/c") is None
    cluster.retract(ResourceClaim, "ns/c")  # nor does one that is not there harm
    cluster.apply(claim("c", 1))
    assert cluster.claims.get("ns/c") is not None
    cluster.delete(ResourceClaim, "ns/c")
    cluster.apply(claim("c", 2))
    assert cluster.claims.get("ns/c") is None


def test_a_late_deletion_spares_the_successor_of_the_same_name() -> None:
    cluster = make_cluster()
    cluster.apply(claim("c", 1, uid="old"))
    cluster.apply(claim("c", 5, "dev-0", uid="new"))
    assert cluster.apply(claim("c", 9, "dev-0", uid="old")) == (), "nor does a late version of the old one replace it"
    assert cluster.delete(ResourceClaim, "ns/c", "old") == ()
    assert cluster.claims.get("ns/c", "new") is not None


def test_a_successor_that_replaces_an_allocated_claim_frees_the_old_devices() -> None:
    """Scheduling.md 5.3, DEVIATE: deletion and creation may arrive as one update."""
    cluster = make_cluster()
    cluster.apply(claim("c", 1, "dev-0", uid="old"))
    cluster.apply(claim("c", 5, "dev-1", uid="new"))
    assert [device.device for device in cluster.allocated_devices.usage.devices()] == ["dev-1"]
    check(cluster)


@pytest.mark.rule("CC-03")
def test_the_memory_of_uids_forgets_the_oldest() -> None:
    memory = UidMemory(2)
    for uid in ("a", "b", "a", "c"):
        memory.add(uid)
    assert ("a" in memory, "b" in memory, "c" in memory) == (True, False, True)


# --- the allocated devices ---


def result(*devices: str) -> AllocationResult:
    return convert(AllocationResult, allocation(*devices))


def test_a_device_in_flight_is_not_free() -> None:
    cluster = make_cluster()
    cluster.allocated_devices.assume(claim("a"), result("dev-0"), pod("pod", 1))
    with pytest.raises(DeviceTaken, match=r"gpu\.example\.com/pool/dev-0"):
        cluster.allocated_devices.assume(claim("b"), result("dev-1", "dev-0"), pod("other", 1))
    assert [device.device for device in cluster.allocated_devices.usage.devices()] == ["dev-0"]
    cluster.allocated_devices.confirm("uid-a")
    cluster.allocated_devices.assume(claim("b"), result("dev-1", "dev-0"), pod("other", 1))


def test_one_plan_cannot_give_a_device_twice() -> None:
    with pytest.raises(DeviceTaken):
        make_cluster().allocated_devices.assume(claim("a"), result("dev-0", "dev-0"), pod("pod", 1))


@pytest.mark.parametrize("watch_first", [True, False])
def test_it_does_not_matter_whether_the_answer_or_the_watch_comes_first(watch_first: bool) -> None:
    cluster = make_cluster()
    cluster.apply(claim("a"))
    cluster.allocated_devices.assume(claim("a"), result("dev-0"), pod("pod", 1))
    device = DeviceId(DRIVER, "pool", "dev-0")
    if watch_first:
        cluster.apply(claim("a", 2, "dev-0"))
        assert not cluster.allocated_devices.usage.is_free(device)
        cluster.allocated_devices.confirm("uid-a")
    else:
        cluster.apply(claim("a", 2, "dev-0"))  # the assume cache, from our own answer
        cluster.allocated_devices.confirm("uid-a")
        cluster.apply(claim("a", 2, "dev-0"))
    assert not cluster.allocated_devices.usage.is_free(device)
    check(cluster)
    cluster.apply(claim("a", 3))
    assert cluster.allocated_devices.usage.is_free(device)


steps = st.lists(
    st.tuples(st.sampled_from(["take", "settle", "show", "clear", "delete"]), st.integers(0, 3), st.integers(0, 4)),
    max_size=30,
)


@given(steps)
def test_the_totals_hold_through_any_history(history: list[tuple[str, int, int]]) -> None:
    """Property: what is counted step by step equals what claims hold, and nothing is lost when all let go."""
    cluster, version = make_cluster(), 0
    for action, number, device in history:
        version += 1
        name = f"c{number}-{version}" if action == "show" else f"c{number}"
        current = cluster.claims.get(f"ns/{name}") or claim(name, version)
        if action == "take":
            try:
                cluster.allocated_devices.assume(current, result(f"dev-{device}"), pod("pod", 1))
            except DeviceTaken:
                continue
        elif action == "settle":
            cluster.allocated_devices.confirm(f"uid-c{number}")
        elif action == "clear":
            cluster.apply(claim(name, version))
        elif action == "delete":
            cluster.delete(ResourceClaim, f"ns/{name}")
        elif cluster.allocated_devices.usage.is_free(DeviceId(DRIVER, "pool", f"dev-{device}")):
            cluster.apply(claim(name, version, f"dev-{device}"))
        check(cluster)
    for held in list(cluster.claims):
        cluster.delete(ResourceClaim, held.key)
    for number in range(4):
        cluster.allocated_devices.confirm(f"uid-c{number}")
    assert list(cluster.allocated_devices.usage.devices()) == []


@pytest.mark.parametrize(
    ("objects", "complaint"),
    [
        ([claim("a", 1, "dev-0"), claim("b", 2, "dev-0")], "dev-0 is allocated to claim ns/a and to claim ns/b"),
        (
            [convert(ResourceClaim, {"metadata": meta("a", 1), "status": {"allocation": allocation("dev-0")}})],
            "ns/a is allocated without the finalizer",
        ),
    ],
)
def test_the_checker_names_what_must_never_be(objects: list[ResourceClaim], complaint: str) -> None:
    cluster = make_cluster()
    for obj in objects:
        cluster.apply(obj)
    with pytest.raises(InvariantViolated, match=complaint):
        check(cluster)


# --- room on nodes ---


def test_a_pod_counts_on_its_node_until_it_ends() -> None:
    cluster = make_cluster()
    waiting = pod("p", 1)
    cluster.apply(waiting)
    cluster.assume_placed(waiting, "node-0")
    assert cluster.loads.used("node-0")["cpu"] == 10**9
    cluster.apply(pod("p", 2, spec={"nodeName": "node-0"}))
    assert cluster.loads.used("node-0")["cpu"] == 10**9
    cluster.apply(pod("p", 3, spec={"nodeName": "node-0"}, status={"phase": "Succeeded"}))
    assert cluster.loads.used("node-0") == {}


def test_room_that_was_only_assumed_comes_back() -> None:
    cluster = make_cluster()
    cluster.apply(pod("p", 1))
    cluster.assume_placed(pod("p", 1), "node-0")
    cluster.forget_placed(pod("p", 1))
    assert cluster.loads.used("node-0") == {}


def test_pods_may_end_for_a_pod_if_one_of_lower_priority_has_a_place_or_it_is_nominated() -> None:
    cluster = make_cluster()
    waits, low = pod("waits", 1, spec={"priority": 1}), pod("low", 1)
    for it in (waits, low):
        cluster.apply(it)
    assert not cluster.may_preempt("ns/waits")
    cluster.assume_placed(low, "node-0")
    assert cluster.may_preempt("ns/waits")
    assert not cluster.may_preempt("ns/low")
    cluster.forget_placed(low)
    assert not cluster.may_preempt("ns/waits")
    cluster.nominate(Nomination(waits, "node-0", (), {}))
    assert cluster.may_preempt("ns/waits")


# --- who is woken ---


def test_a_new_pod_with_a_template_is_worked_on() -> None:
    cluster = make_cluster()
    assert Key("templates", "ns/p") in keys_of(cluster.apply(from_template("p")))


def test_a_claim_of_another_namespace_that_names_a_pod_as_its_owner_is_not_the_pods() -> None:
    """It would be recorded in the status of the pod, which then never runs."""
    cluster = make_cluster()
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p", "controller": True}
    more: dict[str, Any] = {"ownerReferences": [owner], "annotations": {"resource.kubernetes.io/pod-claim-name": "e"}}
    user = from_template("p")
    own, foreign = claim("own", **more), claim("foreign", namespace="elsewhere", **more)
    for it in (user, own, foreign):
        cluster.apply(it)
    assert list(cluster.claims_owned_by(user)) == [own]


def test_a_template_that_comes_later_wakes_its_pods() -> None:
    cluster = make_cluster()
    cluster.apply(from_template("p"))
    template = convert(ClaimTemplate, {"metadata": meta("tmpl", 2), "spec": {}})
    assert cluster.apply(template) == (Key("templates", "ns/p"),)
    assert cluster.delete(ClaimTemplate, "ns/tmpl") == ()


ENDS: dict[str, dict[str, Any]] = {
    "finished": {"status": {"phase": "Succeeded"}, "spec": {"nodeName": "n"}},
    "failed": {"status": {"phase": "Failed"}, "spec": {"nodeName": "n"}},
    "deleted before it got a node": {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
}


@pytest.mark.parametrize("end", ENDS)
def test_claims_are_looked_at_when_their_pod_is(end: str) -> None:
    cluster = make_cluster()
    cluster.apply(pod("p", 1, "c"))
    assert cluster.apply(pod("p", 2, "c", **ENDS[end])) == (Key("release", "ns/c"),)


@pytest.mark.rule("CC-03")
def test_claims_are_looked_at_when_their_pod_is_gone_the_extended_one_included() -> None:
    cluster = make_cluster()
    cluster.apply(pod("p", 1, "c", status={"extendedResourceClaimStatus": {"resourceClaimName": "ext"}}))
    assert set(keys_of(cluster.delete(Pod, "ns/p"))) == {Key("release", "ns/c"), Key("release", "ns/ext")}
    assert "uid-p" in cluster.pods.deleted


def test_a_pod_being_deleted_on_its_node_still_needs_its_claims() -> None:
    cluster = make_cluster()
    cluster.apply(pod("p", 1, "c", spec={"nodeName": "n"}))
    deleting = pod("p", 2, "c", spec={"nodeName": "n"}, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    assert cluster.apply(deleting) == ()


def test_a_pod_replaced_under_its_name_lets_go_of_the_old_ones_claims() -> None:
    cluster = make_cluster()
    cluster.apply(pod("p", 1, "old", uid="one"))
    assert Key("release", "ns/old") in keys_of(cluster.apply(pod("p", 5, "new", uid="two")))


def users(name: str, uid: str, resource: str = "pods") -> dict[str, Any]:
    return {"reservedFor": [{"resource": resource, "name": name, "uid": uid}]}


OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p", "controller": True}
AT_REST: dict[str, dict[str, Any]] = {
    "made for a pod": {"ownerReferences": [OWNER]},
    "reserved for a pod": {"status": users("p", "uid-p")},
    "made for another kind": {"ownerReferences": [{**OWNER, "kind": "Job"}]},
    "of no pod": {},
}
TO_BE_LOOKED_AT: dict[str, dict[str, Any]] = {
    "deleted": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
    "made for a pod that is gone": {"ownerReferences": [{**OWNER, "name": "gone"}]},
    "made for a predecessor": {"ownerReferences": [{**OWNER, "uid": "uid-former"}]},
    "made for a finished pod": {"ownerReferences": [{**OWNER, "name": "done", "uid": "uid-done"}]},
    "reserved for a predecessor": {"status": users("p", "former")},
    "reserved for something else": {"status": users("g", "g", "groups")},
    "reserved for a finished pod": {
        "status": {"reservedFor": [{"resource": "pods", "name": "done", "uid": "uid-done"}]}
    },
    "immediate": {"annotations": {"dra.kopf.dev/allocate": "immediate"}},
    "immediate once": {"finalizers": ["dra.kopf.dev/immediate"]},
    "for extended resources": {
        "ownerReferences": [OWNER],
        "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
    },
}


@pytest.mark.parametrize("state", [*AT_REST, *TO_BE_LOOKED_AT])
def test_a_claim_is_looked_at_unless_its_pods_are_there_and_it_is_to_stay(state: str) -> None:
    cluster = make_cluster()
    cluster.apply(from_template("p", recorded="c"))
    cluster.apply(pod("done", status={"phase": "Succeeded"}))
    more = dict(AT_REST.get(state) or TO_BE_LOOKED_AT.get(state, {}))
    status = more.pop("status", {})
    found = structs.replace(claim("c", 2, **more), status=convert(ResourceClaimStatus, status))
    assert (Key("release", "ns/c") in keys_of(cluster.apply(found))) == (state in TO_BE_LOOKED_AT)


@pytest.mark.parametrize("state", ["made for a pod", "reserved for a pod"])
@pytest.mark.parametrize("end", ["deleted", "finished"])
def test_the_end_of_its_pod_has_a_claim_looked_at(state: str, end: str) -> None:
    cluster = make_cluster()
    cluster.apply(from_template("p", recorded="c"))
    more = dict(AT_REST[state])
    status = more.pop("status", {})
    cluster.apply(structs.replace(claim("c", 2, **more), status=convert(ResourceClaimStatus, status)))
    finished = from_template("p", 3, recorded="c", status={"phase": "Failed"})
    keys = cluster.delete(Pod, "ns/p") if end == "deleted" else cluster.apply(finished)
    assert Key("release", "ns/c") in keys


def test_a_deleted_claim_wakes_the_pods_that_want_it_back() -> None:
    cluster = make_cluster()
    cluster.apply(from_template("p", recorded="c"))
    cluster.apply(claim("c", 2, ownerReferences=[OWNER]))
    assert Key("templates", "ns/p") in keys_of(cluster.delete(ResourceClaim, "ns/c"))


@pytest.mark.rule("K37-QH-05")
def test_a_pod_is_tried_once_its_claims_are_recorded() -> None:
    """Not before: nothing could be said of it, and nothing else can help it."""
    cluster = make_cluster()
    assert cluster.apply(from_template("p", 1)) == (Key("templates", "ns/p"),)
    assert cluster.apply(node("n")) == ()
    assert cluster.waiting["ns/p"].reason == "claim-unmade"
    assert Key("placement", "ns/p") in keys_of(cluster.apply(from_template("p", 2, recorded="c")))


def test_a_pod_that_names_a_claim_which_is_missing_is_tried_to_say_so() -> None:
    cluster = make_cluster()
    entries = [{"name": "own", "resourceClaimName": "c"}, {"name": "e", "resourceClaimTemplateName": "tmpl"}]
    assert Key("placement", "ns/p") in keys_of(cluster.apply(pod("p", spec={"resourceClaims": entries})))
    cluster.apply(claim("c"))
    assert cluster.apply(pod("q", spec={"resourceClaims": entries})) == (Key("templates", "ns/q"),)


def test_a_claim_allocated_for_a_running_pod_without_reservation_is_reserved() -> None:
    cluster = make_cluster()
    cluster.apply(pod("p", 1, "c", spec={"nodeName": "n"}))
    assert Key("templates", "ns/p") not in keys_of(cluster.apply(claim("c", 2)))
    assert Key("templates", "ns/p") in keys_of(cluster.apply(claim("c", 3, "dev-0")))


def test_of_thousands_of_claims_that_one_pod_owns_not_all_are_looked_at_with_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three thousand claims that a tenant says one pod has made took the operator 3 s of comparing them."""
    cluster, looked = make_cluster(), list[int]()
    cluster.apply(pod("p", spec={"resourceClaims": [{"name": "e", "resourceClaimTemplateName": "tmpl"}]}))

    def look(pod: Pod, owned: Iterable[ResourceClaim]) -> Iterator[Duplicates]:
        looked.append(len(list(owned)))
        return duplicates(pod, owned)

    monkeypatch.setattr(needs, "duplicates", look)
    for number in range(100):
        keys = cluster.apply(claim(f"c-{number}", ownerReferences=[owner("p")]))
    assert Key("templates", "ns/p") in keys
    assert max(looked) == needs.LOOKED_AT_CLAIMS


@pytest.mark.rule("K37-QH-03", "SC-02")
def test_freed_devices_wake_waiting_pods_even_of_other_claims_in_order_of_arrival() -> None:
    cluster = make_cluster()
    for name in ("b", "a", "c"):
        cluster.apply(pod(name, 1, f"claim-{name}"))
    cluster.apply(pod("plain", 1))
    cluster.apply(claim("other", 2, "dev-0"))
    woken = [key.object for key in keys_of(cluster.apply(claim("other", 3))) if key.controller == "placement"]
    assert woken == ["ns/b", "ns/a", "ns/c"]


@pytest.mark.rule("SC-02")
def test_a_change_of_a_claims_finalizers_wakes_no_waiting_pod() -> None:
    cluster = make_cluster()
    cluster.apply(claim("c", 1))
    cluster.apply(pod("p", 1, "c"))
    assert cluster.apply(claim("c", 2, finalizers=["x"])) == ()


def test_our_own_condition_on_a_pod_wakes_no_pod() -> None:
    cluster = make_cluster()
    cluster.apply(pod("p", 1, "c"))
    conditioned = pod("p", 2, "c", status={"conditions": [{"type": "PodScheduled", "status": "False"}]})
    assert cluster.apply(conditioned) == ()


@pytest.mark.rule("SC-02")
def test_nodes_wake_waiting_pods_only_when_they_offer_something_else() -> None:
    cluster = make_cluster()
    cluster.apply(pod("p", 1))
    assert set(keys_of(cluster.apply(node("n", 1)))) == place("p")
    assert cluster.apply(node("n", 2, annotations={"heart": "beat"})) == ()
    assert set(keys_of(cluster.apply(node("n", 3, labels={"zone": "a"})))) == place("p")


@pytest.mark.rule("SC-02")
def test_classes_and_slices_wake_who_needs_devices() -> None:
    cluster = make_cluster()
    cluster.apply(claim("c", 1))
    cluster.apply(pod("p", 1, "c"))
    cluster.apply(pod("plain", 1))
    gpu = convert(DeviceClass, {"metadata": {"name": "gpu", "uid": "1", "resourceVersion": "5"}})
    other = convert(DeviceClass, {"metadata": {"name": "other", "uid": "2", "resourceVersion": "6"}})
    assert set(keys_of(cluster.apply(gpu))) == place("p")
    assert cluster.apply(other) == ()
    assert set(keys_of(cluster.apply(published("s", 7)))) == place("p")


def test_the_end_of_a_pod_wakes_only_those_who_lacked_room() -> None:
    cluster = make_cluster()
    cluster.apply(pod("running", 1, spec={"nodeName": "n"}))
    for name in ("small", "big"):
        cluster.apply(pod(name, 1))
    cluster.set_wake_conditions("ns/small", EVERYTHING._replace(room=False))
    cluster.set_wake_conditions("ns/big", EVERYTHING._replace(devices=False))
    assert set(keys_of(cluster.delete(Pod, "ns/running"))) == place("big")


@pytest.mark.rule("K37-QH-02", "K37-QH-04")
@pytest.mark.rule("K37-QH-06")
def test_the_end_of_a_claim_wakes_other_pods_if_it_held_devices() -> None:
    for devices, woken in ((("dev-0",), True), ((), False)):
        cluster = make_cluster()
        cluster.apply(pod("waiting", 1, "own"))
        cluster.apply(claim("other", 2, *devices))
        assert (Key("placement", "ns/waiting") in keys_of(cluster.delete(ResourceClaim, "ns/other"))) is woken


def test_a_pod_whose_claims_are_not_in_order_is_woken_by_these_only() -> None:
    cluster = make_cluster()
    cluster.apply(pod("p", 1, "c"))
    cluster.set_wake_conditions("ns/p", NONE)
    assert cluster.apply(node("n", 2)) == ()
    assert cluster.apply(published("s", 3)) == ()
    assert Key("placement", "ns/p") in keys_of(cluster.apply(claim("c", 4)))


def test_metadata_of_slices_and_classes_wakes_no_pod() -> None:
    cluster = make_cluster()
    cluster.apply(claim("c", 1))
    cluster.apply(pod("p", 1, "c"))
    assert set(keys_of(cluster.apply(published("s", 2)))) == place("p")
    assert cluster.apply(published("s", 3)) == ()
    gpu = {"name": "gpu", "uid": "gpu"}
    newer = convert(DeviceClass, {"metadata": {**gpu, "resourceVersion": "4"}})
    assert set(keys_of(cluster.apply(newer))) == place("p")
    assert cluster.apply(convert(DeviceClass, {"metadata": {**gpu, "resourceVersion": "5"}})) == ()


def test_gated_pods_wait_until_the_gates_are_gone() -> None:
    cluster = make_cluster()
    assert cluster.apply(pod("p", 1, spec={"schedulingGates": [{"name": "later"}]})) == ()
    assert set(keys_of(cluster.apply(pod("p", 2)))) == place("p")


class Quota(Object, frozen=True):
    """A kind that the operator does not know."""


def test_another_kind_is_kept_once_it_says_whom_it_wakes(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_quota(cluster: Cluster, _: ObjectChange[Quota]) -> Keys:
        return tuple(Key("placement", key) for key in cluster.waiting)

    kept: dict[type[Object], Any] = {**wakeups.ONLY_KEPT, Quota: on_quota}
    monkeypatch.setattr(wakeups, "ONLY_KEPT", kept)
    cluster = make_cluster()
    cluster.apply(pod("waiting", schedulerName="dra-scheduler"))
    quota = convert(Quota, {"metadata": meta("quota", 1)})
    assert cluster.apply(quota) == (Key("placement", "ns/waiting"),)
    assert cluster.apply(quota) == ()
    assert cluster.store_of(Quota).get("ns/quota") == quota
    assert cluster.delete(Quota, "ns/quota") == (Key("placement", "ns/waiting"),)
    assert cluster.store_of(Quota).get("ns/quota") is None
