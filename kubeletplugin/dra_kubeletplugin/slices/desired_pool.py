"""What the driver wants of one pool, as it was when the driver published it.

The driver may go on changing its lists and dicts, so this keeps a copy. The copy is text, which takes a millisecond
per thousand devices. It becomes a checked pool at the first sync, in a thread, which takes sixty times as long.
"""

from __future__ import annotations

import re
from functools import cached_property

import msgspec
from dra_api.codec import DecodeError, decode, encode

from dra_kubeletplugin.errors import PoolInvalid

from .check import checked
from .model import Pool


class _Named(msgspec.Struct):
    name: str


class _Names(msgspec.Struct):
    devices: tuple[_Named, ...] = ()


class _Pool(msgspec.Struct):
    slices: tuple[_Names, ...] = ()


_NOT_ENCODABLE = (TypeError, ValueError, NotImplementedError)
_PLACE = re.compile(r"\$\.slices\[(\d+)\]\.devices\[(\d+)\]\.?")


class DesiredPool:
    """One pool as the driver wants it."""

    def __init__(self, name: str, pool: Pool) -> None:
        self._name = name
        self._pool: Pool | None = None
        self._copy = b""
        self._fault = ""
        try:
            self._copy = encode(pool)
        except _NOT_ENCODABLE as error:
            self._fault = f"{_not_encodable(pool)}{type(error).__name__}: {error}"

    def same(self, other: DesiredPool | None) -> bool:
        """Whether both want the same."""
        return other is not None and (self._copy, self._fault) == (other._copy, other._fault)

    def pool(self) -> Pool:
        """The pool, checked and in canonical form. Raises PoolInvalid."""
        if self._pool is None:
            self._pool = checked(self._name, self._decoded())
        return self._pool

    @cached_property
    def devices(self) -> frozenset[str] | None:
        """The names of the devices; None if they cannot be told."""
        try:
            pool = msgspec.json.decode(self._copy, type=_Pool)
        except ValueError:
            return None
        return frozenset(device.name for part in pool.slices for device in part.devices)

    def adopt(self, pool: Pool) -> None:
        """From now on want this, because the API server does not store the rest."""
        self._pool = pool

    def _decoded(self) -> Pool:
        try:
            if not self._fault:
                return decode(Pool, self._copy)
        except DecodeError as error:
            self._fault = self._with_name(str(error))
        raise PoolInvalid(f'pool "{self._name}" has a value that a ResourceSlice cannot hold: {self._fault}')

    def _with_name(self, text: str) -> str:
        """The text of an error with the device's name in place of its index."""
        match = _PLACE.search(text)
        if match is None:
            return text
        name = msgspec.json.decode(self._copy)["slices"][int(match[1])]["devices"][int(match[2])].get("name")
        return f'device "{name}": {_PLACE.sub("", text)}'


def _not_encodable(pool: Pool) -> str:
    for device in (device for part in pool.slices for device in part.devices):
        try:
            encode(device)
        except _NOT_ENCODABLE:
            return f'device "{device.name}": '
    return ""
