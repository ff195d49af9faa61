"""However much tenants store, the cache holds little of it; each object is held whole when its turn comes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from dra_api.codec import convert, encode
from dra_api.core import Namespace, Pod
from dra_api.kueue import Workload, pod_count
from dra_api.meta import Condition, Object, ObjectMeta, OwnerReference
from dra_api.references import classes_of
from dra_api.resource import DeviceClass, ResourceClaim, ResourcePoolStatusRequest
from dra_api.scheduling import PodDisruptionBudget, PodGroup
from dra_api.storage import PersistentVolumeClaim
from dra_ledger.cel_language import CelSelectors
from dra_operator.allocator import Features, Inventory
from dra_operator.cache import NONE, BulkLimits, ClaimTemplate, Cluster, Key, pod_needs_work
from dra_operator.cache.bulk import Loans, is_aside
from dra_operator.scheduling.claims.readiness import not_at_hand
from dra_operator.scheduling.state import (
    asks_for_more,
    bytes_of_large,
    has_lost_selector,
    is_large,
    is_set_aside,
    is_too_large,
    is_workload_set_aside,
    is_workload_too_large,
    pod_requests,
    spec_mark,
)
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

LIMITS = BulkLimits(short=1_000, whole=60_000, lent=10_000)
GATE = "dra.kopf.dev/allocate"
PLAIN = {"cel": {"expression": 'device.driver == "gpu.example.com"'}}


def cluster(limits: BulkLimits | None = LIMITS, *, generic_workload: bool = False) -> Cluster:
    return Cluster(
        Inventory(Features(generic_workload=generic_workload), language=CelSelectors(Features())), limits=limits
    )


def meta(name: str, namespace: str, version: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": str(version), **more}


def claim(name: str, size: int, namespace: str = "ns", version: int = 1, status: Any = None) -> ResourceClaim:
    tolerations = [{"key": f"{name}-{it:06d}.example.com/x", "operator": "Exists"} for it in range(size // 60)]
    asked = {"name": "req", "exactly": {"deviceClassName": "gpu", "tolerations": tolerations}}
    spec = {"devices": {"requests": [asked]}}
    return convert(ResourceClaim, {"metadata": meta(name, namespace, version), "spec": spec, "status": status or {}})


def template(name: str, size: int, namespace: str = "ns", version: int = 1) -> ClaimTemplate:
    spec = {"spec": {"devices": {"requests": [], "config": [{"opaque": {"parameters": {"x": "x" * size}}}]}}}
    return convert(ClaimTemplate, {"metadata": meta(name, namespace, version), "spec": spec})


def pod(name: str, size: int, namespace: str = "ns", version: int = 1, **spec: Any) -> Pod:
    terms = [{"weight": 1, "preference": {"matchExpressions": [{"key": f"k{it:06d}"}]}} for it in range(size // 70)]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}
    main = {"name": "main", "resources": {"requests": {"cpu": "1500m"}}}
    spec = {"schedulerName": "dra-scheduler", "containers": [main], "affinity": affinity, **spec}
    return convert(Pod, {"metadata": meta(name, namespace, version), "spec": spec})


def workload(name: str, size: int, namespace: str = "ns", version: int = 1, *, has_quota: bool = True) -> Workload:
    """It waits for a check: of others the templates are not kept at all."""
    tolerations = [{"key": f"key-{it:06d}.example.com/x", "operator": "Exists"} for it in range(size // 60)]
    sets = [{"name": "main", "count": 2, "template": {"spec": {"tolerations": tolerations}}}]
    status = {
        "admissionChecks": [{"name": "fit", "state": "Pending"}],
        "admission": {"clusterQueue": "queue"} if has_quota else None,
        "conditions": [{"type": "QuotaReserved", "status": str(has_quota)}],
    }
    body = {"metadata": meta(name, namespace, version), "spec": {"podSets": sets}, "status": status}
    return convert(Workload, body)


def selector(size: int) -> dict[str, Any]:
    return {"matchLabels": {f"key-{it:06d}": "x" * 40 for it in range(size // 60)}} if size >= 60 else {}


def volume_claim(name: str, size: int, namespace: str = "ns", version: int = 1, **spec: Any) -> PersistentVolumeClaim:
    spec = {"selector": selector(size), **spec}
    return convert(PersistentVolumeClaim, {"metadata": meta(name, namespace, version), "spec": spec})


def disruption_budget(name: str, size: int, namespace: str = "ns", version: int = 1) -> PodDisruptionBudget:
    body = {"metadata": meta(name, namespace, version), "spec": {"selector": selector(size)}}
    return convert(PodDisruptionBudget, body)


MADE: dict[type[Object], Callable[..., Object]] = {
    ResourceClaim: claim,
    ClaimTemplate: template,
    Pod: pod,
    Workload: workload,
    PersistentVolumeClaim: volume_claim,
    PodDisruptionBudget: disruption_budget,
}


def held(made: Cluster, *kinds: type[Object]) -> int:
    """Bytes that the cache holds."""
    return sum(len(encode(obj)) for kind in kinds or MADE for obj in made.store_of(kind))


@pytest.mark.parametrize("kind", MADE)
def test_of_a_thousand_objects_of_a_namespace_a_third_of_the_room_is_held_whole(kind: type[Object]) -> None:
    made = cluster()
    for number in range(1_000):
        made.apply(MADE[kind](f"object-{number}", 4_000))
    whole = [obj for obj in made.store_of(kind) if len(encode(obj)) > 3_000]
    assert 3 <= len(whole) <= 5
    assert held(made) < 30_000 + 1_000 * 500
    made.apply(MADE[kind]("first", 4_000, "neighbour"))
    assert len(encode(made.store_of(kind).get("neighbour/first"))) > 3_000


def test_namespaces_with_very_many_labels_keep_their_names() -> None:
    """Who may create namespaces is no administrator everywhere, and selectors look at their labels."""
    own = {"kubernetes.io/metadata.name": "x", "resource.kubernetes.io/admin-access": "true"}

    def namespace(name: str, size: int) -> Namespace:
        labels = {**own, **{f"label-{it:05d}": "x" * 40 for it in range(size // 60)}}
        return convert(Namespace, {"metadata": {"name": name, "uid": name, "resourceVersion": "1", "labels": labels}})

    made = cluster()
    for number in range(1_000):
        made.apply(namespace(f"ns-{number}", 4_000 if number else 500))
    sizes = [len(it.metadata.labels or {}) for it in made.namespaces]
    assert sizes[0] == 2 + 500 // 60
    assert 3 <= sizes.count(2 + 4_000 // 60) <= 5
    assert made.pods_by_node.namespaces["ns-999"] == own | {"kubernetes.io/metadata.name": "ns-999"}
    for number in range(1_000):
        made.delete(Namespace, f"ns-{number}")
    made.apply(namespace("again", LIMITS.whole // 2 - 5_000))
    assert len(made.pods_by_node.namespaces["again"]) > 50


def test_many_namespaces_leave_room_to_the_next_one() -> None:
    made = cluster(BulkLimits(short=1_000, whole=1_000_000))
    for namespace in range(10):
        for number in range(200):
            made.apply(claim(f"claim-{namespace}-{number}", 4_000, f"tenant-{namespace}"))
    assert held(made) < 1_000_000 + 2_000 * 500
    made.apply(claim("claim", 4_000, "neighbour"))
    known = made.claims.get("neighbour/claim")
    assert known is not None
    assert not is_set_aside(known)


def test_what_is_held_whole_stays_so_while_others_come_unless_it_grows() -> None:
    made = cluster()
    for number in range(4):
        made.apply(claim(f"claim-{number}", 4_000))
    for number in range(100):
        made.apply(claim("claim", 4_000, f"tenant-{number}"))
    for number in range(4):
        made.apply(claim(f"claim-{number}", 3_900 if number < 2 else 4_000, version=2))
    assert [is_set_aside(it) for it in made.claims if it.metadata.namespace == "ns"] == [False] * 4
    made.apply(claim("claim-0", 4_100, version=3))
    assert [is_set_aside(it) for it in made.claims if it.metadata.namespace == "ns"] == [True, False, False, False]


@pytest.mark.parametrize("notes", [None, {"note": "x" * 70_000}], ids=["short", "short but for notes"])
def test_room_comes_free_with_what_goes_or_becomes_short(notes: dict[str, str] | None) -> None:
    made = cluster()
    for number in range(10):
        made.apply(claim(f"claim-{number}", 4_000))
    held = [it.metadata.name for it in made.claims if not is_set_aside(it)]
    for name in held[:2]:
        made.delete(ResourceClaim, f"ns/{name}")
    for name in held[2:]:
        short = claim(name, 10, version=2)
        made.apply(replace(short, metadata=replace(short.metadata, annotations=notes)))
    for number in range(5, 10):
        made.delete(ResourceClaim, f"ns/claim-{number}")
    for number in range(5):
        made.apply(claim(f"new-{number}", 4_000))
    assert not any(map(is_set_aside, made.claims))


def test_a_claim_that_is_set_aside_is_held_whole_when_it_is_read_until_others_are() -> None:
    made = cluster(BulkLimits(short=1_000, whole=0, lent=10_000))
    whole = [claim(f"claim-{number}", 4_000) for number in range(5)]
    for each in whole:
        made.apply(each)
    assert all(map(is_set_aside, made.claims))
    assert not_at_hand(pod("pod", 0), list(made.claims)) is not None
    assert made.large_claims == {each.key for each in whole}
    for number, each in enumerate(whole):
        made.lend(each)
        assert made.claims.get(each.key) == each
        at_hand = {it.key for it in made.claims if not is_set_aside(it)}
        assert at_hand == {it.key for it in whole[max(0, number - 2) : number + 1]}
    newer = claim("claim-4", 4_200, version=2)
    made.apply(newer)
    assert made.claims.get("ns/claim-4") == newer
    for number in (3, 0, 1):
        made.lend(whole[number])  # the one that is lent again is the youngest
    at_hand = {it.key for it in made.claims if not is_set_aside(it)}
    assert "ns/claim-3" in at_hand
    assert "ns/claim-4" not in at_hand
    made.delete(ResourceClaim, "ns/claim-0")
    made.apply(replace(whole[0], metadata=replace(whole[0].metadata, uid="successor", resource_version="2")))
    assert [it.key for it in made.claims if not is_set_aside(it)] == ["ns/claim-1", "ns/claim-3"]


def test_a_claim_that_is_lent_and_finds_room_is_held_whole_in_the_long_run() -> None:
    made = cluster(BulkLimits(short=1_000, whole=18_000, lent=10_000))
    first, second = claim("first", 4_000), claim("second", 4_000)
    made.apply(first)
    made.apply(second)
    made.lend(second)
    assert made.bulk is not None
    assert is_set_aside(made.bulk.lasting(second))
    made.delete(ResourceClaim, first.key)
    newer = claim("second", 4_000, version=2)
    made.apply(newer)
    assert made.bulk.lasting(newer) == newer


def test_what_others_ask_of_a_claim_with_devices_is_kept() -> None:
    made = cluster(BulkLimits(short=1_000, whole=0))
    result = {"request": "req", "driver": "gpu.example.com", "pool": "p", "device": "d"}
    user = {"resource": "pods", "name": "pod", "uid": "uid-pod"}
    word = {"type": "Ready", "status": "True", "message": "x" * 5_000}
    device = {"driver": "gpu.example.com", "pool": "p", "device": "d", "conditions": [word]}
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user], "devices": [device]}
    made.apply(claim("claim", 4_000, status=status))
    (kept,) = made.claims
    assert len(encode(kept)) < 1_200
    assert len(kept.results) == len(kept.status.reserved_for or ()) == 1
    assert kept.status.devices is not None
    assert [it.status for it in kept.status.devices[0].conditions or ()] == ["True"]
    assert list(classes_of(kept)) == ["gpu"]


def test_a_claim_of_very_many_classes_may_be_of_any() -> None:
    made = cluster(BulkLimits(short=1_000, whole=0))
    asked = [{"name": f"r{it}", "exactly": {"deviceClassName": f"class-{it}" + "x" * 40}} for it in range(32)]
    body = {"metadata": meta("claim", "ns", 1), "spec": {"devices": {"requests": asked}}}
    made.apply(convert(ResourceClaim, body))
    (kept,) = made.claims
    assert len(encode(kept)) < 1_200
    assert "*" in made.drivers_of(classes_of(kept))


def test_a_pod_on_a_node_keeps_what_keeps_others_away_and_a_waiting_one_its_claims() -> None:
    made = cluster(BulkLimits(short=1_000, whole=0))
    term = {"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": "kubernetes.io/hostname"}
    rules = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    ports = {"name": "p", "ports": [{"containerPort": 80, "hostPort": 8080}]}
    tolerations = [{"key": f"key-{it}", "operator": "Exists"} for it in range(100)]
    placed = pod("placed", 0, nodeName="n", affinity=rules, containers=[ports], tolerations=tolerations)
    claims = [{"name": "c", "resourceClaimName": "claim"}]
    gates = [{"name": f"gate-{it}"} for it in range(100)]
    waiting = pod("waiting", 4_000, resourceClaims=claims, schedulingGates=[*gates, {"name": GATE}])
    made.apply(placed)
    made.apply(waiting)
    kept = made.pods.get("ns/placed")
    assert kept is not None
    assert kept.spec.affinity == placed.spec.affinity
    assert (kept.spec.containers or ())[0].ports == (placed.spec.containers or ())[0].ports
    assert kept.spec.tolerations is None
    aside = made.pods.get("ns/waiting")
    assert aside is not None
    assert is_set_aside(aside)
    assert len(encode(aside)) < 1_000
    assert aside.spec.resource_claims == waiting.spec.resource_claims
    assert {it.name for it in aside.spec.scheduling_gates or ()} == {GATE, "gate-0"}
    assert pod_requests(aside) == pod_requests(waiting)


def test_equal_parts_of_lent_objects_are_held_once() -> None:
    """The pods of a gang share a template, and all of them have to be lent at the same time."""
    made = cluster(BulkLimits(short=1_000, whole=0, lent=30_000))
    pods = [pod(f"pod-{number}", 8_000) for number in range(20)]
    claims = [replace(claim("shared", 8_000), metadata=it.metadata) for it in pods]
    alike: list[Pod | ResourceClaim] = [*pods, *claims]
    for each in alike:
        made.apply(each)
    for each in alike:
        made.lend(each)
    assert not any(map(is_set_aside, (*made.pods, *made.claims)))
    assert [made.pods.get(each.key) for each in pods] == pods
    assert len({id(it.spec.affinity) for it in made.pods}) == 1
    assert len({id(it.spec.devices.requests) for it in made.claims}) == 1
    # Others, each with a body of its own, take their place, and what was shared goes with its last user.
    for number in range(10):
        made.apply(
            other := pod(f"other-{number}", 0, nodeSelector={f"{number}-{it:04d}": "x" * 60 for it in range(60)})
        )
        made.lend(other)
    whole = [it for it in made.pods if not is_set_aside(it)]
    assert sum(len(encode(it)) for it in whole) < 40_000


@given(
    st.lists(st.tuples(st.sampled_from(["lend", "apply", "gone"]), st.integers(0, 4), st.integers(0, 2)), max_size=40)
)
def test_the_sum_of_loans_is_what_they_add_up_to(steps: list[tuple[str, int, int]]) -> None:
    loans = Loans(12_000)
    held: dict[str, ResourceClaim] = {}
    for what, number, body in steps:
        obj = replace(claim(f"body-{body}", 3_000), metadata=claim(f"claim-{number}", 0).metadata)
        place = (ResourceClaim, obj.key)
        if what == "lend":
            for _, key in loans.open(place):
                held.pop(key, None)
            held[obj.key] = loans.hold(obj)
        elif what == "apply" and place in loans:
            held[obj.key] = loans.hold(obj)
        elif what == "gone":
            loans.close(place)
            held.pop(obj.key, None)
        requests = {encode(it.spec.devices.requests) for it in held.values()}
        rest = sum(len(encode(it)) - len(encode(it.spec.devices.requests)) for it in held.values())
        assert loans.total == rest + sum(map(len, requests))
        assert len(loans) == len(held)
        assert len({id(it.spec.devices.requests) for it in held.values()}) == len(requests)


def many_claims(name: str, count: int = 200, **spec: Any) -> Pod:
    claims = [{"name": f"c{it}", "resourceClaimName": f"{name}-{it}-".ljust(253, "x")} for it in range(count)]
    return pod(name, 0, resourceClaims=claims, **spec)


def test_little_is_held_of_a_waiting_pod_of_very_many_claims_and_any_claim_may_be_its_own() -> None:
    """Names need not be of claims that exist: thousands of such pods took hundreds of megabytes."""
    made = cluster(BulkLimits(short=1_000, whole=0, lent=10_000))
    waiting = many_claims("waiting")
    made.apply(waiting)
    (aside,) = made.pods
    assert is_set_aside(aside)
    assert asks_for_more(aside)
    assert len(encode(aside)) < 1_500
    assert pod_needs_work(made, aside), "it is read to see whether claims have to be made for it"
    # A claim that the cache does not know to be its own wakes it.
    last = (waiting.spec.resource_claims or ())[-1].resource_claim_name or ""
    assert last not in {it.resource_claim_name for it in aside.spec.resource_claims or ()}
    made.set_wake_conditions(aside.key, NONE)
    assert Key("placement", aside.key) in made.apply(claim(last, 0))
    assert Key("placement", aside.key) not in made.apply(claim(last, 0, namespace="other"))
    # One that was made for a pod wakes that pod alone: thousands of such pods have hundreds of claims made for each.
    for owner, is_woken in (("other", False), ("waiting", True)):
        made_for = replace(claim(f"of-{owner}", 0), metadata=_owned(f"of-{owner}", owner))
        assert (Key("placement", aside.key) in made.apply(made_for)) is is_woken
    # Its turn: read, held whole.
    made.lend(waiting)
    assert made.pods.get("ns/waiting") == waiting
    assert made.pods_by_claim.keys(f"ns/{last}") == ("ns/waiting",)
    # Its short form comes again, with all that is filed by it.
    made.lend(pod("other", 12_000))
    made.lend(pod("another", 12_000))
    (again,) = (it for it in made.pods if it.key == "ns/waiting")
    assert asks_for_more(again)
    assert made.pods_by_claim.keys(f"ns/{last}") == ()


def _owned(name: str, owner: str) -> ObjectMeta:
    reference = OwnerReference(api_version="v1", kind="Pod", name=owner, uid=f"uid-{owner}", controller=True)
    return ObjectMeta(name=name, namespace="ns", uid=f"uid-{name}", resource_version="1", owner_references=(reference,))


def many_resources(name: str, **spec: Any) -> Pod:
    amounts = {"cpu": "2", **{f"{name}-{it:03d}.{'x' * 50}.example.com/{'y' * 60}": "1" for it in range(100)}}
    main = {"name": "main", "resources": {"requests": amounts}}
    return pod(name, 0, containers=[main], **spec)


def test_little_is_held_of_a_waiting_pod_of_very_many_resources_and_any_class_may_serve_them() -> None:
    made = cluster(BulkLimits(short=1_000, whole=0))
    made.apply(many_resources("waiting"))
    made.apply(many_resources("theirs", schedulerName="default-scheduler"))
    aside = made.pods.get("ns/waiting")
    assert aside is not None
    assert len(encode(aside)) < 1_500
    assert pod_requests(aside)["cpu"] == pod_requests(many_resources("waiting"))["cpu"]
    made.set_wake_conditions(aside.key, NONE)
    spec = {"selectors": [PLAIN], "extendedResourceName": f"waiting-099.{'x' * 50}.example.com/{'y' * 60}"}
    assert Key("placement", aside.key) in made.apply(convert(DeviceClass, {"metadata": meta("c", "", 1), "spec": spec}))
    assert made.shared_drivers.is_shared("gpu.example.com"), "the other scheduler may be taking them for its pod"


def test_little_is_held_of_a_pod_on_a_node_that_asks_for_more_resources_than_a_node_has() -> None:
    made = cluster(BulkLimits(short=1_000, whole=0))
    made.apply(many_resources("placed", nodeName="n"))
    (kept,) = made.pods
    assert len(pod_requests(kept)) == 34


def many_classes(name: str, size: int) -> ResourceClaim:
    asked = [{"name": f"r{it}", "exactly": {"deviceClassName": f"class-{it}"}} for it in range(8)]
    config = {"opaque": {"driver": "d", "parameters": {"x": "x" * size}}}
    body = {"metadata": meta(name, "ns", 1), "spec": {"devices": {"requests": asked, "config": [config]}}}
    return convert(ResourceClaim, body)


SHORTENED: dict[str, Callable[[str], Object]] = {
    "a claim": lambda name: claim(name, 4_000),
    "a claim of many classes": lambda name: many_classes(name, 4_000),
    "a claim that is too large": lambda name: claim(name, 100_000),
    "a template": lambda name: template(name, 4_000),
    "a template that is too large": lambda name: template(name, 100_000),
    "a pod": lambda name: pod(name, 4_000),
    "a pod of many claims": lambda name: many_claims(name),
    "a pod of many claims that is too large": lambda name: many_claims(name, affinity=pod("", 100_000).spec.affinity),
    "a pod on a node": lambda name: pod(name, 4_000, nodeName="n"),
    "a workload": lambda name: workload(name, 4_000),
    "a workload that is too large": lambda name: workload(name, 100_000),
    "a claim of a volume": lambda name: volume_claim(name, 4_000),
    "a budget": lambda name: disruption_budget(name, 4_000),
}
"""An object of which little is kept, by its sort."""


def marks_of(made: Cluster, obj: Object) -> list[str]:
    """Return the sort that the object's marks name."""
    seen: dict[str, object] = {
        "without room": is_aside(obj),
        "a pod aside": obj.key in made.pods_aside,
        "a large claim": obj.key in made.large_claims,
    }
    match obj:
        case Pod():
            seen |= {"too large": is_too_large(obj), "aside": is_set_aside(obj), "more": asks_for_more(obj)}
        case ResourceClaim():
            seen |= {"too large": bytes_of_large(obj.spec), "aside": is_set_aside(obj), "large": is_large(obj)}
        case ClaimTemplate():
            seen |= {"too large": obj.bytes_of_spec, "aside": obj.is_set_aside}
            seen |= {"spec": spec_mark(obj.typed().spec)}
        case Workload():
            seen |= {"too large": is_workload_too_large(obj), "aside": is_workload_set_aside(obj)}
        case PersistentVolumeClaim():
            seen |= {"selector": has_lost_selector(obj)}
    return [name for name, is_so in seen.items() if is_so]


