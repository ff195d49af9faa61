"""The bench's side of the API server: a node, claims that are allocated already, and the driver's slices.

Nothing schedules here: a check says which devices a claim holds, as a scheduler would have written it.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import secrets
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dra_api.resource import FINALIZER
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

from dra_driver_test.errors import Skipped

from .devices import Device, Json, is_of_node

CLASS = "dra-driver-test"
ADMIN_LABEL = "resource.kubernetes.io/admin-access"
ADMIN_ACCESS = (("adminAccess", True),)
"""Fields of a result: the claim looks at the device and does not hold it."""
ALTERNATIVES = ("large",)
"""Subrequests that come before the one that was chosen."""
WRITE_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class Use:
    """One result of an allocation: a device for a request, with further fields of the result.

    Of a shared device it is a part of its own, except for an administrator's access.
    """

    device: Device
    request: str = "req"
    fields: tuple[tuple[str, Any], ...] = ()

    def result(self) -> Json:
        return self.device.result(self.request, dict(self.fields))


@dataclass(frozen=True, slots=True)
class Claim:
    namespace: str
    name: str
    uid: str

    @property
    def ref(self) -> ClaimRef:
        """As a kubelet names it in a call."""
        return ClaimRef(self.namespace, self.uid, self.name)

    @property
    def user(self) -> Json:
        """A pod, in terms of a reservation. Its uid is not the claim's, so a driver that mixes them up is found."""
        return {"resource": "pods", "name": self.name, "uid": str(uuid.uuid5(uuid.NAMESPACE_OID, self.uid))}


