"""Features that nodes say they have (``node.status.declaredFeatures``), as far as devices need them."""

from __future__ import annotations

from typing import Final

from dra_api.core import Node
from dra_api.resource import AllocationResult, DeviceAllocationResult

OPTIONAL_NODE_OPERATIONS: Final = "DRAOptionalNodeOperations"
"""The gate, and the feature: the kubelet manages without calls to drivers whose slices say so (K37-ONO-08)."""


def declares_optional_node_operations(node: Node) -> bool:
    """Whether the node manages without calls to drivers."""
    return OPTIONAL_NODE_OPERATIONS in (node.status.declared_features or ())


def has_skipped_operations(allocation: AllocationResult | DeviceAllocationResult) -> bool:
    """Whether the driver of any device said that calls to it are skipped."""
    return any(result.skip_node_operations for result in allocation.results or ())
