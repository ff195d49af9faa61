"""Claims and pods, as far as the rules look at them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
_ENTRY = "resource.kubernetes.io/pod-claim-name"


@dataclass(frozen=True, slots=True)
class SeenClaim:
    """``devices`` are held alone, ``shares`` together with others; administrators' access holds nothing."""

    uid: str
    key: str
    is_allocated: bool
    devices: frozenset[str]
    shares: frozenset[str]
    reserved_for: frozenset[str]
    """The uids of pods."""
    groups: frozenset[str]
    is_parked: bool
    """It lost a contest: it keeps its devices, and serves no pod."""
    """The names of the PodGroups that it is reserved for."""
    owner: str
    """The uid of the pod it was generated for, if it was."""
    entry: str
    has_finalizer: bool
    is_held: bool
    """An immediate claim keeps its devices without consumers, by a finalizer of its own."""
    is_deleted: bool


@dataclass(frozen=True, slots=True)
class SeenPod:
    """``claims`` leads from the entries of the pod to the claims recorded for them; None is not recorded yet.

    ``group`` is the name of its PodGroup, if it is in one.
    """

    uid: str
    key: str
    node: str
    is_finished: bool
    claims: dict[str, str | None]
    group: str

    @property
    def runs(self) -> bool:
        """Bound, and not finished."""
        return bool(self.node) and not self.is_finished


def key_of(obj: Object) -> str:
    return f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"


def seen_claim(obj: Object) -> SeenClaim:
    meta, status = obj["metadata"], obj.get("status") or {}
    allocation = status.get("allocation")
    results = ((allocation or {}).get("devices") or {}).get("results") or []
    held = [result for result in results if not result.get("adminAccess")]
    consumers = status.get("reservedFor") or []
    owners = [owner["uid"] for owner in meta.get("ownerReferences") or [] if owner["kind"] == "Pod"]
    return SeenClaim(
        uid=meta["uid"],
        key=key_of(obj),
        is_allocated=allocation is not None,
        devices=frozenset(_device(result) for result in held if not result.get("shareID")),
        shares=frozenset(_device(result) for result in held if result.get("shareID")),
        reserved_for=frozenset(consumer["uid"] for consumer in consumers if consumer["resource"] == "pods"),
        groups=frozenset(consumer["name"] for consumer in consumers if consumer["resource"] == "podgroups"),
        is_parked=any(consumer["resource"] == "contests" for consumer in consumers),
        owner=owners[0] if owners else "",
        entry=(meta.get("annotations") or {}).get(_ENTRY, ""),
        is_held="dra.kopf.dev/immediate" in (meta.get("finalizers") or []),
        has_finalizer="resource.kubernetes.io/delete-protection" in (meta.get("finalizers") or []),
        is_deleted="deletionTimestamp" in meta,
    )


def seen_pod(obj: Object) -> SeenPod:
    meta, spec, status = obj["metadata"], obj["spec"], obj.get("status") or {}
    recorded = {entry["name"]: entry.get("resourceClaimName") for entry in status.get("resourceClaimStatuses") or []}
    claims: dict[str, str | None] = {}
    for entry in spec.get("resourceClaims") or []:
        if entry["name"] in recorded and recorded[entry["name"]] is None:
            continue  # the entry needs no claim
        claims[entry["name"]] = entry.get("resourceClaimName") or recorded.get(entry["name"])
    return SeenPod(
        uid=meta["uid"],
        key=key_of(obj),
        node=spec.get("nodeName") or "",
        is_finished=status.get("phase") in ("Succeeded", "Failed"),
        claims=claims,
        group=(spec.get("schedulingGroup") or {}).get("podGroupName") or "",
    )


def _device(result: Object) -> str:
    return f"{result['driver']}/{result['pool']}/{result['device']}"
