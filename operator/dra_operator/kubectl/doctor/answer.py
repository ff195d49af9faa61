"""``kubectl dra doctor``: all checks in the order of urgency, the checks of slices and devices, and ``--fix``.

Slices that drivers left behind or did not complete, and devices in use that no driver publishes, are troubles.
Repairs are conditional writes: an object that has changed since the read is left alone.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from dra_api.command_line import kubectl
from dra_api.console import printable
from dra_api.core import Node, Pod
from dra_api.meta import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_api.references import claims_of_pod, is_reserved_for, pod_is_done
from dra_api.resource import DeviceTaintRule, ResourceClaim, ResourceSlice
from dra_api.values import format_time, parse_time
from dra_kube import Api, KubeError, NotFound, for_people
from dra_ledger.pools import Status

from dra_operator.allocator import DeviceId, PoolId
from dra_operator.cache import newest_slices
from dra_operator.eviction import DeviceTaints, EvictingRules, pod_eviction
from dra_operator.kubectl.answer import Answer, ExitCode, Problem
from dra_operator.kubectl.doctor.claims import (
    allocation_troubles,
    claim_troubles,
    delete_pods,
    is_gone,
    not_made_again,
    running_with,
)
from dra_operator.kubectl.doctor.schedulers import missing_rights, needed_rights, operator_lacks, scheduler_troubles
from dra_operator.kubectl.doctor.trouble import Diagnosis, Repair, Trouble, advised_once
from dra_operator.kubectl.facts import DriverPods, age, driver_pods, inventory_of, is_ready, pods_of, using_pods
from dra_operator.kubectl.live import client, is_confirmed
from dra_operator.kubectl.observed import Observed, notes_on
from dra_operator.kubectl.settings import Settings
from dra_operator.kubectl.why.holders import OUT_OF_SERVICE, is_unreachable, unreachable_since
from dra_operator.kubectl.why.published import Pools, nodes_of_one_pool
from dra_operator.wording import counted, listed


def slice_troubles(seen: Observed) -> Iterator[Diagnosis]:
    """Of each slice, then of each pool."""
    slices = sorted(seen.every(ResourceSlice), key=lambda slice_: slice_.key)
    newest = newest_slices(slices)
    counting = {slice_.key for several in newest.values() for slice_ in several}
    for slice_ in slices:
        if "nodes" not in seen.unseen:
            yield from _of_nodes(seen, slice_)
        yield from _restless(seen, slice_)
        if slice_.key not in counting:
            pool = newest[PoolId.of(slice_)][0].spec.pool
            message = f"is of generation {slice_.spec.pool.generation}, and pool {pool.name} has {pool.generation}"
            remedy = "the driver deletes old slices; if it no longer runs, delete this one"
            yield _stale(slice_, message, remedy)
    for id_, several in sorted(newest.items()):
        announced = several[0].spec.pool.resource_slice_count
        if shared := nodes_of_one_pool(several):
            message = f"is published by {counted(len(shared), 'node')} ({listed(shared)}), each as its own"
            remedy = "a device in use on one node is in use on all: let the driver name its pools after its nodes"
            yield Diagnosis.of("pool", f"pool {id_.driver}/{id_.pool}", message, remedy=remedy)
        elif len(several) != announced:
            since = age(max(slice_.metadata.creation_timestamp or "" for slice_ in several), seen.taken)
            message = f"has {len(several)} of {counted(announced, 'slice')}" + (f" since {since}" if since else "")
            remedy = (
                "its devices are allocated only when all slices are there: look at the log of the driver, or restart it"
            )
            yield Diagnosis.of("pool", f"pool {id_.driver}/{id_.pool}", message, remedy=remedy)
    yield from _invalid_pools(seen)


def _invalid_pools(seen: Observed) -> Iterator[Diagnosis]:
    """Yield pools that contradict themselves. All their slices are there, so waiting does not help."""
    inventory = inventory_of(seen, Settings())
    for id_ in sorted(inventory.pools()):
        pool = inventory.pool(id_)
        view = pool.own_view() if pool is not None else None
        if view is not None and view.status is Status.INVALID:
            message = f"is invalid, since {view.fault}: none of its {counted(len(view.devices), 'device')} is allocated"
            remedy = "the driver has to publish it otherwise: look at its log and configuration, or update it"
            yield Diagnosis.of("pool", f"pool {id_.driver}/{id_.pool}", message, remedy=remedy)


def _of_nodes(seen: Observed, slice_: ResourceSlice) -> Iterator[Diagnosis]:
    name = slice_.spec.node_name
    node = seen.one(Node, name) if name else None
    if name and node is None:
        yield _stale(slice_, f"is about node {name}, which does not exist", "delete it")
        return
    for owner in slice_.metadata.owner_references or ():
        if owner.kind != "Node":
            continue
        if name and owner.name != name:
            message = f"is about node {name}, but its owner is node {owner.name}"
            remedy = "two drivers publish in each other's name: look at their node names; the right one publishes again"
            yield _stale(slice_, message, remedy)
        elif (known := node or seen.one(Node, owner.name)) is not None and owner.uid != known.metadata.uid:
            message = f"belongs to an earlier node of the name {owner.name} (UID {owner.uid})"
            yield _stale(slice_, message, "delete it; the driver publishes again")


MANY_CHANGES_COUNT: Final = 10
RESTLESS_SECONDS: Final = 120.0
"""A slice that changes more often, on average since its creation, has a writer that undoes another's changes."""


