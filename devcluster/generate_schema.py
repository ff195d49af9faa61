r"""Makes the schemas of the development server from the files of a release of Kubernetes.

A person runs it for a release, with a checkout of its repository in KUBE::

    python devcluster/generate_schema.py --openapi KUBE/api/openapi-spec/v3 --discovery KUBE/api/discovery \
        --sources KUBE/staging/src/k8s.io/api KUBE/staging/src/k8s.io/apimachinery

The documents of a running server do as well: what it answers for ``/openapi/v3/apis/resource.k8s.io/v1``, and for
``/apis/resource.k8s.io/v1``. The files keep the kinds that they have, with all to which these refer; ``--kind`` adds
one. Names, types and hints of fields are taken over, descriptions never. The values of enumerations, which the
documents of the repository lack, stay as they were. Written by hand are the other files: descriptions, columns, roles.

Field numbers of the protobuf format come from the published Go packages. ``generated.proto`` has messages, types and
numbers. What JSON calls a field, whether it is a part of its parent there, and whether a zero is a value or absence
stands in the tags of ``types.go``: a pointer, or no ``omitempty``. A part of its parent has no name there; up to 1.36
its tag says ``inline`` as well.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
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


SCHEMA = Path(__file__).resolve().parent / "dra_devcluster" / "schema"
_GVK = "x-kubernetes-group-version-kind"
_PROSE = ("description", "title", "externalDocs", "example")
_ORDER = (
    "type",
    "format",
    "required",
    "properties",
    "items",
    "additionalProperties",
    "default",
    "enum",
    "allOf",
    "oneOf",
)


def components(documents: list[Json], old: Json, added: list[str]) -> Json:
    """The schemas of the kinds in ``old`` and of those added (``resource.k8s.io/v1/DeviceTaintRule``)."""
    published: Json = {}
    for document in documents:
        for name, schema in document["components"].get("schemas", {}).items():
            published.setdefault(name, _schema(schema))
    wanted = {name for name, schema in old.items() if _GVK in schema}
    for name, schema in published.items():
        kinds = {"/".join((kind["group"], kind["version"], kind["kind"])) for kind in schema.get(_GVK, ())}
        if kinds & {*added, *(f"{kind}List" for kind in added)}:
            wanted.add(name)
    found = _reachable(wanted, published)
    return {name: _with_enums(found[name], old.get(name, {})) for name in sorted(found)}


def _reachable(wanted: set[str], published: Json) -> Json:
    found: Json = {}
    open_names = sorted(wanted & published.keys())
    while open_names:
        name = open_names.pop()
        if name not in found:
            found[name] = published[name]
            open_names += [each for each in _references(published[name]) if each in published]
    return found


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key == "$ref" and isinstance(value, str):
                yield value.rpartition("/")[2]
            else:
                yield from _references(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from _references(item)


def _schema(schema: Json) -> Json:
    """Without prose, and in the shortest form that says the same."""
    kept = {key: value for key, value in schema.items() if key not in _PROSE}
    if "properties" in kept:
        kept["properties"] = {name: _schema(kept["properties"][name]) for name in sorted(kept["properties"])}
    for key in ("items", "additionalProperties"):
        if isinstance(kept.get(key), dict):
            part = {name: value for name, value in kept[key].items() if name != "default"}  # an entry has no default
            kept[key] = _schema(part)
    if kept.keys() == {"allOf"} and len(kept["allOf"]) == 1:
        return dict(kept["allOf"][0])
    if _GVK in kept:
        # Kinds of apimachinery are in every group, and looked up in that of the core.
        kinds = kept[_GVK]
        kept[_GVK] = kinds if len(kinds) == 1 else [kind for kind in kinds if kind["group"] == ""]
    return {key: kept[key] for key in sorted(kept, key=_place)}


def _place(key: str) -> tuple[int, str]:
    return (_ORDER.index(key) if key in _ORDER else len(_ORDER), key)


def _with_enums(new: Json, old: Json) -> Json:
    """The documents of the repository are made without enumerations; those of a server have them."""
    for name, field in new.get("properties", {}).items():
        known = old.get("properties", {}).get(name, {})
        for part in ("items", "additionalProperties"):
            _keep_enum(field.get(part), known.get(part))
        _keep_enum(field, known)
    return new


def _keep_enum(new: Any, old: Any) -> None:
    if isinstance(new, dict) and isinstance(old, dict) and "enum" in old and new.get("type") == "string":
        new.setdefault("enum", old["enum"])


def discovery(lists: list[Json], old: list[Json], added: list[str]) -> list[Json]:
    """The lines of the kinds in ``old`` and of those added, in the old order; ``lists`` are APIResourceLists."""
    published = {_key(line): line for document in lists for line in _lines(document)}
    new = [key for key, line in published.items() if "/".join((*key[:2], line["kind"])) in added]
    return [published[key] for key in dict.fromkeys((*map(_key, old), *new)) if key in published]


def _key(line: Json) -> tuple[str, str, str]:
    return line["group"], line["version"], line["resource"]


def _lines(document: Json) -> Iterator[Json]:
    """The resources of a group and version, each with its sub-resources."""
    group, _, version = document["groupVersion"].rpartition("/")
    resources = sorted(document["resources"], key=lambda resource: str(resource["name"]))
    for resource in (each for each in resources if "/" not in each["name"]):
        yield {
            "group": group,
            "version": version,
            "resource": resource["name"],
            "kind": resource["kind"],
            "scope": "Namespaced" if resource["namespaced"] else "Cluster",
            "singular": resource["singularName"],
            "shortNames": resource.get("shortNames", []),
            "categories": resource.get("categories", []),
            "verbs": resource["verbs"],
            "subresources": [
                {"name": sub["name"].partition("/")[2], "verbs": sub["verbs"], "kind": sub["kind"]}
                for sub in resources
                if sub["name"].startswith(f"{resource['name']}/")
            ],
        }


def _documents(folder: Path, part: str) -> list[Json]:
    """The JSON documents in the folder that have this part."""
    documents = (json.loads(path.read_text()) for path in sorted(folder.glob("*.json")))
    return [document for document in documents if part in document]


def _read(name: str) -> Any:
    return json.loads((SCHEMA / name).read_text())


def write(name: str, content: Mapping[str, Any] | list[Json]) -> None:
    """One entry a line, so that a change of the interface is a readable change."""
    compact = (",", ":")
    if isinstance(content, list):
        text = "[\n" + ",\n".join(json.dumps(line, separators=compact) for line in content) + "\n]\n"
    else:
        entries = (f"{json.dumps(key)}:{json.dumps(value, separators=compact)}" for key, value in content.items())
        text = "{\n" + ",\n".join(entries) + "\n}\n"
    (SCHEMA / name).write_text(text)


def main() -> int:
    """Write the files for which the arguments have sources."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--openapi", type=Path, metavar="FOLDER", help="OpenAPI v3 documents of the release")
    parser.add_argument("--discovery", type=Path, metavar="FOLDER", help="its lists of resources")
    parser.add_argument("--sources", type=Path, nargs="+", metavar="FOLDER", help="its Go packages")
    parser.add_argument("--kind", action="append", default=[], metavar="GROUP/VERSION/KIND", help="a kind to add")
    options = parser.parse_args()
    if options.openapi:
        documents = _documents(options.openapi, "components")
        write("components.json", components(documents, _read("components.json"), options.kind))
    if options.discovery:
        lists = _documents(options.discovery, "resources")
        write("discovery.json", discovery(lists, _read("discovery.json"), options.kind))
    if options.sources:
        write("protobuf.json", messages(options.sources, _read("protobuf.json"), options.kind))
    return 0


if __name__ == "__main__":
    sys.exit(main())