@pytest.mark.parametrize("what", SHORTENED)
def test_no_tenant_can_write_an_object_that_looks_as_if_little_was_kept_of_it(what: str) -> None:
    """It would be read at each event, have every driver count as shared, or stop the operator with a size of its own.

    The templates of Workloads are not validated, so the marks must be none that JSON can have.
    """
    made = cluster(BulkLimits(short=1_000, whole=0))
    made.apply(SHORTENED[what]("short"))
    (kept,) = made.store_of(type(SHORTENED[what]("short")))
    assert marks_of(made, kept)
    literal = json.loads(encode(kept))
    literal["metadata"] |= {"name": "forged", "uid": "uid-forged"}
    forged = convert(type(kept), literal)
    assert marks_of(made, forged) == []
    # In a cluster that has room it is held whole, as any object of its size.
    roomy = cluster()
    roomy.apply(forged)
    (held_whole,) = roomy.store_of(type(kept))
    assert held_whole == forged
    assert marks_of(roomy, held_whole) == []


@pytest.mark.parametrize("group", [None, "g"], ids=["alone", "in a group"])
@pytest.mark.parametrize("pod_first", [True, False])
def test_little_is_held_of_a_pod_with_a_node_and_its_claims_are_those_reserved_for_it(
    pod_first: bool, group: str | None
) -> None:
    """Anyone may give a pod a node: 2,000 such pods of 60 kB took 340 MB."""
    made = cluster(BulkLimits(short=1_000, whole=0), generic_workload=True)
    more: dict[str, Any] = {"schedulingGroup": {"podGroupName": group}} if group else {}
    placed = many_claims("placed", nodeName="n", **more)
    last = (placed.spec.resource_claims or ())[-1].resource_claim_name or ""
    consumer = {"resource": "pods", "name": "placed", "uid": "uid-placed"}
    if group:
        consumer = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": group, "uid": "uid-g"}
    result = {"driver": "nic.example.com", "pool": "p", "device": "d", "request": "req"}
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [consumer]}
    theirs, foreign = claim(last, 0, status=status), claim(last, 0, namespace="other", status=status)
    for obj in (placed, theirs, foreign) if pod_first else (foreign, theirs, placed):
        made.apply(obj)
    (kept,) = made.pods
    assert asks_for_more(kept)
    assert len(encode(kept)) < 1_500
    assert [it for _, it in made.claims_of(kept) if it is not None] == [made.claims.get(f"ns/{last}")]
    assert made.users_of(f"ns/{last}") == ("ns/placed",)
    assert not made.users_of(f"other/{last}")
    # Its end releases them.
    assert Key("release", f"ns/{last}") in made.delete(Pod, "ns/placed")
    assert not made.users_of(f"ns/{last}")


