"""What the ledger says follows from the objects that it has, in whatever order they came.

Drivers of these clusters publish all that they should not: slices of one generation that announce different numbers of
slices, devices and counter sets of one name, generations beside each other, draws from counters that do not exist.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from random import Random
from typing import Any

import pytest
from dra_api.releases import BUILT
from dra_ledger import Ledger
from dra_ledger.ledger import BY
from rounds import each_of, fewer

Json = dict[str, Any]
GROUP = "resource.k8s.io/v1"
NODES = ("n1", "n2")
DEVICES = ("d0", "d1", "d2")
SETS = ("s", "t")


class Chaos:
    """A random cluster: what it ends with, and what its objects may have been before."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.release = self.random.choice(list(BUILT))
        makers: dict[str, Callable[[str], Json]] = {
            **{f"slice-{number}": self._slice for number in range(self.random.randint(2, 6))},
            **{f"claim-{number}": self._claim for number in range(self.random.randint(1, 4))},
            **{f"pod-{number}": self._pod for number in range(self.random.randint(0, 3))},
            **{f"rule-{number}": self._rule for number in range(self.random.randint(0, 2))},
            **dict.fromkeys(NODES[: self.random.randint(0, 2)], self._node),
            **{f"class-{number}": self._class for number in range(2)},
        }
        self.objects = [make(name) for name, make in makers.items()]
        self.earlier = [
            make(name + self.random.choice(("", "", "-gone")))
            for name, make in makers.items()
            if self.random.random() < 0.5
        ]
        """Versions that others replace, or objects that are deleted."""

    def _some(self, most: int, *values: Any) -> list[Any]:
        return self.random.sample(values, self.random.randint(0, min(most, len(values))))

    def _slice(self, name: str) -> Json:
        pick = self.random.choice
        pool = {"name": pick("ppq"), "generation": pick((1, 2, 2)), "resourceSliceCount": pick((1, 2, 2, 3))}
        selector = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]}
        broken = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Around"}]}]}
        places: list[Json] = [{"nodeName": "n1"}, {"nodeName": "n1"}, {"nodeName": "n2"}, {"allNodes": True}]
        place = pick([*places, {"nodeSelector": selector}, {"nodeSelector": broken}, {"perDeviceNodeSelection": True}])
        spec: Json = {"driver": "drv", "pool": pool, **place}
        if self.random.random() < 0.4:
            sets = [{"name": set_, "counters": self._amounts()} for set_ in self._some(2, *SETS)]
            spec["sharedCounters"] = sets or [{"name": "s", "counters": self._amounts()}]
        else:
            names = [*self._some(3, *DEVICES), *self._some(1, "d0")]
            spec["devices"] = [self._device(device, is_placed="perDeviceNodeSelection" in place) for device in names]
        return _object("ResourceSlice", name, spec=spec)

    def _amounts(self) -> Json:
        return {name: {"value": str(self.random.randint(1, 8))} for name in ("mem", *self._some(1, "slots"))}

    def _device(self, name: str, *, is_placed: bool) -> Json:
        made: Json = {"name": name, "capacity": {"mem": {"value": "8"}}}
        if self.random.random() < 0.7:
            made["consumesCounters"] = [
                {"counterSet": set_, "counters": self._amounts(), **self._groups()} for set_ in self._some(2, *SETS)
            ]
        if self.random.random() < 0.3:
            made["allowMultipleAllocations"] = True
        if self.random.random() < 0.2:
            made["taints"] = [{"key": "bad", "effect": self.random.choice(("NoSchedule", "None"))}]
        return made | ({"nodeName": self.random.choice(NODES)} if is_placed else {})

    def _groups(self) -> Json:
        groups = self._some(2, "x", "y")
        return {"compatibilityGroups": groups} if groups else {}

    def _claim(self, name: str) -> Json:
        results = [self._result() for _ in range(self.random.randint(0, 3))]
        users = [{"resource": "pods", "name": pod, "uid": pod} for pod in self._some(2, "pod-0", "pod-1")]
        users += self._some(1, {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "g"})
        status = {"allocation": {"devices": {"results": results}}, "reservedFor": users} if results else {}
        return _object("ResourceClaim", name, namespace="ml", status=status)

    def _result(self) -> Json:
        pool, device = self.random.choice("ppq"), self.random.choice((*DEVICES, "lost"))
        made: Json = {"request": "r", "driver": "drv", "pool": pool, "device": device}
        if self.random.random() < 0.2:
            made["adminAccess"] = True
        elif self.random.random() < 0.4:
            share = f"00000000-0000-4000-8000-{self.random.randrange(10):012}"
            made |= {"shareID": share, "consumedCapacity": {"mem": str(self.random.randint(1, 3))}}
        return made

    def _pod(self, name: str) -> Json:
        claims = [
            {"name": claim, "resourceClaimName": claim} for claim in self._some(2, "claim-0", "claim-1", "claim-2")
        ]
        told = [
            {"name": f"claim:{it['name']}", "resources": [{"resourceID": "d0", "health": health}]}
            for it in claims
            for health in self._some(1, "Healthy", "Unhealthy", "Unknown")
        ]
        group = {"schedulingGroup": {"podGroupName": "g"}} if self.random.random() < 0.6 else {}
        status = {"phase": "Running", "containerStatuses": [{"allocatedResourcesStatus": told}]}
        return _object("Pod", name, "v1", namespace="ml", spec={"resourceClaims": claims, **group}, status=status)

    def _rule(self, name: str) -> Json:
        selector = {"driver": "drv", **self.random.choice(({}, {"pool": "p"}, {"device": "d1"}))}
        taint = {"key": name, "effect": self.random.choice(("NoSchedule", "None"))}
        return _object("DeviceTaintRule", name, spec={"deviceSelector": selector, "taint": taint})

    def _node(self, name: str) -> Json:
        return _object("Node", name, "v1", labels={"zone": "a"} if self.random.random() < 0.7 else {})

    def _class(self, name: str) -> Json:
        text = self.random.choice(
            ("true", "device.allowMultipleAllocations", "device.capacity['drv'].none.isLessThan('1')")
        )
        return _object("DeviceClass", name, spec={"selectors": [{"cel": {"expression": text}}]})

    # --- how they come ---

    def told(self, seed: int) -> Ledger:
        """Return a ledger that was told all of it in some order, after some earlier versions, and asked meanwhile.

        What a claim drew stays drawn when its device changes: so earlier slices never meet devices in use.
        """
        random, ledger = Random(seed), Ledger(self.release)
        past = random.choice(("ResourceSlice", "ResourceClaim"))
        earlier = [it for it in self.earlier if it["kind"] != past]
        random.shuffle(earlier)
        gone = [it for it in earlier if not any(_is_same(it, other) for other in self.objects)]
        known = random.sample(self.objects, k=len(self.objects))
        if past == "ResourceClaim":  # claims hold nothing while slices change
            known.sort(key=lambda it: it["kind"] == "ResourceClaim")
        for step in (*earlier, *({"type": "DELETED", "object": it} for it in gone), *known):
            ledger.feed(step)
            if random.random() < 0.3:
                answers(ledger)
        return ledger


