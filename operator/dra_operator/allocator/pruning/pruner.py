"""What a long search learns about its problem.

Four methods cut branches that cannot hold the first solution: looking ahead, trying one of several interchangeable
devices, serving equal requests in order, and remembering failures. A remembered failure is a
place in the search together with everything that its future depends on: devices still available to what
follows, and the ledgers of what follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import chain

from dra_api.resource import MOST_RESULTS
from dra_ledger.basics import each
from dra_ledger.columns import Column

from dra_operator.allocator.problem.ledgers import Ledger
from dra_operator.allocator.problem.node_state import Domain
from dra_operator.allocator.problem.problem import NodeProblem
from dra_operator.allocator.pruning.aggregate_bounds import OpenRequest
from dra_operator.allocator.pruning.bounds import Bounds
from dra_operator.allocator.search import BranchEnd, BranchState, Remaining

from .symmetry import interchangeable, introduce


def find_error_horizons(problem: NodeProblem) -> list[int]:
    """For each stage the first one from there on at which a fatal error may be met; the end when there is none."""
    # The search never passes a request that cannot be served even alone: errors behind it are never met.
    reached, end = problem.reached, len(problem.domains)
    fallible = {stage for stage, domains in enumerate(reached) if not all(domain.cannot_raise for domain in domains)}
    fallible |= _limited(reached, {reached[stage][0].claim for stage in fallible})
    horizons = [end] * (end + 1)
    # Backwards, so that each stage gets the nearest fallible one from itself on.
    for stage in reversed(range(len(reached))):
        horizons[stage] = stage if stage in fallible else horizons[stage + 1]
    return horizons


def _limited(stages: Sequence[tuple[Domain, ...]], claims: set[int]) -> set[int]:
    """The stages of those of the claims that may exceed the limit of results.

    Exceeding it abandons the request before, which may keep the search from a device that raises. A branch that is
    cut does not tell whether it would have ended so.
    """
    most = Counter[int]()
    for domains in stages:
        most[domains[0].claim] += max(domain.need for domain in domains)
    claims = {claim for claim in claims if most[claim] > MOST_RESULTS}
    return {stage for stage, domains in enumerate(stages) if domains[0].claim in claims}


class Propagation:
    """Forward checking: whether the rest of the claims may still be served after a choice.

    For every alternative of the remaining requests a set of devices is kept (``Remaining``), narrowed by each choice:

    1. by what is taken, and by the ledgers that the choice changed;
    2. along ``matchAttribute`` constraints: a value stays possible only if every request in its scope finds enough
       devices with it, and all of them together enough different ones that suit their other common constraints as well;
       this is repeated until nothing changes, so that chains of constraints are followed to their end;
    3. by bounds over all remaining requests (``bounds``).

    Only branches without any solution are cut. A branch in which a fatal error may be met is never cut, since the
    reference would meet it. So the search looks ahead up to the *error horizon*, the first stage at which such an error
    may be met: of that stage is only asked whether a device is left to choose or to fail on, and nothing of the stages
    behind it. A branch may be cut for the stages before it: when these cannot be served, the error is not met either.

    It keeps no state except what is computed once per problem.
    """

    def __init__(self, problem: NodeProblem) -> None:
        self._problem = problem
        self._error_horizons = find_error_horizons(problem)
        self._bounds = Bounds(problem)
        self._listed = {ledger: _listed(ledger.agrees_on) for ledger in problem.ledgers if ledger.agrees_on is not None}
        """For each such constraint the devices that have several values."""
        self._stages = [OpenRequest.of(*((domain, domain.need) for domain in domains)) for domains in problem.domains]

    @property
    def cannot_raise_from(self) -> int:
        """The first stage from which on no fatal error can be met."""
        return self._error_horizons.index(len(self._problem.domains))

    def may_prune(self, stage: int) -> bool:
        """No fatal error can be met at the stage itself, so that looking ahead from it is of use."""
        return self._error_horizons[stage] > stage

    def everything(self) -> Remaining:
        """What remains before anything is known."""
        # A request for all devices is ruled out, by being left out, if a single one of them cannot be taken.
        return {
            domain.number: domain.collected if domain.alternative.everything else domain.usable
            for domains in self._problem.domains
            for domain in domains
            if not domain.collected & ~domain.usable
        }

    def start(self) -> Remaining | None:
        """What remains before the first choice; None when there is no solution."""
        opened = self._stages[: self._error_horizons[0]]
        # Nothing is narrowed yet, so each constraint is followed once.
        touched = {constraint for request in opened for constraint in request.touching}
        remaining = self._propagated(self.everything(), opened, touched)
        return remaining if remaining is not None and self._arrives(0, remaining, opened, None) else None

    def propagate(
        self, before: Remaining, state: BranchState, stage: int, chosen: Domain, missing: int, rest: int
    ) -> Remaining | None:
        """What remains after ``chosen`` took a device and still misses some from ``rest``."""
        # A new dict for each choice: the frame gives its own to the next device when this one fails.
        remaining: Remaining = {}
        touched: set[Ledger] = set(chosen.comparing)
        opened = [OpenRequest.of((chosen, missing))] if missing else []
        changed = bool(missing or chosen.ledgers)
        # Behind the horizon as well: those domains are looked at later, from a choice nearer to them. Conclusions are
        # drawn from ``opened`` only, which ends at the horizon.
        for request in opened + self._stages[stage + 1 :]:
            for domain, _ in request.alternatives:
                if domain.number not in before:
                    continue
                old = before[domain.number]
                # The request itself goes on behind its last device; all others lose what is in use now.
                new = (rest & old if domain is chosen else old) & ~state.blocked(domain)
                for ledger in chosen.ledgers:
                    # Only ledgers that the choice has changed, and only if their refusals last until it is taken back:
                    # others may admit the device again after a later choice.
                    if new and ledger.lasting and ledger in domain.ledgers:
                        new = ledger.admit(new, domain)
                if new != old:
                    changed = True
                    touched.update(domain.comparing)
                    if domain.alternative.everything:
                        continue
                remaining[domain.number] = new
        opened += self._stages[stage + 1 : self._error_horizons[stage]]
        # Without a change less is needed of the same devices than before the choice: what held then still holds.
        narrowed = self._propagated(remaining, opened, touched) if changed else remaining
        return narrowed if narrowed is not None and self._arrives(stage, narrowed, opened, state) else None

    def _arrives(self, stage: int, remaining: Remaining, opened: list[OpenRequest], state: BranchState | None) -> bool:
        """The first stage at which an error may be met finds a device to choose or to fail on."""
        devices = 0
        for domain in chain.from_iterable(self._problem.domains[self._error_horizons[stage] :][:1]):
            # Whether these arrive does not hang on a free device, or is not known: they count as arriving, which cuts
            # nothing.
            if domain.alternative.everything or domain.alternative.admin or not domain.need:
                return True
            devices |= (domain.usable | domain.raised) & ~(state.blocked(domain) if state is not None else 0)
        return self._error_horizons[stage] == len(self._problem.domains) or self._bounds.one_is_left(
            devices, remaining, opened
        )

    def _propagated(self, remaining: Remaining, opened: list[OpenRequest], touched: set[Ledger]) -> Remaining | None:
        if not all(request.alive(remaining) for request in opened):
            return None
        queue = [ledger for ledger in touched if ledger.agrees_on is not None]
        # What one constraint rules out may leave too little for another: followed until nothing changes.
        while queue:
            constraint = queue.pop()
            changed = self._match(constraint, remaining, opened)
            if changed is None:
                return None
            queue.extend(other for other in changed if other is not constraint and other not in queue)
        # Bounds come last: they take longest, and find more the smaller the domains are.
        return remaining if self._bounds.suffice(remaining, opened) else None

    def _match(self, constraint: Ledger, remaining: Remaining, opened: list[OpenRequest]) -> set[Ledger] | None:
        """Keeps devices with values that can still be common; returns the other constraints that this affects."""
        # A request with an alternative outside the constraint may use that, so it rules out no value.
        forced = [request for request in opened if constraint in request.bound]
        if not forced:
            return set()
        together = 0
        for request in forced:
            together |= request.devices(remaining)
        others = frozenset.intersection(*(request.bound for request in forced)) - {constraint}
        # A device that several requests may get serves more than one: their number proves nothing.
        least = 0 if together & self._bounds.several else sum(request.need(remaining) for request in forced)
        allowed = 0
        for devices in _columns(constraint, together, self._listed[constraint]):
            if devices.bit_count() >= least and self._common(devices, forced, others, remaining):
                allowed |= devices
        changed: set[Ledger] = set()
        # Whoever may fall under the constraint loses the devices of impossible values, in the alternatives that do.
        for request in opened:
            if constraint not in request.touching:
                continue
            for domain, need in request.alternatives:
                old = remaining.get(domain.number)
                if old is None or constraint not in domain.ledgers or not old & ~allowed:
                    continue
                changed.update(c for c in domain.comparing if c.agrees_on is not None)
                if domain.alternative.everything or (old & allowed).bit_count() < need:
                    del remaining[domain.number]
                else:
                    remaining[domain.number] = old & allowed
            if not request.alive(remaining):
                return None
        return changed

    def _common(self, devices: int, forced: list[OpenRequest], others: frozenset[Ledger], remaining: Remaining) -> bool:
        """All requests find enough of these devices, and together enough different ones under all constraints."""
        together = total = 0
        for request in forced:
            least = 0
            found = False
            for domain, need in request.alternatives:
                mine = remaining.get(domain.number, 0) & devices
                if domain.number in remaining and mine.bit_count() >= need:
                    together |= mine
                    least = min(least, need) if found else need
                    found = True
            if not found:
                return False
            total += least
        if together & self._bounds.several:
            return True
        # Each of the other common constraints by itself, not all at once: that may keep a value too long, and drops
        # none too early.
        return together.bit_count() >= total and all(_at_most(other, together) >= total for other in others)


def _at_most(ledger: Ledger, devices: int) -> int:
    """So many of the devices at most can be taken together under one ledger that compares attributes."""
    most = devices.bit_count()
    for column, several in ((ledger.agrees_on, False), (ledger.differs_in, True)):
        if column is not None:
            sizes = Counter(value for device in each(devices) for value in column.values.get(device, ()))
            most = min(most, len(sizes) if several else max(sizes.values(), default=0))
    return most


def _listed(column: Column) -> int:
    """The devices whose attribute is a list of several values."""
    if sum(map(int.bit_count, column.having.values())) == column.present.bit_count():
        return 0
    return sum(1 << device for device, values in column.values.items() if len(values) > 1)


def _columns(constraint: Ledger, devices: int, listed: int) -> Iterable[int]:
    """The devices of each value that any of the devices has; ``listed`` are those that have several."""
    column = constraint.agrees_on
    if column is None:
        return
    while devices:
        lowest = devices & -devices
        devices ^= lowest
        values = column.values.get(lowest.bit_length() - 1, ())
        for value in values:
            having = column.having[value]
            # Whoever has only this value would lead to the same group again. A device with a list may lead to others,
            # which nobody else need lead to.
            devices &= listed | ~having
            yield having


class Pruner:
    """Knowledge about one problem, gathered during its search."""

    def __init__(self, problem: NodeProblem) -> None:
        # Problems of a node share their domains; ledgers for symmetric requests are added to these.
        problem.own_domains()
        self._problem = problem
        self._propagation = Propagation(problem)
        # Before ``introduce``: the ledgers that it adds order requests, and tell no two devices apart.
        self._ledgers = tuple(problem.ledgers)
        self._classes = interchangeable(problem)
        introduce(problem, self._propagation.cannot_raise_from)
        self.nogoods: dict[Hashable, BranchEnd] = {}
        # After it: what later requests may still take depends on those ledgers as well.
        self._behind = _behind(problem)

    def may_prune(self, stage: int) -> bool:
        """Looking ahead is allowed: no fatal error can be met at the stage itself."""
        return self._propagation.may_prune(stage)

    def start(self) -> Remaining | None:
        """What remains before the first choice; None when there is no solution."""
        return self._propagation.start()

    def propagate(
        self, remaining: Remaining | None, state: BranchState, stage: int, domain: Domain, missing: int, behind: int
    ) -> Remaining | None:
        """What remains after a choice; None when there is no solution behind it."""
        if remaining is None:
            remaining = self._propagation.everything()
        return self._propagation.propagate(remaining, state, stage, domain, missing, behind)

    def interchangeable_with(self, state: BranchState, device: int) -> int:
        """The devices that fail when this one fails, which has just been given back.

        Admin access takes devices that another claim of this call has taken already: those are different.
        """
        members = self._classes.get(device, 0)
        members &= state.taken if state.taken >> device & 1 else ~state.taken
        # Ledgers are asked only if another device is left: most classes have one member.
        for ledger in self._ledgers if members & ~(1 << device) else ():
            members &= ledger.alike_now(device, members)
        return members

    def key(self, state: BranchState, stage: int, domain: Domain, missing: int, rest: int) -> Hashable:
        """Equal for two places in the search only if what follows is equal."""
        # The number of results for the limit rule; what later domains may still take, whoever holds the rest; and all
        # that the ledgers from here on will answer.
        behind, ledgers = self._behind[stage]
        return (
            domain.number,
            missing,
            rest,
            state.results[domain.claim],
            tuple(devices & ~state.blocked(later) for devices, later in behind),
            tuple(ledger.state() for ledger in ledgers),
        )


Behind = list[tuple[int, Domain]]


def _behind(problem: NodeProblem) -> list[tuple[Behind, list[Ledger]]]:
    """For each stage the devices that the domains behind it may take, and the ledgers of the stage and behind.

    Of domains that may take the same devices, and that the same devices in use concern, one is enough.
    """
    found: list[tuple[Behind, list[Ledger]]] = []
    behind: dict[object, tuple[int, Domain]] = {}
    ledgers: dict[int, Ledger] = {}
    for domains in reversed(problem.domains):
        ledgers = ledgers | {id(ledger): ledger for domain in domains for ledger in domain.ledgers}
        found.append((list(behind.values()), list(ledgers.values())))
        for domain in domains:
            devices = domain.usable | domain.raised
            behind.setdefault((devices, domain.claim, domain.alternative.admin), (devices, domain))
    return found[::-1]
