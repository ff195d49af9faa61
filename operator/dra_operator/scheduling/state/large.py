"""Pods that are too large to be placed, and the little that is kept of them.

The API server admits pods of more than a megabyte. What is read of one takes four to eight times as much memory: two
hundred of them, which one user makes in a minute, would be more than the operator has. So a pod that has more than
``LARGEST_OBJECT_BYTES`` of what the operator reads is not placed (``unsupported``). What counts of it wherever it runs
is kept: who it is, what room it takes on its node, its labels and claims unless there are very many. Its rules keep no
other pod away, and its host ports and volumes do not count.
"""

from __future__ import annotations

from typing import Final

from dra_api.codec import encode
from dra_api.core import Container, Pod, ResourceRequirements
from dra_api.values.quantity import Quantity
from msgspec import structs

from .requests import POD_SLOTS, pod_requests

LARGEST_OBJECT_BYTES: Final = 64 << 10
"""Bytes as JSON. An ordinary pod has one to three thousand."""
MOST_CLAIMS: Final = 256
_NO_NODE: Final = "dra.kopf.dev/too-large"
"""The pod is left with the selector of a label that no node has."""


def pod_without_bulk(pod: Pod) -> Pod:
    """The pod itself, or what is kept of it if it is too large. Annotations and owners do not make it so."""
    if len(encode(pod)) <= LARGEST_OBJECT_BYTES:
        return pod
    owner = pod.metadata.controller
    meta = structs.replace(
        pod.metadata, annotations=None, finalizers=None, owner_references=None if owner is None else (owner,)
    )
    pod = structs.replace(pod, metadata=meta)
    return pod if len(encode(pod)) <= LARGEST_OBJECT_BYTES else _kept(pod)


def is_too_large(pod: Pod) -> bool:
    """Whether little is kept of the pod."""
    return _NO_NODE in (pod.spec.node_selector or {})


def _kept(pod: Pod) -> Pod:
    spec, status = pod.spec, pod.status
    labels = pod.metadata.labels if len(encode(pod.metadata.labels)) <= LARGEST_OBJECT_BYTES // 4 else None
    room = {name: Quantity.from_nanos(amount) for name, amount in pod_requests(pod).items() if name != POD_SLOTS}
    has_few_claims = len(spec.resource_claims or ()) <= MOST_CLAIMS
    return structs.replace(
        pod,
        metadata=structs.replace(pod.metadata, labels=labels),
        spec=structs.replace(
            spec,
            containers=(Container(resources=ResourceRequirements(requests=room)),),
            init_containers=None,
            resources=None,
            overhead=None,
            resource_claims=spec.resource_claims if has_few_claims else None,
            node_selector={_NO_NODE: "true"},
            affinity=None,
            tolerations=None,
            topology_spread_constraints=None,
            volumes=None,
        ),
        status=structs.replace(
            status, resource_claim_statuses=status.resource_claim_statuses if has_few_claims else None
        ),
    )
