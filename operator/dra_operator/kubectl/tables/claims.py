"""``kubectl dra claims``."""

from __future__ import annotations

import argparse
from typing import Final

from dra_api.resource import ResourceClaim

from dra_operator.kubectl.answer import Answer, Column, Table
from dra_operator.kubectl.facts.ages import age
from dra_operator.kubectl.facts.claims import ClaimFact, claims_of
from dra_operator.kubectl.labels import selecting
from dra_operator.kubectl.observed.observed import Observed

from .notes import joined, notes_on, require

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
        columns, found, lambda it: f"resourceclaim.resource.k8s.io/{it.name}", f"No claims found{in_namespace}"
    )
    return Answer(table, notes=notes_on(seen))


def _columns(seen: Observed, *, with_namespace: bool) -> list[Column[ClaimFact]]:
    namespace: list[Column[ClaimFact]] = [Column("NAMESPACE", lambda it: it.namespace)] if with_namespace else []
    return [
        *namespace,
        Column("NAME", lambda it: it.name),
        Column("STATE", lambda it: it.state, colour=lambda it: COLOURS.get(it.state, "")),
        Column("REQUESTS", lambda it: joined(it.requests)),
        Column("DEVICES", lambda it: joined(it.devices)),
        Column("PODS", lambda it: joined(it.pods)),
        Column("AGE", lambda it: age(it.created, seen.taken) or "<unknown>"),
        Column("NODE", lambda it: it.node or "<none>", wide=True),
        Column("OWNER", lambda it: it.owner or "<none>", wide=True),
        Column("ALLOCATED", lambda it: age(it.since, seen.taken) or "<none>", wide=True),
    ]
