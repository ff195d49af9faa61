"""The work: a queue of keys for each controller.

Its names are loaded when they are first used: the settings need the times of controllers, and not what writes.
"""

from typing import TYPE_CHECKING

from dra_api.lazy_face import lazy

if TYPE_CHECKING:
    from .claims.generate import records_claim_of_others
    from .control import Control, ControlOptions
    from .errors import (
        ControllerError,
    )
    from .queue import WorkQueue
    from .settings import (
        NAMES,
        WORKERS,
        BackoffSettings,
        ControllerName,
        OwnControllers,
        PreemptionSettings,
        TimeSettings,
        TimeSlices,
        UnknownController,
        controllers_of,
        names_admission,
        own_controllers,
    )
    from .workers import LogLine, tell
else:
    __getattr__, __dir__ = lazy(__name__)

__all__ = [
    "NAMES",
    "WORKERS",
    "BackoffSettings",
    "Control",
    "ControlOptions",
    "ControllerError",
    "ControllerName",
    "LogLine",
    "OwnControllers",
    "PreemptionSettings",
    "TimeSettings",
    "TimeSlices",
    "UnknownController",
    "WorkQueue",
    "controllers_of",
    "names_admission",
    "own_controllers",
    "records_claim_of_others",
    "tell",
]
