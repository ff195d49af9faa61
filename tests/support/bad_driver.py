"""A driver that does everything right, except for the faults that it is told to have: health, slices, claims.

NODE_NAME=node-1 KUBECONFIG=kubeconfig python tests/support/bad_driver.py /var/lib/kubelet
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from bad_driver_claims import ClaimWork
from bad_driver_node import NETWORK, PLAIN, BadNode, Damaged, Json, devices_of, pools_of
from dra_driver_test.kit import Place, Running
from dra_kube import NODES, RESOURCE_SLICES, Api, Gone, KubeError, connection
from dra_proto.dra.v1 import api_pb2 as v1
from dra_proto.dra.v1 import api_pb2_grpc as v1_grpc
from dra_proto.dra.v1beta1 import api_pb2 as v1beta1
from dra_proto.dra.v1beta1 import api_pb2_grpc as v1beta1_grpc
from dra_proto.health.v1alpha1 import api_pb2 as health
from dra_proto.registration.v1 import api_pb2 as registration
from dra_proto.registration.v1 import api_pb2_grpc as registration_grpc
from fake_plugin import DraService, health_handler

PERIOD = 0.2
TIMEOUT = 1


SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")


class HealthService:
    """Tells the health of all devices, again and again; a fault may be that of one version only."""

    def __init__(self, node: BadNode, claims: ClaimWork) -> None:
        self._node = node
        self._claims = claims
        self._streams = 0
        self._open = 0

    def add_to(self, server: grpc.aio.Server) -> None:
        for service in SERVICES:
            if self._node.has("health is offered and not served", f"{service} is offered and not served"):
                continue
            server.add_generic_rpc_handlers((health_handler(service, partial(self._watch, service)),))

    async def _watch(self, service: str, _request: Any, _context: Any) -> AsyncIterator[Any]:
        has = self._node.has
        self._streams += 1
        if (
            has("health says nothing", f"{service} says nothing")
            or (self._streams > 1 and has("only the first stream gets health"))
            or (self._streams > 5 and has("streams that ended count"))
            or (self._open and has("one stream at a time gets health"))
            or (self._node.starts > 1 and has("only the first process tells health"))
        ):
            await asyncio.sleep(60)
        self._open += 1
        self._claims.streams += 1
        try:
            yield health.NodeWatchResourcesResponse(devices=self._devices(service))
            while True:
                await asyncio.sleep(60 if has("health comes once", f"{service} comes once") else PERIOD)
                devices = self._devices(service)
                yield health.NodeWatchResourcesResponse(
                    devices=devices[: 1 if has("later health is partial") else None]
                )
        finally:
            self._open -= 1
            self._claims.streams -= 1

    def _devices(self, service: str) -> list[Any]:
        has, names = self._node.has, list(devices_of(self._node))
        if has("health leaves a device out", f"{service} leaves a device out"):
            names.pop()
        if has("health names an unknown device"):
            names.append((self._node.place.node, "gpu-77"))
        if has("health names a device twice"):
            names.append(names[0])
        return [
            health.DeviceHealth(
                device=health.DeviceIdentifier(pool_name=pool, device_name=name),
                health=self._health(service),  # type: ignore[arg-type]  # an open enum
                last_updated_time=self._updated(),
                health_check_timeout_seconds=-1 if has("health has a negative time-out") else TIMEOUT,
                message="x" * 2000 if has("health has a long message") else "",
            )
            for pool, name in names
        ]

    def _updated(self) -> int:
        if self._node.has("variant: no device's health changed for a week"):
            return int(time.time()) - 7 * 86400
        return int(time.time() * (1000 if self._node.has("health has times in milliseconds") else 1))

    def _health(self, service: str) -> int:
        has = self._node.has
        if has("health has an unknown value"):
            return 7
        return 2 if has(f"{service} says otherwise") else 1


# --- How the bad driver publishes: two slices, one with counters and one with devices, looked after all the time ---

PUBLISH_PERIOD = 0.1
WATCHES = (
    "it never watches again after 410",
    "it never watches again after an end",
    "variant: it watches instead of looking now and then",
)


class SliceWork:
    """Keeps the slices of the node as they should be."""

    def __init__(self, node: BadNode, api: Api) -> None:
        self._node, self._api, self._has = node, api, node.has
        self._uid = ""
        self._start = node.starts
        self._synced = False
        self._writes = itertools.count()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        found = (await self._api.get(NODES, self._node.place.node))["metadata"]["uid"]
        if self._has("it keeps the uid of its Node"):
            found = self._node.uid = self._node.uid or found
        self._uid = found
        if self._has("it publishes anew at each start"):
            await self.withdraw()
        self._task = asyncio.create_task(self._run())

    async def end(self) -> None:
        """Stop publishing; the slices stay."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def withdraw(self) -> None:
        for one in await self._mine():
            await self._delete(one)

    async def _run(self) -> None:
        while True:
            try:
                await self._sync()
                self._synced = True
                if self._has(*WATCHES):
                    await self._watch()
            except KubeError:
                if self._has("it stops publishing when a request fails"):
                    return
            await asyncio.sleep(PUBLISH_PERIOD)

    async def _watch(self) -> None:
        """Sync when something changes, until the watch ends; then the caller lists and watches again."""
        has = self._has
        _, version = await self._api.list(RESOURCE_SLICES)
        await self._sync()
        try:
            async for event in self._api.watch(RESOURCE_SLICES, resource_version=version):
                if event.type == "DELETED":
                    await self._sync()
        except Gone:
            if has("it never watches again after 410"):
                await asyncio.Event().wait()
            return
        if has("it never watches again after an end"):
            await asyncio.Event().wait()

    async def _mine(self) -> list[Json]:
        selector = f"spec.driver={self._driver},spec.nodeName={self._node_name}"
        if self._has("it deletes slices of other nodes"):
            selector = f"spec.driver={self._driver}"
        if self._has("it deletes slices of other drivers"):
            selector = f"spec.nodeName={self._node_name}"
        if self._has(NETWORK):
            found, _ = await self._api.list(RESOURCE_SLICES, fieldSelector=f"spec.driver={self._driver}")
            return [one for one in found if one["spec"].get("nodeName") is None]
        return (await self._api.list(RESOURCE_SLICES, fieldSelector=selector))[0]

    async def _delete(self, one: Json) -> None:
        await self._api.delete(RESOURCE_SLICES, one["metadata"]["name"])

    async def _sync(self) -> None:
        has, found = self._has, await self._mine()
        if has("it publishes nothing") or (self._synced and has("it publishes once")):
            return
        if self._start > 1 and has("it publishes at its first start"):
            return
        if self._synced and found and has("it publishes anew when all slices are gone"):
            return
        wanted = self._wanted()
        current: dict[str, Json] = {}
        for one in found:
            key = one["metadata"].get("annotations", {}).get("slice", "")
            if key in wanted and key not in current:
                current[key] = one
            elif not has("it keeps left-over slices"):
                await self._delete(one)
        for key, body in wanted.items():
            if key not in current:
                await self._api.create(RESOURCE_SLICES, body)
            elif self._differs(current[key], body):
                metadata = current[key]["metadata"]
                if has("it writes slices all the time"):
                    metadata["labels"] = {"write": str(next(self._writes))}
                await self._api.update(RESOURCE_SLICES, {"metadata": metadata, "spec": body["spec"]})

    def _differs(self, current: Json, wanted: Json) -> bool:
        if self._has("it writes slices all the time"):
            return True
        if self._synced and self._has("it never corrects a slice"):
            return False
        if not self._synced and self._has("taints are new at each start"):
            return True
        return bool(_without_times(current["spec"]) != _without_times(wanted["spec"]))

    @property
    def _driver(self) -> str:
        return "other-name.example.com" if self._has("it publishes under another name") else self._node.driver_name

    @property
    def _node_name(self) -> str:
        return "localhost" if self._has("it publishes for another node") else self._node.place.node

    def _wanted(self) -> dict[str, Json]:
        has, wanted = self._has, dict[str, Json]()
        for name, offer in pools_of(self._node).items():
            parts: dict[str, Json] = {"devices": {"devices": offer.devices}}
            if offer.counters:
                parts = {"counters": {"sharedCounters": offer.counters}, **parts}
            if has("a device is published twice"):
                parts["more"] = {"devices": [{"name": PLAIN[0]}]}
            pool = {"name": name, "generation": 2, "resourceSliceCount": len(parts)}
            if has("a slice of a pool is missing"):
                pool["resourceSliceCount"] = len(parts) + 1
            if has("it keeps old generations"):
                wanted["old"] = self._slice("old", {**pool, "generation": 1}, {"devices": [{"name": "gone-0"}]})
            wanted |= {f"{name}/{key}": self._slice(f"{name}/{key}", pool, part) for key, part in parts.items()}
        return wanted

    def _slice(self, key: str, pool: Json, part: Json) -> Json:
        has = self._has
        owner = {
            "apiVersion": "v1",
            "kind": "Node",
            "name": self._node.place.node,
            "uid": self._uid,
            "controller": True,
        }
        metadata: Json = {"generateName": f"{self._driver}-{self._node.place.node}-", "annotations": {"slice": key}}
        if has("its slices have odd names"):
            metadata["generateName"] = "slice-"
        where: Json = {"allNodes": True} if has(NETWORK) else {"nodeName": self._node_name}
        if not has("its slices have no owner", NETWORK):
            metadata["ownerReferences"] = [owner]
        return {"metadata": metadata, "spec": {"driver": self._driver, **where, "pool": pool, **part}}


