"""The work: a queue of keys, and one reconciler per concern."""

from .concerns import NAMES, ConcernName, Concerns, UnknownConcern, concerns_of
from .control import Control
from .errors import CommitFailed, GenerationFailed, PlacementFailed, ReconcileError
from .logbook import Line, tell
from .pace import Pace, Turns, Waits
from .queue import WorkQueue

__all__ = [
    "NAMES",
    "CommitFailed",
    "ConcernName",
    "Concerns",
    "Control",
    "GenerationFailed",
    "Line",
    "Pace",
    "PlacementFailed",
    "ReconcileError",
    "Turns",
    "UnknownConcern",
    "Waits",
    "WorkQueue",
    "concerns_of",
    "tell",
]