def test_another_schedulers_pod_of_very_many_claims_may_want_and_have_any_device() -> None:
    made = cluster(BulkLimits(short=1_000, whole=0))
    made.apply(convert(DeviceClass, {"metadata": meta("gpu", "", 1), "spec": {"selectors": [PLAIN]}}))
    assert not made.shared_drivers.is_shared("gpu.example.com")
    theirs = many_claims("theirs", schedulerName="default-scheduler")
    made.apply(theirs)
    assert made.shared_drivers.is_shared("gpu.example.com")
    result = {"driver": "nic.example.com", "pool": "p", "device": "d", "request": "req"}
    last = (theirs.spec.resource_claims or ())[-1].resource_claim_name or ""
    status = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": "theirs", "uid": "uid-theirs"}],
    }
    made.apply(claim(last, 0, status=status))
    assert made.shared_drivers.is_shared("nic.example.com")
    made.delete(Pod, "ns/theirs")
    assert not made.shared_drivers.is_shared("gpu.example.com")
    made.apply(claim(last, 0, version=2))
    assert not made.shared_drivers.is_shared("nic.example.com")


def test_workloads_that_wait_for_quota_leave_room_to_one_that_has_it() -> None:
    made = cluster()
    for number in range(1_000):
        made.apply(workload(f"waiting-{number}", 4_000, has_quota=False))
    made.apply(workload("chosen", 4_000))
    chosen = made.store_of(Workload).get("ns/chosen")
    assert chosen is not None
    assert not is_workload_set_aside(chosen)
    aside = [it for it in made.store_of(Workload) if is_workload_set_aside(it)]
    assert len(aside) > 990
    assert {pod_count(it) for it in aside} == {2}


