"""Allocation problems as the reference data writes them: one JSON object per problem.

A case names its feature gates, brings its classes, slices and claims (in their order; as the allocator gets them, so
nothing is defaulted), what is allocated already, and one ``node`` or several ``nodes``. ``mode`` ``first`` tries the
nodes in order until one is allocated or fails for good, ``all`` (the default) tries every node on its own.

Unless the semantics are given, a case with a recorded answer of the reference (it has an ``implementation``) is decided
by the reference's rules, so that the answers can be compared. All others are decided by the documented rules, which are
those of the operator (``allocator.Semantics``).
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Final

import msgspec
from dra_api.codec import to_dict
from dra_api.core import Node
from dra_api.quantity import Quantity
from dra_api.releases.release import Release
from dra_api.resource import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from dra_ledger.cel_language import CelSelectors
from dra_operator.allocator import (
    Allocated,
    Allocator,
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
)
from dra_operator.commands.case_files import JSON, Fields
from dra_operator.commands.object_files import BadInput
from dra_operator.gates import features_of

OUTCOMES: Final[dict[type, str]] = {
    Allocated: "allocated",
    Refused: "none",
    NodeFailure: "nodeError",
    Failed: "error",
    GaveUp: "gaveUp",
}
_MANY_NODES: Final = 64
"""The index is faster for more nodes than this."""


@dataclass(frozen=True)
class FileCase:
    """One problem, ready to be decided."""

    name: str
    allocator: Allocator
    claims: tuple[ResourceClaim, ...]
    usage: Usage
    nodes: tuple[Node, ...]
    first: bool
    """Stop at the first node that is allocated or fails for good."""

    @cached_property
    def places(self) -> dict[str, int]:
        """Where each node stands in the order."""
        return {node.metadata.name: place for place, node in enumerate(self.nodes)}


class Share(msgspec.Struct, rename={"share_id": "shareID"}):
    """One entry of ``allocatedState``."""

    driver: str
    pool: str
    device: str
    share_id: str | None = None
    capacity: dict[str, Quantity] = {}

    @property
    def id(self) -> DeviceId:
        return DeviceId(self.driver, self.pool, self.device)


def read_case(where: str, case: JSON, release: Release, semantics: Semantics | None = None) -> FileCase:
    """One case. Raises BadInput, which names ``where`` and the field. Without ``semantics`` the case decides."""
    fields = Fields(where, case)
    gates = fields.optional("features", list[str])
    features = features_of({}, release) if gates is None else Features.from_gates(gates, release)
    inventory = Inventory(features, language=CelSelectors(features), semantics=semantics or _semantics(case))
    for class_ in fields.objects("classes", DeviceClass):
        inventory.put_class(class_)
    for slice_ in _uniquely_named(fields.objects("slices", ResourceSlice)):
        inventory.put_slice(slice_)
    for rule in fields.objects("rules", DeviceTaintRule):
        inventory.put_rule(rule)
    nodes = fields.objects("nodes", Node) or tuple(filter(None, [fields.optional("node", Node)]))
    if not nodes:
        raise BadInput(f"{where}: has neither node nor nodes")
    mode = fields.optional("mode", str) or "all"
    if mode not in ("first", "all"):
        raise BadInput(f"{where}: mode: expected first or all, got {mode!r}")
    return FileCase(
        name=fields.optional("name", str) or where,
        allocator=Allocator(inventory, new_share_id=lambda: str(uuid.uuid4())),
        claims=fields.objects("claims", ResourceClaim),
        usage=_usage(fields, features),
        nodes=nodes,
        first=mode == "first",
    )


def _semantics(case: JSON) -> Semantics:
    recorded = "implementation" in case or "implementations" in case
    return Semantics.reference() if recorded and "intendedOutcome" not in case else Semantics()


def _usage(fields: Fields, features: Features) -> Usage:
    usage = Usage(shares=features.consumable_capacity)
    state = Fields(f"{fields.where}: allocatedState", fields.optional("allocatedState", dict[str, Any]) or {})
    for entry in state.objects("allocatedDevices", Share):
        usage.take_device(entry.id)
    for entry in state.objects("allocatedSharedDeviceIDs", Share):
        usage.take_share(entry.id, entry.share_id or "", {})
    for entry in state.objects("aggregatedCapacity", Share):
        usage.take_share(entry.id, None, {name: amount.nanos for name, amount in entry.capacity.items()})
    return usage


def _uniquely_named(slices: tuple[ResourceSlice, ...]) -> Iterator[ResourceSlice]:
    """Unlike in a cluster, several slices of a case may have the same name: make the names unique, in their order."""
    seen: dict[str, int] = {}
    for slice_ in slices:
        name = slice_.metadata.name
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            metadata = msgspec.structs.replace(slice_.metadata, name=f"{name}\0{seen[name]}")
            slice_ = msgspec.structs.replace(slice_, metadata=metadata)
        yield slice_


def answer(case: FileCase, repeat: int) -> dict[str, Any]:
    """The answer to one case. ``micros_*`` is the time of one decision: which node it is, or that there is none.

    The first decision also evaluates the selectors that only the claims use; repeated ones find them evaluated, as in
    the operator. Among many nodes the decision asks only those that the index lets through, as in the operator; the
    answers of the others are computed afterwards, untimed. If one of them contradicts the index, the time is that of
    asking every node.
    """
    spared = case.first and len(case.nodes) > _MANY_NODES
    times, chosen = _timed(_choose if spared else _decide, case, repeat)
    if spared:
        outcomes = _decide(case)
        if _settling(chosen) != _settling(outcomes):
            times, outcomes = _timed(_decide, case, repeat)
    else:
        outcomes = chosen
    return {
        "name": case.name,
        "nodes": [_node(outcome) for outcome in outcomes],
        "micros_min": round(min(times), 1),
        "micros_median": round(statistics.median(times), 1),
    }


def _timed(work: Callable[[FileCase], list[Outcome]], case: FileCase, repeat: int) -> tuple[list[float], list[Outcome]]:
    """Microseconds of each repetition, and the last result."""
    times = []
    outcomes: list[Outcome] = []
    for _ in range(repeat):
        start = time.perf_counter_ns()
        outcomes = work(case)
        times.append((time.perf_counter_ns() - start) / 1000)
    return times, outcomes


def _decide(case: FileCase) -> list[Outcome]:
    """The outcomes of all nodes, or of those up to the first that settles the case."""
    outcomes: list[Outcome] = []
    for node in case.nodes:
        outcomes.append(case.allocator.allocate(node, case.claims, case.usage))
        if case.first and _settles(outcomes[-1]):
            break
    return outcomes


def _settles(outcome: Outcome) -> bool:
    """Whether no further node is tried."""
    return isinstance(outcome, Allocated) or (isinstance(outcome, Failed) and not outcome.is_of_node)


def _choose(case: FileCase) -> list[Outcome]:
    """The outcome of the node that settles the case, if one does."""
    for node in _worth_trying(case):
        outcome = case.allocator.allocate(node, case.claims, case.usage)
        if _settles(outcome):
            return [outcome]
    return []


def _worth_trying(case: FileCase) -> Iterable[Node]:
    candidates = case.allocator.candidates(case.claims, case.usage)
    if candidates.anywhere:
        return case.nodes
    names = list(islice(candidates, _MANY_NODES))
    if len(names) == _MANY_NODES:
        return (node for node in case.nodes if node.metadata.name in candidates)
    return [case.nodes[place] for place in sorted(case.places[name] for name in names if name in case.places)]


def _settling(outcomes: list[Outcome]) -> list[str]:
    """The name of the node that settled the case, if one did."""
    return [outcome.node for outcome in outcomes if _settles(outcome)]


def _node(outcome: Outcome) -> dict[str, Any]:
    fields: dict[str, Any] = {"node": outcome.node, "outcome": OUTCOMES[type(outcome)]}
    fields |= {"results": None, "error": None, "refusal": None}
    if isinstance(outcome, Allocated):
        fields["results"] = [to_dict(result) for result in outcome.results]
    elif isinstance(outcome, Failed):
        fields["outcome"] = OUTCOMES[NodeFailure] if outcome.is_of_node else OUTCOMES[Failed]
        fields["error"] = str(outcome.error)
    elif isinstance(outcome, GaveUp):
        fields["error"] = str(outcome)
    else:
        fields["refusal"] = {"text": outcome.refusal.line(), **asdict(outcome.refusal)}
        if isinstance(outcome, NodeFailure):
            fields["error"] = "; ".join(outcome.refusal.pools)
    return fields
