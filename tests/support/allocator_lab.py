"""Small clusters for the allocator's tests: built from words, or from the cases of a reference corpus."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dra_api.codec import convert, to_dict
from dra_api.core import Node
from dra_api.releases import Release
from dra_api.resource import AllocationResult, Device, DeviceClass, ResourceClaim, ResourceSlice
from dra_api.values import Quantity
from dra_cel import PreparedDevice, compile, device_selectors, prepare
from dra_ledger.predicates import DEFAULT_COST_UNITS, Language
from dra_operator.allocator import (
    Allocated,
    Allocator,
    AttributeValue,
    DeviceId,
    Failed,
    Features,
    GaveUp,
    Inventory,
    NodeFailure,
    Outcome,
    Refused,
    Semantics,
    Usage,
    Weighed,
)
from dra_operator.allocator.problem.node_state import NodeStates
from dra_operator.allocator.problem.problem import NodeProblem

OUTCOMES = {Allocated: "allocated", Refused: "none", NodeFailure: "nodeError", Failed: "error", GaveUp: "gave up"}
Json = dict[str, Any]
Answer = list[list[str]] | str
"""The devices of each claim; or the kind of an outcome that is not an allocation."""


class Cel:
    """The language of selectors, without the operator around it."""

    def __init__(self, features: Features) -> None:
        self._lists = features.list_attributes or features.release >= Release.V1_37
        self._environment = device_selectors(
            consumable_capacity=features.consumable_capacity, list_attributes=self._lists
        )

    def compile(self, expression: str) -> Weighed:
        selector = compile(expression, self._environment)

        def prepared(driver: str, device: Device) -> PreparedDevice:
            return prepare(driver, device, list_attributes=self._lists)

        return Weighed(
            lambda driver, device: selector.matches(prepared(driver, device)),
            DEFAULT_COST_UNITS,
            lambda driver, device: selector.matches_in_parts(prepared(driver, device)),
            selector,
        )


@dataclass(frozen=True)
class Lab:
    """An allocator with its inventory, the claims to decide on, and what is already taken."""

    allocator: Allocator
    claims: list[ResourceClaim]
    usage: Usage
    value: AttributeValue | None = None
    """What all devices have to have."""

    def decide(self, node: Node | None = None, **options: Any) -> Outcome:
        """The outcome on a node, ``n1`` unless another is given."""
        program = self.allocator.compile(self.claims, self.value)
        return self.allocator.allocate(node or make_node("n1"), program, self.usage, **options)

    def problem(self) -> NodeProblem:
        """The problem that a search on ``n1`` would begin with. Raises AllocationError."""
        inventory = self.allocator.inventory
        state = NodeStates(inventory).get(inventory.view(make_node("n1")), self.usage, admin_exempt=False)
        return NodeProblem(state, self.allocator.compile(self.claims, self.value))

    def devices(self, node: Node | None = None) -> Answer:
        """``request=driver/pool/device`` per claim; or the kind of the outcome when it is not an allocation."""
        outcome = self.decide(node)
        if not isinstance(outcome, Allocated):
            return outcome_kind(outcome)
        return [[f"{r.request}={DeviceId.of(r)}" for r in result.results] for result in outcome.results]


def lab(
    slices: Iterable[Json],
    claims: Iterable[Json],
    *,
    classes: Iterable[Json] | None = None,
    features: Features | None = None,
    semantics: Semantics | None = None,
    usage: Usage | None = None,
    language: Language | None = None,
    value: AttributeValue | None = None,
) -> Lab:
    """A lab from plain objects; there is a class ``any`` that selects everything unless classes are given."""
    features = features or Features()
    inventory = Inventory(features, language=language or Cel(features), semantics=semantics)
    for class_ in classes if classes is not None else [device_class("any")]:
        inventory.put_class(convert(DeviceClass, class_))
    for slice_ in _with_unique_names(slices):
        inventory.put_slice(convert(ResourceSlice, slice_))
    numbers = itertools.count()
    allocator = Allocator(inventory, new_share_id=lambda: f"share-{next(numbers)}")
    if usage is None:
        usage = Usage(shares=features.consumable_capacity)
    return Lab(allocator, [convert(ResourceClaim, claim) for claim in claims], usage, value)


def case_lab(case: Json, semantics: Semantics, release: Release = Release.V1_36) -> Lab:
    """The lab of a corpus case, by the rules of the release whose answers were recorded."""
    features = Features.from_gates(case["features"], release)
    usage = Usage(shares=features.consumable_capacity)
    state = case.get("allocatedState") or {}
    for entry in state.get("allocatedDevices") or []:
        usage.take_device(_device_id(entry))
    for entry in state.get("allocatedSharedDeviceIDs") or []:
        usage.take_share(_device_id(entry), entry["shareID"], {})
    for entry in state.get("aggregatedCapacity") or []:
        usage.take_share(_device_id(entry), None, {name: Quantity(v).nanos for name, v in entry["capacity"].items()})
    return lab(
        case["slices"], case["claims"], classes=case["classes"], features=features, semantics=semantics, usage=usage
    )


def difference(outcome: Outcome, kind: str, results: Sequence[Json] | None) -> str | None:
    """How an outcome differs from a recorded one; None when it does not.

    Claim configuration that the reference repeats per request is compared without the repetition, since
    allocator.md section 15 calls it a mistake.
    """
    got = outcome_kind(outcome)
    if got != kind:
        return f"{got} instead of {kind}: {getattr(outcome, 'error', '') or getattr(outcome, 'refusal', '')}"
    if isinstance(outcome, Allocated):
        ours = [_comparable(to_dict(result)) for result in outcome.results]
        theirs = [_comparable(to_dict(convert(AllocationResult, result))) for result in results or []]
        if ours != theirs:
            return f"{ours} instead of {theirs}"
    return None


def outcome_kind(outcome: Outcome) -> str:
    """Return the word of the kit for an outcome; a fault of what one node sees is an error of the node."""
    if isinstance(outcome, Failed) and outcome.is_of_node:
        return "nodeError"
    return OUTCOMES[type(outcome)]


def make_node(name: str, **labels: str) -> Node:
    return convert(Node, {"metadata": {"name": name, "labels": labels}})


def device_class(name: str, *selectors: str, **spec: Any) -> Json:
    return {"metadata": {"name": name}, "spec": {"selectors": _cel(selectors), **spec}}


def pool(*devices: Json, name: str = "p", driver: str = "drv", counters: Json | None = None, **spec: Any) -> list[Json]:
    """The slices of a complete pool, for node ``n1`` unless another is named; counters get a slice of their own."""
    where = spec if spec else {"nodeName": "n1"}
    count = 1 if counters is None else 2
    about = {"driver": driver, "pool": {"name": name, "generation": 1, "resourceSliceCount": count}, **where}
    slices = [{"metadata": {"name": f"{driver}-{name}-1"}, "spec": {**about, "devices": list(devices)}}]
    if counters is not None:
        sets = [
            {"name": set_, "counters": {key: {"value": str(value)} for key, value in values.items()}}
            for set_, values in counters.items()
        ]
        slices.append({"metadata": {"name": f"{driver}-{name}-0"}, "spec": {**about, "sharedCounters": sets}})
    return slices


def device(name: str, *, consumes: Json | None = None, capacity: Json | None = None, **attributes: Any) -> Json:
    """A device with attributes (int, bool, str, lists of them); ``extra`` holds further fields."""
    extra = attributes.pop("extra", {})
    made: Json = {"name": name, "attributes": {key: _attribute(value) for key, value in attributes.items()}, **extra}
    if capacity is not None:
        made["capacity"] = {k: v if isinstance(v, Mapping) else {"value": str(v)} for k, v in capacity.items()}
    if consumes is not None:
        made["consumesCounters"] = [
            {"counterSet": set_, "counters": {key: {"value": str(value)} for key, value in values.items()}}
            for set_, values in consumes.items()
        ]
    return made


def request(name: str, *selectors: str, count: int = 1, **fields: Any) -> Json:
    """An exact request; ``allocationMode="All"`` asks for everything."""
    return {"name": name, "exactly": _wanted(selectors, count, fields)}


def sub(name: str, *selectors: str, count: int = 1, **fields: Any) -> Json:
    return {"name": name, **_wanted(selectors, count, fields)}


def claim(*requests: Json, name: str = "c", constraints: Sequence[Json] = (), config: Sequence[Json] = ()) -> Json:
    """A claim in the namespace ``default``."""
    devices = {"requests": list(requests), "constraints": list(constraints), "config": list(config)}
    return {"metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"}, "spec": {"devices": devices}}


def first_available(name: str, *subrequests: Json) -> Json:
    return {"name": name, "firstAvailable": list(subrequests)}


def held(*devices: str) -> Usage:
    """A state in which these devices (``driver/pool/device``) are taken."""
    usage = Usage()
    for text in devices:
        usage.take_device(DeviceId(*text.split("/")))
    return usage


def _wanted(selectors: Sequence[str], count: int, fields: Json) -> Json:
    wanted = {"deviceClassName": "any", "allocationMode": "ExactCount", "selectors": _cel(selectors), **fields}
    if wanted["allocationMode"] == "ExactCount":
        wanted["count"] = count
    return wanted


def _cel(selectors: Iterable[str]) -> list[Json]:
    return [{"cel": {"expression": expression}} for expression in selectors]


def _attribute(value: object) -> Json:
    if isinstance(value, list):
        return {{bool: "bools", int: "ints", str: "strings"}[type(value[0])]: value}
    return {{bool: "bool", int: "int", str: "string"}[type(value)]: value}


def _device_id(entry: Json) -> DeviceId:
    return DeviceId(entry["driver"], entry["pool"], entry["device"])


def _with_unique_names(slices: Iterable[Json]) -> Iterable[Json]:
    """The corpora contain slices with equal names, which no API server would; their order is kept."""
    seen: dict[str, int] = {}
    for slice_ in slices:
        name = slice_["metadata"]["name"]
        seen[name] = seen.get(name, 0) + 1
        yield slice_ if seen[name] == 1 else {**slice_, "metadata": {"name": f"{name}\0{seen[name]}"}}


def _comparable(value: object) -> Any:
    """Without empty parts, share ids (random) and texts of quantities; claim configuration once."""
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    if not isinstance(value, dict):
        return value
    made = {key: _comparable(item) for key, item in value.items() if item not in (None, [], {})}
    if "shareID" in made:
        made["shareID"] = "any"
    if "consumedCapacity" in made:
        made["consumedCapacity"] = {name: Quantity(text).nanos for name, text in made["consumedCapacity"].items()}
    if "config" in made:
        repeated = [entry for entry in made["config"] if entry["source"] == "FromClaim"]
        made["config"] = [
            entry
            for number, entry in enumerate(made["config"])
            if entry not in repeated or made["config"].index(entry) == number
        ]
    return made


# --- A problem on which every search gives up ---


def partition_problem(node: str, driver: str = "hard.example.com") -> Iterator[Json]:
    """Devices whose two counters add up to the same; twenty of them must meet an odd sum with even parts.

    No bound sees that: only trying does, and the search gives up.
    """
    sizes = [2 * (50 + 7 * number % 61) for number in range(40)]
    total = sum(sorted(sizes)[10:30]) + 1
    devices = [
        {"name": f"dev-{number}", "consumesCounters": [{"counterSet": "set", "counters": amounts(size, 400)}]}
        for number, size in enumerate(sizes)
    ]
    counters = [{"name": "set", "counters": amounts(total, 20 * 400)}]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 2}
    for name, content in (("counters", {"sharedCounters": counters}), ("devices", {"devices": devices})):
        spec = {"driver": driver, "nodeName": node, "pool": pool, **content}
        yield {"metadata": {"name": f"{node}-{name}"}, "spec": spec}


def amounts(size: int, of: int) -> Json:
    return {"a": {"value": str(size)}, "b": {"value": str(of - size)}}
