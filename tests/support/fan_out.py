"""Very many objects of one tenant that hang on one object, and a change of that: for each kind that is watched.

``python -m fan_out 2000 4000`` in ``tests/support`` prints the processor time of the change, and of the longest step of
the event loop in the seconds after it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from controllers_world import World
from dra_api.codec import convert
from dra_api.meta import Object
from dra_kube import (
    CSI_DRIVERS,
    CSI_NODES,
    CSI_STORAGE_CAPACITIES,
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    POD_DISRUPTION_BUDGETS,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_POOL_STATUS_REQUESTS,
    RESOURCE_SLICES,
    STORAGE_CLASSES,
    VOLUME_ATTACHMENTS,
    Resource,
)
from dra_operator.allocator import Features
from dra_operator.cache import Source
from dra_operator.sources.kinds import WATCHED
from objects import Make, Obj, user

FEATURES: Final = Features(
    device_taints=True, taint_rules=True, generic_workload=True, workload_resource_claims=True, pool_status=True
)
DRIVER: Final = "gpu.example.com"
Item = tuple[Resource, Obj]


@dataclass(frozen=True)
class Crowd:
    """``many``: the objects, by their number; ``one``: what they hang on, by its version."""

    kind: Resource
    one: Callable[[int], Obj]
    many: Callable[[int], list[Item]]
    others: tuple[Item, ...] = ()
    are_short: bool = False
    """The namespace has no room for its objects: little is kept of each."""


def _labelled(obj: Obj, version: int) -> Obj:
    obj["metadata"]["labels"] = {"version": str(version)}
    return obj


def _uses(*names: str, **spec: Any) -> Callable[[int], list[Item]]:
    return lambda number: [(PODS, Make.pod(f"pod-{number}", [Make.use(name) for name in names], **spec))]


def _own_claim(number: int) -> list[Item]:
    """A pod that waits with a claim of its own."""
    name = f"pod-{number}"
    return [(RESOURCE_CLAIMS, Make.claim(f"claim-{number}")), (PODS, Make.pod(name, [Make.use(f"claim-{number}")]))]


def _held(number: int, device: str, *, node: str = "node") -> list[Item]:
    """A pod that runs, with a device."""
    result = {"request": "req", "driver": DRIVER, "pool": "node", "device": device}
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user(f"pod-{number}")]}
    claim = Make.claim(f"claim-{number}", finalizers=["resource.kubernetes.io/delete-protection"])
    pod = Make.pod(f"pod-{number}", [Make.use(f"claim-{number}")], node=node)
    return [(RESOURCE_CLAIMS, {**claim, "status": status}), (PODS, pod)]


def _allocated(version: int) -> Obj:
    """A claim that has a device in every other version."""
    claim = Make.claim("one")
    if version % 2:
        claim["status"] = {
            "allocation": {"devices": {"results": [{"request": "req", "driver": DRIVER, "pool": "p", "device": "d"}]}}
        }
    return claim


def _with_volume(number: int) -> list[Item]:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "one"}}
    claim, pod = _own_claim(number)
    pod[1]["spec"]["volumes"] = [volume]
    return [claim, pod]


def _many_claims(number: int) -> list[Item]:
    """A pod that names 175 claims, in 60 KB."""
    pod = Make.pod(f"pod-{number}", [Make.use(f"claim-{it}") for it in range(175)])
    pod["spec"]["tolerations"] = [{"key": f"key-{it}", "value": "x" * 50, "operator": "Equal"} for it in range(600)]
    return [(PODS, pod)]


def _member(number: int) -> list[Item]:
    return [(PODS, Make.pod(f"pod-{number}", [Make.use(f"claim-{number}")], schedulingGroup={"podGroupName": "one"}))]


def _gang_member(number: int) -> list[Item]:
    pod = Make.pod(f"pod-{number}", [Make.use(f"claim-{number}")])
    pod["metadata"]["annotations"] = {"dra.kopf.dev/gang": "one", "dra.kopf.dev/gang-size": "1000"}
    return [(PODS, pod)]


def _node(version: int) -> Obj:
    return Make.node("node", version=str(version))


def _group(version: int) -> Obj:
    spec: Obj = {"schedulingPolicy": {"gang": {"minCount": 2 + version}}}
    return {"metadata": {"name": "one", "namespace": "ns"}, "spec": spec}


def _cluster_wide(name: str, **more: Any) -> Callable[[int], Obj]:
    return lambda version: _labelled({"metadata": {"name": name}, **more}, version)


def _in_namespace(**more: Any) -> Callable[[int], Obj]:
    return lambda version: _labelled({"metadata": {"name": "one", "namespace": "ns"}, **more}, version)


def _rule(version: int) -> Obj:
    taint = {"key": "broken", "effect": "NoExecute", "value": str(version)}
    return {"metadata": {"name": "one"}, "spec": {"deviceSelector": {"driver": DRIVER}, "taint": taint}}


def _rules(number: int) -> list[Item]:
    taint = {"key": f"key-{number}", "effect": "NoExecute"}
    selected = {"driver": DRIVER, "pool": "node", "device": f"dev-{number}"}
    return [
        (
            DEVICE_TAINT_RULES,
            {"metadata": {"name": f"rule-{number}"}, "spec": {"deviceSelector": selected, "taint": taint}},
        )
    ]


def _part_of_pool(number: int) -> list[Item]:
    piece = Make.slice("node", 1, name=f"part-{number}")
    piece["spec"]["pool"]["resourceSliceCount"] = 10_000
    piece["spec"]["devices"][0]["name"] = f"dev-{number}"
    return [(RESOURCE_SLICES, piece)]


def _of_pool(version: int) -> Obj:
    piece = Make.slice("node", 1, name="one")
    piece["spec"]["pool"]["resourceSliceCount"] = 10_000 + version % 2
    return piece


def _tainted(version: int) -> Obj:
    slice_ = Make.slice("node", 1)
    slice_["spec"]["devices"][0]["taints"] = [{"key": f"key-{version}", "effect": "NoExecute"}]
    return slice_


def _owned(number: int) -> list[Item]:
    """A claim that says it was made for the pod."""
    return [(RESOURCE_CLAIMS, Make.claim(f"claim-{number}", owner={"name": "one", "uid": "uid-one"}))]


def _running(version: int) -> Obj:
    """A pod that runs, and has ended in every other version."""
    pod = Make.pod("one", node="node")
    pod["metadata"]["uid"] = "uid-one"
    pod["status"]["phase"] = ("Running", "Succeeded")[version % 2]
    return pod


def _apart(number: int) -> list[Item]:
    """A pod that may not be beside the one that comes and goes."""
    term = {
        "labelSelector": {"matchExpressions": [{"key": "version", "operator": "Exists"}]},
        "topologyKey": "kubernetes.io/hostname",
    }
    claim, pod = _own_claim(number)
    pod[1]["spec"]["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return [claim, pod]


def _from_template(number: int) -> list[Item]:
    return [(PODS, Make.pod(f"pod-{number}", [{"resourceClaimTemplateName": "one"}]))]


CROWDS: Final[dict[str, Crowd]] = {
    "users of a claim": Crowd(RESOURCE_CLAIMS, _allocated, _uses("one")),
    "running users of a claim": Crowd(RESOURCE_CLAIMS, _allocated, _uses("one", node="node")),
    "users of a claim that another scheduler places": Crowd(
        RESOURCE_CLAIMS, _allocated, _uses("one", schedulerName="another")
    ),
    "pods of 175 claims in a namespace with claims that come": Crowd(
        RESOURCE_CLAIMS,
        lambda version: _labelled(Make.claim(f"other-{version}"), version),
        _many_claims,
        are_short=True,
    ),
    "claims of a device": Crowd(RESOURCE_SLICES, _tainted, lambda number: _held(number, "dev-0")),
    "claims of a pod": Crowd(PODS, _running, _owned),
    "claims of a class": Crowd(
        DEVICE_CLASSES, lambda version: Make.device_class("gpu", f"attribute-{version}"), _own_claim
    ),
    "pods that wait for devices": Crowd(RESOURCE_SLICES, lambda version: Make.slice("node", 1 + version), _own_claim),
    "pods that wait for freed devices": Crowd(RESOURCE_CLAIMS, _allocated, _own_claim),
    "pods that wait for a node": Crowd(NODES, _node, _own_claim),
    "pods that wait for room": Crowd(PODS, _running, _own_claim),
    "pods that keep away from another": Crowd(PODS, lambda version: _labelled(_running(version), version), _apart),
    "pods of a node": Crowd(NODES, _node, _uses(node="node")),
    "running pods of a tainted device's driver": Crowd(
        DEVICE_TAINT_RULES, _rule, lambda number: _held(number, f"dev-{number}")
    ),
    "taint rules of a driver": Crowd(RESOURCE_CLAIMS, _allocated, _rules),
    "taint rules, and a slice": Crowd(RESOURCE_SLICES, _tainted, _rules),
    "slices of a pool": Crowd(RESOURCE_SLICES, _of_pool, _part_of_pool),
    "pods of a template": Crowd(
        RESOURCE_CLAIM_TEMPLATES, lambda version: Make.template("one", count=version + 1), _from_template
    ),
    "pods of a group": Crowd(POD_GROUPS, _group, _member),
    "pods of a gang": Crowd(PODS, lambda version: _labelled(_gang_member(0)[0][1], version), _gang_member),
    "users of a volume claim": Crowd(PERSISTENT_VOLUME_CLAIMS, _in_namespace(spec={}), _with_volume),
    "pods with volumes, and a volume": Crowd(PERSISTENT_VOLUMES, _cluster_wide("one", spec={}), _with_volume),
    "pods with volumes, and a storage class": Crowd(
        STORAGE_CLASSES, _cluster_wide("one", provisioner="none"), _with_volume
    ),
    "pods with volumes, and a CSI driver": Crowd(CSI_DRIVERS, _cluster_wide("one", spec={}), _with_volume),
    "pods with volumes, and a CSI node": Crowd(CSI_NODES, _cluster_wide("node", spec={"drivers": []}), _with_volume),
    "pods with volumes, and a capacity": Crowd(
        CSI_STORAGE_CAPACITIES, _in_namespace(storageClassName="one", capacity="1Gi"), _with_volume
    ),
    "pods with volumes, and attachments": Crowd(
        VOLUME_ATTACHMENTS,
        _cluster_wide("one", spec={"attacher": DRIVER, "nodeName": "node", "source": {}}),
        _with_volume,
    ),
    "pods of a namespace": Crowd(NAMESPACES, _cluster_wide("ns"), _own_claim),
    "budgets of a namespace": Crowd(POD_DISRUPTION_BUDGETS, _in_namespace(spec={"minAvailable": 1}), _own_claim),
    "questions about a pool": Crowd(
        RESOURCE_POOL_STATUS_REQUESTS, _cluster_wide("one", spec={"driver": DRIVER}), _own_claim
    ),
}


class Scene:
    """A cluster with so many objects of a crowd, which the operator knows, and has looked at."""

    def __init__(self, crowd: Crowd, number: int) -> None:
        self._crowd, self._revision = crowd, 1
        self.world = World(FEATURES)
        if crowd.are_short:
            self.world.limits = self.world.limits._replace(whole=0)
        self.control = self.world.start()
        self._apply((DEVICE_CLASSES, Make.device_class()))
        self._apply((NODES, Make.node("node")))
        self.change(0)
        for it in range(number):
            for item in crowd.many(it):
                self._apply(item)

    async def gathered(self) -> None:
        """Have the keys of all crowds queued, and the next round put in line."""
        queues = self.control.queues
        lines = [it._fairness for it in queues.all().values()]
        while queues._crowds or any(it._next or it._beginning for it in lines):  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    async def forget_keys(self) -> None:
        """Have all keys handled, whatever they want."""
        await self.gathered()
        for queue in self.control.queues.all().values():
            while queue.depth:
                key = await queue.get()
                queue.looked_at(key, 0.0, 0.0)
                queue.done(key)

    def change(self, version: int) -> None:
        """Bring another version of the object on which all hang."""
        self._apply((self._crowd.kind, self._crowd.one(version)))

    def _apply(self, item: Item) -> None:
        kind, obj = item
        self._revision += 1
        meta = {"uid": f"uid-{obj['metadata']['name']}", **obj["metadata"], "resourceVersion": str(self._revision)}
        whole = {**obj, "metadata": meta}
        self.world.api.objects[kind, meta.get("namespace", ""), meta["name"]] = whole
        struct: Object = convert(WATCHED[kind], whole)
        self.control.apply(Source.WATCH, struct)


def keys(scene: Scene) -> int:
    """How many keys are in line, or wait for the next round."""
    return sum(len(list(it.ready())) + len(list(it.next_round())) for it in scene.control.queues.all().values())


Handle: Final[Any] = asyncio.events.Handle


class Steps:
    """The processor time of each step of the event loop."""

    def __init__(self) -> None:
        self.longest, self.what = 0.0, ""

    def __enter__(self) -> Steps:
        self._real = real = Handle._run

        def timed(handle: Any) -> None:
            owner = getattr(handle._callback, "__self__", None)
            what = owner.get_name() if owner is not None and hasattr(owner, "get_name") else repr(handle._callback)
            began = time.thread_time()
            real(handle)
            if (spent := time.thread_time() - began) > self.longest:
                self.longest, self.what = spent, what

        Handle._run = timed
        return self

    def __exit__(self, *_: object) -> None:
        Handle._run = self._real


async def measured(crowd: Crowd, number: int, seconds: float) -> Any:
    task: Any = vars(asyncio.tasks)["_PyTask"]  # the compiled one does not tell whose step it is
    asyncio.get_running_loop().set_task_factory(lambda loop, work, **more: task(work, loop=loop, **more))
    scene = Scene(crowd, number)
    await scene.forget_keys()
    spent = []
    gc.collect()
    gc.freeze()
    for version in (1, 2, 3):
        began = time.thread_time()
        scene.change(version)
        spent.append(time.thread_time() - began)
        count = keys(scene)
        if version < 3:
            await scene.forget_keys()
    with Steps() as steps:
        await asyncio.sleep(0.1)
        idle = steps.longest
        async with scene.world.running():
            await asyncio.sleep(seconds)
    return max(spent), count, idle, steps.longest, steps.what


async def main(numbers: Iterable[str], only: str = "", seconds: float = 1.5) -> None:
    logging.disable()
    for name, crowd in CROWDS.items():
        if only and only not in name:
            continue
        for number in map(int, numbers):
            event, count, idle, step, what = await measured(crowd, number, seconds)
            figures = (f"{it * 1e3:.1f}" for it in (event, idle, step))
            print(" | ".join((name, str(number), str(count), *figures, what[:160])), flush=True)


if __name__ == "__main__":
    numbers = [it for it in sys.argv[1:] if it.isdigit()]
    asyncio.run(main(numbers, next((it for it in sys.argv[1:] if not it.isdigit()), "")))
