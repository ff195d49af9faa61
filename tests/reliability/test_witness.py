"""The witness sees what is wrong, for as long as it is, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dra_devcluster.apiserver import DevApiServer
from dra_kube import PODS, RESOURCE_CLAIMS, Api, Object, connection
from proving_ground import node_stub
from waiting import until
from witness import Finding, History, Witness

FINALIZER = "resource.kubernetes.io/delete-protection"


def claim(name: str, *devices: str, reserved: str = "", **changes: Any) -> Object:
    """A claim with these devices: ``share:`` and ``admin:`` before a name say how it is held."""
    results = []
    for device in devices:
        how, _, plain = device.rpartition(":")
        extras: dict[str, Object] = {"share": {"shareID": f"share-{name}"}, "admin": {"adminAccess": True}}
        extra = extras.get(how, {})
        results.append({"request": "req", "driver": "gpu", "pool": "node", "device": plain, **extra})
    status: Object = {"reservedFor": [{"resource": "pods", "name": uid, "uid": uid} for uid in reserved.split()]}
    if devices:
        status["allocation"] = {"devices": {"results": results}}
    meta = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "finalizers": [FINALIZER] if devices else []}
    return {"kind": "ResourceClaim", "metadata": meta | changes, "status": status}


def generated(name: str, pod: str, *devices: str, **changes: Any) -> Object:
    """A claim made from the template entry ``gpu`` of a pod."""
    owner = {"kind": "Pod", "name": pod, "uid": pod, "controller": True}
    annotations = {"resource.kubernetes.io/pod-claim-name": "gpu"}
    return claim(name, *devices, ownerReferences=[owner], annotations=annotations, **changes)


def pod(name: str, claim_name: str = "", node: str = "node", phase: str = "Pending") -> Object:
    """A pod whose uid is its name, with one entry ``gpu`` if it has a claim."""
    spec: Object = {"nodeName": node} if node else {}
    if claim_name:
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim_name}]
    meta = {"name": name, "namespace": "ns", "uid": name}
    return {"kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": phase}}


def history(*objects: Object) -> History:
    """One version after the other, from revision 1 on; ``gone`` marks a deletion."""
    seen = History()
    for revision, obj in enumerate(objects, 1):
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(revision)}}
        seen.add(obj["kind"], "DELETED" if obj.get("gone") else "ADDED", obj)
    return seen


def gone(obj: Object) -> Object:
    return {**obj, "gone": True}


WELL = [
    pytest.param([claim("a", "0"), claim("b", "1")], id="different devices"),
    pytest.param([claim("a", "share:0"), claim("b", "share:0")], id="shares of one device"),
    pytest.param([claim("a", "0"), claim("b", "admin:0")], id="an administrator looks at a device in use"),
    pytest.param([claim("a", "0"), claim("a"), claim("b", "0")], id="a device that was given back first"),
    pytest.param([claim("a", "0"), gone(claim("a", "0")), claim("b", "0")], id="a device whose claim has gone"),
    pytest.param([claim("a", "0", reserved="p"), pod("p", "a")], id="a bound pod with its claim"),
    pytest.param([pod("p", "a", node="")], id="a waiting pod without claim"),
    pytest.param([pod("p", "a", phase="Succeeded")], id="a finished pod whose claim is gone"),
    pytest.param(
        [pod("p", node=""), generated("a", "p"), gone(generated("a", "p")), generated("b", "p")],
        id="a claim made anew",
    ),
    pytest.param(
        [pod("p", node=""), pod("q", node=""), generated("a", "p"), generated("b", "q")], id="claims of two pods"
    ),
    pytest.param(
        [pod("p", node=""), generated("a", "p"), gone(pod("p", node="")), generated("b", "p")],
        id="a claim that comes when its pod has gone",
    ),
]


@pytest.mark.parametrize("objects", WELL)
def test_nothing_is_wrong_with(objects: list[Object]) -> None:
    assert history(*objects).findings() == []


WRONG = [
    pytest.param(
        [claim("a", "0"), claim("b", "0")],
        [Finding("device gpu/node/0 is held by ns/a and ns/b", 2, None)],
        id="a device given twice",
    ),
    pytest.param(
        [claim("a", "0"), claim("b", "0"), claim("a")],
        [Finding("device gpu/node/0 is held by ns/a and ns/b", 2, 3)],
        id="a device given twice for a moment",
    ),
    pytest.param(
        [claim("a", "0"), claim("b", "share:0")],
        [Finding("device gpu/node/0 is held by ns/a and ns/b", 2, None)],
        id="a device given whole and in shares",
    ),
    pytest.param(
        [
            claim("a", "0", reserved="p"),
            pod("p", "a"),
            pod("q", "b", node=""),
            claim("b", "0", reserved="q"),
            pod("q", "b"),
        ],
        [
            Finding("device gpu/node/0 is held by ns/a and ns/b", 4, 5),
            Finding("device gpu/node/0 is held by ns/a and ns/b, of running pods", 5, None),
        ],
        id="a device given to two pods that run",
    ),
    pytest.param(
        [pod("p", "a"), claim("a"), claim("a", "0"), claim("a", "0", reserved="p")],
        [
            Finding("pod ns/p is bound without a claim for gpu", 1, 2),
            Finding("pod ns/p is bound, its claim ns/a not allocated", 2, 3),
            Finding("pod ns/p is bound, its claim ns/a not reserved for it", 3, 4),
        ],
        id="a pod bound too early",
    ),
    pytest.param(
        [claim("a", "0", reserved="p"), pod("p", "a"), claim("a", "0")],
        [Finding("pod ns/p is bound, its claim ns/a not reserved for it", 3, None)],
        id="a reservation taken from a running pod",
    ),
    pytest.param(
        [pod("p", node=""), generated("a", "p"), generated("b", "p")],
        [Finding("pod ns/p has more than one claim for gpu: ns/a, ns/b", 3, None)],
        id="two claims for one entry",
    ),
    pytest.param(
        [claim("a", "0", finalizers=[])],
        [Finding("claim ns/a is allocated without finalizer", 1, None)],
        id="an allocation without finalizer",
    ),
]


@pytest.mark.parametrize(("objects", "findings"), WRONG)
def test_the_witness_finds(objects: list[Object], findings: list[Finding]) -> None:
    assert history(*objects).findings() == findings


def test_versions_may_come_in_any_order_and_repeatedly() -> None:
    """Two watches are not in step with one another; their revisions are."""
    seen = History()
    versions = [("2", claim("a")), ("3", claim("b", "0")), ("1", claim("a", "0")), ("3", claim("b", "0"))]
    for revision, obj in versions:
        seen.add("ResourceClaim", "ADDED", {**obj, "metadata": {**obj["metadata"], "resourceVersion": revision}})
    assert seen.findings() == []


LEFT_OVER = [
    pytest.param([claim("a")], [], id="an unused claim is none of it"),
    pytest.param([claim("a", "0", reserved="p"), pod("p", "a")], [], id="what a pod uses"),
    pytest.param([generated("a", "p")], ["claim ns/a was generated for a pod that is gone"], id="a generated claim"),
    pytest.param([claim("a", "0")], ["claim ns/a is allocated for no pod"], id="an allocation"),
    pytest.param(
        [claim("a", "0", reserved="p")], ["claim ns/a is reserved for pods that are gone: p"], id="a reservation"
    ),
    pytest.param(
        [claim("a", finalizers=[FINALIZER])], ["claim ns/a has the finalizer, but no devices"], id="a finalizer"
    ),
]


@pytest.mark.parametrize(("objects", "leaks"), LEFT_OVER)
def test_what_is_left_over(objects: list[Object], leaks: list[str]) -> None:
    assert history(*objects).leaks() == leaks


async def test_the_witness_sees_at_the_server_what_comes_goes_and_runs(tmp_path: Path) -> None:
    """The stub plays the node: bound pods run, deleted ones go."""
    async with DevApiServer() as server, Api(connection(server.write_kubeconfig(tmp_path / "kubeconfig"))) as api:
        containers = [{"name": "main", "image": "none"}]
        await api.create(
            PODS, {"metadata": {"name": "before", "namespace": "default"}, "spec": {"containers": containers}}
        )
        async with Witness(api) as witness, node_stub(api):
            body = {
                "metadata": {"name": "pod", "namespace": "default"},
                "spec": {"containers": containers, "nodeName": "node"},
            }
            await api.create(PODS, body)
            requests = [{"name": "req", "exactly": {"deviceClassName": "gpu"}}]
            await api.create(
                RESOURCE_CLAIMS,
                {"metadata": {"name": "claim", "namespace": "default"}, "spec": {"devices": {"requests": requests}}},
            )

            async def runs() -> bool:
                return bool((await api.get(PODS, "pod", "default"))["status"].get("phase") == "Running")

            await until("the pod runs", runs)
            await witness.caught_up()
            assert len(witness.history.revisions()) == 3
            await api.delete(PODS, "pod", "default")
            await api.delete(RESOURCE_CLAIMS, "claim", "default")

            async def only_one_left() -> bool:
                return len((await api.list(PODS))[0]) == 1

            await until("the deleted pod is gone", only_one_left)
            await witness.caught_up()
            assert witness.history.most(lambda state: len(state.running())) == 1
            assert len(witness.history.revisions()) == 1