def _restless(seen: Observed, slice_: ResourceSlice) -> Iterator[Diagnosis]:
    """Changes without end: a plugin restores after 30 s what another client changed, such as a second driver."""
    changes = (slice_.metadata.generation or 1) - 1
    created = parse_time(slice_.metadata.creation_timestamp)
    if created is None or changes < MANY_CHANGES_COUNT:
        return
    if (seen.taken - created).total_seconds() < RESTLESS_SECONDS * changes:
        since = age(slice_.metadata.creation_timestamp or "", seen.taken)
        message = f"was changed {changes} times in {since}"
        remedy = (
            "two drivers of one name on a node undo each other's devices; a device that comes and goes looks the same: "
            "look for a second driver, and in the plugin's log for contested slices"
        )
        what = f"slice {slice_.metadata.name} ({slice_.spec.driver}/{slice_.spec.pool.name})"
        yield Diagnosis.of("driver", what, message, remedy=remedy)


def _stale(slice_: ResourceSlice, message: str, remedy: str) -> Diagnosis:
    name = slice_.metadata.name
    what = f"slice {name} ({slice_.spec.driver}/{slice_.spec.pool.name})"
    command = kubectl("delete", "resourceslice", names=[name])
    return Diagnosis.of("slice", what, message, remedy=remedy, command=command)


def device_troubles(seen: Observed) -> Iterator[Diagnosis]:
    """Yield unpublished devices of claims, then drivers that do not run on nodes that use or offer their devices.

    A driver that publishes nothing for a node with pods of its own is one trouble. The unpublished devices of these
    pods follow from it and are not listed again.
    """
    pools = Pools(seen)
    are_known = str(RESOURCE_SLICES) not in seen.unseen
    without = _nodes_without_driver(seen, pools) if are_known else {}
    for claim in sorted(seen.every(ResourceClaim) if are_known else (), key=lambda claim: claim.key):
        yield from _vanished(seen, pools, claim, without)
    for (node, driver), pods in sorted(without.items()):
        users_text = f"{counted(len(pods), 'pod')} there {'uses' if len(pods) == 1 else 'use'} its devices"
        message = f"driver {driver} publishes nothing for it, and {users_text}: {listed(sorted(pods))}"
        command = kubectl("get", "pods", "-A", "-o", "wide", f"--field-selector=spec.nodeName={node}", of_names=[node])
        remedy = "check that the pod of the driver runs there: without it these pods neither start nor terminate"
        yield Diagnosis.of("driver", f"node {node}", message, remedy=remedy, command=command)
    yield from _plugins_that_are_down(seen)
    yield from _unreachable_nodes(seen)


