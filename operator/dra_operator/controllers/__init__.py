"""The work: a queue of keys for each controller.

Its names are loaded when they are first used: the settings need the times of controllers, and not what writes.
"""

from typing import TYPE_CHECKING

from dra_api.lazy_face import lazy

if TYPE_CHECKING:
    from .claims.other_makers import records_claim_of_others
    from .control import Control
    from .shared.errors import BindingFailed, ControllerError, GenerationFailed, PlacementFailed
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
    "ControllerError",
    "ControllerName",
    "GenerationFailed",
    "Line",
    "OwnControllers",
    "PlacementFailed",
    "PreemptionSettings",
    "TimeSettings",
    "TimeSlices",
    "UnknownController",
    "WorkQueue",
    "controllers_of",
    "records_claim_of_others",
    "tell",
]
