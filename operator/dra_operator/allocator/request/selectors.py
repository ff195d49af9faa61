"""The CEL selectors of classes and requests, and the errors with which they end an attempt."""

from __future__ import annotations

from typing import NamedTuple

from dra_api.resource import Device

from dra_operator.allocator.basics.errors import SelectorError
from dra_operator.allocator.basics.ids import DeviceId
from dra_operator.allocator.published.predicates import MISSING_NAME, CompileFailure


class Selector(NamedTuple):
    """One selector of a class or request; all fields but the expression are for messages."""

    owner: str
    """The claim, or the class."""
    position: int
    expression: str
    request: str = ""
    """The request that uses it."""

    def __str__(self) -> str:
        return f"selector #{self.position} of {self.owner if self.is_foreign else self.request}"

    @property
    def is_foreign(self) -> bool:
        """It comes from a class, not from the request itself."""
        return not self.request.startswith(f"{self.owner}, ")

    def error(self, device: DeviceId, published: Device, cause: Exception) -> SelectorError:
        """The fatal error of this selector on a device, with what the device does publish."""
        attributes = ", ".join(sorted(published.attributes or ())) or "none"
        capacity = ", ".join(sorted(published.capacity or ())) or "none"
        return SelectorError(
            f"{self.owner}: selector #{self.position}: CEL {_kind(cause)} error: {cause} "
            f"({self.request}; device {device} publishes attributes: {attributes}; capacity: {capacity}); "
            f"{_remedy(cause)}"
        )


def _remedy(cause: Exception) -> str:
    if getattr(cause, "kind", None) == MISSING_NAME:
        return 'correct the name, or allow for devices without it, as in device.attributes["domain"].?name.orValue("")'
    return "correct the expression"


def _kind(cause: Exception) -> str:
    return "compile" if isinstance(cause, CompileFailure) else "runtime"
