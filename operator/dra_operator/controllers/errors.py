"""Why a key has to be tried again.

::

    ControllerError
    ├── GenerationFailed     a claim could not be made, recorded or reserved for a pod
    ├── ReleaseFailed        whether a consumer still needs its claim cannot be found out
    ├── PlacementFailed      the attempt to place a pod was aborted; nothing was written
    └── BindingFailed        a plan could not be written; what was reserved for it is unreserved
        ├── BindingRefused   because the server refuses or undoes it, which only a person can change
        ├── BoundElsewhere   because another writer gave the pod another node
        └── PodVanished      because the pod was deleted meanwhile; also where nothing was planned
"""

from __future__ import annotations


class ControllerError(Exception):
    """Root of the controllers' own errors; the queue retries the key after its back-off."""


class GenerationFailed(ControllerError):
    """No claim for a pod entry, or no reservation of it."""


class ReleaseFailed(ControllerError):
    """A consumer of the claim is malformed; nothing else would say when it is corrected or gone."""


class PlacementFailed(ControllerError):
    """Whether the pod fits cannot be decided until the input is corrected or time passes.

    ``pause`` is the minimum of seconds until the next attempt (``context.GrowingPauses``).
    """

    def __init__(self, text: str, pause: float = 0.0) -> None:
        super().__init__(text)
        self.pause = pause


class BindingFailed(ControllerError):
    """The server did not accept the plan."""


class BindingRefused(BindingFailed):
    """The server will refuse every repetition: because of a permission, a quota, a webhook, or validation."""


class BoundElsewhere(BindingFailed):
    """The pod has its node, but not the planned one."""


class PodVanished(BindingFailed):
    """The pod is gone, and no longer needs its claims."""
