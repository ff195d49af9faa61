"""When the devices of the simulated drivers can be seen: a cluster that is up shows its slices."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from dra_api.api_resources import RESOURCE_SLICES

from .cluster import DevCluster

_PUBLICATION_SECONDS: Final = 0.05  # seconds


async def devices_published(cluster: DevCluster) -> None:
    """Wait until every node whose plugin lives has all slices of its pool. What a snapshot brought counts."""
    registry = cluster.server.registry
    slices = registry.collection(registry.resource(RESOURCE_SLICES.group, "v1", RESOURCE_SLICES.plural))
    missing = {node.name: node.plugin for node in cluster.nodes if node.plugin is not None}
    seen: set[str] = set()
    found: Counter[str] = Counter()
    while missing := {name: plugin for name, plugin in missing.items() if not plugin.has_ended}:
        for stored in slices.all():
            if stored.name not in seen:
                seen.add(stored.name)
                spec = stored.decode()["spec"]
                node = spec.get("nodeName", "")
                found[node] += 1
                if found[node] >= spec["pool"]["resourceSliceCount"]:
                    missing.pop(node, None)
        await asyncio.sleep(_PUBLICATION_SECONDS)
