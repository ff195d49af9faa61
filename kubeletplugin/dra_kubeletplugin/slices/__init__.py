"""ResourceSlices: what a driver offers, planned and kept in the API server."""

from .model import Owner, Pool, Resources, Slice, attribute, counter_set, device, marked_for
from .pool_sync import PoolCounters, check_resources
from .publisher import SlicePublisher
from .writer import Statistics

__all__ = [
    "Owner",
    "Pool",
    "PoolCounters",
    "Resources",
    "Slice",
    "SlicePublisher",
    "Statistics",
    "attribute",
    "check_resources",
    "counter_set",
    "device",
    "marked_for",
]
