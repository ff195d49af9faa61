"""What the claims of a pod ask for, checked once and independent of any node (allocator.md section 4).

Each request becomes a ``Stage`` with one ``Alternative`` (``exactly``) or several (``firstAvailable``), each claim
``CompiledRequests``, and the claims of a pod a ``ClaimProgram``. The CEL selectors of classes and requests are compiled
with the errors by which they end an attempt. A fault of the claims does not end the attempt at once, because faults of
pools, and of ``All`` requests of earlier claims, are reported first: the program keeps ``fault`` and the stages before
it.

``extended_requests`` spells out the claim that serves a pod's extended resources on one node (scheduling.md 7.2).
Containers are counted over init containers and regular ones. *Long-lived* containers (regular ones and sidecars) each
get their own request per resource. The others run one after the other before them, so they re-use the requests of
long-lived containers that start later. What they need beyond that becomes an additional request. Of all additional
requests for one resource only the largest is kept; all of them use it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dra_api.cache import Cache
from dra_api.codec import encode
from dra_api.core import Container, ContainerExtendedResourceRequest, Pod
from dra_api.gates import POOL_RULES
from dra_api.releases import Release
from dra_api.resource import (
    Device,
    DeviceAllocationConfiguration,
    DeviceClass,
    DeviceConstraint,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
)
from dra_api.validation.requests import REQUEST_FIELDS, RequestField
from dra_api.values import Quantity
from dra_ledger.basics import DeviceId, Memo
from dra_ledger.errors import AllocationError, ClaimError, SelectorError
from dra_ledger.features import Features
from dra_ledger.predicates import MISSING_NAME, CompileFailure


class RequestSelector(NamedTuple):
    """One selector of a class or request; all fields but the expression are for messages.

    It does not say of which claim: claims that ask for the same have the same selectors.
    """

    class_: str
    """The class that it comes from; empty if it is the request's own."""
    position: int
    expression: str
    request: str
    """The request that uses it."""

    def of(self, claim: str) -> str:
        """Its name in a sentence about a claim."""
        return f"selector #{self.position} of {f'class {self.class_}' if self.class_ else self._user(claim)}"

    def _user(self, claim: str) -> str:
        return f"claim {claim}, request {self.request}"

    def error(self, claim: str, device: DeviceId, published: Device, cause: Exception) -> SelectorError:
        """Return the error of this selector on a device, with what the device does publish.

        A selector that does not compile is the claim's or the class's fault, on whichever device that shows.
        """
        owner = f"class {self.class_}" if self.class_ else f"claim {claim}"
        # Most such errors are a name that this driver does not publish: so the names that it does publish are said.
        attributes = ", ".join(sorted(published.attributes or ())) or "none"
        capacity = ", ".join(sorted(published.capacity or ())) or "none"
        # It fails on every device alike, so no other node would do better.
        make = SelectorError if isinstance(cause, CompileFailure) else SelectorError.of_node
        return make(
            f"{owner}: selector #{self.position}: CEL {_kind(cause)} error: {cause} "
            f"({self._user(claim)}; device {device} publishes attributes: {attributes}; capacity: {capacity}); "
            f"{_remedy(cause)}"
        )


def _remedy(cause: Exception) -> str:
    if getattr(cause, "kind", None) == MISSING_NAME:
        return 'correct the name, or allow for devices without it, as in device.attributes["domain"].?name.orValue("")'
    if getattr(cause, "kind", None) == "unsupported-attribute":
        return "the ResourceSlice is at fault: have its driver publish one value of the attribute"
    return "correct the expression"


def _kind(cause: Exception) -> str:
    return "compile" if isinstance(cause, CompileFailure) else "runtime"


ClassLookup = Callable[[str], DeviceClass | None]


KEPT_PROGRAM_BYTES: Final = 16 << 20
"""What the programs of claims may take in sum."""
_COMPILED_BYTES: Final = 4096
_SHORT_BYTES: Final = 4096
_PROGRAM_BYTES_PER_CHARACTER: Final = 16
"""What a program takes for each character of what the claim asks for, as JSON; the key included."""


class AttributeValue(NamedTuple):
    """One value of a device attribute, with its type as columns have it."""

    attribute: str
    value: tuple[str, object]

    @property
    def text(self) -> str:
        """The value without its type."""
        return str(self.value[1]).lower() if isinstance(self.value[1], bool) else str(self.value[1])


