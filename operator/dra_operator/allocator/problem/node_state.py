"""One node as the allocated state leaves it, kept from one decision to the next, and nodes that are alike.

A ``Domain`` has the devices of the node that one alternative of a request may take: what the filters leave.

In a large cluster nodes differ in little that a program looks at: on many, the same devices of the same drivers are
free and selected. ``likeness`` finds them, so that one decision stands for hundreds. It says nothing of a node on which
more counts than selectors and devices in use: taints, counters, capacity, pools in trouble.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from dra_ledger.basics import Memo
from dra_ledger.columns import Column
from dra_ledger.errors import AllocationError, CapacityError, SelectorError
from dra_ledger.features import Features
from dra_ledger.inventory import Inventory, NodeView
from dra_ledger.pools import Quantities
from dra_ledger.predicates import Compiled
from dra_ledger.usage import PoolUsage, Usage

from dra_operator.allocator.claim_program import Alternative, AttributeValue, ClaimProgram, Comparison
from dra_operator.allocator.problem.ledgers import Compatibility, Counters

from .ledgers import Ledger

NO_AMOUNTS: Final[Mapping[int, Quantities]] = MappingProxyType({})


Wanted = tuple[Hashable, Callable[[], Ledger]]
"""The key of a ledger, and what makes one: the domains of a problem that want equal keys share it."""


class Domain:
    """One alternative on one node."""

    __slots__ = (
        "alternative",
        "amounts",
        "claim",
        "collected",
        "fault",
        "ledgers",
        "need",
        "number",
        "raised",
        "usable",
        "wanted",
    )

    def __init__(self, alternative: Alternative, claim: int, number: int, like: Domain | None = None) -> None:
        """Make a domain that nothing passes, or one with what filters left to another one."""
        self.alternative = alternative
        self.claim = claim
        self.number = number
        """Position among all domains of the problem."""
        self.ledgers: tuple[Ledger, ...] = ()
        """The ledgers that are wanted, in a problem."""
        if like is None:
            self.usable: int = 0
            """Devices that pass all filters."""
            self.raised: int = 0
            """Devices on which a selector raised, or of which a fatal amount would be consumed: the end of a search
            that reaches one."""
            self.collected: int = 0
            """Mode All: the devices that must all be taken."""
            self.fault: AllocationError | None = None
            """Mode All: why it is not known which devices the node has for it; then it has none."""
            self.need: int = 0
            self.amounts: Mapping[int, Quantities] = NO_AMOUNTS
            """What a share consumes of each device that allows multiple allocations, usable or not. Domains with equal
            requests share the object."""
            self.wanted: tuple[Wanted, ...] = ()
            """The ledgers that devices of the domain fall under, in the order in which they are asked."""
        else:  # for each problem with ledgers: so no field is set twice, and there is one question for all of them
            self.usable, self.raised, self.collected = like.usable, like.raised, like.collected
            self.fault, self.need = like.fault, like.need
            self.amounts, self.wanted = like.amounts, like.wanted

    def in_problem(self, ledgers: dict[Hashable, Ledger]) -> Domain:
        """The same domain for one problem, which has made these ledgers so far."""
        own = Domain(self.alternative, self.claim, self.number, self)
        found: list[Ledger] = []
        for key, make in self.wanted:
            ledger = ledgers.get(key)
            if ledger is None:
                ledger = ledgers[key] = make()
            found.append(ledger)
        own.ledgers = tuple(found)
        return own

    @property
    def name(self) -> str:
        """The request in results and messages."""
        return self.alternative.request

    @property
    def comparing(self) -> list[Ledger]:
        """Return its ledgers that compare attributes."""
        return [one for one in self.ledgers if one.agrees_on or one.differs_in]

    @property
    def is_void(self) -> bool:
        """Mode All: there is no device, and in Kubernetes 1.32 that will do."""
        return not (self.alternative.least or self.collected or self.fault) and self.alternative.everything

    @property
    def short(self) -> bool:
        """Whether the domain alone has too few devices."""
        if self.alternative.everything:
            return not (self.collected or self.is_void) or bool(self.collected & ~self.usable)
        return self.usable.bit_count() < self.need

    @property
    def cannot_raise(self) -> bool:
        """Searching the domain cannot meet a fatal error.

        A domain that needs no device looks at none. A request for all devices takes them in order: if the first is
        unavailable, no constraint is checked.
        """
        if self.need:  # loops, since each problem asks each domain, and most have no ledger
            if self.raised:
                return False
            for ledger in self.ledgers:
                if ledger.may_fail(self):
                    return False
        if self.collected & -self.collected & self.usable:
            for ledger in self.ledgers:
                if ledger.ends_attempt:
                    return False
        return True


class Filtered(NamedTuple):
    """The domains of a program on a node, after the filters."""

    domains: list[tuple[Domain, ...]]
    """A list for each stage, with an entry for each alternative."""
    dead: int
    """The first stage that cannot be served even alone; the number of stages if there is none."""
    wants_ledgers: bool
    """Some domain falls under a ledger."""
    is_faulty: bool
    """Of some domain it is not known which devices the node has for it (``Domain.fault``)."""

    @property
    def number_of_domains(self) -> int:
        """The alternatives of all stages."""
        return sum(map(len, self.domains))


class NodeState:
    """What filters look at. A search changes nothing of it: it takes from ledgers of its own (``ledgers``)."""

    _DOMAINS: Final = 64
    """Domains that are kept, in sum; a claim may have 32 requests of 8 alternatives."""

    def __init__(
        self,
        view: NodeView,
        usages: Sequence[PoolUsage],
        features: Features,
        compiled: Compiled,
        *,
        admin_exempt: bool,
        errors_stay: bool,
    ) -> None:
        self.view = view
        self.usages = usages
        """What is taken of each pool, by its place in the view."""
        self.features = features
        self.compiled = compiled
        self.admin_exempt = admin_exempt
        """Admin access and ordinary allocations ignore each other."""
        self.errors_stay = errors_stay
        """A fault of what the node sees ends the alternative in which it is met, and with the last one the node's turn
        (``Semantics.errors_stay_on_node``)."""
        self.in_use = 0
        """Devices that no other claim gets."""
        self.consumed = 0
        """Devices of which capacity is consumed."""
        for pool, usage, offset in zip(view.pools, usages, view.offsets, strict=True):
            if usage.exclusive or usage.shares:
                self.in_use |= pool.held(usage) << offset
            if usage.consumed and features.consumable_capacity:
                self.consumed |= pool.bits(usage.consumed) << offset
        self.shareable = view.shareable if features.consumable_capacity else 0
        """Devices that several requests may take."""
        self.left: Callable[[int], dict[str, int]] = partial(_left, view, usages)
        """What is left of each capacity of a device, in billionths; may be negative."""
        self.filtered: dict[Hashable, Filtered] = {}
        """The devices that filters leave to the requests of programs, while they are remembered; see ``keep``."""
        self._kept = 0
        self.supplies: Memo[Hashable, Any] = Memo(1)
        """What the devices could still serve, by the mix's version; kept for ``ordering``, which knows its type."""
        self._counters: dict[int, Counters] = {}
        self._compatibility: dict[int, Compatibility] = {}

    def keep(self, stages: Hashable, found: Filtered) -> None:
        """Keeps what filters leave to a program, and drops the oldest of the others. A large one is not kept."""
        wanted = found.number_of_domains
        if wanted > self._DOMAINS or stages in self.filtered:
            return
        # By number of alternatives, not of programs: that is what takes memory.
        while self._kept + wanted > self._DOMAINS:
            self._kept -= self.filtered.pop(next(iter(self.filtered))).number_of_domains
        self.filtered[stages] = found
        self._kept += wanted

    def exempt(self, domain: Domain) -> bool:
        """The domain and ordinary allocations ignore each other."""
        return self.admin_exempt and domain.alternative.admin

    def error_at(self, claim: str, alternative: Alternative, device: int) -> AllocationError:
        """The error that a request meets on a device: a fatal amount, else the first selector that raises there, which
        is evaluated once more for its text."""
        published, id_ = self.view.devices[device], self.view.id(device)
        if not self.view.selected(alternative.expressions, self.compiled).raised >> device & 1:
            text = self.view.capacity_fault(device, alternative.capacity)
            return CapacityError(
                f"claim {claim}, request {alternative.request}: checking capacity for device {id_}: {text}"
            )
        known = self.view.failure(alternative.expressions, device)
        for selector in alternative.selectors:
            if known is not None:
                if selector.expression == known[0]:
                    return selector.error(claim, id_, published, known[1])
                continue
            try:
                self.compiled.predicate(selector.expression)(id_.driver, published)
            except Exception as error:
                self.view.keep_failure(alternative.expressions, device, selector.expression, error)
                return selector.error(claim, id_, published, error)
        return SelectorError.of_node(
            f"claim {claim}, request {alternative.request}: a selector failed on device {id_}, but not when it was "
            f"evaluated once more: its language is not deterministic"
        )

    def column(self, comparison: Comparison) -> Column:
        """The attribute of a constraint."""
        return self.view.column(comparison.attribute, lists=self.features.list_attributes)

    def having(self, wanted: AttributeValue) -> int:
        """The devices that have the value, alone or in a list."""
        column = self.view.column(wanted.attribute, lists=self.features.list_attributes)
        return column.having.get(wanted.value, 0)

    def places(self, devices: int) -> list[int]:
        """The places in the view of the pools that have any of the devices."""
        offsets = self.view.offsets
        return [place for place, pool in enumerate(self.view.pools) if devices >> offsets[place] & pool.everywhere]

    def grouped_places(self, devices: int) -> list[int]:
        """Those of these places whose pools have compatibility groups."""
        consuming = devices & self.view.consuming
        return [place for place in self.places(consuming) if not self.view.pools[place].compatibility.is_idle]

    def counters(self, place: int) -> Counters:
        """The counters of a pool before a search takes anything."""
        known = self._counters.get(place)
        if known is None:
            pool, offset = self.view.pools[place], self.view.offsets[place]
            charged = self.usages[place].charged
            left = pool.counters.available(charged)
            shareable = pool.shareable << offset if self.features.consumable_capacity else 0
            # A device that was charged and cannot be shared is in use; one that can be shared pays no counters again
            # (section 10).
            already_charged = pool.bits(charged) << offset & shareable
            known = self._counters[place] = Counters(pool.counter_groups, offset, left, shareable, already_charged)
        return known

    def compatibility(self, place: int) -> Compatibility:
        """The compatibility groups of a pool before a search takes anything."""
        known = self._compatibility.get(place)
        if known is None:
            pool, offset = self.view.pools[place], self.view.offsets[place]
            allocated = self.usages[place].charged
            shareable = pool.shareable << offset if self.features.consumable_capacity else 0
            already_allocated = pool.bits(allocated) << offset & shareable
            common = pool.compatibility.common(sorted(allocated))
            known = Compatibility(pool.compatibility, offset, common, shareable, already_allocated)
            self._compatibility[place] = known
        return known


