"""``dra-operator simulate``: what the allocator would do, without a cluster.

There are three ways. ``simulate FILE`` answers a file of cases with one JSON line each, and
``simulate -`` a stream of them. ``simulate -f slices.yaml -f claim.yaml`` says for Kubernetes objects which devices
each node would give, or why not. ``simulate --trace pods.csv --nodes nodes.csv`` says how full each policy makes a
cluster (``trace``), and ``simulate --trace snapshot.yaml`` how a cluster's last week would have been
(``replay``).

A case is an allocation problem as the reference data writes it: one JSON object. It names its feature gates, brings its
classes, slices and claims (in their order; as the allocator gets them, so nothing is defaulted), what is allocated
already, and one ``node`` or several ``nodes``. ``mode`` ``first`` tries the nodes in order until one is allocated or
fails for good, ``all`` (the default) tries every node on its own.

Unless the semantics are given, a case with a recorded answer of the reference (it has an ``implementation``) is decided
by the reference's rules, so that the answers can be compared. All others are decided by the documented rules, which are
those of the operator (``allocator.Semantics``).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any, Final

import msgspec
from dra_api.codec import to_dict
from dra_api.console import not_installed, printable
from dra_api.core import Node, Pod
from dra_api.gates import GATE_OF, FeatureGates, GateError
from dra_api.meta import Object
from dra_api.releases import BUILT, NEWEST, Release
from dra_api.resource import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from dra_api.strategy import disabled_fields
from dra_api.values import Quantity
from dra_ledger.cel_language import CelSelectors
from dra_operator.allocator import (
    DEVICE_ORDERS,
    Allocated,
    AllocationError,
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
from dra_operator.commands import add_files_argument
from dra_operator.commands.file_items import BadInput, read_text
from dra_operator.commands.object_files import (
    Case,
    Fields,
    Item,
    add_cases_argument,
    answer_all,
    is_snapshot,
    read_cases,
    read_objects,
)
from dra_operator.commands.simulated import simulated
from dra_operator.controllers.scheduling.mix import Asked, MixError, read_mix
from dra_operator.gates import OPERATOR, REMEDY, features_of, parse_gates
from dra_operator.kubectl.lint.checks import invalid_fields
from dra_operator.kubectl.lint.manifest import CHECKED, Manifest, faults_of, faults_of_pod, pod_templates
from dra_operator.scheduling import PLACEMENT_STRATEGIES
from dra_operator.wording import listed

from dra_simulator.comparison import compared, table
from dra_simulator.report import SimulatedAttempt, attempts, document, report
from dra_simulator.runs import add_trace_arguments, given_without_trace

SEMANTICS: Final[dict[str, Semantics]] = {"documented": Semantics(), "reference": Semantics.reference()}
EXTRA: Final = frozenset({"numpy", "scipy"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_cases_argument(parser)
    parser.add_argument(
        "--semantics",
        choices=SEMANTICS,
        help="what decides where Kubernetes and its documentation differ "
        "(default: reference for cases with an implementation, otherwise documented)",
    )
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="decide each case N times and time it")
    add_files_argument(parser, "Kubernetes objects")
    parser.add_argument(
        "--sequential", action="store_true", help="with -f: each pod finds what the pods before it have left"
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "json", "csv"),
        default="text",
        help="with -f or --trace: for people, or for programs; csv: only with --trace",
    )
    parser.add_argument(
        "--kubernetes-version",
        choices=BUILT,
        help=f"the release by whose rules is decided, with -f also by its feature gates (default: {NEWEST})",
    )
    parser.add_argument(
        "--feature-gates", default="", metavar="A=true,B=false", help="with -f: as given to the operator"
    )
    parser.add_argument(
        "--node", action="append", default=[], help="node to try; repeatable (default: all in the files)"
    )
    parser.add_argument(
        "--placement-strategy", choices=PLACEMENT_STRATEGIES, help="with -f: as given to the operator (first-fit)"
    )
    parser.add_argument("--device-order", choices=DEVICE_ORDERS, help="with -f: as given to the operator (reference)")
    parser.add_argument(
        "--placement-mix", metavar="FILE", help="with -f: as given to the operator; without: the pods in the files"
    )
    parser.add_argument(
        "--compare-strategies",
        action="store_true",
        help="with -f, such as a snapshot: how many of the pods each placement strategy finds room for",
    )
    add_trace_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Answer; 0 when everything could be answered, 1 when something could not, 2 for unusable input.

    The allocator gave up there, or the files lack a claim or template of a pod.
    """
    try:
        if options.trace is not None:
            return _answer_trace(options)
        if unused := given_without_trace(options):
            raise BadInput(f"{unused[0]}: only with --trace FILE")
        _check_combination(options)
        semantics = SEMANTICS.get(options.semantics)
        release = BUILT.get(options.kubernetes_version, NEWEST)
        if options.file:
            return _answer_objects(options, release, semantics or Semantics())
        return _answer_file(options.cases, options.repeat, release, semantics)
    except (BadInput, AllocationError) as error:
        print(printable(f"dra-operator simulate: {error}"), file=sys.stderr)
        return 2
    except GateError as error:
        print(f"dra-operator simulate: --feature-gates: {error}; {REMEDY}", file=sys.stderr)
        return 2


