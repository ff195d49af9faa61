"""The data that the package carries, against the reference it was made from."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from corpus import API_SCHEMA, needs_api_schema
from dra_api.releases import Release
from dra_devcluster.apiserver.cells import CELLS, COMMON, ROWS
from dra_devcluster.apiserver.registry import exists_in
from dra_devcluster.apiserver.structure import Structure, load_data

# Some groups add versions of their own to what is common to all: names say who deletes and watches what.
_COMMON = ("DeleteOptions", "WatchEvent")
LATER_GROUPS = ("batch", "storage.k8s.io")  # the recorded reference does not have them


_BEYOND = (  # what it does not have, either: bodies of sub-resources
    "io.k8s.api.batch.v1.",
    "io.k8s.api.storage.v1.",
    "io.k8s.api.core.v1.TopologySelector",
    "io.k8s.api.authentication.v1.TokenRequest",
    "io.k8s.api.authentication.v1.BoundObjectReference",
    "io.k8s.api.policy.v1.Eviction",
)


@needs_api_schema
def test_components_are_those_of_the_reference() -> None:
    """Of 1.36, the fields that it has. What came later is compared below."""
    ours = Structure.load(Release.V1_36).components.raw
    seen = set()
    for file in sorted(API_SCHEMA.glob("*_v*.json")):
        for name, schema in json.loads(file.read_text()).items():
            seen.add(name)
            if not name.endswith(_COMMON) or file.name == "core_v1.json":
                assert ours[name] == schema, (file.name, name)
    later = {name for name in set(ours) - seen if not name.startswith(_BEYOND)}
    others = {name for name in later if not name.startswith(_GROUPS)}
    assert {name.rpartition(".")[2] for name in others} == _SINCE_1_37


_GROUPS = ("io.k8s.api.scheduling.v1alpha2.", "io.k8s.api.scheduling.v1beta1.")
"""PodGroups and Workloads: the second is compared below, the first has no reference here."""
_LEFT_OUT = {
    "V1beta1PodGroupSpec": {"parentCompositePodGroupName"},
    "V1beta1WorkloadSpec": {"compositePodGroupTemplates"},
}
"""Fields behind a gate that the server does not know."""
_SINCE_1_37 = {
    "DeviceDerivedAttribute",
    "NodeAllocatableMappedResources",
    "NodeAllocatableMapping",
    "NodeAllocatableOverhead",
    "NodeAllocatableOverheadResources",
    "NodeAllocatableResource",
    "PartitionTypeStatus",
    "ShareableCapacityStatus",
    "ShareableSummaryStatus",
    *(f"DeviceTaint{part}" for part in ("Rule", "RuleList", "RuleSpec", "RuleStatus", "Selector")),
}


@needs_api_schema
@pytest.mark.parametrize(
    ("file", "package"),
    [
        ("resource.v1", "io.k8s.api.resource.v1"),
        ("resource.v1beta2", "io.k8s.api.resource.v1beta2"),
        ("resource.v1beta1", "io.k8s.api.resource.v1beta1"),
        ("resource.v1alpha3", "io.k8s.api.resource.v1alpha3"),
        ("core.v1.pod-dra", "io.k8s.api.core.v1"),
        ("scheduling.v1beta1", "io.k8s.api.scheduling.v1beta1"),
    ],
)
def test_components_have_the_fields_of_the_newest_release(file: str, package: str) -> None:
    """All fields of 1.37.2, with their types, and no others."""
    ours, version = Structure.load(Release.V1_37).components.raw, package.rpartition(".")[2]
    models = json.loads((API_SCHEMA / "1.37" / f"{file}.json").read_text())
    compared = 0
    for model, content in models.items():
        short = re.sub(f"^(Resource)?{version}", "", model, flags=re.IGNORECASE)
        component = ours.get(f"{package}.{short}")
        if component is None or not component.get("properties"):
            continue
        compared += 1
        theirs = {name: _kind(field["type"]) for name, field in content["fields"].items()}
        left_out = _LEFT_OUT.get(model, set())
        assert left_out <= theirs.keys()
        ours_here = {name: _shape(schema) for name, schema in component["properties"].items()}
        assert ours_here == {name: kind for name, kind in theirs.items() if name not in left_out}, model
    assert compared > 3


def _kind(annotation: str) -> str:
    """What a field of the Python client is: the client knows no quantities, and calls times by its own names."""
    if annotation.startswith("List["):
        return f"list of {_kind(annotation[5:-1])}"
    if annotation.startswith("Dict["):
        return f"map of {_kind(annotation[10:-1])}"
    return {"str": "string", "int": "integer", "bool": "boolean", "datetime": "string", "object": "any"}.get(
        annotation, re.sub(r"^V\d((alpha|beta)\d)?", "", annotation)
    )


def _shape(schema: dict[str, Any]) -> str:
    if schema.get("type") == "array":
        return f"list of {_shape(schema['items'])}"
    if "additionalProperties" in schema:
        return f"map of {_shape(schema['additionalProperties'])}"
    reference = schema.get("$ref") or schema.get("allOf", [{}])[0].get("$ref", "")
    short: str = reference.rpartition(".")[2]
    kind: str = short or schema.get("type", "any")
    if short.endswith(("Mode", "Policy")) and short.startswith(("All", "Single", "Basic")):
        return "any"  # without content, which the client does not name
    return {"Quantity": "string", "Time": "string", "RawExtension": "any"}.get(short, kind)


@needs_api_schema
def test_discovery_is_that_of_the_reference() -> None:
    """Of 1.36; the versions that 1.37 has or lacks are in tests/devcluster/apiserver/test_releases.py."""
    known = [line for line in load_data("discovery.json") if line["group"] not in LATER_GROUPS]
    ours = [line for line in known if exists_in(Release.V1_36, line["group"], line["version"], line["resource"])]
    assert ours == json.loads((API_SCHEMA / "discovery.json").read_text())


@needs_api_schema
def test_printer_columns_are_those_of_the_reference() -> None:
    ours = load_data("table-columns.json")
    for path, columns in json.loads((API_SCHEMA / "table-columns.json").read_text()).items():
        *group, _version, resource = path.split("/")[1:]
        key = f"{group[0] if group else ''}/{resource}"
        if key in ours:
            assert [column[:4] for column in ours[key]] == [
                [c["name"], c["type"], c["format"], c["priority"]] for c in columns
            ], path


def test_every_cell_function_has_a_column_to_fill_and_every_column_one_cell() -> None:
    columns = load_data("table-columns.json")
    assert {*CELLS, *ROWS} <= set(columns)
    for key, of_kind in columns.items():
        with_path = {title for title, _, _, _, *path in of_kind if path}
        titles, own = {column[0] for column in of_kind}, set(CELLS.get(key, ()))
        assert own <= titles, key
        assert not own & with_path, key
        assert key in ROWS or titles <= with_path | own | COMMON.keys(), key


def test_every_protobuf_message_that_is_mentioned_is_there() -> None:
    messages: dict[str, dict[str, list[str]]] = load_data("protobuf.json")
    mentioned = {field[1] for fields in messages.values() for field in fields.values() if "." in field[1]}
    assert mentioned <= set(messages)


def test_explanations_are_of_fields_that_exist() -> None:
    components: dict[str, Any] = load_data("components.json")
    known: dict[str, set[str]] = {}
    for name, schema in components.items():
        package, _version, short = name.rsplit(".", 2)
        known.setdefault(f"{package.rsplit('.', 1)[-1]}.{short}", set()).update(schema.get("properties", {}))
    for name, texts in load_data("descriptions.json").items():
        if name != "*":
            assert set(texts) - {""} <= known.get(name, set()), name
