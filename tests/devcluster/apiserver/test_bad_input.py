"""Whatever a client sends, it gets a Status that says what is wrong, and the server goes on."""

from __future__ import annotations

import gzip
from io import BytesIO

import pytest
from bare_client import CLAIMS, CONFIG_MAPS, NODES, PODS, Client, Json, causes, claim, config_map, pod


@pytest.mark.parametrize(
    ("body", "kind", "code"),
    [
        (b"", "application/json", 400),
        (b"{", "application/json", 400),
        (b"null", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"7", "application/json", 400),
        (b'"text"', "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b'{"a":' * 900 + b"1" + b"}" * 900, "application/json", 422),
        (b'{"metadata": {"name": 123456789012345678901234567890}}', "application/json", 400),
        (b"a: [", "application/yaml", 400),
        (b"a: &x [1, 1]\nb: [*x, *x]", "application/yaml", 422),  # its name is missing
        (b"a: &x [*x, *x]", "application/yaml", 400),
        (b"- " * 100_000, "application/yaml", 400),
        (b"{1: 2, [a]: b}", "application/yaml", 400),
        (b"a: !!binary aGk=", "application/yaml", 400),  # a form that JSON does not have
        (b"k8s\x00nonsense", "application/vnd.kubernetes.protobuf", 400),
        (b"nonsense", "application/vnd.kubernetes.protobuf", 400),
        (b"a=b", "application/x-www-form-urlencoded", 415),
        (gzip.compress(b"{}", mtime=0), "application/json", 400),
    ],
)
async def test_bodies_that_are_no_objects(client: Client, body: bytes, kind: str, code: int) -> None:
    answer = await client.call("POST", CONFIG_MAPS, body, kind=kind)
    assert answer.code == code, answer.body
    assert answer.json["kind"] == "Status"
    assert answer.message


async def test_bodies_beyond_three_mebibytes_are_refused(client: Client) -> None:
    longest = b'{"metadata": {"name": "a"}}'.ljust(3 * 2**20)
    answer = await client.call("POST", CONFIG_MAPS, BytesIO(longest + b" "))
    assert (answer.code, answer.reason) == (413, "RequestEntityTooLarge")
    assert (await client.call("POST", CONFIG_MAPS, BytesIO(longest))).code == 201


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"kind": "Secret"}, "the kind in the data (Secret) does not match the expected kind (ConfigMap)"),
        ({"apiVersion": "v2"}, "the API version in the data (v2) does not match the expected API version (v1)"),
        ({"metadata": {"name": "a", "namespace": "b"}}, "the namespace of the provided object does not match"),
        ({"metadata": []}, "cannot unmarshal array into Go struct field ConfigMap.metadata"),
        ({"metadata": {"name": 7}}, "cannot unmarshal number into Go struct field ObjectMeta.metadata.name"),
        ({"metadata": {"labels": {"a": 1}}}, "cannot unmarshal number"),
        ({"data": {"a": 1}}, "cannot unmarshal number into Go struct field ConfigMap.data of type string"),
        ({"binaryData": {"a": "not base64!"}}, "illegal base64 data"),
    ],
)
async def test_objects_that_do_not_fit(client: Client, body: Json, message: str) -> None:
    answer = await client.call("POST", CONFIG_MAPS, body)
    assert (answer.code, answer.reason) == (400, "BadRequest"), answer.body
    assert message in answer.message


@pytest.mark.parametrize(
    ("meta", "field", "reason"),
    [
        ({"name": ""}, "metadata.name", "FieldValueRequired"),
        ({"name": "Upper"}, "metadata.name", "FieldValueInvalid"),
        ({"name": "x" * 254}, "metadata.name", "FieldValueInvalid"),
        ({"name": "a", "labels": {"a b": "c"}}, "metadata.labels", "FieldValueInvalid"),
        ({"name": "a", "labels": {"a": "-"}}, "metadata.labels", "FieldValueInvalid"),
        ({"name": "a", "annotations": {"/x": "c"}}, "metadata.annotations", "FieldValueInvalid"),
        ({"name": "a", "annotations": {"x": "c" * 300_000}}, "metadata.annotations", "FieldValueTooLong"),
        ({"name": "a", "finalizers": ["a b"]}, "metadata.finalizers[0]", "FieldValueInvalid"),
        ({"name": "a", "finalizers": ["a.com/b", "c"]}, "metadata.finalizers[1]", "FieldValueInvalid"),
        (
            {"name": "a", "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": ""}]},
            "metadata.ownerReferences.uid",
            "FieldValueInvalid",
        ),
    ],
)
async def test_metadata_is_validated_for_every_kind(client: Client, meta: Json, field: str, reason: str) -> None:
    answer = await client.call("POST", CONFIG_MAPS, {"metadata": meta})
    assert (answer.code, answer.reason) == (422, "Invalid"), answer.body
    assert causes(answer.json) == [(field, reason)]
    assert answer.message.startswith(f'ConfigMap "{meta["name"]}" is invalid: {field}: ')


