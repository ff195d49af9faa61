"""The schema of kinds, and the fields that a release has.

Fields of built-in kinds that only some releases have, as far as gates do not tell: those that 1.37 added or removed.

``components.json`` has the fields of all releases. A server drops a field that its release does not know, as it drops
any other unknown field; a field that is behind a gate is dropped by the gate.

The shape of one value: what a schema says about types, list kinds and keys, compiled once.

OpenAPI component schemas (built-in kinds) and structural schemas (CustomResourceDefinitions) describe the same things
in slightly different words; both compile to the same `Schema` tree, so that decoding, patching and ownership tracking
know only one form. Trees may be cyclic (a schema may mention itself); nothing here walks them without an object.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, Final

from dra_api.releases import Release
from dra_api.validation.requests import REQUEST_FIELDS, Place

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


# Enforced by `custom.validate`; formats and CEL rules are not.
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