def _vanished(
    seen: Observed, pools: Pools, claim: ResourceClaim, without: Mapping[tuple[str, str], Collection[str]]
) -> Iterator[Diagnosis]:
    """Devices of a claim that are not published. ``without``: the pods on nodes whose driver publishes nothing."""
    meta = claim.metadata
    may_exist = "pods" in seen.unseen
    consumers = [user.name for user in pods_of(seen, claim) if may_exist or not is_gone(seen, claim, user)]
    consumers += [name for pod in running_with(seen, claim) if (name := pod.metadata.name) not in consumers]
    told = {
        driver for (_, driver), pods in without.items() if any(f"{meta.namespace}/{it}" in pods for it in consumers)
    }
    held = list(dict.fromkeys(DeviceId.of(result) for result in claim.results))
    gone = {device: why for device in held if device.driver not in told and (why := pools.absent(device))}
    if not gone or (claim.status.reserved_for and not consumers and not may_exist):
        return  # reserved for pods that are gone: with these reservations the devices go as well
    message = f"holds {listed(map(str, gone))}, but {'; '.join(dict.fromkeys(gone.values()))}"
    remedy, command = "start the driver again if it should be there", ""
    if consumers:
        command = delete_pods(consumers, meta.namespace)
        remedy += "; otherwise delete the pods, so that they get other devices"
        remedy += not_made_again(seen, consumers, meta.namespace)
    elif waiting := seen.pods_by_claim.get(claim.key):
        remedy += (
            f"; otherwise delete the claim and create it again: {listed(pod.key for pod in waiting)} waits with it"
        )
    elif not claim.status.reserved_for:
        command = kubectl("delete", "resourceclaim", names=[meta.name], namespace=meta.namespace)
        remedy += "; otherwise delete the claim, which no pod uses"
    yield Diagnosis.of("vanished", f"claim {claim.key}", message, remedy=remedy, command=command)


def _nodes_without_driver(seen: Observed, pools: Pools) -> dict[tuple[str, str], set[str]]:
    """Return the pods, by node and driver, that use devices of a driver that publishes nothing for their node.

    Only drivers count that publish node by node, or nothing at all.
    """
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    nodes = {node.metadata.name for node in seen.every(Node)}
    for claim in seen.every(ResourceClaim):
        for pod in using_pods(seen, claim):
            if pod_is_done(pod) or pod.spec.node_name not in nodes:
                continue
            for driver in {result.driver for result in claim.results}:
                where = pools.nodes_of_driver.get(driver, set())
                if "" not in where and pod.spec.node_name not in where:
                    found[(pod.spec.node_name, driver)].add(pod.key)
    return found


def _plugins_that_are_down(seen: Observed) -> Iterator[Diagnosis]:
    """Nodes whose slices are there although the pod of their driver is not ready, or missing.

    New pods get such devices and do not start. A pod is known to be missing only where other pods carry the name of
    the driver: nothing in the API says which DaemonSet runs a driver.
    """
    places: dict[str, set[str]] = defaultdict(set)
    for slice_ in seen.every(ResourceSlice):
        if slice_.spec.node_name and slice_.spec.devices and seen.one(Node, slice_.spec.node_name) is not None:
            places[slice_.spec.driver].add(slice_.spec.node_name)
    pods = DriverPods(seen.every(Pod))
    for driver, nodes in sorted(places.items()):
        named = [pod for pod in driver_pods(driver, seen.every(Pod)) if driver in (pod.metadata.labels or {}).values()]
        for node in sorted(nodes):
            there = [pod for pod in pods.on(driver, node) if pod.metadata.deletion_timestamp is None]
            if any(map(is_ready, there)) or not (there or named):
                continue
            names = listed(f"{pod.key} ({pod.status.phase or 'Pending'})" for pod in there)
            lacks = f"whose pod there is not ready: {names}" if there else "which has no pod there"
            message = f"has slices of driver {driver}, {lacks}"
            remedy = "pods that get its devices do not start: look at the pod of the driver"
            shown = there or named[:1]
            space = shown[0].metadata.namespace
            command = kubectl("describe", "pod", names=[it.metadata.name for it in there], namespace=space)
            if not there:
                owner = shown[0].metadata.controller
                command = kubectl("describe", "daemonset", names=[owner.name if owner else ""], namespace=space)
            yield Diagnosis.of("driver", f"node {node}", message, remedy=remedy, command=command)


def _unreachable_nodes(seen: Observed) -> Iterator[Diagnosis]:
    """Yield unreachable nodes with pods that hold devices. The devices are not free before the node is back."""
    for node in sorted(seen.every(Node), key=lambda node: node.metadata.name):
        if not is_unreachable(node):
            continue
        name, holding = node.metadata.name, (claim for claim in seen.every(ResourceClaim) if claim.results)
        users = {pod.key: pod for claim in holding for pod in using_pods(seen, claim)}
        pods = [key for key, pod in users.items() if pod.spec.node_name == name and not pod_is_done(pod)]
        if not pods or any(taint.key == OUT_OF_SERVICE for taint in node.spec.taints or ()):
            continue
        have = f"{counted(len(pods), 'pod')} there {'holds' if len(pods) == 1 else 'hold'} devices"
        message = f"is unreachable{unreachable_since(node, seen.taken)}, and {have}: {listed(sorted(pods))}"
        remedy = (
            "bring it back; if its machine is off, say so by the taint, which deletes its pods and frees the devices"
        )
        command = kubectl("taint", "nodes", names=[name], then=[f"{OUT_OF_SERVICE}=nodeshutdown:NoExecute"])
        yield Diagnosis.of("node", f"node {name}", message, remedy=remedy, command=command)


