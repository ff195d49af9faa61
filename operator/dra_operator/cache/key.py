"""What a change concerns, as keys of controllers; where the change came from; and what wakes a waiting pod.

The cache answers each change with keys. A key names a controller and an object, so a queue holds each of them once,
however often it changes. Keys of waiting pods differ in urgency: if a few pods name the changed object, they are looked
at at once; many are looked at in rounds (``Wide``), since most of them find that nothing helps them. Pods that only
freed devices or room may help are looked at only if some of it is free at their turn (``Weak``).

A tenant may have any number of objects that hang on one: users of a claim, pods that wait for a class. A change that
concerns more than ``HINTS_AT_ONCE`` of them names none, but a ``Crowd``: whom it concerns is found later, in parts, and
once for all changes that are equal. Between the parts the event loop is free for others.

``WakeConditions`` say what can help a waiting pod, apart from a change of the pod, of its claims or of their classes
(SC-02). While an attempt is under way, everything can: it may have looked already at what changes now. When it ends,
the answer says what is worth waiting for. So no change is missed, and a change that cannot help wakes no pod.
``Hinted`` files the pods that wait for changes of other pods by the kind of change (kube-scheduler's queueing hints).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from enum import StrEnum
from typing import Final, Literal, NamedTuple

from dra_api.core import Pod

from dra_operator.cache.index import Index
from dra_operator.scheduling import ANY_DRIVER
from dra_operator.scheduling.claims import CLAIM_UNMADE
from dra_operator.scheduling.rules import ClusterEvent
from dra_operator.scheduling.rules import Hint as QueueingHint
from dra_operator.scheduling.state import Anchors, PodsByNode

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


class Crowd(NamedTuple):
    """Very many objects that a change concerns.

    ``hints`` is asked about each of ``objects`` when its turn comes, so it reads the state of that time. That is right
    where any later state calls for the key as well. What a pod waits for changes with its attempts: ``are_waiting``
    says that pods which are being tried have to be asked at once.
    """

    about: tuple[object, ...]
    """Equal for changes that concern the same objects in the same way."""
    namespace: str
    """Whose objects they are; namespaces take turns. Empty for a change of the cluster."""
    objects: Callable[[], Iterable[str]]
    hints: Callable[[str], Iterable[Key | Weak | Wide]]
    are_waiting: bool = False


Hint = Key | Weak | Wide | Crowd
"""A key, as urgently as it is to be looked at; a plain key as soon as a worker is free."""
Keys = tuple[Hint, ...]
"""In the order in which they are to be looked at; a key may occur twice."""
NOTHING: Keys = ()
HINTS_AT_ONCE: Final = 200
"""Objects that are asked about and queued in one step of the event loop: a millisecond or two."""


class Source(StrEnum):
    """All of them, each with the file that reads it. Every one may be late, and may repeat what another has brought."""

    LIST = "list"
    """A list of the kind: at the start or when it is served later (``sources.watches``); and by the handlers, when
    a watch has fallen too far behind."""
    WATCH = "watch"
    """An event of a watch, by the handler of its kind: ``sources.handlers``."""
    ANSWER = "answer"
    """The server's answer to a write of the operator: ``kube``."""
    AUDIT = "audit"
    """A list of metadata, which shows what is gone: ``sources.audit``."""
    CONFLICT_CHECK = "conflict check"
    """The list of claims before a pod is bound to devices that another scheduler gives away: ``sources.audit``."""


FEW_PODS: Final = 8
"""So many pods that name an object are looked at at once whenever it changes."""


def place(pods: Iterable[str]) -> Keys:
    """At once: the change is about the pods themselves."""
    return tuple(Key("placement", pod) for pod in pods)


def place_users(pods: Collection[str]) -> Keys:
    """Pods that name the object that changed: in rounds if they are many, since a tenant may change it all the time."""
    # A change that a few pods named is about them; one that thousands name could be made by any of their owners all
    # day.
    return place(pods) if len(pods) <= FEW_PODS else tuple(Wide(Key("placement", pod)) for pod in pods)


class TimesFreed(NamedTuple):
    """How often something came free so far."""

    devices: int
    room: int


class WakeConditions(NamedTuple):
    """Which changes of the cluster wake the pod."""

    nodes: bool
    """A node came, or takes other pods than before."""
    room: bool
    """Another pod left its cpu, memory or the like."""
    devices: bool
    """Devices were published or changed."""
    freed: frozenset[str]
    """Devices of one of these drivers were freed; ``ANY_DRIVER`` stands for all drivers."""
    leftovers: bool
    """A claim that an earlier attempt had left over is gone."""
    volumes: bool
    """Volumes or their classes changed."""
    tried_at: TimesFreed | None = None
    """When the last attempt began, or when the last look found that one would be in vain; None: that is not known."""
    hints: frozenset[QueueingHint] = frozenset()
    """What matters to rules between pods, see ``Hinted``."""
    reason: str = "queued"
    """Why it waits, in a word that fits a metric's label."""


EVERYTHING = WakeConditions(
    nodes=True, room=True, devices=True, freed=frozenset({ANY_DRIVER}), leftovers=False, volumes=True
)
"""An attempt that meets a leftover ends at once, so no pod waits for one to go while its attempt is under way."""
NONE = WakeConditions(nodes=False, room=False, devices=False, freed=frozenset(), leftovers=False, volumes=False)
UNMADE = NONE._replace(reason=CLAIM_UNMADE.name)
ANOTHER_WRITE = EVERYTHING._replace(reason="another-write")
WITH_GANG = NONE._replace(reason="with-gang")
BEING_BOUND = NONE._replace(reason="being-bound")
FAILED = NONE._replace(reason="error")
GETTING_READY = NONE._replace(nodes=True, reason="getting-ready")
VOLUMES_PENDING = NONE._replace(nodes=True, volumes=True, reason="volumes-pending")
LEFTOVERS = NONE._replace(leftovers=True)


class Hinted:
    """Keys of waiting pods under their hints. A change is compared with the hints that its pods' labels lead to."""

    def __init__(self) -> None:
        self._waiting: Index[QueueingHint] = Index()
        self._anchors: Anchors[QueueingHint] = Anchors()

    def file(self, key: str, hints: frozenset[QueueingHint]) -> None:
        """The pod waits for exactly these hints; none: forget it."""
        # Called for each attempt, and nearly no pod has such hints.
        if not hints and key not in self._waiting:
            return
        before = self._waiting.values_of(key)
        self._waiting.file(key, hints)
        for hint in hints - before:
            if not isinstance(hint, ClusterEvent):
                self._anchors.add(hint.anchor, hint)
        for hint in before - hints:
            # Other pods may wait for the same.
            if not isinstance(hint, ClusterEvent) and not self._waiting.keys(hint):
                self._anchors.discard(hint.anchor, hint)

    def helped_by(self, before: Pod | None, after: Pod | None, pods_by_node: PodsByNode) -> Iterator[str]:
        """The waiting pods helped by a pod on a node that was ``before`` and is ``after`` now; None: it is on no
        node."""
        # Nearly no pod waits for changes of other pods.
        if not self._waiting.values():
            return
        labels = {id(pod): pod.metadata.labels for pod in (before, after) if pod is not None}.values()
        # By both sets of labels: a pod that loses a label may help as well as one that gets it.
        near = dict.fromkeys(hint for of_pod in labels for hint in self._anchors.near(of_pod))
        for hint in near:
            if not isinstance(hint, ClusterEvent) and hint.helped_by(before, after, pods_by_node):
                yield from self._waiting.keys(hint)
