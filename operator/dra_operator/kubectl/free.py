"""``kubectl dra free``: the devices of a class, and how many of them a request could get now, node by node.

The allocator finds the largest request that still fits on a node. Counting would not do: partitions, counters and
devices of several nodes decide as well.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from dra_api.core import Node
from dra_api.meta import ObjectMeta
from dra_api.resource import (
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    DeviceSelector,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
)
from dra_ledger import Ledger
from msgspec import structs

from dra_operator.allocator import Allocated
from dra_operator.kubectl.answer import Answer, Column, Fact, Problem, Table
from dra_operator.kubectl.facts import DeviceFact, devices_of, labels_of_node
from dra_operator.kubectl.observed import Observed, nodes_with, notes_on, require
from dra_operator.kubectl.pipeline import Pipeline, TookTooLong, pipeline
from dra_operator.kubectl.settings import Settings


class Offer(Fact, frozen=True):
    """What a node could give to a claim that asks for devices of one class and nothing else."""

    device_class: str
    node: str
    devices: int
    """That the class means."""
    free: int
    largest: int
    """The largest count that one request would get: the allocator was asked."""
    keeps_away: str
    """Why a pod without tolerations cannot run there; empty if it can."""


def members(ledger: Ledger, class_: str, devices: Sequence[DeviceFact]) -> list[DeviceFact]:
    """Return the devices of a class: none on which a selector fails. Raises KeyError for an unknown class."""
    ids = {entry.id for entry in ledger.devices(device_class=class_)}
    return [fact for fact in devices if fact.id in ids]


def alike(seen: Observed, classes: Iterable[str]) -> list[list[str]]:
    """Return the classes in groups with the same selectors, which mean the same devices: each group is asked once."""
    groups: dict[tuple[DeviceSelector, ...], list[str]] = {}
    for name in classes:
        class_ = seen.one(DeviceClass, name)
        groups.setdefault(tuple(class_.spec.selectors or ()) if class_ is not None else (), []).append(name)
    return list(groups.values())


def offers_of(pipeline: Pipeline, class_: str, devices: Sequence[DeviceFact]) -> Iterator[Offer]:
    """For each node with devices of the class. ``devices`` are those that the class means."""
    by_node: dict[str, list[DeviceFact]] = defaultdict(list)
    for device in devices:
        by_node[device.node or ""].append(device)
    shared = by_node.pop("", [])
    for state in pipeline.cluster.loaded_nodes():
        pipeline.pausing()
        here = by_node.get(state.name, [])
        if not here and not shared:
            continue
        largest = _largest(pipeline, class_, state.node, len(here) + len(shared))
        if not here and not largest:
            continue
        yield Offer(
            device_class=class_,
            node=state.name,
            devices=len(here) + len(shared),
            free=sum(device.state == "free" for device in (*here, *shared)),
            largest=largest,
            keeps_away=_keeps_away(state.node),
        )


def best_offer(pipeline: Pipeline, class_: str, devices: Sequence[DeviceFact]) -> Offer | None:
    """The largest of a node that is not cordoned; of equal ones that of a node without taints. None without any."""
    cordoned = {state.name for state in pipeline.cluster.loaded_nodes() if state.node.spec.unschedulable}
    offers = (it for it in offers_of(pipeline, class_, devices) if it.largest and it.node not in cordoned)
    return max(offers, key=lambda offer: (offer.largest, not offer.keeps_away), default=None)


def _largest(pipeline: Pipeline, class_: str, node: Node, most: int) -> int:
    """By halving: what a node can give of many devices it can give of fewer."""
    usage = pipeline.cluster.allocated_devices.usage
    low, high = 0, most
    while low < high:
        count = (low + high + 1) // 2
        outcome = pipeline.allocator.allocate(node, [_asking(class_, count)], usage)
        if isinstance(outcome, Allocated):
            low = count
        else:
            high = count - 1
    return low


def _asking(class_: str, count: int) -> ResourceClaim:
    exactly = ExactDeviceRequest(device_class_name=class_, allocation_mode="ExactCount", count=count)
    requests = (DeviceRequest(name="request", exactly=exactly),)
    meta = ObjectMeta(name=f"{class_}-{count}", namespace="default", uid=f"{class_}-{count}")
    return ResourceClaim(metadata=meta, spec=ResourceClaimSpec(devices=DeviceClaim(requests=requests)))


def _keeps_away(node: Node) -> str:
    taints = [
        f"{taint.key}={taint.value}" if taint.value else taint.key
        for taint in node.spec.taints or ()
        if taint.effect != "PreferNoSchedule" and taint.key != "node.kubernetes.io/unschedulable"
    ]
    return ",".join((["cordoned"] if node.spec.unschedulable else []) + taints)


OUT_OF_TIME: Final = "more may be free: the time limit was reached; kubectl dra free --time-limit gives more"


def answer(seen: Observed, options: argparse.Namespace) -> Answer:
    require(
        seen,
        "resourceslices.resource.k8s.io",
        "resourceclaims.resource.k8s.io",
        "deviceclasses.resource.k8s.io",
        "nodes",
    )
    if options.device_class is not None and seen.one(DeviceClass, options.device_class) is None:
        known = ", ".join(class_.key for class_ in seen.every(DeviceClass)) or "none"
        raise Problem(f"there is no device class {options.device_class}; there are: {known}")
    made = pipeline(seen, Settings.of(options))
    ledger = made.ledger()
    devices, nodes = devices_of(seen, ledger), nodes_with(seen, options.selector)
    classes = [options.device_class] if options.device_class is not None else ledger.classes
    found, notes = list[Offer](), list(notes_on(seen))
    try:
        with made.pausing.within(options.time_limit):
            for first, *others in alike(seen, classes):
                for offer in offers_of(made, first, members(ledger, first, devices)):
                    if offer.largest and offer.node in nodes:
                        found += [offer, *(structs.replace(offer, device_class=name) for name in others)]
    except TookTooLong:
        notes.append(OUT_OF_TIME)
    found.sort(key=lambda offer: (offer.device_class, -offer.largest, bool(offer.keeps_away), offer.node))
    columns: list[Column[Offer]] = [
        Column("CLASS", lambda it: it.device_class),
        Column("NODE", lambda it: it.node),
        Column("FREE", lambda it: f"{it.free}/{it.devices}"),
        Column("LARGEST", lambda it: it.largest, colour=lambda it: "" if it.keeps_away else "green"),
        Column("KEEPS-AWAY", lambda it: it.keeps_away or "<none>", colour=lambda it: "yellow" if it.keeps_away else ""),
    ]
    table = Table(
        columns,
        found,
        lambda it: f"node/{it.node}",
        "Nothing is free",
        "Offer",
        lambda it: labels_of_node(seen, it.node),
    )
    return Answer(table, notes=notes)
