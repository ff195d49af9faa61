"""``kubectl dra claims``: each claim with its state, its devices, who uses it, and what it asks for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Final

from dra_api.core import Pod
from dra_api.references import claims_of_pod, pod_is_done
from dra_api.resource import ResourceClaim
from dra_ledger.basics import DeviceId

from dra_operator.kubectl.answer import Answer, Column, Fact, Table
from dra_operator.kubectl.facts import age, pods_of
from dra_operator.kubectl.observed import Observed, joined, notes_on, require, selecting


class ClaimFact(Fact, frozen=True):
    """``state`` in kubectl's words: pending, allocated or allocated,reserved, after ``deleted,`` if it is."""

    namespace: str
    name: str
    state: str
    requests: tuple[str, ...]
    """``2 gpu``: number of devices and class; alternatives with ``or``."""
    devices: tuple[str, ...]
    pods: tuple[str, ...]
    """That it is reserved for or, of a claim without devices, that wait with it."""
    node: str
    """Of the pods; empty if they have none."""
    owner: str
    created: str
    since: str
    """When it got its devices."""


def claims_of(seen: Observed) -> list[ClaimFact]:
    """All claims, sorted by namespace and name."""
    waiting: dict[str, list[str]] = {}
    for pod in seen.every(Pod):
        if not pod_is_done(pod):
            for use in claims_of_pod(pod):
                waiting.setdefault(f"{pod.metadata.namespace}/{use.name}", []).append(pod.metadata.name)
    facts = (_fact(seen, claim, waiting.get(claim.key, [])) for claim in seen.every(ResourceClaim))
    return sorted(facts, key=lambda claim: (claim.namespace, claim.name))


def _fact(seen: Observed, claim: ResourceClaim, waiting: list[str]) -> ClaimFact:
    meta, allocation = claim.metadata, claim.status.allocation
    state = "pending" if allocation is None else "allocated,reserved" if claim.status.reserved_for else "allocated"
    owner = meta.controller
    pods = [user.name for user in pods_of(seen, claim)] if allocation is not None else sorted(waiting)
    found = (seen.one(Pod, f"{meta.namespace}/{name}") for name in pods)
    return ClaimFact(
        namespace=meta.namespace,
        name=meta.name,
        state=f"deleted,{state}" if meta.deletion_timestamp is not None else state,
        requests=tuple(_requests(claim)),
        devices=tuple(str(DeviceId.of(given)) for given in claim.results),
        pods=tuple(pods),
        node=next((pod.spec.node_name for pod in found if pod is not None and pod.spec.node_name), ""),
        owner=f"{owner.kind}/{owner.name}" if owner is not None else "",
        created=meta.creation_timestamp or "",
        since=(allocation.allocation_timestamp if allocation is not None else None) or "",
    )


def _requests(claim: ResourceClaim) -> Iterator[str]:
    for request in claim.spec.devices.requests or ():
        wanted = (request.exactly,) if request.exactly is not None else (request.first_available or ())
        yield " or ".join(
            f"{'all' if one.allocation_mode == 'All' else one.count or 1} {one.device_class_name}" for one in wanted
        )


COLOURS: Final = {"allocated,reserved": "green", "pending": "yellow"}


def answer(seen: Observed, options: argparse.Namespace) -> Answer:
    """The claims of a namespace, or of all."""
    require(seen, "resourceclaims.resource.k8s.io")
    matches = selecting(options.selector)
    chosen = {claim.key for claim in seen.every(ResourceClaim) if matches(claim.metadata.labels)}
    found = [
        claim
        for claim in claims_of(seen)
        if f"{claim.namespace}/{claim.name}" in chosen
        and (options.all_namespaces or claim.namespace == seen.namespace)
        and (not options.pending or "pending" in claim.state)
    ]
    in_namespace = "" if options.all_namespaces else f" in namespace {seen.namespace}"
    columns = _columns(seen, with_namespace=options.all_namespaces)
    table = Table(
        columns,
        found,
        lambda it: f"resourceclaim.resource.k8s.io/{it.name}",
        f"No claims found{in_namespace}",
        kind="Claim",
        labels=lambda it: _labels(seen, it),
    )
    return Answer(table, notes=notes_on(seen))


def _labels(seen: Observed, fact: ClaimFact) -> Mapping[str, str] | None:
    claim = seen.one(ResourceClaim, f"{fact.namespace}/{fact.name}")
    return claim.metadata.labels if claim is not None else None


def _columns(seen: Observed, *, with_namespace: bool) -> list[Column[ClaimFact]]:
    namespace: list[Column[ClaimFact]] = [Column("NAMESPACE", lambda it: it.namespace)] if with_namespace else []
    return [
        *namespace,
        Column("NAME", lambda it: it.name),
        Column("STATE", lambda it: it.state, colour=lambda it: COLOURS.get(it.state, "")),
        Column("REQUESTS", lambda it: joined(it.requests)),
        Column("DEVICES", lambda it: joined(it.devices), keeps_end=True),
        Column("PODS", lambda it: joined(it.pods)),
        Column("AGE", lambda it: age(it.created, seen.taken) or "<unknown>"),
        Column("NODE", lambda it: it.node or "<none>", wide=True),
        Column("OWNER", lambda it: it.owner or "<none>", wide=True),
        Column("ALLOCATED", lambda it: age(it.since, seen.taken) or "<none>", wide=True),
    ]
