"""Claims that are allocated already decide where their pod can run (scheduling.md 4.2)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from dra_api.core import Node, NodeSelector, NodeSelectorTerm
from dra_api.relations.declared_features import declares_optional_node_operations, has_skipped_operations
from dra_api.relations.references import is_pod_group
from dra_api.releases.release import NEWEST, Release
from dra_api.resource import ResourceClaim

from dra_operator.allocator import NodeSelectionError, node_selectors
from dra_operator.scheduling.state.obstacle import Obstacle, Reason

CLAIM_ELSEWHERE: Final = Reason("claim-elsewhere", "resourceclaim not available on the node")
GROUP_CLAIM_ELSEWHERE: Final = Reason(
    "group-claim-elsewhere",
    "resource claim {subject} allocation requires DRAOptionalNodeOperations feature on the node",
)


class Allocations:
    """The allocated ones of a pod's claims. Those whose UIDs are ``failed`` cannot be used anywhere.

    From Kubernetes 1.37 on, one whose drivers skip calls can be used on nodes that declare the feature (K37-ONO-05).
    Raises NodeSelectionError when the node selector of an allocation cannot be understood (4.1).
    """

    def __init__(self, claims: Sequence[ResourceClaim], failed: Collection[str], *, release: Release = NEWEST) -> None:
        self._selectors: dict[str, NodeSelector] = {}
        self._skipping: dict[str, ResourceClaim] = {}
        self.bound: dict[str, frozenset[str]] = {}
        """Claims bound to nodes named one by one: UID -> names."""
        for claim in claims:
            allocation = claim.status.allocation
            if allocation is None:
                continue
            uid, selector = claim.metadata.uid, allocation.node_selector
            if release >= Release.V1_37 and has_skipped_operations(allocation):
                self._skipping[uid] = claim
            if uid in failed:
                self.bound[uid] = frozenset()
            elif selector is not None:
                _check(claim, selector)
                names = _named(selector)
                if names is not None:
                    self.bound[uid] = names
                self._selectors[uid] = selector

    @property
    def nodes(self) -> frozenset[str] | None:
        """The only nodes where all claims can be used; None if no claim names its nodes."""
        sets = list(self.bound.values())
        return sets[0].intersection(*sets[1:]) if sets else None

    def is_usable(self, uid: str, node: str) -> bool:
        """Whether the bound claim names the node."""
        return node in self.bound[uid]

    def elsewhere(self, node: Node) -> set[str]:
        """UIDs of the claims that cannot be used on the node."""
        out = {uid for uid, selector in self._selectors.items() if not node_selectors.matches(selector, node)}
        out |= {uid for uid, names in self.bound.items() if not names}
        return out if declares_optional_node_operations(node) else out | self._skipping.keys()

    def obstacle(self, node: Node, elsewhere: Collection[str]) -> Obstacle:
        """What keeps the pod from a node where these claims cannot be used.

        The feature is named if a claim lacks it that is reserved for the pod's PodGroup (K37-ONO-06).
        """
        for uid, claim in () if declares_optional_node_operations(node) else self._skipping.items():
            if uid in elsewhere and any(map(is_pod_group, claim.status.reserved_for or ())):
                return Obstacle(GROUP_CLAIM_ELSEWHERE, claim.key)
        return Obstacle(CLAIM_ELSEWHERE)


def _check(claim: ResourceClaim, selector: NodeSelector) -> None:
    """Raises NodeSelectionError, which names the claim."""
    try:
        node_selectors.parse(selector)
    except NodeSelectionError as error:
        raise NodeSelectionError(f"claim {claim.key}: allocation: {error}") from error


def _named(selector: NodeSelector) -> frozenset[str] | None:
    """The names that a selector demands; None if it has a term that demands no name."""
    names = [_name(term) for term in selector.node_selector_terms or ()]
    return None if None in names else frozenset(name for name in names if name is not None)


def _name(term: NodeSelectorTerm) -> str | None:
    for field in term.match_fields or ():
        if (field.key, field.operator) == ("metadata.name", "In") and len(field.values or ()) == 1:
            return (field.values or ("",))[0]
    return None
