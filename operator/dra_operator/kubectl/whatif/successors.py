"""Where the pods go that controllers make in the place of evicted ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dra_api.core import Pod

from dra_operator.commands.simulated.placing import NotPlaced, Placed
from dra_operator.scheduling.preemption import priority

from .overlay import Overlay


def successors(overlay: Overlay, pods: Iterable[Pod]) -> Mapping[str, Placed | NotPlaced]:
    """By the key of the pod, which was evicted. Those of the most important pods are placed first, then of the oldest;
    each leaves less for the next."""
    in_order = sorted(pods, key=lambda pod: (-priority(pod), pod.metadata.creation_timestamp or "", pod.key))
    return {pod.key: overlay.place(overlay.successor(pod)) for pod in in_order}