LINGERING_SECONDS: Final = 60.0
"""Seconds for which a pod should have been gone before that is a trouble."""


def late_pods(seen: Observed) -> Iterator[Diagnosis]:
    """Yield pods that keep devices although they should be gone: no kubelet ends them, or no controller evicts them."""
    features = Settings().completed(seen).features(seen)
    taints, rules = DeviceTaints(), EvictingRules()
    for slice_ in seen.every(ResourceSlice) if features.device_taints else ():
        taints.replace(None, slice_)
    for rule in seen.every(DeviceTaintRule) if features.device_taints and features.taint_rules else ():
        rules.put(rule)
    for pod in sorted(seen.every(Pod), key=lambda pod: pod.key):
        if not pod.spec.node_name or pod_is_done(pod):
            continue
        space = pod.metadata.namespace
        claims = [(use, seen.one(ResourceClaim, f"{space}/{use.name}")) for use in claims_of_pod(pod)]
        if not any(claim is not None and claim.results and is_reserved_for(pod, claim) for _, claim in claims):
            continue
        if pod.metadata.deletion_timestamp is not None:
            yield from _not_terminated(seen, pod)
            continue
        eviction = pod_eviction(pod, claims, taints, rules, undated=seen.taken)
        if eviction is not None and (seen.taken - eviction.due).total_seconds() > LINGERING_SECONDS:
            since = age(format_time(eviction.due), seen.taken)
            message = f"should have been evicted {since} ago, and no controller does: {eviction}"
            remedy = (
                "kube-controller-manager evicts by its controller device-taint-eviction-controller and the feature "
                "gate DRADeviceTaints; the operator evicts without a kube-controller-manager, or with the controller "
                "eviction in its setting controllers: see that one of them does"
            )
            yield Diagnosis.of("eviction", f"pod {pod.key}", message, remedy=remedy)


def _not_terminated(seen: Observed, pod: Pod) -> Iterator[Diagnosis]:
    """Yield the pod if it has outlived its grace period. Pods of unreachable nodes are told with their node."""
    ends, node = parse_time(pod.metadata.deletion_timestamp), seen.one(Node, pod.spec.node_name)
    if ends is None or (seen.taken - ends).total_seconds() <= LINGERING_SECONDS or is_unreachable(node):
        return
    since = age(pod.metadata.deletion_timestamp or "", seen.taken)
    message = f"should have terminated {since} ago, and still has its devices"
    if node is None and "nodes" not in seen.unseen:
        remedy = f"its node {pod.spec.node_name} does not exist: delete it by force"
        command = kubectl("delete", "pod", "--force", names=[pod.metadata.name], namespace=pod.metadata.namespace)
    else:
        remedy = "its containers do not end, or a driver does not unprepare its claims: its events say which"
        command = kubectl("describe", "pod", names=[pod.metadata.name], namespace=pod.metadata.namespace)
    yield Diagnosis.of("terminating", f"pod {pod.key}", message, remedy=remedy, command=command)


def diagnose(seen: Observed) -> list[Diagnosis]:
    checks = (scheduler_troubles, allocation_troubles, claim_troubles, late_pods, device_troubles, slice_troubles)
    return advised_once(one for check in checks for one in check(seen))


async def repaired(api: Api, repair: Repair) -> str:
    """Return why it was not made, or not completely; an empty text if it was."""
    made = 0
    try:
        for name, uid in repair.gone:
            if await _exists(api, repair.namespace, name, uid):
                return f"not repaired: pod {name} exists"
        if repair.deleted is not None:
            uid, version = repair.deleted
            await api.delete(RESOURCE_CLAIMS, repair.name, repair.namespace, uid=uid, resource_version=version)
            made += 1
        for part, operations in repair.patches:
            body = list(operations)
            await api.patch(RESOURCE_CLAIMS, repair.name, body, repair.namespace, kind="json", subresource=part or None)
            made += 1
    except NotFound:
        return "" if made else "nothing to repair any more: the claim is gone"
    except KubeError as error:
        if made:
            return f"repaired in part; run doctor again, the claim may have changed: {error}"
        return f"not repaired, the claim may have changed: {error}"
    return ""


