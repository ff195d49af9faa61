"""Remedies that free devices: the pods that hold them end, or the claim that no pod uses is deleted.

An immediate claim keeps its devices when its pods end, so that its annotation has to be removed as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import combinations
from typing import Final

from dra_api.core import Pod
from dra_api.relations.references import is_pod_group
from dra_api.resource import ResourceClaim, ResourceClaimStatus
from msgspec.structs import replace

from dra_operator.allocator import DeviceId
from dra_operator.cache import Cluster
from dra_operator.scheduling import CycleState
from dra_operator.scheduling.state import ANNOTATION, LoadedNode, is_immediate
from dra_operator.wording import listed

from .change import Change, Edit

MOST_HOLDERS: Final = 2
"""Claims that one remedy frees."""
MOST_TRIED_HOLDERS: Final = 12
"""Holders that are looked at, those that are easiest to end first."""


def holder_remedies(cluster: Cluster, cycle_state: CycleState, state: LoadedNode) -> Iterator[Change]:
    """Who could end, one claim alone before two together; pods of low priority first, then those that are young."""
    own = {claim.metadata.uid for claim in cycle_state.resource_claims}
    held: dict[str, list[DeviceId]] = defaultdict(list)
    view = cycle_state.allocator.inventory.view(state.node)
    for number in range(len(view.devices)):
        device = view.id(number)
        for key in cluster.claims_by_device.keys(device):
            held[key].append(device)
    claims = [claim for key in held if (claim := cluster.claims.get(key)) is not None and claim.metadata.uid not in own]
    claims = sorted(claims, key=lambda claim: _ease(cluster, claim))[:MOST_TRIED_HOLDERS]
    for size in range(1, MOST_HOLDERS + 1):
        for some in combinations(claims, size):
            yield _ended(cluster, cycle_state.pod, some, [device for claim in some for device in held[claim.key]])


def release_remedies(cluster: Cluster, cycle_state: CycleState, elsewhere: Collection[str]) -> Iterator[Change]:
    """Claims of the pod itself that are allocated where it cannot run, to be allocated anew."""
    claims = [claim for claim in cycle_state.resource_claims if claim.metadata.uid in elsewhere]
    others = {
        pod.key: pod
        for claim in claims
        for pod in (*users(cluster, claim), *_placed_members(cluster, claim))
        if pod.metadata.uid != cycle_state.pod.metadata.uid
    }
    edits = [Edit(ResourceClaim, claim.key, replace(claim, status=ResourceClaimStatus())) for claim in claims]
    names = listed(claim.key for claim in claims)
    if not claims:
        return
    if others:
        text = f"wait until the other consumers of claim {names} end, or delete them: {listed(others)}"
        if kept := [claim.key for claim in claims if is_immediate(claim)]:
            text = f"{_no_more_immediate(kept)} and {text}"
    else:
        text = f"delete claim {names} and create it again, so that it gets other devices"
    yield Change(text, (*edits, *(Edit(Pod, key, None) for key in others)), 4 + len(others))


def users(cluster: Cluster, claim: ResourceClaim) -> list[Pod]:
    """The pods that it is reserved for, as far as they are known."""
    names = [user.name for user in claim.status.reserved_for or () if user.resource == "pods"]
    found = (cluster.pods.get(f"{claim.metadata.namespace}/{name}") for name in names)
    return [pod for pod in found if pod is not None]


def _placed_members(cluster: Cluster, claim: ResourceClaim) -> Iterator[Pod]:
    """Pods of the PodGroups that it is reserved for: it keeps its devices as long as one of them has a node."""
    for consumer in filter(is_pod_group, claim.status.reserved_for or ()):
        for pod in cluster.groups.active(f"{claim.metadata.namespace}/{consumer.name}"):
            if pod.spec.node_name:
                yield pod


def _ease(cluster: Cluster, claim: ResourceClaim) -> tuple[int, int, str]:
    pods = users(cluster, claim)
    return max((pod.spec.priority or 0 for pod in pods), default=-(2**31)), len(pods), claim.key


def _ended(cluster: Cluster, waiting: Pod, claims: tuple[ResourceClaim, ...], devices: list[DeviceId]) -> Change:
    pods = {pod.key: pod for claim in claims for pod in users(cluster, claim)}
    unused = [claim.key for claim in claims if not claim.status.reserved_for]
    edits = [Edit(ResourceClaim, claim.key, None) for claim in claims] + [Edit(Pod, key, None) for key in pods]
    kept = [claim.key for claim in claims if claim.status.reserved_for and is_immediate(claim)]
    parts = [_no_more_immediate(kept)] if kept else []
    if pods:
        one = len(pods) == 1
        names = listed((_named(pod, waiting) for pod in pods.values()), 4)
        parts.append(
            f"wait until pod{'' if one else 's'} {names} end{'s' if one else ''}, or delete {'it' if one else 'them'}"
        )
    if unused:
        parts.append(f"delete claim{'s' * (len(unused) > 1)} {listed(unused)}, reserved for no pod")
    unknown = [claim.key for claim in claims if claim.status.reserved_for and not users(cluster, claim)]
    if unknown:
        parts.append(f"wait until the consumers of claim{'s' * (len(unknown) > 1)} {listed(unknown)} end")
    text = f"{' and '.join(parts)} (frees {listed(map(str, devices))})"
    higher = any((pod.spec.priority or 0) > (waiting.spec.priority or 0) for pod in pods.values())
    return Change(text, tuple(edits), 3 + len(claims) + len(pods) + len(kept) + 2 * higher, "holders")


def _no_more_immediate(keys: Sequence[str]) -> str:
    return f"remove the annotation {ANNOTATION} from claim{'s' * (len(keys) > 1)} {listed(keys)}"


def _named(pod: Pod, waiting: Pod) -> str:
    """With its owner, whether it is ending, and its priority if that is another than that of the waiting pod."""
    owner, priority = pod.metadata.controller, pod.spec.priority or 0
    more = [f"{owner.kind} {owner.name}"] if owner is not None else []
    if pod.metadata.deletion_timestamp is not None:
        more.append("being deleted already")
    if priority != (waiting.spec.priority or 0):
        more.append(f"priority {priority}")
    return f"{pod.key} ({', '.join(more)})" if more else pod.key
