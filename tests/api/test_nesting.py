"""An object that nests deeper than Python's decoders go costs only itself."""

from __future__ import annotations

import json

import pytest
from dra_api.codec import JSON_LEVELS, TOO_DEEP, DecodeError, convert, decode, shallow
from dra_api.resource import ResourceClaim
from objects import decode_list

TOO_MANY = 1_000_000
"""Levels: up to 3.13 Python's decoders go 1,000 deep and less, later ones as deep as the stack is."""


def nested(levels: int, inner: bytes = b"1") -> bytes:
    return b'{"a":' * levels + inner + b"}" * levels


def claim(name: str, parameters: bytes) -> bytes:
    config = b'[{"opaque":{"driver":"d","parameters":%s}}]' % parameters
    return b'{"metadata":{"name":"%s"},"spec":{"devices":{"config":%s}}}' % (name.encode(), config)


CASES = {
    "flat": (b'{"a": [1, "{[", "\\"{"]}', b'{"a": [1, "{[", "\\"{"]}'),
    "as deep as allowed": (nested(JSON_LEVELS), nested(JSON_LEVELS)),
    "one level too deep": (nested(JSON_LEVELS + 1), nested(JSON_LEVELS, b'"%s"' % TOO_DEEP.encode())),
    "much too deep": (nested(9000), nested(JSON_LEVELS, b'"%s"' % TOO_DEEP.encode())),
    "brackets in texts do not count": (nested(JSON_LEVELS, b'"\\\\[\\"{"'), nested(JSON_LEVELS, b'"\\\\[\\"{"')),
    "what never closes": (b"[" * 9000, b"[" * 9000),
    "nothing": (b"", b""),
}


@pytest.mark.parametrize(("data", "cut"), CASES.values(), ids=CASES)
def test_what_is_too_deep_is_replaced(data: bytes, cut: bytes) -> None:
    assert shallow(data) == cut


def test_siblings_of_what_is_cut_stay() -> None:
    data = b'{"x":[1,' + nested(2000) + b',2],"y":"z"}'
    found = json.loads(shallow(data))
    assert (found["x"][0], found["x"][2], found["y"]) == (1, 2, "z")


def test_a_claim_that_is_too_deep_costs_only_itself() -> None:
    deep = nested(TOO_MANY)
    page = b'{"metadata":{"resourceVersion":"7"},"items":[%s,%s]}' % (claim("good", b"{}"), claim("deep", deep))
    good, bad, meta = decode_list(ResourceClaim, page)
    assert [item.metadata.name for item in good] == ["good"]
    ((raw, error),) = bad
    assert json.loads(raw)["metadata"] == {"name": "deep"}
    assert str(error) == f"it is {TOO_DEEP}"
    assert meta == {"resourceVersion": "7"}


def test_a_list_that_never_closes_is_refused() -> None:
    with pytest.raises(DecodeError):
        decode_list(ResourceClaim, b'{"items":' + b"[" * TOO_MANY)


def test_a_single_object_that_is_too_deep_is_refused() -> None:
    with pytest.raises(DecodeError, match="levels deep"):
        decode(ResourceClaim, claim("deep", nested(TOO_MANY)))


def test_half_of_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(DecodeError, match="surrogates"):
        convert(ResourceClaim, {"metadata": {"name": "\ud800"}})


def test_a_list_without_items_is_empty() -> None:
    assert decode_list(ResourceClaim, b'{"items":null}') == ([], [], {})
