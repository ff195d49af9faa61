"""Between a file's text and its model. A file is YAML, of which JSON is a part.

Runtimes refuse a key that stands twice and a field that they do not know; a field that is ``null`` counts as left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterable
from typing import Any

import msgspec
import yaml
from dra_api.yaml_text import loader

from .errors import CdiError
from .spec import CdiSpec

_PLACE = re.compile(r"(?P<message>.*) - at `\$\.?(?P<path>.*)`", re.DOTALL)
_DEVICE = re.compile(r"devices\[(?P<number>\d+)\]\.?(?P<rest>.*)")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`")


def encode(spec: CdiSpec) -> bytes:
    """The file's text, as JSON.

    Raises CdiError if a value has the wrong type, such as a string where a tuple of strings belongs: Python lets that
    into a model, and a runtime would refuse it.
    """
    text = msgspec.json.encode(spec)
    decode(text)
    return text


def decode(text: str | bytes) -> CdiSpec:
    """A file's content. Raises CdiError for what a runtime would refuse; the message names device and field."""
    try:
        content = _load(text.decode() if isinstance(text, bytes) else text)
    except UnicodeDecodeError as error:
        raise CdiError(f"this is not text: {error}; write the file as UTF-8") from error
    except _KeyTwiceError as error:
        raise CdiError(str(error)) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # the last: a number of thousands of digits
        raise CdiError(f"this is neither JSON nor YAML: {' '.join(str(error).split())}") from error
    try:
        msgspec.json.encode(content)  # what no UTF-8 can hold
        return msgspec.convert(content, CdiSpec)
    except UnicodeEncodeError as error:
        raise CdiError(f"a text holds half of a surrogate pair: {error}; write the character itself") from error
    except msgspec.ValidationError as error:
        raise CdiError(_located(str(error), content)) from error


class _KeyTwiceError(yaml.YAMLError):
    """In JSON as well; loaders of YAML pass on no other class."""


def _load(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_mapping)
    except json.JSONDecodeError:
        return yaml.load(text, _Loader)  # derived from SafeLoader


def _mapping(pairs: Iterable[tuple[Hashable, Any]]) -> dict[Hashable, Any]:
    mapping: dict[Hashable, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise _KeyTwiceError(f"the key {key!r} appears twice in one object: remove one of them")
        mapping[key] = value
    return {key: value for key, value in mapping.items() if value is not None}


class _Loader(loader(yaml.SafeLoader)):  # type: ignore[misc]
    """Refuses a key that stands twice; keys of a merged mapping (``<<``) may be repeated."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        _mapping((key.value, None) for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        return _mapping(super().construct_mapping(node, deep).items())


def _located(error: str, content: Any) -> str:
    """msgspec's message, with the device's name for its number."""
    found = _PLACE.fullmatch(error)
    message, path = (found["message"], found["path"]) if found else (error, "")
    if unknown := _UNKNOWN.fullmatch(message):
        message = f"unknown field {unknown['name']}: remove it, or correct its name"
    if device := _DEVICE.fullmatch(path):
        number = int(device["number"])
        entry = content["devices"][number]
        name = entry.get("name") if isinstance(entry, dict) else None
        place = f"device {name!r}" if isinstance(name, str) else f"devices[{number}]"
        path = f"{place}, {device['rest']}" if device["rest"] else place
    return f"{path}: {message}" if path else message
