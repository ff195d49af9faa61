"""Which pods a change of taints, claims or pods may evict or spare, and what a DeviceTaintRule concerns (TE-05).

Like ``wakeups``, it only answers questions. It names a pod when the taints of its devices, its claims, or its phase
may have changed; ``dra_operator.eviction`` decides which pods have to go, and when, once the key is handled. Changes of
claims and pods are looked at only while some taint evicts, so a cluster without ``NoExecute`` taints pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from datetime import datetime
from typing import Final, TypeVar

from dra_api.core import Pod
from dra_api.references import pod_is_ending
from dra_api.resource import DeviceTaintRule, ResourceClaim, ResourceSlice
from dra_ledger.pools import newest_slices
from dra_ledger.taints import rule_selects as selects
from msgspec import structs

from dra_operator.allocator import DeviceId
from dra_operator.cache.crowds import parts, spread
from dra_operator.cache.key import NOTHING, Crowd, Key, Keys
from dra_operator.cache.state import ClusterState
from dra_operator.cache.store import ObjectChange
from dra_operator.eviction import EvictingRules, Eviction, RuleCounts, evicts, may_evict, pod_eviction

T = TypeVar("T")
OBJECTS_IN_A_ROW: Final = 100
"""Claims or devices looked at in a row: some milliseconds."""


def on_slice(cluster: ClusterState, change: ObjectChange[ResourceSlice]) -> Keys:
    """Pods on devices whose taints changed, in this slice or, by a new generation, in others of the pool."""
    if not cluster.features.device_taints:
        return NOTHING
    # In the order of devices, so that two runs evict in the same order.
    devices = sorted(cluster.device_taints.replace(change.old, change.new))

    def users() -> Iterator[str]:
        for claim in dict.fromkeys(claim for device in devices for claim in cluster.claims_by_device.keys(device)):
            yield from cluster.users_of(claim)

    return _of_crowd(("tainted", *devices), "", users) if devices else NOTHING


def on_rule(cluster: ClusterState, change: ObjectChange[DeviceTaintRule]) -> Keys:
    """The rule itself: its status may have to change, and pods on devices that it selects or did select are named by
    ``users_of_changed``, since they may be many."""
    old, new = change
    # The status is written by ``RuleReporter`` itself: each report would lead to the next one.
    if not (cluster.features.device_taints and cluster.features.taint_rules) or is_same_rule(change):
        return NOTHING
    for rule in change:
        if rule is not None:
            cluster.evicting_rules.remove(rule.metadata.name)
    if new is not None:
        cluster.evicting_rules.put(new)
    name = next(rule.metadata.name for rule in (new, old) if rule is not None)
    # The version before counts as well: pods that had to go because of it are spared now.
    cluster.changed_rules.setdefault(name, []).extend(rule for rule in change if rule is not None and evicts(rule))
    return (Key("taint-rules", name),)


def users_of_changed(cluster: ClusterState, name: str) -> Iterator[tuple[Key, ...]]:
    """The pods on devices that a rule selects, or did select before it changed or went; in parts."""
    # Taken out before the look: a change in the midst of it comes again.
    rules = cluster.changed_rules.pop(name, ())
    for claims in parts(list(cluster.claims) if rules else (), OBJECTS_IN_A_ROW):
        yield _users(cluster, (claim.key for claim in claims if _is_selected(claim, rules)))


def on_claim(cluster: ClusterState, change: ObjectChange[ResourceClaim]) -> Keys:
    """The pods of a claim with tainted devices whose allocation, reservations or owner changed."""
    if _essence(change.old) == _essence(change.new):
        return NOTHING
    # Both versions are asked: a claim that lost a tainted device, or is reserved no more, spares its pods.
    versions = [claim for claim in change if claim is not None and is_tainted(cluster, claim)]
    if not versions:
        return NOTHING

    def users() -> Iterator[str]:
        for claim in versions:
            yield from cluster.users_of(claim.key, claim)

    first = versions[0]
    # If not all claims of pods are known, the reservations of each version count.
    which = [it.metadata.resource_version for it in versions] if cluster.pods_aside else []
    return _of_crowd(("tainted claim", first.key, *which), first.metadata.namespace, users)


def on_pod(cluster: ClusterState, change: ObjectChange[Pod]) -> Keys:
    """The pod, if it has tainted devices and came, went, got a node or other claims, ended, or is being deleted."""
    if _state(change.old) == _state(change.new):
        return NOTHING
    for pod in change:
        if pod is not None and any(is_tainted(cluster, claim) for claim in cluster.known_claims(pod)):
            return (Key("eviction", pod.key),)
    return NOTHING


def is_same_rule(change: ObjectChange[DeviceTaintRule]) -> bool:
    """Whether only the rule's metadata or status changed."""
    old, new = change
    return old is not None and new is not None and old.metadata.uid == new.metadata.uid and old.spec == new.spec


def everything(cluster: ClusterState) -> Iterator[Keys]:
    """All rules, whose pods ``users_of_changed`` names, and all pods on devices that drivers taint: when evictions
    become ours. In parts."""
    for rule in cluster.evicting_rules:
        cluster.changed_rules.setdefault(rule.metadata.name, []).append(rule)
    yield tuple(Key("taint-rules", rule.metadata.name) for rule in cluster.rules)
    for devices in parts(list(cluster.device_taints), OBJECTS_IN_A_ROW):
        yield _users(cluster, (claim for device in devices for claim in cluster.claims_by_device.keys(device)))


