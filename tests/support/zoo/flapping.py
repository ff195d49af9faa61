"""Kinds that flap: somebody creates, changes and deletes objects of one kind as fast as the API server takes it.

A tenant does that with its claims, templates, pods, groups, volumes and budgets; a driver with its slices; the agent of
a node with the node; the rest is an administrator's, whose script has gone wild. Pods of the tenant wait for what
flaps, so that each change may help each of them. Everything is named ``flap``.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from dra_kube import (
    ADMISSION_CHECKS,
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
    RESOURCE_FLAVORS,
    RESOURCE_POOL_STATUS_REQUESTS,
    RESOURCE_SLICES,
    STORAGE_CLASSES,
    VOLUME_ATTACHMENTS,
    WORKLOADS,
    AlreadyExists,
    Api,
    Conflict,
    NotFound,
    Object,
    Resource,
)
from kueue_model import admission_check, flavor, workload
from zoo.asking import Beast, Tenant, request, spec

FLAPS: Final = 40
"""Objects of a kind, so that a burst of writes hits each once."""
BURST_SECONDS: Final = 1.0
WAITING: Final = 500
"""Pods of the tenant that wait for what flaps, in the full form."""
DRIVER: Final = "flap.example.com"
GATES: Final = "DRAListTypeAttributes=true,DRADeviceTaintRules=true,DRAResourcePoolStatus=true,GenericWorkload=true"
NEVER: Final = spec(request("req", f"device.attributes['{DRIVER}'].?turn.orValue(0) == -1", kind="flap-0"))
"""A device that the driver never has, though each of its slices may bring it."""

Body = Callable[[int, int], Object]
"""An object of a kind without its name, by its number and the turn."""


@dataclass(frozen=True)
class Flapper:
    """``waits``: what a pod of the tenant has that waits for an object of this kind, by its number; None if none does.

    ``change``: the patch of an object, by the turn; its status is written as such.
    """

    resource: Resource
    body: Body
    waits: Callable[[int], Object] | None = lambda _: {}
    change: Callable[[int], Object] = lambda turn: {"metadata": _labels(turn)}
    is_kept: bool = False
    """The object is there already and is only changed: a node by its agent."""

    async def write(self, tenant: Tenant, number: int, turn: int) -> None:
        """Of three turns an object is created in one, changed in the next, and deleted in the last."""
        api, name = tenant.api, f"flap-{number}"
        namespace = tenant.namespace if self.resource.namespaced else None
        body = self.body(number, turn)
        with suppress(AlreadyExists, Conflict, NotFound):
            if self.is_kept:
                await self._change(api, "node-7", body, namespace)
            elif (what := (number + turn) % 3) == 0:
                meta = {"name": name, **({"namespace": namespace} if namespace else {}), **body.get("metadata", {})}
                typed = {"apiVersion": self.resource.api_version(), "kind": self.resource.kind}
                await api.create(self.resource, {**typed, **body, "metadata": meta})
            elif what == 1:
                await self._change(api, name, self.change(turn), namespace)
            else:
                await api.delete(self.resource, name, namespace, grace_seconds=0)

    async def _change(self, api: Api, name: str, patch: Object, namespace: str | None) -> None:
        await api.patch(self.resource, name, patch, namespace)
        if "status" in patch:
            await api.patch(self.resource, name, {"status": patch["status"]}, namespace, subresource="status")


def flapping(flappers: Sequence[Flapper]) -> Beast:
    """Return a beast whose kinds flap together. The same number of the tenant's pods waits for each of them."""
    turns = itertools.count()

    async def release(tenant: Tenant) -> None:
        with suppress(AlreadyExists):
            body = {"metadata": {"name": "flap-0"}, "spec": _class(0, 0)["spec"]}
            await tenant.api.create(DEVICE_CLASSES, body)
        await tenant.template("never", NEVER)
        await tenant.template("one", spec(request("req")))
        await tenant.each(
            tenant.pod(f"{it.resource.plural}-wait-{number}", **{"template": "never", **it.waits(number % FLAPS)})
            for it in flappers
            if it.waits is not None
            for number in range(tenant.some(WAITING))
        )

    async def repeat(tenant: Tenant) -> None:
        end = time.monotonic() + BURST_SECONDS
        while time.monotonic() < end:
            turn = next(turns)
            await tenant.each(it.write(tenant, number, turn) for number in range(FLAPS) for it in flappers)

    return Beast(f"{', '.join(it.resource.plural for it in flappers)} that flap", release, r".", repeat)


def _labels(turn: int) -> Object:
    return {"labels": {"flap": f"turn-{turn}"}}


def _pod(number: int, turn: int) -> Object:
    """One of two has its devices at once, the other one never."""
    name = ("never", "one")[number % 2]
    entry = {"name": "device", "resourceClaimTemplateName": name}
    main = {"name": "main", "image": "none", "resources": {"claims": [{"name": "device"}]}}
    body = {"schedulerName": "dra-scheduler", "containers": [main], "resourceClaims": [entry]}
    return {"metadata": _labels(turn), "spec": body}


