"""The schema of kinds by release, and the decoding of a body by it.

``components.json`` has the fields of all releases. A server drops a field that its release does not know, as it drops
any other unknown field; a field that is behind a gate is dropped by the gate. The fields that 1.37 added or removed
without a gate are listed here.

OpenAPI component schemas (built-in kinds) and structural schemas (CustomResourceDefinitions) describe the same things
in slightly different words; both compile to the same `Schema` tree, so that decoding, patching and ownership tracking
know only one form. Trees may be cyclic (a schema may mention itself); nothing here walks them without an object.

A built-in object passes through Go structs on the real server: fields it does not know are dropped (and reported,
for `fieldValidation=Warn` and `Strict`), nulls vanish, and a value of the wrong JSON type ends the request with 400.
An optional list or map that is empty vanishes too, a quantity is rewritten in its shortest form (``1000m`` as ``1``),
and a time in UTC, so that objects that mean the same look the same. `decode` does the same to a plain dict, in place.
Custom resources drop unknown fields in the same way, but the schema validates their types (`validate`), not the
decoder.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from threading import Lock
from typing import Any, Final

import orjson
from dra_api.releases import Release
from dra_api.validation.requests import REQUEST_FIELDS, Place
from dra_api.values import QuantityError, format_micro_time, format_time, parse_quantity

Json = dict[str, Any]

_KINDS: Final = {
    Place.REQUEST: ("DeviceRequest",),
    Place.EXACTLY: ("ExactDeviceRequest", "DeviceRequest"),  # v1beta1 has no exact requests
    Place.ALTERNATIVE: ("DeviceSubRequest",),
    Place.RESULT: ("DeviceRequestAllocationResult",),
}
_NEW: Final = frozenset(
    {
        *(
            (kind, field.name)
            for field in REQUEST_FIELDS
            if field.since == Release.V1_37
            for place in field.places
            for kind in _KINDS[place]
        ),
        ("BasicDevice", "nodeAllocatableResources"),
        ("Device", "nodeAllocatableResources"),
        ("DeviceCounterConsumption", "compatibilityGroups"),
        ("DeviceRequestAllocationResult", "skipNodeOperations"),
        ("NodeAllocatableResourceClaimStatus", "mapping"),
        ("NodeAllocatableResourceClaimStatus", "overhead"),
        ("PoolStatus", "partitionSummary"),
        ("PoolStatus", "shareableSummary"),
        ("ResourcePoolStatusRequestSpec", "defaultPartitionTypeAttribute"),
        ("ResourceSliceSpec", "partitionTypeAttribute"),
        ("ResourceSliceSpec", "skipNodeOperations"),
    }
)
_GONE: Final = frozenset(
    {
        ("BasicDevice", "nodeAllocatableResourceMappings"),
        ("Device", "nodeAllocatableResourceMappings"),
        ("NodeAllocatableResourceClaimStatus", "resources"),
    }
)
"""By the kind of the part, in all versions, and the name of the field."""


def component_of(release: Release, name: str, component: Json) -> Json:
    """The component with the fields that the release has."""
    other, kind = _NEW if release < Release.V1_37 else _GONE, name.rpartition(".")[2]
    properties = component.get("properties", {})
    if not any((kind, field) in other for field in properties):
        return component
    kept = {field: schema for field, schema in properties.items() if (kind, field) not in other}
    required = [field for field in component.get("required", ()) if field in kept]
    return {**component, **({"required": required} if required else {}), "properties": kept}


_REF = "#/components/schemas/"
_MISSING: Any = object()
_JSON_TYPES = {"object": dict, "map": dict, "array": list, "string": str, "boolean": bool}
# Go types that marshal to something else than their OpenAPI `type` says.
_SPECIAL = {
    "Quantity": "quantity",
    "Time": "time",
    "MicroTime": "micro-time",
    "IntOrString": "int-or-string",
    "RawExtension": "any",
    "FieldsV1": "any",
}
_INTERNAL = ("io.k8s.apimachinery.", "io.k8s.apiextensions-apiserver.")


@dataclass(slots=True, eq=False)
class Schema:
    """One type. `kind` is object, map, array, string, integer, number, boolean, bytes, time, micro-time,
    quantity, int-or-string or any; `properties` belongs to objects, `items` to arrays and maps."""

    kind: str
    name: str = ""  # of the Go type, as error messages name it: "v1.Container", "int32", "string"
    properties: dict[str, Schema] = field(default_factory=dict)
    items: Schema | None = None
    required: tuple[str, ...] = ()
    default: Any = _MISSING
    atomic: bool = False  # owned and merged as a whole (list-type or map-type atomic)
    list_type: str = "atomic"  # of arrays: atomic, set or map
    map_keys: tuple[str, ...] = ()
    merge_key: str = ""
    strategies: frozenset[str] = frozenset()  # of patches: merge, replace, retainKeys
    typed: bool = True  # the decoder checks types; not so for custom resources, which validation checks
    preserve: bool = False  # unknown fields are kept
    embedded: bool = False  # a whole API object (apiVersion, kind, metadata) inside a custom resource
    nullable: bool = False
    rules: Json = field(default_factory=dict)  # value validations of a structural schema (enum, pattern, minimum...)

    # The JSON type that a value of this kind always has; None where more than one will do.
    json_type: type | None = field(init=False)

    def __post_init__(self) -> None:
        self.json_type = _JSON_TYPES.get(self.kind)

    @property
    def has_default(self) -> bool:
        return self.default is not _MISSING

    def child(self, name: str) -> Schema | None:
        """The schema of the field or map entry `name`, None when it is unknown."""
        if self.kind == "map":
            return self.items
        return self.properties.get(name)


ANY = Schema("any", preserve=True)


class Components:
    """Compiles named OpenAPI components on demand; one `Schema` per name. Threads may share it."""

    def __init__(self, raw: Mapping[str, Json]) -> None:
        self.raw = raw
        self._compiled: dict[str, Schema] = {}
        self._lock = Lock()

    def get(self, name: str) -> Schema:
        with self._lock:  # or another thread would get one whose fields are not compiled yet
            return self._get(name)

    def _get(self, name: str) -> Schema:
        found = self._compiled.get(name)
        if found is None:
            # Registered before its fields are compiled: a field may refer back to it.
            found = self._compiled[name] = self._component(name, self.raw[name])
            for key, value in self.raw[name].get("properties", {}).items():
                found.properties[key] = self._compile(value)
        return found

    def _component(self, name: str, raw: Json) -> Schema:
        version, short = name.rsplit(".", 2)[-2:]
        special = _SPECIAL.get(short) if name.startswith(_INTERNAL) else None
        if special is None and not raw.get("properties"):
            special = "object" if raw.get("type") == "object" and raw else "any"
        return Schema(
            special or "object",
            name=f"{version}.{short}",
            required=tuple(raw.get("required", ())),
            atomic=raw.get("x-kubernetes-map-type") == "atomic",
            preserve=special == "any",
        )

    def _compile(self, raw: Json) -> Schema:
        ref = raw.get("$ref") or (raw["allOf"][0].get("$ref") if "allOf" in raw else None)
        if ref:
            return _with_hints(self._get(ref.removeprefix(_REF)), raw)
        kind = _kind(raw)
        items = raw.get("items") if kind == "array" else raw.get("additionalProperties")
        compiled = Schema(kind, items=self._compile(items) if items else None)
        compiled.name = _go_type(compiled, raw)
        return _with_hints(compiled, raw)


def compile_structural(raw: Json) -> Schema:
    """The `openAPIV3Schema` of a CustomResourceDefinition version as a Schema tree."""
    kind = "int-or-string" if raw.get("x-kubernetes-int-or-string") else _kind(raw)
    extra = raw.get("items") if kind == "array" else raw.get("additionalProperties")
    compiled = Schema(
        kind,
        name=kind,
        typed=False,
        properties={key: compile_structural(value) for key, value in raw.get("properties", {}).items()},
        items=compile_structural(extra) if isinstance(extra, dict) else (ANY if extra is True else None),
        required=tuple(raw.get("required", ())),
        preserve=bool(raw.get("x-kubernetes-preserve-unknown-fields")) or kind == "any",
        embedded=bool(raw.get("x-kubernetes-embedded-resource")),
        nullable=bool(raw.get("nullable")),
        rules={key: raw[key] for key in raw.keys() & _RULES},
    )
    for key in _LOGIC & raw.keys():
        alternatives = raw[key] if isinstance(raw[key], list) else [raw[key]]
        compiled.rules[key] = [compile_structural(alternative) for alternative in alternatives]
    return _with_hints(compiled, raw)


# Enforced by `validate`; formats and CEL rules are not.
_LOGIC = {"allOf", "anyOf", "oneOf", "not"}
_RULES = {"enum", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"} | {
    f"{bound}{what}" for bound in ("min", "max") for what in ("Length", "Items", "Properties")
}


def _kind(raw: Json) -> str:
    if raw.get("format") == "byte":
        return "bytes"
    kind = str(raw.get("type") or "any")
    if kind == "object" and raw.get("additionalProperties") and not raw.get("properties"):
        return "map"
    return kind


def _go_type(schema: Schema, raw: Json) -> str:
    if schema.kind in ("array", "map"):
        inner = schema.items.name if schema.items else "interface {}"
        return f"[]{inner}" if schema.kind == "array" else f"map[string]{inner}"
    plain = {"integer": "int64", "number": "float64", "boolean": "bool", "bytes": "[]uint8", "any": "interface {}"}
    return {"int32": "int32", "int64": "int64"}.get(raw.get("format", "")) or plain.get(schema.kind, schema.kind)


def _with_hints(schema: Schema, raw: Json) -> Schema:
    """The schema as seen from one field: defaults and list hints stand beside the reference."""
    hints: Json = {}
    if "default" in raw:
        hints["default"] = raw["default"]
    if "x-kubernetes-list-type" in raw:
        hints["list_type"] = raw["x-kubernetes-list-type"]
        hints["map_keys"] = tuple(raw.get("x-kubernetes-list-map-keys", ()))
    if raw.get("x-kubernetes-map-type") == "atomic":
        hints["atomic"] = True
    if "x-kubernetes-patch-strategy" in raw:
        hints["strategies"] = frozenset(raw["x-kubernetes-patch-strategy"].split(","))
        hints["merge_key"] = raw.get("x-kubernetes-patch-merge-key", "")
    if schema.kind == "array" and hints.get("list_type", schema.list_type) == "atomic":
        hints["atomic"] = True
    return replace(schema, **hints) if hints else schema


_INT_BITS = {"int32": 31, "int64": 63}
_TIMES = {
    "time": re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII),
    "micro-time": re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)", re.ASCII),
}
_TIME_LAYOUTS = {"time": "2006-01-02T15:04:05Z07:00", "micro-time": "2006-01-02T15:04:05.000000Z07:00"}


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding. `kind` is "unknown" or "duplicate" (tolerable: a warning, or an error when strict) or "type"
    (always an error); `text` is what the real server says of it."""

    kind: str
    path: str
    text: str


