"""The controllers of the cluster: each reacts to changes of the store, all in the server's own loop."""

from .aggregation import AggregationController
from .collector import GarbageCollector
from .daemonsets import DaemonSetController
from .default_roles import ensure_default_roles
from .definitions import DefinitionController
from .deployments import DeploymentController
from .namespaces import NamespaceController, ensure_namespaces
from .podgroups import PodGroupProtection
from .quotas import QuotaController
from .replicasets import ReplicaSetController
from .scheduler import DefaultScheduler

__all__ = [
    "AggregationController",
    "DaemonSetController",
    "DefaultScheduler",
    "DefinitionController",
    "DeploymentController",
    "GarbageCollector",
    "NamespaceController",
    "PodGroupProtection",
    "QuotaController",
    "ReplicaSetController",
    "ensure_default_roles",
    "ensure_namespaces",
]
