"""Tables of devices and claims: ``kubectl dra devices``, ``who``, ``pools``, ``top`` and ``claims``.

``devices`` has each device with its state and holders, ``who`` the holders of some, ``pools`` how much of each resource
pool is published and free, ``top`` the devices in use by node, driver, class or namespace. ``claims`` has each claim
with its state, its devices, the pods that use it, and its requests. Only ``top classes`` decides anything; the others
load nothing of the scheduler.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from difflib import get_close_matches
from typing import Final

from dra_api.core import Node, Pod
from dra_api.references import claims_of_pod, pod_is_done
from dra_api.resource import ResourceClaim, ResourceSlice
from dra_ledger import Ledger, PoolEntry
from dra_ledger.basics import DeviceId, PoolId
from msgspec import structs

from dra_operator.kubectl.answer import Answer, Column, ExitCode, Fact, Problem, Table
from dra_operator.kubectl.facts import (
    DeviceFact,
    age,
    age_of_first,
    every_device_of,
    labels_of_node,
    ledger_of,
    pods_of,
)
from dra_operator.kubectl.observed import Observed, joined, no_node, nodes_with, notes_on, require, selecting
from dra_operator.kubectl.settings import Settings

SEVERAL: Final = "<several>"
COLOURS: Final = {
    "free": "green",
    "shared": "yellow",
    "drawn": "yellow",
    "tainted": "red",
    "unusable": "red",
    "gone": "red",
}


def devices_answer(seen: Observed, options: argparse.Namespace) -> Answer:
    require(seen, "resourceslices.resource.k8s.io")
    nodes = nodes_with(seen, options.selector)
    every = every_device_of(seen, ledger_of(seen, Settings.of(options)))
    if options.node is not None and "nodes" not in seen.unseen and seen.one(Node, options.node) is None:
        known = {node.key for node in seen.every(Node)} | {device.node for device in every}
        if options.node not in known:
            raise no_node(options.node, known)
    found = [
        device
        for device in every
        if (options.node in (None, device.node))
        and options.driver in (None, device.driver)
        and options.state in (None, device.state)
        and (not options.selector or device.node in nodes)
    ]
    table = replace(table_of(found, seen.taken), labels=lambda it: labels_of_node(seen, it.node))
    return Answer(table, notes=notes_on(seen))


def table_of(devices: list[DeviceFact], now: datetime) -> Table[DeviceFact]:
    columns = (
        Column[DeviceFact]("NODE", _node_of, repeats=lambda it: it.node == it.pool),
        Column[DeviceFact]("DEVICE", lambda it: it.id, keeps_end=True),
        Column[DeviceFact]("STATE", lambda it: it.state, colour=lambda it: COLOURS.get(it.state, "")),
        Column[DeviceFact]("CLAIM", lambda it: joined(holder.claim for holder in it.holders)),
        Column[DeviceFact]("PODS", lambda it: joined(pod for holder in it.holders for pod in holder.pods)),
        Column[DeviceFact]("SINCE", lambda it: age_of_first((one.since for one in it.holders), now) or "<none>"),
        Column[DeviceFact]("TAINTS", lambda it: joined(it.taints), wide=True),
        Column[DeviceFact]("SCHEDULER", lambda it: it.scheduler or "<any>", wide=True),
        Column[DeviceFact]("WHY", lambda it: it.why or "<none>", wide=True),
        Column[DeviceFact](
            "LEFT",
            lambda it: ",".join(f"{name}={left.left}" for name, left in it.capacity.items()) or "<none>",
            wide=True,
        ),
        Column[DeviceFact](
            "ATTRIBUTES", lambda it: ",".join(f"{name}={value}" for name, value in it.attributes.items()), wide=True
        ),
    )
    return Table(columns, devices, lambda it: f"device/{it.id}", "No devices found", "Device")


class DeviceHolding(Fact, frozen=True):
    """One claim that has one device; ``node`` and ``state`` as in ``DeviceFact``."""

    node: str
    device: str
    state: str
    claim: str
    pods: tuple[str, ...]
    owner: str
    since: str
    access: str
    """exclusive, shared or admin."""


def _node_of(it: DeviceFact | DeviceHolding) -> str:
    # No slice says any more where a device that is gone was.
    return it.node or ("<unknown>" if it.state == "gone" else SEVERAL)


def who_answer(seen: Observed, options: argparse.Namespace) -> Answer:
    require(seen, "resourceslices.resource.k8s.io", "resourceclaims.resource.k8s.io")
    devices = every_device_of(seen, ledger_of(seen, Settings.of(options)))
    asked = meant(seen, devices, options.what)
    found = [_holding(device, number) for device in asked for number in range(len(device.holders))]
    columns: list[Column[DeviceHolding]] = [
        Column("NODE", _node_of, repeats=lambda it: f"/{it.node}/" in it.device),
        Column("DEVICE", lambda it: it.device, keeps_end=True),
        Column("CLAIM", lambda it: it.claim),
        Column("PODS", lambda it: joined(it.pods)),
        Column("OWNER", lambda it: it.owner or "<none>"),
        Column("SINCE", lambda it: age(it.since, seen.taken) or "<unknown>"),
        Column("ACCESS", lambda it: it.access, wide=True),
    ]
    name = "resourceclaim.resource.k8s.io/"
    none = f"No device in use: {options.what}"
    table = Table(columns, found, lambda it: name + it.claim.partition("/")[2], none, "Holder")
    return Answer(table, notes=notes_on(seen))


def meant(seen: Observed, devices: list[DeviceFact], what: str) -> list[DeviceFact]:
    """The devices of the node, or with the name: in full, or its end from a slash on. Raises Problem."""
    kind, _, name = what.partition("/")
    if kind in ("node", "nodes", "no", "device") and name:
        what = name
    on_node = [device for device in devices if device.node == what]
    if kind != "device" and (on_node or seen.one(Node, what) is not None):
        return on_node
    found = [device for device in devices if f"/{device.id}".endswith(f"/{what}")]
    if not found:
        known = [device.id for device in devices] + [node.key for node in seen.every(Node)]
        similar = get_close_matches(what, known, 3)
        hint = f"; similar: {', '.join(similar)}" if similar else ""
        raise Problem(f"no node and no device is named {what}{hint}")
    return found


def _holding(device: DeviceFact, number: int) -> DeviceHolding:
    holder = device.holders[number]
    access = "admin" if holder.admin else "shared" if device.state == "shared" else "exclusive"
    return DeviceHolding(
        node=device.node,
        device=device.id,
        state=device.state,
        claim=holder.claim,
        pods=holder.pods,
        owner=holder.owner,
        since=holder.since,
        access=access,
    )


class PoolFact(Fact, frozen=True):
    """``status``: complete, incomplete or invalid, and how many slices are of older generations."""

    driver: str
    name: str
    nodes: tuple[str, ...]
    """Empty if it does not name its nodes."""
    generation: int
    slices: int
    announced: int
    status: str
    since: str
    """When the newest of its slices was made."""
    devices: int
    free: int
    taken: int
    shared: int
    tainted: int
    why: str = ""
    """Why it is not complete."""

    @property
    def id(self) -> str:
        """``driver/pool``."""
        return f"{self.driver}/{self.name}"


def pools_of(seen: Observed, ledger: Ledger) -> list[PoolFact]:
    """All pools, sorted."""
    made: dict[str, str] = {}
    for slice_ in seen.every(ResourceSlice):
        id_ = str(PoolId.of(slice_))
        made[id_] = max(made.get(id_, ""), slice_.metadata.creation_timestamp or "")
    return [_pool_fact(pool, made.get(pool.id, "")) for pool in ledger.pools()]


def _pool_fact(pool: PoolEntry, since: str) -> PoolFact:
    states = Counter(pool.devices)
    status = "complete" if pool.status == "usable" else pool.status
    return PoolFact(
        driver=pool.driver,
        name=pool.name,
        nodes=pool.nodes,
        generation=pool.generation,
        slices=pool.slices,
        announced=pool.announced,
        status=f"{status}, {len(pool.obsolete)} older" if pool.obsolete else status,
        since=since,
        devices=states.total(),
        free=states["free"],
        taken=states["taken"],
        shared=states["shared"],
        tainted=states["tainted"],
        why=pool.why,
    )


def pools_answer(seen: Observed, options: argparse.Namespace) -> Answer:
    require(seen, "resourceslices.resource.k8s.io")
    found = [
        pool
        for pool in pools_of(seen, ledger_of(seen, Settings.of(options)))
        if options.driver in (None, pool.driver) and (options.node is None or options.node in pool.nodes)
    ]
    columns: list[Column[PoolFact]] = [
        Column("DRIVER", lambda it: it.driver),
        Column("POOL", lambda it: it.name),
        Column("NODE", lambda it: joined(it.nodes) if it.nodes else SEVERAL),
        Column("STATUS", lambda it: it.status, colour=lambda it: "" if it.status == "complete" else "red"),
        Column("SLICES", lambda it: f"{it.slices}/{it.announced}"),
        Column("DEVICES", lambda it: it.devices),
        Column("FREE", lambda it: it.free),
        Column("AGE", lambda it: age(it.since, seen.taken) or "<unknown>"),
        Column("TAKEN", lambda it: it.taken, wide=True),
        Column("SHARED", lambda it: it.shared, wide=True),
        Column("TAINTED", lambda it: it.tainted, wide=True),
        Column("GENERATION", lambda it: it.generation, wide=True),
        Column("WHY", lambda it: it.why or "<none>", wide=True),
    ]
    return Answer(Table(columns, found, lambda it: f"pool/{it.id}", "No pools found", "Pool"), notes=notes_on(seen))


class UsageFact(Fact, frozen=True):
    """``used``: devices of which something is taken."""

    name: str
    devices: int
    used: int
    shared: int
    """Of those in use, the ones that several claims may share."""
    tainted: int
    free: int
    claims: int

    @property
    def share(self) -> float:
        """The used ones among all, from 0 to 1."""
        return self.used / self.devices if self.devices else 0.0


def usage_by_name(named: Iterable[tuple[str, DeviceFact]]) -> list[UsageFact]:
    """One for each name, those with most in use first."""
    groups: dict[str, list[DeviceFact]] = defaultdict(list)
    for name, device in named:
        groups[name].append(device)
    facts = [usage_of(name, devices) for name, devices in groups.items()]
    return sorted(facts, key=lambda fact: (-fact.share, -fact.used, fact.name))


def usage_of(name: str, devices: Sequence[DeviceFact]) -> UsageFact:
    states = Counter(device.state for device in devices)
    claims = {holder.claim for device in devices for holder in device.holders}
    return UsageFact(
        name=name,
        devices=len(devices),
        used=states["taken"] + states["shared"] + states["gone"],
        shared=states["shared"],
        tainted=states["tainted"],
        free=states["free"],
        claims=len(claims),
    )


BAR_BLOCKS: Final = 10
"""Blocks of a full bar."""


LARGEST_SECONDS: Final = 30.0
"""Time to find the largest requests of all classes."""


def top_answer(seen: Observed, options: argparse.Namespace) -> Answer:
    require(seen, "resourceslices.resource.k8s.io")
    if options.by == "classes":
        require(seen, "deviceclasses.resource.k8s.io")
    if options.selector and options.by != "nodes":
        raise Problem("--selector is about labels of nodes: use it with top nodes", ExitCode.USAGE)
    settings = Settings.of(options)
    more: list[Column[UsageFact]] = []
    if options.by == "classes":
        from dra_operator.kubectl.free import alike, best_offer, members  # asks the allocator: it takes long to load
        from dra_operator.kubectl.pipeline import TookTooLong, pipeline

        made, due = pipeline(seen, settings), time.monotonic() + LARGEST_SECONDS
        ledger = made.ledger()
        devices = every_device_of(seen, ledger)
        groups = alike(seen, ledger.classes)
        first_of = {name: several[0] for several in groups for name in several}
        by_class = {first: members(ledger, first, devices) for first, *_ in groups}
        usage = {first: usage_of(first, its) for first, its in by_class.items()}
        facts = [structs.replace(usage[first_of[name]], name=name) for name in ledger.classes]

        largest_of: dict[str, str] = {}

        def largest(fact: UsageFact) -> str:
            """The largest request that a node without cordon could serve now."""
            first = first_of[fact.name]
            if first not in largest_of:
                try:
                    with made.pausing.within(max(due - time.monotonic(), 1e-9)):  # 0 is no limit
                        best = best_offer(made, first, by_class[first])
                except TookTooLong:
                    return "<not in time>"
                largest_of[first] = f"{best.largest} on {best.node}" if best is not None else "0"
            return largest_of[first]

        more = [Column("LARGEST", largest)]
    else:
        devices = every_device_of(seen, ledger_of(seen, settings))
        if options.by == "namespaces":
            facts = usage_by_name((name, device) for device in devices for name in _namespaces(device))
        elif options.by == "drivers":
            facts = usage_by_name((device.driver, device) for device in devices)
        else:
            nodes = nodes_with(seen, options.selector)
            chosen = (device for device in devices if not options.selector or device.node in nodes)
            facts = usage_by_name((_node_of(device), device) for device in chosen)
    kind = {"nodes": "node", "drivers": "driver", "classes": "deviceclass", "namespaces": "namespace"}[options.by]
    columns = _held() if options.by == "namespaces" else [*_columns(), *more]
    title: Column[UsageFact] = Column(kind.upper(), lambda it: it.name)
    labels = (lambda it: labels_of_node(seen, it.name)) if options.by == "nodes" else None
    table = Table([title, *columns], facts, lambda it: f"{kind}/{it.name}", "No devices found", "Usage", labels)
    return Answer(table, notes=notes_on(seen))


def _namespaces(device: DeviceFact) -> set[str]:
    """Of the claims that have it; admin access takes nothing from others."""
    return {holder.claim.partition("/")[0] for holder in device.holders if not holder.admin}


def _columns() -> list[Column[UsageFact]]:
    return [
        Column("USED", lambda it: f"{it.used}/{it.devices}"),
        Column("", lambda it: bar(it.share), colour=_colour),
        Column("%", lambda it: f"{it.share:.0%}"),
        Column("FREE", lambda it: it.free),
        Column("TAINTED", lambda it: it.tainted),
        Column("CLAIMS", lambda it: it.claims, wide=True),
        Column("SHARED", lambda it: it.shared, wide=True),
    ]


def _held() -> list[Column[UsageFact]]:
    """Of namespaces there is no whole to compare with."""
    return [
        Column("DEVICES", lambda it: it.used),
        Column("CLAIMS", lambda it: it.claims),
        Column("SHARED", lambda it: it.shared, wide=True),
    ]


def bar(share: float) -> str:
    """``████░░░░░░``; what is not nothing has a block, and only all is full."""
    full = round(share * BAR_BLOCKS)
    full = min(max(full, 1), BAR_BLOCKS - 1) if 0 < share < 1 else full
    return "█" * full + "░" * (BAR_BLOCKS - full)


def _colour(fact: UsageFact) -> str:
    return "red" if fact.share >= 0.9 else "yellow" if fact.share >= 0.6 else "green"


class ClaimFact(Fact, frozen=True):
    """``state`` in kubectl's words: pending, allocated or allocated,reserved, after ``deleted,`` if it is."""

    namespace: str
    name: str
    state: str
    requests: tuple[str, ...]
    """``2 gpu``: number of devices and class; alternatives with ``or``."""
    devices: tuple[str, ...]
    pods: tuple[str, ...]
    """That it is reserved for or, of a claim without devices, that wait with it."""
    node: str
    """Of the pods; empty if they have none."""
    owner: str
    created: str
    since: str
    """When it got its devices."""

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


