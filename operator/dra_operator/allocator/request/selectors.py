"""The CEL selectors of classes and requests, and the errors with which they end an attempt."""

from __future__ import annotations

from typing import NamedTuple

from dra_api.resource import Device
from dra_ledger.basics import DeviceId
from dra_ledger.errors import SelectorError
from dra_ledger.predicates import MISSING_NAME, CompileFailure


class RequestSelector(NamedTuple):
    """One selector of a class or request; all fields but the expression are for messages.

    It does not say of which claim: claims that ask for the same have the same selectors.
    """

    class_: str
    """The class that it comes from; empty if it is the request's own."""
    position: int
    expression: str
    request: str
    """The request that uses it."""

    def of(self, claim: str) -> str:
        """Its name in a sentence about a claim."""
        return f"selector #{self.position} of {f'class {self.class_}' if self.class_ else self._user(claim)}"

    def _user(self, claim: str) -> str:
        return f"claim {claim}, request {self.request}"

    def error(self, claim: str, device: DeviceId, published: Device, cause: Exception) -> SelectorError:
        """Return the error of this selector on a device, with what the device does publish.

        A selector that does not compile is the claim's or the class's fault, on whichever device that shows.
        """
        owner = f"class {self.class_}" if self.class_ else f"claim {claim}"
        attributes = ", ".join(sorted(published.attributes or ())) or "none"
        capacity = ", ".join(sorted(published.capacity or ())) or "none"
        make = SelectorError if isinstance(cause, CompileFailure) else SelectorError.of_node
        return make(
            f"{owner}: selector #{self.position}: CEL {_kind(cause)} error: {cause} "
            f"({self._user(claim)}; device {device} publishes attributes: {attributes}; capacity: {capacity}); "
            f"{_remedy(cause)}"
        )


def _remedy(cause: Exception) -> str:
    if getattr(cause, "kind", None) == MISSING_NAME:
        return 'correct the name, or allow for devices without it, as in device.attributes["domain"].?name.orValue("")'
    return "correct the expression"


def _kind(cause: Exception) -> str:
    return "compile" if isinstance(cause, CompileFailure) else "runtime"