def _is_same(one: Json, other: Json) -> bool:
    return (one["kind"], one["metadata"]["name"]) == (other["kind"], other["metadata"]["name"])


def _object(
    kind: str, name: str, version: str = GROUP, *, namespace: str = "", labels: Json | None = None, **parts: Any
) -> Json:
    meta = {"name": name, **({"namespace": namespace} if namespace else {}), "labels": labels or {}}
    return {"apiVersion": version, "kind": kind, "metadata": meta, **parts}


def answers(ledger: Ledger) -> Json:
    """All that it says."""
    return {
        "devices": ledger.devices(),
        "holders": list(ledger.holders()),
        "pools": ledger.pools(),
        "counters": ledger.counters(),
        "draws": ledger.draws(),
        **{by: ledger.tally(by) for by in BY},
    }


@each_of(range(fewer(180)))
def test_the_answer_follows_from_the_objects_alone(seed: int) -> None:
    chaos = Chaos(seed)
    at_once = Ledger.of(chaos.objects, release=chaos.release)
    ledgers = [chaos.told(order) for order in range(3)]
    _agree(at_once, ledgers)
    gone = chaos.random.sample(chaos.objects, k=len(chaos.objects) // 3)
    for number, ledger in enumerate((at_once, *ledgers)):
        for it in Random(number).sample(gone, k=len(gone)):
            ledger.remove(it)
    _agree(at_once, ledgers)


def _agree(one: Ledger, others: list[Ledger]) -> None:
    expected = answers(one)
    for found in map(answers, others):
        for question, answer in expected.items():
            assert found[question] == answer, question


def part(name: str, count: int, generation: int = 1, node: str = "n1", **spec: Any) -> Json:
    pool = {"name": "p", "generation": generation, "resourceSliceCount": count}
    return _object("ResourceSlice", name, spec={"driver": "drv", "pool": pool, "nodeName": node, **spec})


def drawing(amount: int) -> list[Json]:
    return [{"name": "d", "consumesCounters": [{"counterSet": "s", "counters": {"mem": {"value": str(amount)}}}]}]


COUNTERS = [{"name": "s", "counters": {"mem": {"value": "8"}}}]
RESULT = {"request": "r", "driver": "drv", "pool": "p", "device": "d"}
CLAIM = _object("ResourceClaim", "c", namespace="ml", status={"allocation": {"devices": {"results": [RESULT]}}})


@pytest.mark.parametrize(
    ("objects", "said"),
    [
        ([part("a", 2), part("b", 3)], ["usable", []]),
        ([part("a", 3), part("b", 2)], ["incomplete", []]),
        (
            [
                part("a", 3, node="n2", sharedCounters=COUNTERS),
                part("b", 3, node="n2", devices=drawing(5)),
                part("c", 3, node="n3", devices=drawing(2)),
                CLAIM,
            ],
            ["invalid", ["5"]],
        ),
        (
            [
                part("old", 2, sharedCounters=COUNTERS),
                part("older", 2, devices=drawing(6)),
                part("new", 2, generation=2, sharedCounters=COUNTERS),
                part("newer", 2, generation=2, devices=drawing(1)),
                CLAIM,
            ],
            ["usable", ["6"]],
        ),
    ],
    ids=["2 slices or 3", "3 slices or 2", "one name twice", "an old generation drew more"],
)
def test_slices_that_contradict_each_other_say_the_same_in_any_order(objects: list[Json], said: list[Any]) -> None:
    for order in permutations(objects):
        ledger = Ledger.of(list(order))
        assert [ledger.pools()[0].status, [counter.drawn for counter in ledger.counters()]] == said
