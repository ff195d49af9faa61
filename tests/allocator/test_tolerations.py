"""Which taints of a device keep a request away, and which tolerations meet them."""

from __future__ import annotations

import pytest
from allocator_lab import Json, claim, device, lab, pool, request

EFFECTS = {"NoSchedule": False, "NoExecute": False, "None": True, "Explode": True}
TOLERATIONS: list[tuple[str, list[Json], bool]] = [
    ("none", [], False),
    ("everything", [{"operator": "Exists"}], True),
    ("its key", [{"key": "bad", "operator": "Exists"}], True),
    ("another key", [{"key": "hot", "operator": "Exists"}], False),
    ("its effect", [{"operator": "Exists", "effect": "NoSchedule"}], True),
    ("another effect", [{"operator": "Exists", "effect": "NoExecute"}], False),
    ("its value", [{"key": "bad", "operator": "Equal", "value": "x"}], True),
    ("another value", [{"key": "bad", "operator": "Equal", "value": "y"}], False),
    ("its value, without operator", [{"key": "bad", "operator": "", "value": "x"}], True),
    ("an operator that does not exist", [{"key": "bad", "operator": "Like", "value": "x"}], False),
    ("for no time at all", [{"operator": "Exists", "tolerationSeconds": 0}], True),
    ("the second one", [{"key": "hot", "operator": "Exists"}, {"key": "bad", "operator": "Exists"}], True),
]


def gets_a_device(taint: Json, *tolerations: Json) -> bool:
    wanted = claim(request("r", tolerations=list(tolerations)))
    return lab(pool(device("a", extra={"taints": [taint]})), [wanted]).devices() == [["r=drv/p/a"]]


@pytest.mark.rule("AL-12")
@pytest.mark.parametrize("effect", EFFECTS)
def test_a_taint_keeps_requests_away_by_its_effect(effect: str) -> None:
    assert gets_a_device({"key": "bad", "effect": effect}) == EFFECTS[effect]


@pytest.mark.rule("AL-12")
@pytest.mark.parametrize(
    ("tolerations", "expected"), [row[1:] for row in TOLERATIONS], ids=[row[0] for row in TOLERATIONS]
)
def test_a_request_tolerates(tolerations: list[Json], expected: bool) -> None:
    assert gets_a_device({"key": "bad", "value": "x", "effect": "NoSchedule"}, *tolerations) == expected


@pytest.mark.rule("AL-12")
def test_each_taint_has_to_be_tolerated() -> None:
    wanted = claim(request("r", tolerations=[{"key": "bad", "operator": "Exists"}]))
    taints = [{"key": key, "effect": "NoSchedule"} for key in ("bad", "hot")]
    assert lab(pool(device("a", extra={"taints": taints})), [wanted]).devices() == "none"
