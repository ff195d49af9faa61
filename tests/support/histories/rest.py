"""A cluster at rest: who could run all the same, and whether those who wait say why.

Everything is worked out anew from the objects on the server, node by node and device by device; nothing of the operator
is used. That is possible because the world is small: a pool is a node's, a claim asks for one device of one class.

Amounts come first: no device gives more than it has. A device that claims do not share is a whole one, and so is what a
claim takes of it. Of a card that comes whole or as two halves a claim may have either, so a half is what it needs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from dra_kube import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from fake_api import FakeStore, key_of
from histories.script import is_allowed, is_cordoned, is_held, rules_of, running_on
from objects import Obj, devices_of, is_parked, results_of, users_of

from .script import CAPACITY, EXTENDED, GANG, GANG_SIZE, HALF, OTHER, STEADFAST, TOLERANT, USUAL


def usual_amount(store: FakeStore) -> int:
    """What a claim takes of a device if it does not say so."""
    shares = any(
        device.get("allowMultipleAllocations") or device.get("consumesCounters")
        for part in store.of(RESOURCE_SLICES)
        for device in part["spec"].get("devices") or ()
    )
    return USUAL if shares else CAPACITY


def amount_of(claim: Obj, usual: int) -> int:
    exactly = claim["spec"]["devices"]["requests"][0]["exactly"]
    return int(((exactly.get("capacity") or {}).get("requests") or {}).get("memory", usual))


def consumed(store: FakeStore, *, parked: bool = True) -> Counter[str]:
    """How much of each device, by node and name, all claims have together, with or without parked ones."""
    amounts: Counter[str] = Counter()
    for claim in store.of(RESOURCE_CLAIMS):
        if not parked and is_parked(claim):
            continue
        for result in results_of(claim):
            kind, _, number = result["device"].partition("-")
            if kind == HALF:
                amounts[f"{result['pool']}/dev-{number[0]}"] += USUAL
            else:
                memory = (result.get("consumedCapacity") or {}).get("memory", CAPACITY)
                amounts[f"{result['pool']}/{result['device']}"] += int(memory)
    return amounts


def overdrawn(store: FakeStore) -> Iterator[str]:
    """Devices of which claims that pods may use have more than there is."""
    yield from (
        f"{of} of device {it} are consumed" for it, of in consumed(store, parked=False).items() if of > CAPACITY
    )


def fit(wanted: Sequence[int], free: Mapping[str, int]) -> bool:
    """Whether each of these amounts finds a device that has it left: all ways are tried."""
    if not wanted:
        return True
    first, *others = wanted
    return any(fit(others, {**free, device: left - first}) for device, left in free.items() if left >= first)


HOLD = "dra.kopf.dev/immediate"
TAINTS = ("NoExecute", "NoSchedule")
Devices = Mapping[str, Mapping[str, int]]
"""Devices by node, and how much of each is left."""


class Wish(NamedTuple):
    """What a pod needs: so much of a device for each claim, on a node where ``on`` says so (None: on any)."""

    amounts: tuple[int, ...]
    on: frozenset[str] | None
    says: str = ""
    """Why it can run nowhere: a pattern of which its condition has to have something in it."""


def faults_of(store: FakeStore, *, swept: bool, restored: bool = False) -> Iterator[str]:
    """One line for each thing that is not as it should be.

    ``swept``: the operator has looked at all waiting pods since anything changed, as it does every few minutes. Before
    that, a condition may have old numbers of nodes and devices: a change that cannot help a pod does not wake it.
    ``restored``: writes from before a restore came after it, so claims may have more of a shared device than there is.
    """
    for claim in store.of(RESOURCE_CLAIMS):
        yield from _of_claim(claim)
    if not restored or usual_amount(store) == CAPACITY:
        yield from _held_twice(store)
    yield from _away_from_volume(store)
    free = free_devices(store)
    for pod in store.of(PODS):
        if waits(pod) and not is_of_gang(pod):
            yield from _of_pod(store, pod, swept)
        elif pod["spec"].get("nodeName") and _is_active(pod) and (bad := _tainted_devices(store, pod)):
            yield f"pod {key_of(pod)} runs on the tainted devices {bad}"
    yield from _of_gang(store)
    yield from _of_rules(store)
    for claim in store.of(RESOURCE_CLAIMS):
        is_open = _is_immediate(claim) and not devices_of(claim) and not _is_deleted(claim) and not _users(store, claim)
        amount = amount_of(claim, usual_amount(store))
        is_there = any(fit([amount], devices) and not is_cordoned(store[NODES, node]) for node, devices in free.items())
        if is_open and is_there and store.of(DEVICE_CLASSES):
            yield f"immediate claim {key_of(claim)} has no device, though there is a free one"


def _of_rules(store: FakeStore) -> Iterator[str]:
    """Rules that say that pods are being ended, though none is left that would be."""
    for rule in store.of(DEVICE_TAINT_RULES):
        for condition in (rule.get("status") or {}).get("conditions") or ():
            if condition["type"] == "EvictionInProgress" and condition["status"] == "True":
                yield f"rule {key_of(rule)} still says {condition['message']!r}"
        if not (rule.get("status") or {}).get("conditions"):
            yield f"rule {key_of(rule)} has no condition"


def free_devices(store: FakeStore, tolerated: Collection[str] = ()) -> Devices:
    """What no claim holds; without those that have taints of other effects than the tolerated ones."""
    taken = consumed(store)
    return {
        node: {
            it: CAPACITY - taken[it] for it in _usable(store, node, tolerated) if _is_whole(it) and taken[it] < CAPACITY
        }
        for node in _nodes(store)
    }


def _is_whole(device: str) -> bool:
    """Whether it is no half of a card: what is left of a card is counted once."""
    return f"/{HALF}-" not in device


def is_of_gang(pod: Obj) -> bool:
    """Whether the pod gets devices together with others, or not at all."""
    return bool(pod["metadata"]["name"].startswith(f"{GANG}-"))


def _of_gang(store: FakeStore) -> Iterator[str]:
    """Whether all that are needed have room together, and whether those that wait keep no devices."""
    waiting, needed = gang_of(store)
    said = " / ".join(map(_said, waiting))
    for pod in waiting:
        for claim in store.of(RESOURCE_CLAIMS):
            if pod["metadata"]["uid"] in [user["uid"] for user in users_of(claim)]:
                yield f"pod {key_of(pod)} of a gang waits with devices: {said}"
    if waiting and not _has_group(store, waiting[0]):
        if said.count("not found") != len(waiting):
            yield f"the PodGroup of the gang is missing, but its pods say {said!r}"
        return
    wishes = [wish_of(store, pod) for pod in waiting]
    if None in wishes:
        yield "a pod of the gang has no claim, though its template exists"
    if not waiting or any(wish is None or wish.says or wish.on is not None for wish in wishes):
        return
    if len(waiting) < needed:
        if "waits for other pods" not in said:
            yield f"the gang lacks pods, but says {said!r}"
    elif has_room_for_gang(store):
        yield f"{needed} of {len(waiting)} pods of the gang could run, but wait: {said}"


def _has_group(store: FakeStore, pod: Obj) -> bool:
    """Whether the PodGroup of a pod is there, if it names one."""
    return "schedulingGroup" not in pod["spec"] or bool(store.of(POD_GROUPS))


def gang_of(store: FakeStore) -> tuple[list[Obj], int]:
    """The pods of the gang that wait, and how many of them have to run together."""
    pods = [pod for pod in store.of(PODS) if is_of_gang(pod) and pod["status"].get("phase") != "Failed"]
    running = sum(bool(pod["spec"].get("nodeName")) for pod in pods)
    return [pod for pod in pods if waits(pod)], max(GANG_SIZE - running, 1)


def has_room_for_gang(store: FakeStore) -> bool:
    """Whether as many pods of the gang as have to run together could do so; each of them has one claim."""
    waiting, needed = gang_of(store)
    wishes = [wish_of(store, pod) for pod in waiting]
    if (
        len(waiting) < needed
        or not _has_group(store, waiting[0])
        or any(wish is None or wish.says or wish.on is not None for wish in wishes)
    ):
        return False
    usual = usual_amount(store)
    places = (
        min(sum(left // usual for left in devices.values()), _slots(store, node))
        for node, devices in free_devices(store).items()
        if is_allowed(store, waiting[0], node)
    )
    return sum(places) >= needed


def _held_twice(store: FakeStore) -> Iterator[str]:
    yield from (f"still {finding}" for finding in overdrawn(store))


def _away_from_volume(store: FakeStore) -> Iterator[str]:
    for pod in store.of(PODS):
        node, where = pod["spec"].get("nodeName"), _nodes_of_volumes(store, pod)
        if node and _is_active(pod) and where is not None and where != {node}:
            yield f"pod {key_of(pod)} runs on {node}, its volume is on {sorted(where)}"


def _nodes_of_volumes(store: FakeStore, pod: Obj) -> frozenset[str] | None:
    """Where its volume is, if it is bound; nowhere, if it is not; None if the pod has none."""
    if not pod["spec"].get("volumes"):
        return None
    claim = store[PERSISTENT_VOLUME_CLAIMS, key_of(pod)]
    if not (name := claim["spec"].get("volumeName")):
        return frozenset()
    terms = store[PERSISTENT_VOLUMES, name]["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    return frozenset(terms[0]["matchExpressions"][0]["values"])


def _of_claim(claim: Obj) -> Iterator[str]:
    is_allocated = bool((claim.get("status") or {}).get("allocation"))
    is_held = HOLD in (claim["metadata"].get("finalizers") or ())
    if is_allocated and not users_of(claim) and not is_held:
        yield f"claim {key_of(claim)} is allocated for no pod"


def _irreplaceable(store: FakeStore, pod: Obj) -> Iterator[str]:
    """The names of its claims for which there is no other: the pod names them, or their template is gone."""
    recorded = {it["name"]: it.get("resourceClaimName") for it in pod["status"].get("resourceClaimStatuses") or ()}
    for entry in pod["spec"].get("resourceClaims") or ():
        template = (RESOURCE_CLAIM_TEMPLATES, "ns", entry.get("resourceClaimTemplateName"))
        name = entry.get("resourceClaimName") or (template not in store.objects and recorded.get(entry["name"]))
        if name:
            yield name


def places_for(store: FakeStore, pod: Obj) -> list[str]:
    wish = wish_of(store, pod)
    if wish is None or wish.says:
        return []
    free = free_devices(store, _tolerated(pod))
    return [node for node in free if _fits(store, node, wish, free) and is_allowed(store, pod, node)]


def _of_pod(store: FakeStore, pod: Obj, swept: bool) -> Iterator[str]:
    wish = wish_of(store, pod)
    said = _said(pod)
    if wish is None:
        yield f"pod {key_of(pod)} has no claim, though its template exists"
        return
    if any(is_parked(store.objects.get((RESOURCE_CLAIMS, "ns", name), {})) for name in _irreplaceable(store, pod)):
        if not re.search("^claim .* keeps .*, which another scheduler gave to another claim at the same time", said):
            yield f"pod {key_of(pod)} should say that its claim is parked, but says {said!r}"
        return
    if places := places_for(store, pod):
        yield f"pod {key_of(pod)} could run on {', '.join(places)}, but waits: {said}"
        return
    if wish.says == _UNMADE:
        return  # an event says so; such a pod is not tried, as in Kubernetes
    expected = wish.says or rf"^0/{len(store.of(NODES)) if swept else '[0-9]+'} nodes are available: "
    if not re.search(expected, said):
        yield f"pod {key_of(pod)} should say {expected!r}, but says {said!r}"
    elif swept and not wish.says:
        yield from _of_numbers(store, pod, said)


def _of_numbers(store: FakeStore, pod: Obj, said: str) -> Iterator[str]:
    """Whether the numbers of devices in a condition are those of some node."""
    states = set()
    if usual_amount(store) != CAPACITY:
        return  # shares are counted in other words
    for node in _nodes(store):
        there = _usable(store, node, TAINTS)
        states.add((len(there), len(there), sum(device in _held(store) for device in there)))
    for match, of, in_use in _NUMBERS.findall(said):
        if (int(match), int(of), int(match if in_use == "all" else in_use)) not in states:
            yield f"pod {key_of(pod)} says {said!r}, but nodes have (match, of, in use) {sorted(states)}"


_UNMADE = "claim not made"
_NUMBERS = re.compile(r"; (\d+) of (\d+) match(?:es)?, (\d+|all) in use")


def _keeps_pods_out(node: Obj) -> bool:
    spec = node.get("spec") or {}
    return bool(spec.get("taints") or spec.get("unschedulable"))


def wish_of(store: FakeStore, pod: Obj) -> Wish | None:
    """What a waiting pod needs; None: first of all a claim, which the operator owes it."""
    recorded = {
        entry["name"]: entry.get("resourceClaimName") for entry in pod["status"].get("resourceClaimStatuses") or ()
    }
    usual = usual_amount(store)
    amounts, says = [usual] * _extended(pod), set()
    on = _nodes_of_volumes(store, pod) or None  # a volume that is not made yet can be anywhere
    if amounts and not store.of(DEVICE_CLASSES):
        keeps_out = rules_of(pod) or any(_keeps_pods_out(node) for node in store.of(NODES))
        earlier = "|nodes are available" if keeps_out else ""  # that may be said instead
        says.add(f"Insufficient {EXTENDED}|cannot fit resource {EXTENDED}|the cluster has no nodes{earlier}")
    for entry in pod["spec"].get("resourceClaims") or ():
        name = entry.get("resourceClaimName") or recorded.get(entry["name"])
        claim = store.objects.get((RESOURCE_CLAIMS, "ns", name)) if name else None
        if claim is None and "resourceClaimTemplateName" in entry:
            template = (RESOURCE_CLAIM_TEMPLATES, "ns", entry["resourceClaimTemplateName"])
            return None if template in store.objects else Wish((), None, _UNMADE)
        if claim is None:
            says.add(f'resourceclaim "{name}" not found')
        elif _is_deleted(claim):
            says.add(f'resourceclaim "{name}" is being deleted')
        elif devices_of(claim) and not _is_given_back(pod, claim):
            where = frozenset(device.partition("/")[0] for device in devices_of(claim))
            on = where if on is None else on & where
        elif not store.of(DEVICE_CLASSES):
            says.add("device class gpu does not exist")
            if devices_of(claim) and not any(is_allowed(store, pod, node) for node in _nodes(store)):
                # no node is asked whether the devices are there, so they are kept, and no class is needed
                says.add("nodes are available" if store.of(NODES) else "the cluster has no nodes")
        else:
            amounts.append(amount_of(claim, usual))
    return Wish(tuple(sorted(amounts)), on, "|".join(sorted(says)))


def _is_given_back(pod: Obj, claim: Obj) -> bool:
    """Whether the pod alone has it, so that it may have other devices for it; an immediate one keeps its own."""
    users = [entry["uid"] for entry in users_of(claim)]
    return users == [pod["metadata"]["uid"]] and not _is_immediate(claim)


def _fits(store: FakeStore, node: str, wish: Wish, free: Devices) -> bool:
    is_there = wish.on is None or node in wish.on
    return is_there and _slots(store, node) > 0 and fit(wish.amounts, free[node])


def _slots(store: FakeStore, node: str) -> int:
    return int(store[NODES, node]["status"]["allocatable"]["pods"]) - len(list(running_on(store, node)))


def _nodes(store: FakeStore) -> list[str]:
    return [node["metadata"]["name"] for node in store.of(NODES)]


def _usable(store: FakeStore, node: str, tolerated: Collection[str] = ()) -> list[str]:
    rules = store.of(DEVICE_TAINT_RULES)
    return [
        f"{node}/{device['name']}"
        for part in store.of(RESOURCE_SLICES)
        if part["spec"]["nodeName"] == node
        for device in part["spec"].get("devices") or ()
        if all(effect in tolerated for effect in _taints(node, device, rules))
    ]


def _taints(node: str, device: Obj, rules: Sequence[Obj]) -> Iterator[str]:
    """The effects of the device's taints, those of rules included; one has no effect."""
    yield from (taint["effect"] for taint in device.get("taints") or ())
    for rule in rules:
        selector, effect = rule["spec"]["deviceSelector"], rule["spec"]["taint"]["effect"]
        is_selected = selector.get("pool", node) == node and selector.get("device", device["name"]) == device["name"]
        if is_selected and effect != "None":
            yield effect


