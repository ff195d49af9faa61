"""Protobuf bodies: what kubectl 1.32 really sent, and what no client should send."""

from __future__ import annotations

import pytest
from dra_devcluster.apiserver.wire import MalformedProtobuf, decode_protobuf, wanted

# By the command that sent it.
RECORDED = {
    "create namespace foo": (
        "6b3873000a0f0a02763112094e616d657370616365121b0a130a03666f6f12001a0022002a0032003800420012001a020a001a002200",
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "foo"}, "spec": {}, "status": {}},
    ),
    "create secret generic sec --from-literal=a=b": (
        "6b3873000a0c0a0276311206536563726574121f0a130a0373656312001a0022002a0032003800420012060a01611201621a"
        "001a002200",
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "sec"}, "data": {"a": "Yg=="}},
    ),
    "create deployment dep --image=nginx --replicas=0": (
        "6b3873000a150a07617070732f7631120a4465706c6f796d656e7412ab010a1f0a0364657012001a0022002a003200380042"
        "005a0a0a036170701203646570127a0800120c0a0a0a0361707012036465701a600a1c0a0012001a0022002a003200380042"
        "005a0a0a036170701203646570124012220a056e67696e7812056e67696e782a0042006a007200800100880100900100a201"
        "001a00320042004a0052005800600068008201008a01009a0100c2010022020a00280038001a0c0800100018002000280038"
        "001a002200",
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "dep", "labels": {"app": "dep"}},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": {"app": "dep"}},
                "template": {
                    "metadata": {"labels": {"app": "dep"}},
                    "spec": {"containers": [{"name": "nginx", "image": "nginx", "resources": {}}]},
                },
                "strategy": {},
            },
            "status": {},
        },
    ),
    "create quota q --hard=pods=3,cpu=2": (
        "6b3873000a130a027631120d5265736f7572636551756f746112300a110a017112001a0022002a0032003800420012190a0a"
        "0a0363707512030a01320a0b0a04706f647312030a01331a001a002200",
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "q"},
            "spec": {"hard": {"cpu": "2", "pods": "3"}},
            "status": {},
        },
    ),
    "create clusterrolebinding crb --clusterrole=cr --user=me": (
        "6b3873000a320a1c726261632e617574686f72697a6174696f6e2e6b38732e696f2f76311212436c7573746572526f6c6542"
        "696e64696e67126c0a130a0363726212001a0022002a0032003800420012270a04557365721219726261632e617574686f72"
        "697a6174696f6e2e6b38732e696f1a026d6522001a2c0a19726261632e617574686f72697a6174696f6e2e6b38732e696f12"
        "0b436c7573746572526f6c651a0263721a002200",
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "crb"},
            "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "me"}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cr"},
        },
    ),
    "create poddisruptionbudget pdb --selector=a=b --min-available=1": (
        "6b3873000a200a09706f6c6963792f76311213506f6444697372757074696f6e42756467657412350a130a0370646212001a"
        "0022002a0032003800420012120a06080010011a0012080a060a01611201621a0a080018002000280030001a002200",
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "pdb"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}},
            "status": {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0},
        },
    ),
    "create service clusterip svc --tcp=80:80": (
        "6b3873000a0d0a02763112075365727669636512660a1f0a0373766312001a0022002a003200380042005a0a0a0361707012"
        "03737663123f0a180a0538302d3830120354435018502206080010501a002800120a0a0361707012037376631a002209436c"
        "757374657249503a00420052005a00600068001a020a001a002200",
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "svc", "labels": {"app": "svc"}},
            "spec": {
                "ports": [{"name": "80-80", "protocol": "TCP", "port": 80, "targetPort": 80}],
                "selector": {"app": "svc"},
                "type": "ClusterIP",
            },
            "status": {"loadBalancer": {}},
        },
    ),
    "create token sa": (
        "6b3873000a280a1861757468656e7469636174696f6e2e6b38732e696f2f7631120c546f6b656e52657175657374121a0a10"
        "0a0012001a0022002a0032003800420012001a040a0012001a002200",
        {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "metadata": {},
            "spec": {},
            "status": {"token": ""},
        },
    ),
    "create ingress ing --rule=a/b=c:80": (
        "6b3873000a1f0a146e6574776f726b696e672e6b38732e696f2f76311207496e6772657373123e0a130a03696e6712001a00"
        "22002a0032003800420012231a210a0161121c0a1a0a180a022f62120b22090a016312040a0010501a0545786163741a020a"
        "001a002200",
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "Ingress",
            "metadata": {"name": "ing"},
            "spec": {
                "rules": [
                    {
                        "host": "a",
                        "http": {
                            "paths": [
                                {
                                    "path": "/b",
                                    "backend": {"service": {"name": "c", "port": {"number": 80}}},
                                    "pathType": "Exact",
                                }
                            ]
                        },
                    }
                ]
            },
            "status": {"loadBalancer": {}},
        },
    ),
}


