"""The controllers of the cluster: each reacts to changes of the store, all in the server's own loop."""

from dra_devcluster.apiserver.controllers.default_roles import AggregationController
from dra_devcluster.apiserver.controllers.namespaces import DefinitionController
from dra_devcluster.apiserver.controllers.workload import DeploymentController, ReplicaSetController

from .collector import GarbageCollector
from .daemonsets import DaemonSetController
from .default_roles import ensure_default_roles
from .namespaces import NamespaceController, ensure_namespaces
from .podgroups import PodGroupProtection
from .quotas import QuotaController
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
