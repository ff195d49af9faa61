"""However much tenants store, the cache holds little of it; each object is held whole when its turn comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from dra_api.codec import convert, encode
from dra_api.core import Pod
from dra_api.meta import Object
from dra_api.references import classes_of
from dra_api.resource import ResourceClaim
from dra_ledger.cel_language import CelSelectors
from dra_operator.allocator import Features, Inventory
from dra_operator.cache import BulkLimits, ClaimTemplate, Cluster
from dra_operator.scheduling.claims.usable import not_at_hand
from dra_operator.scheduling.state import is_set_aside, pod_requests
from hypothesis import given
from hypothesis import strategies as st

LIMITS = BulkLimits(short=1_000, whole=60_000, lent=10_000)
GATE = "dra.kopf.dev/allocate"


def cluster(limits: BulkLimits | None = LIMITS) -> Cluster:
    return Cluster(Inventory(Features(), language=CelSelectors(Features())), limits=limits)


def meta(name: str, namespace: str, version: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": str(version), **more}


def claim(name: str, size: int, namespace: str = "ns", version: int = 1, status: Any = None) -> ResourceClaim:
    tolerations = [{"key": f"key-{it:06d}.example.com/x", "operator": "Exists"} for it in range(size // 60)]
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


MADE: dict[type[Object], Callable[..., Object]] = {ResourceClaim: claim, ClaimTemplate: template, Pod: pod}


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


def test_room_comes_free_with_what_goes_or_becomes_short() -> None:
    made = cluster()
    for number in range(10):
        made.apply(claim(f"claim-{number}", 4_000))
    for number in range(5):
        made.delete(ResourceClaim, f"ns/claim-{number}")
        made.apply(claim(f"claim-{number + 5}", 10, version=2))
    for number in range(3):
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
