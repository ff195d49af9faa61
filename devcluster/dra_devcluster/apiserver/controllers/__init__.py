"""The controllers of the cluster: each reacts to changes of the store, all in the server's own loop."""

from typing import Any

from . import deletion, jobs, scheduler, worker, workloads

CONTROLLERS: tuple[type[worker.Worker[Any]], ...] = (
    deletion.GarbageCollector,
    deletion.NamespaceController,
    deletion.PodGroupProtection,
    deletion.DefinitionController,
    worker.AggregationController,
    worker.QuotaController,
    workloads.DaemonSetController,
    workloads.DeploymentController,
    workloads.ReplicaSetController,
    jobs.JobController,
    jobs.CronJobController,
    scheduler.DefaultScheduler,
)

__all__ = ["CONTROLLERS"]
