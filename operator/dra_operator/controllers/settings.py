"""What can be set on the controllers: which of them are this operator's, how fast they work, and how long they wait.

======================  ==============================================================================================
``templates``           makes claims from templates, records them in the pod, reserves for pods with a preset node
``release``             drops reservations, takes devices back, deletes generated claims
``placement``           gives the pods of our scheduler name a node and devices
``eviction``            deletes pods whose devices have a ``NoExecute`` taint, reports in DeviceTaintRules
``allocation``          gives devices to pods of other schedulers at our scheduling gate, and to immediate claims
``admission``           answers AdmissionChecks of Kueue; ours only if it is named
======================  ==============================================================================================

kube-controller-manager has templates, release and eviction (from 1.36 on), so that beside one the others are ours. Two
things go with placement whichever controller has the others, since only the one who places a pod can tell: which of two
claims for one entry counts (``repair``), and which claim for extended resources was made in vain (``release``).
Controllers ask when they handle a key, because the answer may change while they work.

All times are in seconds. A *turn* is what one decision may take before others have theirs. A decision that took longer
comes later, and its key then rests for ``rest`` times as long, so that one key gets at most a twentieth of the time:
three seconds a minute. Decisions of up to a tenth of a turn are *cheap*; others are charged to the namespace
(``fairness``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Self, get_args

from dra_operator.cache import Controller
from dra_operator.scheduling.claims import BINDING_TIMEOUT_SECONDS
from dra_operator.scheduling.preemption import PREEMPTION_PATIENCE_SECONDS

ControllerName = Literal["templates", "release", "placement", "eviction", "allocation", "admission"]
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
    admission: bool = False

    @classmethod
    def of(cls, names: Collection[str]) -> Self:
        """Only the named ones are ours. Raises UnknownController."""
        # A misspelt name would silently leave work to nobody.
        if unknown := sorted(set(names) - set(NAMES)):
            raise UnknownController(f"{', '.join(unknown)}: not among {', '.join(NAMES)}")
        return cls(**{name: name in names for name in NAMES})

    def __str__(self) -> str:
        return ", ".join(name for name in NAMES if getattr(self, name)) or "none"


AUTO: Final = "auto"
ADMISSION: Final = "admission"


def controllers_of(text: str) -> frozenset[str] | None:
    """Return the controllers that a comma-separated text names; None for ``auto``. Raises UnknownController.

    ``auto`` does not include ``admission``, which may follow it (``names_admission``).
    """
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    # Together with any other name ``auto`` would mean nothing: it is refused as an unknown one.
    if AUTO in names and names <= {AUTO, ADMISSION}:
        return None
    if not names:
        raise UnknownController("no controller is named")
    OwnControllers.of(names)
    return names


def own_controllers(text: str) -> OwnControllers:
    """Return the controllers of the text before anything is known of the cluster. Raises UnknownController."""
    names = controllers_of(text)
    return OwnControllers(admission=names_admission(text)) if names is None else OwnControllers.of(names)


def names_admission(text: str) -> bool:
    return ADMISSION in (name.strip() for name in text.split(","))


ROUNDING_SECONDS: Final = 0.01
"""A look at a certain time comes so much later: a time that is rounded down would come again and again."""


@dataclass(frozen=True, slots=True)
class BackoffSettings:
    """Before a failed key is tried again: its wait doubles from ``first`` to ``longest`` with each failure in a row.

    The keys of a queue are tried again ``rate`` times a second, after the first ``burst``; the namespaces share that
    (``queue.KeyBackoff``).
    """

    first: float = 0.005
    longest: float = 1000.0
    rate: float = 10.0
    burst: int = 100


@dataclass(frozen=True, slots=True)
class PreemptionSettings:
    """``other_schedulers``: pods end as well that another scheduler has placed.

    ``patience``: so many seconds a victim is waited for before further ones end.
    """

    other_schedulers: bool = False
    patience: float = PREEMPTION_PATIENCE_SECONDS


@dataclass(frozen=True, slots=True)
class TimeSlices:
    """How decisions share the time."""

    turn: float = 0.02
    rest: float = 20.0


WORKERS: Final[Mapping[Controller, int]] = {
    "templates": 20,
    "release": 20,
    "placement": 50,
    "eviction": 8,
    "pod-groups": 4,
    "group-conditions": 4,
    "taint-rules": 1,
    "pool-status": 1,
}
"""Keys of each controller that are worked on at the same time, unless a setting says otherwise."""


@dataclass(frozen=True, slots=True)
class TimeSettings:
    """Everything about time that can be set on the controllers."""

    workers: Mapping[Controller, int] = field(default_factory=lambda: dict(WORKERS))
    """How many keys of a controller are worked on at the same time."""
    retries: BackoffSettings = BackoffSettings()
    placement_retries: BackoffSettings = BackoffSettings(first=0.05, longest=60.0, rate=100.0)
    time_slices: TimeSlices = TimeSlices()
    grace: float = 1.0
    """From seeing our own write on shared drivers to trusting it: what others decided before is written by then."""
    filter_timeout: float = 10.0
    """What the allocator may take for one node; 0: no limit."""
    volume_binding_timeout: float = 600.0
    """From the choice of a node until a claim of a volume that is not bound there counts as failed."""
    preemption_rest: float = 10.0
    """Between two attempts of one pod to make room for itself, and from the start until the first one."""
    unmade_gang_claims: float = 5.0
    """From the first pod of a gang that could be planned until it says for whose claims it waits."""
    silence: float = 4.0
    """From the moment when a pod is put off without a word until it says for what it waits."""
    unmade_claims: float = 30.0
    """The age at which a pod says that it waits for its claims while other pods get theirs: a busy
    kube-controller-manager makes 20 a second."""
    faulty_templates: float = 4.0
    """The age at which it says so where no pod gets any, or a template is missing or too large."""
    late_writes: float = 60.0
    """From a write without an answer until it has no effect any more: what an API server gives a request by default."""
    binding_timeout: float = BINDING_TIMEOUT_SECONDS
    """From the allocation until a device that is not ready counts as failed."""