def claims_of(seen: Observed) -> list[ClaimFact]:
    """All claims, sorted by namespace and name."""
    waiting: dict[str, list[str]] = {}
    for pod in seen.every(Pod):
        if not pod_is_done(pod):
            for use in claims_of_pod(pod):
                waiting.setdefault(f"{pod.metadata.namespace}/{use.name}", []).append(pod.metadata.name)
    facts = (_claim_fact(seen, claim, waiting.get(claim.key, [])) for claim in seen.every(ResourceClaim))
    return sorted(facts, key=lambda claim: (claim.namespace, claim.name))


def _claim_fact(seen: Observed, claim: ResourceClaim, waiting: list[str]) -> ClaimFact:
    meta, allocation = claim.metadata, claim.status.allocation
    state = "pending" if allocation is None else "allocated,reserved" if claim.status.reserved_for else "allocated"
    owner = meta.controller
    pods = [user.name for user in pods_of(seen, claim)] if allocation is not None else sorted(waiting)
    found = (seen.one(Pod, f"{meta.namespace}/{name}") for name in pods)
    return ClaimFact(
        namespace=meta.namespace,
        name=meta.name,
        state=f"deleted,{state}" if meta.deletion_timestamp is not None else state,
        requests=tuple(_requests(claim)),
        devices=tuple(str(DeviceId.of(given)) for given in claim.results),
        pods=tuple(pods),
        node=next((pod.spec.node_name for pod in found if pod is not None and pod.spec.node_name), ""),
        owner=f"{owner.kind}/{owner.name}" if owner is not None else "",
        created=meta.creation_timestamp or "",
        since=(allocation.allocation_timestamp if allocation is not None else None) or "",
    )


