"""Asks ``fit --serve`` random questions, many of the same desk, and places the same pods one after the other.

Of each seed there is a random cluster, and a few questions about some of its waiting pods: their claims are in the
cluster, or in the question, or made from templates in the question.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Final

from allocator_problems import CrowdedMaker, LocalMaker, Maker
from dra_api.codec import to_dict
from dra_api.core import Pod
from dra_api.meta import Object, ObjectMeta
from dra_api.resource import ResourceClaim, ResourceClaimTemplate, ResourceClaimTemplateSpec
from dra_operator.allocator import Features, Semantics
from dra_operator.commands.object_files import decoded
from dra_operator.commands.simulated import simulated
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.pipeline import pipeline
from dra_operator.kubectl.serve.desk import Desk, question_of
from dra_operator.kubectl.settings import Settings
from dra_operator.scheduling import Plan
from dra_simulator.report import attempts
from history_kit.game import Game, Outcome
from msgspec.structs import replace
from told import NOW, waiting_pod

MAKERS: Final = (Maker, LocalMaker, CrowdedMaker)
QUESTIONS: Final = 4
"""Of one cluster; then the first one is asked again."""


def crowd(seed: int) -> tuple[list[Object], list[Pod]]:
    """A random cluster in which each waiting claim has a pod of its own, and one pod wants all of them."""
    objects = list(waiting_pod(Random(seed), MAKERS[seed % len(MAKERS)]).objects)
    web = next(obj for obj in objects if isinstance(obj, Pod) and obj.key == "ns/web")
    objects.remove(web)
    pods = []
    for number, entry in enumerate(web.spec.resource_claims or ()):
        meta = replace(web.metadata, name=f"one-{number}", uid=f"uid-one-{number}")
        pods.append(replace(web, metadata=meta, spec=replace(web.spec, resource_claims=(entry,))))
    return objects, [*pods, web]


def placed_by_simulate(objects: Sequence[Object], pods: Sequence[Pod], features: Features) -> list[str]:
    """For each pod the node, or why there is none, or ``not tried``: placed one after the other."""
    cluster = simulated([*objects, *pods], [], features=features, semantics=Semantics())
    found, keys = [], {pod.key for pod in pods}
    for attempt in attempts(cluster, sequential=True):
        if attempt.pod is not None and attempt.pod.key in keys:
            outcome = attempt.outcome
            found.append(outcome.node if isinstance(outcome, Plan) else getattr(outcome, "message", "not tried"))
    return found


def differences(seed: int) -> Iterator[str]:
    """A line for each pod of which the desk says another thing, and an empty one for each that agrees."""
    random = Random(seed)
    cluster, pods = crowd(seed)
    features = pipeline(Observed(cluster, NOW, namespace="ns")).cluster.features
    waiting = {
        obj.key: _with_defaults(obj)
        for obj in cluster
        if isinstance(obj, ResourceClaim) and obj.status.allocation is None
    }
    cluster = [waiting.get(obj.key, obj) if isinstance(obj, ResourceClaim) else obj for obj in cluster]
    given = set(random.sample(sorted(waiting), random.randint(0, len(waiting))))
    seen = [obj for obj in cluster if not (isinstance(obj, ResourceClaim) and obj.key in given)]
    desk = Desk(Observed(seen, NOW, namespace="ns"), Settings())
    first: tuple[bytes, object] | None = None
    for _ in range(QUESTIONS):
        asked, brought = _question(random, pods, [waiting[key] for key in sorted(given)])
        body = json.dumps({"manifests": [_manifest(obj) for obj in (*asked, *brought)]}).encode()
        found = desk.answer(question_of(body)).answer.pods
        first = first or (body, found)
        expected = placed_by_simulate([*seen, *brought], asked, features)
        for fact, answer in zip(found, expected, strict=True):
            is_equal = (not fact.node) if answer == "not tried" else (fact.node or fact.reason) == answer
            yield "" if is_equal else f"seed {seed}: {fact.pod}: {fact.node or fact.reason}, placing says {answer}"
    if first is not None and (again := desk.answer(question_of(first[0])).answer.pods) != first[1]:
        yield f"seed {seed}: asked again: {again}, before {first[1]}"


def _question(random: Random, pods: Sequence[Pod], claims: Sequence[ResourceClaim]) -> tuple[list[Pod], list[Object]]:
    """Some pods, and what they bring along: the claims that the cluster lacks, or templates in their place."""
    asked = [replace(pod, metadata=replace(pod.metadata, uid="")) for pod in random.sample(pods, len(pods))]
    asked = asked[: random.randint(1, len(asked))]
    if random.random() < 0.5:
        return asked, [replace(claim, metadata=replace(claim.metadata, uid="")) for claim in claims]
    names = {claim.metadata.name for claim in claims}
    brought: list[Object] = [
        ResourceClaimTemplate(
            metadata=ObjectMeta(name=f"of-{claim.metadata.name}", namespace="ns"),
            spec=ResourceClaimTemplateSpec(spec=claim.spec),
        )
        for claim in claims
    ]
    return [_with_templates(pod, names) for pod in asked], brought


def _with_templates(pod: Pod, names: set[str]) -> Pod:
    entries = tuple(
        replace(it, resource_claim_name=None, resource_claim_template_name=f"of-{it.resource_claim_name}")
        if it.resource_claim_name in names
        else it
        for it in pod.spec.resource_claims or ()
    )
    return replace(pod, spec=replace(pod.spec, resource_claims=entries))


def _with_defaults(claim: ResourceClaim) -> ResourceClaim:
    """As a server has it."""
    found = decoded("claim", _manifest(claim))
    assert isinstance(found, ResourceClaim)
    return found


def _manifest(obj: Object) -> dict[str, Any]:
    version = "v1" if isinstance(obj, Pod) else "resource.k8s.io/v1"
    return {"apiVersion": version, "kind": type(obj).__name__, **to_dict(obj)}


def played(seed: int) -> Outcome:
    found = list(differences(seed))
    return Outcome(tuple(filter(None, found)), kinds=("pods answered",) * len(found))


CAMPAIGN: Final = Game(played)
