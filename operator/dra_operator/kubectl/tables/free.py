"""``kubectl dra free``: devices that are free now, per class and node, with the largest request that still fits."""

from __future__ import annotations

import argparse

from dra_api.core import Node
from dra_api.resource import DeviceClass

from dra_operator.kubectl.answer import Answer, Column, Problem, Table
from dra_operator.kubectl.facts.classes import Members, Offer, offers_of
from dra_operator.kubectl.facts.devices import devices_of
from dra_operator.kubectl.labels import selecting
from dra_operator.kubectl.observed.observed import Observed
from dra_operator.kubectl.observed.pipeline import Settings, pipeline

from .notes import notes_on, require


def answer(seen: Observed, options: argparse.Namespace) -> Answer:
    """Offers of the nodes that have something to give. Raises Problem."""
    require(seen, "resourceslices.resource.k8s.io")
    if options.device_class is not None and seen.one(DeviceClass, options.device_class) is None:
        known = ", ".join(class_.key for class_ in seen.every(DeviceClass)) or "none"
        raise Problem(f"there is no device class {options.device_class}; there are: {known}")
    made = pipeline(seen, Settings.of(options))
    members, devices, matches = Members(made), devices_of(made), selecting(options.selector)
    nodes = {node.metadata.name for node in seen.every(Node) if matches(node.metadata.labels)}
    classes = [options.device_class] if options.device_class is not None else members.classes
    found = [
        offer
        for name in classes
        for offer in offers_of(made, name, members.of(name, devices))
        if offer.largest and offer.node in nodes
    ]
    found.sort(key=lambda offer: (offer.device_class, -offer.largest, bool(offer.keeps_away), offer.node))
    columns: list[Column[Offer]] = [
        Column("CLASS", lambda it: it.device_class),
        Column("NODE", lambda it: it.node),
        Column("FREE", lambda it: f"{it.free}/{it.devices}"),
        Column("LARGEST", lambda it: it.largest, colour=lambda it: "" if it.keeps_away else "green"),
        Column("KEEPS-AWAY", lambda it: it.keeps_away or "<none>", colour=lambda it: "yellow" if it.keeps_away else ""),
    ]
    return Answer(Table(columns, found, lambda it: f"node/{it.node}", "Nothing is free"), notes=notes_on(seen))