def _check_combination(options: argparse.Namespace) -> None:
    """Raise BadInput for options that do not go together."""
    if bool(options.cases) == bool(options.file):
        raise BadInput("give one of: a file of cases, Kubernetes objects with -f FILE, pods with --trace FILE")
    if options.output == "csv":
        raise BadInput("-o csv: only with --trace FILE; choose text or json")
    if options.node and not options.file:
        raise BadInput("--node: only for Kubernetes objects (-f FILE); a file of cases names its nodes itself")
    if options.sequential and not options.file:
        raise BadInput("--sequential: only for Kubernetes objects (-f FILE); each case stands for itself")
    if options.feature_gates and not options.file:
        raise BadInput("--feature-gates: only for Kubernetes objects (-f FILE); a case names its features itself")
    if (options.placement_strategy or options.device_order or options.placement_mix) and not options.file:
        raise BadInput("--placement-strategy, --device-order, --placement-mix: only for Kubernetes objects (-f)")
    if options.compare_strategies and (not options.file or options.node or options.output != "text"):
        raise BadInput("--compare-strategies: only for Kubernetes objects (-f FILE), without --node and -o")
    if options.repeat < 1:
        raise BadInput(f"--repeat: expected at least 1, got {options.repeat}")
    if options.repeat > 1 and options.file:
        raise BadInput("--repeat: only for a file of cases, which are timed; -f FILE tells, and times nothing")


def _answer_trace(options: argparse.Namespace) -> int:
    if options.cases or options.file or options.node or options.sequential:
        raise BadInput("--trace: not together with a file of cases, -f, --node or --sequential")
    if is_snapshot(options.trace):
        from dra_simulator.replay import run_replay  # loads what plays many runs at once

        return run_replay(options)
    if options.feature_gates:
        raise BadInput("--feature-gates: of a trace only with a snapshot, in YAML or JSON")
    try:
        from .trace import run_trace
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        raise BadInput(not_installed(str(error.name), "quality")) from None
    return run_trace(options)


def _answer_objects(options: argparse.Namespace, release: Release, semantics: Semantics) -> int:
    features = features_of(parse_gates(options.feature_gates), release)
    if options.compare_strategies:
        found = compared(
            read_objects(options.file), features=features, semantics=semantics, mix=_mix(options.placement_mix)
        )
        print(*map(printable, table(list(found))), sep="\n")
        return 0
    written = _Written(FeatureGates.of(parse_gates(options.feature_gates), release, OPERATOR))
    cluster = simulated(
        read_objects(options.file, written.keep, other=written.other),
        options.node,
        features=features,
        semantics=semantics,
        strategy=options.placement_strategy or PLACEMENT_STRATEGIES[0],
        device_order=options.device_order or DEVICE_ORDERS[0],
        mix=_mix(options.placement_mix),
    )
    is_open = False

    def watched() -> Iterator[SimulatedAttempt]:
        nonlocal is_open
        for attempt in attempts(cluster, sequential=options.sequential):
            is_open |= attempt.is_open
            yield attempt

    if options.output == "json":
        print(json.dumps(document(watched(), [*written.notes(), *cluster.notes]), indent=2))
    else:
        lines = report(watched(), cluster.allocator.inventory, sequential=options.sequential)
        for line in chain(written.notes(), cluster.notes, lines):
            print(printable(line))
    return int(is_open or bool(written.faults))