def _without_times(spec: Json) -> Any:
    devices = [
        {**device, "taints": [{**taint, "timeAdded": ""} for taint in device.get("taints", [])]}
        for device in spec.get("devices", [])
    ]
    return {**spec, "devices": devices}


# --- A driver that does everything right, except for the faults that it is told to have ---

V1, V1BETA1 = "v1.DRAPlugin", "v1beta1.DRAPlugin"


class BadLauncher:
    """Starts instances of the driver in this process."""

    overlaps = True

    def __init__(self, driver: str, *faults: str) -> None:
        self._driver = driver
        self._faults = frozenset(faults)
        self._node: BadNode | None = None

    async def start(self, place: Place, uid: str) -> Running:
        self._node = self._node or BadNode(place, self._driver, self._faults)
        self._node.starts += 1
        instance = Instance(self._node, uid)
        await instance.start()
        return instance


class Instance:
    """One running instance."""

    def __init__(self, node: BadNode, uid: str) -> None:
        self.node = node
        self.name = node.driver_name
        part = "" if node.has("one socket for all instances") else f"-{uid}"
        self.registration_socket = node.place.registry / f"{node.driver}{part}-reg.sock"
        self.service_socket = node.folder / f"dra{part[-8:]}.sock"
        self.stopped = False
        self._ended: str | None = None
        self._stack = AsyncExitStack()
        self._claims: ClaimWork | None = None

    async def _write_anew(self) -> None:
        """Write the state again, soon after the start."""
        if not self.node.has("a start writes its state in place"):
            return
        self._stack.callback(self._later.cancel)
        with suppress(Damaged):
            if state := self.node.state():
                # The check waits for the start before it kills, which takes a while on a busy machine.
                await self.node.write_in_place(state, seconds=10)

    async def start(self) -> None:
        """Serve, publish and register. What goes wrong ends the driver, as it would end a process."""
        try:
            await self._start()
        except Exception as error:
            self._ended = f"the driver ended: {error}"
            await self._stack.aclose()

    async def _start(self) -> None:
        node = self.node
        node.folder.mkdir(exist_ok=True)
        node.check_start()
        api = await self._stack.enter_async_context(Api(connection(node.place.kubeconfig)))
        try:
            await node.check_claims(api)
        except KubeError:
            if node.has("it waits for ever when its start fails"):
                return
            raise
        slices = SliceWork(node, api)
        self._slices = slices
        await slices.start()
        self._stack.push_async_callback(slices.end)
        claims = self._claims = ClaimWork(node, api)
        server = self._dra_server(claims)
        starts = [(self.service_socket, server), (self.registration_socket, self._registration_server(claims))]
        if node.has("it registers before it serves"):
            await self._listen(*starts.pop(1))
            late = asyncio.create_task(self._listen(*starts[0], delay=2.0))
            self._stack.callback(late.cancel)
            return
        for path, each in starts:
            await self._listen(path, each)
        self._later = asyncio.create_task(self._write_anew())

    async def _listen(self, path: Path, server: grpc.aio.Server, delay: float = 0.0) -> None:
        await asyncio.sleep(delay)
        self._bind(path, server)
        await server.start()
        self._stack.push_async_callback(server.stop, None)

    def _bind(self, path: Path, server: grpc.aio.Server) -> None:
        if path.exists() and self.node.has("it trips over stale sockets"):
            raise OSError(f"{path} is in use")
        path.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{path}")
        if self.node.has("every user can write to its sockets"):
            path.chmod(0o777)

    def _dra_server(self, claims: ClaimWork) -> grpc.aio.Server:
        server = grpc.aio.server()
        v1_grpc.add_DRAPluginServicer_to_server(DraService(claims, v1), server)
        if not self.node.has("v1beta1 is offered and not served"):
            v1beta1_grpc.add_DRAPluginServicer_to_server(DraService(claims, v1beta1), server)
        HealthService(self.node, claims).add_to(server)
        return server

    def _registration_server(self, claims: ClaimWork) -> grpc.aio.Server:
        server = grpc.aio.server()
        service = RegistrationService(self, claims)
        registration_grpc.add_RegistrationServicer_to_server(service, server)
        return server

    # --- Running ---

    async def stop(self) -> bool:
        """End as after SIGTERM."""
        if self._ended is None and self.node.has("it withdraws its slices when it stops"):
            await self._slices.withdraw()
        self.node.remember()
        if self._claims and self._claims.last_state is not None and self.node.has("it writes what it knows at its end"):
            await self.node.save(self._claims.last_state)
        await self._stack.aclose()
        for path in (self.registration_socket, self.service_socket):
            path.unlink(missing_ok=True)
        if self.node.has("it leaves its registration socket"):
            _stale(self.registration_socket)
        if self.node.has("it leaves its service socket"):
            _stale(self.service_socket)
        if self.node.has("it takes all sockets along"):
            for path in self.node.place.registry.glob("*.sock"):
                path.unlink()
        return not self.node.has("it ignores SIGTERM")

    async def kill(self) -> None:
        """End as after SIGKILL: the sockets stay."""
        await self._stack.aclose()
        if self._ended is None:
            for path in (self.registration_socket, self.service_socket):
                _stale(path)

    def why_ended(self) -> str | None:
        """Why it could not start, or gave up."""
        return self._ended

    async def give_up(self) -> None:
        """End by its own decision."""
        self._ended = "the driver ended: not registered"
        await self._stack.aclose()


