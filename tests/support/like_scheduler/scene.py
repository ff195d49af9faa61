"""What a random scene consists of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
NAMESPACES = ("ns-0", "ns-1", "ns-2")


@dataclass(frozen=True)
class Probe:
    """A pod to be placed, with the claims that are made for it. ``stays``: if it is bound, it runs from then on."""

    pod: Json
    claims: list[Json] = field(default_factory=list)
    stays: bool = False


@dataclass(frozen=True)
class Scene:
    """A cluster, and the pods that are placed there one after the other.

    ``pods_by_node`` come with a node. One with a phase in its status has ended, one with a finalizer is being deleted.
    """

    teams: dict[str, str | None]
    """The label ``team`` of each namespace."""
    nodes: list[Json]
    pods_by_node: list[Json]
    probes: list[Probe]
    classes: list[Json] = field(default_factory=list)
    slices: list[Json] = field(default_factory=list)
