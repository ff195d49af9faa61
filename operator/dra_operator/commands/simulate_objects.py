"""What would be allocated for Kubernetes objects in files, told node by node.

The objects become a cluster as the operator sees one, and its pods go the operator's way: ``examine``, then each node's
answer. Claims that are allocated already hold their devices, and pods that have a node take its room. Claims that pods
would get from templates in the files are made up. Without pods, all claims that are not allocated yet, and one of each
template, are tried together, as if one pod used them.

Every attempt starts from the state in the files; with ``sequential`` it starts from what the one before has left.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import msgspec
from dra_api.core import Node, Pod, PodResourceClaimStatus
from dra_api.meta import Object, ObjectMeta, OwnerReference
from dra_api.references import pod_is_done
from dra_api.resource import (
    POD_CLAIM_NAME_ANNOTATION,
    AllocationResult,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)

from dra_operator.allocator import AllocationError, Allocator, Features, Inventory, Rules
from dra_operator.cluster import Cluster
from dra_operator.intake.language import CelSelectors
from dra_operator.placement import (
    Case,
    ExtendedResources,
    Fits,
    Lacking,
    NodeAnswer,
    NodeState,
    NoPlace,
    Obstructed,
    Plan,
    PodClaim,
    Question,
    decided,
    examine,
    plan,
    settled,
    text,
)

from .object_files import BadInput, of_kind
from .refused import Holders, holders, in_full
from .verdicts import before_nodes, error_of

T = TypeVar("T", bound=Object)


def tell(
    objects: Sequence[Object], node_names: Sequence[str], *, rules: Rules, sequential: bool = False
) -> Iterator[str]:
    """Lines: for each attempt the verdict of each node. Raises BadInput when there is nothing to try."""
    cluster = _cluster(objects, rules)
    nodes = _nodes(objects, node_names)
    known = {node.metadata.name for node in of_kind(Node, objects)} or {
        *_named_by_slices(of_kind(ResourceSlice, objects))
    }
    for node in nodes:
        cluster.put(node)
        if node.metadata.name not in known:
            yield f"node {node.metadata.name} is not in the files, and tried as one without labels"
    allocator = Allocator(cluster.inventory, new_share_id=lambda: str(uuid.uuid4()))
    pods = [_with_claims(pod, objects, cluster) for pod in map(_identified, of_kind(Pod, objects))]
    if not pods:
        yield from _of_claims(_wanted(objects), cluster, allocator)
    for pod in pods:
        yield from _of_pod(pod, cluster, allocator, sequential=sequential)


def _cluster(objects: Sequence[Object], rules: Rules) -> Cluster:
    features = Features()
    cluster = Cluster(Inventory(features, language=CelSelectors(features), rules=rules))
    for kind in (DeviceClass, ResourceSlice, DeviceTaintRule):
        for obj in of_kind(kind, objects):
            cluster.put(obj)
    for claim in of_kind(ResourceClaim, objects):
        cluster.put(_identified(claim))
    return cluster


def _identified(obj: T) -> T:
    """With a UID: objects in files seldom have one, and everything goes by it."""
    meta = obj.metadata
    if meta.uid:
        return obj
    return msgspec.structs.replace(obj, metadata=msgspec.structs.replace(meta, uid=f"{type(obj).__name__} {obj.key}"))


def _nodes(objects: Sequence[Object], names: Sequence[str]) -> list[Node]:
    known = {node.metadata.name: node for node in of_kind(Node, objects)}
    if not names and not known:
        names = _named_by_slices(of_kind(ResourceSlice, objects))
    if not names and not known:
        raise BadInput("no node to try: add a Node object to the files, or name one with --node")
    return [known.get(name) or Node(metadata=ObjectMeta(name=name)) for name in names or known]


def _named_by_slices(slices: Sequence[ResourceSlice]) -> list[str]:
    names = [slice_.spec.node_name for slice_ in slices]
    names += [device.node_name for slice_ in slices for device in slice_.spec.devices or ()]
    return sorted({name for name in names if name})


# --- attempts -----------------------------------------------------------------------------------


def _of_pod(pod: Pod, cluster: Cluster, allocator: Allocator, *, sequential: bool) -> Iterator[str]:
    uses = [claim for _, claim in cluster.claims_of(pod) if claim is not None]
    yield f"pod {pod.key}, claims {', '.join(claim.key for claim in uses) or 'none'}"
    if pod.spec.node_name or pod_is_done(pod):
        yield f"has its node already: {pod.spec.node_name}" if pod.spec.node_name else "is done"
        return
    found = examine(pod, cluster.snapshot(allocator, datetime.now(UTC)))
    if not isinstance(found, Case):
        yield before_nodes(found)
        return
    yield from _of_nodes(found, cluster)
    if sequential:
        yield from _carried_out(found, cluster)


def _of_claims(claims: Sequence[ResourceClaim], cluster: Cluster, allocator: Allocator) -> Iterator[str]:
    """All claims together, as if one pod without any other wish used them."""
    yield f"claims {', '.join(claim.key for claim in claims)}"
    extended = ExtendedResources(Pod(), {})
    pod_claims = tuple(PodClaim(claim.metadata.name, claim) for claim in claims)
    usage = cluster.ledger.usage.snapshot()
    yield from _of_nodes(Case(Pod(), pod_claims, extended, cluster.node_states(), allocator, usage), cluster)


def _carried_out(case: Case, cluster: Cluster) -> Iterator[str]:
    """What the operator would do: the pod takes devices and room, and the next one finds what is left."""
    answer = decided(plan(case))
    if isinstance(answer, NoPlace):
        yield f"waits: {answer.message}"
        return
    for claim in _allocated_by(case, answer):
        status = msgspec.structs.replace(claim.status, allocation=answer.allocations[claim.metadata.uid])
        meta = msgspec.structs.replace(claim.metadata, resource_version="simulated")
        cluster.put(msgspec.structs.replace(claim, metadata=meta, status=status))
    cluster.assume_placed(case.pod, answer.node, answer.served)
    yield f"gets node {answer.node}"


def _allocated_by(case: Case, answer: Plan) -> Iterator[ResourceClaim]:
    yield from (claim for claim in case.resource_claims if claim.metadata.uid in answer.allocations)
    if answer.extended is not None:
        yield answer.extended.claim


def _wanted(objects: Sequence[Object]) -> list[ResourceClaim]:
    claims = map(_identified, of_kind(ResourceClaim, objects))
    wanted = [claim for claim in claims if claim.status.allocation is None]
    wanted += [_made_from(it, it.metadata.name) for it in of_kind(ResourceClaimTemplate, objects)]
    if not wanted:
        raise BadInput("no claim to try: add a ResourceClaim without allocation, or a ResourceClaimTemplate")
    return wanted


def _with_claims(pod: Pod, objects: Sequence[Object], cluster: Cluster) -> Pod:
    """The pod as it is when its claims have been made from templates; both are put into the cluster."""
    statuses = {status.name: status for status in pod.status.resource_claim_statuses or ()}
    templates = {template.key: template for template in of_kind(ResourceClaimTemplate, objects)}
    for entry in pod.spec.resource_claims or ():
        if entry.resource_claim_name:
            key = f"{pod.metadata.namespace}/{entry.resource_claim_name}"
            if key not in cluster.claims:
                raise BadInput(f"pod {pod.key}, entry {entry.name}: ResourceClaim {key} is not in the files")
        elif entry.name not in statuses:
            key = f"{pod.metadata.namespace}/{entry.resource_claim_template_name}"
            if key not in templates:
                raise BadInput(f"pod {pod.key}, entry {entry.name}: ResourceClaimTemplate {key} is not in the files")
            name = f"{pod.metadata.name}-{entry.name}"
            cluster.put(_made_from(templates[key], name, pod, entry.name))
            statuses[entry.name] = PodResourceClaimStatus(name=entry.name, resource_claim_name=name)
    status = msgspec.structs.replace(pod.status, resource_claim_statuses=tuple(statuses.values()))
    pod = msgspec.structs.replace(pod, status=status)
    cluster.put(pod)
    return pod


def _made_from(template: ResourceClaimTemplate, name: str, pod: Pod | None = None, entry: str = "") -> ResourceClaim:
    owners = (
        OwnerReference(api_version="v1", kind="Pod", name=owner.name, uid=owner.uid, controller=True)
        for owner in ((pod.metadata,) if pod is not None else ())
    )
    metadata = ObjectMeta(
        name=name,
        namespace=template.metadata.namespace,
        uid=f"made-from-template-{name}",
        annotations={POD_CLAIM_NAME_ANNOTATION: entry} if entry else None,
        owner_references=tuple(owners) or None,
    )
    return ResourceClaim(metadata=metadata, spec=template.spec.spec)


# --- verdicts -----------------------------------------------------------------------------------


def _of_nodes(case: Case, cluster: Cluster) -> Iterator[str]:
    held = holders(cluster.claims)
    names = {claim.metadata.uid: claim.key for claim in case.resource_claims}
    try:
        question = Question(case)
    except AllocationError as error:
        yield f"error: {error}"
        return
    for state in case.nodes:
        try:
            answer = settled(question.ask(state))
        except AllocationError as error:
            yield f"node {state.name}: error: {error}"
        else:
            yield from _of_node(state, answer, case, names, held)


def _of_node(state: NodeState, answer: NodeAnswer, case: Case, names: dict[str, str], held: Holders) -> Iterator[str]:
    if isinstance(answer, Fits):
        yield f"node {state.name}: fits"
        for claim in _allocated_by(case, answer.plan):
            yield f"  claim {claim.key}"
            yield from _devices(answer.plan.allocations[claim.metadata.uid])
    elif isinstance(answer, Obstructed) and answer.elsewhere:
        claims = ", ".join(sorted(names[uid] for uid in answer.elsewhere))
        yield f"node {state.name}: claim {claims} is allocated for other nodes"
    elif isinstance(answer, Obstructed):
        yield f"node {state.name}: the pod cannot run there: {text(answer.obstacle)}"
    elif isinstance(answer, Lacking):
        yield from in_full(answer.refusal, state.node, case.allocator.inventory, answer.demand.recipe, held)
    else:
        yield error_of(state, answer)


def _devices(result: AllocationResult) -> Iterator[str]:
    for given in result.devices.results or ():
        amounts = ", ".join(f"{name} {amount}" for name, amount in (given.consumed_capacity or {}).items())
        share = f" (a share: {amounts or 'no capacity'})" if given.share_id is not None else ""
        admin = " (admin access)" if given.admin_access else ""
        yield f"    {given.request}: {given.driver}/{given.pool}/{given.device}{share}{admin}"
    if not result.devices.results:
        yield "    no devices"
