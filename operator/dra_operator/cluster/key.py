"""What a reconciler can be asked to look at: a concern and an object (claim-controller.md section 2).

A key says *where* to look, never *what* happened: its handler reads the current view. That is
what makes late, repeated and missing events harmless.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Concern = Literal["pod", "claim", "place", "evict", "rule", "pools"]


class Key(NamedTuple):
    """One entry of the work queue; prints as ``pod:default/train``.

    ``pod`` makes and records the claims of a pod, ``claim`` keeps a claim's reservations honest and gives its
    devices back, ``place`` finds a node and devices for a waiting pod, ``evict`` ends a pod on tainted devices,
    ``rule`` reports in a DeviceTaintRule what it does, ``pools`` answers a ResourcePoolStatusRequest.
    """

    concern: Concern
    object: str

    def __str__(self) -> str:
        return f"{self.concern}:{self.object}"


Keys = tuple[Key, ...]
"""In the order in which they are to be looked at; a key may occur twice."""
NOTHING: Keys = ()
