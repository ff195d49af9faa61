"""The rules of the kinds that need some; all others follow `Kind`."""

from dra_devcluster.apiserver.registry import OF_WORKLOADS
from dra_devcluster.apiserver.structure import Resource

from .administration import BindingKind, CustomKind, DefinitionKind, PolicyBindingKind, PolicyKind, RoleKind
from .base import Kind, Write
from .core import (
    Budgets,
    CoreEvents,
    CreatedByUpdate,
    Generational,
    Keyed,
    Leases,
    NamespaceKind,
    NewEvents,
    Nodes,
    PersistentVolumeClaims,
    PersistentVolumes,
    PriorityClasses,
    ReplicationControllers,
    ReturnedWhenDeleted,
    Secrets,
    Services,
    StorageClasses,
)
from .dra import DraKind
from .pod import PodKind
from .workloads import CronJobs, DaemonSets, Deployments, Jobs, ReplicaSets, StatefulSets

_KINDS: dict[str, dict[str, type[Kind]]] = {
    "": {
        "configmaps": Keyed,
        "endpoints": CreatedByUpdate,
        "events": CoreEvents,
        "limitranges": CreatedByUpdate,
        "namespaces": NamespaceKind,
        "nodes": Nodes,
        "persistentvolumeclaims": PersistentVolumeClaims,
        "persistentvolumes": PersistentVolumes,
        "pods": PodKind,
        "podtemplates": ReturnedWhenDeleted,
        "replicationcontrollers": ReplicationControllers,
        "resourcequotas": ReturnedWhenDeleted,
        "secrets": Secrets,
        "serviceaccounts": ReturnedWhenDeleted,
        "services": Services,
    },
    "admissionregistration.k8s.io": {
        "mutatingadmissionpolicies": Generational,
        "mutatingadmissionpolicybindings": Generational,
        "validatingadmissionpolicies": PolicyKind,
        "validatingadmissionpolicybindings": PolicyBindingKind,
    },
    "apiextensions.k8s.io": {"customresourcedefinitions": DefinitionKind},
    "apps": {
        "daemonsets": DaemonSets,
        "deployments": Deployments,
        "replicasets": ReplicaSets,
        "statefulsets": StatefulSets,
    },
    "batch": {"cronjobs": CronJobs, "jobs": Jobs},
    "coordination.k8s.io": {"leases": Leases},
    "events.k8s.io": {"events": NewEvents},
    "networking.k8s.io": {
        "ingresses": Generational,
        "ingressclasses": Generational,
        "networkpolicies": Generational,
    },
    "policy": {"poddisruptionbudgets": Budgets},
    "rbac.authorization.k8s.io": {
        "clusterrolebindings": BindingKind,
        "clusterroles": RoleKind,
        "rolebindings": BindingKind,
        "roles": RoleKind,
    },
    "scheduling.k8s.io": {"priorityclasses": PriorityClasses},
    "storage.k8s.io": {"storageclasses": StorageClasses},
}


def kind_of(resource: Resource) -> Kind:
    """The rules for a resource."""
    if resource.definition is not None:
        return CustomKind(resource)
    if resource.group == "resource.k8s.io" or (resource.group, resource.plural) in OF_WORKLOADS:
        return DraKind(resource.plural)
    return _KINDS.get(resource.group, {}).get(resource.plural, Kind)()


__all__ = ["Kind", "Write", "kind_of"]
