"""Remedies that free devices: the pods that hold them end, or the claim that no pod uses is deleted.

An immediate claim keeps its devices when its pods end, so that its annotation has to be removed as well. A pod that is
over, or that terminates on a machine that does not answer, cannot be waited for: the answer says who has to act.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from itertools import combinations
from typing import Final

from dra_api.command_line import kubectl, with_command
from dra_api.core import MIRROR_ANNOTATION, Node, Pod
from dra_api.references import is_pod_group, pod_is_done
from dra_api.resource import FINALIZER, ResourceClaim, ResourceClaimConsumerReference, ResourceClaimStatus
from msgspec.structs import replace

from dra_operator.allocator import DeviceId
from dra_operator.cache import Cluster
from dra_operator.kubectl.facts import age, age_of_first
from dra_operator.kubectl.pipeline import Pipeline
from dra_operator.kubectl.why.changes import Change, Patch
from dra_operator.kubectl.why.request_changes import matching
from dra_operator.scheduling import CycleState
from dra_operator.scheduling.rules import PORT, RESOURCE, TOO_MANY_PODS
from dra_operator.scheduling.state import ANNOTATION, HOLD, LoadedNode, Obstacle, is_immediate, pod_requests, ports_held
from dra_operator.wording import counted, listed

MOST_HOLDERS: Final = 2
"""Claims that one remedy frees."""
MOST_TRIED_HOLDERS: Final = 12
"""Holders that are looked at, those that are easiest to end first."""
UNREACHABLE: Final = "node.kubernetes.io/unreachable"
OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
MOST_ENDED_PODS: Final = 3
"""At most this many pods of a node are deleted on trial to make room."""
SERVICES: Final = frozenset({"ReplicaSet", "StatefulSet", "DaemonSet", "ReplicationController"})
"""Owners that replace a deleted pod."""
CONTROLLERS: Final = "see that kube-controller-manager or the operator runs"
OWN_FINALIZERS: Final = frozenset({FINALIZER, HOLD})
"""Finalizers that go with a deleted claim; who set another one has to remove it."""


class Holders:
    """The claims that hold the devices that the pod needs of one node, the easiest to release first.

    Only claims with devices that match come into question, and those with other devices of such pools: these take
    shared counters.
    """

    def __init__(self, cluster: Cluster, cycle_state: CycleState, state: LoadedNode) -> None:
        own = {claim.metadata.uid for claim in cycle_state.resource_claims}
        view = cycle_state.allocator.inventory.view(state.node)
        numbers = {number for found in matching(cycle_state, state).values() for number in found}
        pools = {view.id(number).pool_id for number in numbers if view.devices[number].consumes_counters}
        self.devices: dict[str, list[DeviceId]] = defaultdict(list)
        for number in range(len(view.devices)):
            device = view.id(number)
            if number in numbers or device.pool_id in pools:
                for key in cluster.claims_by_device.keys(device):
                    self.devices[key].append(device)
        claims = [
            it for key in self.devices if (it := cluster.claims.get(key)) is not None and it.metadata.uid not in own
        ]
        self.every = sorted(claims, key=lambda claim: _ease(cluster, claim))

    @property
    def tried(self) -> list[ResourceClaim]:
        """The claims that remedies release."""
        return self.every[:MOST_TRIED_HOLDERS]

    @property
    def not_tried(self) -> str:
        """Which were not, in words; empty if all were."""
        left = self.every[MOST_TRIED_HOLDERS:]
        number = counted(
            len(left), "other holder of devices that match was", "other holders of devices that match were"
        )
        return f"{number} not tried: {listed(f'claim {claim.key}' for claim in left)}" if left else ""


def holder_remedies(made: Pipeline, cycle_state: CycleState, state: LoadedNode) -> Iterator[Change]:
    """Who could end, one claim alone before two together; pods of low priority first, then those that are young."""
    found = Holders(made.cluster, cycle_state, state)
    for size in range(1, MOST_HOLDERS + 1):
        for some in combinations(found.tried, size):
            devices = [device for claim in some for device in found.devices[claim.key]]
            yield _Ending(made, cycle_state.pod, some).change(devices)


def room_remedies(made: Pipeline, cycle_state: CycleState, state: LoadedNode, obstacle: Obstacle) -> Iterator[Change]:
    """Pods that could be deleted for lack of room, a slot or a port; first by low priority and claims."""
    if obstacle.reason not in (TOO_MANY_PODS, RESOURCE, PORT):
        return
    resource, pod = obstacle.subject, cycle_state.pod
    left = state.offered.get(resource, 0) - state.used.get(resource, 0)
    excess = pod_requests(pod).get(resource, 0) - left if obstacle.reason is RESOURCE else 0
    ports = {(it.protocol, it.number) for it in ports_held(pod)} if obstacle.reason is PORT else set()

    def helps(other: Pod) -> bool:
        owner, annotations = other.metadata.controller, other.metadata.annotations or {}
        stays = (owner is not None and owner.kind == "DaemonSet") or MIRROR_ANNOTATION in annotations
        if other.spec.node_name != state.name or pod_is_done(other) or stays:
            return False
        if ports:
            return bool(ports & {(it.protocol, it.number) for it in ports_held(other)})
        return not excess or pod_requests(other).get(resource, 0) >= excess

    def ease(other: Pod) -> tuple[int, bool, str]:
        return other.spec.priority or 0, not other.spec.resource_claims, other.key

    for other in sorted(filter(helps, made.cluster.pods), key=ease)[:MOST_ENDED_PODS]:
        its = [claim for _, claim in made.cluster.claims_of(other) if claim is not None]
        claims = [claim for claim in its if users(made.cluster, claim) == [other]]
        devices = [DeviceId.of(result) for claim in claims for result in claim.results]
        yield _Ending(made, pod, claims, [other]).change(devices, f"makes room on {state.name}")


def release_remedies(cluster: Cluster, cycle_state: CycleState, elsewhere: Collection[str]) -> Iterator[Change]:
    """Claims of the pod itself that are allocated where it cannot run, to be allocated anew."""
    claims = [claim for claim in cycle_state.resource_claims if claim.metadata.uid in elsewhere]
    others = {
        pod.key: pod
        for claim in claims
        for pod in (*users(cluster, claim), *_placed_members(cluster, claim))
        if pod.metadata.uid != cycle_state.pod.metadata.uid
    }
    patches = [Patch(ResourceClaim, claim.key, _released) for claim in claims]
    names = listed(claim.key for claim in claims)
    if not claims:
        return
    if others:
        text = f"wait until the other consumers of claim {names} end, or delete them: {listed(others)}"
        if kept := [claim.key for claim in claims if is_immediate(claim)]:
            text = f"{_no_more_immediate(kept)} and {text}"
    elif all(any(it.kind == "Pod" for it in claim.metadata.owner_references or ()) for claim in claims):
        text = f"delete claim {names}: made again from its template, it gets other devices"
    else:
        text = f"delete claim {names} and create it again, so that it gets other devices"
    yield Change(text, (*patches, *(Patch(Pod, key, _gone) for key in others)), 4 + len(others))


def users(cluster: Cluster, claim: ResourceClaim) -> list[Pod]:
    """The pods that it is reserved for, as far as they are known."""
    names = [user.name for user in claim.status.reserved_for or () if user.resource == "pods"]
    found = (cluster.pods.get(f"{claim.metadata.namespace}/{name}") for name in names)
    return [pod for pod in found if pod is not None]


def is_unreachable(node: Node | None) -> bool:
    """Return whether the node's kubelet has stopped to answer, so that no pod terminates there."""
    if node is None:
        return False
    says = next((one.status for one in node.status.conditions or () if one.type == "Ready"), "True")
    return says == "Unknown" or any(taint.key == UNREACHABLE for taint in node.spec.taints or ())