@pytest.mark.parametrize(("body", "obj"), RECORDED.values(), ids=RECORDED)
def test_a_recorded_body(body: str, obj: dict[str, object]) -> None:
    assert decode_protobuf(bytes.fromhex(body)) == obj


def envelope(api_version: str, kind: str, message: bytes) -> bytes:
    """The four magic bytes and a runtime.Unknown around a message; all parts shorter than 128 bytes."""
    type_meta = b"\x0a" + bytes([len(api_version)]) + api_version.encode()
    type_meta += b"\x12" + bytes([len(kind)]) + kind.encode()
    return b"k8s\x00" + b"\x0a" + bytes([len(type_meta)]) + type_meta + b"\x12" + bytes([len(message)]) + message


def test_a_token_can_be_bound_to_an_object_by_its_uid() -> None:
    """As by ``kubectl create token --bound-object-uid``."""
    reference = b"\x0a\x03Pod\x1a\x03web\x22\x05u-123"
    spec = b"\x1a" + bytes([len(reference)]) + reference
    body = envelope("authentication.k8s.io/v1", "TokenRequest", b"\x12" + bytes([len(spec)]) + spec)
    assert decode_protobuf(body)["spec"]["boundObjectRef"] == {"kind": "Pod", "name": "web", "uid": "u-123"}


def test_a_zero_that_is_a_value_is_kept() -> None:
    options = decode_protobuf(envelope("v1", "DeleteOptions", b"\x08\x00\x22\x0aForeground"))
    assert options["gracePeriodSeconds"] == 0
    assert options["propagationPolicy"] == "Foreground"


def test_kinds_of_the_common_machinery_are_known_in_every_group() -> None:
    assert decode_protobuf(envelope("policy/v1", "DeleteOptions", b""))["kind"] == "DeleteOptions"


def test_negative_numbers_are_ten_byte_varints() -> None:
    minus_one = b"\xff" * 9 + b"\x01"
    priority = decode_protobuf(envelope("scheduling.k8s.io/v1", "PriorityClass", b"\x10" + minus_one))
    assert priority["value"] == -1


def test_times_are_texts_again() -> None:
    micro = b"\x08\x05\x10\x80\xe5\x9a\x77"  # 5 s and 250,000,000 ns after the epoch
    spec = b"\x1a" + bytes([len(micro)]) + micro
    decoded = decode_protobuf(envelope("coordination.k8s.io/v1", "Lease", b"\x12" + bytes([len(spec)]) + spec))
    assert decoded["spec"] == {"acquireTime": "1970-01-01T00:00:05.250000Z"}


def test_fields_of_a_newer_client_are_dropped() -> None:
    assert decode_protobuf(envelope("v1", "Namespace", b"\xfa\x7f\x01a")) == {"apiVersion": "v1", "kind": "Namespace"}


def test_json_in_the_envelope_is_taken_as_it_is() -> None:
    body = envelope("e.io/v1", "Widget", b'{"kind": "Widget", "spec": {"a": 1}}')
    assert decode_protobuf(body) == {"kind": "Widget", "spec": {"a": 1}}


MALFORMED = {
    "no magic": b"{}",
    "an unknown kind": envelope("e.io/v1", "Widget", b"\x0a\x00"),
    "a truncated field": envelope("v1", "Namespace", b"\x0a\x7fabc"),
    "a truncated number": b"k8s\x00\x0a\xff",
    "an endless number": b"k8s\x00\x0a" + b"\xff" * 100,
    "an object where a text belongs": envelope("v1", "Namespace", b"\x08\x01"),
    "a text that is none": envelope("v1", "ConfigMap", b"\x0a\x04\x0a\x02\xff\xfe"),
    "a group of the old kind": envelope("v1", "Namespace", b"\x0b"),
    "broken JSON": envelope("v1", "Namespace", b"{nonsense"),
    "an empty envelope": b"k8s\x00",
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_malformed_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(MalformedProtobuf):
        decode_protobuf(body)


def field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def test_json_in_a_field_is_json_again() -> None:
    parameters = field(1, b"gpu.example.com") + field(2, field(1, b'{"a": [1]}'))
    spec = field(2, field(1, field(3, field(2, field(1, parameters)))))
    decoded = decode_protobuf(envelope("resource.k8s.io/v1", "ResourceClaim", spec))
    opaque = {"driver": "gpu.example.com", "parameters": {"a": [1]}}
    assert decoded["spec"]["devices"]["config"] == [{"opaque": opaque}]


def test_of_the_forms_that_a_client_would_take_the_first_possible_one_counts() -> None:
    table = "application/json;as=Table;g=meta.k8s.io;v="
    assert (wanted(f"{table}v2, {table}v1beta1, {table}v1").shape, wanted(f";, {table}v1").shape) == ("table", "table")
    assert wanted(f"{table}v2, {table}v1beta1, {table}v1").version == "v1beta1"
    assert (wanted("application/yaml;q=0.9").yaml, wanted("text/html, */*;q=0.8").yaml) == (True, False)
