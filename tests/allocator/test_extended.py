"""Requests of the claim behind extended resources (scheduling.md 7.2)."""

from __future__ import annotations

from typing import Any

import pytest
from allocator_lab import Json
from dra_api.codec import convert
from dra_api.core import Pod
from dra_operator.allocator.claim_program import extended_requests

GPU = "example.com/gpu"
CLASSES = {GPU: "gpu"}


def container(name: str, gpus: int = 0, **fields: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": {"cpu": "1", **({GPU: str(gpus)} if gpus else {})}}, **fields}


def sidecar(name: str, gpus: int) -> dict[str, Any]:
    return container(name, gpus, restartPolicy="Always")


CASES = {
    "a container gets a request of its own": (
        [],
        [container("a", 2)],
        {"container-0-request-1": 2},
        [("a", "container-0-request-1")],
    ),
    "two containers get one each": (
        [],
        [container("a", 1), container("b", 3)],
        {"container-0-request-1": 1, "container-1-request-1": 3},
        [("a", "container-0-request-1"), ("b", "container-1-request-1")],
    ),
    "zero is nothing": ([], [container("a")], {}, []),
    "an init container re-uses what starts later": (
        [container("init", 1)],
        [container("a", 2)],
        {"container-1-request-1": 2},
        [("init", "container-1-request-1"), ("a", "container-1-request-1")],
    ),
    "an init container re-uses several requests until it has enough": (
        [container("init", 3)],
        [container("a", 2), container("b", 2), container("c", 2)],
        {"container-1-request-1": 2, "container-2-request-1": 2, "container-3-request-1": 2},
        [
            ("init", "container-1-request-1"),
            ("init", "container-2-request-1"),
            ("a", "container-1-request-1"),
            ("b", "container-2-request-1"),
            ("c", "container-3-request-1"),
        ],
    ),
    "what is missing becomes one additional request, the largest": (
        [container("first", 3), container("second", 5)],
        [container("a", 1)],
        {"container-1-request-1": 4, "container-2-request-1": 1},
        [
            ("first", "container-1-request-1"),
            ("first", "container-2-request-1"),
            ("second", "container-1-request-1"),
            ("second", "container-2-request-1"),
            ("a", "container-2-request-1"),
        ],
    ),
    "a sidecar that started earlier is not re-used": (
        [sidecar("side", 2), container("init", 1)],
        [container("a")],
        {"container-0-request-1": 2, "container-1-request-1": 1},
        [("side", "container-0-request-1"), ("init", "container-1-request-1")],
    ),
    "a sidecar that starts later is re-used": (
        [container("init", 1), sidecar("side", 2)],
        [],
        {"container-1-request-1": 2},
        [("init", "container-1-request-1"), ("side", "container-1-request-1")],
    ),
}


@pytest.mark.parametrize(("init", "regular", "counts", "mappings"), CASES.values(), ids=CASES.keys())
def test_requests_of_the_claim(
    init: list[Json], regular: list[Json], counts: dict[str, int], mappings: list[tuple[str, str]]
) -> None:
    made = extended_requests(convert(Pod, {"spec": {"initContainers": init, "containers": regular}}), CLASSES)
    assert {r.name: r.exactly.count for r in made.requests if r.exactly is not None} == counts
    assert [r.name for r in made.requests] == sorted(counts)
    assert {r.exactly.device_class_name for r in made.requests if r.exactly is not None} <= {"gpu"}
    assert [(m.container_name, m.request_name) for m in made.mappings] == mappings


def test_resources_are_numbered_by_the_sorted_names_of_the_container() -> None:
    resources = {"requests": {"example.com/nic": "1", GPU: "1", "cpu": "1"}}
    pod = convert(Pod, {"spec": {"containers": [{"name": "a", "resources": resources}]}})
    made = extended_requests(pod, {GPU: "gpu", "example.com/nic": "nic"})
    assert [(m.resource_name, m.request_name) for m in made.mappings] == [
        (GPU, "container-0-request-1"),
        ("example.com/nic", "container-0-request-2"),
    ]


def test_only_resources_that_devices_serve_are_asked_for() -> None:
    pod = convert(Pod, {"spec": {"containers": [container("a", 1)]}})
    assert extended_requests(pod, {}).requests == ()
