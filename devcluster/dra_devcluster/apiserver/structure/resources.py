"""The served resources, and the schema of each kind.

The built-in part is data of Kubernetes servers (`dra_devcluster/schema/`: discovery.json and components.json).
CustomResourceDefinitions add and remove resources at run time.

Built-in kinds are typed by the decoder and validated by code; for a custom resource the structural schema of its
definition is all there is, for defaults and for validation. Findings carry the field path, reason and text the real
server puts into the causes of a 422 answer.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

import orjson
import re2  # type: ignore[import-untyped]  # ships no types; the real server's pattern language, linear in time
from dra_api.releases import NEWEST, Release
from dra_api.validation.formats import ErrorType, FieldError, duplicate, invalid, required, too_long

from dra_devcluster.apiserver.structure.schema import Components, Json, Schema, compile_structural, component_of

_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


@cache
def load_data(name: str) -> Any:
    """The parsed data file `name` of the package; shared, so callers must not change it."""
    return orjson.loads((files("dra_devcluster") / "schema" / name).read_bytes())


@dataclass(frozen=True, slots=True)
class Subresource:
    """`pods/status` and the like: the verbs it takes and the kind of its body."""

    name: str
    kind: str
    verbs: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Resource:
    """One line of discovery, with the schema of its kind. `definition` is the CRD version it comes from, if any."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    schema: Schema
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ()
    subresources: Mapping[str, Subresource] = field(default_factory=dict)
    definition: Json | None = None

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def group_resource(self) -> str:
        """As error messages name it: `pods`, `resourceclaims.resource.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


class Structure:
    """All served resources. Look-ups answer None for what is not served."""

    def __init__(self, discovery: list[Json], release: Release = NEWEST) -> None:
        self.release = release
        self.components, self._names = _builtin_components(release)
        self._resources: dict[tuple[str, str, str], Resource] = {}
        self._kinds: dict[tuple[str, str, str], Resource] = {}
        self._bare = Schema(
            "object", name="v1.Object", properties={"metadata": self.components.get(_META)}, preserve=True
        )
        for line in discovery:
            self._add(self._builtin(line))

    @classmethod
    def load(cls, release: Release = NEWEST) -> "Structure":
        """The structure of the built-in kinds. Each server needs its own: CRDs change it."""
        return cls(load_data("discovery.json"), release)

    def resource(self, group: str, version: str, plural: str) -> Resource | None:
        return self._resources.get((group, version, plural))

    def by_kind(self, group: str, version: str, kind: str) -> Resource | None:
        return self._kinds.get((group, version, kind))

    def schema(self, group: str, version: str, kind: str) -> Schema | None:
        """The schema of any known kind, also of those that are not resources (Eviction, DeleteOptions, Scale)."""
        found = self._kinds.get((group, version, kind))
        if found is not None:
            return found.schema
        name = self._names.get((group, version, kind))
        return self.components.get(name) if name else None

    def component_name(self, resource: Resource, kind: str = "") -> str | None:
        """Name of the OpenAPI component of a built-in resource, or of another kind in its group version."""
        return self._names.get((resource.group, resource.version, kind or resource.kind))

    def has_group(self, group: str) -> bool:
        return any(resource.group == group for resource in self._resources.values())

    def resources(self) -> Iterator[Resource]:
        yield from self._resources.values()

    def add_definition(self, crd: Json) -> list[Resource]:
        """Serve the versions of an accepted CustomResourceDefinition; replaces what it defined before.

        Raises ValueError when a schema cannot be compiled (the message names the version)."""
        versions = [version for version in crd["spec"].get("versions", ()) if version.get("served")]
        added = [_custom(crd, version, self.components.get(_META)) for version in versions]
        self.remove_definition(crd)
        for resource in added:
            self._add(resource)
        return added

    def remove_definition(self, crd: Json) -> None:
        spec = crd["spec"]
        for key, resource in list(self._resources.items()):
            if resource.definition is not None and key[0] == spec["group"] and key[2] == spec["names"]["plural"]:
                del self._resources[key]
                del self._kinds[resource.group, resource.version, resource.kind]

    def _add(self, resource: Resource) -> None:
        self._resources[resource.group, resource.version, resource.plural] = resource
        self._kinds[resource.group, resource.version, resource.kind] = resource

    def _builtin(self, line: Json) -> Resource:
        name = self._names.get((line["group"], line["version"], line["kind"]))
        return Resource(
            group=line["group"],
            version=line["version"],
            plural=line["resource"],
            kind=line["kind"],
            namespaced=line["scope"] == "Namespaced",
            # Some served kinds have no schema in the data: their objects pass as they are.
            schema=self.components.get(name) if name else self._bare,
            singular=line["singular"],
            short_names=tuple(line["shortNames"]),
            categories=tuple(line["categories"]),
            verbs=tuple(line["verbs"]),
            subresources={
                s["name"]: Subresource(s["name"], s["kind"], tuple(s["verbs"])) for s in line["subresources"]
            },
        )


@cache
def _builtin_components(release: Release) -> tuple[Components, Mapping[tuple[str, str, str], str]]:
    """The OpenAPI components, and the name of each kind's. No structure changes them, so all servers of a release share
    them."""
    raw = {name: component_of(release, name, component) for name, component in load_data("components.json").items()}
    names = {
        (gvk["group"], gvk["version"], gvk["kind"]): name
        for name, component in raw.items()
        for gvk in component.get("x-kubernetes-group-version-kind", ())
    }
    return Components(raw), names


_CUSTOM_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


def _custom(crd: Json, version: Json, metadata: Schema) -> Resource:
    spec, names = crd["spec"], crd["spec"]["names"]
    raw = version.get("schema", {}).get("openAPIV3Schema") or {"type": "object"}
    try:
        compiled = compile_structural(raw)
    except (AttributeError, TypeError) as fault:
        which = f"CustomResourceDefinition {crd['metadata']['name']}, version {version['name']}"
        raise ValueError(f"{which}: the schema cannot be read: {fault}") from fault
    schema = replace(compiled, kind="object", name=f"{version['name']}.{names['kind']}")
    text = Schema("string", name="string")
    # The server's own fields have the server's types, whatever the author wrote.
    schema.properties.update(apiVersion=text, kind=text, metadata=metadata)
    subresources = {
        name: Subresource(name, "Scale" if name == "scale" else names["kind"], ("get", "patch", "update"))
        for name in version.get("subresources") or {}
    }
    return Resource(
        group=spec["group"],
        version=version["name"],
        plural=names["plural"],
        kind=names["kind"],
        namespaced=spec["scope"] == "Namespaced",
        schema=schema,
        singular=names.get("singular") or names["kind"].lower(),
        short_names=tuple(names.get("shortNames", ())),
        categories=tuple(names.get("categories", ())),
        verbs=_CUSTOM_VERBS,
        subresources=subresources,
        definition=version,
    )


def set_defaults(schema: Schema, obj: Any) -> None:
    """Fill in the schema's defaults, in place; a null counts as absent, and goes, unless the field is `nullable`."""
    if isinstance(obj, dict):
        for key in [key for key, value in obj.items() if value is None and _is_never_null(schema, key)]:
            del obj[key]
        for key, child in schema.properties.items():
            if child.has_default and key not in obj:
                obj[key] = deepcopy(child.default)
        for key, value in obj.items():
            child_schema = schema.properties.get(key) or schema.items
            if child_schema is not None:
                set_defaults(child_schema, value)
    elif isinstance(obj, list) and schema.items is not None:
        for item in obj:
            set_defaults(schema.items, item)