class Comparison(NamedTuple):
    """A constraint of a claim: its devices have a value of the attribute in common, or none."""

    position: int
    """Its place among the constraints of the claim."""
    attribute: str
    distinct: bool
    is_derived: bool = False
    """Some request of the claim computes the attribute for each device."""


@dataclass(frozen=True, slots=True, eq=False)
class Alternative:
    """One way to serve a request. ``request`` is the name in results: ``request`` or ``request/subrequest``."""

    request: str
    class_: DeviceClass
    selectors: tuple[RequestSelector, ...]
    everything: bool
    """Mode All; otherwise ``count`` devices."""
    count: int
    least: int
    """The fewest devices that serve it: ``count``, or in mode All one, and none in Kubernetes 1.32."""
    admin: bool
    tolerations: tuple[DeviceToleration, ...] | None
    capacity: tuple[tuple[str, Quantity], ...]
    constraints: tuple[Comparison, ...]
    """The constraints of the claim that apply, in order."""
    derived: Mapping[str, str] = field(default_factory=dict)
    """Attributes that it computes for each device, with their expressions; constraints compare them."""
    value: AttributeValue | None = None
    """What all devices have, whatever the claim says."""
    expressions: tuple[str, ...] = field(init=False)
    """The texts of the selectors."""
    published: tuple[Comparison, ...] = field(init=False)
    """The constraints that compare published attributes, rather than attributes that the request computes."""
    offer: Hashable = field(init=False)
    """Equal for alternatives to which a node offers the same devices, regardless of allocations and constraints."""

    def __post_init__(self) -> None:
        expressions = tuple(selector.expression for selector in self.selectors)
        published = tuple([it for it in self.constraints if it.attribute not in self.derived])
        object.__setattr__(self, "expressions", expressions)
        object.__setattr__(self, "published", published)
        object.__setattr__(self, "offer", (expressions, self.tolerations, self.capacity))


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One request: the alternatives are tried in order."""

    claim: int
    request: str
    alternatives: tuple[Alternative, ...]
    prioritized: bool


class CompiledRequests:
    """The requests of one claim. Claims that request the same share them."""

    __slots__ = ("bytes", "configurations", "fault", "has_choices", "may_fail_anywhere", "stages", "wants_admin_access")

    def __init__(self, stages: tuple[Stage, ...], fault: AllocationError | None) -> None:
        self.stages = stages
        """One for each request, up to the first fault."""
        self.fault = fault
        self.bytes = 0
        """Of the requests as JSON."""
        self.has_choices = any(stage.prioritized for stage in stages)
        """Some request lists subrequests, of which one is chosen."""
        self.wants_admin_access = any(alternative.admin for stage in stages for alternative in stage.alternatives)
        """Some request has admin access."""
        self.may_fail_anywhere = any(alternative.derived for stage in stages for alternative in stage.alternatives)
        """Some request computes what may fail on any device."""
        self.configurations: Memo[tuple[int, ...], tuple[DeviceAllocationConfiguration, ...]] = Memo()
        """What its classes configure, by the chosen alternatives; kept for ``configuration``, which works it out."""


class ClaimProgram:
    """The claims of a pod with what they ask for, up to the first fault."""

    __slots__ = ("bytes", "claims", "fault", "has_choices", "may_fail_anywhere", "more_bytes", "requests", "stages")

    def __init__(self, claims: tuple[ResourceClaim, ...], requests: list[CompiledRequests], more_bytes: int) -> None:
        self.claims = claims
        self.more_bytes = more_bytes
        """The length of the rest of the claims as JSON: their configuration, and all of those behind the fault."""
        self.requests = requests
        """By claim; the one with the fault is the last."""
        if len(requests) == 1:  # the usual claim of a pod: nothing to sum up
            only = requests[0]
            self.stages, self.fault, self.has_choices = only.stages, only.fault, only.has_choices
            self.bytes, self.may_fail_anywhere = only.bytes, only.may_fail_anywhere
            return
        stages: list[Stage] = []
        size, has_choices, may_fail = 0, False, False
        for one in requests:  # one loop: there are a few claims, and each is new
            stages += one.stages
            size += one.bytes
            has_choices = has_choices or one.has_choices
            may_fail = may_fail or one.may_fail_anywhere
        self.stages = tuple(stages)
        """All stages in the order of the search."""
        self.fault = requests[-1].fault if requests else None
        self.has_choices = has_choices
        """Some request lists subrequests, of which one is chosen."""
        self.bytes = size
        """The length of the requests as JSON."""
        self.may_fail_anywhere = may_fail
        """Some request computes what may fail on any device."""

    @property
    def is_short(self) -> bool:
        """Whether each node may keep what it answers; there are thousands of nodes."""
        return self.bytes <= _SHORT_BYTES

    def named(self, expression: str) -> str:
        """The selector of this text, as a sentence names it."""
        for stage in self.stages:
            for alternative in stage.alternatives:
                for selector in alternative.selectors:
                    if selector.expression == expression:
                        return selector.of(self.claims[stage.claim].key)
        return "a selector"

    @property
    def wants_admin_access(self) -> bool:
        """Some request has admin access."""
        return any(compiled.wants_admin_access for compiled in self.requests)


def refused_fields(features: Features) -> tuple[RequestField, ...]:
    """Return the fields with which no request can be served, since their gates are off."""
    return tuple(
        [
            gated
            for gated in REQUEST_FIELDS
            if gated.refusal and not getattr(features, gated.gate)
            # A release that does not know the field goes on without it, as its server has dropped it.
            if gated.since <= features.release and not (gated.is_ignored_by_stable and features.basic)
        ]
    )


_Asked = tuple[int, AttributeValue | None, bytes]
"""The claim's place among those of the pod, the value given, and what it asks for as JSON."""


