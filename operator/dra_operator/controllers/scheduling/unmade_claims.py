"""A pod whose claims are not made is not tried, as with kube-scheduler (SC-01). If that lasts, it says so.

Claims are made within a moment. Where a template is missing or too large, or its claims are refused, an event of the
pod says why; but an event is gone after an hour, and what makes the claims may have ended. So an older pod says for
what it waits: soon where its template is known to be at fault. A template is often applied a moment after its pods.
"""

from __future__ import annotations

from datetime import datetime

from dra_api.core import Pod
from dra_api.values.times import parse_time

from dra_operator.cache import Cluster
from dra_operator.controllers.settings import NAMES, OwnControllers
from dra_operator.scheduling.state import Obstacle, size_refusal


def age(pod: Pod, now: datetime) -> float:
    """The seconds since the pod was created; none for one without a time."""
    created = parse_time(pod.metadata.creation_timestamp)
    return (now - created).total_seconds() if created is not None else 0.0


def awaited_claim(obstacle: Obstacle, controllers: OwnControllers, *, are_made: bool) -> str:
    """Return for what the pod waits where nothing is known to be wrong.

    ``are_made``: a claim of another pod was made since this process began, so whoever makes them is at work.
    """
    events = "events FailedResourceClaimCreation of the pod say why"
    if controllers.templates or are_made:
        return f"{obstacle.text}: if that lasts, {events}"
    ours = ",".join(name for name in NAMES if name in ("templates", "release") or getattr(controllers, name))
    return (
        f"{obstacle.text}: claims are left to kube-controller-manager, which has made none for any pod since this "
        f"operator started. If no {events}, its resourceclaim-controller does not run: take -resourceclaim-controller "
        f"out of its --controllers, or start dra-operator with --controllers {ours}"
    )


def template_fault(cluster: Cluster, pod: Pod, obstacle: Obstacle) -> str | None:
    """For what the pod waits, and what to do about it, if a template is missing or too large. ``obstacle`` is about an
    entry, or about the claim of one."""
    recorded = pod.status.resource_claim_statuses or ()
    meant = {obstacle.subject, *(it.name for it in recorded if it.resource_claim_name == obstacle.subject)}
    for entry in pod.spec.resource_claims or ():
        name = entry.resource_claim_template_name
        if entry.name not in meant or not name:
            continue
        template = cluster.templates.get(f"{pod.metadata.namespace}/{name}")
        if template is None:
            return (
                f'waits for a claim of entry "{entry.name}": resourceclaimtemplate "{name}" not found: create '
                f"it, or correct resourceClaimTemplateName"
            )
        if (size := template.bytes_of_spec) is not None:
            return f'waits for a claim of entry "{entry.name}": resourceclaimtemplate "{name}" {size_refusal(size)}'
    return None