def test_a_workload_of_which_kueue_says_more_stays_whole() -> None:
    made = cluster()
    for version in range(1, 5):
        for number in range(5):
            it = workload(f"workload-{number}", 4_000, version=version)
            more = tuple(Condition(type=f"type-{it}", status="True") for it in range(10 * version))
            status = replace(it.status, conditions=(it.status.conditions or ()) + more)
            made.apply(replace(it, status=status))
        whole = [it.metadata.name for it in made.store_of(Workload) if not is_workload_set_aside(it)]
        assert whole == [f"workload-{number}" for number in range(len(whole))]
        assert len(whole) >= 4


def test_a_workload_gives_its_room_back_when_nobody_asks_for_it() -> None:
    made = cluster()
    for number in range(100):
        made.apply(workload(f"workload-{number}", 4_000))
        known = made.store_of(Workload).get(f"ns/workload-{number}")
        assert known is not None
        assert not is_workload_set_aside(known)
        made.give_back(known)
    assert all(map(is_workload_set_aside, made.store_of(Workload)))


def test_a_claim_with_a_volume_needs_no_selector() -> None:
    made = cluster()
    for number in range(100):
        made.apply(volume_claim(f"claim-{number}", 4_000, volumeName="volume"))
    assert not any(map(has_lost_selector, made.store_of(PersistentVolumeClaim)))
    assert held(made) < 100 * 500


