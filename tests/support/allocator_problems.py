"""Small random problems that mix all features of the allocator, in the shape of the corpora's cases.

``make_case(random)`` draws everything from the given source: a seeded one for long campaigns, Hypothesis'
own for tests that shrink. Most values are small and equal to one another, so that requests compete.

``check`` compares the allocator with the oracle; ``python -m campaign allocator`` does so for long.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any, Final
from unittest.mock import patch

from allocator_lab import Lab, case_lab, outcome_kind
from allocator_oracle.pools import OutOfSteps, Problem
from allocator_oracle.search import SHARE, Answer, answer
from dra_api.codec import convert, to_dict
from dra_api.core import Node
from dra_api.releases import Release
from dra_api.resource import AllocationResult, DeviceTaintRule
from dra_api.values import Quantity
from dra_operator.allocator import Allocated, Semantics, search
from dra_operator.allocator import Outcome as Decision
from history_kit.game import Game, Outcome

Json = dict[str, Any]
GATES = (
    "DRAAdminAccess",
    "DRAPrioritizedList",
    "DRAPartitionableDevices",
    "DRADeviceTaints",
    "DRAConsumableCapacity",
    "DRADeviceBindingConditions",
    "DRAResourceClaimDeviceStatus",
)
DRIVERS = ("drv", "other")
SELECTORS = (
    'device.driver == "drv"',
    'device.attributes["drv"].model == "A"',
    'device.attributes["drv"].model != "A"',
    'device.attributes["drv"].k < 2',
    'device.attributes["drv"].?u.orValue(0) < 2',
    "device.allowMultipleAllocations == true",
)
FAILING = (
    'device.attributes["drv"].u == 1',  # fails where u is missing
    'device.capacity["drv"].mem.isGreaterThan(quantity("1"))',  # fails where mem is missing
    "device.nothing",  # does not compile
)


class Maker:
    """One problem in the making."""

    POOLS = ("pq", 3)
    """Names of each driver's pools, and how many pools there are at most."""
    ALL = 8
    """Of a hundred requests so many ask for all devices."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.devices_left = random.randint(3, 10)
        self.nodes = [f"n{number}" for number in range(1, random.randint(1, 3) + 1)]

    def chance(self, percent: int) -> bool:
        return self.random.randrange(100) < percent

    def pick(self, options: Sequence[Any]) -> Any:
        return options[self.random.randrange(len(options))]

    def some(self, options: Sequence[Any], most: int) -> list[Any]:
        """Up to so many different options, in their order."""
        wanted = self.random.randint(0, min(most, len(options)))
        places = sorted(self.random.sample(range(len(options)), wanted))
        return [options[place] for place in places]

    # --- what is published ---

    def node(self, name: str) -> Json:
        labels = {"zone": self.pick("ab")}
        if self.chance(70):
            labels["size"] = str(self.random.randint(1, 3))
        return {"metadata": {"name": name, "labels": labels}}

    def term(self) -> Json:
        if self.chance(20):
            fields = {"key": "metadata.name", "operator": self.pick(("In", "NotIn")), "values": [self.pick(self.nodes)]}
            return {"matchFields": [fields]}
        requirement = self.pick(
            (
                {"key": "zone", "operator": "In", "values": ["a"]},
                {"key": "zone", "operator": "In", "values": ["a", "b"]},
                {"key": "zone", "operator": "NotIn", "values": ["b"]},
                {"key": "size", "operator": "Exists"},
                {"key": "size", "operator": "DoesNotExist"},
                {"key": "size", "operator": "Gt", "values": ["1"]},
                {"key": "size", "operator": "Lt", "values": ["3"]},
            )
        )
        return {"matchExpressions": [requirement]}

    def selector(self, terms: int) -> Json:
        return {"nodeSelectorTerms": [self.term() for _ in range(terms)]}

    def place(self, *, per_device: bool) -> Json:
        """The node fields of a slice or of a device."""
        kind = self.random.randrange(100)
        if kind < 25:
            return {"nodeName": self.pick(self.nodes)}
        if kind < 80:
            return {"allNodes": True}
        if not per_device and kind < 81:
            return {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Is"}]}]}}
        return {"nodeSelector": self.selector(2 if self.chance(15) else 1)}

    def capacity(self) -> Json:
        made: Json = {"value": str(self.random.randint(2, 8))}
        policies: tuple[Json, ...] = (
            {"default": "1"},
            {"default": "2", "validValues": ["1", "2", "4"]},
            {"default": "1", "validValues": ["1", "2", "3"]},
            {"default": "2", "validRange": {"min": "1", "max": "4", "step": "2"}},
            {"default": "2", "validRange": {"min": "2", "max": "6"}},
            {"validRange": {"max": "2"}},
        )
        if self.chance(40):
            made["requestPolicy"] = self.pick(policies)
        return made

    def attributes(self, driver: str) -> Json:
        made: Json = {
            "drv/model": {"string": self.pick("AB")},
            "drv/k": {"int": self.random.randint(0, 2)},
        }
        if driver == "drv" and self.chance(50):
            made = {name.removeprefix("drv/"): value for name, value in made.items()}
        if self.chance(60):
            made["drv/u"] = {"int": self.random.randint(0, 2)}
        if self.chance(50):
            made["drv/x"] = self.pick(
                ({"string": "s"}, {"string": "t"}, {"bool": True}, {"int": 1}, {"version": "1.0.0"})
            )
        if self.lists and self.chance(60):
            made["drv/x"] = {"strings": self.some(["s", "t", "v"], 2) or ["w"]}
        return made

    def device(self, name: str, driver: str, counters: Json | None, *, per_device: bool) -> Json:
        made: Json = {"name": name, "attributes": self.attributes(driver)}
        if self.chance(40):
            made["capacity"] = {"drv/mem": self.capacity()} | ({"drv/bw": self.capacity()} if self.chance(30) else {})
        if self.chance(30):
            made["allowMultipleAllocations"] = True
        if counters and self.chance(75):
            amounts = {key: {"value": str(self.random.randint(1, 3))} for key in self.some(("slots", "mem"), 2)}
            made["consumesCounters"] = [{"counterSet": "set", "counters": amounts or {"slots": {"value": "1"}}}]
            if self.chance(2):
                made["consumesCounters"][0]["counterSet"] = "unknown"
        if self.chance(15):
            made["taints"] = [{"key": "bad", "effect": self.pick(("NoSchedule", "NoExecute", "None"))}]
        if self.chance(8):
            made["bindingConditions"] = ["ready"]
            made["bindingFailureConditions"] = ["broken"]
        if self.chance(8):
            made["bindsToNode"] = True
        return made | (self.place(per_device=True) if per_device else {})

    def pool(self, driver: str, name: str) -> list[Json]:
        """A pool of one to three slices; now and then with an older slice, a missing one, or a name used twice."""
        counters = None
        if self.chance(30):
            values = {key: {"value": str(self.random.randint(2, 6))} for key in ("slots", "mem")}
            counters = {"name": "set", "counters": values}
        specs: list[Json] = []
        if counters:
            specs.append({"nodeName": self.pick(self.nodes), "sharedCounters": [counters]})
        number = 0
        same_place = self.place(per_device=False) if self.chance(60) else None
        for _ in range(self.random.randint(1, 2)):
            per_device = self.chance(20)
            devices = []
            for _ in range(self.random.randint(1, 5)):
                if self.devices_left > 0:
                    number -= self.chance(1)
                    devices.append(self.device(f"d{max(number, 0)}", driver, counters, per_device=per_device))
                    number += 1
                    self.devices_left -= 1
            place = {"perDeviceNodeSelection": True} if per_device else same_place or self.place(per_device=False)
            specs.append({**place, "devices": devices})
        count = len(specs) + (self.pick((-1, 1)) if self.chance(2) else 0)
        older = {**self.place(per_device=False), "devices": [{"name": "d0"}]} if self.chance(8) else None
        slices = [self.slice(driver, name, index, 2, count, spec) for index, spec in enumerate(specs)]
        return slices + ([self.slice(driver, name, 9, 1, 1, older)] if older else [])

    def slice(self, driver: str, name: str, index: int, generation: int, count: int, spec: Json) -> Json:
        about = {"name": name, "generation": generation, "resourceSliceCount": count}
        return {"metadata": {"name": f"{driver}-{name}-{index}"}, "spec": {"driver": driver, "pool": about, **spec}}

    # --- what is asked for ---

    def selectors(self) -> list[Json]:
        chosen = self.some(SELECTORS, 1)
        if self.chance(4):
            chosen.append(self.pick(FAILING))
        return [{"cel": {"expression": text}} for text in chosen]

    def config(self, requests: Sequence[str] = ()) -> Json:
        made: Json = {"opaque": {"driver": self.pick(DRIVERS), "parameters": {"n": self.random.randint(0, 9)}}}
        return made | ({"requests": list(requests)} if requests else {})

    def wanted(self, *, sub: bool) -> Json:
        made: Json = {"deviceClassName": self.pick(self.classes), "selectors": self.selectors()}
        if self.chance(self.ALL):
            made["allocationMode"] = "All"
        else:
            made |= {"allocationMode": "ExactCount", "count": self.pick((0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 3))}
        if self.chance(25):
            made["tolerations"] = [self.pick(({"operator": "Exists"}, {"key": "bad", "effect": "NoSchedule"}))]
        if self.chance(25) and "DRAConsumableCapacity" in self.gates:
            made["capacity"] = {"requests": {"drv/mem": str(self.random.randint(1, 4))}}
        if not sub and self.chance(8) and "DRAAdminAccess" in self.gates:
            made["adminAccess"] = True
        return made

    def claim(self, number: int) -> Json:
        requests: list[Json] = []
        names: list[str] = []
        for index in range(self.random.randint(1, 3)):
            name = f"r{index}"
            names.append(name)
            if self.chance(30) and "DRAPrioritizedList" in self.gates:
                subs = [{"name": f"s{place}", **self.wanted(sub=True)} for place in range(self.random.randint(1, 3))]
                names += [f"{name}/{sub['name']}" for sub in subs]
                requests.append({"name": name, "firstAvailable": subs})
            else:
                requests.append({"name": name, "exactly": self.wanted(sub=False)})
        constraints = []
        for _ in range(self.pick((0, 0, 0, 1, 1, 2))):
            kind = self.pick(("matchAttribute", "matchAttribute", "distinctAttribute"))
            attribute = self.pick(("drv/k", "drv/model", "drv/u", "drv/x"))
            constraints.append({kind: attribute, "requests": self.some(names, 3)})
        config = [self.config(self.some(names, 2)) for _ in range(self.pick((0, 0, 1, 2)))]
        devices = {"requests": requests, "constraints": constraints, "config": config}
        about = {"name": f"c{number}", "namespace": "ns", "uid": f"u{number}"}
        return {"metadata": about, "spec": {"devices": devices}}

    def state(self, slices: list[Json]) -> Json:
        ids = {
            (s["spec"]["driver"], s["spec"]["pool"]["name"], d["name"]): d
            for s in slices
            for d in s["spec"].get("devices") or []
        }
        taken: Json = {"allocatedDevices": [], "allocatedSharedDeviceIDs": [], "aggregatedCapacity": []}
        for (driver, pool, name), device in ids.items():
            entry = {"driver": driver, "pool": pool, "device": name}
            if not self.chance(15):
                continue
            # A driver may have published the device as shareable when it was allocated, and does so no longer.
            is_shared = device.get("allowMultipleAllocations") or self.chance(15)
            if is_shared and "DRAConsumableCapacity" in self.gates:
                taken["allocatedSharedDeviceIDs"].append({**entry, "shareID": f"share-{name}"})
                amounts = {key: str(self.random.randint(1, 3)) for key in device.get("capacity") or {}}
                if amounts:
                    taken["aggregatedCapacity"].append({**entry, "capacity": amounts})
            else:
                taken["allocatedDevices"].append(entry)
        return taken

    def case(self) -> Json:
        self.gates = list(GATES) if self.chance(75) else self.some(GATES, len(GATES))
        self.lists = self.chance(20)
        if self.lists:
            self.gates.append("DRAListTypeAttributes")
        elif self.chance(3):
            self.lists = True  # lists are published, but no selector can read them
        self.classes = ["any", "chosen"]
        classes = [
            {"metadata": {"name": "any"}, "spec": {"config": [self.config()] if self.chance(30) else []}},
            {"metadata": {"name": "chosen"}, "spec": {"selectors": self.selectors(), "config": [self.config()]}},
        ]
        pools, most = self.POOLS
        names = self.some([(driver, pool) for driver in DRIVERS for pool in pools], most) or [("drv", "p")]
        slices = [slice_ for driver, name in names for slice_ in self.pool(driver, name)]
        rules = []
        if self.chance(8):
            where = self.pick(({"driver": "drv"}, {"pool": "p"}, {"device": "d0"}, {"driver": "drv", "device": "d1"}))
            spec = {"deviceSelector": where, "taint": {"key": "bad", "effect": "NoSchedule"}}
            rules.append({"metadata": {"name": "rule"}, "spec": spec})
        claims = [self.claim(number) for number in range(self.pick((1, 1, 1, 2, 2, 3)))]
        return {
            "features": self.gates,
            "nodes": [self.node(name) for name in self.nodes],
            "classes": classes,
            "slices": slices,
            "rules": rules,
            "claims": claims,
            "allocatedState": self.state(slices),
        }


class LocalMaker(Maker):
    """Several nodes, most devices of one node each, and claims that often ask for all of them."""

    POOLS = ("pqrs", 8)
    ALL = 25

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.devices_left = random.randint(6, 16)
        self.nodes = [f"n{number}" for number in range(1, random.randint(2, 5) + 1)]

    def place(self, *, per_device: bool) -> Json:
        return {"nodeName": self.pick(self.nodes)} if self.chance(95) else super().place(per_device=per_device)


class CrowdedMaker(Maker):
    """Many requests of few kinds compete for one node's partitions, shares and equal values."""

    POOLS = ("p", 2)
    ALL = 3

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.devices_left = random.randint(3, 9)
        self.nodes = ["n1"]

    def place(self, *, per_device: bool) -> Json:
        return {"nodeName": "n1"}

    def attributes(self, driver: str) -> Json:
        return {"drv/model": {"string": "A"}, "drv/k": {"int": self.random.randint(0, 2)}, "drv/u": {"int": 0}}

    def capacity(self) -> Json:
        return super().capacity() if self.chance(20) else {"value": str(self.random.randint(4, 8))}

    def claim(self, number: int) -> Json:
        kinds = [self.wanted(sub=False) for _ in range(self.random.randint(1, 2))]
        for wanted in kinds:
            wanted["selectors"] = self.selectors()[:1] if self.chance(20) else []
        chosen = [self.pick(kinds) for _ in range(self.random.randint(2, 5))]
        requests = [{"name": f"r{index}", "exactly": wanted} for index, wanted in enumerate(chosen)]
        if self.chance(15):
            subs = [{"name": f"s{place}", **self.wanted(sub=True)} for place in range(2)]
            requests += [{"name": f"f{index}", "firstAvailable": subs} for index in range(2)]
        constraints = []
        if self.chance(40):
            names = [request["name"] for request in requests]
            kind = self.pick(("matchAttribute", "matchAttribute", "distinctAttribute"))
            size = self.pick((2, 2, 3, len(names)))
            constraints = [
                {kind: "drv/k", "requests": names[start : start + size]} for start in range(0, len(names), size)
            ]
        about = {"name": f"c{number}", "namespace": "ns", "uid": f"u{number}"}
        return {"metadata": about, "spec": {"devices": {"requests": requests, "constraints": constraints}}}


