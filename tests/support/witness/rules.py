"""What must hold in every state of the cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from .objects import SeenClaim, SeenPod


@dataclass(slots=True)
class State:
    """Everything that exists at one revision, by uid."""

    claims: dict[str, SeenClaim] = field(default_factory=dict)
    pods: dict[str, SeenPod] = field(default_factory=dict)
    parked: set[str] = field(default_factory=set)
    """Claims that lost a contest at any time: another claim has taken their place."""

    def running(self) -> list[SeenPod]:
        """Pods that are bound and not finished."""
        return [pod for pod in self.pods.values() if pod.runs]


def violations(state: State) -> Iterator[str]:
    """One line for each thing that is wrong; the same line as long as it is."""
    state.parked.update(claim.uid for claim in state.claims.values() if claim.is_parked)
    yield from _held_twice(state)
    yield from _bound_without_claims(state)
    yield from _generated_twice(state)
    for claim in state.claims.values():
        if claim.is_allocated and not (claim.has_finalizer or claim.is_held):
            yield f"claim {claim.key} is allocated without finalizer"


def _held_twice(state: State) -> Iterator[str]:
    running = {pod.uid for pod in state.running()}
    holders: dict[str, list[SeenClaim]] = defaultdict(list)
    for claim in state.claims.values():
        for device in claim.devices | claim.shares:
            holders[device].append(claim)
    for device, claims in holders.items():
        if len(claims) < 2 or all(device in claim.shares for claim in claims):
            continue
        used = sum(bool(claim.reserved_for & running) for claim in claims)
        names = " and ".join(sorted(claim.key for claim in claims))
        yield f"device {device} is held by {names}{', of running pods' if used > 1 else ''}"


def _bound_without_claims(state: State) -> Iterator[str]:
    by_key = {claim.key: claim for claim in state.claims.values()}
    for pod in state.running():
        namespace = pod.key.partition("/")[0]
        for entry, name in pod.claims.items():
            claim = by_key.get(f"{namespace}/{name}")
            if claim is None:
                yield f"pod {pod.key} is bound without a claim for {entry}"
            elif not claim.is_allocated:
                yield f"pod {pod.key} is bound, its claim {claim.key} not allocated"
            elif pod.uid not in claim.reserved_for and pod.group not in claim.groups:
                yield f"pod {pod.key} is bound, its claim {claim.key} not reserved for it"


def _generated_twice(state: State) -> Iterator[str]:
    """Of pods that are there: a creation that was under way when its pod went is the garbage collector's to undo."""
    generated: dict[tuple[str, str], list[str]] = defaultdict(list)
    for claim in state.claims.values():
        if claim.owner in state.pods and claim.entry and not claim.is_deleted and claim.uid not in state.parked:
            generated[claim.owner, claim.entry].append(claim.key)
    for (owner, entry), keys in generated.items():
        if len(keys) > 1:
            yield f"pod {state.pods[owner].key} has more than one claim for {entry}: {', '.join(sorted(keys))}"


def leaks(state: State) -> Iterator[str]:
    """What is left over in a cluster that has come to rest."""
    needed = {pod.uid for pod in state.pods.values() if not pod.is_finished}
    for claim in state.claims.values():
        if claim.owner and claim.owner not in needed:
            yield f"claim {claim.key} was generated for a pod that is gone"
        if stale := claim.reserved_for - needed:
            yield f"claim {claim.key} is reserved for pods that are gone: {', '.join(sorted(stale))}"
        if claim.is_allocated and not claim.reserved_for and not claim.groups and not claim.is_held:
            yield f"claim {claim.key} is allocated for no pod"
        if claim.has_finalizer and not claim.is_allocated:
            yield f"claim {claim.key} has the finalizer, but no devices"