class ClaimCompiler:
    """Compiles claims. Those that ask for the same, such as all claims of one template, get the same stages.

    It knows the classes and gates of its time: when they change, it takes a new one.
    """

    def __init__(self, class_of: ClassLookup, features: Features) -> None:
        self._class_of = class_of
        self._features = features
        self._refused = refused_fields(features)
        self._known: Cache[_Asked, CompiledRequests] = Cache(
            KEPT_PROGRAM_BYTES,
            lambda key, compiled: _COMPILED_BYTES + _PROGRAM_BYTES_PER_CHARACTER * len(key[2]),
            largest=KEPT_PROGRAM_BYTES // 2,
        )

    def program(self, claims: Sequence[ResourceClaim], value: AttributeValue | None) -> ClaimProgram:
        """Checks the claims and lists their alternatives, of devices that have the value if there is one."""
        requests: list[CompiledRequests] = []
        configs = 0
        for claim in claims:
            asked = claim.spec.devices
            # Not the claim's name: claims of one template share their program. Their place counts, since stages carry
            # it.
            key = (len(requests), value, encode((asked.requests, asked.constraints)))
            compiled = self._known.get(key) or self._compiled(key, claim)
            requests.append(compiled)
            if asked.config:
                configs += len(encode(asked.config))
            # Nothing behind a fault is ever searched: the first one is the answer, and what follows need not be
            # compiled.
            if compiled.fault is not None:
                configs += sum(len(encode(behind.spec)) for behind in claims[len(requests) :])
                break
        return ClaimProgram(tuple(claims), requests, configs)

    def _compiled(self, key: _Asked, claim: ResourceClaim) -> CompiledRequests:
        number, value, asked = key
        made = _Compiler(number, claim, value, self._class_of, self._features, self._refused).compile()
        made.bytes = len(asked)
        if made.fault is None:  # a fault names its claim
            self._known.put(key, made)
        return made


