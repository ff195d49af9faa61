"""Every case of the kit, and of the reference's own table: kind, value, class of error, type, cost before and after."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from corpus import document, kit
from dra_api.codec import convert
from dra_api.resource import Device
from dra_cel import CompileError, EvaluationError, PreparedDevice, Selector, device_selectors, prepare
from rounds import each_of

KIT = kit("cel/selectors")
TABLE = [case for case in document("cel/cases.json")["cases"] if case["source"] != "project"]


@cache
def device(text: str, lists: bool) -> PreparedDevice:
    raw = json.loads(text)
    driver = raw.pop("driver")
    return prepare(driver, convert(Device, raw), list_attributes=lists)


def outcome(case: dict[str, Any]) -> dict[str, Any]:
    """What we say about a case, in the corpus' terms."""
    environment = device_selectors(
        new=case["env"] == "NewExpressions",
        consumable_capacity=case["consumableCapacity"],
        list_attributes=case["listTypeAttributes"],
    )
    try:
        selector = Selector(case["expression"], environment)
    except CompileError as error:
        return {"kind": "compile_error", "error_kind": error.kind}
    raw = case["device"]
    if isinstance(raw, str):
        raw = document("cel/cases.json")["devices"][raw]
    target = device(json.dumps(raw), case["listTypeAttributes"])
    verdict, cost = selector.explain(target, case.get("costLimit"))
    said: dict[str, Any] = {
        "max_cost": selector.max_cost,
        "output_type": str(selector.output_type),
        "actual_cost": cost,
    }
    if isinstance(verdict, EvaluationError):
        return said | {"kind": "runtime_error", "error_kind": verdict.kind}
    if "costLimit" not in case:
        # The quick way must say the same.
        assert selector.matches(target) is verdict
    return said | {"kind": "match", "match": verdict}


def test_the_kit_is_complete() -> None:
    assert len(KIT) >= 1028
    assert len({case["name"] for case in KIT}) == len(KIT)


@each_of(KIT + TABLE, lambda case: str(case["name"]))
def test_agrees_with_the_reference(case: dict[str, Any]) -> None:
    keys = ["kind", "match", "error_kind", "max_cost", "output_type"]
    if not case["expect"].get("actual_cost_unstable"):
        keys.append("actual_cost")
    wanted = {key: case["expect"][key] for key in keys if case["expect"].get(key) is not None}
    said = outcome(case)
    assert {key: said.get(key) for key in wanted} == wanted
