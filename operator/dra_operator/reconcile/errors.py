"""Why a key has to be tried again.

::

    ReconcileError
    ├── GenerationFailed     a claim could not be made or recorded for a pod
    ├── PlacementFailed      the attempt to place a pod was aborted by bad input; nothing was written
    └── CommitFailed         a plan could not be written; what was taken for it is given back
        └── ClaimRefused     because the server refuses the claim for the pod's extended resources
"""


class ReconcileError(Exception):
    """Root of what reconcilers raise themselves; the queue tries the key again after its back-off."""


class GenerationFailed(ReconcileError):
    """No claim for a pod entry; the text goes into an event on the pod."""


class PlacementFailed(ReconcileError):
    """Nobody can say where the pod fits until the input is mended or time passes."""


class CommitFailed(ReconcileError):
    """The server did not take what was planned."""


class ClaimRefused(CommitFailed):
    """No claim for the pod's extended resources (a quota, for instance): its owner has to be told."""