@pytest.mark.parametrize("kind", [*MADE, PodGroup, Namespace, ResourcePoolStatusRequest])
def test_little_is_held_of_annotations_of_five_kilobytes(kind: type[Object]) -> None:
    """A hundred thousand are 500 MB, though each is short of the length from which objects count as large."""
    made = cluster()
    note = {"example.com/note": "x" * 5_000}
    for number in range(100):
        namespace = "" if kind in (Namespace, ResourcePoolStatusRequest) else "ns"
        made.apply(convert(kind, {"metadata": meta(f"object-{number}", namespace, 1, annotations=note)}))
    assert held(made, kind) < 100 * 500 + 60_000


def test_of_the_answers_about_pools_only_the_time_is_held() -> None:
    made = cluster()
    pools = [{"driver": "gpu.example.com", "poolName": f"pool-{it}"} for it in range(1_000)]
    done = {"type": "Complete", "status": "True", "lastTransitionTime": "2030-01-01T00:00:00Z"}
    body = {"metadata": meta("request", "", 1), "status": {"pools": pools, "conditions": [done]}}
    made.apply(convert(ResourcePoolStatusRequest, body))
    (kept,) = made.store_of(ResourcePoolStatusRequest)
    assert len(encode(kept)) < 500
    assert kept.status is not None
    assert [it.last_transition_time for it in kept.status.conditions or ()] == ["2030-01-01T00:00:00Z"]


