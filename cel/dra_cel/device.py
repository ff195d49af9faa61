"""Devices as selectors see them, and the environments of device selectors.

A device is prepared once and may then be matched against any number of selectors: attribute names are split into
domain and id (a name without a domain belongs to the driver's), values become CEL values. A device that cannot be
represented (a version that is not semantic, a list while list attributes are off) is prepared all the same; it then
makes *every* evaluation fail, as in the reference (scheduling.md 6.5, allocator.md 6).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from dra_api.resource import Device, DeviceAttribute

from dra_cel.basics.errors import EvaluationError
from dra_cel.basics.types import ANY, BOOL, DYN, INT, QUANTITY, SEMVER, STRING, Type, list_of, map_of, struct
from dra_cel.environment import CHECKED_TYPES, STANDARD_TYPES, STRUCTS, Environment, Shape, kubernetes
from dra_cel.libraries import lists, scalars
from dra_cel.libraries.containers import DefaultMap

VALUE_CHARACTERS: Final = 64
DOMAIN_CHARACTERS: Final = 63
ID_CHARACTERS: Final = 32
ENTRIES: Final = 32
COST_LIMIT: Final = 1_000_000

_DEVICE: Final = struct("kubernetes.DRADevice")


class PreparedDevice:
    """A device ready for selectors. ``fault`` is the error that every evaluation raises, if any.

    ``ordinary``: there is no fault, and names and values are as short as the API requires, which the estimates of
    costs rely on.
    """

    __slots__ = ("attributes", "bindings", "capacity", "driver", "fault", "multiple", "ordinary")

    def __init__(self, driver: str, multiple: bool) -> None:
        self.driver = driver
        self.multiple = multiple
        self.attributes = DefaultMap()
        self.capacity = DefaultMap()
        self.fault: EvaluationError | None = None
        self.ordinary = len(driver) <= DOMAIN_CHARACTERS
        self.bindings: dict[str, Any] = {
            "device": {
                "driver": driver,
                "allowMultipleAllocations": multiple,
                "attributes": self.attributes,
                "capacity": self.capacity,
            }
        }

    def published(self) -> list[str]:
        """The qualified names of all attributes and capacities, for messages."""
        pairs = [*self.attributes.items(), *self.capacity.items()]
        return sorted(f"{domain}/{name}" for domain, values in pairs for name in values)


def prepare(driver: str, device: Device, *, list_attributes: bool = False) -> PreparedDevice:
    """A device of a driver, ready for selectors. Never raises: see ``PreparedDevice.fault``.

    ``list_attributes`` is the feature gate DRAListTypeAttributes.
    """
    prepared = PreparedDevice(driver, device.allow_multiple_allocations is True)
    for qualified, attribute in (device.attributes or {}).items():
        try:
            value = _attribute(attribute, list_attributes)
        except EvaluationError as error:
            if prepared.fault is None:
                prepared.fault = EvaluationError(error.kind, f"attribute {qualified}: {error.message}")
                prepared.ordinary = False
            continue
        _put(prepared, prepared.attributes, qualified, value)
    for qualified, capacity in (device.capacity or {}).items():
        _put(prepared, prepared.capacity, qualified, scalars.parse_quantity(capacity.value.text))
    return prepared


def _put(prepared: PreparedDevice, domains: DefaultMap, qualified: str, value: Any) -> None:
    domain, slash, name = qualified.partition("/")
    if not slash:
        domain, name = prepared.driver, qualified
    entries = domains.get(domain)
    if entries is None:
        entries = domains[domain] = {}
    entries[name] = value
    too_long = len(domain) > DOMAIN_CHARACTERS or len(name) > ID_CHARACTERS
    if too_long or len(entries) > ENTRIES or len(domains) > ENTRIES or not _short(value):
        prepared.ordinary = False


def _short(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= VALUE_CHARACTERS
    return not isinstance(value, list) or (len(value) <= VALUE_CHARACTERS and all(map(_short, value)))


def _attribute(attribute: DeviceAttribute, list_attributes: bool) -> Any:
    """The CEL value of an attribute. Raises EvaluationError."""
    if list_attributes:
        for values in (attribute.ints, attribute.bools, attribute.strings):
            if values is not None:
                return list(values)
        if attribute.versions is not None:
            return [_version(text) for text in attribute.versions]
    for value in (attribute.int_, attribute.bool_, attribute.string):
        if value is not None:
            return value
    if attribute.version is not None:
        return _version(attribute.version)
    raise EvaluationError("unsupported-attribute", "unsupported attribute value")


def _version(text: str) -> scalars.SemverValue:
    try:
        return scalars.parse_version(text)
    except EvaluationError as error:
        raise EvaluationError("bad-attribute", error.message) from None


def _environment(*, new: bool, consumable_capacity: bool, list_attributes: bool) -> Environment:
    value = DYN if list_attributes else ANY
    fields: dict[str, Type] = {
        "driver": STRING,
        "attributes": map_of(STRING, map_of(STRING, value)),
        "capacity": map_of(STRING, map_of(STRING, QUANTITY)),
    }
    if consumable_capacity or not new:
        fields["allowMultipleAllocations"] = BOOL
    known, name = Shape(VALUE_CHARACTERS), Shape(ID_CHARACTERS)
    attributes = Shape(ENTRIES, name, known, any_field=known)
    # The reference declares no size for quantities, which its estimator takes for 0.
    capacity = Shape(ENTRIES, name, Shape(0))
    domain = Shape(DOMAIN_CHARACTERS)
    shape = Shape(
        0,  # the reference declares no size for the device either
        fields={
            "driver": domain,
            "allowMultipleAllocations": Shape(1),
            "attributes": Shape(ENTRIES, domain, attributes),
            "capacity": Shape(ENTRIES, domain, capacity),
        },
    )
    more = [lists.INCLUDES] if list_attributes or not new else []
    allowed = (BOOL, ANY, DYN) if list_attributes else (BOOL, ANY)
    return Environment(
        name=f"{'new' if new else 'stored'} device selectors",
        functions=kubernetes(*more),
        variables={"device": _DEVICE},
        structs={**STRUCTS, _DEVICE.name: fields},
        shapes={"device": shape},
        type_names=STANDARD_TYPES,
        checked_names={**CHECKED_TYPES, _DEVICE.name: _DEVICE},
        accepts_result=lambda output: output in allowed,
        result_rule="bool or the unknown type",
        cost_limit=COST_LIMIT,
    )


_ENVIRONMENTS: Final = {
    (new, consumable, lists): _environment(new=new, consumable_capacity=consumable, list_attributes=lists)
    for new in (False, True)
    for consumable in (False, True)
    for lists in (False, True)
}


def device_selectors(
    *, new: bool = False, consumable_capacity: bool = True, list_attributes: bool = False
) -> Environment:
    """The environment of device selectors.

    ``new`` restricts it to what validation of a newly written object allows under the feature gates; without it
    everything compiles that was ever allowed, which is what allocation uses.
    """
    return _ENVIRONMENTS[new, consumable_capacity, list_attributes]


DEVICE_SELECTORS: Final = device_selectors()
"""What allocation uses with the default feature gates of Kubernetes 1.36."""


_SCALARS: Final = (STRING, INT, BOOL, SEMVER, ANY, DYN)
_ATTRIBUTES: Final = frozenset({*_SCALARS, *map(list_of, _SCALARS)})
_DERIVED: Final = {
    key: replace(
        environment,
        name=environment.name.replace("device selectors", "derived attributes"),
        accepts_result=lambda output: output in _ATTRIBUTES,
        result_rule="a text, whole number, bool or version, or a list of one of these",
    )
    for key, environment in _ENVIRONMENTS.items()
}


def derived_attributes(
    *, new: bool = False, consumable_capacity: bool = True, list_attributes: bool = False
) -> Environment:
    """The environment of derived attributes: that of device selectors, with other results (K37-DA-06, K37-DA-09)."""
    return _DERIVED[new, consumable_capacity, list_attributes]
