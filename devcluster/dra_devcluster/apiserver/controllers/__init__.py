"""The controllers of the cluster: each reacts to changes of the store, all in the server's own loop."""

from dra_devcluster.apiserver.controllers.deletion import DefinitionController, PodGroupProtection
from dra_devcluster.apiserver.controllers.jobs import CronJobController, JobController
from dra_devcluster.apiserver.controllers.worker import AggregationController, QuotaController, ensure_default_roles
from dra_devcluster.apiserver.controllers.workloads import DeploymentController, ReplicaSetController

from .deletion import GarbageCollector, NamespaceController, ensure_namespaces
from .scheduler import DefaultScheduler
from .workloads import DaemonSetController

__all__ = [
    "AggregationController",
    "CronJobController",
    "DaemonSetController",
    "DefaultScheduler",
    "DefinitionController",
    "DeploymentController",
    "GarbageCollector",
    "JobController",
    "NamespaceController",
    "PodGroupProtection",
    "QuotaController",
    "ReplicaSetController",
    "ensure_default_roles",
    "ensure_namespaces",
]
