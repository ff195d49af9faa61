"""What a pod asks of its place that placement does not look at: such a pod waits, and its condition names the field.

A pod that was placed all the same might break a rule that its author relies on, unnoticed. Each of the fields is a rule
that kube-scheduler enforces: VolumeBinding, VolumeZone, VolumeRestrictions, NodeVolumeLimits; GangScheduling while the
gate GenericWorkload is off.
Preferences are no rules, and volumes that any node can mount need none. A pod with very many rules waits as well
(``state.topology``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dra_api.core import Pod, Volume
from dra_api.references import group_name
from msgspec import structs

from dra_operator.scheduling.state.large import LARGEST_OBJECT_BYTES, is_too_large
from dra_operator.scheduling.state.obstacle import Obstacle, Reason
from dra_operator.scheduling.state.scheduling_gate import GATE
from dra_operator.scheduling.state.topology import MOST_LABELS, MOST_RULES, has_too_many_rules

UNSUPPORTED: Final = Reason("unsupported", "{subject} is not supported by dra-operator yet; {detail}")
_LOOKED_AT: Final = frozenset({"name", "persistent_volume_claim", "ephemeral"})
_TIED: Final = {it.name: it.encode_name for it in structs.fields(Volume) if it.name not in _LOOKED_AT}
"""By field: the name in objects of a source of a volume that only certain nodes can mount, or few pods of a node."""


def unsupported(pod: Pod) -> Obstacle | None:
    """The first such field, with a remedy; None if there is none."""
    gated = f"remove the scheduling gate {GATE}, so that the pod's scheduler allocates its devices"
    other = "have kube-scheduler place the pod (spec.schedulerName: default-scheduler)"
    way_out = gated if pod.spec.scheduling_gates else other
    return next((Obstacle(UNSUPPORTED, field, f"{remedy}, or {way_out}") for field, remedy in _fields(pod)), None)


def _fields(pod: Pod) -> Iterator[tuple[str, str]]:
    spec = pod.spec
    if spec.scheduling_group is not None and group_name(pod) is None:
        yield "spec.schedulingGroup", "turn on the feature gate GenericWorkload, or remove it"
    if is_too_large(pod):
        remedy = (
            "shorten the longest of resourceClaims, affinity, tolerations, nodeSelector, volumes, containers, labels"
        )
        yield f"more than {LARGEST_OBJECT_BYTES >> 10} KiB in the fields that decide its placement", remedy
    if has_too_many_rules(pod):
        bound = f"more than {MOST_RULES} rules between pods (or {MOST_LABELS} labels and expressions in them)"
        yield f"spec.affinity or spec.topologySpreadConstraints with {bound}", "name several values in one expression"
    for number, volume in enumerate(spec.volumes or ()):
        for field, source in _TIED.items():
            if getattr(volume, field) is not None:
                yield f"spec.volumes[{number}].{source}", "use a volume that any node can mount"
