"""Reading and writing the API: a small protocol over the client, conflict retries, the writes that controllers make."""

from .answers import RIGHTS, may_have_happened, with_remedy
from .changed import ClaimChanged, ClaimStripped, ObjectChanged, PodChanged, PodGroupChanged
from .claims import ClaimWriter
from .client import Client
from .event_reasons import EventReason
from .events import EventRecorder
from .pod_groups import PodGroupWriter
from .pods import DEVICE_TAINT, Disruption, PodWriter, Unanswered
from .pool_requests import PoolRequestWriter
from .rewrite import rewrite
from .taint_rules import RuleWriter
from .volumes import VolumeWriter

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
    "rewrite",
    "with_remedy",
]