def _is_never_null(schema: Schema, key: str) -> bool:
    child = schema.properties.get(key)
    return child is not None and not child.nullable and child.kind != "any"


def validate(schema: Schema, obj: Json) -> list[FieldError]:
    """Everything wrong with a custom resource under its schema, without metadata, which the server checks itself."""
    return [fault for fault in _check(schema, obj, "") if not fault.field.startswith("metadata.")]


def _invalid(path: str, value: Any, text: str) -> FieldError:
    shown = value if not isinstance(value, (dict, list)) else None
    return invalid(path, shown if shown is not None else value, f"{path or '<root>'} in body {text}")


def _check(schema: Schema, value: Any, path: str) -> Iterator[FieldError]:
    if value is None and schema.nullable:
        return
    if schema.kind in _TYPES and not _TYPES[schema.kind](value):
        wanted = {"map": "object", "int-or-string": "integer,string"}.get(schema.kind, schema.kind)
        met = _JSON_TYPES.get(type(value), "null")
        text = f'{path or "<root>"} in body must be of type {wanted}: "{met}"'
        yield FieldError(ErrorType.TYPE_INVALID, path, met, text)
        return
    yield from _rules(schema.rules, value, path)
    yield from _logic(schema.rules, value, path)
    if isinstance(value, dict):
        prefix = path + "." if path else ""
        for name in schema.required:
            if name not in value:
                yield required(prefix + name)
        for key, item in value.items():
            child = schema.properties.get(key) or (schema.items if schema.kind == "map" else None)
            if child is not None and (path or key != "metadata"):
                yield from _check(child, item, prefix + key)
    elif isinstance(value, list):
        yield from _keys(schema, value, path)
        if schema.items is not None:
            for index, item in enumerate(value):
                yield from _check(schema.items, item, f"{path}[{index}]")


