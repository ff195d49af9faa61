"""Large objects of users reach Kopf as what is read of them.

Kopf keeps each event for a while, as dicts that take up to ten times what the JSON does: a hundred pods of a megabyte,
which one user writes within seconds, would be a gigabyte. What was cut says so, since it must not be written back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dra_api.codec import DecodeError, convert, decode, encode
from dra_api.conversion import GROUP, ConversionError
from dra_api.conversion import convert as in_version
from dra_api.core import Pod
from dra_api.meta import Object
from dra_api.resource import ResourceClaim

from dra_operator.cache import ClaimTemplate, without_bulk

LARGE_BYTES: Final = 64 << 10
"""Bytes of JSON."""
CUT: Final[Mapping[str, type[Object]]] = {
    "Pod": Pod,
    "ResourceClaim": ResourceClaim,
    "ResourceClaimTemplate": ClaimTemplate,
}
"""The kinds that are cut."""
_MARK: Final = "dra.kopf.dev/cut"
_DECODED: Final = f"{GROUP}/v1"


def cut_large(raw: bytes, kind: str, api_version: str) -> bytes:
    """The JSON of an object, or what is read of it if that is long; one that cannot be read stays as it is."""
    decoded = CUT.get(kind)
    if decoded is None or len(raw) <= LARGE_BYTES:
        return raw
    of_group = api_version.startswith(GROUP)
    try:
        if of_group and api_version != _DECODED:
            named = {**decode(dict, raw), "kind": kind, "apiVersion": api_version}
            obj = convert(decoded, in_version(named, _DECODED))
        else:
            obj = decode(decoded, raw)
    except (DecodeError, ConversionError):
        return raw
    head = {"kind": kind, "apiVersion": _DECODED if of_group else api_version, _MARK: True}
    return encode(head)[:-1] + b"," + encode(without_bulk(obj))[1:]


def was_cut(obj: dict[str, Any]) -> bool:
    """Whether the object lacks what is not read."""
    return _MARK in obj
