"""A list as clients decode it: each item on its own, so that a bad one costs no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from dra_api.codec import DecodeError, decode_item, raw_list

T = TypeVar("T")


def decode_list(
    type_: type[T], data: bytes, reshape: Callable[[dict[str, Any]], dict[str, Any]] | None = None
) -> tuple[list[T], list[tuple[bytes, DecodeError]], dict[str, Any]]:
    """Return the good items, the bad ones with their errors, and the metadata of the list."""
    envelope = raw_list(data)
    good: list[T] = []
    bad: list[tuple[bytes, DecodeError]] = []
    for raw in envelope.items or ():
        try:
            good.append(decode_item(type_, raw, is_cut=envelope.is_cut, reshape=reshape))
        except DecodeError as error:
            bad.append((bytes(raw), error))
    return good, bad, envelope.metadata