async def _exists(api: Api, namespace: str, name: str, uid: str) -> bool:
    """Whether the pod of this UID is there after all: the list may have been older than the reservation."""
    try:
        pod = await api.get(PODS, name, namespace)
    except NotFound:
        return False
    return bool(pod["metadata"].get("uid") == uid)


def answer(seen: Observed, options: argparse.Namespace) -> Answer:
    """What is wrong, and with ``--fix`` what became of it. Raises Problem."""
    if options.source is not None and options.fix:
        raise Problem("--fix needs a cluster: leave out --from", ExitCode.USAGE)
    found = diagnose(seen)
    if options.source is not None:
        return _answer(seen, found, frozenset())
    try:
        rights, notes, done = asyncio.run(_live(seen, found, options))
    except KubeError as error:
        raise Problem(for_people(error)) from error
    return _answer(seen, [*rights, *found], done, notes)


async def _live(
    seen: Observed, found: Sequence[Diagnosis], options: argparse.Namespace
) -> tuple[list[Diagnosis], list[str], frozenset[int]]:
    """Missing rights, notes on them, and the places of what was repaired."""
    async with client(options) as api:
        lacks, notes = await operator_lacks(api, options.operator_account, needed_rights(seen))
        rights = [*await missing_rights(api, fix=options.fix, release=seen.release), *lacks]
        done = set()
        tried: dict[tuple[str, str], tuple[Repair, bool]] = {}  # one that frees several devices is advised for each
        for place, one in enumerate(found) if options.fix else ():
            if one.repair is None:
                continue
            claim = one.repair.namespace, one.repair.name
            repair, is_made = tried.get(claim, (None, False))
            if repair != one.repair:
                question = f"{one.trouble.object} {one.trouble.message}", f"  {one.repair.text}?"
                is_made = options.yes or is_confirmed(*question)
                if is_made:
                    why_not = await repaired(api, one.repair)
                    print(printable(f"{one.trouble.object}: {why_not or 'repaired'}"), file=sys.stderr)
                    is_made = not why_not
                tried[claim] = one.repair, is_made
            if is_made:
                done.add(len(rights) + place)
    return rights, notes, frozenset(done)


def _answer(seen: Observed, found: list[Diagnosis], done: frozenset[int], notes: Sequence[str] = ()) -> Answer:
    left = [one.trouble for place, one in enumerate(found) if place not in done]
    code = ExitCode.IN_THE_WAY if left else ExitCode.CLEAR
    value = {"troubles": left, "repaired": len(done)}
    names = list(dict.fromkeys(trouble.object for trouble in left))
    lines = [*_lines([one for place, one in enumerate(found) if place not in done]), _checked(seen, len(left))]
    return Answer(lines=lines, value=value, names=names, notes=[*notes_on(seen), *notes], code=code)


MOST_TROUBLES: Final = 20
"""Troubles of one kind in one namespace that lines tell. A tenant with thousands of pods would bury all others."""


def _lines(found: Sequence[Diagnosis]) -> Iterator[str]:
    numbers: Counter[tuple[str, str]] = Counter()
    for one in found:
        trouble = one.trouble
        numbers[_alike(trouble)] += 1
        if numbers[_alike(trouble)] > MOST_TROUBLES:
            continue
        yield f"{trouble.object} {trouble.message}"
        if trouble.remedy:
            yield f"  {trouble.remedy}" + (" (doctor --fix does it)" if one.repair is not None else "")
        if trouble.command:
            yield f"  $ {trouble.command}"
    for (kind, where), number in numbers.items():
        if number > MOST_TROUBLES:
            yield f"{counted(number - MOST_TROUBLES, 'more trouble')} of kind {kind}, with {where}: -o json has all"


def _alike(trouble: Trouble) -> tuple[str, str]:
    """Return the kind of the trouble, and what kind of object of which namespace it is about."""
    noun, _, name = trouble.object.partition(" ")
    namespace, slash, _ = name.partition("/")
    is_in_namespace = noun in ("pod", "claim") and bool(slash)
    return trouble.kind, f"{noun}s of namespace {namespace}" if is_in_namespace else f"{noun}s"


def _checked(seen: Observed, number: int) -> str:
    kinds = ((ResourceClaim, "claim"), (Pod, "pod"), (ResourceSlice, "slice"), (Node, "node"))
    looked = ", ".join(counted(len(seen.every(kind)), noun) for kind, noun in kinds)
    return f"looked at {looked}: {counted(number, 'trouble') if number else 'nothing is wrong'}"