def make_case(random: Random, maker: type[Maker] = Maker) -> Json:
    return maker(random).case()


REFERENCE_MISTAKES = ("newest_generation_only", "admin_ignores_allocations", "errors_stay_on_node", "shares_stay_held")
LIMIT = 4_000
"""Steps of the oracle: what takes longer is left out, and must be rare."""


def laboratory(case: Json, semantics: Semantics | None = None, release: Release = Release.V1_36) -> Lab:
    """The allocator on a case, taint rules included."""
    lab = case_lab(case, semantics or Semantics(), release)
    for rule in case.get("rules") or []:
        lab.allocator.inventory.put_rule(convert(DeviceTaintRule, rule))
    return lab


def ask_oracle(
    case: Json, node: Json, release: Release = Release.V1_36, /, limit: int = LIMIT, **mistakes: bool
) -> Answer | None:
    """The oracle's answer, or None when it takes too long. Slices come to it in the order of their names."""
    ordered = {**case, "slices": sorted(case["slices"], key=lambda slice_: slice_["metadata"]["name"])}
    try:
        return answer(Problem.from_case(ordered, node, (1, int(release)), **mistakes), limit=limit)
    except OutOfSteps:
        return None


def comparable(results: Sequence[AllocationResult]) -> list[Json]:
    """Everything that a result says, without the ids of shares and the spelling of quantities."""
    made: list[Json] = [to_dict(result) for result in results]
    for result in made:
        for given in result.get("devices", {}).get("results", []):
            if "shareID" in given:
                given["shareID"] = SHARE
            if "consumedCapacity" in given:
                given["consumedCapacity"] = {k: Quantity(text).nanos for k, text in given["consumedCapacity"].items()}
    return made


