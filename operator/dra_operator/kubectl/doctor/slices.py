"""ResourceSlices that drivers left behind, that are not complete, or that belong to another node than they say."""

from __future__ import annotations

from collections.abc import Iterator

from dra_api.command_line import kubectl
from dra_api.core import Node
from dra_api.resource import ResourceSlice

from dra_operator.allocator import PoolId
from dra_operator.cache import newest_slices
from dra_operator.kubectl.facts.ages import age
from dra_operator.kubectl.observed.observed import Observed
from dra_operator.wording import counted

from .trouble import Diagnosis


def slice_troubles(seen: Observed) -> Iterator[Diagnosis]:
    """Of each slice, then of each pool."""
    slices = sorted(seen.every(ResourceSlice), key=lambda slice_: slice_.key)
    newest = newest_slices(slices)
    counting = {slice_.key for several in newest.values() for slice_ in several}
    for slice_ in slices:
        if "nodes" not in seen.unseen:
            yield from _of_nodes(seen, slice_)
        if slice_.key not in counting:
            pool = newest[PoolId.of(slice_)][0].spec.pool
            message = f"is of generation {slice_.spec.pool.generation}, and pool {pool.name} has {pool.generation}"
            remedy = "the driver deletes old slices; if it no longer runs, delete this one"
            yield _stale(slice_, message, remedy)
    for id_, several in sorted(newest.items()):
        announced = several[0].spec.pool.resource_slice_count
        if len(several) != announced:
            since = age(max(slice_.metadata.creation_timestamp or "" for slice_ in several), seen.taken)
            message = f"has {len(several)} of {counted(announced, 'slice')}" + (f" since {since}" if since else "")
            remedy = (
                "its devices are allocated only when all slices are there: look at the log of the driver, or restart it"
            )
            yield Diagnosis.of("pool", f"pool {id_.driver}/{id_.pool}", message, remedy=remedy)


def _of_nodes(seen: Observed, slice_: ResourceSlice) -> Iterator[Diagnosis]:
    name = slice_.spec.node_name
    node = seen.one(Node, name) if name else None
    if name and node is None:
        yield _stale(slice_, f"is about node {name}, which does not exist", "delete it")
        return
    for owner in slice_.metadata.owner_references or ():
        if owner.kind != "Node":
            continue
        if name and owner.name != name:
            message = f"is about node {name}, but its owner is node {owner.name}"
            remedy = "two drivers publish in each other's name: look at their node names; the right one publishes again"
            yield _stale(slice_, message, remedy)
        elif (known := node or seen.one(Node, owner.name)) is not None and owner.uid != known.metadata.uid:
            message = f"belongs to an earlier node of the name {owner.name} (UID {owner.uid})"
            yield _stale(slice_, message, "delete it; the driver publishes again")


def _stale(slice_: ResourceSlice, message: str, remedy: str) -> Diagnosis:
    name = slice_.metadata.name
    what = f"slice {name} ({slice_.spec.driver}/{slice_.spec.pool.name})"
    command = kubectl("delete", "resourceslice", names=[name])
    return Diagnosis.of("slice", what, message, remedy=remedy, command=command)
