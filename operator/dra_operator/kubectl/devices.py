"""``kubectl dra devices``, each device with its state and holder, and ``kubectl dra who``, the holders of some."""

from __future__ import annotations

import argparse
from dataclasses import replace
from datetime import datetime
from difflib import get_close_matches
from typing import Final

from dra_api.core import Node

from dra_operator.kubectl.answer import Answer, Column, Fact, Problem, Table
from dra_operator.kubectl.facts import DeviceFact, age, age_of_first, every_device_of, labels_of_node, shelves
from dra_operator.kubectl.observed import Observed, joined, no_node, notes_on, require, selecting
from dra_operator.kubectl.settings import Settings

COLOURS: Final = {
    "free": "green",
    "shared": "yellow",
    "drawn": "yellow",
    "tainted": "red",
    "unusable": "red",
    "gone": "red",
}


def devices_answer(seen: Observed, options: argparse.Namespace) -> Answer:
    """The devices that the options ask for."""
    require(seen, "resourceslices.resource.k8s.io")
    matches = selecting(options.selector)
    nodes = {node.metadata.name for node in seen.every(Node) if matches(node.metadata.labels)}
    every = every_device_of(shelves(seen, Settings.of(options)))
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
    """One line for each device."""
    columns = (
        Column[DeviceFact]("NODE", lambda it: it.node or "<several>", repeats=lambda it: it.node == it.pool),
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
    """One claim that has one device."""

    node: str
    device: str
    claim: str
    pods: tuple[str, ...]
    owner: str
    since: str
    access: str
    """exclusive, shared or admin."""


def who_answer(seen: Observed, options: argparse.Namespace) -> Answer:
    """Who has it. Raises Problem."""
    require(seen, "resourceslices.resource.k8s.io", "resourceclaims.resource.k8s.io")
    devices = every_device_of(shelves(seen, Settings.of(options)))
    asked = meant(seen, devices, options.what)
    found = [_holding(device, number) for device in asked for number in range(len(device.holders))]
    columns: list[Column[DeviceHolding]] = [
        Column("NODE", lambda it: it.node or "<several>", repeats=lambda it: f"/{it.node}/" in it.device),
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
        claim=holder.claim,
        pods=holder.pods,
        owner=holder.owner,
        since=holder.since,
        access=access,
    )
