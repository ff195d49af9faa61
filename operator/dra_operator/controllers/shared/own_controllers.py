"""Which controllers are this operator's, and which another controller of the cluster takes care of.

======================  ==============================================================================================
``templates``           makes claims from templates, records them in the pod, reserves for pods with a preset node
``release``             drops reservations, takes devices back, deletes generated claims
``placement``           gives the pods of our scheduler name a node and devices
``eviction``            deletes pods whose devices have a ``NoExecute`` taint, reports in DeviceTaintRules
``allocation``          gives devices to pods of other schedulers at our scheduling gate, and to immediate claims
======================  ==============================================================================================

kube-controller-manager has templates, release and eviction (from 1.36 on), so that beside one the others are ours. Two
things go with placement whichever controller has the others, since only the one who places a pod can tell: which of two
claims for one entry counts (``repair``), and which claim for extended resources was made in vain (``release``).

Controllers ask when they handle a key, because the answer may change while they work.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Literal, Self, get_args

ControllerName = Literal["templates", "release", "placement", "eviction", "allocation"]
NAMES: Final[tuple[ControllerName, ...]] = get_args(ControllerName)


class UnknownController(ValueError):
    """A name that is none of ``NAMES``."""


@dataclass(slots=True)
class OwnControllers:
    """Whether each one is ours, now."""

    templates: bool = True
    release: bool = True
    placement: bool = True
    eviction: bool = True
    allocation: bool = True

    @classmethod
    def of(cls, names: Collection[str]) -> Self:
        """Only the named ones are ours. Raises UnknownController."""
        if unknown := sorted(set(names) - set(NAMES)):
            raise UnknownController(f"{', '.join(unknown)}: not among {', '.join(NAMES)}")
        return cls(**{name: name in names for name in NAMES})

    def __str__(self) -> str:
        return ", ".join(name for name in NAMES if getattr(self, name)) or "none"


def controllers_of(text: str) -> frozenset[str] | None:
    """The controllers that a comma-separated text names; None for ``auto``. Raises UnknownController."""
    if text == "auto":
        return None
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    OwnControllers.of(names)
    return names
