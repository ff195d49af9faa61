"""The entry point: takes claims and a node, gives an outcome with AllocationResults.

``allocate`` decides at once; ``search`` gives the same decision in slices of work. An event loop can run other work
between slices, and enforce deadlines and cancellation, for which this package has no clock. Both have a budget of
steps. When it is spent the outcome is ``GaveUp``, never "does not fit".

AllocationResults are built from granted devices, with the configuration of the chosen alternatives (allocator.md
section 12). Configuration follows from the alternatives alone, not from the devices. There is one entry per class
configuration with the requests that use the class, in the order in which the classes are met; then the claim's entries,
each once. Up to 1.36 the reference repeats a claim entry for every request it names, which section 15 calls a mistake.
From 1.37 on an entry that covers all requests of the claim names none (section 16).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Sequence, Set
from functools import partial
from typing import Final

from dra_api.core import Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from dra_api.releases import Release
from dra_api.resource import (
    AllocationResult,
    Device,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
)
from dra_ledger.basics import DeviceId
from dra_ledger.columns import Values
from dra_ledger.errors import AllocationError, NodeSelectionError
from dra_ledger.features import Features
from dra_ledger.inventory import Inventory
from dra_ledger.node_selectors import first_match, parse
from dra_ledger.slices import Slice
from dra_ledger.usage import Usage
from msgspec.structs import replace

from dra_operator.allocator.claim_program import (
    Alternative,
    AttributeValue,
    ClaimCompiler,
    ClaimProgram,
    CompiledRequests,
)
from dra_operator.allocator.device_counts import (
    ValueSupply,
    published_device,
    published_values,
    value_supplies,
)
from dra_operator.allocator.explain import refuse
from dra_operator.allocator.node_index import Candidates, NodeIndex
from dra_operator.allocator.ordering.mix import LearnedMix
from dra_operator.allocator.ordering.orders import (
    DEVICE_ORDERS,
    LEAST_FRAGMENTATION,
    LOOK_AT_MIX,
    REFERENCE,
    Sketch,
    device_order,
    sketch,
)
from dra_operator.allocator.ordering.supply import Kinds
from dra_operator.allocator.outcome import Allocated, ChosenAlternative, Failed, GaveUp, NodeFailure, Outcome, Refused
from dra_operator.allocator.problem.node_state import Domain, NodeStates, likeness
from dra_operator.allocator.problem.problem import NodeProblem
from dra_operator.allocator.pruning.pruner import Pruner
from dra_operator.allocator.search import DeviceOrder, Grant, Search

Configuration = tuple[DeviceAllocationConfiguration, ...]


def configured(
    claim: ResourceClaim, compiled: CompiledRequests, picks: tuple[int, ...], release: Release
) -> Configuration:
    """The configuration of a claim, ``picks`` being the chosen alternative of each of its stages."""
    # Claims that ask for the same share what their classes configure. Their own entries may differ: those are added to
    # each.
    made = compiled.configurations.get(picks)
    if made is None:
        made = compiled.configurations.put(picks, _from_classes(_picked(compiled, picks)))
    if claim.spec.devices.config:
        names = {
            name
            for stage, pick in zip(compiled.stages, picks, strict=True)
            for name in (stage.request, stage.alternatives[pick].request)
        }
        made += _from_claim(claim, names)  # each entry with all requests that it names
    # From 1.37 on an entry that covers all requests names none (K37-BUG-10).
    if not made or release < Release.V1_37:
        return made
    all_names = [
        {stage.request, stage.alternatives[pick].request} for stage, pick in zip(compiled.stages, picks, strict=True)
    ]
    return tuple([replace(entry, requests=None) if _covers(entry, all_names) else entry for entry in made])


def _covers(entry: DeviceAllocationConfiguration, all_names: Sequence[set[str]]) -> bool:
    """Whether the entry names each request, or the subrequest that was chosen for it."""
    return all(names.intersection(entry.requests or ()) for names in all_names)


def _picked(compiled: CompiledRequests, picks: tuple[int, ...]) -> list[Alternative]:
    return [stage.alternatives[pick] for stage, pick in zip(compiled.stages, picks, strict=True)]


def _from_classes(used: Sequence[Alternative]) -> Configuration:
    requests: dict[str, list[str]] = {}
    classes = {}
    for alternative in used:
        name = alternative.class_.metadata.name
        classes[name] = alternative.class_
        # A class comes once, where it was met first, with all requests that use it (section 12).
        requests.setdefault(name, []).append(alternative.request)
    return tuple(
        [
            DeviceAllocationConfiguration(source="FromClass", requests=tuple(requests[name]), opaque=config.opaque)
            for name, class_ in classes.items()
            for config in class_.spec.config or ()
        ]
    )


def _from_claim(claim: ResourceClaim, names: set[str]) -> Configuration:
    """``names`` are those of the requests and of the subrequests that were chosen."""
    return tuple(
        [
            DeviceAllocationConfiguration(source="FromClaim", requests=config.requests or None, opaque=config.opaque)
            for config in claim.spec.devices.config or ()
            if not config.requests or names.intersection(config.requests)
        ]
    )


NewShareId = Callable[[], str]


def results_of(
    problem: NodeProblem, grants: Sequence[Grant], picks: Sequence[int], features: Features, share: NewShareId
) -> tuple[AllocationResult, ...]:
    """One result per claim of the solution. Raises NodeSelectionError when node selectors cannot be merged."""
    program = problem.program
    # The search grants in the order of requests, which is that of the results (section 12).
    of_claims = [grants] if len(program.claims) == 1 else _by_claim(grants, len(program.claims))
    made: list[AllocationResult] = []
    position = 0
    for claim, compiled, granted in zip(program.claims, program.requests, of_claims, strict=True):
        end = position + len(compiled.stages)
        configuration = configured(claim, compiled, tuple(picks[position:end]), features.release)
        position = end
        devices = [_device(problem, domain, number, features, share) for domain, number, _, _ in granted]
        made.append(
            AllocationResult(
                devices=DeviceAllocationResult(results=tuple(devices) or None, config=configuration or None),
                node_selector=_node_selector(problem, claim, granted),
            )
        )
    return tuple(made)


def _by_claim(grants: Sequence[Grant], claims: int) -> list[Sequence[Grant]]:
    found: list[list[Grant]] = [[] for _ in range(claims)]
    for grant in grants:
        found[grant[0].claim].append(grant)
    return [*found]


def chosen_of(problem: NodeProblem, picks: Sequence[int]) -> tuple[ChosenAlternative, ...]:
    """Which subrequests were used."""
    if not problem.program.has_choices:
        return ()
    found: list[ChosenAlternative] = []
    for stage, pick in zip(problem.program.stages, picks, strict=True):
        if stage.prioritized:
            found.append(ChosenAlternative(stage.claim, stage.request, pick))
    return tuple(found)


def _device(
    problem: NodeProblem, domain: Domain, number: int, features: Features, share: NewShareId
) -> DeviceRequestAllocationResult:
    view, alternative = problem.view, domain.alternative
    device, pool = view.devices[number], view.pools[view.pool_of[number]].pool
    conditions = failures = None
    if features.binding_conditions:
        conditions, failures = device.binding_conditions or None, device.binding_failure_conditions or None
    # Only a device that allows multiple allocations has amounts: it is given in shares (section 9).
    amounts = domain.amounts.get(number)
    skipped: tuple[str, ...] | None = None
    if features.optional_node_operations:
        # The calls to the driver that the slice leaves out: later changes of it concern later claims (K37-ONO-02).
        skipped = view.origin(number).spec.skip_node_operations or None
    return DeviceRequestAllocationResult(
        request=alternative.request,
        driver=pool.driver,
        pool=pool.pool,
        device=device.name,
        admin_access=True if alternative.admin else None,
        # Also where taints are off (section 12).
        tolerations=alternative.tolerations or None,
        binding_conditions=conditions,
        binding_failure_conditions=failures,
        share_id=share() if amounts is not None else None,
        consumed_capacity=amounts or None,
        skip_node_operations=skipped,
    )


def _node_selector(problem: NodeProblem, claim: ResourceClaim, grants: Sequence[Grant]) -> NodeSelector | None:
    view = problem.view
    fields: list[NodeSelectorRequirement] = []
    labels: list[NodeSelectorRequirement] = []
    for _, number, _, _ in grants:
        device, slice_ = view.devices[number], view.origin(number)
        source = device if slice_.spec.per_device_node_selection else slice_.spec
        # One device that only this node has decides for the claim, whatever the others allow.
        if source.node_name is not None or device.binds_to_node:
            return view.only_this_node
        if source.node_selector is not None:
            term = _term(claim, slice_, device, source.node_selector, view.node)
            _merge(fields, term.match_fields)
            _merge(labels, term.match_expressions)
    if not fields and not labels:
        return None
    merged = NodeSelectorTerm(match_fields=tuple(fields) or None, match_expressions=tuple(labels) or None)
    return NodeSelector(node_selector_terms=(merged,))


def _term(claim: ResourceClaim, slice_: Slice, device: Device, selector: NodeSelector, node: Node) -> NodeSelectorTerm:
    """The term to merge. A device may have several, which are ORed: the one that let this node in counts."""
    terms = selector.node_selector_terms or ()
    if len(terms) == 1:
        return terms[0]
    # Several terms are ORed, and cannot be put into the one that the result has: the term that let this node in stands
    # for them (section 15).
    matched = first_match(parse(selector), node) if slice_.spec.per_device_node_selection else None
    if matched is None:
        raise NodeSelectionError.of_node(
            f"claim {claim.key}: slice {slice_.name}, device {device.name}: a node selector with {len(terms)} terms "
            f"is not supported, exactly one is"
        )
    return matched.source


def _merge(into: list[NodeSelectorRequirement], requirements: Sequence[NodeSelectorRequirement] | None) -> None:
    """Appends requirements that are not there yet, by key, operator and set of values."""
    for new in requirements or ():
        if not any(
            old.key == new.key and old.operator == new.operator and set(old.values or ()) == set(new.values or ())
            for old in into
        ):
            into.append(new)


DEFAULT_BUDGET_STEPS: Final = 200_000
"""Steps of one decision; roughly a second."""
INTERRUPT_STEPS: Final = 500
"""Steps between two looks at ``interrupt``: a few milliseconds."""


class Decision:
    """One decision in progress. Call ``advance`` until there is an outcome; equal inputs give equal outcomes.

    Claims with admin access may be decided twice: first as the reference does it, where admin access needs free
    counters and capacity and keeps devices from later requests; if that finds nothing, again without these limits
    (section 15). The second attempt may find a solution, but never adds an error.
    """

    def __init__(
        self,
        states: NodeStates,
        node: Node,
        program: ClaimProgram,
        usage: Usage,
        budget: int,
        new_share_id: NewShareId,
        order: DeviceOrder | None,
    ) -> None:
        self._inventory = states.inventory
        self._states = states
        self._node = node
        self._program = program
        self._usage = usage
        self._budget = budget
        self._new_share_id = new_share_id
        self._order = order
        self._steps = 0
        self._search: Search | None = None
        """None before it begins, and before it begins anew."""
        self._admin_exempt = False
        self._refusal: Refused | NodeFailure | None = None
        self.outcome: Outcome | None = None

    def advance(self, steps: int = INTERRUPT_STEPS) -> Outcome | None:
        """Works for at most so many steps; None if that was not enough."""
        # A name of its own: of a field that was None here, compiled code would expect that the calls below leave it so.
        known = self.outcome
        if known is not None:
            return known
        try:
            if self._search is None:
                # All that is fatal before the search is raised in here, and is the outcome then.
                view = self._inventory.view(self._node)
                state = self._states.get(view, self._usage, admin_exempt=self._admin_exempt)
                self._search = Search(NodeProblem(state, self._program), Pruner, self._order)
            search = self._search
            # The steps of both attempts count against one budget, so that the second one doubles no costs.
            before = search.steps
            solved = search.run(min(steps, self._budget - self._steps))
            self._steps += search.steps - before
            if solved:
                self._solved(search)
            elif solved is False:
                self._refused(search)
            # Asked last: a search that ends with its last step has an answer.
            elif self._steps >= self._budget:
                self.outcome = GaveUp(self._node.metadata.name, self._steps)
        except AllocationError as error:
            self._failed(error)
        return self.outcome

    def _solved(self, search: Search) -> None:
        picks, features = search.picks(), self._inventory.features
        try:
            results = results_of(search.problem, search.state.grants, picks, features, self._new_share_id)
            chosen = chosen_of(search.problem, picks)
            self.outcome = Allocated(self._node.metadata.name, results, chosen, self._steps)
        except NodeSelectionError:
            if self._order is None:
                raise
            # The devices of the reference's order may have selectors that can be merged: it begins anew with these.
            self._order = self._search = None

    def _refused(self, search: Search) -> None:
        problem = search.problem
        is_faulty = problem.is_faulty
        # The devices of a pool in trouble are unknown: that is the reason, and no count of devices.
        if is_faulty and (fault := problem.fault) is not None:
            self._failed(fault)
        elif self._refusal is None:
            # What the first attempt says stands: it is the reference's answer, and a second one may only find more.
            kind = NodeFailure if is_faulty or problem.view.invalid else Refused
            self._refusal = kind(self._node.metadata.name, partial(refuse, problem), self._steps)
            # Only then can a second attempt find more than the first.
            if self._inventory.semantics.admin_ignores_allocations and self._program.wants_admin_access:
                self._admin_exempt, self._search = True, None
                return
            self.outcome = self._refusal
        else:
            self.outcome = self._refusal  # the second attempt found nothing either

    def _failed(self, error: AllocationError) -> None:
        is_of_node = self._inventory.semantics.errors_stay_on_node and error.is_of_node
        # An error of the second attempt is none of the reference's: its first answer stands.
        self.outcome = self._refusal or Failed(self._node.metadata.name, error, self._steps, is_of_node)


class Allocator:
    """Decides over one inventory. ``new_share_id`` makes the UUIDs of shares, because this package is deterministic.

    ``budget`` are the steps after which a decision gives up, unless it has a budget of its own. ``order`` names
    the order in which devices are tried (``DEVICE_ORDERS``).
    """

    _PROGRAMS: Final = 1024
    _PROGRAM_BYTES: Final = 2 << 20

    def __init__(
        self,
        inventory: Inventory,
        *,
        new_share_id: NewShareId,
        budget: int = DEFAULT_BUDGET_STEPS,
        order: str = REFERENCE,
    ) -> None:
        self.inventory = inventory
        self.learned = LearnedMix(inventory.compiled)
        """What pods ask for, as it is told."""
        self.looks_at_mix = order in LOOK_AT_MIX
        """Whether answers depend on what it is told; who needs it sets it."""
        self._kinds = Kinds(self.learned.mix)
        self._order = order
        self._orders = {name: device_order(name, self._kinds_of_mix) for name in (*DEVICE_ORDERS, LEAST_FRAGMENTATION)}
        self._own_order = self._orders[order]
        self.budget = budget
        self._new_share_id = new_share_id
        self._programs: dict[tuple[AttributeValue | None, tuple[int, ...]], ClaimProgram] = {}
        self._program_bytes = 0
        """Of the claims in them, as JSON."""
        self._compiler = ClaimCompiler(inventory.device_class, inventory.features)
        self._compiled_for = inventory.class_version
        self._index = NodeIndex(inventory)
        self._states = NodeStates(inventory)

    def _kinds_of_mix(self) -> Kinds:
        # Everything counted for the mix is dropped with it.
        if self._kinds.mix is not self.learned.mix:
            self._kinds = Kinds(self.learned.mix)
        return self._kinds

    def catch_up(self, claims: Sequence[ResourceClaim] | ClaimProgram, usage: Usage) -> Iterator[str]:
        """Does the work of ``candidates`` in pieces of a few milliseconds, so that other work can run in between.

        It evaluates new selectors on all devices of the cluster. Each piece is named by the claim's selector that takes
        the time, or by "" if it is work that all decisions gain from.
        """
        return self._index.catch_up(claims if isinstance(claims, ClaimProgram) else self.compile(claims), usage)

    def candidates(self, claims: Sequence[ResourceClaim] | ClaimProgram, usage: Usage) -> Candidates:
        """The nodes worth trying for the claims; cheap while each ``usage`` has the lineage of the last one."""
        program = claims if isinstance(claims, ClaimProgram) else self.compile(claims)
        return self._index.candidates(program, usage)

    def drivers(self, program: ClaimProgram, usage: Usage) -> Set[str] | None:
        """Of which drivers a device would have to come free so that the program fits; None if that is not known now."""
        return self._index.drivers(program, usage)

    def compile(self, claims: Sequence[ResourceClaim], value: AttributeValue | None = None) -> ClaimProgram:
        """Compiles the claims; the same objects only once, unless a class changes.

        With ``value`` only devices are taken that have it. A request for all devices still means all of them.
        """
        inventory = self.inventory
        if self._compiled_for != inventory.class_version:
            self._forget_programs()
            self._compiler = ClaimCompiler(inventory.device_class, inventory.features)
            self._compiled_for = inventory.class_version
        key = (value, tuple(map(id, claims)))
        program = self._programs.get(key)
        if program is None:  # a program holds its claims, so no other object can get their ids meanwhile
            # It holds its classes as well: all of this must not pile up.
            if len(self._programs) >= self._PROGRAMS or self._program_bytes >= self._PROGRAM_BYTES:
                self._forget_programs()
            program = self._programs[key] = self._compiler.program(claims, value)
            # A claim may be of 64 KiB, and tenants may have thousands of them.
            self._program_bytes += program.bytes + program.more_bytes
        return program

    def _forget_programs(self) -> None:
        self._programs.clear()
        self._program_bytes = 0

    def supplies(self, attribute: str, usage: Usage) -> Generator[None, None, list[ValueSupply]]:
        """The values of an attribute that published devices have, the one with the fewest free devices first.

        Yields between pieces of a few milliseconds.
        """
        return value_supplies(self.inventory, attribute, usage)

    def published(self, device: DeviceId) -> Device | None:
        """What is published of one device; None if nothing is."""
        return published_device(self.inventory, device)

    def values(self, device: DeviceId, attribute: str) -> Values | None:
        """The values that one device has, none if it lacks the attribute; None if it is not published."""
        return published_values(self.inventory, device, attribute)

    def search(
        self,
        node: Node,
        claims: Sequence[ResourceClaim] | ClaimProgram,
        usage: Usage,
        *,
        budget: int | None = None,
        order: str = "",
    ) -> Decision:
        """Starts a decision. ``claims`` are the unallocated claims of one pod, in pod order.

        ``order`` names an order of devices for this decision alone.
        """
        program = claims if isinstance(claims, ClaimProgram) else self.compile(claims)
        return Decision(
            self._states,
            node,
            program,
            usage,
            self.budget if budget is None else budget,
            self._new_share_id,
            self._orders[order] if order else self._own_order,
        )

    def likeness(self, node: Node, program: ClaimProgram, usage: Usage) -> Hashable | None:
        """Equal for nodes on which the program ends alike, but for names; None if that is not known of this one."""
        try:
            return likeness(self.inventory.view(node), usage, program, self.inventory.compiled)
        except AllocationError:
            return None  # the decision fails in the same way, and names what is wrong

    def sketch(self, node: Node, program: ClaimProgram, usage: Usage, order: str) -> Sketch:
        """What a decision would leave of the node's devices. Raises AllocationError where a decision would fail."""
        # The first attempt alone: a score need not tell how admin access would end.
        state = self._states.get(self.inventory.view(node), usage, admin_exempt=False)
        return sketch(state, program, self._kinds_of_mix(), Pruner, self._orders[order])

    def allocate(
        self,
        node: Node,
        claims: Sequence[ResourceClaim] | ClaimProgram,
        usage: Usage,
        *,
        budget: int | None = None,
        interrupt: Callable[[], None] | None = None,
    ) -> Outcome:
        """Decides in one go.

        ``interrupt`` is called before the start and between slices of work; what it raises (a deadline, a
        cancellation) ends the decision and reaches the caller unchanged.
        """
        if interrupt is not None:
            interrupt()
        decision = self.search(node, claims, usage, budget=budget)
        while (outcome := decision.advance()) is None:
            if interrupt is not None:
                interrupt()
        return outcome
