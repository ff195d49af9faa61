"""Field ownership: managedFields upkeep and server-side apply."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from dra_api.releases import Release
from dra_devcluster.apiserver.apply import (
    ApplyConflict,
    ApplyRefused,
    Writer,
    apply_patch,
    difference,
    intersection,
    paths,
    track_update,
    union,
)
from dra_devcluster.apiserver.registry import exists_in
from dra_devcluster.apiserver.structure import Schema, Structure
from hypothesis import given
from hypothesis import strategies as st

Json = dict[str, Any]
NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"
CREATOR = Writer("kubectl-create", "v1")
APPLIER = Writer("kubectl", "v1", operation="Apply")
OTHER = Writer("helm", "v1", operation="Apply")


@pytest.fixture(scope="module")
def config_map_schema(structure: Structure) -> Schema:
    schema = structure.schema("", "v1", "ConfigMap")
    assert schema is not None
    return schema


def pod(*containers: Json, **metadata: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", **metadata},
        "spec": {"containers": list(containers)},
    }


def config_map(data: Json | None = None, **metadata: Any) -> Json:
    made: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", **metadata}}
    return made | ({"data": data} if data is not None else {})


def owned(obj: Json, manager: str) -> list[str]:
    """The fields that a manager owns, as text; nothing when it has no entry."""
    entries = [entry for entry in obj["metadata"]["managedFields"] if entry["manager"] == manager]
    return [path for entry in entries for path in paths(entry["fieldsV1"])]


def created(obj: Json, schema: Schema, by: Writer = CREATOR) -> Json:
    obj = deepcopy(obj)
    obj["metadata"]["managedFields"] = track_update(None, obj, schema, by=by, now=NOW)
    return obj


def updated(live: Json, new: Json, schema: Schema, by: Writer) -> Json:
    new = deepcopy(new)
    new["metadata"].pop("managedFields", None)
    new["metadata"]["managedFields"] = track_update(live, new, schema, by=by, now=LATER)
    return new


def test_a_created_object_belongs_to_its_creator_in_the_form_of_the_real_server(pod_schema: Schema) -> None:
    ports = [{"containerPort": 80, "protocol": "TCP"}]
    live = created(pod({"name": "c", "image": "i", "ports": ports, "resources": {}}, labels={"a": "b"}), pod_schema)
    assert live["metadata"]["managedFields"] == [
        {
            "manager": "kubectl-create",
            "operation": "Update",
            "apiVersion": "v1",
            "time": NOW,
            "fieldsType": "FieldsV1",
            "fieldsV1": {
                "f:metadata": {"f:labels": {".": {}, "f:a": {}}},
                "f:spec": {
                    "f:containers": {
                        'k:{"name":"c"}': {
                            ".": {},
                            "f:name": {},
                            "f:image": {},
                            "f:resources": {},
                            "f:ports": {
                                ".": {},
                                'k:{"containerPort":80,"protocol":"TCP"}': {
                                    ".": {},
                                    "f:containerPort": {},
                                    "f:protocol": {},
                                },
                            },
                        }
                    }
                },
            },
        }
    ]


def test_an_update_takes_what_it_changes_and_gives_up_what_it_removes(config_map_schema: Schema) -> None:
    live = created(config_map({"a": "1", "b": "2", "c": "3"}), config_map_schema)
    new = updated(live, config_map({"a": "1", "b": "9", "d": "4"}), config_map_schema, Writer("editor", "v1"))
    assert owned(new, "kubectl-create") == [".data", ".data.a"]
    assert owned(new, "editor") == [".data.b", ".data.d"]


def test_an_update_without_change_leaves_the_entries_alone(config_map_schema: Schema) -> None:
    live = created(config_map({"a": "1"}), config_map_schema)
    new = updated(live, config_map({"a": "1"}, resourceVersion="7"), config_map_schema, Writer("editor", "v1"))
    assert new["metadata"]["managedFields"] == live["metadata"]["managedFields"]


def test_subresources_have_entries_of_their_own(pod_schema: Schema) -> None:
    live = created(pod({"name": "c"}), pod_schema, Writer("kubelet", "v1"))
    running = {
        **pod({"name": "c"}),
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    new = updated(live, running, pod_schema, Writer("kubelet", "v1", "status"))
    spec, status = new["metadata"]["managedFields"]
    assert "subresource" not in spec
    assert status["subresource"] == "status"
    assert list(paths(status["fieldsV1"])) == [
        ".status.conditions",
        '.status.conditions[type="Ready"]',
        '.status.conditions[type="Ready"].status',
        '.status.conditions[type="Ready"].type',
        ".status.phase",
    ]


def test_a_client_may_edit_the_entries_or_forget_them(config_map_schema: Schema) -> None:
    live = created(config_map({"a": "1"}), config_map_schema)
    renamed = deepcopy(live)
    renamed["metadata"]["managedFields"][0]["manager"] = "kubectl"
    assert track_update(live, renamed, config_map_schema, by=CREATOR, now=LATER)[0]["manager"] == "kubectl"
    forgotten = config_map({"a": "1"}, managedFields=[{}])
    assert track_update(live, forgotten, config_map_schema, by=CREATOR, now=LATER) == []


MALFORMED: dict[str, Json | str] = {
    "no fields": {"manager": "m", "operation": "Update", "apiVersion": "v1"},
    "no manager": {"operation": "Update", "apiVersion": "v1", "fieldsV1": {"f:data": {}}},
    "an unknown operation": {"manager": "m", "operation": "Guess", "apiVersion": "v1", "fieldsV1": {"f:data": {}}},
    "no tree": {"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsV1": {"f:data": 1}},
    "no path element": {"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsV1": {"data": {}}},
    "no key": {"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsV1": {"f:data": {"k:x": {}}}},
    "no object": "m",
}


@pytest.mark.parametrize("entry", MALFORMED.values(), ids=MALFORMED)
def test_malformed_entries_are_dropped(config_map_schema: Schema, entry: Json | str) -> None:
    live = created(config_map({"a": "1"}), config_map_schema)
    new = config_map({"a": "2"}, managedFields=[*live["metadata"]["managedFields"], entry])
    entries = track_update(live, new, config_map_schema, by=Writer("editor", "v1"), now=LATER)
    assert [entry["manager"] for entry in entries] == ["kubectl-create", "editor"]


def test_many_updaters_are_folded_into_one(config_map_schema: Schema) -> None:
    live = created(config_map({"k0": "0"}), config_map_schema, Writer("m0", "v1"))
    for number in range(1, 15):
        data = {**live["data"], f"k{number}": "x"}
        live = updated(live, config_map(data), config_map_schema, Writer(f"m{number}", "v1"))
    assert len(live["metadata"]["managedFields"]) == 10
    assert ".data.k0" in owned(live, "ancient-changes")
    every = [path for entry in live["metadata"]["managedFields"] for path in paths(entry["fieldsV1"])]
    assert {f".data.k{number}" for number in range(15)} <= set(every)


def test_applying_to_nothing_creates(config_map_schema: Schema) -> None:
    made = apply_patch(None, config_map({"a": "1"}), config_map_schema, by=APPLIER, now=NOW)
    assert made["data"] == {"a": "1"}
    assert owned(made, "kubectl") == [".data.a"]
    assert made["metadata"]["managedFields"][0]["operation"] == "Apply"


def test_applying_the_same_again_changes_nothing(config_map_schema: Schema) -> None:
    made = apply_patch(None, config_map({"a": "1"}), config_map_schema, by=APPLIER, now=NOW)
    assert apply_patch(made, config_map({"a": "1"}), config_map_schema, by=APPLIER, now=LATER) is made


def test_what_is_no_longer_applied_is_removed(config_map_schema: Schema) -> None:
    made = apply_patch(None, config_map({"a": "1", "b": "2"}), config_map_schema, by=APPLIER, now=NOW)
    assert apply_patch(made, config_map({"b": "2"}), config_map_schema, by=APPLIER, now=LATER)["data"] == {"b": "2"}
    assert "data" not in apply_patch(made, config_map(), config_map_schema, by=APPLIER, now=LATER)


def test_what_another_manager_applies_too_stays(config_map_schema: Schema) -> None:
    made = apply_patch(None, config_map({"a": "1", "b": "2"}), config_map_schema, by=APPLIER, now=NOW)
    made = apply_patch(made, config_map({"a": "1"}), config_map_schema, by=OTHER, now=NOW)
    made = apply_patch(made, config_map({"b": "2"}), config_map_schema, by=APPLIER, now=LATER)
    assert made["data"] == {"a": "1", "b": "2"}
    assert (owned(made, "helm"), owned(made, "kubectl")) == ([".data.a"], [".data.b"])


def test_one_conflict_is_told_as_the_real_server_tells_it(pod_schema: Schema) -> None:
    live = created(pod({"name": "c", "image": "old"}), pod_schema, Writer("kubectl-client-side-apply", "v1"))
    with pytest.raises(ApplyConflict) as caught:
        apply_patch(live, pod({"name": "c", "image": "new"}), pod_schema, by=APPLIER, now=LATER)
    path = '.spec.containers[name="c"].image'
    assert str(caught.value) == (
        f'Apply failed with 1 conflict: conflict with "kubectl-client-side-apply" using v1: {path}'
    )
    assert caught.value.causes == [(path, 'conflict with "kubectl-client-side-apply" using v1')]


def test_several_conflicts_are_listed_by_manager(config_map_schema: Schema) -> None:
    live = apply_patch(None, config_map({"a": "1"}), config_map_schema, by=OTHER, now=NOW)
    live = updated(live, config_map({"a": "1", "b": "1", "c": "1"}), config_map_schema, Writer("editor", "v1"))
    with pytest.raises(ApplyConflict) as caught:
        apply_patch(live, config_map({"a": "2", "b": "2", "c": "2"}), config_map_schema, by=APPLIER, now=LATER)
    assert str(caught.value) == (
        "Apply failed with 3 conflicts: "
        'conflicts with "editor" using v1:\n- .data.b\n- .data.c\n'
        'conflicts with "helm":\n- .data.a'
    )


def test_force_takes_the_fields_over(config_map_schema: Schema) -> None:
    live = created(config_map({"a": "1", "b": "2"}), config_map_schema)
    made = apply_patch(live, config_map({"a": "9"}), config_map_schema, by=APPLIER, now=LATER, force=True)
    assert made["data"] == {"a": "9", "b": "2"}
    assert owned(made, "kubectl") == [".data.a"]
    assert owned(made, "kubectl-create") == [".data", ".data.b"]


def test_agreeing_on_a_value_is_no_conflict(config_map_schema: Schema) -> None:
    live = created(config_map({"a": "1"}), config_map_schema)
    made = apply_patch(live, config_map({"a": "1"}), config_map_schema, by=APPLIER, now=LATER)
    assert owned(made, "kubectl") == [".data.a"]
    assert ".data.a" in owned(made, "kubectl-create")


def test_list_items_merge_by_key_and_go_with_their_owner(pod_schema: Schema) -> None:
    live = created(pod({"name": "a", "image": "1"}), pod_schema)
    mine = pod({"name": "b", "image": "2", "ports": [{"containerPort": 80}]})
    both = apply_patch(live, mine, pod_schema, by=APPLIER, now=LATER)
    assert [c["name"] for c in both["spec"]["containers"]] == ["a", "b"]
    assert '.spec.containers[name="b"].ports[containerPort=80,protocol="TCP"]' in owned(both, "kubectl")
    without = apply_patch(both, pod(), pod_schema, by=APPLIER, now=LATER)
    assert [c["name"] for c in without["spec"]["containers"]] == ["a"]


def test_an_item_stays_while_another_manager_owns_part_of_it(pod_schema: Schema) -> None:
    live = apply_patch(None, pod({"name": "a", "image": "1"}), pod_schema, by=APPLIER, now=NOW)
    live = apply_patch(live, pod({"name": "a", "workingDir": "/"}), pod_schema, by=OTHER, now=NOW)
    left = apply_patch(live, pod(), pod_schema, by=APPLIER, now=LATER)
    assert left["spec"]["containers"] == [{"name": "a", "workingDir": "/"}]


def test_sets_merge_as_sets(config_map_schema: Schema) -> None:
    live = created(config_map(finalizers=["x/a"]), config_map_schema)
    made = apply_patch(live, config_map(finalizers=["x/b"]), config_map_schema, by=APPLIER, now=LATER)
    assert made["metadata"]["finalizers"] == ["x/a", "x/b"]
    assert owned(made, "kubectl") == ['.metadata.finalizers[="x/b"]']


def test_atomic_lists_are_owned_as_a_whole(pod_schema: Schema) -> None:
    config = pod({"name": "c", "command": ["a", "b"]})
    config["spec"]["tolerations"] = [{"key": "k"}]
    made = apply_patch(None, config, pod_schema, by=APPLIER, now=NOW)
    assert {".spec.tolerations", '.spec.containers[name="c"].command'} <= set(owned(made, "kubectl"))


def test_status_is_applied_through_its_subresource_only(pod_schema: Schema) -> None:
    live = created(pod({"name": "c"}), pod_schema)
    config = {**pod({"name": "c", "image": "new"}), "status": {"phase": "Running"}}
    by_status = Writer("kubelet", "v1", "status", "Apply")
    assert "status" not in apply_patch(live, config, pod_schema, by=APPLIER, now=LATER)
    made = apply_patch(live, config, pod_schema, by=by_status, now=LATER)
    assert made["status"] == {"phase": "Running"}
    assert made["spec"] == live["spec"]


def test_an_object_without_entries_counts_as_owned_before_the_first_apply(config_map_schema: Schema) -> None:
    with pytest.raises(ApplyConflict, match=r'conflict with "before-first-apply" using v1: \.data\.a'):
        apply_patch(config_map({"a": "1"}), config_map({"a": "2"}), config_map_schema, by=APPLIER, now=LATER)


def test_a_configuration_must_not_bring_entries(config_map_schema: Schema) -> None:
    config = config_map({"a": "1"}, managedFields=[])
    with pytest.raises(ApplyRefused, match="managedFields must be nil"):
        apply_patch(None, config, config_map_schema, by=APPLIER, now=NOW)


def granular_fields(schema: Schema, path: str = "") -> set[str]:
    """Every field that is owned by itself."""
    found = set()
    for name, child in schema.properties.items():
        here = f"{path}.{name}"
        found.add(here + ("*" if child.atomic else ""))
        inner = child.items if child.kind == "array" and child.items else child
        if not child.atomic and here.count(".") < 6:
            found |= granular_fields(inner, here)
    return found


def test_all_versions_of_a_kind_own_the_same_fields(structure: Structure) -> None:
    """So entries of one version hold for the others, without conversion."""
    by_kind: dict[tuple[str, str], list[Schema]] = {}
    for resource in structure.resources():
        if not exists_in(Release.V1_37, resource.group, resource.version, resource.plural):
            continue  # the versions of PodGroups are of different releases
        by_kind.setdefault((resource.group, resource.kind), []).append(resource.schema)
    several = {kind: schemas for kind, schemas in by_kind.items() if len(schemas) > 1}
    assert ("resource.k8s.io", "ResourceClaim") in several
    for kind, schemas in several.items():
        assert all(granular_fields(schema) == granular_fields(schemas[0]) for schema in schemas), kind


def test_two_applied_items_with_one_key_are_refused(pod_schema: Schema) -> None:
    live = created(pod({"name": "a"}), pod_schema)
    with pytest.raises(ApplyRefused, match="duplicate entries"):
        apply_patch(live, pod({"name": "a"}, {"name": "a"}), pod_schema, by=APPLIER, now=NOW)


names = st.sampled_from(["f:a", "f:b", "f:c"])
leaf: st.SearchStrategy[Json] = st.just({})
nodes = st.recursive(leaf, lambda inner: st.dictionaries(names | st.just("."), inner, min_size=1), max_leaves=6)


def _tidy(node: Json) -> Json:
    """A tree as field sets are: `.` only beside children."""
    kids = {key: _tidy(child) for key, child in node.items() if key != "."}
    return {".": {}, **kids} if kids and "." in node else kids


sets = st.dictionaries(names, nodes.map(_tidy))


@given(sets, sets)
def test_field_sets_are_sets(one: Json, other: Json) -> None:
    mine, theirs = set(paths(one)), set(paths(other))
    assert set(paths(union(one, other))) == mine | theirs
    assert set(paths(intersection(one, other))) == mine & theirs
    assert set(paths(difference(one, other))) == mine - theirs


_schema = Structure.load().schema("", "v1", "Pod")
assert _schema is not None
POD_SCHEMA: Schema = _schema  # Hypothesis and function-scoped fixtures do not mix
texts = st.sampled_from(["1", "2"])
environments = st.dictionaries(st.sampled_from("xyz"), texts, max_size=3).map(
    lambda chosen: [{"name": name, "value": value} for name, value in chosen.items()]
)
container_lists = st.dictionaries(
    st.sampled_from("abc"),
    st.fixed_dictionaries({}, optional={"image": texts, "env": environments, "command": st.lists(texts)}),
    max_size=3,
).map(lambda chosen: [{"name": name, **rest} for name, rest in chosen.items()])
configurations = st.builds(
    lambda containers, metadata: pod(*containers, **metadata),
    container_lists,
    st.fixed_dictionaries(
        {},
        optional={
            "labels": st.dictionaries(st.sampled_from("abc"), texts),
            "finalizers": st.lists(st.sampled_from(["x/a", "x/b"]), unique=True),
        },
    ),
)


def content(obj: Json) -> object:
    """An object without managedFields, empty parts, and the order of lists."""

    def tidy(value: object) -> object:
        if isinstance(value, dict):
            kept = {key: tidy(item) for key, item in value.items() if key != "managedFields"}
            return {key: item for key, item in kept.items() if item not in ({}, [])}
        if isinstance(value, list):
            return sorted((tidy(item) for item in value), key=repr)
        return value

    return tidy(obj)


@given(configurations, configurations)
def test_with_one_manager_only_the_last_configuration_counts(one: Json, other: Json) -> None:
    first = apply_patch(None, one, POD_SCHEMA, by=APPLIER, now=NOW)
    last = apply_patch(first, other, POD_SCHEMA, by=APPLIER, now=LATER)
    assert content(last) == content(other)
    again = apply_patch(last, other, POD_SCHEMA, by=APPLIER, now=LATER)
    assert content(again) == content(last)
    assert owned(again, "kubectl") == owned(last, "kubectl")


@given(configurations, configurations)
def test_a_manager_that_gives_everything_up_leaves_the_others_as_they_were(mine: Json, theirs: Json) -> None:
    before = apply_patch(None, theirs, POD_SCHEMA, by=OTHER, now=NOW)
    try:
        both = apply_patch(before, mine, POD_SCHEMA, by=APPLIER, now=NOW)
    except ApplyConflict:
        return
    after = apply_patch(both, pod(), POD_SCHEMA, by=APPLIER, now=LATER)
    assert content(after) == content(theirs)
    assert owned(after, "helm") == owned(before, "helm")
