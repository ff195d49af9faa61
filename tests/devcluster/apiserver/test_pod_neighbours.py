"""What a pod says about the pods around it is checked when the pod is made."""

from __future__ import annotations

from typing import Any

import pytest
from bare_client import PODS, Client, Json, causes, pod

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
TERM = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}
SPREAD = {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}


def near(**changes: Any) -> Json:
    return {"affinity": {"podAffinity": {REQUIRED: [{**TERM, **changes}]}}}


def likes(weight: int, **changes: Any) -> Json:
    weighted = {"weight": weight, "podAffinityTerm": {**TERM, **changes}}
    return {"affinity": {"podAntiAffinity": {PREFERRED: [weighted]}}}


def spread(**changes: Any) -> Json:
    return {"topologySpreadConstraints": [{**SPREAD, **changes}]}


def wish(operator: str, *values: str, key: str = "app") -> Json:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


NEAR, LIKES = f"spec.affinity.podAffinity.{REQUIRED}[0]", f"spec.affinity.podAntiAffinity.{PREFERRED}[0]"
SPREADS = "spec.topologySpreadConstraints[0]"
FIRST = "labelSelector.matchExpressions[0]"


@pytest.mark.parametrize(
    ("spec", "field", "reason"),
    [
        (near(topologyKey=""), f"{NEAR}.topologyKey", "FieldValueRequired"),
        (near(topologyKey="a b"), f"{NEAR}.topologyKey", "FieldValueInvalid"),
        (near(labelSelector=wish("Like", "x")), f"{NEAR}.{FIRST}.operator", "FieldValueInvalid"),
        (near(labelSelector=wish("In")), f"{NEAR}.{FIRST}.values", "FieldValueRequired"),
        (near(labelSelector=wish("Exists", "x")), f"{NEAR}.{FIRST}.values", "FieldValueForbidden"),
        (near(labelSelector=wish("Exists", key="a b")), f"{NEAR}.{FIRST}.key", "FieldValueInvalid"),
        (
            near(namespaceSelector=wish("Like", "x")),
            f"{NEAR}.namespaceSelector.matchExpressions[0].operator",
            "FieldValueInvalid",
        ),
        (likes(0), f"{LIKES}.weight", "FieldValueInvalid"),
        (likes(101), f"{LIKES}.weight", "FieldValueInvalid"),
        (likes(1, topologyKey=""), f"{LIKES}.podAffinityTerm.topologyKey", "FieldValueRequired"),
        (spread(maxSkew=0), f"{SPREADS}.maxSkew", "FieldValueInvalid"),
        (spread(topologyKey=""), f"{SPREADS}.topologyKey", "FieldValueRequired"),
        (spread(whenUnsatisfiable="Never"), f"{SPREADS}.whenUnsatisfiable", "FieldValueNotSupported"),
        (spread(minDomains=0), f"{SPREADS}.minDomains", "FieldValueInvalid"),
        (spread(minDomains=1, whenUnsatisfiable="ScheduleAnyway"), f"{SPREADS}.minDomains", "FieldValueInvalid"),
        (spread(nodeTaintsPolicy="Maybe"), f"{SPREADS}.nodeTaintsPolicy", "FieldValueNotSupported"),
        (spread(labelSelector=wish("Like", "x")), f"{SPREADS}.{FIRST}.operator", "FieldValueInvalid"),
        (
            {"topologySpreadConstraints": [SPREAD, SPREAD]},
            "spec.topologySpreadConstraints[1].{topologyKey, whenUnsatisfiable}",
            "FieldValueDuplicate",
        ),
    ],
)
async def test_a_fault_is_named(client: Client, spec: Json, field: str, reason: str) -> None:
    answer = await client.call("POST", PODS, pod("p", **spec))
    assert answer.code == 422, answer.body
    assert causes(answer.json) == [(field, reason)]


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(near(), id="affinity"),
        pytest.param(near(namespaceSelector={}, labelSelector=wish("NotIn", "x")), id="selectors"),
        pytest.param(likes(100), id="a preference"),
        pytest.param(spread(minDomains=2, nodeTaintsPolicy="Honor"), id="spread"),
        pytest.param(
            {"topologySpreadConstraints": [SPREAD, {**SPREAD, "whenUnsatisfiable": "ScheduleAnyway"}]}, id="two kinds"
        ),
    ],
)
async def test_what_is_in_order_is_stored(client: Client, spec: Json) -> None:
    made = await client.post(PODS, pod("p", **spec))
    assert all(made["spec"][field] == value for field, value in spec.items())