def unreachable_since(node: Node, now: datetime) -> str:
    """Return `` since 2h``, or an empty text if the node does not say since when."""
    times = [one.last_transition_time for one in node.status.conditions or () if one.type == "Ready"]
    since = age_of_first(filter(None, times), now)
    return f" since {since}" if since else ""


def bring_back(what: str, name: str) -> str:
    """Return what a person does about a node that does not answer; ``what`` is the node in words."""
    command = kubectl("taint", "nodes", names=[name], then=[f"{OUT_OF_SERVICE}=nodeshutdown:NoExecute"])
    off = with_command(f"say so by the taint {OUT_OF_SERVICE}", command)
    return f"bring {what} back, or if its machine is off, {off}"


def _gone(_: object) -> None:
    return None


def _released(claim: ResourceClaim) -> ResourceClaim:
    return replace(claim, status=ResourceClaimStatus())


def _placed_members(cluster: Cluster, claim: ResourceClaim) -> Iterator[Pod]:
    """Pods of the PodGroups that it is reserved for: it keeps its devices as long as one of them has a node."""
    for consumer in filter(is_pod_group, claim.status.reserved_for or ()):
        for pod in cluster.groups.active(f"{claim.metadata.namespace}/{consumer.name}"):
            if pod.spec.node_name:
                yield pod


