"""Slices, rules, claims and pods with taints, as short as tests want them."""

from __future__ import annotations

from typing import Any

from dra_api.codec import convert
from dra_api.core import Pod
from dra_api.resource import DeviceTaintRule, ResourceClaim, ResourceSlice

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
    meta = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return convert(ResourceSlice, {"metadata": meta, "spec": spec})


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
    meta = {"name": name, "uid": uid or f"uid-{name}", "generation": 1, "resourceVersion": str(version)}
    spec = {"taint": taint(key, effect, added=added), **({} if selector is None else {"deviceSelector": selector})}
    return convert(DeviceTaintRule, {"metadata": meta, "spec": spec, "status": status})


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
    *results: Any, name: str = "claim", users: tuple[str, ...] = ("pod",), version: int = 1, **meta: Any
) -> ResourceClaim:
    """An allocated claim; without results one that is not allocated. ``users``: pods that it is reserved for."""
    reserved = [{"resource": "pods", "name": user, "uid": f"uid-{user}"} for user in users]
    status = {"allocation": {"devices": {"results": list(results)}}, "reservedFor": reserved} if results else {}
    metadata = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": str(version), **meta}
    return convert(ResourceClaim, {"metadata": metadata, "status": status})


def owned_by(pod: str) -> Any:
    return [{"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": f"uid-{pod}", "controller": True}]


def pod(*claims: str, name: str = "pod", node: str = "node-a", uid: str = "", version: int = 1, **status: Any) -> Pod:
    """A pod that names these claims; an empty name stands for the entry ``generated``, whose claim is made for it."""
    entries = [
        {"name": f"entry-{number}", "resourceClaimName": claim}
        if claim
        else {"name": "generated", "resourceClaimTemplateName": "template"}
        for number, claim in enumerate(claims)
    ]
    meta = {"name": name, "namespace": "ns", "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return convert(Pod, {"metadata": meta, "spec": {"nodeName": node, "resourceClaims": entries}, "status": status})
