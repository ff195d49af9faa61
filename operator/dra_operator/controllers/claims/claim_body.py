"""The claims that are made for pods, as they are sent to the server."""

from __future__ import annotations

from typing import Final

from dra_api.codec import to_dict
from dra_api.core import Pod
from dra_api.resource import EXTENDED_RESOURCE_ANNOTATION, FINALIZER, GROUP, ResourceClaimSpec
from dra_kube import Object

from .claim_names import generated_name_base, without_suffix

_EXTENDED: Final = "extended-resources"


def claim_for_pod(pod: Pod, purpose: str, annotations: dict[str, str], spec: Object) -> Object:
    """A claim that the pod owns, named after the pod and what it is for (claim-controller.md 5.4)."""
    owner = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": pod.metadata.name,
        "uid": pod.metadata.uid,
        "controller": True,
    }
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "generateName": generated_name_base(pod.metadata.name, purpose),
            "namespace": pod.metadata.namespace,
            "annotations": annotations,
            "ownerReferences": [owner],
        },
        "spec": spec,
    }


def claim_for_extended_resources(pod: Pod, spec: ResourceClaimSpec) -> Object:
    """The claim for what devices serve to the pod (scheduling.md 7.2, 7.3).

    It has the finalizer from the start, which saves a write before the allocation.
    """
    body = claim_for_pod(pod, _EXTENDED, {EXTENDED_RESOURCE_ANNOTATION: "true"}, to_dict(spec))
    body["metadata"]["finalizers"] = [FINALIZER]
    return body


def without_chance(pod: Pod, text: str) -> str:
    """What is said of a failure, without the random part of the name of the pod's claim for extended resources.

    Each attempt makes a new one, and a condition that named it would be news to everyone at each attempt.
    """
    return without_suffix(text, generated_name_base(pod.metadata.name, _EXTENDED))
