"""What the bench does with the API server: a node, claims that are allocated already, and the driver's slices.

Nothing schedules here: a check says which devices a claim holds, as a scheduler would have written it.
"""

from __future__ import annotations

import copy
import itertools
import secrets
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dra_devcluster.agent.plugins.plugin import ClaimRef
from dra_kube import (
    NAMESPACES,
    NODES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    AlreadyExists,
    Api,
    Conflict,
    NotFound,
    Resource,
)

Json = dict[str, Any]
CLASS = "dra-driver-test"
ADMIN_LABEL = "resource.kubernetes.io/admin-access"


@dataclass(frozen=True, slots=True)
class Device:
    """A device that the driver published."""

    driver: str
    pool: str
    name: str
    spec: Json

    @property
    def is_plain(self) -> bool:
        """Whether a claim can take it whatever else is allocated."""
        return not self.spec.get("consumesCounters") and not self.spec.get("taints")

    @property
    def is_shared(self) -> bool:
        """Whether several claims can have a part of it."""
        return bool(self.spec.get("allowMultipleAllocations"))


@dataclass(frozen=True, slots=True)
class Use:
    """One result of an allocation: a device for a request, with further fields of the result.

    Of a shared device it is a part of its own, except for an administrator's access.
    """

    device: Device
    request: str = "req"
    fields: tuple[tuple[str, Any], ...] = ()

    def result(self) -> Json:
        """As it stands in the claim's status."""
        device = {"driver": self.device.driver, "pool": self.device.pool, "device": self.device.name}
        fields = dict(self.fields)
        if self.device.is_shared and not fields.get("adminAccess"):
            fields.setdefault("shareID", str(uuid.uuid4()))
        return {"request": self.request, **device, **fields}


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of the bench."""

    namespace: str
    name: str
    uid: str

    @property
    def ref(self) -> ClaimRef:
        """As a kubelet names it in a call."""
        return ClaimRef(self.namespace, self.uid, self.name)


class ServerSeat:
    """The objects that the bench needs; it deletes what it made."""

    def __init__(self, api: Api, node: str) -> None:
        self._api = api
        self._node = node
        self._numbers = itertools.count(1)
        self._main = f"dra-driver-test-{secrets.token_hex(4)}"
        self._claims: list[Claim] = []
        self._made: list[tuple[Resource, str]] = []

    async def join_node(self) -> None:
        """Make the Node object, unless there is one, and a namespace for claims."""
        await self._once(NODES, {"metadata": {"name": self._node}})
        await self._once(NAMESPACES, {"metadata": {"name": self._main}})

    async def leave(self) -> None:
        """Delete what the bench made, and the slices of its node if the bench made that as well."""
        await self.forget()
        if (NODES, self._node) in self._made:
            for one in await self.all_slices():
                if one["spec"].get("nodeName") == self._node:
                    await self.delete_slice(one["metadata"]["name"])
        for resource, name in self._made:
            with suppress(NotFound):
                await self._api.delete(resource, name)

    async def _once(self, resource: Resource, body: Json) -> None:
        """Make an object without namespace, unless there is one."""
        with suppress(AlreadyExists):
            await self._api.create(resource, body)
            self._made.append((resource, body["metadata"]["name"]))

    async def namespace(self, purpose: str, **labels: str) -> str:
        """Another namespace of the bench; its name has at most 63 characters."""
        name = f"{self._main}-{purpose}"[:63]
        await self._once(NAMESPACES, {"metadata": {"name": name, "labels": labels}})
        return name

    async def admin_namespace(self) -> str:
        """A namespace whose claims may ask for admin access."""
        return await self.namespace("admin", **{ADMIN_LABEL: "true"})

    # --- claims ---

    async def claim(
        self, *uses: Use, name: str = "", namespace: str = "", config: Sequence[Json] = (), allocated: bool = True
    ) -> Claim:
        """A claim that holds these devices."""
        name, namespace = name or f"claim-{next(self._numbers)}", namespace or self._main
        spec = {"devices": {"requests": _requests(uses)}}
        made = await self._api.create(
            RESOURCE_CLAIMS, {"metadata": {"name": name, "namespace": namespace}, "spec": spec}
        )
        claim = Claim(namespace, name, made["metadata"]["uid"])
        self._claims.append(claim)
        if allocated:
            await self.allocate(claim, *uses, config=config)
        return claim

    async def allocate(self, claim: Claim, *uses: Use, config: Sequence[Json] = ()) -> None:
        """Let the claim hold these devices instead of what it holds."""
        current = await self._api.get(RESOURCE_CLAIMS, claim.name, claim.namespace)
        if (current.get("status") or {}).get("allocation"):
            current["status"] = {}
            current = await self._api.update(RESOURCE_CLAIMS, current, "status")
        devices: Json = {"results": [use.result() for use in uses]}
        if config:
            devices["config"] = list(config)
        current["status"] = {"allocation": {"devices": devices}}
        await self._api.update(RESOURCE_CLAIMS, current, "status")

    async def delete(self, claim: Claim) -> None:
        """Delete the claim; a missing one is fine."""
        with suppress(NotFound, Conflict):  # a conflict: another claim has the name by now
            await self._api.delete(RESOURCE_CLAIMS, claim.name, claim.namespace, uid=claim.uid)

    def made(self) -> list[Claim]:
        """The claims made since the last ``forget``, deleted ones too."""
        return list(self._claims)

    async def forget(self) -> None:
        """Delete all claims of the bench."""
        for claim in self._claims:
            await self.delete(claim)
        self._claims.clear()

    async def held(self, driver: str) -> dict[tuple[str, str], str]:
        """Return the driver's devices, by pool and name, that claims of others hold, with one such claim each.

        An administrator's access holds nothing.
        """
        claims, _ = await self._api.list(RESOURCE_CLAIMS)
        return {
            (result["pool"], result["device"]): f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
            for claim in claims
            if not claim["metadata"]["namespace"].startswith(self._main)
            for result in _results(claim)
            if result["driver"] == driver and not result.get("adminAccess")
        }

    # --- slices ---

    async def slices(self, driver: str) -> list[Json]:
        """All slices of the driver, those of other nodes too, by name."""
        found, _ = await self._api.list(RESOURCE_SLICES, fieldSelector=f"spec.driver={driver}")
        return sorted(found, key=lambda one: str(one["metadata"]["name"]))

    async def all_slices(self) -> list[Json]:
        """The slices of all drivers."""
        return (await self._api.list(RESOURCE_SLICES))[0]

    def own(self, name: str) -> str:
        """A name for an object without namespace that no other bench uses."""
        return f"{self._main}-{name}"

    async def create_slice(
        self, name: str, driver: str, pool: str, *, node: str = "", devices: Sequence[str] = ()
    ) -> Json:
        """A slice that another than the driver's running instance made."""
        spec = {
            "driver": driver,
            "nodeName": node or self._node,
            "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": device} for device in devices],
        }
        return await self._api.create(RESOURCE_SLICES, {"metadata": {"name": name}, "spec": spec})

    async def update_slice(self, body: Json, change: Mapping[str, Any]) -> Json:
        """Change fields of a slice's spec, as another client would."""
        changed = copy.deepcopy(body)
        changed["spec"].update(change)
        return await self._api.update(RESOURCE_SLICES, changed)

    async def delete_slice(self, name: str) -> None:
        """Delete a slice; a missing one is fine."""
        with suppress(NotFound):
            await self._api.delete(RESOURCE_SLICES, name)

    async def node(self) -> Json:
        """The Node object."""
        return await self._api.get(NODES, self._node)

    async def node_names(self) -> set[str]:
        """The names of all nodes."""
        return {str(node["metadata"]["name"]) for node in (await self._api.list(NODES))[0]}


