"""Which rights the viewer lacks, as the API server says itself (SelfSubjectAccessReview)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from dra_api.api_resources import RESOURCE_CLAIMS, Resource
from dra_kube import Api

from dra_operator.kubectl.doctor.trouble import Diagnosis, kubectl
from dra_operator.kubectl.reading.live import KINDS, LEASE_NAMESPACE

REVIEWS: Final = Resource(
    "authorization.k8s.io", ("v1",), "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
REPAIRS: Final = (("patch", ""), ("patch", "status"))
"""What ``--fix`` does to claims."""


async def missing_rights(api: Api, *, fix: bool) -> list[Diagnosis]:
    """Rights to list and, with ``fix``, to repair; what the server does not answer is not missing."""
    asked = [(resource, "list", "") for resource in KINDS]
    asked += [(RESOURCE_CLAIMS, *repair) for repair in REPAIRS] if fix else []
    allowed = await asyncio.gather(*(_is_allowed(api, *each) for each in asked))
    return list(_told(each for each, is_allowed in zip(asked, allowed, strict=True) if not is_allowed))


async def _is_allowed(api: Api, resource: Resource, verb: str, subresource: str) -> bool:
    attributes = {"group": resource.group, "resource": resource.plural, "verb": verb, "subresource": subresource}
    if resource.kind == "Lease":
        attributes["namespace"] = LEASE_NAMESPACE
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    answer = await api.create(REVIEWS, {**body, "spec": {"resourceAttributes": attributes}})
    return (answer.get("status") or {}).get("allowed") is not False


def _told(missing: Iterator[tuple[Resource, str, str]]) -> Iterator[Diagnosis]:
    by_verb: dict[str, list[str]] = {}
    for resource, verb, subresource in missing:
        by_verb.setdefault(verb, []).append(f"{resource}/{subresource}" if subresource else str(resource))
    for verb, resources in by_verb.items():
        role = "dra-viewer" if verb == "list" else "a role with that right"
        message = f"may not {verb} {', '.join(resources)}"
        if verb == "list":
            command = kubectl("create", "clusterrolebinding", "dra-viewers", f"--clusterrole={role}", "--user=USER")
            remedy = "without it answers are incomplete: have the ClusterRole of manifests/operator/viewer.yaml bound"
            yield Diagnosis.of("rights", "you", message, remedy=remedy, command=command)
        else:
            remedy = "--fix cannot repair without it; the commands below need it as well"
            yield Diagnosis.of("rights", "you", message, remedy=remedy)
