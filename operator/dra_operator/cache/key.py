"""What a change concerns, as keys of controllers, and where the change came from.

The cache answers each change with keys. A key names a controller and an object, so a queue holds each of them once,
however often it changes. Keys of waiting pods differ in urgency: if a few pods name the changed object, they are looked
at at once; many are looked at in rounds (``Wide``), since most of them find that nothing helps them. Pods that only
freed devices or room may help are looked at only if some of it is free at their turn (``Weak``).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, Literal, NamedTuple

Controller = Literal[
    "templates", "pod-groups", "release", "placement", "group-conditions", "eviction", "taint-rules", "pool-status"
]
"""Who handles a key, as logs, metrics and ``--controllers`` say it."""


class Key(NamedTuple):
    """One entry of the work queue; prints as ``placement:default/train``.

    ``templates`` makes and records the claims of a pod, ``pod-groups`` those of a PodGroup, ``release`` keeps a claim's
    reservations honest and gives its devices back, ``placement`` finds a node and devices for a waiting pod,
    ``group-conditions`` says in a PodGroup whether its pods were placed,
    ``eviction`` ends a pod on tainted devices, ``taint-rules`` reports in a DeviceTaintRule what it does,
    ``pool-status`` answers a ResourcePoolStatusRequest.
    """

    controller: Controller
    object: str

    @property
    def namespace(self) -> str:
        """The namespace of the object; empty if it is in none."""
        namespace, slash, _ = self.object.partition("/")
        return namespace if slash else ""

    def __str__(self) -> str:
        return f"{self.controller}:{self.object}"


class Weak(NamedTuple):
    """A pod that is looked at only because devices or room came free.

    When its turn comes others may have taken them, and then the look would be in vain.
    """

    key: Key


class Wide(NamedTuple):
    """A pod that a change may help as it may many others: such keys are looked at in rounds, however often they are
    wanted."""

    key: Key


Hint = Key | Weak | Wide
"""A key, as urgently as it is to be looked at; a plain key as soon as a worker is free."""
Keys = tuple[Hint, ...]
"""In the order in which they are to be looked at; a key may occur twice."""
NOTHING: Keys = ()


class Source(StrEnum):
    """All of them, each with the file that reads it. Every one may be late, and may repeat what another has brought."""

    LIST = "list"
    """A list of the kind: at the start or when it is served later (``sources.intake``); and by the handlers, when
    a watch has fallen too far behind."""
    WATCH = "watch"
    """An event of a watch, by the handler of its kind: ``sources.handlers``."""
    ANSWER = "answer"
    """The server's answer to a write of the operator: ``kube``."""
    AUDIT = "audit"
    """A list of metadata, which shows what is gone: ``sources.audit``."""
    CONFLICT_CHECK = "conflict check"
    """The list of claims before a pod is bound to devices that another scheduler gives away: ``sources.last_look``."""


FEW_PODS: Final = 8
"""So many pods that name an object are looked at at once whenever it changes."""


def place(pods: Iterable[str]) -> Keys:
    """At once: the change is about the pods themselves."""
    return tuple(Key("placement", pod) for pod in pods)


def place_widely(pods: Iterable[str]) -> Keys:
    """In rounds: the change is one of the cluster, and may help any number of pods."""
    return tuple(Wide(Key("placement", pod)) for pod in pods)


def place_users(pods: Iterable[str]) -> Keys:
    """Pods that name the object that changed: in rounds if they are many, since a tenant may change it all the time."""
    users = list(pods)
    return place(users) if len(users) <= FEW_PODS else place_widely(users)
