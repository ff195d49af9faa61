"""Reads a request body as the real server's decoder does: a typed view of an untyped document.

A built-in object passes through Go structs on the real server: fields it does not know are dropped (and reported,
for `fieldValidation=Warn` and `Strict`), nulls vanish, and a value of the wrong JSON type ends the request with 400.
An optional list or map that is empty vanishes too, a quantity is rewritten in its shortest form (``1000m`` as ``1``),
and a time in UTC, so that objects that mean the same look the same.
`decode` does the same to a plain dict, in place. Custom resources drop unknown fields in the same way, but their
types are validated by the schema (`custom.validate`), not by the decoder.
"""

import base64
import binascii
import json  # for duplicates, which the fast parser cannot report
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import orjson
from dra_api.quantity import QuantityError, parse_quantity
from dra_api.values import format_micro_time, format_time

from .schema import Json, Schema

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
            elif schema.items.typed:
                value[key] = _zero(schema.items)


def _zero(schema: Schema) -> Any:
    """What a null in a list or map stands for: the Go type's zero value."""
    zero: Json = {"object": {}, "map": {}, "array": [], "boolean": False, "integer": 0, "number": 0, "quantity": "0"}
    return zero.get(schema.kind, "")


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
