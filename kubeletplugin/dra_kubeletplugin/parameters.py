"""The opaque parameters of a driver: what a claim, or its class, says of how a device is to be set up.

The API server stores them as they are: nothing but the driver knows their fields. A misspelt field that is dropped
leaves its default in force, and the pod runs with a device that is set up otherwise than its claim says. So decoding
refuses unknown fields, at any depth and for any type, as the API server does for its
own kinds. msgspec by itself does so only for structs that ask for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, Generic, TypeVar, overload

import msgspec
from dra_api.references import configs_for_result
from dra_api.resource import DeviceRequestAllocationResult, ResourceClaim
from msgspec import inspect

from dra_kubeletplugin.errors import ClaimError

Parameters = TypeVar("Parameters")


@dataclass(frozen=True, slots=True)
class DeviceConfig(Generic[Parameters]):
    """Configuration of a device: of the claim's author, or with ``from_class`` of the administrator."""

    parameters: Parameters
    from_class: bool = False


@overload
def configs_for(
    driver: str, claim: ResourceClaim, result: DeviceRequestAllocationResult
) -> list[DeviceConfig[dict[str, Any]]]: ...


@overload
def configs_for(
    driver: str,
    claim: ResourceClaim,
    result: DeviceRequestAllocationResult,
    kind: type[Parameters],
    *,
    allow_unknown: bool = False,
) -> list[DeviceConfig[Parameters]]: ...


def configs_for(
    driver: str,
    claim: ResourceClaim,
    result: DeviceRequestAllocationResult,
    kind: Any = dict[str, Any],
    *,
    allow_unknown: bool = False,
) -> list[DeviceConfig[Any]]:
    """Return the configuration of a device for this driver, in the order in which later entries win.

    Parameters are decoded into ``kind``, which may be a dataclass, a ``TypedDict`` or a ``msgspec.Struct``. A field
    that ``kind`` does not have is an error, unless ``allow_unknown`` drops it. Raises ClaimError with the claim and the
    field at fault, and TypeError for a ``kind`` that nothing can be decoded into.
    """
    _type_info(kind)
    allocation = claim.status.allocation
    found: list[DeviceConfig[Any]] = []
    for config in configs_for_result(allocation.devices.config if allocation else None, result.request):
        if config.opaque and config.opaque.driver == driver:
            from_class = config.source == "FromClass"
            raw = bytes(config.opaque.parameters)
            try:
                found.append(DeviceConfig(decode_parameters(raw, kind, allow_unknown=allow_unknown), from_class))
            except (ValueError, TypeError, RecursionError) as error:
                where = "its class" if from_class else "the claim"  # the parameters themselves may hold a password
                raise ClaimError(
                    f"claim {claim.key}: the parameters of {where} are invalid for driver {driver}: {error}"
                ) from error
    return found


def decode_parameters(raw: bytes, kind: Any, *, allow_unknown: bool = False) -> Any:
    """Return parameters as a value of ``kind``.

    Raises ValueError, TypeError or RecursionError; the message names the field, and no value.
    """
    try:
        decoded = msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        place = _PLACE.search(text := str(error))
        if values := _values_at(place[1] if place else "", _type_info(kind)):
            raise ValueError(f"{text}; use one of {', '.join(map(str, values))}") from error
        raise
    if not allow_unknown:
        for fault in _unknown_fields(msgspec.json.decode(raw), _type_info(kind), "$"):
            raise ValueError(fault)
    return decoded


def _type_info(kind: Any) -> inspect.Type:
    """Raises TypeError: the driver's mistake would otherwise be told to each claim's author."""
    try:
        return _known_type(kind)
    except TypeError as error:
        raise TypeError(
            f"the driver's parameters cannot be decoded into {kind!r} ({error}): use a dataclass, a TypedDict, a "
            "msgspec.Struct or dict[str, Any], whose fields are of such types, text, numbers, lists or enums"
        ) from error


@cache
def _known_type(kind: Any) -> inspect.Type:
    info = inspect.type_info(kind)
    fields = info.fields if isinstance(info, inspect.DataclassType | inspect.StructType) else ()
    for name, found in [("", info), *((field.name, field.type) for field in fields)]:
        if isinstance(found, inspect.CustomType):
            raise TypeError(f"field {name}: {found.cls!r}" if name else "no such type")
    return info