class ServerSeat:
    """The objects that the bench needs; it deletes what it made.

    If ``reserves`` is true, each claim with devices is reserved for a pod. A kubelet demands that.
    That pod does not exist, so a real control plane would deallocate the claim: there nothing is reserved.
    """

    def __init__(self, api: Api, node: str, *, reserves: bool) -> None:
        self._api = api
        self._reserves = reserves
        self._node = node
        self._numbers = itertools.count(1)
        self._main = f"dra-driver-test-{secrets.token_hex(4)}"
        self._claims: list[Claim] = []
        self._made: list[tuple[Resource, str]] = []

    @property
    def token(self) -> str:
        return (self._api.connection.authorization() or "").removeprefix("Bearer ")

    async def join_node(self) -> None:
        """Make the Node object, unless there is one, and a namespace for claims."""
        await self._once(NODES, {"metadata": {"name": self._node}})
        await self._once(NAMESPACES, {"metadata": {"name": self._main}})

    async def leave(self) -> None:
        """Delete what the bench made, and the slices of its node if the bench made that as well."""
        await self.forget()
        if (NODES, self._node) in self._made:
            await self.delete_slices()
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

    async def allocate(
        self, claim: Claim, *uses: Use, config: Sequence[Json] = (), reserved_for: Sequence[Json] = ()
    ) -> None:
        """Let the claim hold these devices instead of its own. Drivers may write to its status meanwhile."""
        devices: Json = {"results": [use.result() for use in uses]}
        if config:
            devices["config"] = list(config)
        status: Json = {"allocation": {"devices": devices}}
        if users := reserved_for or ([claim.user] if self._reserves else ()):
            status["reservedFor"] = list(users)
        if (await self.read(claim)).get("status", {}).get("allocation"):
            await self._set_status(claim, {})
        await self._set_status(claim, status)

    async def _set_status(self, claim: Claim, status: Json) -> None:
        for _ in range(WRITE_ATTEMPTS):
            current = await self.read(claim)
            try:
                await self._api.update(RESOURCE_CLAIMS, {**current, "status": status}, "status")
            except AlreadyExists:
                raise
            except Conflict:
                continue
            return
        raise Conflict(409, "Conflict", f"{claim.namespace}/{claim.name} is written all the time")

    async def read(self, claim: Claim) -> Json:
        """The object. Raises NotFound, also for another one of its name."""
        found = await self._api.get(RESOURCE_CLAIMS, claim.name, claim.namespace)
        if found["metadata"]["uid"] != claim.uid:
            raise NotFound(404, "NotFound", f"the claim {claim.namespace}/{claim.name} was made anew")
        return found

    async def exists(self, claim: Claim) -> bool:
        try:
            await self.read(claim)
        except NotFound:
            return False
        return True

    async def set_devices(self, claim: Claim, devices: Sequence[Json]) -> None:
        """Set the devices in the status, as their drivers do."""
        await self._set_status(claim, {**(await self.read(claim))["status"], "devices": list(devices)})

    async def delete(self, claim: Claim) -> None:
        """Delete the claim; a missing one is fine."""
        with suppress(NotFound, Conflict):  # a conflict: another claim has the name by now
            await self._api.delete(RESOURCE_CLAIMS, claim.name, claim.namespace, uid=claim.uid)

    async def delete_while_used(self, claim: Claim) -> None:
        """Give the claim the finalizer of a claim in use, and delete it; ``forget`` removes the finalizer."""
        finalizer = {"metadata": {"finalizers": [FINALIZER]}}
        await self._api.patch(RESOURCE_CLAIMS, claim.name, finalizer, claim.namespace)
        await self.delete(claim)

    def made(self) -> list[Claim]:
        """The claims made since the last ``forget``, deleted ones too."""
        return list(self._claims)

    async def forget(self, seconds: float = 0.0) -> None:
        """Delete all claims of the bench. Finalizers that keep some longer than ``seconds`` are removed."""
        claims, self._claims = self._claims, []
        for claim in claims:
            await self.delete(claim)
        deadline = time.monotonic() + seconds
        for claim in claims:
            while await self.exists(claim):
                if time.monotonic() < deadline:
                    await asyncio.sleep(seconds / 10)
                    continue
                with suppress(NotFound):
                    await self._api.patch(
                        RESOURCE_CLAIMS, claim.name, {"metadata": {"finalizers": None}}, claim.namespace
                    )

    async def strange(self) -> str:
        """What others than the bench left on its claims that keeps it from changing them, in words."""
        found = []
        for claim in self._claims:
            with suppress(NotFound):
                if finalizers := (await self.read(claim))["metadata"].get("finalizers"):
                    found.append(f"the finalizers {finalizers} on the claim {claim.name}")
        return " and ".join(found)

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

    async def slices_here(self, driver: str) -> list[Json]:
        """Return the driver's slices for this node, by name: they name it, select it, or count for all nodes."""
        node = await self.node()
        return [one for one in await self.slices(driver) if is_of_node(one["spec"], node)]

    async def slices(self, driver: str) -> list[Json]:
        """Return all slices of the driver, for other nodes as well, by name."""
        found, _ = await self._api.list(RESOURCE_SLICES, fieldSelector=f"spec.driver={driver}")
        return sorted(found, key=lambda one: str(one["metadata"]["name"]))

    async def all_slices(self) -> list[Json]:
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

    async def delete_slices(self, *drivers: str) -> None:
        """Delete the slices of the node, and these drivers' slices without a single node."""
        for one in await self.all_slices():
            node = one["spec"].get("nodeName")
            if node == self._node or (node is None and one["spec"]["driver"] in drivers):
                await self.delete_slice(one["metadata"]["name"])

    async def node(self) -> Json:
        return await self._api.get(NODES, self._node)

    async def renew_node(self) -> None:
        """Delete the Node and make it anew; its slices go with it, as a garbage collector sees to. Raises Skipped.

        It is skipped for a Node that the bench did not make.
        """
        if (NODES, self._node) not in self._made:
            raise Skipped("the check deletes the Node, and does so only if it is the kit's")
        old = await self.node()
        await self._api.delete(NODES, self._node)
        for one in await self.all_slices():
            if any(owner["uid"] == old["metadata"]["uid"] for owner in one["metadata"].get("ownerReferences") or ()):
                await self.delete_slice(one["metadata"]["name"])
        kept = {key: old["metadata"][key] for key in ("labels", "annotations") if key in old["metadata"]}
        await self._api.create(NODES, {"metadata": {"name": self._node, **kept}})

    async def node_names(self) -> set[str]:
        return {str(node["metadata"]["name"]) for node in (await self._api.list(NODES))[0]}


def opaque(driver: str, parameters: Json, source: str = "FromClaim", *requests: str) -> Json:
    """Opaque configuration as it stands in a claim's status."""
    return {"source": source, "requests": list(requests), "opaque": {"driver": driver, "parameters": parameters}}


def _results(claim: Json) -> list[Json]:
    allocation = claim.get("status", {}).get("allocation") or {}
    return allocation.get("devices", {}).get("results") or []


def _requests(uses: Sequence[Use]) -> list[Json]:
    requests: dict[str, Json] = {}
    for use in uses or (None,):
        if use is None:
            requests["req"] = {"name": "req", "exactly": {"deviceClassName": CLASS}}
            continue
        base, _, sub = use.request.partition("/")
        if sub:
            alternatives = [*(name for name in ALTERNATIVES if name != sub), sub]
            wanted = [{"name": name, "deviceClassName": CLASS} for name in alternatives]
            requests[base] = {"name": base, "firstAvailable": wanted}
        elif base in requests:
            requests[base]["exactly"]["count"] += 1
        else:
            requests[base] = {"name": base, "exactly": {"deviceClassName": CLASS, "count": 1}}
        if dict(use.fields).get("adminAccess"):
            requests[base]["exactly"]["adminAccess"] = True
    return list(requests.values())
