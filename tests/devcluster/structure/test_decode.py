"""Typed reading of untyped bodies: unknown fields, nulls, wrong types, duplicates."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from dra_devcluster.apiserver.structure import Schema, Structure, decode, find_duplicates, refusal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "creationTimestamp": "2026-01-02T03:04:05Z"},
    "spec": {
        "containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}],
        "terminationGracePeriodSeconds": 0,
    },
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """POD with the value at a dotted path (digits index lists) replaced."""
    pod = deepcopy(POD)
    target: Any = pod
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in way:
        target = target[part]
    target[last] = value
    return pod


def test_a_sound_object_passes_unchanged(pod_schema: Schema) -> None:
    pod = deepcopy(POD)
    assert decode(pod_schema, pod) == []
    assert pod == POD


def test_unknown_fields_are_dropped_and_reported_with_their_path(pod_schema: Schema) -> None:
    pod = changed("spec.containers.0.imagee", "x")
    pod["metadata"]["colour"] = "red"
    pod["extra"] = 1
    problems = decode(pod_schema, pod)
    assert pod == POD
    assert refusal("v1", "Pod", problems) == (
        'Pod in version "v1" cannot be handled as a Pod: strict decoding error: '
        'unknown field "metadata.colour", unknown field "spec.containers[0].imagee", '
        'unknown field "extra"'
    )


def test_nulls_vanish(pod_schema: Schema) -> None:
    pod = changed("spec.nodeName", None)
    assert decode(pod_schema, pod) == []
    assert pod == POD


WRONG = {
    "a text where a truth value belongs": (
        "spec.hostNetwork",
        "yes",
        "json: cannot unmarshal string into Go struct field PodSpec.spec.hostNetwork of type bool",
    ),
    "an object where a list belongs": (
        "spec.containers",
        {},
        "json: cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container",
    ),
    "a list where an object belongs": (
        "spec",
        [],
        "json: cannot unmarshal array into Go struct field Pod.spec of type v1.PodSpec",
    ),
    "a number as image": (
        "spec.containers.0.image",
        1,
        "json: cannot unmarshal number into Go struct field Container.spec.containers.image of type string",
    ),
    "a number as label": (
        "metadata.labels",
        {"a": 1},
        "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
    ),
    "a fraction where a whole number belongs": (
        "spec.activeDeadlineSeconds",
        1.5,
        "json: cannot unmarshal number 1.5 into Go struct field PodSpec.spec.activeDeadlineSeconds of type int64",
    ),
    "a number beyond 32 bits": (
        "spec.priority",
        2**31,
        "json: cannot unmarshal number 2147483648 into Go struct field PodSpec.spec.priority of type int32",
    ),
    "a truth value where a number belongs": (
        "spec.priority",
        True,
        "json: cannot unmarshal bool into Go struct field PodSpec.spec.priority of type int32",
    ),
    "no quantity": (
        "spec.containers.0.resources.limits",
        {"cpu": "many"},
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
    ),
    "no time": (
        "metadata.deletionTimestamp",
        "tomorrow",
        'parsing time "tomorrow" as "2006-01-02T15:04:05Z07:00": cannot parse it',
    ),
}


@pytest.mark.parametrize(("path", "value", "text"), WRONG.values(), ids=WRONG)
def test_wrong_types_are_named_as_the_real_server_does(pod_schema: Schema, path: str, value: object, text: str) -> None:
    assert [(p.kind, p.text) for p in decode(pod_schema, changed(path, value))] == [("type", text)]


@pytest.mark.parametrize("text", ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.5Z", "2026-01-01T00:00:00.1234567Z", ""])
def test_a_time_of_a_lease_has_six_digits_after_the_point(structure: Structure, text: str) -> None:
    schema = structure.schema("coordination.k8s.io", "v1", "Lease")
    assert schema is not None
    said = f'parsing time "{text}" as "2006-01-02T15:04:05.000000Z07:00": cannot parse it'
    assert [p.text for p in decode(schema, {"spec": {"renewTime": text}})] == [said]


def test_times_are_kept_in_utc_at_the_precision_of_their_field(structure: Structure) -> None:
    lease, pod = (
        structure.schema(group, "v1", kind) for group, kind in [("coordination.k8s.io", "Lease"), ("", "Pod")]
    )
    assert lease is not None
    assert pod is not None
    held = {"spec": {"renewTime": "2026-01-01T02:00:00.500000+02:00"}}
    started = {"status": {"startTime": "2026-01-01T02:00:00.5+02:00"}}
    assert (decode(lease, held), decode(pod, started)) == ([], [])
    assert held["spec"]["renewTime"] == "2026-01-01T00:00:00.500000Z"
    assert started["status"]["startTime"] == "2026-01-01T00:00:00Z"


def test_bytes_are_base64(structure: Structure) -> None:
    schema = structure.schema("", "v1", "Secret")
    assert schema is not None
    assert decode(schema, {"data": {"a": "aGk="}}) == []
    assert [p.text for p in decode(schema, {"data": {"a": "hi!"}})] == ["illegal base64 data"]


def test_raw_parameters_keep_what_is_in_them(structure: Structure) -> None:
    schema = structure.schema("resource.k8s.io", "v1", "DeviceClass")
    assert schema is not None
    obj = {"spec": {"config": [{"opaque": {"driver": "d", "parameters": {"any": {"thing": None}}}}]}}
    before = deepcopy(obj)
    assert decode(schema, obj) == []
    assert obj == before


def test_an_object_nested_beyond_reason_is_refused(structure: Structure) -> None:
    schema = structure.schema("apiextensions.k8s.io", "v1", "CustomResourceDefinition")
    assert schema is not None
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(100_000):
        deep = {"type": "object", "properties": {"a": deep}}
    versions = [{"name": "v1", "schema": {"openAPIV3Schema": deep}}]
    assert [p.text for p in decode(schema, {"spec": {"versions": versions}})] == ["the object is nested too deeply"]


def test_fields_given_twice_are_found_where_they_are() -> None:
    problems = find_duplicates(b'{"a": 1, "b": [{"c": 1, "c": 2}], "a": 2}')
    assert [p.text for p in problems] == ['duplicate field "a"', 'duplicate field "b[0].c"']
    assert find_duplicates(b'{"a": {"b": 1}, "b": {"b": 1}}') == []


names = st.sampled_from([*POD, "metadata", "spec", "containers", "labels", "resources", "limits", "env", "name", "x"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=20,
)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.dictionaries(names, values))
def test_whatever_was_decoded_is_sound_the_second_time(pod_schema: Schema, obj: dict[str, Any]) -> None:
    if any(problem.kind == "type" for problem in decode(pod_schema, obj)):
        return
    before = deepcopy(obj)
    assert decode(pod_schema, obj) == []
    assert obj == before