def _stale(path: Path) -> None:
    """A socket at which nothing listens; gRPC removes its own when a server ends."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


class RegistrationService(registration_grpc.RegistrationServicer):
    def __init__(self, instance: Instance, claims: ClaimWork) -> None:
        self._instance = instance
        self._claims = claims
        self._infos = 0
        self._leaving: asyncio.Task[None] | None = None

    async def GetInfo(self, request: Any, context: Any) -> Any:  # noqa: N802  (name of the RPC)
        has, instance = self._instance.node.has, self._instance
        self._infos += 1
        if has("GetInfo takes long"):
            await asyncio.sleep(2)
        if has("GetInfo waits for calls"):
            await self._claims.idle()
        if has("GetInfo works once") and self._infos > 1:
            await context.abort(grpc.StatusCode.INTERNAL, "asked already")
        endpoint = str(instance.service_socket)
        if has("the endpoint is relative"):
            endpoint = instance.service_socket.name
        if has("the endpoint does not exist"):
            endpoint += ".missing"
        return registration.PluginInfo(
            type="CSIPlugin" if has("it is a CSI plugin") else "DRAPlugin",
            name=instance.name,
            endpoint=endpoint,
            supported_versions=_services(has) + (["v1.Extra"] * (self._infos % 2) if has("GetInfo changes") else []),
        )

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:  # noqa: N802  (name of the RPC)
        has = self._instance.node.has
        if has("it refuses its registration"):
            await context.abort(grpc.StatusCode.INTERNAL, "not wanted")
        if not request.plugin_registered and has("it gives up after a refusal"):
            self._leaving = asyncio.create_task(self._instance.give_up())
        return registration.RegistrationStatusResponse()


def _services(has: Any) -> list[str]:
    if has("it offers version numbers"):
        return ["1.0.0"]
    if has("it offers v1beta1 only"):
        return [V1BETA1]
    services = [V1BETA1, V1] if has("it offers v1beta1 first") else [V1, V1BETA1]
    if has("it offers a misspelt service"):
        services.append("v1.DRAHealth")
    unsaid = [name for name in SERVICES if has("health is served and not offered", f"{name} is served and not offered")]
    return [*services, *(name for name in SERVICES if name not in unsaid)]


NAME = "bad.example.com"


async def main(kubelet: str, *faults: str) -> None:
    """Run until SIGTERM."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    place = Place.below(Path(kubelet), os.environ["NODE_NAME"], Path(os.environ["KUBECONFIG"]))
    running = await BadLauncher(NAME, *faults).start(place, "")
    if ended := running.why_ended():
        raise SystemExit(ended)
    await stopped.wait()
    await running.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kubelet", metavar="FOLDER", help="the kubelet's")
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="names in planted_faults.py")
    given = parser.parse_args()
    asyncio.run(main(given.kubelet, *given.faults))
