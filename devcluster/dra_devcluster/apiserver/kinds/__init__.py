"""The rules of the kinds that need some; all others follow `Kind`."""

from dra_devcluster.apiserver.kinds.definitions import CustomKind
from dra_devcluster.apiserver.kinds.simple import STORAGE, NamespaceKind
from dra_devcluster.apiserver.kinds.workloads import CronJobs, Jobs
from dra_devcluster.apiserver.structure import Resource

from .admission import ADMISSION
from .base import Kind, Write
from .definitions import DefinitionKind
from .dra import OF_SCHEDULING, DraKind
from .events import CoreEvents, NewEvents
from .pod import PodKind
from .rbac import RBAC
from .simple import SIMPLE
from .workloads import DaemonSets, Deployments, ReplicaSets, StatefulSets

_KINDS: dict[tuple[str, str], type[Kind]] = {
    ("", "events"): CoreEvents,
    ("events.k8s.io", "events"): NewEvents,
    ("", "namespaces"): NamespaceKind,
    ("", "pods"): PodKind,
    ("apiextensions.k8s.io", "customresourcedefinitions"): DefinitionKind,
    ("apps", "daemonsets"): DaemonSets,
    ("apps", "deployments"): Deployments,
    ("apps", "replicasets"): ReplicaSets,
    ("apps", "statefulsets"): StatefulSets,
    ("batch", "cronjobs"): CronJobs,
    ("batch", "jobs"): Jobs,
    **ADMISSION,
    **RBAC,
    **SIMPLE,
    **STORAGE,
}
_OF_SCHEDULING = {("scheduling.k8s.io", plural) for plural in OF_SCHEDULING}


def kind_of(resource: Resource) -> Kind:
    """The rules for a resource."""
    if resource.definition is not None:
        return CustomKind(resource)
    if resource.group == "resource.k8s.io" or (resource.group, resource.plural) in _OF_SCHEDULING:
        return DraKind(resource.plural)
    return _KINDS.get((resource.group, resource.plural), Kind)()


__all__ = ["Kind", "Write", "kind_of"]
