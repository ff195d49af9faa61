"""``kubectl dra devices``."""

from __future__ import annotations

import argparse
from datetime import datetime
from typing import Final

from dra_api.core import Node

from dra_operator.kubectl.answer import Answer, Column, Table
from dra_operator.kubectl.facts.ages import age_of_first
from dra_operator.kubectl.facts.devices import DeviceFact, devices_of
from dra_operator.kubectl.labels import selecting
from dra_operator.kubectl.observed.observed import Observed
from dra_operator.kubectl.observed.pipeline import Settings, pipeline

from .notes import joined, notes_on, require

COLOURS: Final = {"free": "green", "shared": "yellow", "tainted": "red", "unusable": "red"}


def answer(seen: Observed, options: argparse.Namespace) -> Answer:
    """The devices that the options ask for."""
    require(seen, "resourceslices.resource.k8s.io")
    matches = selecting(options.selector)
    nodes = {node.metadata.name for node in seen.every(Node) if matches(node.metadata.labels)}
    found = [
        device
        for device in devices_of(pipeline(seen, Settings.of(options)))
        if (options.node in (None, device.node))
        and options.driver in (None, device.driver)
        and options.state in (None, device.state)
        and (not options.selector or device.node in nodes)
    ]
    return Answer(table_of(found, seen.taken), notes=notes_on(seen))


def table_of(devices: list[DeviceFact], now: datetime) -> Table[DeviceFact]:
    """One line for each device."""
    columns = (
        Column[DeviceFact]("NODE", lambda it: it.node or "<several>"),
        Column[DeviceFact]("DEVICE", lambda it: it.id),
        Column[DeviceFact]("STATE", lambda it: it.state, colour=lambda it: COLOURS.get(it.state, "")),
        Column[DeviceFact]("CLAIM", lambda it: joined(holder.claim for holder in it.holders)),
        Column[DeviceFact]("PODS", lambda it: joined(pod for holder in it.holders for pod in holder.pods)),
        Column[DeviceFact]("SINCE", lambda it: age_of_first((one.since for one in it.holders), now) or "<none>"),
        Column[DeviceFact]("TAINTS", lambda it: joined(it.taints), wide=True),
        Column[DeviceFact]("SCHEDULER", lambda it: it.scheduler or "<any>", wide=True),
        Column[DeviceFact](
            "LEFT",
            lambda it: ",".join(f"{name}={left.left}" for name, left in it.capacity.items()) or "<none>",
            wide=True,
        ),
        Column[DeviceFact](
            "ATTRIBUTES", lambda it: ",".join(f"{name}={value}" for name, value in it.attributes.items()), wide=True
        ),
    )
    return Table(columns, devices, lambda it: f"device/{it.id}", "No devices found")