def _slice(number: int, turn: int) -> Object:
    """Two slices a pool, of which one is missing most of the time, with another number of devices each time."""
    pool = {"name": f"pool-{number // 2}", "generation": 1 + turn // 3, "resourceSliceCount": 2}
    devices = [
        {"name": f"device-{number % 2}-{it}", "attributes": {"turn": {"int": turn}}} for it in range(1 + turn % 8)
    ]
    return {"spec": {"driver": DRIVER, "nodeName": "node-7", "pool": pool, "devices": devices}}


def _rule(number: int, _turn: int) -> Object:
    taint = {"key": "flap", "value": "yes", "effect": ("NoSchedule", "NoExecute")[number % 2]}
    return {"spec": {"deviceSelector": {"driver": DRIVER, "pool": f"pool-{number // 2}"}, "taint": taint}}


def _class(number: int, turn: int) -> Object:
    return {
        "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}' && {number} <= {turn + 100}"}}]}
    }


def _node(_number: int, turn: int) -> Object:
    """What a kubelet writes: labels, conditions and the room of its own node."""
    ready = {"type": "Ready", "status": ("True", "False", "Unknown")[turn % 3], "reason": f"turn-{turn}"}
    room = {"cpu": str(4 + turn % 5), "memory": "16Gi", "pods": "110"}
    return {"metadata": _labels(turn), "status": {"conditions": [ready], "allocatable": room}}


def _volume_claim(_number: int, _turn: int) -> Object:
    room = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"spec": {**room, "storageClassName": "flap-0"}}


def _volume(number: int, _turn: int) -> Object:
    path = {"hostPath": {"path": f"/flap/{number}"}, "storageClassName": "flap-0"}
    return {"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], **path}}


def _with_quota(turn: int) -> Object:
    """What Kueue writes when it reserves quota, and asks for the check."""
    assigned = {"name": "main", "flavors": {"gpu": "flap-0"}, "count": 1 + (turn - 1) % 3}
    now = "2026-01-01T00:00:00Z"
    reserved = {"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved", "message": f"turn-{turn}"}
    check = {"name": "flap-0", "state": "Pending", "message": "", "lastTransitionTime": now}
    status = {
        "admission": {"clusterQueue": "team", "podSetAssignments": [assigned]},
        "conditions": [{**reserved, "lastTransitionTime": now}],
        "admissionChecks": [check],
    }
    return {"metadata": _labels(turn), "status": status}


def _with_volume(number: int) -> Object:
    return {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": f"flap-{number}"}}]}


FLAPPERS: Final = (
    Flapper(RESOURCE_CLAIMS, lambda *_: {"spec": NEVER}, lambda it: {"template": "", "claims": [f"flap-{it}"]}),
    Flapper(RESOURCE_CLAIM_TEMPLATES, lambda *_: {"spec": {"spec": NEVER}}, lambda it: {"template": f"flap-{it}"}),
    Flapper(PODS, _pod),
    Flapper(
        POD_GROUPS,
        lambda number, _turn: {"spec": {"schedulingPolicy": {"gang": {"minCount": 2 + number % 3}}}},
        lambda number: {"schedulingGroup": {"podGroupName": f"flap-{number}"}},
    ),
    Flapper(PERSISTENT_VOLUME_CLAIMS, _volume_claim, _with_volume),
    Flapper(
        POD_DISRUPTION_BUDGETS,
        lambda number, _turn: {"spec": {"minAvailable": number % 3, "selector": {"matchLabels": {"flap": "turn-1"}}}},
    ),
    Flapper(RESOURCE_SLICES, _slice),
    Flapper(NODES, _node, is_kept=True),
    Flapper(DEVICE_CLASSES, _class),
    Flapper(DEVICE_TAINT_RULES, _rule),
    Flapper(
        RESOURCE_POOL_STATUS_REQUESTS,
        lambda number, _turn: {"spec": {"driver": DRIVER, "poolName": f"pool-{number // 2}"}},
    ),
    Flapper(
        STORAGE_CLASSES,
        lambda *_: {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"},
        _with_volume,
    ),
    Flapper(PERSISTENT_VOLUMES, _volume, _with_volume),
    Flapper(CSI_DRIVERS, lambda *_: {"spec": {}}),
    Flapper(
        CSI_STORAGE_CAPACITIES,
        lambda number, _turn: {"storageClassName": "flap-0", "capacity": f"{number}Gi"},
        _with_volume,
    ),
    Flapper(
        VOLUME_ATTACHMENTS,
        lambda it, _: {
            "spec": {"attacher": DRIVER, "nodeName": "node-7", "source": {"persistentVolumeName": f"flap-{it}"}}
        },
        _with_volume,
    ),
    Flapper(NAMESPACES, lambda *_: {}, None),
    # one of two has a place for its pods, the other one never
    Flapper(
        WORKLOADS,
        lambda number, turn: {"spec": workload("", 1 + turn % 3, template=("never", "one")[number % 2])["spec"]},
        None,
        change=_with_quota,
    ),
    Flapper(ADMISSION_CHECKS, lambda *_: {"spec": admission_check()["spec"]}, None),
    Flapper(RESOURCE_FLAVORS, lambda number, _turn: {"spec": flavor(nodeLabels={"flap": str(number)})["spec"]}, None),
)
NOT_FLAPPING: Final = {CSI_NODES: "named after its node, which has one"}
"""The other kinds that the operator watches, and why nobody makes them flap."""


async def swept(api: Api, namespace: str) -> None:
    for flapper in FLAPPERS:
        scope = namespace if flapper.resource.namespaced else None
        for number in range(0 if flapper.is_kept else FLAPS):
            with suppress(NotFound):
                await api.delete(flapper.resource, f"flap-{number}", scope, grace_seconds=0)