class _Compiler:
    """Compiles one claim."""

    def __init__(
        self,
        number: int,
        claim: ResourceClaim,
        value: AttributeValue | None,
        class_of: ClassLookup,
        features: Features,
        refused: Sequence[RequestField],
    ) -> None:
        self._refused = refused
        self._number = number
        self._claim = claim
        self._value = value
        self._class_of = class_of
        self._features = features
        self._constraints = claim.spec.devices.constraints or ()
        # Of all requests: a constraint compares what one computes with what another computes or publishes (K37-DA-08).
        derived = {name for wanted in _wanted(claim) for name in _derived(wanted, features)}
        self._comparisons = [
            (Comparison(position, *compared, compared[0] in derived), constraint.requests)
            for position, constraint in enumerate(self._constraints)
            if (compared := _compared(constraint, features)) is not None
        ]

    def compile(self) -> CompiledRequests:
        stages: list[Stage] = []
        try:
            stages.extend(self._stages())  # those before a fault stay
        except AllocationError as error:
            return CompiledRequests(tuple(stages), error)
        return CompiledRequests(tuple(stages), None)

    def _stages(self) -> Iterator[Stage]:
        for request in self._claim.spec.devices.requests or ():
            yield self._stage(request)
        # After the requests, as in the reference: a fault of these is reported first (allocator.md section 4).
        for position, constraint in enumerate(self._constraints):
            if _compared(constraint, self._features) is None:
                raise ClaimError(
                    f"claim {self._claim.key}, constraint #{position}: empty constraint (unsupported constraint type?)"
                )

    def _stage(self, request: DeviceRequest) -> Stage:
        self._check_gates(request.name, request)
        if not request.first_available:
            # Neither field: a request of a type that this version does not know. Its empty class name is refused below.
            exact = request.exactly or ExactDeviceRequest()
            return Stage(self._number, request.name, (self._alternative(request.name, request, exact),), False)
        alternatives = tuple(
            self._alternative(f"{request.name}/{sub.name}", request, sub) for sub in request.first_available
        )
        return Stage(self._number, request.name, alternatives, True)

    def _alternative(
        self, name: str, request: DeviceRequest, wanted: ExactDeviceRequest | DeviceSubRequest
    ) -> Alternative:
        # The checks below have the order of allocator.md section 4: it decides which of several faults is reported.
        self._check_gates(name, wanted)
        derived = _derived(wanted, self._features)
        # With the feature off the field was refused above, or the stable implementation ignores it (allocator.md
        # section 4).
        has_capacity = wanted.capacity is not None and self._features.consumable_capacity
        requested = (wanted.capacity.requests if wanted.capacity is not None and has_capacity else None) or {}
        own = self._selectors("", name, wanted.selectors)
        admin = wanted.admin_access if isinstance(wanted, ExactDeviceRequest) else None
        class_ = self._class(name, wanted.device_class_name)
        # A mode of a later release: by a guess the pod would get more devices than it asked for, or fewer.
        if wanted.allocation_mode not in ("ExactCount", "All"):
            raise self._error(name, f"unsupported count mode {wanted.allocation_mode}")
        return Alternative(
            request=name,
            class_=class_,
            # Those of the class come first (allocator.md section 6): the reference stops at the first that is false, so
            # a later one need not fail.
            selectors=self._selectors(class_.metadata.name, name, class_.spec.selectors) + own,
            everything=(everything := wanted.allocation_mode == "All"),
            count=wanted.count,
            least=wanted.count if not everything else int(not POOL_RULES[self._features.release].gives_all_of_nothing),
            admin=bool(admin),
            tolerations=wanted.tolerations,
            # Sorted, so that requests which differ in their order only find the same offer.
            capacity=tuple(sorted(requested.items(), key=lambda item: item[0])),
            constraints=tuple(
                comparison
                for comparison, requests in self._comparisons
                if not requests or request.name in requests or name in requests
            ),
            derived=derived,
            value=self._value,
        )

    def _check_gates(self, name: str, part: DeviceRequest | ExactDeviceRequest | DeviceSubRequest) -> None:
        for gated in self._refused:
            if getattr(part, gated.attribute, None) not in (None, ()):
                raise self._error(name, gated.refusal)

    def _selectors(
        self, class_: str, name: str, selectors: Sequence[DeviceSelector] | None
    ) -> tuple[RequestSelector, ...]:
        for position, selector in enumerate(selectors or ()):
            # A selector of a later release: left out, it would let every device through.
            if selector.cel is None:
                raise self._error(name, f"selector #{position}: CEL expression empty (unsupported selector type?)")
        return tuple(
            [
                RequestSelector(class_, position, selector.cel.expression, name)
                for position, selector in enumerate(selectors or ())
                if selector.cel is not None
            ]
        )

    def _class(self, name: str, class_name: str) -> DeviceClass:
        if not class_name:
            raise self._error(name, "missing device class name (unsupported request type?)")
        class_ = self._class_of(class_name)
        # Classes are of the cluster: no other node knows more of them, so this is a fault of the claim.
        if class_ is None:
            remedy = "it does not exist: create it, or correct deviceClassName"
            raise self._error(name, f"could not retrieve device class {class_name}: {remedy}")
        return class_

    def _error(self, request: str, problem: str) -> ClaimError:
        return ClaimError(f"claim {self._claim.key}, request {request}: {problem}")


def _wanted(claim: ResourceClaim) -> Iterator[ExactDeviceRequest | DeviceSubRequest]:
    for request in claim.spec.devices.requests or ():
        if request.exactly is not None:
            yield request.exactly
        yield from request.first_available or ()


