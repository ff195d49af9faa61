"""Which rights the viewer lacks, and which the operators, as the API server says itself (SubjectAccessReview).

Operators need the rights of ``app.rights`` for the settings on their Leases. Only people
who may ask about others, as administrators may, get an answer about them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from dra_api.command_line import kubectl
from dra_api.leases import Lease
from dra_api.meta import RESOURCE_CLAIMS, Resource
from dra_api.releases.release import NEWEST, Release
from dra_kube import Api, Forbidden

from dra_operator.app.rights import MANIFEST, Right, Work, lease_rights, needed
from dra_operator.kubectl.doctor.trouble import Diagnosis
from dra_operator.kubectl.live import KINDS, LEASE_NAMESPACE
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.settings import Settings
from dra_operator.wording import listed

LEASE_PREFIX: Final = "dra-operator-"
"""Of the Lease's name, before the name of the scheduler."""


class Grant(NamedTuple):
    """What a right is for, and the file that grants it."""

    purpose: str
    manifest: str


def needed_rights(seen: Observed) -> dict[Right, Grant]:
    """Return the rights that operators with a Lease need, and why; none without a Lease."""
    found: dict[Right, Grant] = {}
    for lease in seen.every(Lease):
        if not lease.metadata.name.startswith(LEASE_PREFIX):
            continue
        settings = Settings(lease.metadata.name.removeprefix(LEASE_PREFIX)).completed(seen)
        work = Work(settings.controllers, settings.features(seen), settings.preemption)
        found |= {right: Grant(rule.purpose, rule.manifest) for right, rule in needed(work).items()}
        found |= dict.fromkeys(lease_rights(lease.metadata.name), Grant("to lead", MANIFEST))
    return found


REVIEWS: Final = Resource(
    "authorization.k8s.io", ("v1",), "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
REVIEWS_OF_OTHERS: Final = Resource(
    "authorization.k8s.io", ("v1",), "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)
MOST_TOLD_RIGHTS: Final = 8
"""Of one purpose."""
REPAIRS: Final = (("patch", ""), ("patch", "status"), ("delete", ""))
"""What ``--fix`` does to claims."""
ASKED_FROM_1_36: Final = (("patch", "binding"),)
"""What an API server asks for besides, when an allocation or a reservation goes."""


async def missing_rights(api: Api, *, fix: bool, release: Release = NEWEST) -> list[Diagnosis]:
    """Rights to list and, with ``fix``, to repair; what the server does not answer is not missing."""
    asked = [(resource, "list", "") for resource in KINDS]
    repairs = [*REPAIRS, *(ASKED_FROM_1_36 if release >= Release.V1_36 else ())]
    asked += [(RESOURCE_CLAIMS, *repair) for repair in repairs] if fix else []
    allowed = await asyncio.gather(*(_is_allowed(api, *each) for each in asked))
    return list(_told(each for each, is_allowed in zip(asked, allowed, strict=True) if not is_allowed))


async def _is_allowed(api: Api, resource: Resource, verb: str, subresource: str) -> bool:
    attributes = {"group": resource.group, "resource": resource.plural, "verb": verb, "subresource": subresource}
    if resource.kind == "Lease":
        attributes["namespace"] = LEASE_NAMESPACE
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    answer = await api.create(REVIEWS, {**body, "spec": {"resourceAttributes": attributes}})
    return (answer.get("status") or {}).get("allowed") is not False


async def operator_lacks(api: Api, account: str, needed: Mapping[Right, Grant]) -> tuple[list[Diagnosis], list[str]]:
    """Return the rights that the service account ``NAMESPACE/NAME`` lacks, by the file that grants them, and notes."""
    try:
        allowed = await asyncio.gather(*(_may(api, account, right) for right in needed))
    except Forbidden:
        return [], [
            "not looked at: rights of the operator: you may not create subjectaccessreviews.authorization.k8s.io"
        ]
    missing = [right for right, is_allowed in zip(needed, allowed, strict=True) if not is_allowed]
    lacking: dict[str, dict[str, list[str]]] = {}
    for right in missing:
        purpose, manifest = needed[right]
        lacking.setdefault(manifest, {}).setdefault(purpose, []).append(str(right))
    return [_lacks(account, manifest, by_purpose) for manifest, by_purpose in lacking.items()], []


def _lacks(account: str, manifest: str, by_purpose: Mapping[str, list[str]]) -> Diagnosis:
    message = "; ".join(f"{purpose}: {listed(rights, MOST_TOLD_RIGHTS)}" for purpose, rights in by_purpose.items())
    remedy = f"apply the roles of {manifest} and their bindings again; if the operator has another account, name it"
    return Diagnosis.of(
        "rights",
        f"serviceaccount {account}",
        f"may not do what the operator has to: {message}",
        remedy=f"{remedy} by --operator-account",
        command=kubectl("apply", f"--filename={manifest}"),
    )


async def _may(api: Api, account: str, right: Right) -> bool:
    namespace, _, name = account.partition("/")
    resource, _, subresource = right.resource.partition("/")
    attributes = {
        "verb": right.verb,
        "group": right.group,
        "resource": resource,
        "subresource": subresource,
        "name": right.name,
        "namespace": right.namespace,
    }
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
    spec = {"user": f"system:serviceaccount:{namespace}:{name}", "groups": groups, "resourceAttributes": attributes}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = await api.create(REVIEWS_OF_OTHERS, body)
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
