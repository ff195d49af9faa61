"""What a controller can be asked to look at: its name and an object (claim-controller.md section 2).

A key says *where* to look, never *what* happened: its handler reads the current cache. That is
what makes late, repeated and missing events harmless.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

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


class WeakKey(Key):
    """The same entry, of a pod that is looked at only because devices or room came free.

    When its turn comes others may have taken them, and then the look would be in vain. Equal to the key itself: a queue
    has one entry for both.
    """

    __slots__ = ()


class WideKey(Key):
    """The same entry, of a pod that a change may help as it may many others: a queue has such keys looked at in rounds,
    however often they are wanted. Equal to the key itself.
    """

    __slots__ = ()


Keys = tuple[Key, ...]
"""In the order in which they are to be looked at; a key may occur twice."""
NOTHING: Keys = ()