def _derived(wanted: ExactDeviceRequest | DeviceSubRequest, features: Features) -> dict[str, str]:
    """The derived attributes of a request; none before 1.37, which does not know the field."""
    if features.release < Release.V1_37:
        return {}
    return {item.name: item.expression for item in wanted.derived_attributes or ()}


def _compared(constraint: DeviceConstraint, features: Features) -> tuple[str, bool] | None:
    """(attribute, must be distinct) of a constraint; None when it is of an unknown type."""
    if constraint.match_attribute is not None:
        return constraint.match_attribute, False
    # To the stable implementation the constraint is of an unknown type, and ends the attempt.
    if constraint.distinct_attribute is not None and not features.basic:
        return constraint.distinct_attribute, True
    return None


@dataclass(frozen=True, slots=True)
class ExtendedRequests:
    """Requests of the claim sorted by name, and which container uses which for what."""

    requests: tuple[DeviceRequest, ...]
    mappings: tuple[ContainerExtendedResourceRequest, ...]


def extended_requests(pod: Pod, classes: Mapping[str, str]) -> ExtendedRequests:
    """What to allocate for a pod. ``classes``: the class of each resource that devices serve on the node."""
    init, regular = pod.spec.init_containers or (), pod.spec.containers or ()
    containers = [
        _PositionedContainer(position, container, position >= len(init) or container.restart_policy == "Always")
        for position, container in enumerate((*init, *regular))
    ]
    # Sorted like the results: an attempt compares the requests with the claim that an earlier attempt made.
    built = [_Resource(resource, class_, containers) for resource, class_ in sorted(classes.items())]
    requests = [request for resource in built for request in resource.requests()]
    order = {one.container.name: one.position for one in containers}
    mappings = [mapping for resource in built for mapping in resource.mappings()]
    return ExtendedRequests(
        tuple(sorted(requests, key=lambda request: request.name)),
        tuple(sorted(mappings, key=lambda m: (order[m.container_name], m.resource_name, m.request_name))),
    )


class _PositionedContainer(NamedTuple):
    position: int
    container: Container
    long_lived: bool

    @property
    def requests(self) -> dict[str, Quantity]:
        """Limits replace missing requests, as in the API server."""
        resources = self.container.resources
        return {**(resources.limits or {}), **(resources.requests or {})}

    def amount(self, resource: str) -> int:
        requested = self.requests.get(resource)
        return requested.rounded_up() if requested is not None else 0

    def request_name(self, resource: str) -> str:
        return f"container-{self.position}-request-{sorted(self.requests).index(resource)}"


@dataclass(slots=True)
class _Resource:
    """One resource over all containers."""

    name: str
    class_: str
    containers: list[_PositionedContainer]
    counts: dict[str, int] = field(default_factory=dict)
    """Devices per request."""
    users: list[tuple[str, str]] = field(default_factory=list)
    """(container, request)"""

    def __post_init__(self) -> None:
        # Long-lived containers run side by side, so none can use the devices of another.
        owned = [(one, one.amount(self.name)) for one in self.containers if one.amount(self.name) > 0]
        for one, amount in owned:
            if one.long_lived:
                self.counts[one.request_name(self.name)] = amount
                self.users.append((one.container.name, one.request_name(self.name)))
        # The others run one after the other: one request, large enough for the largest of them, serves all.
        rests = [(one, rest) for one, amount in owned if not one.long_lived and (rest := self._reuse(one, amount))]
        if rests:
            largest, amount = max(rests, key=lambda item: item[1])
            self.counts[largest.request_name(self.name)] = amount
            self.users += [(one.container.name, largest.request_name(self.name)) for one, _ in rests]

    def requests(self) -> list[DeviceRequest]:
        return [
            DeviceRequest(
                name=name,
                exactly=ExactDeviceRequest(device_class_name=self.class_, allocation_mode="ExactCount", count=count),
            )
            for name, count in self.counts.items()
        ]

    def mappings(self) -> list[ContainerExtendedResourceRequest]:
        return [
            ContainerExtendedResourceRequest(container_name=container, resource_name=self.name, request_name=request)
            for container, request in self.users
        ]

    def _reuse(self, one: _PositionedContainer, amount: int) -> int:
        """Uses requests of long-lived containers that start later; returns what is still missing."""
        # Not those before it: a sidecar that has started keeps its devices.
        for later in self.containers[one.position + 1 :]:
            if amount > 0 and later.long_lived and later.amount(self.name) > 0:
                self.users.append((one.container.name, later.request_name(self.name)))
                amount -= later.amount(self.name)
        return max(0, amount)
