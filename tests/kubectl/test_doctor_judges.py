"""Each state that the judges of random histories call wrong is a trouble to doctor, and a healthy one is none.

The judges (``tests/support/witness``) read objects by code of their own; here they are given random small clusters.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

from dra_api.codec import convert
from dra_api.core import Pod
from dra_api.references import claims_of_pod, pod_is_done
from dra_api.resource import ResourceClaim
from dra_operator.kubectl.doctor.answer import diagnose
from dra_operator.kubectl.observed import Observed
from rounds import each_of, fewer
from witness import History, seen_pod

NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
LONG_AGO: Final = "2029-12-31T00:00:00Z"
FINALIZERS: Final[tuple[list[str], ...]] = (
    [],
    ["resource.kubernetes.io/delete-protection"],
    ["dra.kopf.dev/immediate"],
)
Obj = dict[str, Any]


def pod_of(random: Random, number: int) -> Obj:
    """With one claim: its own by name, one from a template that is recorded, or none yet."""
    entry: Obj = {"name": "gpu", "resourceClaimName": f"c{random.randint(0, 3)}"}
    status: Obj = {"phase": random.choice(("Pending", "Running", "Running", "Succeeded"))}
    if random.random() < 0.4:
        entry = {"name": "gpu", "resourceClaimTemplateName": "t"}
        if random.random() < 0.8:
            status["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": f"c{random.randint(0, 3)}"}]
    spec = {"resourceClaims": [entry], "containers": [], "nodeName": random.choice(("", "n", "n"))}
    metadata = {"name": f"p{number}", "namespace": "ns", "uid": f"u{number}", "creationTimestamp": LONG_AGO}
    return {"metadata": metadata, "spec": spec, "status": status}


def claim_of(random: Random, number: int) -> Obj:
    metadata: Obj = {
        "name": f"c{number}",
        "namespace": "ns",
        "uid": f"c{number}",
        "creationTimestamp": LONG_AGO,
        "finalizers": random.choice(FINALIZERS),
    }
    if random.random() < 0.4:
        pod = random.randint(0, 3)
        metadata["annotations"] = {"resource.kubernetes.io/pod-claim-name": "gpu"}
        owner = {"apiVersion": "v1", "kind": "Pod", "name": f"p{pod}", "uid": f"u{pod}", "controller": True}
        metadata["ownerReferences"] = [owner]
    status: Obj = {}
    if random.random() < 0.7:
        share = {"shareID": f"s{number}"} if random.random() < 0.3 else {}
        device = {"request": "r", "driver": "d", "pool": "p", "device": f"x{random.randint(0, 2)}", **share}
        status["allocation"] = {"devices": {"results": [device]}, "allocationTimestamp": LONG_AGO}
        users = [it for it in range(4) if random.random() < 0.3]
        status["reservedFor"] = [{"resource": "pods", "name": f"p{it}", "uid": f"u{it}"} for it in users]
    return {"metadata": metadata, "spec": {}, "status": status}


def wrong(pods: list[Obj], claims: list[Obj]) -> set[str]:
    history = History()
    for revision, (kind, obj) in enumerate([*(("Pod", it) for it in pods), *(("ResourceClaim", it) for it in claims)]):
        obj["metadata"]["resourceVersion"] = str(revision + 1)
        history.add(kind, "ADDED", obj)
    waiting = [it for it in pods if not it["spec"]["nodeName"] and it["status"]["phase"] != "Succeeded"]
    # Of a claim that a pod waits with, its scheduler may be about to do the rest: the judges ask for leaks at rest.
    awaited = {f"claim ns/{name} " for it in waiting for name in seen_pod(it | {"kind": "Pod"}).claims.values()}
    leaks = {it for it in history.leaks() if "no devices" not in it and "for no pod" not in it}
    leaks |= {it for it in history.leaks() if not it.startswith(tuple(awaited))}
    return {found.what for found in history.findings() if found.until is None} | leaks


def troubles(pods: list[Obj], claims: list[Obj]) -> list[str]:
    seen = Observed([*(convert(Pod, it) for it in pods), *(convert(ResourceClaim, it) for it in claims)], NOW)
    texts = (f"{one.trouble.object} {one.trouble.message}" for one in diagnose(seen))
    return [text for text in texts if "no ResourceSlice" not in text]  # the random clusters publish nothing


def concerned(what: str) -> Iterator[str]:
    """What a sentence of a judge is about: objects, or a device."""
    for word in what.replace(",", " ").split():
        if word.startswith(("ns/", "d/p/")):
            yield word
        if word.startswith("ns/c"):
            yield f"its claim {word[3:]} "


@each_of(range(fewer(600)))
def test_what_a_judge_calls_wrong_is_a_trouble_to_doctor(seed: int) -> None:
    random = Random(seed)
    pods = [pod_of(random, number) for number in range(random.randint(1, 4))]
    claims = [claim_of(random, number) for number in range(random.randint(1, 4))]
    found, judged = troubles(pods, claims), wrong(pods, claims)
    for what in judged:
        assert any(word in text for word in concerned(what) for text in found), (what, found)


@each_of(range(fewer(400)))
def test_no_advice_takes_the_devices_of_a_running_pod_for_unused(seed: int) -> None:
    """Neither in words nor by a repair, whether the claim is reserved for the pod or not."""
    random = Random(seed)
    pods = [convert(Pod, pod_of(random, number)) for number in range(random.randint(1, 4))]
    made = [claim_of(random, number) for number in range(random.randint(1, 4))]
    for claim in made:
        if random.random() < 0.2:
            claim["metadata"]["deletionTimestamp"] = LONG_AGO
    claims = [convert(ResourceClaim, it) for it in made]
    seen = Observed([*pods, *claims], NOW)
    running = [pod for pod in pods if pod.spec.node_name and not pod_is_done(pod)]
    used = {f"ns/{use.name}" for pod in running for use in claims_of_pod(pod)}
    for one in diagnose(seen):
        said = f"{one.trouble.message}; {one.trouble.remedy}"
        if one.trouble.object.removeprefix("claim ") in used:
            assert "no pod uses" not in said, one.trouble
            assert "no other pod uses" not in said, one.trouble
        assert not any(f"claim {key}, which no pod uses" in said for key in used), one.trouble
        if one.repair is not None and f"ns/{one.repair.name}" in used:
            assert "/status/allocation" not in {it["path"] for it in one.repair.operations}, one.trouble


def healthy(random: Random) -> tuple[list[Obj], list[Obj]]:
    """Pods that run, wait or are done, with a claim and a device each that is theirs alone."""
    pods, claims = [], []
    for number in range(random.randint(0, 4)):
        pod, claim = pod_of(random, number), claim_of(random, number)
        pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": f"c{number}"}]
        pod["status"] = {"phase": "Running" if pod["spec"]["nodeName"] else "Pending"}
        claim["metadata"] |= {"ownerReferences": [], "annotations": {}, "finalizers": FINALIZERS[0]}
        claim["status"] = {}
        if pod["spec"]["nodeName"]:
            claim["metadata"]["finalizers"] = FINALIZERS[1]
            device = {"request": "r", "driver": "d", "pool": "p", "device": f"own-{number}"}
            user = {"resource": "pods", "name": f"p{number}", "uid": f"u{number}"}
            claim["status"] = {"allocation": {"devices": {"results": [device]}}, "reservedFor": [user]}
        pods.append(pod)
        claims.append(claim)
    return pods, claims


@each_of(range(fewer(60)))
def test_what_is_in_order_is_no_trouble(seed: int) -> None:
    pods, claims = healthy(Random(seed))
    if seed % 2:  # most pods of a cluster have no claims
        plain = pod_of(Random(seed), 9)
        del plain["spec"]["resourceClaims"]
        pods.append(plain)
    if pods:
        assert not wrong(pods, claims)
    assert not troubles(pods, claims)


@each_of(range(fewer(60)))
def test_what_a_controller_is_about_to_finish_is_no_trouble_yet(seed: int) -> None:
    """Claims that were made, or got their finalizer, a second ago."""
    pods, claims = healthy(Random(seed))
    for number in range(3):
        claim = claim_of(Random(seed), number)
        now = "2029-12-31T23:59:59Z"
        claim["metadata"] |= {"name": f"new-{number}", "uid": f"new-{number}", "creationTimestamp": now}
        claim["metadata"] |= {"finalizers": FINALIZERS[1], "annotations": {}, "ownerReferences": []}
        claim["status"] = {}
        claims.append(claim)
    assert not troubles(pods, claims)


def test_a_claim_that_is_parked_after_a_contest_is_no_conflict() -> None:
    """No pod runs with it, and its operator releases it when the other claim has gone."""
    pods, claims = healthy(Random(1))
    taken = next(claim for claim in claims if claim["status"])
    parked = claim_of(Random(1), 9)
    parked["metadata"] |= {"finalizers": FINALIZERS[1], "annotations": {}, "ownerReferences": []}
    contest = {"apiGroup": "dra.kopf.dev", "resource": "contests", "name": "dra-scheduler", "uid": "c0"}
    parked["status"] = {"allocation": taken["status"]["allocation"], "reservedFor": [contest]}
    assert not troubles(pods, [*claims, parked])
    parked["status"]["reservedFor"] = []
    assert any("is held by 2 claims" in text for text in troubles(pods, [*claims, parked]))
