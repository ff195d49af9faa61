"""Field ownership: upkeep of managedFields, and server-side apply, as pure functions.

    track_update(live, new, schema, by=Writer(...), now=...) -> list        managedFields after an ordinary write
    apply_patch(live, config, schema, by=Writer(...), now=..., force=...)   the object after a server-side apply

Both leave their arguments alone. `live` is None when the object is created. Neither defaults nor validates: the
server does that with the result, as for any other write.

Exceptions: ApplyConflict (409; carries the causes and the real server's text) and ApplyRefused (400).
"""

from .apply import ApplyConflict, ApplyRefused, apply_patch
from .managers import Writer, track_update

__all__ = ["ApplyConflict", "ApplyRefused", "Writer", "apply_patch", "track_update"]