def _ease(cluster: Cluster, claim: ResourceClaim) -> tuple[int, int, str]:
    pods = users(cluster, claim)
    return max((pod.spec.priority or 0 for pod in pods), default=-(2**31)), len(pods), claim.key


class _Ending:
    """What has to happen so that claims are released, by the state of their pods."""

    def __init__(self, made: Pipeline, waiting: Pod, claims: Sequence[ResourceClaim], pods: Sequence[Pod] = ()) -> None:
        self._made, self._waiting, self._claims = made, waiting, claims
        seen, nodes = made.seen, made.cluster.nodes
        of_claims = [users(made.cluster, claim) for claim in claims]
        self._pods = {pod.key: pod for some in (*of_claims, pods) for pod in some}
        self._over: list[Pod] = []
        """Pods that hold nothing: their claims wait for a controller that does not work."""
        self._lost: list[Pod] = []
        """Pods on machines that do not answer: they end when these answer, or are said to be off."""
        self._without_node: list[Pod] = []
        """Pods whose node was deleted: no kubelet is left to end them."""
        self._live: list[Pod] = []
        are_nodes_known = seen.is_whole and "nodes" not in seen.unseen and len(nodes) > 0
        for pod in self._pods.values():
            name = pod.spec.node_name
            if pod_is_done(pod):
                self._over.append(pod)
            elif is_unreachable(nodes.get(name)):
                self._lost.append(pod)
            elif are_nodes_known and name and name not in nodes:
                self._without_node.append(pod)
            else:
                self._live.append(pod)
        absent = [it for it, its in zip(claims, of_claims, strict=True) if it.status.reserved_for and not its]
        are_pods_known = seen.is_whole and "pods" not in seen.unseen
        self._gone = [it for it in absent if are_pods_known and _is_for_pods(it)]
        """Claims that are reserved only for pods that do not exist any more."""
        self._of_others = [it for it in absent if it not in self._gone]
        self._kept = [it.key for it in claims if it.status.reserved_for and is_immediate(it)]

    def change(self, devices: Sequence[DeviceId], otherwise: str = "") -> Change:
        """Return all of it as one change. ``otherwise`` is its purpose, if it frees no devices."""
        immediate = [_no_more_immediate(self._kept)] if self._kept else []
        parts = [*immediate, *self._released(), *map(self._brought_back, self._lost), *self._ended(), *self._unused()]
        text = f"{' and '.join(parts)} ({otherwise or f'frees {listed(map(str, devices))}'})"
        patches = [Patch(ResourceClaim, claim.key, _gone) for claim in self._claims]
        patches += [Patch(Pod, key, _gone) for key in self._pods]
        effort = 3 + len(self._claims) + len(self._pods) + len(self._kept) + 4 * len(self._lost)
        higher = any((pod.spec.priority or 0) > (self._waiting.spec.priority or 0) for pod in self._pods.values())
        return Change(text, tuple(patches), effort + 2 * higher, "holders")

    def _released(self) -> Iterator[str]:
        if self._over:
            pods = listed(pod.key for pod in self._over)
            yield f"{CONTROLLERS}: " + (
                f"pods {pods} have finished, and one of these releases their claims"
                if len(self._over) > 1
                else f"pod {pods} has finished, and one of these releases its claim"
            )
        if self._gone:
            claims = listed(f"claim {it.key}" for it in self._gone)
            yield f"{CONTROLLERS}: one of these releases {claims}, whose pods are gone"

    def _brought_back(self, pod: Pod) -> str:
        name, node = pod.spec.node_name, self._made.cluster.nodes.get(pod.spec.node_name)
        since = unreachable_since(node, self._made.now) if node is not None else ""
        leaving = ""
        if pod.metadata.deletion_timestamp is not None:
            deleted = age(pod.metadata.deletion_timestamp, self._made.now)
            leaving = " and is being deleted" + (f" for {deleted}" if deleted else "")
        return (
            f"{bring_back(f'node {name}', name)}: pod {_named(pod, self._waiting)} is on node {name}, which is "
            f"unreachable{since}{leaving}, and cannot end there"
        )

    def _ended(self) -> Iterator[str]:
        for pod in self._without_node:
            meta = pod.metadata
            command = kubectl("delete", "pod", "--force", names=[meta.name], namespace=meta.namespace)
            how = with_command(f"delete pod {pod.key}", command)
            yield f"{how}: its node {pod.spec.node_name} does not exist, and no kubelet ends it"
        if self._live:
            names, one = listed((_named(pod, self._waiting) for pod in self._live), 4), len(self._live) == 1
            wait = f"wait until {'pod' if one else 'pods'} {names} {'ends' if one else 'end'}"
            yield wait if all(it.metadata.deletion_timestamp for it in self._live) else f"{wait}, or {self._end()}"

    def _end(self) -> str:
        """A pod of higher priority that is made again takes the devices again, and one of a DaemonSet does so at once,
        since it waits for no other pod: a DaemonSet has no replicas, and is kept from the node instead."""
        rank = self._waiting.spec.priority or 0
        scaled: dict[str, None] = {}
        kept: dict[str, None] = {}
        for pod in self._live:
            owner = pod.metadata.controller
            if owner is not None and owner.kind == "DaemonSet":
                kept[f"keep DaemonSet {owner.name} from node {pod.spec.node_name} (its nodeSelector)"] = None
            elif owner is not None and owner.kind in SERVICES and (pod.spec.priority or 0) > rank:
                scaled[f"{owner.kind} {owner.name}"] = None
        them = "it" if len(self._live) == 1 else "them"
        ways = [*([f"scale down {listed(scaled)}"] if scaled else []), *kept]
        return f"{' and '.join(ways)}, which makes {them} again" if ways else f"delete {them}"

    def _unused(self) -> Iterator[str]:
        unused = [claim for claim in self._claims if not claim.status.reserved_for]
        if leaving := [it for it in unused if it.metadata.deletion_timestamp is not None]:
            yield f"{CONTROLLERS}: one of these releases {_claims(leaving)}, in deletion already"
        if left := [it for it in unused if it.metadata.deletion_timestamp is None]:
            others = {name for it in left for name in it.metadata.finalizers or () if name not in OWN_FINALIZERS}
            then = f", and see that its finalizer {listed(sorted(others))} goes" if others else ""
            yield f"delete {_claims(left)}, reserved for no pod{then}"
        if self._of_others:
            whom = dict.fromkeys(_consumer(one) for it in self._of_others for one in it.status.reserved_for or ())
            yield f"wait until the consumers of {_claims(self._of_others)} end: {listed(whom)}"


def _is_for_pods(claim: ResourceClaim) -> bool:
    return all(user.resource == "pods" for user in claim.status.reserved_for or ())


def _claims(claims: Sequence[ResourceClaim]) -> str:
    return f"claim{'s' * (len(claims) > 1)} {listed(claim.key for claim in claims)}"


def _consumer(one: ResourceClaimConsumerReference) -> str:
    """``PodGroup train``, ``pod x`` or ``jobs.batch y``."""
    kinds = {"pods": "pod", "podgroups": "PodGroup"}
    kind = kinds.get(one.resource, f"{one.resource}.{one.api_group}".rstrip("."))
    return f"{kind} {one.name}"


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
