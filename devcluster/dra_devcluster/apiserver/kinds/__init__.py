"""The rules of the kinds that need some; all others follow `Kind`."""

from dra_devcluster.apiserver.registry import OF_WORKLOADS
from dra_devcluster.apiserver.structure import Resource

from . import administration, core, workloads
from .base import Kind, Write, like, selectable_by
from .dra_rules import DraKind
from .pod import PodKind

_KINDS: dict[str, dict[str, type[Kind]]] = {
    "": {
        "configmaps": core.Keyed,
        "endpoints": like(Kind, created_by_update=True),
        "events": core.CoreEvents,
        "limitranges": like(Kind, created_by_update=True),
        "namespaces": core.NamespaceKind,
        "nodes": core.Nodes,
        "persistentvolumeclaims": core.PersistentVolumeClaims,
        "persistentvolumes": core.PersistentVolumes,
        "pods": PodKind,
        "podtemplates": like(Kind, returns_deleted=True),
        "replicationcontrollers": like(core.Generational, selectable=selectable_by("status.replicas")),
        "resourcequotas": like(Kind, returns_deleted=True),
        "secrets": core.Secrets,
        "serviceaccounts": like(Kind, returns_deleted=True),
        "services": core.Services,
    },
    "admissionregistration.k8s.io": {
        "mutatingadmissionpolicies": core.Generational,
        "mutatingadmissionpolicybindings": core.Generational,
        "validatingadmissionpolicies": administration.PolicyKind,
        "validatingadmissionpolicybindings": administration.PolicyBindingKind,
    },
    "apiextensions.k8s.io": {"customresourcedefinitions": administration.DefinitionKind},
    "apps": {
        "daemonsets": workloads.DaemonSets,
        "deployments": workloads.Deployments,
        "replicasets": workloads.ReplicaSets,
        "statefulsets": workloads.StatefulSets,
    },
    "batch": {"cronjobs": workloads.CronJobs, "jobs": workloads.Jobs},
    "coordination.k8s.io": {"leases": core.Leases},
    "events.k8s.io": {"events": core.NewEvents},
    "networking.k8s.io": {
        "ingresses": core.Generational,
        "ingressclasses": core.Generational,
        "networkpolicies": core.Generational,
    },
    "policy": {"poddisruptionbudgets": core.Budgets},
    "rbac.authorization.k8s.io": {
        "clusterrolebindings": administration.BindingKind,
        "clusterroles": administration.RoleKind,
        "rolebindings": administration.BindingKind,
        "roles": administration.RoleKind,
    },
    "scheduling.k8s.io": {
        "priorityclasses": like(core.Generational, defaults={"preemptionPolicy": "PreemptLowerPriority"})
    },
    "storage.k8s.io": {"storageclasses": core.StorageClasses},
}


def kind_of(resource: Resource) -> Kind:
    if resource.definition is not None:
        return administration.CustomKind(resource)
    if resource.group == "resource.k8s.io" or (resource.group, resource.plural) in OF_WORKLOADS:
        return DraKind(resource.plural)
    return _KINDS.get(resource.group, {}).get(resource.plural, Kind)()


__all__ = ["Kind", "Write", "kind_of"]