def decode(schema: Schema, obj: Json) -> list[Problem]:
    """Drops unknown fields and nulls from `obj` in place; returns all findings, at most one of kind "type".

    A type problem ends the decoding, as on the real server.
    """
    problems: list[Problem] = []
    try:
        _object(schema, obj, None, problems)
    except _WrongType as fault:
        problems.append(fault.problem)
    except RecursionError:
        problems.append(Problem("type", "", "the object is nested too deeply"))
    return problems


def refusal(version: str, kind: str, problems: list[Problem]) -> str:
    """The 400 message for an object with these problems: the type problem if there is one, else all (strict)."""
    wrong = [problem.text for problem in problems if problem.kind == "type"]
    text = wrong[0] if wrong else "strict decoding error: " + ", ".join(problem.text for problem in problems)
    return f'{kind} in version "{version}" cannot be handled as a {kind}: {text}'


def find_duplicates(body: bytes) -> list[Problem]:
    """Fields given twice in one JSON object of `body` (the last one wins). Raises ValueError if it is not JSON.

    Costs a second parse; meant for strict requests only."""
    seen: list[_Doubled] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        obj = dict(items)
        if len(obj) == len(items):
            return obj
        keys = [key for key, _ in items]
        seen.append(_Doubled(obj))
        seen[-1].doubled = tuple(dict.fromkeys(key for key in keys if keys.count(key) > 1))
        return seen[-1]

    document = json.loads(body, object_pairs_hook=pairs)
    if not seen:
        return []
    return [Problem("duplicate", path, f'duplicate field "{path}"') for path in _doubled_paths(document, "")]


