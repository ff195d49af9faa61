"""The claims that are made for pods and PodGroups, as they are sent to the server."""

from __future__ import annotations

from typing import Final

from dra_api.codec import to_dict
from dra_api.core import Pod
from dra_api.releases.release import NEWEST, Release
from dra_api.resource import EXTENDED_RESOURCE_ANNOTATION, FINALIZER, GROUP, ResourceClaimSpec
from dra_api.scheduling import GROUP as SCHEDULING_GROUP
from dra_api.scheduling import PodGroup
from dra_kube import Object

from .claim_names import generated_name_base, without_suffix

_EXTENDED: Final = "extended-resources"


def claim_for(
    owner: Pod | PodGroup, purpose: str, annotations: dict[str, str], spec: Object, release: Release
) -> Object:
    """A claim that the pod or PodGroup owns, named after that and what it is for (claim-controller.md 5.4)."""
    meta = owner.metadata
    reference = {
        "apiVersion": "v1" if isinstance(owner, Pod) else _version_of_groups(release),
        "kind": type(owner).__name__,
        "name": meta.name,
        "uid": meta.uid,
        "controller": True,
    }
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "generateName": generated_name_base(meta.name, purpose),
            "namespace": meta.namespace,
            "annotations": annotations,
            "ownerReferences": [reference],
        },
        "spec": spec,
    }


def _version_of_groups(release: Release) -> str:
    """The version of the PodGroup API that the release has (K37-WL-04)."""
    return f"{SCHEDULING_GROUP}/{'v1beta1' if release >= Release.V1_37 else 'v1alpha2'}"


def claim_for_extended_resources(pod: Pod, spec: ResourceClaimSpec) -> Object:
    """The claim for what devices serve to the pod (scheduling.md 7.2, 7.3).

    It has the finalizer from the start, which saves a write before the allocation.
    """
    body = claim_for(pod, _EXTENDED, {EXTENDED_RESOURCE_ANNOTATION: "true"}, to_dict(spec), NEWEST)
    body["metadata"]["finalizers"] = [FINALIZER]
    return body


def without_chance(pod: Pod, text: str) -> str:
    """What is said of a failure, without the random part of the name of the pod's claim for extended resources.

    Each attempt makes a new one, and a condition that named it would be news to everyone at each attempt.
    """
    return without_suffix(text, generated_name_base(pod.metadata.name, _EXTENDED))
