"""Kueue's kinds have the fields that the project reads, and what stands for many pods costs little."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml
from dra_api.codec import convert
from dra_api.kueue import (
    AdmissionCheck,
    ResourceFlavor,
    TopologyAssignment,
    Workload,
    WorkloadError,
    pod_count,
    pods_of,
)
from kueue_model import kueue_assets
from objects import Obj

KINDS: Final[Mapping[str, type[msgspec.Struct]]] = {
    "Workload": Workload,
    "ResourceFlavor": ResourceFlavor,
    "AdmissionCheck": AdmissionCheck,
}
OWN: Final = Path(__file__).parents[1] / "support" / "kueue_crds" / "crds.yaml"
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


def test_each_field_that_is_read_is_one_of_the_definition() -> None:
    assert strangers([OWN]) == []


@pytest.mark.skipif(kueue_assets() is None, reason="KUEUE_ASSETS names no folder with Kueue")
def test_each_field_that_is_read_is_one_of_kueue() -> None:
    folder = kueue_assets()
    assert folder is not None
    assert strangers((folder / "components" / "crd" / "bases").glob("*.yaml")) == []


def slices(**more: object) -> Obj:
    return {
        "levels": ["host"],
        "slices": [{"domainCount": 2**31 - 1, "valuesPerLevel": [{"universal": "a"}], **more}],
    }


def workload(count: int, topology: Obj) -> Workload:
    assigned = {"name": "main", "topologyAssignment": topology}
    return convert(
        Workload,
        {
            "metadata": {"name": "it", "namespace": "ns"},
            "spec": {"podSets": [{"name": "main", "count": count, "template": {"spec": {}}}]},
            "status": {"admission": {"clusterQueue": "q", "podSetAssignments": [assigned]}},
        },
    )


def test_two_billion_domains_are_looked_at_one_by_one() -> None:
    many = convert(TopologyAssignment, slices(podCounts={"universal": 1}))
    assert list(islice(many.places(), 2)) == [({"host": "a"}, 1)] * 2
    made = workload(3, slices(podCounts={"universal": 1}))
    assert pod_count(made) == 3
    assert [(pod.spec.node_selector, number) for pod, number in pods_of(made, lambda _: None)] == [
        ({"host": "a"}, 1)
    ] * 3


@pytest.mark.parametrize("number", [0, -5])
def test_domains_without_pods_are_refused_at_the_first_one(number: int) -> None:
    with pytest.raises(WorkloadError, match="pod set main: topologyAssignment has a domain without pods"):
        pods_of(workload(3, slices(podCounts={"universal": number})), lambda _: None)


def test_a_set_that_has_ended_asks_for_no_domain() -> None:
    assert pods_of(workload(0, slices(podCounts={"universal": 1})), lambda _: None) == []