def _requests(claim: ResourceClaim) -> Iterator[str]:
    for request in claim.spec.devices.requests or ():
        wanted = (request.exactly,) if request.exactly is not None else (request.first_available or ())
        yield " or ".join(
            f"{'all' if one.allocation_mode == 'All' else one.count or 1} {one.device_class_name}" for one in wanted
        )


_CLAIM_COLOURS: Final = {"allocated,reserved": "green", "pending": "yellow"}


def claims_answer(seen: Observed, options: argparse.Namespace) -> Answer:
    require(seen, "resourceclaims.resource.k8s.io")
    matches = selecting(options.selector)
    labels = {claim.key: claim.metadata.labels for claim in seen.every(ResourceClaim)}
    found = [
        claim
        for claim in claims_of(seen)
        if matches(labels[claim.key])
        and (options.all_namespaces or claim.namespace == seen.namespace)
        and (not options.pending or "pending" in claim.state)
    ]
    in_namespace = "" if options.all_namespaces else f" in namespace {seen.namespace}"
    columns = _claim_columns(seen, with_namespace=options.all_namespaces)
    table = Table(
        columns,
        found,
        lambda it: f"resourceclaim.resource.k8s.io/{it.name}",
        f"No claims found{in_namespace}",
        kind="Claim",
        labels=lambda it: labels[it.key],
    )
    return Answer(table, notes=notes_on(seen))