_PLACE = re.compile(r" - at `\$(.*)`$")
_PLACE_PART = re.compile(r"\.(?P<field>[^.\[]+)|\[.*?\]")


def _values_at(place: str, kind: inspect.Type) -> list[Any]:
    """Return the values that a type allows at a place such as ``.color``; none if these are not a few."""
    kinds = _members(kind)
    for part in _PLACE_PART.finditer(place):
        inner: list[inspect.Type] = []
        for each in kinds:
            if isinstance(each, inspect.DictType):
                inner.append(each.value_type)
            elif part["field"] and isinstance(each, inspect.StructType | inspect.DataclassType | inspect.TypedDictType):
                inner += [field.type for field in each.fields if field.encode_name == part["field"]]
            else:
                inner += _item_types(each, 1)
        kinds = [member for each in inner for member in _members(each)]
    values: list[Any] = []
    for each in kinds:
        if isinstance(each, inspect.LiteralType):
            values += each.values
        elif isinstance(each, inspect.EnumType):
            values += [member.value for member in each.cls]
    return values


def _members(kind: inspect.Type) -> list[inspect.Type]:
    if isinstance(kind, inspect.Metadata):
        return _members(kind.type)
    return (
        [each for member in kind.types for each in _members(member)] if isinstance(kind, inspect.UnionType) else [kind]
    )


def _unknown_fields(value: Any, kind: inspect.Type, path: str) -> Iterator[str]:
    """Yield a sentence for each field of a decoded value that its type does not have."""
    kind = _alternative(value, kind)
    if isinstance(value, dict):
        if isinstance(kind, inspect.DictType):
            for key, item in value.items():
                yield from _unknown_fields(item, kind.value_type, f"{path}.{key}")
        elif isinstance(kind, inspect.StructType | inspect.DataclassType | inspect.TypedDictType):
            fields = {field.encode_name: field.type for field in kind.fields}
            tag = kind.tag_field if isinstance(kind, inspect.StructType) else None
            for key, item in value.items():
                if key in fields:
                    yield from _unknown_fields(item, fields[key], f"{path}.{key}")
                elif key != tag:
                    yield _sentence(key, list(fields), path)
    elif isinstance(value, list):
        for index, (item, of_item) in enumerate(zip(value, _item_types(kind, len(value)), strict=False)):
            yield from _unknown_fields(item, of_item, f"{path}[{index}]")


def _alternative(value: Any, kind: inspect.Type) -> inspect.Type:
    """Return the member of a union that a value was decoded into: msgspec has one for objects and one for arrays,
    or structs with a tag."""
    if isinstance(kind, inspect.Metadata):
        return _alternative(value, kind.type)
    if not isinstance(kind, inspect.UnionType):
        return kind
    for member in kind.types:
        found = _alternative(value, member)
        if isinstance(found, inspect.StructType) and found.tag_field is not None and not found.array_like:
            if isinstance(value, dict) and value.get(found.tag_field) == found.tag:
                return found
        elif _item_types(found, 1) if isinstance(value, list) else isinstance(value, dict) and _is_of_objects(found):
            return found
    return inspect.AnyType()


def _is_of_objects(kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.StructType):
        return not kind.array_like
    return isinstance(kind, inspect.DictType | inspect.DataclassType | inspect.TypedDictType)


def _item_types(kind: inspect.Type, count: int) -> tuple[inspect.Type, ...]:
    """Return the types of the items of an array with ``count`` of them; none for other types."""
    if isinstance(kind, inspect.CollectionType):
        return (kind.item_type,) * count
    if isinstance(kind, inspect.TupleType):
        return kind.item_types
    if isinstance(kind, inspect.NamedTupleType) or (isinstance(kind, inspect.StructType) and kind.array_like):
        return tuple(field.type for field in kind.fields)
    return ()


def _sentence(name: str, fields: list[str], path: str) -> str:
    close = get_close_matches(name, fields, n=1)
    meant = f", did you mean `{close[0]}`?" if close else ""
    known = f"the fields there are {', '.join(fields)}" if fields else "there are no fields"
    return f"unknown field `{name}` - at `{path}`{meant}; {known}"
