"""The work: a queue of keys, and one reconciler per controller.

Its names are loaded when they are first used: the settings need the times of reconcilers, and not what writes.
"""

from typing import TYPE_CHECKING

from dra_api.lazy_face import lazy

if TYPE_CHECKING:
    from .claims.other_makers import records_foreign_claim
    from .control import Control
    from .shared.errors import BindingFailed, GenerationFailed, PlacementFailed, ReconcileError
    from .shared.logbook import Line, tell
    from .shared.own_controllers import NAMES, ControllerName, OwnControllers, UnknownController, controllers_of
    from .shared.timing import BackoffSettings, PreemptionSettings, TimeSettings, TimeSlices
    from .work.queue import WorkQueue
else:
    __getattr__, __dir__ = lazy(__name__)

__all__ = [
    "NAMES",
    "BackoffSettings",
    "BindingFailed",
    "Control",
    "ControllerName",
    "GenerationFailed",
    "Line",
    "OwnControllers",
    "PlacementFailed",
    "PreemptionSettings",
    "ReconcileError",
    "TimeSettings",
    "TimeSlices",
    "UnknownController",
    "WorkQueue",
    "controllers_of",
    "records_foreign_claim",
    "tell",
]
