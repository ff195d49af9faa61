"""Chooses between the reference's behaviour and its documentation, where they differ.

``Semantics()`` is the documented behaviour (allocator.md section 15, column "intended"; scheduling.md 9). It is
what the operator uses. ``Semantics.reference()`` answers as Kubernetes 1.36.2 does, for comparisons with recorded
answers.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Semantics:
    """One field per rule; True is the documented behaviour."""

    newest_generation_only: bool = True
    """Older slices of a pool are never used. The reference uses them on a node for which they are complete and the
    newer ones are not."""

    admin_ignores_allocations: bool = True
    """Admin access needs neither free counters nor free shareable capacity, and does not keep a device from later
    ordinary requests. In the reference it does both; the reference's answer is preferred if there is one."""

    rule_without_selector_selects_nothing: bool = True
    """A DeviceTaintRule without ``deviceSelector`` taints no device (PRJ-010). In the reference: all."""

    errors_stay_on_node: bool = True
    """A fault of what one node sees (a pool that is half published, a selector that fails on a device) keeps the claims
    from that node only. In the reference it ends the attempt on all nodes (Kubernetes issues 141829 and 141214)."""

    @classmethod
    def reference(cls) -> Semantics:
        """As Kubernetes 1.36.2 behaves."""
        return cls(
            newest_generation_only=False,
            admin_ignores_allocations=False,
            rule_without_selector_selects_nothing=False,
            errors_stay_on_node=False,
        )
