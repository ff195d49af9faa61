"""Field numbers of the Kubernetes protobuf format, from the published Go packages of a release.

``generated.proto`` has messages, types and numbers. What JSON calls a field, whether it is a part of its parent there,
and whether a zero is a value or absence stands in the tags of ``types.go``: a pointer, or no ``omitempty``. A part of
its parent has no name there; up to 1.36 its tag says ``inline`` as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

Json = dict[str, Any]
_MESSAGE = re.compile(r"^message (\w+) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^\s+(?:(optional|repeated) )?(map<string, )?([.\w]+)>? (\w+) = (\d+);", re.MULTILINE)
_STRUCT = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_TAG = re.compile(r"^\s+(?:\w+\s+)?(\*?)\S+\s+`json:\"([^\",]*)(,[^\"]*)?\" protobuf:\"\w+,(\d+)", re.MULTILINE)
_SCALARS = {"string", "bool", "int32", "int64", "bytes"}


class _Tag(NamedTuple):
    name: str
    is_pointer: bool
    options: str


_UNTAGGED = _Tag("", is_pointer=False, options=",omitempty")


def messages(sources: list[Path], old: Json, added: list[str]) -> Json:
    """The messages in ``old`` and of the kinds added, with all to which they refer."""
    published = {name: fields for source in sources for name, fields in _packages(source)}
    wanted = old.keys() & published.keys()
    for kind in added:
        group, version, name = kind.split("/")
        wanted |= {f"k8s.io.api.{group.split('.')[0] or 'core'}.{version}.{name}"} & published.keys()
    found, open_names = {name: old[name] for name in old.keys() - published.keys()}, sorted(wanted)
    while open_names:
        name = open_names.pop()
        if name not in found:
            found[name] = published[name]
            open_names += [entry[1] for entry in published[name].values() if entry[1] in published]
    return {name: found[name] for name in sorted(found)}


def _packages(source: Path) -> Iterator[tuple[str, Json]]:
    """Each message of the packages, with its fields by their numbers."""
    for proto in sorted(source.rglob("generated.proto")):
        text = proto.read_text()
        (package,) = re.findall(r"^package ([\w.]+);", text, re.MULTILINE)
        tags = {
            struct: {number: _Tag(name, bool(star), options) for star, name, options, number in _TAG.findall(body)}
            for path in sorted(proto.parent.glob("*.go"))
            for struct, body in _STRUCT.findall(path.read_text())
        }
        for message, body in _MESSAGE.findall(text):
            known = tags.get(message, {})
            fields = {
                number: _field(how, is_map, _full_name(kind, package), name, known.get(number, _UNTAGGED))
                for how, is_map, kind, name, number in _FIELD.findall(body)
            }
            yield f"{package}.{message}", {number: fields[number] for number in sorted(fields, key=int)}


def _full_name(kind: str, package: str) -> str:
    return kind if kind in _SCALARS else kind.lstrip(".") if kind.startswith(".") else f"{package}.{kind}"


def _field(how: str, is_map: str, kind: str, name: str, tag: _Tag) -> list[str]:
    if tag.name == "-":  # not in JSON; what decodes the envelope of an object looks for it by the name of the message
        tag = _UNTAGGED
    shape = ["map"] if is_map else ["list"] if how == "repeated" else []
    is_value = kind in _SCALARS and not shape and (tag.is_pointer or "omitempty" not in tag.options)
    return [name if tag is _UNTAGGED else tag.name, kind + "!" * is_value, *shape]
