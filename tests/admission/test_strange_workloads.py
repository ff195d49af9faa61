"""A Workload with any value at any field costs only itself, and not more than a few kilobytes of words.

The values are strange ones, one in each Workload, at every field of a template and of a status. An API server lets
most of them in: it checks only a part of what is in a pod template of a Workload. Each begins as one that fits, so that
what is strange is reached.
"""

from __future__ import annotations

import copy
import random
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import pytest
from admission_world import AdmissionWorld, made, planner, question
from dra_api.codec import DecodeError, convert
from dra_api.kueue import ResourceFlavor, Workload
from dra_api.meta import ObjectMeta
from dra_api.resource import ResourceClaim
from dra_kube import RESOURCE_CLAIM_TEMPLATES
from dra_operator.admission.promises import Outcome
from dra_operator.admission.workloads import (
    CHECK_MESSAGE_CHARACTERS,
    CheckDecision,
    CheckNames,
    CheckState,
    after_eviction,
    decision_patch,
    rank,
    rank_of_promise,
    requeue_patch,
    stage_of,
    wait_left,
)
from dra_operator.commands.simulated import ClaimQuotas
from objects import Make, Obj

HOST: Final = "kubernetes.io/hostname"
_TERM: Final = {
    "labelSelector": {"matchLabels": {"l": "m"}, "matchExpressions": [{"key": "l", "operator": "In", "values": ["m"]}]},
    "topologyKey": HOST,
    "namespaces": ["ns"],
    "namespaceSelector": {},
    "matchLabelKeys": ["l"],
    "mismatchLabelKeys": ["z"],
}
_AFFINITY: Final = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": HOST, "operator": "Exists"}, {"key": "gen", "operator": "DoesNotExist"}]},
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-0"]}]},
            ]
        },
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "preference": {"matchExpressions": [{"key": "gen", "operator": "Gt", "values": ["1"]}]}}
        ],
    },
    "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": _TERM}]},
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"l": "other"}}, "topologyKey": HOST}
        ]
    },
}
_SPREAD: Final = {
    "maxSkew": 1,
    "topologyKey": HOST,
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {"l": "m"}},
    "minDomains": 1,
    "nodeAffinityPolicy": "Honor",
    "nodeTaintsPolicy": "Ignore",
    "matchLabelKeys": ["l"],
}
_POD: Final[Obj] = {
    "schedulerName": "dra-scheduler",
    "priority": 1,
    "preemptionPolicy": "Never",
    "hostNetwork": False,
    "terminationGracePeriodSeconds": 3,
    "containers": [
        {
            "name": "c",
            "resources": {"requests": {"cpu": "1m"}, "claims": [{"name": "entry-0", "request": "req"}]},
            "ports": [{"containerPort": 80, "hostPort": 8080, "protocol": "TCP", "hostIP": "127.0.0.1"}],
        }
    ],
    "initContainers": [{"name": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1m"}}}],
    "overhead": {"cpu": "1m"},
    "resourceClaims": [{"name": "entry-0", "resourceClaimTemplateName": "tmpl"}],
    "affinity": _AFFINITY,
    "tolerations": [{"key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute", "tolerationSeconds": 5}],
    "topologySpreadConstraints": [_SPREAD],
    "volumes": [{"name": "v", "emptyDir": {}}],
    "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}],
}
_SLICE: Final = {
    "domainCount": 1,
    "valuesPerLevel": [{"individual": {"prefix": "n", "suffix": "0", "roots": ["ode-"]}}],
    "podCounts": {"universal": 1},
}
_UPDATE: Final = {"name": "main", "labels": {"q": "r"}, "annotations": {"s": "t"}, "tolerations": [{"key": "u"}]}
_STATUS: Final[Obj] = {
    "conditions": [
        {"type": "QuotaReserved", "status": "True", "reason": "r", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    ],
    "admission": {
        "clusterQueue": "team",
        "podSetAssignments": [
            {
                "name": "main",
                "count": 2,
                "flavors": {"gpu": "any"},
                "topologyAssignment": {"levels": [HOST], "slices": [_SLICE]},
            }
        ],
    },
    "admissionChecks": [
        {
            "name": "devices",
            "state": "Pending",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
            "requeueAfterSeconds": 5,
            "retryCount": 2,
            "podSetUpdates": [_UPDATE],
        }
    ],
    "reclaimablePods": [{"name": "main", "count": 1}],
    "requeueState": {"count": 1, "requeueAt": "2040-01-01T00:00:00Z"},
}
PLAIN: Final[Obj] = {
    "metadata": {
        "name": "odd",
        "namespace": "ns",
        "uid": "odd",
        "resourceVersion": "7",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "odd", "uid": "j", "controller": True}],
    },
    "spec": {
        "active": True,
        "priority": 3,
        "priorityClassRef": {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "p"},
        "podSets": [
            {
                "name": "main",
                "count": 2,
                "template": {"metadata": {"labels": {"l": "m"}, "annotations": {"x": "y"}}, "spec": _POD},
            }
        ],
    },
    "status": _STATUS,
}
"""The Workload before anything about it is strange."""
_ADDED: Final[list[tuple[tuple[str | int, ...], Obj]]] = [
    (("spec", "podSets", 0, "template", "spec", "nodeSelector"), {HOST: "node-0"}),
    (("spec", "podSets", 0, "template", "spec", "schedulingGroup"), {"podGroupName": "g"}),
    (("spec", "podSets", 0, "template", "spec", "resources"), {"requests": {"cpu": "1"}}),
    (("spec", "podSets", 0, "template", "spec", "os"), {"name": "linux"}),
]
"""Fields whose presence alone keeps the pods from fitting."""
_ANY: Final[tuple[Any, ...]] = (None, "", [], {}, -1, 0, 2**31 - 1, -(2**31), 2**63 - 1, True, [{}], {"": ""})
_WORDS: Final = ("In", "NotIn", "Gt", "Lt", "DoesNotExist", "Ready", "Retry", "Rejected", "False", "Never", "Always")
_TEXTS: Final = ("x", "X" * 200_000, "ü\x00\n", "0", "-5", "1e999999999", "1e-999999999", "9" * 5000, "1.5Ei", " ")
_TIMES: Final = (
    "9999-12-31T23:59:59Z",
    "9999-12-31T23:59:59-12:00",
    "0001-01-01T00:00:00Z",
    "2026-01-01T00:00:00+23:59",
    "2026-01-01T00:00:60Z",
)


def strange(number: int, seed: int) -> Iterator[tuple[str, Obj]]:
    """Yield so many of all strange Workloads, each with the path and the beginning of its value."""
    every = [(path, value) for path in _paths(PLAIN, ()) for value in _values(_at(PLAIN, path))]
    every += [(path, value) for path, added in _ADDED for value in (added, *_values(added))]
    for path, value in random.Random(seed).sample(every, min(number, len(every))):
        made = copy.deepcopy(PLAIN)
        _at(made, path[:-1])[path[-1]] = copy.deepcopy(value)
        yield f"{'.'.join(map(str, path))} = {str(value)[:40]!r}", made


def _paths(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    if path:
        yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        yield from _paths(each, (*path, key))


def _at(value: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def _values(value: Any) -> Iterator[Any]:
    yield from _ANY
    if isinstance(value, str):
        yield from (*_WORDS, *_TEXTS, *_TIMES, value * 2)
    elif isinstance(value, list):
        yield from (value * 8, [*value, None], [value])
    elif isinstance(value, dict):
        yield {f"k{number}": each for number, each in enumerate(list(value.values()) * 2000)}
        yield {**value, "": "x"}


NAMES = CheckNames(frozenset({"devices"}), frozenset({"devices"}))
FLAVORS = {"any": ResourceFlavor()}


@pytest.fixture
def world() -> AdmissionWorld:
    its = AdmissionWorld()
    its.furnish(nodes=2, devices=2)
    its.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    return its


def looked_at(workload: Workload, now: datetime) -> None:
    """What the controller asks and writes about it before and after the planner."""
    retry = CheckDecision(CheckState.RETRY, "no", 5.0)
    stage_of(workload, NAMES, now, 300.0)
    rank(workload), rank_of_promise(workload, NAMES.known, now)
    after_eviction(workload, NAMES.active, retry)
    wait_left(workload, NAMES.active, now)
    decision_patch(workload, NAMES.active, retry, "now"), requeue_patch(workload, NAMES.active, "why", "now")


async def test_any_value_at_any_field_is_answered_alone(world: AdmissionWorld) -> None:
    answering, good = planner(world), made("good", 1)
    plain = convert(Workload, PLAIN)
    asked = replace(question(world, candidates=[plain, good]), flavors=FLAVORS)
    assert [it.fits for it in answering.answer(asked).candidates.values()] == [True, True]
    planned = 0
    for what, obj in strange(400, seed=1):
        try:
            odd = convert(Workload, obj)
        except DecodeError:
            continue
        looked_at(odd, asked.now)
        for how in ("promised", "candidates", "backing_off"):
            promised = [odd] if how == "promised" else []
            candidates = [odd, good] if how == "candidates" else [good]
            backing_off = [odd] if how == "backing_off" else []
            began = time.process_time()
            answers = answering.answer(
                replace(question(world, promised, candidates), flavors=FLAVORS, backing_off=backing_off)
            )
            assert time.process_time() - began < 2, (what, how)
            assert answers.candidates["good"].fits, (what, how)
            found: Outcome | None = getattr(answers, how).get(odd.metadata.uid)
            assert found is None or len(found.reason) <= CHECK_MESSAGE_CHARACTERS, (what, how)
            assert found is None or "cannot be planned" not in found.reason, (what, how, found.reason)
        planned += 1
    assert planned > 100


def test_claims_that_no_quota_limits_leave_nothing_behind() -> None:
    """An operator plans for months: what it remembered of each claim would be copied in each search."""
    quotas = ClaimQuotas((), (), str)
    tracemalloc.start()
    try:
        for number in range(1000):
            claim = ResourceClaim(metadata=ObjectMeta(name="it", namespace="ns", uid=f"{number}{'x' * 1000}"))
            assert quotas.refusal([claim], lasting=True) is None
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()
