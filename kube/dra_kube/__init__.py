"""Talking to a Kubernetes API server: connection settings, requests, watches, errors.

async with Api(connection()) as api:
    claim = await api.get(RESOURCE_CLAIMS, "gpu", namespace="default")
"""

from .api import Api, Object, PatchKind, TypedList
from .connection import Connection, connection, contexts, namespace_of
from .election import Election, LeaseLost, NotLeading, Timing
from .errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    ConnectionSettingsError,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    NotFound,
    NotSent,
    NotServed,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from .lease import LeaseLock
from .resource import (
    CONFIG_MAPS,
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_POOL_STATUS_REQUESTS,
    RESOURCE_SLICES,
    SECRETS,
    Resource,
)
from .sending import Guard, unguarded
from .transport import Observe, unobserved
from .watch import WatchEvent

__all__ = [
    "CONFIG_MAPS",
    "DEVICE_CLASSES",
    "DEVICE_TAINT_RULES",
    "EVENTS",
    "LEASES",
    "NAMESPACES",
    "NODES",
    "PODS",
    "RESOURCE_CLAIMS",
    "RESOURCE_CLAIM_TEMPLATES",
    "RESOURCE_POOL_STATUS_REQUESTS",
    "RESOURCE_SLICES",
    "SECRETS",
    "AlreadyExists",
    "Api",
    "ApiError",
    "BadRequest",
    "Conflict",
    "Connection",
    "ConnectionSettingsError",
    "Election",
    "Forbidden",
    "Gone",
    "Guard",
    "Invalid",
    "KubeError",
    "LeaseLock",
    "LeaseLost",
    "NotFound",
    "NotLeading",
    "NotSent",
    "NotServed",
    "Object",
    "Observe",
    "PatchKind",
    "Resource",
    "ServerError",
    "Timing",
    "TooManyRequests",
    "TypedList",
    "Unauthorized",
    "Unreachable",
    "WatchEvent",
    "connection",
    "contexts",
    "namespace_of",
    "unguarded",
    "unobserved",
]
