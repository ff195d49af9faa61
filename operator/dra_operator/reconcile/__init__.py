"""The work: a queue of keys, and one reconciler per concern."""

from .concerns import Concerns, UnknownConcern, concerns_of
from .control import Control, timestamp
from .errors import CommitFailed, GenerationFailed, PlacementFailed, ReconcileError
from .queue import WorkQueue

__all__ = [
    "CommitFailed",
    "Concerns",
    "Control",
    "GenerationFailed",
    "PlacementFailed",
    "ReconcileError",
    "UnknownConcern",
    "WorkQueue",
    "concerns_of",
    "timestamp",
]
