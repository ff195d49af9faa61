"""When a pod has to leave its devices, and why (TE-01 to TE-04)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from random import Random
from typing import Any

import pytest
from dra_api.core import Pod
from dra_api.references import claims_of_pod
from dra_api.resource import DeviceTaintRule, ResourceClaim, ResourceSlice
from dra_ledger.taints import rule_selects as selects
from dra_operator.allocator import DeviceId
from dra_operator.eviction import DeviceTaints, EvictingRules, claim_eviction, evicts, may_evict, pod_eviction
from objects import DRIVER, POOL, claim, owner, pod, result, rule, slice_of, taint

START = datetime(2026, 1, 1, tzinfo=UTC)
LATER = START + timedelta(hours=1)


def taints_of(*slices: ResourceSlice) -> DeviceTaints:
    taints = DeviceTaints()
    for slice_ in slices:
        taints.replace(None, slice_)
    return taints


def due_in(
    results: Sequence[Any], slices: Iterable[ResourceSlice] = (), rules: Iterable[DeviceTaintRule] = ()
) -> float | None:
    """Seconds after the taints were added; None for never."""
    allocation = claim(*results).status.allocation
    assert allocation is not None
    eviction = claim_eviction(allocation, taints_of(*slices), EvictingRules(rules), LATER)
    return (eviction.due - START).total_seconds() if eviction is not None else None


def tolerating(seconds: int | None = None, key: str = "broken", effect: str = "NoExecute", **more: str) -> Any:
    limit = {} if seconds is None else {"tolerationSeconds": seconds}
    return {"key": key, "operator": "Exists", "effect": effect, **limit, **more}


BROKEN = slice_of({"dev-0": [taint()], "dev-1": []})
TABLE: list[tuple[str, list[Any], list[ResourceSlice], float | None]] = [
    ("no taint", [result("dev-1")], [BROKEN], None),
    ("a taint", [result()], [BROKEN], 0),
    ("one of two devices", [result("dev-1"), result("dev-0")], [BROKEN], 0),
    ("with admin access", [result(adminAccess=True)], [BROKEN], 0),
    ("effect NoSchedule", [result()], [slice_of({"dev-0": [taint(effect="NoSchedule")]})], None),
    ("effect None", [result()], [slice_of({"dev-0": [taint(effect="None")]})], None),
    ("an effect that is not known", [result()], [slice_of({"dev-0": [taint(effect="Explode")]})], None),
    ("tolerated for ever", [result("dev-0", tolerating())], [BROKEN], None),
    ("tolerated for a time", [result("dev-0", tolerating(300))], [BROKEN], 300),
    ("the shortest time counts", [result("dev-0", tolerating(300), tolerating(60))], [BROKEN], 60),
    ("for ever beats a time", [result("dev-0", tolerating(300), tolerating())], [BROKEN], None),
    ("a time below zero is none", [result("dev-0", tolerating(-5))], [BROKEN], 0),
    ("another key", [result("dev-0", tolerating(key="hot"))], [BROKEN], 0),
    ("an empty key is every key", [result("dev-0", tolerating(key=""))], [BROKEN], None),
    ("effect NoSchedule is tolerated", [result("dev-0", tolerating(effect="NoSchedule"))], [BROKEN], 0),
    ("an empty effect is not enough", [result("dev-0", tolerating(effect=""))], [BROKEN], 0),
    ("an equal value", [result("dev-0", tolerating(value="", operator="Equal"))], [BROKEN], None),
    ("another value", [result("dev-0", tolerating(value="x", operator="Equal"))], [BROKEN], 0),
    ("one of two taints tolerated", [result("dev-0", tolerating())], [slice_of({"dev-0": [taint(), taint("hot")]})], 0),
    (
        "the earliest of two taints",
        [result("dev-0", tolerating(50), tolerating(20, key="hot"))],
        [slice_of({"dev-0": [taint(), taint("hot", added="2026-01-01T00:00:10Z")]})],
        30,
    ),
    ("the earliest of two devices", [result("dev-1", tolerating(60)), result("dev-0", tolerating(30))],
     [slice_of({"dev-0": [taint()], "dev-1": [taint()]})], 30),
    ("a device that is no longer published", [result("dev-9")], [BROKEN], None),
    ("another driver's device of that name", [result(driver="other.example.com")], [BROKEN], None),
    ("an older generation", [result()], [BROKEN, slice_of({"dev-0": []}, generation=2, name="new")], None),
    ("a newer generation elsewhere", [result()], [BROKEN, slice_of({}, generation=2, name="new")], None),
    ("an incomplete pool", [result()], [slice_of({"dev-0": [taint()]}, generation=7)], 0),
    ("added without a time", [result()], [slice_of({"dev-0": [taint(added=None)]})], 3600),
    ("added at a time that cannot be read", [result()], [slice_of({"dev-0": [taint(added="yesterday")]})], 3600),
    ("added at a time without a zone", [result()], [slice_of({"dev-0": [taint(added="2026-01-01T00:00:00")]})], 3600),
    ("no time, and tolerated", [result("dev-0", tolerating(60))], [slice_of({"dev-0": [taint(added=None)]})], 3660),
]  # fmt: skip


@pytest.mark.rule("TE-01", "TE-02", "TE-03")
@pytest.mark.parametrize(("results", "slices", "seconds"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_when_the_pods_of_a_claim_are_due(
    results: list[Any], slices: list[ResourceSlice], seconds: float | None
) -> None:
    assert due_in(results, slices) == seconds


def test_seconds_beyond_the_calendar_are_never_over() -> None:
    seconds = due_in([result("dev-0", tolerating(2**62))], [BROKEN])
    assert seconds is not None
    assert seconds > timedelta(days=365 * 7000).total_seconds()


@pytest.mark.rule("TE-02")
@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        (None, False),
        ({}, True),
        ({"driver": DRIVER}, True),
        ({"driver": "other.example.com"}, False),
        ({"pool": POOL}, True),
        ({"pool": "node-b"}, False),
        ({"device": "dev-0"}, True),
        ({"device": "dev-1"}, False),
        ({"driver": DRIVER, "pool": POOL, "device": "dev-0"}, True),
        ({"driver": DRIVER, "pool": POOL, "device": "dev-1"}, False),
    ],
    ids=str,
)
def test_a_rule_evicts_from_the_devices_that_it_selects_published_or_not(
    selector: dict[str, str] | None, selected: bool
) -> None:
    """PRJ-010: without a selector it selects nothing."""
    assert selects(rule(selector=selector), DeviceId(DRIVER, POOL, "dev-0")) == selected
    assert due_in([result()], rules=[rule(selector=selector)]) == (0 if selected else None)


@pytest.mark.rule("TE-02")
@pytest.mark.parametrize("effect", ["NoSchedule", "None", "Explode"])
def test_a_rule_with_another_effect_evicts_no_pod(effect: str) -> None:
    assert not evicts(rule(selector={}, effect=effect))
    assert due_in([result()], rules=[rule(selector={}, effect=effect)]) is None


@pytest.mark.rule("TE-03")
def test_causes_are_listed_once_rules_first_by_name_then_devices() -> None:
    slices = [slice_of({"dev-1": [taint("b"), taint("a")], "dev-0": [taint("c", "NoSchedule"), taint("d")]})]
    allocation = claim(result("dev-1"), result("dev-0"), result("dev-1")).status.allocation
    assert allocation is not None
    eviction = claim_eviction(
        allocation,
        taints_of(*slices),
        EvictingRules([rule("z", {}), rule("a", {}), rule("idle", {}, effect="None")]),
        LATER,
    )
    assert eviction is not None
    assert str(eviction).split("; ") == [
        "DeviceTaintRule a has taint maintenance:NoExecute",
        "DeviceTaintRule z has taint maintenance:NoExecute",
        "device gpu.example.com/node-a/dev-0 has taint d:NoExecute",
        "device gpu.example.com/node-a/dev-1 has taint b:NoExecute",
        "device gpu.example.com/node-a/dev-1 has taint a:NoExecute",
    ]


def test_rules_are_found_by_what_they_select() -> None:
    """As a look at each of them finds them, whatever came and went before."""
    random = Random(1)
    known: dict[str, DeviceTaintRule] = {}
    found = EvictingRules()
    devices = [DeviceId(*names) for names in product(("a", "b"), ("p", "q"), ("0", "1"))]
    for _ in range(300):
        chosen = random.choice(devices)
        selector = {name: getattr(chosen, name) for name in ("driver", "pool", "device") if random.random() < 0.5}
        new = rule(f"rule-{random.randrange(12)}", selector, effect=random.choice(["NoExecute"] * 4 + ["None"]))
        known[new.metadata.name] = new
        found.put(new)
        if random.random() < 0.4:
            gone = f"rule-{random.randrange(12)}"
            known.pop(gone, None)
            found.remove(gone)
        assert {it.metadata.name for it in found} == {name for name, it in known.items() if evicts(it)}
        for device in devices:
            its = {it.metadata.name for it in known.values() if evicts(it) and selects(it, device)}
            assert {it.metadata.name for it in found.selecting(device)} == its


def test_a_thousand_rules_for_other_devices_cost_nothing() -> None:
    """A pod of 175 claims with 32 devices each took 4.7 s of the operator's event loop beside so many rules."""
    rules = EvictingRules(rule(f"rule-{number}", {"device": f"other-{number}"}) for number in range(1_000))
    allocation = claim(*(result(f"dev-{number}") for number in range(32))).status.allocation
    assert allocation is not None
    calls = 0

    def counting(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(counting)
    try:
        is_tainted = may_evict(allocation, DeviceTaints(), rules)
    finally:
        sys.setprofile(None)
    assert not is_tainted
    assert calls < 32 * 50


def test_a_cause_names_the_value_of_its_taint() -> None:
    eviction = pod_due(pod("claim"), claim(result()), slices=[slice_of({"dev-0": [taint(value="ecc")]})])
    assert eviction == (0, "device gpu.example.com/node-a/dev-0 has taint broken=ecc:NoExecute")


def pod_due(pod: Pod, *claims: ResourceClaim, slices: Iterable[ResourceSlice] = (BROKEN,)) -> tuple[float, str] | None:
    known = {claim.metadata.name: claim for claim in claims}
    uses = [(use, known.get(use.name)) for use in claims_of_pod(pod)]
    eviction = pod_eviction(pod, uses, taints_of(*slices), EvictingRules(), LATER)
    return ((eviction.due - START).total_seconds(), str(eviction)) if eviction is not None else None


EXTENDED = pod(extendedResourceClaimStatus={"resourceClaimName": "claim"})
PODS: list[tuple[str, Pod, list[ResourceClaim], bool]] = [
    ("reserved for it", pod("claim"), [claim(result())], True),
    ("without a node", pod("claim", node=""), [claim(result())], False),
    ("a claim that does not exist", pod("claim"), [], False),
    ("a claim that is not allocated", pod("claim"), [claim()], False),
    ("reserved for another pod", pod("claim"), [claim(result(), users=("other",))], False),
    ("reserved for its predecessor", pod("claim", uid="uid-new"), [claim(result())], False),
    ("its second claim", pod("fine", "claim"), [claim(result("dev-1"), name="fine"), claim(result())], True),
    ("its claim for extended resources (PRJ-011)", EXTENDED, [claim(result(), ownerReferences=[owner("pod")])],
     True),
    ("another pod's claim for those", EXTENDED, [claim(result(), ownerReferences=[owner("other")])], False),
]  # fmt: skip


@pytest.mark.rule("TE-01", "TE-04")
@pytest.mark.parametrize(("user", "claims", "goes"), [row[1:] for row in PODS], ids=[row[0] for row in PODS])
def test_which_pods_of_a_tainted_claim_have_to_go(user: Pod, claims: list[ResourceClaim], goes: bool) -> None:
    assert (pod_due(user, *claims) is not None) == goes


@pytest.mark.rule("TE-04")
def test_the_earliest_claim_of_a_pod_counts_and_causes_are_those_of_all() -> None:
    slices = [slice_of({"dev-0": [taint()], "dev-1": [taint("hot")]})]
    late, soon = (
        claim(result("dev-0", tolerating(60)), name="late"),
        claim(result("dev-1", tolerating(30, "hot")), name="soon"),
    )
    eviction = pod_due(pod("late", "soon"), late, soon, slices=slices)
    assert eviction is not None
    assert eviction[0] == 30
    assert [cause.split()[1][-5:] for cause in eviction[1].split("; ")] == ["dev-0", "dev-1"]
