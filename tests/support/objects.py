"""Objects as short as tests want them: for the fake API server, decoded, and a valid one of every kind to be spoilt."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

from dra_api.codec import DecodeError, convert, decode_item, raw_list
from dra_api.core import Pod
from dra_api.meta import Object
from dra_api.resource import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourcePoolStatusRequest,
    ResourceSlice,
)
from dra_api.validation import FieldError

Obj = dict[str, Any]


def meta(name: str, version: object = 1, uid: str | None = None, **more: Any) -> Obj:
    """Metadata of an object in the namespace ``ns``, in this version; without ``uid`` that follows from its name."""
    return {"namespace": "ns", "name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version), **more}


def user(pod: str) -> Obj:
    return {"resource": "pods", "name": pod, "uid": f"uid-{pod}"}


def on_node(name: str) -> Obj:
    """The node selector of what can be used on one node."""
    return {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]}


def owner(pod: str) -> Obj:
    """The pod as the owner of a claim that was made for it."""
    return {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": f"uid-{pod}", "controller": True}


def users_of(claim: Obj) -> list[Obj]:
    """Those for which a claim is reserved."""
    return (claim.get("status") or {}).get("reservedFor") or []


def results_of(claim: Obj) -> list[Obj]:
    """What is allocated to a claim."""
    return ((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results") or []


def devices_of(claim: Obj) -> list[str]:
    """The same, each as pool and device."""
    return [f"{result['pool']}/{result['device']}" for result in results_of(claim)]


def is_parked(claim: Obj) -> bool:
    """Whether the claim lost a contest: it keeps its devices, and serves no pod."""
    return any(user["resource"] == "contests" for user in users_of(claim))


class Make:
    """Objects as short as tests want them."""

    @staticmethod
    def node(name: str, **labels: str) -> Obj:
        allocatable = {"cpu": "4", "memory": "8Gi", "pods": "10"}
        return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": allocatable}}

    @staticmethod
    def slice(node: str, devices: int, driver: str = "gpu.example.com", *, name: str = "", **attributes: str) -> Obj:
        published = {key: {"string": value} for key, value in attributes.items()}
        return {
            "metadata": {"name": name or f"{node}-{driver}"},
            "spec": {
                "driver": driver,
                "nodeName": node,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": f"dev-{number}", "attributes": published} for number in range(devices)],
            },
        }

    @staticmethod
    def device_class(name: str = "gpu", *selectors: str) -> Obj:
        return {
            "metadata": {"name": name},
            "spec": {"selectors": [{"cel": {"expression": text}} for text in selectors]},
        }

    @staticmethod
    def claim_spec(count: int = 1, class_name: str = "gpu", *selectors: str) -> Obj:
        exactly: Obj = {"deviceClassName": class_name, "allocationMode": "ExactCount", "count": count}
        if selectors:
            exactly["selectors"] = [{"cel": {"expression": text}} for text in selectors]
        return {"devices": {"requests": [{"name": "req", "exactly": exactly}]}}

    @classmethod
    def template(cls, name: str = "tmpl", *, count: int = 1, class_name: str = "gpu", **metadata: Any) -> Obj:
        return {
            "metadata": {"name": name, "namespace": "ns"},
            "spec": {"metadata": metadata, "spec": cls.claim_spec(count, class_name)},
        }

    @classmethod
    def claim(cls, name: str, *, count: int = 1, owner: Obj | None = None, **meta: Any) -> Obj:
        """``owner``: the metadata of the pod that the claim was made for."""
        if owner is not None:
            pod = {"apiVersion": "v1", "kind": "Pod", "name": owner["name"], "uid": owner["uid"], "controller": True}
            meta["ownerReferences"] = [pod]
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "ns", **meta},
            "spec": cls.claim_spec(count),
        }

    @staticmethod
    def pod(name: str = "pod", claims: Iterable[Obj] = (), node: str = "", **spec: Any) -> Obj:
        entries = [{"name": f"entry-{number}", **entry} for number, entry in enumerate(claims)]
        assigned = {"nodeName": node} if node else {}
        return {
            "metadata": {"name": name, "namespace": "ns"},
            "spec": {"schedulerName": "dra-scheduler", "containers": [], "resourceClaims": entries, **assigned, **spec},
            "status": {"phase": "Pending"},
        }

    @staticmethod
    def asking(name: str, **amounts: str) -> Obj:
        """A container that asks for resources."""
        return {"name": name, "resources": {"requests": amounts}}

    FROM_TEMPLATE: ClassVar = {"resourceClaimTemplateName": "tmpl"}

    @staticmethod
    def use(claim: str) -> Obj:
        return {"resourceClaimName": claim}


K = TypeVar("K", bound=Object)
META = {"name": "x", "resourceVersion": "1"}
ID = {"driver": "d.example.com", "pool": "p", "device": "a"}
CONDITION = {"type": "T", "status": "True", "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"}
SLICE: dict[str, Any] = {
    "metadata": META,
    "spec": {
        "driver": "d.example.com",
        "pool": {"name": "p", "resourceSliceCount": 1},
        "nodeName": "n",
        "devices": [
            {
                "name": "a",
                "attributes": {"model": {"string": "m"}},
                "capacity": {"memory": {"value": "10Gi"}},
                "taints": [{"key": "k", "effect": "NoSchedule"}],
            }
        ],
    },
}
CLAIM: dict[str, Any] = {
    "metadata": {**META, "namespace": "ns"},
    "spec": {
        "devices": {
            "requests": [
                {
                    "name": "r",
                    "exactly": {
                        "deviceClassName": "c",
                        "allocationMode": "ExactCount",
                        "count": 1,
                        "selectors": [{"cel": {"expression": "true"}}],
                        "tolerations": [{"operator": "Exists"}],
                    },
                },
                {
                    "name": "s",
                    "firstAvailable": [{"name": "t", "deviceClassName": "c", "allocationMode": "All"}],
                },
            ],
            "constraints": [{"requests": ["r", "s/t"], "matchAttribute": "a.b/c"}],
            "config": [{"requests": ["s"], "opaque": {"driver": "d", "parameters": {}}}],
        }
    },
    "status": {
        "allocation": {
            "devices": {
                "results": [{"request": "s/t", **ID}],
                "config": [{"source": "FromClaim", "opaque": {"driver": "d", "parameters": {}}}],
            },
            "nodeSelector": {
                "nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]},
                ]
            },
        },
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
        "devices": [{**ID, "conditions": [CONDITION], "data": {"a": 1}, "networkData": {"ips": ["10.0.0.1/24"]}}],
    },
}
CLASS: dict[str, Any] = {"metadata": META, "spec": {"selectors": [{"cel": {"expression": "true"}}], "config": []}}
TEMPLATE: dict[str, Any] = {"metadata": CLAIM["metadata"], "spec": {"spec": CLAIM["spec"]}}
RULE: dict[str, Any] = {"metadata": META, "spec": {"taint": {"key": "k", "effect": "NoExecute"}}}
POOL_STATUS: dict[str, Any] = {
    "metadata": META,
    "spec": {"driver": "d", "limit": 1},
    "status": {
        "poolCount": 1,
        "pools": [{"driver": "d", "poolName": "p", "generation": 0, "resourceSliceCount": 1}],
        "conditions": [CONDITION],
    },
}

SAMPLES: dict[type[Object], dict[str, Any]] = {
    ResourceSlice: SLICE,
    ResourceClaim: CLAIM,
    DeviceClass: CLASS,
    ResourceClaimTemplate: TEMPLATE,
    DeviceTaintRule: RULE,
    ResourcePoolStatusRequest: POOL_STATUS,
}


def raw_sample(kind: type[Object], changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """A valid object as plain JSON with other values at paths such as ``spec.devices.0.name``.

    A value of ``...`` removes the field; a function is applied to the value that is there.
    """
    obj = copy.deepcopy(SAMPLES[kind])
    for path, value in (changes or {}).items():
        part: Any = obj
        *steps, last = (int(step) if step.isdigit() else step for step in path.split("."))
        for step in steps:
            part = part[step] if isinstance(step, int) else part.setdefault(step, {})
        if value is ...:
            del part[last]
        else:
            part[last] = value(part[last]) if callable(value) else copy.deepcopy(value)
    return obj


def sample(kind: type[K], changes: dict[str, Any] | None = None) -> K:
    """The same, decoded."""
    return convert(kind, raw_sample(kind, changes))


def found(errors: list[FieldError]) -> list[str]:
    """Errors as short texts, sorted, each once: ``Required spec.driver``."""
    return sorted({f"{error.type.removeprefix('FieldValue')} {error.field}" for error in errors})


T = TypeVar("T")


def decode_list(
    type_: type[T], data: bytes, reshape: Callable[[dict[str, Any]], dict[str, Any]] | None = None
) -> tuple[list[T], list[tuple[bytes, DecodeError]], dict[str, Any]]:
    """Return the good items, the bad ones with their errors, and the metadata of the list."""
    envelope = raw_list(data)
    good: list[T] = []
    bad: list[tuple[bytes, DecodeError]] = []
    for raw in envelope.items or ():
        try:
            good.append(decode_item(type_, raw, is_cut=envelope.is_cut, reshape=reshape))
        except DecodeError as error:
            bad.append((bytes(raw), error))
    return good, bad, envelope.metadata


DRIVER, POOL = "gpu.example.com", "node-a"
ADDED = "2026-01-01T00:00:00Z"


def taint(key: str = "broken", effect: str = "NoExecute", *, value: str = "", added: str | None = ADDED) -> Any:
    return {
        "key": key,
        "effect": effect,
        **({"value": value} if value else {}),
        **({"timeAdded": added} if added else {}),
    }


def slice_of(
    devices: dict[str, list[Any]],
    *,
    generation: int = 1,
    name: str = "slice",
    driver: str = DRIVER,
    pool: str = POOL,
    version: int = 1,
) -> ResourceSlice:
    """``devices``: names with their taints."""
    spec = {
        "driver": driver,
        "nodeName": "node-a",
        "pool": {"name": pool, "generation": generation, "resourceSliceCount": 1},
        "devices": [{"name": name, "taints": taints} for name, taints in devices.items()],
    }
    return convert(ResourceSlice, {"metadata": meta(name, version, namespace=""), "spec": spec})


def rule(
    name: str = "rule",
    selector: dict[str, str] | None = None,
    *,
    effect: str = "NoExecute",
    key: str = "maintenance",
    added: str | None = ADDED,
    version: int = 1,
    uid: str = "",
    **status: Any,
) -> DeviceTaintRule:
    """``selector`` None selects nothing, an empty one everything."""
    spec = {"taint": taint(key, effect, added=added), **({} if selector is None else {"deviceSelector": selector})}
    its = meta(name, version, uid or None, namespace="", generation=1)
    return convert(DeviceTaintRule, {"metadata": its, "spec": spec, "status": status})


def result(device: str = "dev-0", *tolerations: Any, **more: Any) -> Any:
    return {
        "request": "req",
        "driver": DRIVER,
        "pool": POOL,
        "device": device,
        **({"tolerations": list(tolerations)} if tolerations else {}),
        **more,
    }


def claim(
    *results: Any, name: str = "claim", users: tuple[str, ...] = ("pod",), version: int = 1, **more: Any
) -> ResourceClaim:
    """An allocated claim; without results one that is not allocated. ``users``: pods that it is reserved for."""
    reserved = [user(pod) for pod in users]
    status = {"allocation": {"devices": {"results": list(results)}}, "reservedFor": reserved} if results else {}
    return convert(ResourceClaim, {"metadata": meta(name, version, **more), "status": status})


def pod(*claims: str, name: str = "pod", node: str = "node-a", uid: str = "", version: int = 1, **status: Any) -> Pod:
    """A pod that names these claims; an empty name stands for the entry ``generated``, whose claim is made for it."""
    entries = [
        {"name": f"entry-{number}", "resourceClaimName": claim}
        if claim
        else {"name": "generated", "resourceClaimTemplateName": "template"}
        for number, claim in enumerate(claims)
    ]
    spec = {"nodeName": node, "resourceClaims": entries}
    return convert(Pod, {"metadata": meta(name, version, uid or None), "spec": spec, "status": status})