BINDING_GATE: Final = GATE_OF["device_binding_conditions"]
"""The gate of binding conditions, which need that of the claims' device status as well."""
MOST_FAULT_LINES: Final = 20
"""Faults of objects that are told."""


class _Written:
    """What the API server would refuse of objects that a person wrote, and the kinds that nothing is done with.

    An object with a UID or a resourceVersion comes from a server, which has looked at it.
    """

    def __init__(self, gates: FeatureGates) -> None:
        self._gates = gates
        self.faults: list[str] = []
        self._dropped: dict[tuple[str, str], list[str]] = {}
        """Objects that use a field, by the gate that is off and the field."""
        self._others: Counter[str] = Counter()
        self._have_pods = False

    def keep(self, item: Item, obj: Object) -> Object:
        """Note the faults of an object, and its fields of features that are off."""
        kind = item.value["kind"]
        if kind in CHECKED:
            for dropped in disabled_fields({**to_dict(obj), "kind": kind}, self._gates):
                self._dropped.setdefault(dropped, []).append(f"{kind} {obj.key}")
        if not obj.metadata.uid and not obj.metadata.resource_version:
            manifest = Manifest(item.where, f"{kind} {obj.key}", obj)
            found = [f"{path}: {text}" for severity, path, text in faults_of(item.value, None) if severity == "error"]
            if isinstance(obj, Pod):
                found += [f"{path}: {text}" for path, text in faults_of_pod(item.value.get("spec") or {})]
            found += [f"{it.field}: {it.message}" for it in invalid_fields([manifest], self._gates)]
            self.faults += [f"{item.where}: {manifest.title}: {text}" for text in found]
        return obj

    def other(self, item: Item) -> None:
        """Note an object of a kind that is not read."""
        self._others[item.value["kind"]] += 1
        with suppress(BadInput):
            self._have_pods = self._have_pods or any(pod_templates(item.value))

    def notes(self) -> Iterator[str]:
        """Yield what a reader of the answers has to know."""
        yield from (f"error: {text}" for text in self.faults[:MOST_FAULT_LINES])
        if len(self.faults) > MOST_FAULT_LINES:
            yield f"and {len(self.faults) - MOST_FAULT_LINES} more faults: kubectl dra lint -f tells them all"
        for (gate, field), objects in self._dropped.items():
            off = f"the feature gate {GATE_OF.get(gate, BINDING_GATE)} is off in Kubernetes {self._gates.release}"
            yield f"{off}: its API server drops {field} of {listed(objects, 1)}"
        if self._others:
            kinds = listed(f"{kind} ({n})" if n > 1 else kind for kind, n in sorted(self._others.items()))
            remedy = "; kubectl dra fit -f places the pods of workloads" if self._have_pods else ""
            yield f"left out: {kinds}{remedy}"


def _mix(path: str | None) -> Sequence[Asked]:
    try:
        return read_mix(read_text(path)) if path else ()
    except MixError as error:
        raise BadInput(f"{path}: {error}") from error


def _answer_file(path: str, repeat: int, release: Release, semantics: Semantics | None) -> int:
    cases, _ = read_cases(path)
    gave_up = False

    def answered(where: str, case: Case) -> Case:
        nonlocal gave_up
        found = answer(read_case(where, case, release, semantics), repeat)
        gave_up |= any(node["outcome"] == OUTCOMES[GaveUp] for node in found["nodes"])
        return found

    return answer_all("simulate", path, cases, answered) or int(gave_up)


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


def read_case(where: str, case: Case, release: Release, semantics: Semantics | None = None) -> FileCase:
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


def _semantics(case: Case) -> Semantics:
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