def _left(view: NodeView, usages: Sequence[PoolUsage], number: int) -> dict[str, int]:
    device = view.devices[number]
    left = {name: capacity.value.nanos for name, capacity in (device.capacity or {}).items()}
    for name, nanos in usages[view.pool_of[number]].consumed.get(device.name, {}).items():
        # A capacity that the driver publishes no more limits nobody.
        if name in left:
            left[name] -= nanos
    return left


class NodeStates:
    """The latest state of each node that was decided about. A state lasts until something on its node changes."""

    _NODES: Final = 16_384

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self._features = inventory.features
        self._compiled = inventory.compiled
        self._errors_stay = inventory.semantics.errors_stay_on_node
        self._known: Memo[tuple[str, bool], NodeState] = Memo(self._NODES)

    def get(self, view: NodeView, usage: Usage, *, admin_exempt: bool) -> NodeState:
        """The state of a node."""
        usages = usage.of(view.pool_ids)
        known = self._known.get((view.name, admin_exempt))
        # Compared by what is taken of the node's own pools: what is allocated elsewhere leaves the state as it is, with
        # all that filters found.
        if known is None or known.view is not view or known.usages != usages:
            known = NodeState(
                view,
                usages,
                self._features,
                self._compiled,
                admin_exempt=admin_exempt,
                errors_stay=self._errors_stay,
            )
            self._known.put((view.name, admin_exempt), known)
        return known


def likeness(view: NodeView, usage: Usage, program: ClaimProgram, compiled: Compiled) -> Hashable | None:
    """Equal for nodes on which a decision ends alike, but for the names of node, pools and devices. None: unknown.

    Raises AllocationError as the decision would.
    """
    if not view.is_plain or program.fault is not None:
        return None
    alternatives = [alternative for stage in program.stages for alternative in stage.alternatives]
    if not all(map(_is_plain, alternatives)):
        return None
    key: list[Hashable] = []
    for pool in view.pools:
        used = usage.pool(pool.pool)
        # What is left of shared devices is more than a set of devices says.
        if used.shares or used.consumed:
            return None
        key.append((pool.pool.driver, len(pool.devices), pool.bits(used.exclusive)))
    for alternative in alternatives:
        selected = view.selected(alternative.expressions, compiled)
        if selected.raised:
            return None  # the error names the device
        key.append(selected.true)
    return tuple(key)


def _is_plain(alternative: Alternative) -> bool:
    """It asks for a number of devices, by selectors alone."""
    compares = alternative.constraints or alternative.capacity or alternative.value is not None
    return not (alternative.everything or compares)