def disagreement(outcome: Decision, expected: Answer) -> str | None:
    """How the allocator's outcome differs from the oracle's answer; None when it does not."""
    kind = outcome_kind(outcome)
    if kind != expected.outcome:
        reason = getattr(outcome, "error", "") or getattr(outcome, "refusal", "")
        return f"{kind} ({reason}) instead of {expected.outcome} {expected.error}{comparable(expected.results)}"
    if isinstance(outcome, Allocated) and comparable(outcome.results) != comparable(expected.results):
        return f"{comparable(outcome.results)}\ninstead of\n{comparable(expected.results)}"
    return None


def check(case: Json, *, as_reference: bool = False, release: Release = Release.V1_36) -> list[str]:
    """The kinds of answer on the nodes of a case. Raises AssertionError when one of them differs."""
    lab = laboratory(case, Semantics.reference() if as_reference else Semantics(), release)
    mistakes = dict.fromkeys(REFERENCE_MISTAKES, False) if as_reference else {}
    kinds = []
    for node in case["nodes"]:
        expected = ask_oracle(case, node, release, **mistakes)
        if expected is None:
            kinds.append("too long for the oracle")
            continue
        different = disagreement(lab.decide(convert(Node, node)), expected)
        assert different is None, f"on {node['metadata']['name']}: {different}"
        kinds.append(expected.outcome)
    return kinds


def played(seed: int) -> Outcome:
    """Compare the two in a problem, with the release and the kind of search that the seed draws."""
    dice = Random(seed)
    maker, as_reference = dice.choice((Maker, LocalMaker, CrowdedMaker)), dice.random() < 0.3
    release = Release.V1_36 if as_reference else dice.choice([it for it in Release if it < Release.V1_37])
    # a guided search prunes from the start, not only when it takes long
    patience = -1 if dice.random() < 0.3 else search.FAILURES_BEFORE_PRUNING
    case = make_case(dice, maker)
    try:
        with patch.object(search, "FAILURES_BEFORE_PRUNING", patience):
            return Outcome((), kinds=tuple(check(case, as_reference=as_reference, release=release)))
    except AssertionError as error:
        return Outcome((f"{error}\n{json.dumps(case)}",))


CAMPAIGN: Final = Game(played)
