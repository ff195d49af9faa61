"""``kubectl dra who``: the holders of one device, or of the devices of one node."""

from __future__ import annotations

import argparse
from difflib import get_close_matches

from dra_api.core import Node

from dra_operator.kubectl.answer import Answer, Column, Fact, Problem, Table
from dra_operator.kubectl.facts.ages import age
from dra_operator.kubectl.facts.devices import DeviceFact, devices_of
from dra_operator.kubectl.observed.observed import Observed
from dra_operator.kubectl.observed.pipeline import Settings, pipeline

from .notes import joined, notes_on, require


class Holding(Fact, frozen=True):
    """One claim that has one device."""

    node: str
    device: str
    claim: str
    pods: tuple[str, ...]
    owner: str
    since: str
    access: str
    """exclusive, shared or admin."""


def answer(seen: Observed, options: argparse.Namespace) -> Answer:
    """Who has it. Raises Problem."""
    require(seen, "resourceslices.resource.k8s.io")
    devices = devices_of(pipeline(seen, Settings.of(options)))
    asked = meant(seen, devices, options.what)
    found = [_holding(device, number) for device in asked for number in range(len(device.holders))]
    columns: list[Column[Holding]] = [
        Column("NODE", lambda it: it.node or "<several>"),
        Column("DEVICE", lambda it: it.device),
        Column("CLAIM", lambda it: it.claim),
        Column("PODS", lambda it: joined(it.pods)),
        Column("OWNER", lambda it: it.owner or "<none>"),
        Column("SINCE", lambda it: age(it.since, seen.taken) or "<unknown>"),
        Column("ACCESS", lambda it: it.access, wide=True),
    ]
    name = "resourceclaim.resource.k8s.io/"
    none = f"No device in use: {options.what}"
    table = Table(columns, found, lambda it: name + it.claim.partition("/")[2], none)
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


def _holding(device: DeviceFact, number: int) -> Holding:
    holder = device.holders[number]
    access = "admin" if holder.admin else "shared" if device.state == "shared" else "exclusive"
    return Holding(
        node=device.node,
        device=device.id,
        claim=holder.claim,
        pods=holder.pods,
        owner=holder.owner,
        since=holder.since,
        access=access,
    )
