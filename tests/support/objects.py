"""Objects for the fake API server, and parts of any object, as short as tests want them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

Obj = dict[str, Any]


def meta(name: str, version: object = 1, uid: str | None = None, **more: Any) -> Obj:
    """Metadata of an object in the namespace ``ns``, in this version; without ``uid`` that follows from its name."""
    return {"namespace": "ns", "name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version), **more}


def user(pod: str) -> Obj:
    """The pod as an entry of ``status.reservedFor``."""
    return {"resource": "pods", "name": pod, "uid": f"uid-{pod}"}


def owner(pod: str) -> Obj:
    """The pod as the owner of a claim that was made for it."""
    return {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": f"uid-{pod}", "controller": True}


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