def newest(slices: Sequence[Json]) -> dict[str, list[Json]]:
    """By pool, the slices of its newest generation, which are the ones that count."""
    pools: dict[str, list[Json]] = {}
    for one in slices:
        pools.setdefault(one["spec"]["pool"]["name"], []).append(one)
    generations = {name: max(generation(one) for one in members) for name, members in pools.items()}
    return {name: [one for one in members if generation(one) == generations[name]] for name, members in pools.items()}


def generation(one: Json) -> int:
    """The pool's generation as a slice has it."""
    return int(one["spec"]["pool"].get("generation", 0))


def _results(claim: Json) -> list[Json]:
    allocation = claim.get("status", {}).get("allocation") or {}
    return allocation.get("devices", {}).get("results") or []


def devices_of(slices: Sequence[Json]) -> list[Device]:
    """The devices in the newest generation of each pool."""
    return [
        Device(one["spec"]["driver"], pool, device["name"], device)
        for pool, members in newest(slices).items()
        for one in members
        for device in one["spec"].get("devices") or ()
    ]


def _requests(uses: Sequence[Use]) -> list[Json]:
    requests: dict[str, Json] = {}
    for use in uses or (None,):
        if use is None:
            requests["req"] = {"name": "req", "exactly": {"deviceClassName": CLASS}}
            continue
        base, _, sub = use.request.partition("/")
        if sub:
            requests[base] = {"name": base, "firstAvailable": [{"name": sub, "deviceClassName": CLASS}]}
        elif base in requests:
            requests[base]["exactly"]["count"] += 1
        else:
            requests[base] = {"name": base, "exactly": {"deviceClassName": CLASS, "count": 1}}
        if dict(use.fields).get("adminAccess"):
            requests[base]["exactly"]["adminAccess"] = True
    return list(requests.values())
