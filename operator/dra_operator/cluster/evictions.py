"""Which pods a change of taints, claims or pods may evict or spare, and what a DeviceTaintRule concerns (TE-05).

Like ``triggers``, it only answers questions. It names a pod when the taints of its devices, its claims, or its phase
may have changed; ``dra_operator.eviction`` decides which pods have to go, and when, once the key is handled. Changes of
claims and pods without tainted devices name no pod, so a cluster without ``NoExecute`` taints pays next to nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime

from dra_api.core import Pod
from dra_api.resource import DeviceTaintRule, ResourceClaim, ResourceSlice
from msgspec import structs

from dra_operator.allocator import DeviceId
from dra_operator.eviction import Eviction, RuleCounts, evicts, may_evict, pod_eviction, selects

from .key import NOTHING, Key, Keys
from .newest_slices import newest_slices
from .state import State
from .store import Change


def on_slice(cluster: State, change: Change[ResourceSlice]) -> Keys:
    """Pods on devices whose taints changed, in this slice or, by a new generation, in others of the pool."""
    if not cluster.features.device_taints:
        return NOTHING
    devices = cluster.device_taints.replace(change.old, change.new)
    claims = dict.fromkeys(claim for device in sorted(devices) for claim in cluster.claims_by_device.keys(device))
    return _users(cluster, claims)


def on_rule(cluster: State, change: Change[DeviceTaintRule]) -> Keys:
    """The rule itself, whose status may have to change, and the pods on devices that it selects or did select."""
    old, new = change
    if not (cluster.features.device_taints and cluster.features.taint_rules) or is_same_rule(change):
        return NOTHING
    rules = [rule for rule in change if rule is not None and evicts(rule)]
    for rule in change:
        if rule is not None:
            cluster.evicting_rules.pop(rule.metadata.name, None)
    if new is not None and evicts(new):
        cluster.evicting_rules[new.metadata.name] = new
    name = next(rule.metadata.name for rule in (new, old) if rule is not None)
    return (Key("rule", name), *_users(cluster, (claim.key for claim in _selected(cluster, rules))))


def on_claim(cluster: State, change: Change[ResourceClaim]) -> Keys:
    """The pods of a claim with tainted devices whose allocation, reservations or owner changed."""
    if not has_evicting_taints(cluster) or _essence(change.old) == _essence(change.new):
        return NOTHING
    versions = [claim for claim in change if claim is not None]
    return _users(cluster, (claim.key for claim in versions if is_tainted(cluster, claim)))


def on_pod(cluster: State, change: Change[Pod]) -> Keys:
    """The pod, if it has tainted devices and came, went, got a node or other claims, ended, or is being deleted."""
    if not has_evicting_taints(cluster) or _state(change.old) == _state(change.new):
        return NOTHING
    for pod in change:
        if pod is not None and any(claim and is_tainted(cluster, claim) for _, claim in cluster.claims_of(pod)):
            return (Key("evict", pod.key),)
    return NOTHING


def is_same_rule(change: Change[DeviceTaintRule]) -> bool:
    """Whether only the rule's metadata or status changed."""
    old, new = change
    return old is not None and new is not None and old.metadata.uid == new.metadata.uid and old.spec == new.spec


def everything(cluster: State) -> Keys:
    """All pods on tainted devices, and all rules: when evictions become ours."""
    tainted = (claim.key for claim in cluster.claims if is_tainted(cluster, claim))
    rules = (Key("rule", rule.metadata.name) for rule in cluster.rules)
    return (*rules, *_users(cluster, tainted))


def eviction_of(cluster: State, pod: Pod, undated: datetime) -> Eviction | None:
    """When the pod has to go, and why. ``undated``: since when a taint without a time counts."""
    rules = cluster.evicting_rules.values()
    return pod_eviction(pod, cluster.claims_of(pod), cluster.device_taints, rules, undated)


def counts_of(cluster: State, rule: DeviceTaintRule, now: datetime) -> RuleCounts:
    """What a rule affects; a rule with the effect None counts as if it had ``NoExecute``, and as if there were no other
    rule."""
    is_dry_run = rule.spec.taint.effect == "None"
    spec = structs.replace(rule.spec, taint=structs.replace(rule.spec.taint, effect="NoExecute"))
    acting = structs.replace(rule, spec=spec) if is_dry_run else rule
    if not evicts(acting):
        return RuleCounts()
    selected = list(_selected(cluster, [acting]))
    users = _users(cluster, (claim.key for claim in selected))
    pods = [pod for key in users if (pod := _pending(cluster, key.object, acting, now)) is not None]
    return RuleCounts(
        pods=len(pods),
        namespaces=len({pod.metadata.namespace for pod in pods}),
        published=sum(1 for device in _published(cluster) if selects(rule, device)) if is_dry_run else 0,
        allocated=sum(1 for claim in selected for device in _devices(claim) if selects(rule, device)),
    )


def has_evicting_taints(cluster: State) -> bool:
    """Whether any taint that evicts is in force."""
    return bool(cluster.device_taints or cluster.evicting_rules)


def is_tainted(cluster: State, claim: ResourceClaim) -> bool:
    """Whether a device of the claim has a taint that evicts, tolerated or not."""
    allocation = claim.status.allocation
    if allocation is None or not has_evicting_taints(cluster):
        return False
    return may_evict(allocation, cluster.device_taints, cluster.evicting_rules.values())


def _pending(cluster: State, key: str, rule: DeviceTaintRule, now: datetime) -> Pod | None:
    """The pod, if it has to go because of the rule and nothing has ended it yet."""
    pod = cluster.pods.get(key)
    if pod is None or pod.metadata.deletion_timestamp is not None or pod.is_terminal:
        return None
    eviction = pod_eviction(pod, cluster.claims_of(pod), cluster.device_taints, (rule,), now)
    causes = eviction.causes if eviction is not None else ()
    return pod if any(cause.rule_uid == rule.metadata.uid for cause in causes) else None


def _selected(cluster: State, rules: Collection[DeviceTaintRule]) -> Iterator[ResourceClaim]:
    """Allocated claims with a device that one of the rules selects."""
    for claim in cluster.claims if rules else ():
        if any(selects(rule, device) for device in _devices(claim) for rule in rules):
            yield claim


def _users(cluster: State, claims: Iterable[str]) -> Keys:
    pods = dict.fromkeys(pod for claim in claims for pod in cluster.pods_by_claim.keys(claim))
    return tuple(Key("evict", pod) for pod in pods)


def _published(cluster: State) -> Iterator[DeviceId]:
    for (driver, pool), slices in newest_slices(cluster.slices).items():
        for slice_ in slices:
            yield from (DeviceId(driver, pool, device.name) for device in slice_.spec.devices or ())


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
    status, is_going = pod.status, pod.metadata.deletion_timestamp is not None or pod.is_terminal
    claims = (pod.spec.resource_claims, status.resource_claim_statuses, status.extended_resource_claim_status)
    return (pod.metadata.uid, pod.spec.node_name, is_going, claims)
