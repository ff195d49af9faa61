"""Reading and writing the API: a small protocol over the client, conflict retries, the writes that controllers make."""

from .claims import ClaimWriter
from .client import (
    RIGHTS,
    ClaimChanged,
    ClaimStripped,
    Client,
    ObjectChanged,
    PodChanged,
    PodGroupChanged,
    may_have_happened,
    rights_for,
    with_remedy,
)
from .pods import DEVICE_TAINT, Disruption, PodWriter, Unanswered
from .writers import EventReason, EventRecorder, PodGroupWriter, PoolRequestWriter, RuleWriter, VolumeWriter

__all__ = [
    "DEVICE_TAINT",
    "RIGHTS",
    "ClaimChanged",
    "ClaimStripped",
    "ClaimWriter",
    "Client",
    "Disruption",
    "EventReason",
    "EventRecorder",
    "ObjectChanged",
    "PodChanged",
    "PodGroupChanged",
    "PodGroupWriter",
    "PodWriter",
    "PoolRequestWriter",
    "RuleWriter",
    "Unanswered",
    "VolumeWriter",
    "may_have_happened",
    "rights_for",
    "with_remedy",
]