def _keys(schema: Schema, items: list[Any], path: str) -> Iterator[FieldError]:
    """Items of sets and maps are unique."""
    if schema.atomic or schema.list_type == "atomic":
        return
    seen: list[Any] = []
    for index, item in enumerate(items):
        identity: Any = item
        if schema.list_type == "map":
            identity = {key: item.get(key) for key in schema.map_keys} if isinstance(item, dict) else item
        if identity in seen:
            yield duplicate(f"{path}[{index}]", identity)
        seen.append(identity)


_JSON_TYPES = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}


_TYPES = {
    "object": lambda value: isinstance(value, dict),
    "map": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "bytes": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: (type(value) is int) or (type(value) is float and value.is_integer()),
    "number": lambda value: type(value) in (int, float),
    "int-or-string": lambda value: type(value) in (int, str),
}


def _rules(rules: Json, value: Any, path: str) -> Iterator[FieldError]:
    if not rules:
        return
    if "enum" in rules and value not in rules["enum"]:
        options = ", ".join(orjson.dumps(option).decode() for option in rules["enum"])
        yield FieldError(ErrorType.NOT_SUPPORTED, path, value, f"supported values: {options}")
    if isinstance(value, str):
        yield from _text_rules(rules, value, path)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from _number_rules(rules, value, path)
    elif isinstance(value, (list, dict)):
        yield from _size_rules(rules, value, path)


def _logic(rules: Json, value: Any, path: str) -> Iterator[FieldError]:
    """Combined schemas: the value is judged by how many of them it meets."""
    for key, (enough, text) in _COMBINED.items():
        if key in rules:
            met = sum(next(_check(schema, value, path), None) is None for schema in rules[key])
            if not enough(met, len(rules[key])):
                yield _invalid(path, value, f"{text} ({key})")


_COMBINED: dict[str, tuple[Callable[[int, int], bool], str]] = {
    "allOf": (lambda met, of: met == of, "must validate all the schemas"),
    "anyOf": (lambda met, of: met >= 1, "must validate at least one schema"),
    "oneOf": (lambda met, of: met == 1, "must validate one and only one schema"),
    "not": (lambda met, of: met == 0, "must not validate the schema"),
}


def _text_rules(rules: Json, value: str, path: str) -> Iterator[FieldError]:
    if "pattern" in rules and not re2.search(rules["pattern"], value):
        yield _invalid(path, value, f"should match '{rules['pattern']}'")
    if len(value) < rules.get("minLength", 0):
        yield _invalid(path, value, f"should be at least {rules['minLength']} chars long")
    if len(value) > rules.get("maxLength", math.inf):
        yield too_long(path, rules["maxLength"])


def _number_rules(rules: Json, value: float, path: str) -> Iterator[FieldError]:
    low, high = rules.get("minimum", -math.inf), rules.get("maximum", math.inf)
    if value < low:
        yield _invalid(path, value, f"should be greater than or equal to {low}")
    elif value == low and rules.get("exclusiveMinimum"):
        yield _invalid(path, value, f"should be greater than {low}")
    if value > high:
        yield _invalid(path, value, f"should be less than or equal to {high}")
    elif value == high and rules.get("exclusiveMaximum"):
        yield _invalid(path, value, f"should be less than {high}")
    if "multipleOf" in rules and value % rules["multipleOf"]:
        yield _invalid(path, value, f"should be a multiple of {rules['multipleOf']}")


def _size_rules(rules: Json, value: list[Any] | Json, path: str) -> Iterator[FieldError]:
    what = "Items" if isinstance(value, list) else "Properties"
    least, most = rules.get(f"min{what}", 0), rules.get(f"max{what}", math.inf)
    if len(value) < least:
        yield _invalid(path, value, f"should have at least {least} {what.lower()}")
    if len(value) > most:
        yield FieldError(ErrorType.TOO_MANY, path, len(value), f"must have at most {most} {what.lower()}")
