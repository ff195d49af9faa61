"""Names and texts with a prescribed form (api.md section 3)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from dra_api.validation import formats
from dra_api.validation.formats import Errors
from msgspec import Raw

LABELS = ["a", "a-b", "0", "x" * 63]
NO_LABELS = ["", "-a", "a-", "A", "a.b", "a_b", "x" * 64, "ä", "a\n"]
SUBDOMAINS = [*LABELS, "a.b", "a-b.c", "x" * 253]
NO_SUBDOMAINS = ["", ".a", "a.", "a..b", "A", "-a", "a.-b", "x" * 254, "a\n"]
KEYS = ["a", "A", "a_b.c-d", "example.com/a", "x" * 63, "a.b/X"]
NO_KEYS = ["", "/a", "a/", "a/b/c", "x" * 64, "-a", "a-", "Ex.com/a", "a b"]
VALUES = ["", "a", "A_b.c-d", "x" * 63]
NO_VALUES = ["x" * 64, "-a", "a-", "a b", "a/b", "ä"]


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (formats.dns_label, LABELS, NO_LABELS),
        (formats.dns_subdomain, SUBDOMAINS, NO_SUBDOMAINS),
        (formats.label_key, KEYS, NO_KEYS),
        (formats.label_value, VALUES, NO_VALUES),
    ],
    ids=["DNS label", "DNS subdomain", "label key", "label value"],
)
def test_bare_forms(form: formats.Form, good: list[str], bad: list[str]) -> None:
    assert [text for text in good if any(form(text))] == []
    assert [text for text in bad if not any(form(text))] == []


UUID = "12345678-90ab-cdef-1234-567890abcdef"


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        pytest.param(
            formats.driver_name, ["a.b", "GPU.example.com", "x" * 63], ["", "x" * 64, "a_b", "a."], id="driver"
        ),
        pytest.param(
            formats.pool_name,
            ["a", "a.b/c", "/".join(["x" * 84] * 3)[:253]],
            ["", "/a", "a/", "a//b", "A", "x" * 254],
            id="pool",
        ),
        pytest.param(formats.class_name, SUBDOMAINS, NO_SUBDOMAINS, id="class"),
        pytest.param(formats.counter_name, LABELS, NO_LABELS, id="counter"),
        pytest.param(
            formats.qualified_name,
            ["a", "_a", "A1", "a.b/c", "DOM.example/x", "x" * 32, "many/slashes/pass"],
            ["", "1a", "a-b", "x" * 33, "/a", "a/", "a_b/c", "x" * 64 + "/a"],
            id="qualified name",
        ),
        pytest.param(formats.fully_qualified_name, ["a.b/c"], ["c", "/c", "a/"], id="fully qualified name"),
        pytest.param(
            formats.share_id, [UUID], ["", UUID.upper(), UUID[:-1], f"{{{UUID}}}", UUID.replace("-", "")], id="share"
        ),
        pytest.param(formats.attribute_string, ["", "x" * 64], ["x" * 65, "ä" * 33], id="string attribute"),
        pytest.param(
            formats.attribute_version,
            ["1.0.0", "1.0.0-a+b", f"1.0.{2**64}"],
            ["1.0", "", "1.0.0-" + "x" * 60],
            id="version",
        ),
        pytest.param(
            formats.interface_address,
            ["10.9.8.7/24", "0.0.0.0/0", "2001:db8::1/64", "::/0"],
            [
                "10.9.8.7",
                "300.9.8.0/24",
                "010.9.8.0/24",
                "2001:0db8::1/64",
                "1.2.3.4/33",
                "::ffff:1.2.3.4/112",
                "1.2.3.4/255.0.0.0",
                "",
                "fe80::1%eth0/64",
            ],
            id="address",
        ),
    ],
)
def test_fields(check: Callable[[str, str], Errors], good: list[str], bad: list[str]) -> None:
    assert [text for text in good if any(check(text, "spec.x"))] == []
    assert [text for text in bad if not any(check(text, "spec.x"))] == []
    assert {error.field for text in bad for error in check(text, "spec.x")} == {"spec.x"}


@pytest.mark.parametrize(
    ("name", "extended"),
    [
        ("example.com/gpu", True),
        ("gpu", False),
        ("kubernetes.io/gpu", False),
        ("a.kubernetes.io/gpu", False),
        ("requests.example.com/gpu", False),
        ("example.com/" + "x" * 63, True),
        ("example.com/" + "x" * 64, False),
        ("example.com/a b", False),
        ("Example.com/gpu", False),
        ("deviceclass.resource.kubernetes.io/gpu", False),
    ],
)
def test_extended_resources(name: str, extended: bool) -> None:
    assert formats.is_extended_resource(name) is extended


@pytest.mark.parametrize(
    ("data", "stored", "types"),
    [
        (b'{"a": null}', False, []),
        (b"", False, ["FieldValueRequired"]),
        (b" null ", False, ["FieldValueRequired"]),
        (b"[1]", False, ["FieldValueInvalid"]),
        (b"{", False, ["FieldValueInvalid"]),
        (b'{"a": NaN}', False, ["FieldValueInvalid"]),
        (b"[" * 100_000, True, ["FieldValueInvalid"]),
        (b'{"a":"' + b"x" * 10232 + b'"}', False, []),
        (b'{"a":"' + b"x" * 10233 + b'"}', False, ["FieldValueTooLong"]),
        (b'{"a":"' + b"x" * 10233 + b'"}', True, []),
    ],
    ids=range(10),
)
def test_raw_objects(data: bytes, stored: bool, types: list[str]) -> None:
    assert [error.type for error in formats.raw_object(Raw(data), "x", stored=stored)] == types
