"""The cells of each kind, in the order of its columns in `schema/table-columns.json`.

A cell function gets the object and the time. It must not fail for any object that the server accepts.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from dra_devcluster.apiserver.tables.cluster import (
    attachment_cells,
    claim_cells,
    cron_job_cells,
    csi_node_cells,
    daemon_set_cells,
    deployment_cells,
    disruption_budget_cells,
    job_cells,
    lease_cells,
    policy_binding_cells,
    policy_cells,
    pool_status_cells,
    priority_class_cells,
    replica_set_cells,
    role_binding_cells,
    slice_cells,
    stateful_set_cells,
    storage_class_cells,
    taint_rule_cells,
)

from .cluster import (
    data_size,
    event_cells,
    node_cells,
    quota_cells,
    service_cells,
    volume_cells,
    volume_claim_cells,
)
from .parts import Json, created, name, selector_text, spec_of, status_of
from .pods import pod_cells

Cells = Callable[[Json, datetime], list[Any]]


def aged(obj: Json, now: datetime) -> list[Any]:
    return [name(obj), created(obj, now)]


def dated(obj: Json, now: datetime) -> list[Any]:
    """Kinds without columns of their own: name and creation time."""
    return [name(obj), obj["metadata"].get("creationTimestamp")]


CELLS: dict[str, Cells] = {
    "/pods": pod_cells,
    "/nodes": node_cells,
    "/namespaces": lambda obj, now: [name(obj), status_of(obj).get("phase", ""), created(obj, now)],
    "/events": event_cells,
    "events.k8s.io/events": event_cells,
    "/configmaps": lambda obj, now: [name(obj), data_size(obj), created(obj, now)],
    "/secrets": lambda obj, now: [name(obj), obj.get("type", ""), data_size(obj), created(obj, now)],
    "/serviceaccounts": aged,
    "/services": service_cells,
    "/persistentvolumes": volume_cells,
    "/persistentvolumeclaims": volume_claim_cells,
    "/resourcequotas": quota_cells,
    "apps/deployments": deployment_cells,
    "apps/replicasets": replica_set_cells,
    "apps/statefulsets": stateful_set_cells,
    "apps/daemonsets": daemon_set_cells,
    "batch/cronjobs": cron_job_cells,
    "batch/jobs": job_cells,
    "coordination.k8s.io/leases": lease_cells,
    "scheduling.k8s.io/priorityclasses": priority_class_cells,
    "policy/poddisruptionbudgets": disruption_budget_cells,
    "storage.k8s.io/storageclasses": storage_class_cells,
    "storage.k8s.io/csinodes": csi_node_cells,
    "storage.k8s.io/volumeattachments": attachment_cells,
    "networking.k8s.io/networkpolicies": lambda obj, now: [
        name(obj),
        selector_text(spec_of(obj).get("podSelector")),
        created(obj, now),
    ],
    "rbac.authorization.k8s.io/rolebindings": role_binding_cells,
    "rbac.authorization.k8s.io/clusterrolebindings": role_binding_cells,
    "admissionregistration.k8s.io/validatingadmissionpolicies": policy_cells,
    "admissionregistration.k8s.io/validatingadmissionpolicybindings": policy_binding_cells,
    "resource.k8s.io/resourceclaims": claim_cells,
    "resource.k8s.io/resourceclaimtemplates": aged,
    "resource.k8s.io/deviceclasses": aged,
    "resource.k8s.io/resourceslices": slice_cells,
    "resource.k8s.io/devicetaintrules": taint_rule_cells,
    "resource.k8s.io/resourcepoolstatusrequests": pool_status_cells,
}