def eviction_of(cluster: ClusterState, pod: Pod, undated: datetime, now: datetime) -> Eviction | None:
    """When the pod has to go, and why. ``undated``: since when a taint without a time counts.

    A pod of a PodGroup that ends as one goes with the first one of the others, whose key is handled when that is due.
    Once a pod is due no others are looked at: each of a large group would look at all.
    """
    found = own_eviction(cluster, pod, undated)
    # A pod that does not run yet is evicted alone.
    if not pod.spec.node_name:
        return found
    for mate in cluster.ending_with(pod):
        # It cannot be due sooner than now.
        if found is not None and found.due <= now:
            break
        its = own_eviction(cluster, mate, undated)
        if its is not None and (found is None or its.due < found.due):
            found = its
    return found


def own_eviction(cluster: ClusterState, pod: Pod, undated: datetime) -> Eviction | None:
    """As ``eviction_of``, for devices of the pod itself."""
    return pod_eviction(pod, cluster.claims_of(pod), cluster.device_taints, cluster.evicting_rules, undated)


def counts_of(cluster: ClusterState, rule: DeviceTaintRule, now: datetime) -> Generator[None, None, RuleCounts]:
    """What a rule affects; a rule with the effect None counts as if it had ``NoExecute``, and as if there were no other
    rule. Yields between parts of the work."""
    # People write a rule with the effect None first, to see what it would evict.
    is_dry_run = rule.spec.taint.effect == "None"
    spec = structs.replace(rule.spec, taint=structs.replace(rule.spec.taint, effect="NoExecute"))
    acting = structs.replace(rule, spec=spec) if is_dry_run else rule
    if not evicts(acting):
        return RuleCounts()
    allocated = published = 0
    rules = EvictingRules((acting,))
    users: dict[str, Pod | None] = {}
    for claims in parts(list(cluster.claims), OBJECTS_IN_A_ROW):
        for claim in claims:
            if selected := sum(1 for device in _devices(claim) if selects(rule, device)):
                allocated += selected
                for key in cluster.users_of(claim.key):
                    # A pod with several selected claims counts once.
                    if key not in users:
                        users[key] = _pending(cluster, key, rules, now)
        yield
    for devices in _published(cluster) if is_dry_run else ():
        published += sum(1 for device in devices if selects(rule, device))
        yield
    pods = [pod for pod in users.values() if pod is not None]
    return RuleCounts(len(pods), len({pod.metadata.namespace for pod in pods}), published, allocated)


def is_tainted(cluster: ClusterState, claim: ResourceClaim) -> bool:
    """Whether a device of the claim has a taint that evicts, tolerated or not."""
    allocation = claim.status.allocation
    if allocation is None or not cluster.has_evicting_taints:
        return False
    return may_evict(allocation, cluster.device_taints, cluster.evicting_rules)


def _pending(cluster: ClusterState, key: str, rules: EvictingRules, now: datetime) -> Pod | None:
    """Return the pod if it has to go because of the rules, and if nothing ends it already; else None."""
    pod = cluster.pods.get(key)
    if pod is None or pod_is_ending(pod):
        return None
    eviction = pod_eviction(pod, cluster.claims_of(pod), cluster.device_taints, rules, now)
    causes = eviction.causes if eviction is not None else ()
    return pod if any(cause.rule_uid == rule.metadata.uid for rule in rules for cause in causes) else None


def _is_selected(claim: ResourceClaim, rules: Collection[DeviceTaintRule]) -> bool:
    """Whether one of the rules selects a device that the claim holds."""
    return any(selects(rule, device) for device in _devices(claim) for rule in rules)


def _users(cluster: ClusterState, claims: Iterable[str]) -> tuple[Key, ...]:
    return _keys(pod for claim in claims for pod in cluster.users_of(claim))


def _of_crowd(about: tuple[object, ...], namespace: str, users: Callable[[], Iterable[str]]) -> Keys:
    """The pods, of which there may be thousands, each once."""
    pods = Crowd(about, namespace, users, lambda pod: (Key("eviction", pod),))
    return tuple(dict.fromkeys(spread(pods)))


def _keys(pods: Iterable[str]) -> tuple[Key, ...]:
    return tuple(Key("eviction", pod) for pod in dict.fromkeys(pods))


def _published(cluster: ClusterState) -> Iterator[Iterable[DeviceId]]:
    """The devices of each slice that counts."""
    for (driver, pool), slices in newest_slices(cluster.slices).items():
        for slice_ in slices:
            yield (DeviceId(driver, pool, device.name) for device in slice_.spec.devices or ())


def _devices(claim: ResourceClaim) -> Iterator[DeviceId]:
    return map(DeviceId.of, claim.results)


def _essence(claim: ResourceClaim | None) -> object:
    """The parts of a claim that decide about evictions."""
    if claim is None:
        return None
    meta, status = claim.metadata, claim.status
    return (meta.uid, meta.owner_references, status.allocation, status.reserved_for)


def _state(pod: Pod | None) -> object:
    """The parts of a pod that decide about its eviction."""
    if pod is None:
        return None
    status, is_going = pod.status, pod_is_ending(pod)
    claims = (pod.spec.resource_claims, status.resource_claim_statuses, status.extended_resource_claim_status)
    return (pod.metadata.uid, pod.spec.node_name, is_going, claims)
