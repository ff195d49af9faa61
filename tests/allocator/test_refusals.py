"""Why claims do not fit, as values and as texts."""

from __future__ import annotations

from typing import Any

import pytest
from allocator_lab import Lab, claim, device, held, lab, pool, request
from dra_operator.allocator import Features, NodeFailure, Refusal, Refused, Rule, summarize

A = 'device.attributes["drv"].model == "A"'
TAINT = {"taints": [{"key": "bad", "effect": "NoSchedule"}]}
MULTI = {"allowMultipleAllocations": True}
EIGHT = [device(f"a{i}", model="A", root=i // 2, extra=TAINT if i in (4, 5) else {}) for i in range(6)]
EIGHT += [device(f"b{i}", model="B", root=9) for i in range(2)]
THREE_USED = held("drv/p/a0", "drv/p/a1", "drv/p/a2")


def root(*requests: str) -> dict[str, Any]:
    return {"matchAttribute": "drv/root", "requests": list(requests)}


REFUSALS: dict[str, tuple[Lab, Rule, str]] = {
    "counts of each check": (
        lab(pool(*EIGHT), [claim(request("r", A, count=4))], usage=THREE_USED),
        Rule.IN_USE,
        "claim default/c, request r: 8 devices: 6 match, 3 in use, 2 tainted; needs 4",
    ),
    "the best value of a constraint": (
        lab(pool(*EIGHT[:4]), [claim(request("r", A, count=4), constraints=[root()])]),
        Rule.CONSTRAINT,
        "claim default/c, request r: 4 devices: 4 match; needs 4 with equal drv/root, best value has 2",
    ),
    "a constraint over several requests": (
        lab(pool(*EIGHT[:4]), [claim(request("r", count=2), request("q"), constraints=[root("r", "q")])]),
        Rule.CONSTRAINT,
        "claim default/c, request r: 4 devices: 4 match; needs 3 with equal drv/root, best value has 2",
    ),
    "too few distinct values": (
        lab(pool(*EIGHT[:4]), [claim(request("r", count=3), constraints=[{"distinctAttribute": "drv/root"}])]),
        Rule.CONSTRAINT,
        "claim default/c, request r: 4 devices: 4 match; needs 3 with distinct drv/root, there are 2 values",
    ),
    "nothing published": (
        lab([], [claim(request("r"))]),
        Rule.NO_DEVICES,
        "claim default/c, request r: no devices; needs 1",
    ),
    "no device matches": (
        lab(pool(device("b", model="B")), [claim(request("r", A))]),
        Rule.SELECTOR,
        "claim default/c, request r: 1 devices: 0 match; needs 1",
    ),
    "taints": (
        lab(pool(device("a", extra=TAINT)), [claim(request("r"))]),
        Rule.TAINTS,
        "claim default/c, request r: 1 devices: 1 match, 1 tainted; needs 1",
    ),
    "capacity": (
        lab(
            pool(device("a", capacity={"mem": 1}, extra=MULTI)),
            [claim(request("r", capacity={"requests": {"mem": "2"}}))],
        ),
        Rule.CAPACITY,
        "claim default/c, request r: 1 devices: 1 match, 1 without enough capacity; needs 1",
    ),
    "counters": (
        lab(pool(device("a", consumes={"g": {"s": 2}}), counters={"g": {"s": 1}}), [claim(request("r"))]),
        Rule.COUNTERS,
        "claim default/c, request r: 1 devices: 1 match, 1 without enough shared counters; needs 1",
    ),
    "binding conditions that are off": (
        lab(
            pool(device("a", extra={"bindingConditions": ["x"], "bindingFailureConditions": ["y"]})),
            [claim(request("r"))],
            features=Features(binding_conditions=False),
        ),
        Rule.BINDING_CONDITIONS,
        "claim default/c, request r: 1 devices: 1 match, 1 need binding conditions, which are off; needs 1",
    ),
    "All with one device in use": (
        lab(pool(*EIGHT), [claim(request("r", allocationMode="All"))], usage=held("drv/p/b0")),
        Rule.IN_USE,
        "claim default/c, request r: 8 devices: 8 match, 1 in use, 2 tainted; needs 8",
    ),
    "requests that only fit alone": (
        lab(pool(device("a"), device("b")), [claim(request("r", count=2), request("q"))]),
        Rule.COMBINATION,
        "claim default/c, request q: 2 devices: 2 match; needs 3 for all 2 requests together, 2 are suitable",
    ),
    "partitions that only fit alone": (
        lab(
            pool(*(device(d, consumes={"g": {"slots": 2}}) for d in "ab"), counters={"g": {"slots": 3}}),
            [claim(request("r"), request("q"))],
        ),
        Rule.COMBINATION,
        "claim default/c, request q: 2 devices: 2 match; needs 2 for all 2 requests together; "
        "shared counters left: slots 3",
    ),
}


@pytest.mark.parametrize(("made", "rule", "line"), REFUSALS.values(), ids=REFUSALS.keys())
def test_names(made: Lab, rule: Rule, line: str) -> None:
    outcome = made.decide()
    assert isinstance(outcome, Refused)
    assert outcome.refusal.line() == line
    assert outcome.refusal.rule is rule
    assert outcome.refusal.node == "n1"


def test_invalid_pools_are_named() -> None:
    outcome = lab(pool(device("a"), device("a")), [claim(request("r"))]).decide()
    assert isinstance(outcome, NodeFailure)
    assert outcome.refusal.rule is Rule.INVALID_POOL
    assert "pool drv/p is currently invalid" in outcome.refusal.line()


def test_the_full_text_has_every_count_and_the_nearest_fix() -> None:
    made = lab(pool(device("a", extra=TAINT), device("b")), [claim(request("r", count=2))])
    outcome = made.decide()
    assert isinstance(outcome, Refused)
    text = outcome.refusal.explain()
    for part in ("node n1", "default/c, request r", "needs 2 of 2 devices", "1 tainted", "tolerate the taint bad"):
        assert part in text


def test_many_nodes_in_one_line() -> None:
    def refusal(node: str, rule: Rule, devices: int) -> Refusal:
        return Refusal(node, rule, "claim default/c", "r", needs=4, devices=devices, matching=devices)

    refusals = [refusal("n1", Rule.SELECTOR, 2), refusal("n2", Rule.SELECTOR, 2), refusal("n3", Rule.SELECTOR, 1)]
    assert summarize(refusals, 5) == (
        "0/5 nodes are available: 2 claim default/c, request r: 2 devices: 2 match; needs 4; "
        "1 claim default/c, request r: 1 devices: 1 match; needs 4"
    )
    assert summarize(refusals, 5, at_most=1).endswith("; 1 for other reasons")
    assert summarize([], 0) == "0/0 nodes are available"