def _held(store: FakeStore) -> set[str]:
    return {device for claim in store.of(RESOURCE_CLAIMS) for device in devices_of(claim)}


def _extended(pod: Obj) -> int:
    return sum(EXTENDED in container["resources"]["requests"] for container in pod["spec"]["containers"])


def _users(store: FakeStore, claim: Obj) -> list[str]:
    """Pods without node that name it, and that no queue holds back: it is allocated with them."""
    return [
        pod["metadata"]["name"]
        for pod in store.of(PODS)
        if not pod["spec"].get("nodeName")
        and not is_held(pod)
        and _is_active(pod)
        and any(
            entry.get("resourceClaimName") == claim["metadata"]["name"]
            for entry in pod["spec"].get("resourceClaims") or ()
        )
    ]


def _is_immediate(claim: Obj) -> bool:
    return "dra.kopf.dev/allocate" in (claim["metadata"].get("annotations") or {})


def _is_deleted(obj: Obj) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def _is_active(pod: Obj) -> bool:
    return pod["status"].get("phase") not in ("Succeeded", "Failed")


def waits(pod: Obj) -> bool:
    """Whether the operator owes the pod a node, or at its gate devices, as soon as there are some."""
    is_ours = pod["spec"]["schedulerName"] != OTHER or bool(pod["spec"].get("schedulingGates"))
    is_held_back = is_held(pod) or bool(pod["spec"].get("nodeName"))
    return is_ours and not is_held_back and _is_active(pod) and not _is_deleted(pod)


def _tolerated(pod: Obj) -> Collection[str]:
    """The effects of taints with which the pod takes devices."""
    templates = {entry.get("resourceClaimTemplateName") for entry in pod["spec"].get("resourceClaims") or ()}
    return TAINTS if STEADFAST in templates else ("NoExecute",) if TOLERANT in templates else ()


def _tainted_devices(store: FakeStore, pod: Obj) -> list[str]:
    """Devices of the pod with a taint that ends pods, and that it does not tolerate for long."""
    if _tolerated(pod) == TAINTS:
        return []
    uid = pod["metadata"]["uid"]
    mine = [
        device
        for claim in store.of(RESOURCE_CLAIMS)
        if any(entry["uid"] == uid for entry in users_of(claim))
        for device in devices_of(claim)
    ]
    node = pod["spec"]["nodeName"]
    fine = _usable(store, node, ("NoSchedule",))
    return [device for device in mine if device in _usable(store, node, TAINTS) and device not in fine]


def _said(pod: Obj) -> str:
    conditions = pod["status"].get("conditions") or ()
    return next(
        (str(c.get("message")) for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"), ""
    )
