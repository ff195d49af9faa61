"""What the places of a gang have in common because of its pods that run, or are on their way to a node.

A file of its own since ``kubectl dra why`` asks the same, and must not load asyncio for that.
"""

from __future__ import annotations

from collections.abc import Sequence

from dra_api.core import Pod

from dra_operator.cache import Cluster
from dra_operator.scheduling.gang import SameValues
from dra_operator.scheduling.state import Gang


def same_values(cluster: Cluster, gang: Gang, running: Sequence[Pod]) -> SameValues:
    """Return the values that the places of the gang must share, and those that its running pods have already."""
    nodes = (cluster.nodes.get(cluster.node_of(pod)) for pod in running if gang.topology)
    labels = ((node.metadata.labels or {}).get(gang.topology) for node in nodes if node is not None)
    label = next((it for it in labels if it is not None), None)
    claims = (claim for pod in running if gang.attribute for _, claim in cluster.claims_of(pod))
    held = (claim.status.allocation for claim in claims if claim is not None)
    return SameValues(gang.topology, gang.attribute, label, tuple(it for it in held if it is not None))
