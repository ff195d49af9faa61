"""The three patch formats."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
from dra_devcluster.apiserver.structure import Schema
from dra_devcluster.apiserver.verbs.patch import PatchRefused, json_patch, merge_patch, strategic_merge_patch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

Json = dict[str, Any]
MERGE = {
    "a value replaces": ({"a": 1}, {"a": 2}, {"a": 2}),
    "a null deletes": ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
    "objects merge": ({"a": {"b": 1}}, {"a": {"c": 2}}, {"a": {"b": 1, "c": 2}}),
    "lists are replaced": ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
    "an object replaces a scalar, without its nulls": ({"a": 1}, {"a": {"b": 2, "c": None}}, {"a": {"b": 2}}),
}


@pytest.mark.parametrize(("document", "patch", "result"), MERGE.values(), ids=MERGE)
def test_merge_patch(document: Json, patch: Json, result: Json) -> None:
    before = deepcopy(document)
    assert merge_patch(document, patch) == result
    assert document == before, "the argument is left alone"


def test_json_patch_applies_operations_in_order_to_a_copy() -> None:
    document = {"metadata": {"labels": {"a/b": "1"}}, "items": [1]}
    operations = [
        {"op": "test", "path": "/metadata/labels/a~1b", "value": "1"},
        {"op": "replace", "path": "/metadata/labels/a~1b", "value": "2"},
        {"op": "add", "path": "/items/-", "value": 3},
        {"op": "move", "from": "/items/0", "path": "/first"},
    ]
    assert json_patch(document, operations) == {"metadata": {"labels": {"a/b": "2"}}, "items": [3], "first": 1}
    assert document == {"metadata": {"labels": {"a/b": "1"}}, "items": [1]}


REFUSED = {
    "a failed test": [{"op": "test", "path": "/a", "value": 2}],
    "a missing target": [{"op": "remove", "path": "/b"}],
    "an unknown operation": [{"op": "paint", "path": "/a"}],
    "no pointer": [{"op": "remove", "path": "a"}],
    "no path": [{"op": "remove"}],
    "no operation": [1],
    "no list": {"op": "remove", "path": "/a"},
    "too many operations": [{"op": "test", "path": "/a", "value": 1}] * 10_001,
}


@pytest.mark.parametrize("operations", REFUSED.values(), ids=REFUSED)
def test_json_patch_refuses(operations: object) -> None:
    with pytest.raises(PatchRefused) as caught:
        json_patch({"a": 1}, operations)
    assert "class" not in str(caught.value), "the text is for clients, which know nothing of Python"


def containers(*names: str) -> list[dict[str, str]]:
    return [{"name": name, "image": name} for name in names]


STRATEGIC: dict[str, tuple[Any, Any, Any]] = {
    "items merge by key": (
        {"spec": {"containers": containers("a", "b")}},
        {"spec": {"containers": [{"name": "b", "image": "new"}]}},
        {"spec": {"containers": [{"name": "a", "image": "a"}, {"name": "b", "image": "new"}]}},
    ),
    "a new item comes first": (
        {"spec": {"containers": containers("a")}},
        {"spec": {"containers": containers("z")}},
        {"spec": {"containers": containers("z", "a")}},
    ),
    "the given order wins": (
        {"spec": {"containers": containers("a", "b", "c")}},
        {"spec": {"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}], "containers": containers("a")}},
        {"spec": {"containers": containers("b", "c", "a")}},
    ),
    "an order alone sorts": (
        {"spec": {"containers": containers("a", "b")}},
        {"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}},
        {"spec": {"containers": containers("b", "a")}},
    ),
    "an item is deleted by its key": (
        {"spec": {"containers": containers("a", "b")}},
        {"spec": {"containers": [{"$patch": "delete", "name": "a"}]}},
        {"spec": {"containers": containers("b")}},
    ),
    "a list is replaced on demand": (
        {"spec": {"containers": containers("a", "b")}},
        {"spec": {"containers": [{"$patch": "replace"}, *containers("c")]}},
        {"spec": {"containers": containers("c")}},
    ),
    "an object is replaced on demand": (
        {"metadata": {"labels": {"a": "1"}}},
        {"metadata": {"labels": {"$patch": "replace", "b": "2"}}},
        {"metadata": {"labels": {"b": "2"}}},
    ),
    "an object is emptied on demand": (
        {"metadata": {"labels": {"a": "1"}}},
        {"metadata": {"labels": {"$patch": "delete"}}},
        {"metadata": {"labels": {}}},
    ),
    "scalars merge as a set": (
        {"metadata": {"finalizers": ["a", "b"]}},
        {"metadata": {"finalizers": ["b", "c"]}},
        {"metadata": {"finalizers": ["a", "b", "c"]}},
    ),
    "scalars are deleted by value": (
        {"metadata": {"finalizers": ["a", "b"]}},
        {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}},
        {"metadata": {"finalizers": ["b"]}},
    ),
    "a list without merge strategy is replaced": (
        {"spec": {"tolerations": [{"key": "a"}]}},
        {"spec": {"tolerations": [{"key": "b"}]}},
        {"spec": {"tolerations": [{"key": "b"}]}},
    ),
    "only retained keys survive": (
        {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}},
        {"spec": {"volumes": [{"$retainKeys": ["name", "hostPath"], "name": "v", "hostPath": {"path": "/"}}]}},
        {"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}},
    ),
    "nulls delete, and are not stored": (
        {"spec": {"nodeName": "n"}},
        {"spec": {"nodeName": None, "securityContext": {"runAsUser": None, "runAsGroup": 1}}},
        {"spec": {"securityContext": {"runAsGroup": 1}}},
    ),
}


@pytest.mark.parametrize(("document", "patch", "result"), STRATEGIC.values(), ids=STRATEGIC)
def test_strategic_merge_patch(pod_schema: Schema, document: Json, patch: Json, result: Json) -> None:
    before = deepcopy((document, patch))
    assert strategic_merge_patch(document, patch, pod_schema) == result
    assert (document, patch) == before, "the arguments are left alone"


MALFORMED: dict[str, Json | list[Json]] = {
    "no object": [],
    "an unknown directive": {"$patch": "paint"},
    "an item without its key": {"spec": {"containers": [{"image": "x"}]}},
    "an item that is no object": {"spec": {"containers": ["x"]}},
    "keys to retain that are no list": {"spec": {"$retainKeys": 1}},
    "an order that is no list": {"spec": {"$setElementOrder/containers": 1, "containers": containers("a")}},
}


@pytest.mark.parametrize("patch", MALFORMED.values(), ids=MALFORMED)
def test_strategic_merge_patch_refuses(pod_schema: Schema, patch: Json | list[Json]) -> None:
    with pytest.raises(PatchRefused):
        strategic_merge_patch({"spec": {"containers": containers("a")}}, patch, pod_schema)  # type: ignore[arg-type]  # or a list


scalars = st.sampled_from([None, True, 1, "a", "merge", "delete", "replace"])
keys = st.sampled_from(
    [
        "spec",
        "metadata",
        "labels",
        "finalizers",
        "containers",
        "env",
        "volumes",
        "name",
        "tolerations",
        "$patch",
        "$retainKeys",
        "$setElementOrder/containers",
        "$deleteFromPrimitiveList/finalizers",
        "$setElementOrder/finalizers",
    ]
)
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=20
)
items = st.lists(
    documents | st.dictionaries(st.sampled_from(["name", "$patch", "env", "image"]), documents, max_size=3), max_size=3
)
pods = st.fixed_dictionaries(
    {},
    optional={
        "spec": st.dictionaries(keys, items | documents, max_size=4),
        "metadata": st.dictionaries(keys, items | documents, max_size=4),
    },
)
FORMATS = {
    "merge": lambda document, patch, schema: merge_patch(document, patch),
    "json": lambda document, patch, schema: json_patch(document, patch),
    "strategic": strategic_merge_patch,
}


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "apply", [lambda patch, _: merge_patch({}, patch), lambda patch, schema: strategic_merge_patch({}, patch, schema)]
)
def test_patches_nested_beyond_reason_are_refused(
    pod_schema: Schema, apply: Callable[[object, Schema], object]
) -> None:
    with pytest.raises(PatchRefused, match="nested too deeply"):
        apply(nested(100_000), pod_schema)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(pods, pods | documents)
@pytest.mark.parametrize("apply", FORMATS.values(), ids=FORMATS)
def test_nonsense_is_refused_or_applied_and_never_breaks(
    pod_schema: Schema, apply: Callable[[object, object, Schema], object], document: object, patch: object
) -> None:
    before = deepcopy((document, patch))
    with suppress(PatchRefused):
        apply(document, patch, pod_schema)
    assert (document, patch) == before


operations = st.lists(
    st.dictionaries(
        st.sampled_from(["op", "path", "from", "value"]),
        st.sampled_from(
            ["add", "remove", "replace", "move", "copy", "test", "/a", "/a/-", "/b/0", "/", "", "x", "/~2", None, 1]
        ),
    ),
    max_size=4,
)


@given(operations)
def test_nonsensical_operations_are_refused(patch: list[Json]) -> None:
    with suppress(PatchRefused):
        json_patch({"a": [1], "b": "text"}, patch)


def test_an_item_that_has_no_identity_is_refused(pod_schema: Schema) -> None:
    patches: list[Json] = [{"metadata": {"finalizers": [{"a": 1}]}}, {"spec": {"containers": [{"name": {}}]}}]
    for patch in patches:
        document = {"metadata": {"finalizers": ["a"]}, "spec": {"containers": containers("a")}}
        with pytest.raises(PatchRefused, match="cannot identify a list item"):
            strategic_merge_patch(document, patch, pod_schema)


def test_as_many_operations_as_a_real_server_takes_are_taken() -> None:
    assert json_patch({"a": 1}, [{"op": "test", "path": "/a", "value": 1}] * 10_000) == {"a": 1}