async def test_several_faults_are_all_reported(client: Client) -> None:
    answer = await client.call("POST", PODS, pod("Bad", containers=[{"name": "A"}], restartPolicy="Sometimes"))
    assert causes(answer.json) == [
        ("metadata.name", "FieldValueInvalid"),
        ("spec.containers[0].name", "FieldValueInvalid"),
        ("spec.containers[0].image", "FieldValueRequired"),
        ("spec.restartPolicy", "FieldValueNotSupported"),
    ]
    assert answer.message.startswith('Pod "Bad" is invalid: [metadata.name: Invalid value: "Bad": ')
    assert 'spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always"' in answer.message


@pytest.mark.parametrize(
    ("mode", "code", "warned"), [("Ignore", 201, False), ("Warn", 201, True), ("", 201, True), ("Strict", 400, False)]
)
async def test_unknown_fields_are_dropped_warned_of_or_refused(
    client: Client, mode: str, code: int, warned: bool
) -> None:
    body = {**config_map("a"), "colour": "red"}
    answer = await client.call("POST", CONFIG_MAPS, body, **({"fieldValidation": mode} if mode else {}))
    assert answer.code == code
    if code == 201:
        assert "colour" not in answer.json
        assert ('299 - "unknown field \\"colour\\""' in answer.headers.getall("Warning", [])) is warned
    else:
        assert answer.message == (
            'ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: unknown field "colour"'
        )


async def test_strict_requests_may_not_say_things_twice(client: Client) -> None:
    body = b'{"metadata": {"name": "a"}, "data": {"x": "1", "x": "2"}}'
    answer = await client.call("POST", CONFIG_MAPS, body, fieldValidation="Strict")
    assert answer.message.endswith('strict decoding error: duplicate field "data.x"')


@pytest.mark.parametrize(
    ("method", "path", "body", "query", "code"),
    [
        ("POST", NODES + "/n", {}, {}, 405),
        ("PUT", CONFIG_MAPS, {}, {}, 405),
        ("PATCH", CONFIG_MAPS, {}, {}, 405),
        ("POST", PODS, {}, {"dryRun": "Some"}, 422),
        ("POST", PODS, {}, {"fieldValidation": "Maybe"}, 422),
        ("DELETE", CONFIG_MAPS, None, {"propagationPolicy": "Sideways"}, 422),
        ("GET", CONFIG_MAPS, None, {"resourceVersionMatch": "Exact"}, 422),
        ("GET", CONFIG_MAPS, None, {"resourceVersionMatch": "Almost", "resourceVersion": "1"}, 422),
        ("DELETE", CONFIG_MAPS, None, {"gracePeriodSeconds": "soon"}, 400),
        ("POST", "/api/v1/configmaps", {"metadata": {"name": "a"}}, {}, 405),
        ("POST", "/api/v1/namespaces/nowhere/configmaps", {"metadata": {"name": "a"}}, {}, 404),
        ("GET", "/api/v1/namespaces/default/nodes", None, {}, 404),
        ("POST", CONFIG_MAPS, {"metadata": {"name": "a"}}, {"fieldManager": "x" * 200}, 422),
        ("GET", "/apis/apps/%2f/x", None, {}, 404),
        ("GET", CONFIG_MAPS, None, {"labelSelector": "a in (b c)"}, 400),
        ("GET", CONFIG_MAPS, None, {"labelSelector": "a b"}, 400),
        ("GET", CONFIG_MAPS, None, {"fieldSelector": "metadata.name"}, 400),
        ("POST", CONFIG_MAPS, {"metadata": {"name": "a", "annotations": {"x": "c" * (2**18 - 1)}}}, {}, 201),
        ("POST", CONFIG_MAPS, {"metadata": {"name": "a", "annotations": {"x": "c" * 2**18}}}, {}, 422),
    ],
)
async def test_requests_that_make_no_sense(
    client: Client, method: str, path: str, body: Json | None, query: dict[str, str], code: int
) -> None:
    answer = await client.call(method, path, body, **query)
    assert answer.code == code, answer.body
    assert answer.json["kind"] == ("Status" if code >= 400 else "ConfigMap")


async def test_the_name_in_the_body_must_be_the_one_in_the_url(client: Client) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    answer = await client.call("PUT", f"{CONFIG_MAPS}/a", config_map("b"))
    assert answer.message == "the name of the object (b) does not match the name on the URL (a)"


async def test_quantities_and_selectors_of_claims_are_read_at_once(client: Client) -> None:
    answer = await client.call("POST", CLAIMS, claim("c", capacity={"requests": {"memory": "much"}}))
    assert answer.code == 400
    assert "quantities must match the regular expression" in answer.message


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (
            "/apis/coordination.k8s.io/v1/namespaces/default/leases",
            {"spec": {"leaseDurationSeconds": 0}},
            "spec.leaseDurationSeconds",
        ),
        (
            "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
            {"spec": {"minAvailable": 1, "maxUnavailable": 1}},
            "spec",
        ),
    ],
)
async def test_some_kinds_have_rules_of_their_own(client: Client, path: str, body: Json, field: str) -> None:
    answer = await client.call("POST", path, {"metadata": {"name": "a"}, **body})
    assert causes(answer.json) == [(field, "FieldValueInvalid")]
