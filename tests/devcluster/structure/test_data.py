"""The data that the package carries, against the reference it was made from."""

from __future__ import annotations

import json
from typing import Any

from corpus import API_SCHEMA, needs_api_schema
from dra_devcluster.apiserver.structure import load_data
from dra_devcluster.apiserver.tables.cells import CELLS

# Some groups add versions of their own to what is common to all: names say who deletes and watches what.
_COMMON = ("DeleteOptions", "WatchEvent")
STORAGE_GROUP = "storage.k8s.io"  # the recorded reference does not have it


_BEYOND = (  # what it does not have, either: bodies of sub-resources
    "io.k8s.api.storage.v1.",
    "io.k8s.api.core.v1.TopologySelector",
    "io.k8s.api.authentication.v1.TokenRequest",
    "io.k8s.api.authentication.v1.BoundObjectReference",
    "io.k8s.api.policy.v1.Eviction",
)


@needs_api_schema
def test_components_are_those_of_the_reference() -> None:
    ours: dict[str, Any] = load_data("components.json")
    seen = set()
    for file in sorted(API_SCHEMA.glob("*_v*.json")):
        for name, schema in json.loads(file.read_text()).items():
            seen.add(name)
            if not name.endswith(_COMMON) or file.name == "core_v1.json":
                assert ours[name] == schema, (file.name, name)
    assert {name for name in set(ours) - seen if not name.startswith(_BEYOND)} == set()


@needs_api_schema
def test_discovery_is_that_of_the_reference() -> None:
    ours = [line for line in load_data("discovery.json") if line["group"] != STORAGE_GROUP]
    assert ours == json.loads((API_SCHEMA / "discovery.json").read_text())


@needs_api_schema
def test_printer_columns_are_those_of_the_reference() -> None:
    ours = load_data("table-columns.json")
    for path, columns in json.loads((API_SCHEMA / "table-columns.json").read_text()).items():
        *group, _version, resource = path.split("/")[1:]
        key = f"{group[0] if group else ''}/{resource}"
        if key in CELLS:
            assert ours[key] == [[c["name"], c["type"], c["format"], c["priority"]] for c in columns], path


def test_every_cell_function_has_columns_to_fill() -> None:
    assert set(CELLS) <= set(load_data("table-columns.json"))


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