class _Doubled(dict[str, Any]):
    doubled: tuple[str, ...] = ()


def _doubled_paths(value: Any, path: str) -> list[str]:
    if isinstance(value, list):
        return [found for index, item in enumerate(value) for found in _doubled_paths(item, f"{path}[{index}]")]
    if not isinstance(value, dict):
        return []
    prefix = path + "." if path else ""
    found = [prefix + key for key in value.doubled] if isinstance(value, _Doubled) else []
    for key, item in value.items():
        found += _doubled_paths(item, prefix + key)
    return found


class _WrongType(Exception):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.text)
        self.problem = problem


# Where a value stands: the place of what holds it, and its key or index there. Made a text only for a problem.
_Place = tuple[Any, str | int] | None


def _path(place: _Place) -> str:
    if place is None:
        return ""
    holder, part = place
    if isinstance(part, int):
        return f"{_path(holder)}[{part}]"
    return f"{_path(holder)}.{part}" if holder else part


def _object(schema: Schema, obj: Json, place: _Place, problems: list[Problem]) -> None:
    properties = schema.properties
    doomed: list[str] = []
    for key, value in obj.items():
        child = properties.get(key)
        if child is None:
            if not schema.preserve and not (schema.embedded and key in _EMBEDDED):
                doomed.append(key)
                path = _path((place, key))
                problems.append(Problem("unknown", path, f'unknown field "{path}"'))
        elif value is None:
            if child.typed:
                doomed.append(key)
        elif type(value) is not str or child.json_type is not str:  # frequent, so without a call
            _value(child, value, (place, key), problems, schema)
            if child.kind in _CANONICAL:
                obj[key] = _CANONICAL[child.kind](value)
            elif not value and child.kind in ("array", "map") and child.typed and key not in schema.required:
                doomed.append(key)
    for key in doomed:
        del obj[key]