def test_a_cache_without_limits_holds_all() -> None:
    made = cluster(None)
    for number in range(100):
        made.apply(claim(f"claim-{number}", 4_000))
    assert not any(map(is_set_aside, made.claims))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["apply", "delete", "lend"]),
            st.sampled_from(list(MADE)),
            st.sampled_from("abc"),
            st.integers(0, 3),
            st.sampled_from([10, 900, 3_000, 9_000, 50_000]),
        ),
        max_size=60,
    )
)
def test_the_sum_is_bounded_whatever_comes_and_goes(steps: list[tuple[str, type[Object], str, int, int]]) -> None:
    made = cluster()
    newest: dict[tuple[type[Object], str], Object] = {}
    for version, (what, kind, namespace, number, size) in enumerate(steps, 1):
        name, key = f"{namespace}-{number}", f"{namespace}/{namespace}-{number}"
        if what == "delete":
            made.delete(kind, key)
            newest.pop((kind, key), None)
            made.store_of(kind).deleted.discard(f"uid-{name}")
        elif what == "apply":
            newest[kind, key] = MADE[kind](name, size, namespace, version)
            made.apply(newest[kind, key])
        elif isinstance(obj := newest.get((kind, key)), Pod | ResourceClaim):
            made.lend(obj)
            known = made.store_of(type(obj)).get(key)
            assert known is not None
            assert not is_set_aside(known)
        for (kind_, key_), obj in newest.items():
            other = made.store_of(kind_).get(key_)
            assert other is not None
            assert other.metadata.resource_version == obj.metadata.resource_version
    bulky = [obj for kind in MADE for obj in made.store_of(kind) if len(encode(obj)) > LIMITS.short]
    assert sum(len(encode(obj)) for obj in bulky) <= LIMITS.whole + LIMITS.lent + 64_000
    for kind, key in newest:
        made.delete(kind, key)
    # All room is there again.
    made.apply(claim("again", LIMITS.whole // 2 - 5_000))
    assert not any(map(is_set_aside, made.claims))
