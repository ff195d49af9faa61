"""The work: a queue of keys, and one reconciler per concern."""

from .control import Control, timestamp
from .errors import CommitFailed, GenerationFailed, PlacementFailed, ReconcileError
from .queue import WorkQueue

__all__ = [
    "CommitFailed",
    "Control",
    "GenerationFailed",
    "PlacementFailed",
    "ReconcileError",
    "WorkQueue",
    "timestamp",
]