_EMBEDDED = ("apiVersion", "kind", "metadata")


def _value(schema: Schema, value: Any, place: _Place, problems: list[Problem], owner: Schema) -> None:
    fits = type(value) is schema.json_type if schema.json_type else _FITS[schema.kind](schema, value)
    if not fits:
        if schema.typed:
            raise _mismatch(schema, value, place, owner)
    elif schema.kind == "object":
        _object(schema, value, place, problems)
    elif schema.items is not None:
        is_list = schema.kind == "array"
        nested = is_list or schema.items.json_type in (dict, list)  # else errors name the map, not the entry
        for key, item in enumerate(value) if is_list else value.items():
            if item is not None:
                _value(schema.items, item, (place, key) if nested else place, problems, owner)
                if schema.items.kind == "quantity":
                    value[key] = _shortest(item)
            elif schema.items.typed:  # a null is the zero value of the Go type
                value[key] = deepcopy(_ZEROS.get(schema.items.kind, ""))


_ZEROS: Json = {"object": {}, "map": {}, "array": [], "boolean": False, "integer": 0, "number": 0, "quantity": "0"}


def _is_integer(schema: Schema, value: Any) -> bool:
    bits = _INT_BITS.get(schema.name, 63)
    return type(value) is int and -(1 << bits) <= value < 1 << bits


def _is_time(schema: Schema, value: Any) -> bool:
    if type(value) is not str or not _TIMES[schema.kind].fullmatch(value):
        return False
    try:
        datetime.fromisoformat(value).astimezone(UTC)
    except (ValueError, OverflowError):
        return False
    return True


@lru_cache(maxsize=4096)
def _is_quantity(text: str) -> bool:
    try:
        parse_quantity(text)
    except QuantityError:
        return False
    return True


@lru_cache(maxsize=4096)
def _shortest(value: str | float) -> str:
    """A quantity, which may come as a number, as the real server writes it."""
    return parse_quantity(str(value)).canonical()


_CANONICAL: dict[str, Callable[[Any], str]] = {
    "quantity": _shortest,
    "time": lambda value: format_time(datetime.fromisoformat(value)),
    "micro-time": lambda value: format_micro_time(datetime.fromisoformat(value)),
}


def _is_base64(schema: Schema, value: Any) -> bool:
    try:
        base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError):
        return False
    return True


_FITS: dict[str, Callable[[Schema, Any], bool]] = {
    "any": lambda schema, value: True,
    "integer": _is_integer,
    "number": lambda schema, value: type(value) in (int, float),
    "bytes": _is_base64,
    "time": _is_time,
    "micro-time": _is_time,
    "quantity": lambda schema, value: type(value) in (int, float) or (type(value) is str and _is_quantity(value)),
    "int-or-string": lambda schema, value: type(value) in (int, str),
}


def _mismatch(schema: Schema, value: Any, place: _Place, owner: Schema) -> _WrongType:
    """What the real decoder says: the JSON type met, the Go struct and field path, the Go type wanted."""
    path = _path(place)
    if schema.kind == "quantity" and type(value) is str:
        text = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    elif schema.kind in _TIME_LAYOUTS and type(value) is str:
        text = f'parsing time "{value}" as "{_TIME_LAYOUTS[schema.kind]}": cannot parse it'
    elif schema.kind == "bytes" and type(value) is str:
        text = "illegal base64 data"
    else:
        met = {str: "string", bool: "bool", dict: "object", list: "array"}.get(type(value), "number")
        if met == "number" and schema.kind == "integer":
            met += " " + orjson.dumps(value).decode()
        fields = re.sub(r"\[\d+\]", "", path)
        field = f"{owner.name.rsplit('.', 1)[-1]}.{fields}"
        text = f"json: cannot unmarshal {met} into Go struct field {field} of type {schema.name}"
    return _WrongType(Problem("type", path, text))
