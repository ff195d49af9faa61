"""Faults of the input (allocator.md sections 3, 4, 7, 12, 15).

A fault of the claim or its class ends an attempt on all nodes. A fault of what a node sees (``is_of_node``) ends it
on that node only, except under the reference's semantics.

::

    AllocationError               a claim, class, selector or slice is wrong; the text names it
    ├── ClaimError                a request or constraint that no node can serve
    ├── CapacityError             what a share of a device would consume is negative, or cannot be counted
    ├── SelectorError             a CEL selector does not compile, or fails on a device that was reached
    ├── DerivedAttributeError     a derived attribute does not compile, or fails on a device that was reached
    ├── NodeSelectionError        a slice or device has a node selector that cannot be parsed or merged
    ├── PoolError                 a request for all devices while a pool is incomplete or invalid
    └── NotEvaluated              a costly selector would have to be evaluated in one go
"""

from __future__ import annotations

from typing import ClassVar, Self


class AllocationError(Exception):
    """The claims cannot be decided. ``is_of_node``: because of what one node sees, so another node may do."""

    _IS_OF_NODE: ClassVar[bool] = False

    def __init__(self, *words: object) -> None:
        super().__init__(*words)
        self.is_of_node = self._IS_OF_NODE  # here, since compiled exceptions have no defaults of attributes

    @classmethod
    def of_node(cls, text: str) -> Self:
        """Return an error of a kind that is otherwise the claim's, for one that is the node's."""
        error = cls(text)
        error.is_of_node = True
        return error


class ClaimError(AllocationError):
    """The claim asks for something impossible or unknown."""


class CapacityError(AllocationError):
    """A share of a device would consume a negative amount, or one that no quantity can say."""

    _IS_OF_NODE: ClassVar[bool] = True


class SelectorError(AllocationError):
    """A CEL selector failed; says whose selector, on which device, and what the device publishes."""


class DerivedAttributeError(AllocationError):
    """An attribute that a request computes could not be computed for a device."""


class NodeSelectionError(AllocationError):
    """A node selector of a slice or device is malformed."""


class PoolError(AllocationError):
    """A request wants all devices, but a pool is being updated or invalid, so that its devices are not known."""

    _IS_OF_NODE: ClassVar[bool] = True


class NotEvaluated(AllocationError):
    """A costly selector would have to be evaluated in one go, and the caller cannot wait for that."""


def shortened(text: str, most: int = 80) -> str:
    """A text of a user in one line, cut where it is too long to read."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."
