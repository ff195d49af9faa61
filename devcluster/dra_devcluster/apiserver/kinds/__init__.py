"""The rules of the kinds that need some; all others follow `Kind`."""

from dra_devcluster.apiserver.registry import OF_WORKLOADS
from dra_devcluster.apiserver.structure import Resource

from . import administration, core, workloads
from .base import Kind, Write
from .dra import DraKind
from .pod import PodKind

_KINDS: dict[str, dict[str, type[Kind]]] = {
    "": {
        "configmaps": core.Keyed,
        "endpoints": core.CreatedByUpdate,
        "events": core.CoreEvents,
        "limitranges": core.CreatedByUpdate,
        "namespaces": core.NamespaceKind,
        "nodes": core.Nodes,
        "persistentvolumeclaims": core.PersistentVolumeClaims,
        "persistentvolumes": core.PersistentVolumes,
        "pods": PodKind,
        "podtemplates": core.ReturnedWhenDeleted,
        "replicationcontrollers": core.ReplicationControllers,
        "resourcequotas": core.ReturnedWhenDeleted,
        "secrets": core.Secrets,
        "serviceaccounts": core.ReturnedWhenDeleted,
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
    "scheduling.k8s.io": {"priorityclasses": core.PriorityClasses},
    "storage.k8s.io": {"storageclasses": core.StorageClasses},
}


def kind_of(resource: Resource) -> Kind:
    """The rules for a resource."""
    if resource.definition is not None:
        return administration.CustomKind(resource)
    if resource.group == "resource.k8s.io" or (resource.group, resource.plural) in OF_WORKLOADS:
        return DraKind(resource.plural)
    return _KINDS.get(resource.group, {}).get(resource.plural, Kind)()


__all__ = ["Kind", "Write", "kind_of"]
