"""Renders verdicts about pods for ``kubectl dra why`` and ``dra-operator simulate``."""

from __future__ import annotations

from collections.abc import Iterator

from dra_api.resource import ResourceClaim

from dra_operator.placement import (
    Case,
    Examination,
    Faulty,
    GettingReady,
    NodeState,
    NotTried,
    Stolen,
    Undecided,
    VolumesFailed,
    VolumesPending,
    text,
    unready,
)


def before_nodes(found: Examination) -> str:
    """Why no node is asked, as a sentence about the pod without its name."""
    if isinstance(found, NotTried):
        return f"is not tried: {text(found.obstacle)}"
    if isinstance(found, GettingReady):
        waits = "; ".join(line for claim in found.claims for line in _unready(claim))
        return f"has its devices and waits for them to get ready, {found.seconds:.0f} s more at most: {waits}"
    if isinstance(found, VolumesPending):
        names = ", ".join(found.claims)
        return f"waits for {names} to be bound on node {found.node}, {found.seconds:.0f} s more at most"
    if isinstance(found, VolumesFailed):
        return f"is placed anew: {found.reason}"
    if isinstance(found, Stolen):
        devices = ", ".join(map(str, found.devices))
        return f"gives claim {found.claim.key} up and is placed again: another claim holds {devices}, too"
    if isinstance(found, Case):
        raise TypeError("nodes can be asked about this pod")
    return f"waits for the end of another pod's write: claim {found.claim.key} is being allocated"


def error_of(state: NodeState, answer: Faulty | Undecided) -> str:
    """A node whose answer is an error, or None."""
    return f"node {state.name}: error: {answer.error}" if isinstance(answer, Faulty) else answer.text


def _unready(claim: ResourceClaim) -> Iterator[str]:
    for device, conditions in unready(claim):
        yield f"claim {claim.key}, device {device}: {', '.join(conditions)} not True"
