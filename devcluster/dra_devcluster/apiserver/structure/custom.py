"""Custom resources: defaulting and validation by the structural schema of their definition.

Built-in kinds are typed by the decoder and validated by code; for a custom resource the schema is all there is.
Findings carry the field path, reason and text the real server puts into the causes of a 422 answer.
"""

import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import orjson
import re2  # type: ignore[import-untyped]  # ships no types; the real server's pattern language, linear in time

from .schema import Json, Schema


@dataclass(frozen=True, slots=True)
class Fault:
    """One cause of a 422: `reason` as in StatusCause (FieldValueRequired, ...), the field path, the text."""

    reason: str
    field: str
    message: str


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


def validate(schema: Schema, obj: Json) -> list[Fault]:
    """Everything wrong with a custom resource under its schema, without metadata, which the server checks itself."""
    return [fault for fault in _check(schema, obj, "") if not fault.field.startswith("metadata.")]


def _invalid(path: str, value: Any, text: str) -> Fault:
    shown = value if not isinstance(value, (dict, list)) else None
    literal = orjson.dumps(shown if shown is not None else value).decode()
    return Fault("FieldValueInvalid", path, f"Invalid value: {literal}: {path or '<root>'} in body {text}")


def _check(schema: Schema, value: Any, path: str) -> Iterator[Fault]:
    if value is None and schema.nullable:
        return
    if not _TYPES.get(schema.kind, _anything)(value):
        wanted = {"map": "object", "int-or-string": "integer,string"}.get(schema.kind, schema.kind)
        met = _JSON_TYPES.get(type(value), "null")
        text = f'Invalid value: "{met}": {path or "<root>"} in body must be of type {wanted}: "{met}"'
        yield Fault("FieldValueTypeInvalid", path, text)
        return
    yield from _rules(schema.rules, value, path)
    yield from _logic(schema.rules, value, path)
    if isinstance(value, dict):
        prefix = path + "." if path else ""
        for name in schema.required:
            if name not in value:
                yield Fault("FieldValueRequired", prefix + name, "Required value")
        for key, item in value.items():
            child = schema.properties.get(key) or (schema.items if schema.kind == "map" else None)
            if child is not None and (path or key != "metadata"):
                yield from _check(child, item, prefix + key)
    elif isinstance(value, list):
        yield from _keys(schema, value, path)
        if schema.items is not None:
            for index, item in enumerate(value):
                yield from _check(schema.items, item, f"{path}[{index}]")


def _keys(schema: Schema, items: list[Any], path: str) -> Iterator[Fault]:
    """Items of sets and maps are unique."""
    if schema.atomic or schema.list_type == "atomic":
        return
    seen: list[Any] = []
    for index, item in enumerate(items):
        identity: Any = item
        if schema.list_type == "map":
            identity = {key: item.get(key) for key in schema.map_keys} if isinstance(item, dict) else item
        if identity in seen:
            literal = orjson.dumps(identity).decode()
            yield Fault("FieldValueDuplicate", f"{path}[{index}]", f"Duplicate value: {literal}")
        seen.append(identity)


_JSON_TYPES = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}


def _anything(value: Any) -> bool:
    return True


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


def _rules(rules: Json, value: Any, path: str) -> Iterator[Fault]:
    if not rules:
        return
    if "enum" in rules and value not in rules["enum"]:
        options = ", ".join(orjson.dumps(option).decode() for option in rules["enum"])
        literal = orjson.dumps(value).decode()
        yield Fault("FieldValueNotSupported", path, f"Unsupported value: {literal}: supported values: {options}")
    if isinstance(value, str):
        yield from _text_rules(rules, value, path)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from _number_rules(rules, value, path)
    elif isinstance(value, (list, dict)):
        yield from _size_rules(rules, value, path)


def _logic(rules: Json, value: Any, path: str) -> Iterator[Fault]:
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


def _text_rules(rules: Json, value: str, path: str) -> Iterator[Fault]:
    if "pattern" in rules and not re2.search(rules["pattern"], value):
        yield _invalid(path, value, f"should match '{rules['pattern']}'")
    if len(value) < rules.get("minLength", 0):
        yield _invalid(path, value, f"should be at least {rules['minLength']} chars long")
    if len(value) > rules.get("maxLength", math.inf):
        most = rules["maxLength"]
        yield Fault("FieldValueTooLong", path, f"Too long: may not be more than {most} bytes")


def _number_rules(rules: Json, value: float, path: str) -> Iterator[Fault]:
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


def _size_rules(rules: Json, value: list[Any] | Json, path: str) -> Iterator[Fault]:
    least, most, what = (
        ("minItems", "maxItems", "items")
        if isinstance(value, list)
        else ("minProperties", "maxProperties", "properties")
    )
    if len(value) < rules.get(least, 0):
        yield _invalid(path, value, f"should have at least {rules[least]} {what}")
    if len(value) > rules.get(most, math.inf):
        yield Fault("FieldValueTooMany", path, f"Too many: {len(value)}: must have at most {rules[most]} {what}")