def _claim_columns(seen: Observed, *, with_namespace: bool) -> list[Column[ClaimFact]]:
    namespace: list[Column[ClaimFact]] = [Column("NAMESPACE", lambda it: it.namespace)] if with_namespace else []
    return [
        *namespace,
        Column("NAME", lambda it: it.name),
        Column("STATE", lambda it: it.state, colour=lambda it: _CLAIM_COLOURS.get(it.state, "")),
        Column("REQUESTS", lambda it: joined(it.requests)),
        Column("DEVICES", lambda it: joined(it.devices), keeps_end=True),
        Column("PODS", lambda it: joined(it.pods)),
        Column("AGE", lambda it: age(it.created, seen.taken) or "<unknown>"),
        Column("NODE", lambda it: it.node or "<none>", wide=True),
        Column("OWNER", lambda it: it.owner or "<none>", wide=True),
        Column("ALLOCATED", lambda it: age(it.since, seen.taken) or "<none>", wide=True),
    ]


def answer(seen: Observed, options: argparse.Namespace) -> Answer:
    """Answer the command that was called."""
    answers = {
        "top": top_answer,
        "devices": devices_answer,
        "who": who_answer,
        "pools": pools_answer,
        "claims": claims_answer,
    }
    return answers[options.command](seen, options)
