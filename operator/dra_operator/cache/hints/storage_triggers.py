"""Which waiting pods a change of storage concerns, and the end of a pod that used it.

A pod is woken by its own claims whatever it waits for. Other kinds (volumes, classes) wake the pods whose last attempt
met an obstacle in their volumes, or was refused by nodes although they have some.
"""

from __future__ import annotations

from typing import Any

from dra_api.core import Pod
from dra_api.meta import Object
from dra_api.relations.volumes import volume_uses
from dra_api.storage import PersistentVolumeClaim

from dra_operator.cache.hints.placement_keys import place, place_users, place_widely
from dra_operator.cache.key import NOTHING, Keys
from dra_operator.cache.objects.store import Change
from dra_operator.cache.state import State


def on_volume_claim(cluster: State, change: Change[PersistentVolumeClaim]) -> Keys:
    """The waiting pods that use the claim."""
    if not _is_news(change):
        return NOTHING
    key = next(obj.key for obj in change if obj is not None)
    return place_users(pod for pod in cluster.pods_by_volume_claim.keys(key) if pod in cluster.waiting)


def on_storage(cluster: State, change: Change[Any]) -> Keys:
    """The pods that wait because of their volumes."""
    if not _is_news(change):
        return NOTHING
    return place_widely(pod for pod, wake_on in cluster.to_wake.items() if wake_on.volumes)


def on_node_gone(cluster: State, name: str) -> Keys:
    """The pods that wait for their volumes to be bound on the node."""
    waiting = ((key, cluster.pods.get(key)) for key in cluster.to_wake)
    waits = ((key, cluster.storage.wait_of(pod.metadata.uid)) for key, pod in waiting if pod is not None)
    return place(key for key, wait in waits if wait is not None and wait.node == name)


def volumes_left(cluster: State, pod: Pod) -> Keys:
    """The pods that wait for a claim which this one uses no longer."""
    waiting = cluster.to_wake
    if not waiting:
        return NOTHING
    users = (user for use in volume_uses(pod) for user in cluster.pods_by_volume_claim.keys(use.key))
    return place_users(user for user in users if user in waiting and waiting[user].volumes)


def _is_news(change: Change[Any]) -> bool:
    """Whether anything but the bookkeeping of the server changed."""
    old, new = change
    return old is None or new is None or _content(old) != _content(new)


def _content(obj: Object) -> tuple[Any, ...]:
    meta = obj.metadata
    fields = tuple(getattr(obj, name) for name in obj.__struct_fields__ if name != "metadata")
    return (meta.uid, meta.labels, meta.annotations, meta.deletion_timestamp, meta.owner_references, *fields)
