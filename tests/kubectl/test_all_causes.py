"""``kubectl dra why`` names every cause at once, each with what it takes."""

from __future__ import annotations

from typing import Any, Final

import pytest
from scheduling_causes import DRIVER, asks, claim, device_class, node, pod, slice_
from told import Json, told

HELD: Final = claim(asks(count=2), name="other", held=["gpu-1/gpu-0", "gpu-1/gpu-1"])
"""All devices of gpu-1, reserved for no pod."""
IN_USE: Final = "delete claim ns/other, reserved for no pod"
WEB: Final = [{"key": "web", "effect": "NoSchedule"}]


def template(name: str, *requests: Json, namespace: str = "ns") -> Json:
    """A template for one claim."""
    made = claim(*requests, name=name, namespace=namespace)
    return {**made, "kind": "ResourceClaimTemplate", "spec": {"spec": made["spec"]}}


def waits(**spec: Any) -> Json:
    """The pod with a claim ``c``, unless its spec says otherwise."""
    entries = [{"name": "gpu", "resourceClaimName": "c"}]
    return pod("waits", schedulerName="dra-scheduler", **{"resourceClaims": entries} | spec)


def of_template(name: str) -> list[Json]:
    """Entries for a claim from a template."""
    return [{"name": "gpu", "resourceClaimTemplateName": name}]


GATE: Final = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
CASES: Final = {
    "a gate, and all devices in use": (
        [slice_("gpu-1"), HELD, claim(), waits(**GATE)],
        ["kueue.x-k8s.io/admission"],
        IN_USE,
    ),
    "a volume claim that is missing, and a selector that matches nothing": (
        [
            slice_("gpu-1"),
            claim(asks(selectors=[{"cel": {"expression": f'device.attributes["{DRIVER}"].model == "A100"'}}])),
            waits(uses="data"),
        ],
        ['persistentvolumeclaim "data" not found'],
        'write "a100" instead of "A100"',
    ),
    "a class that is missing, and a tainted node": (
        [node("gpu-1", taints=WEB), slice_("gpu-1"), claim(asks(class_name="absent")), waits()],
        ["device class absent does not exist", "untolerated taint {web: }"],
        "add the toleration {key: web",
    ),
    "a mistyped class, and all devices in use": (
        [slice_("gpu-1"), HELD, claim(asks(class_name="gpus")), waits()],
        ["device class gpus does not exist", "; there is gpu"],
        f'write deviceClassName gpu instead of gpus in request "gpu" of claim ns/c, and {IN_USE}',
    ),
    "a claim that is not made, and a selector in its template": (
        [slice_("gpu-1"), template("t", asks(count=5)), waits(resourceClaims=of_template("t"))],
        ["makes the claim from ResourceClaimTemplate ns/t", "needs 5 devices"],
        "ask for at most 2 instead of 5",
    ),
    "a mistyped template, and all devices in use": (
        [slice_("gpu-1"), HELD, template("gpus", asks()), waits(resourceClaims=of_template("gpu"))],
        ["ResourceClaimTemplate ns/gpu does not exist", "; there is gpus"],
        f"write resourceClaimTemplateName gpus instead of gpu in the pod, and {IN_USE}",
    ),
    "a claim that is missing, and a cordon": (
        [node("gpu-1", cordoned=True), slice_("gpu-1"), waits()],
        ['resourceclaim "c" not found', "were unschedulable"],
        "uncordon the node",
    ),
    "a cordon, and a driver that is not there": (
        [node("gpu-1", cordoned=True), claim(), waits()],
        ["were unschedulable", f"driver {DRIVER} publishes nothing: start it"],
        "",
    ),
    "no operator, and all devices in use": (
        [slice_("gpu-1"), HELD, claim(), waits()],
        ["apparently no dra-operator serves the scheduler name dra-scheduler"],
        IN_USE,
    ),
    "a gate, a volume claim, a class, and a taint": (
        [node("gpu-1", taints=WEB), slice_("gpu-1"), claim(asks(class_name="absent")), waits(uses="data", **GATE)],
        ["kueue", 'persistentvolumeclaim "data" not found', "device class absent", "untolerated taint {web: }"],
        "add the toleration {key: web",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_cause_is_named(case: str) -> None:
    objects, named, fix = CASES[case]
    nodes = [] if any(it["kind"] == "Node" for it in objects) else [node("gpu-1")]
    found = told([device_class(), *nodes, *objects])
    assert found.code == 3
    for words in named:
        assert words in found.text, found.text
    assert any(fix in text for text in found.advice) if fix else not found.advice, found.text
    everything = told([device_class(), *nodes, *objects], "").text
    assert "nothing holds it back" not in everything
    for words in named:
        if not words.startswith((";", "makes", "driver", "ResourceClaimTemplate", "; there")):
            assert words in everything, everything


def test_what_was_thought_away_is_there_again() -> None:
    """The answer about a second pod does not depend on that about the first."""
    objects = [
        device_class(),
        node("gpu-1"),
        slice_("gpu-1"),
        template("t", asks()),
        waits(resourceClaims=of_template("t")),
    ]
    first = told(objects)
    again = told(first.seen)
    assert again.lines == first.lines
    assert first.code == 3


def test_a_template_of_another_namespace_is_named() -> None:
    objects = [
        device_class(),
        node("gpu-1"),
        template("t", asks(), namespace="other"),
        waits(resourceClaims=of_template("t")),
    ]
    assert "; there is one in namespace other, but a pod uses only templates of its own namespace" in told(objects).text
