"""What a gang is, and how a pod says that it belongs to one: so many pods get devices and nodes together, or none does.

A gang lies within one namespace. Its pods are grouped in one of four ways, the first that the pod uses:

=====================================  ==============================================  ==============================
the pod has                            its gang                                        its size
=====================================  ==============================================  ==============================
``dra.kopf.dev/gang: NAME``            all pods with this name                         ``dra.kopf.dev/gang-size``
``dra.kopf.dev/gang: N``, no size      the pods of its LeaderWorkerSet group, or of    N
                                       the same controller (a Job)
``kueue.x-k8s.io/pod-group-name``      all pods of this group                          ``...pod-group-total-count``
=====================================  ==============================================  ==============================

The keys of this project may be annotations or labels; the annotation counts if there are both. A wish that cannot be
understood is an obstacle of the pod, never a pod that is placed alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dra_api.core import Pod
from dra_api.validation.formats import fully_qualified_name

from .obstacle import Obstacle, Reason

GANG: Final = "dra.kopf.dev/gang"
GANG_SIZE: Final = "dra.kopf.dev/gang-size"
GANG_TOPOLOGY: Final = "dra.kopf.dev/gang-topology"
GANG_MATCH_ATTRIBUTE: Final = "dra.kopf.dev/gang-match-attribute"
KUEUE_GROUP: Final = "kueue.x-k8s.io/pod-group-name"
KUEUE_COUNT: Final = "kueue.x-k8s.io/pod-group-total-count"
LEADER_WORKER_GROUP: Final = "leaderworkerset.sigs.k8s.io/group-key"
MOST_GANG_PODS: Final = 1000
"""Pods of one gang, finished ones included: so many can be looked at whenever one of them changes."""

GANG_MALFORMED: Final = Reason("gang-malformed", "{subject}: {detail}")
GANG_CROWDED: Final = Reason(
    "gang-crowded",
    f"gang {{subject}} has {{detail}} pods, and at most {MOST_GANG_PODS} are supported: delete finished pods, or give "
    "the pods several gang names",
)
GANG_INCOMPLETE: Final = Reason(
    "gang-incomplete", "waits for other pods: gang {subject} has fewer than the {detail} pods that it needs"
)


@dataclass(frozen=True, slots=True)
class Gang:
    """``size`` pods run together, or none.

    ``topology``: the label of which their nodes have the same value. ``attribute``: the device attribute of which all
    their devices have the same value.
    """

    key: str
    """Pods with the same key are one gang. It has the size as well, so pods that disagree are not of one gang."""
    title: str
    """What people call it."""
    size: int
    topology: str = ""
    attribute: str = ""

    @property
    def has_domain(self) -> bool:
        """Whether pods that come later have to be where the others are."""
        return bool(self.topology or self.attribute)


def gang_key(pod: Pod) -> str | None:
    """The gang of a pod; None for a pod without one, and for one whose wish cannot be understood."""
    found = gang_of(pod)
    return found.key if isinstance(found, Gang) else None


def gang_of(pod: Pod) -> Gang | Obstacle | None:
    """The gang of a pod, or what is wrong with its wish for one."""
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    if not labels and not annotations:
        return None
    wish = _said(pod, GANG)
    if wish is not None:
        return _named(pod, wish)
    group = (labels or {}).get(KUEUE_GROUP)
    if group is not None:
        return _sized(pod, f"kueue {group}", group, KUEUE_COUNT, (annotations or {}).get(KUEUE_COUNT))
    for key in (GANG_SIZE, GANG_TOPOLOGY, GANG_MATCH_ATTRIBUTE):
        if _said(pod, key) is not None:
            return Obstacle(GANG_MALFORMED, key, f"the pod names no gang; set {GANG} as well, or remove it")
    return None


def _named(pod: Pod, wish: str) -> Gang | Obstacle:
    size = _said(pod, GANG_SIZE)
    if size is not None:
        return _sized(pod, f"name {wish}", wish, GANG_SIZE, size)
    if not wish.isdecimal():
        return Obstacle(GANG_MALFORMED, GANG, f'"{wish[:80]}" is a name without a size; set {GANG_SIZE} as well')
    group = (pod.metadata.labels or {}).get(LEADER_WORKER_GROUP)
    if group is not None:
        return _sized(pod, f"group {group}", f"of LeaderWorkerSet group {group}", GANG, wish)
    owner = pod.metadata.controller
    if owner is None:
        return Obstacle(GANG_MALFORMED, GANG, f"the pod has no controller; give the gang a name, and set {GANG_SIZE}")
    return _sized(pod, f"owner {owner.uid}", f"of {owner.kind} {owner.name}", GANG, wish)


def _sized(pod: Pod, name: str, title: str, key: str, said: str | None) -> Gang | Obstacle:
    if said is None:
        return Obstacle(GANG_MALFORMED, key, "is missing; set it to the number of pods in the gang")
    if not (said.isascii() and said.isdecimal() and len(said) < 10 and 0 < int(said) <= MOST_GANG_PODS):
        return Obstacle(GANG_MALFORMED, key, f'"{said[:80]}" is not a number of pods; set it to 1 to {MOST_GANG_PODS}')
    topology = _said(pod, GANG_TOPOLOGY)
    if topology == "":
        return Obstacle(GANG_MALFORMED, GANG_TOPOLOGY, "is empty; set it to the key of a node label, or remove it")
    attribute = _said(pod, GANG_MATCH_ATTRIBUTE)
    if attribute is not None and not _is_attribute(attribute):
        problem = f'"{attribute[:80]}" is not a device attribute; name it with its domain, as matchAttribute does'
        return Obstacle(GANG_MALFORMED, GANG_MATCH_ATTRIBUTE, problem)
    key = f"{pod.metadata.namespace}/{name} of {int(said)} {topology or ''}"
    key = f"{key} {attribute}" if attribute else key
    return Gang(key, title, int(said), topology or "", attribute or "")


def _is_attribute(name: str) -> bool:
    return name.count("/") == 1 and not any(fully_qualified_name(name, ""))


def _said(pod: Pod, key: str) -> str | None:
    for values in (pod.metadata.annotations, pod.metadata.labels):
        if values and key in values:
            return values[key]
    return None
