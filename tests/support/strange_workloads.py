"""Workloads of Kueue with one strange value each, at every field of a template and of a status.

An API server lets most of them in: it checks only a part of what is in a pod template of a Workload. Each begins as one
that fits, so that what is strange is reached.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any, Final

from objects import Obj

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
_TIMES: Final = ("9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "2026-01-01T00:00:00+23:59", "2026-01-01T00:00:60Z")


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
