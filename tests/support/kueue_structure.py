"""Which fields of Kueue's kinds the types of the project read, beside the definitions of the kinds."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from dra_api.kueue import AdmissionCheck, ResourceFlavor, Workload

KINDS: Final[Mapping[str, type[msgspec.Struct]]] = {
    "Workload": Workload,
    "ResourceFlavor": ResourceFlavor,
    "AdmissionCheck": AdmissionCheck,
}
OWN: Final = Path(__file__).with_name("kueue_crds") / "crds.yaml"
PLAIN: Final[Mapping[object, str]] = {str: "string", int: "integer", bool: "boolean"}
Schema = Mapping[str, Any]


def strangers(files: Iterable[Path]) -> list[str]:
    """Return the fields that a type has and no version of its definition has, or has otherwise."""
    found: list[str] = []
    for file in files:
        for definition in yaml.safe_load_all(file.read_text()):
            kind = KINDS.get(definition["spec"]["names"]["kind"])
            if kind is None:
                continue
            schemas = [it["schema"]["openAPIV3Schema"] for it in definition["spec"]["versions"]]
            found += _compared(kind, schemas, kind.__name__, left_out={"apiVersion", "kind", "metadata"})
    return found


def _compared(type_: object, schemas: list[Schema], path: str, left_out: frozenset[str] | set[str]) -> Iterator[str]:
    origin = typing.get_origin(type_)
    if origin in (typing.Union, types.UnionType):
        for each in typing.get_args(type_):
            if each is not type(None):
                yield from _compared(each, schemas, path, left_out)
    elif origin is tuple:
        yield from _of_type(schemas, "array", path)
        items = [it["items"] for it in schemas if "items" in it]
        yield from _compared(typing.get_args(type_)[0], items, f"{path}[]", frozenset()) if items else ()
    elif isinstance(type_, type) and issubclass(type_, msgspec.Struct) and not path.endswith(".metadata"):
        yield from _of_type(schemas, "object", path)
        yield from _fields(type_, schemas, path, left_out)
    elif origin is dict or type_ in PLAIN:
        yield from _of_type(schemas, PLAIN.get(type_, "object"), path)


def _fields(
    type_: type[msgspec.Struct], schemas: list[Schema], path: str, left_out: frozenset[str] | set[str]
) -> Iterator[str]:
    for each in msgspec.structs.fields(type_):
        name = each.encode_name
        if name in left_out:
            continue
        its = [it["properties"][name] for it in schemas if name in it.get("properties", {})]
        if its:
            yield from _compared(each.type, its, f"{path}.{name}", frozenset())
        elif not any(it.get("x-kubernetes-preserve-unknown-fields") for it in schemas):
            yield f"{path}.{name}: no version has it"


def _of_type(schemas: list[Schema], wanted: str, path: str) -> Iterator[str]:
    if said := {it["type"] for it in schemas if "type" in it} - {wanted}:
        yield f"{path}: {wanted}, and the definition says {' or '.join(sorted(said))}"
