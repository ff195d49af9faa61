"""How the bad driver prepares and unprepares claims."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
import uuid
from collections import Counter
from contextlib import nullcontext, suppress
from typing import Any

import grpc
from bad_driver_node import (
    NETWORK,
    PLAIN,
    TWO_POOLS,
    BadNode,
    Damaged,
    Json,
    devices_of,
    drawn,
    edited,
    edits_of,
    remove_metadata,
)
from dra_kube import RESOURCE_CLAIMS, Api, KubeError, NotFound, ServerError, TooManyRequests
from dra_proto.dra.v1beta1 import api_pb2 as v1beta1

BY_RECORD = (
    "unprepare goes in two steps",
    "it writes files before its record",
    "it has no lock for its state",
    "it remembers three claims",
)
"""Faults of drivers that unprepare by their records alone."""


class Refused(Exception):
    """One claim cannot be prepared or unprepared; with ``whole`` the call fails."""


def _in_order(found: Json, results: list[Json]) -> list[Json]:
    """The results with the names of the requests as they come in the claim."""
    requests = found["spec"]["devices"]["requests"]
    if any("exactly" not in request for request in requests):
        return results
    names = [request["name"] for request in requests for _ in range(request["exactly"].get("count", 1))]
    if len(names) != len(results):
        return results
    return [{**result, "request": name} for result, name in zip(results, names, strict=True)]


class ClaimWork:
    """Answers the calls of a kubelet."""

    def __init__(self, node: BadNode, api: Api) -> None:
        self._node, self._api, self._has = node, api, node.has
        self._lock = asyncio.Lock()
        self._leaky = asyncio.Lock()
        self._answers: dict[str, list[Json]] = {}
        self._by_name: dict[tuple[str, str], list[Json]] = {}
        self._failed: set[str] = set()
        self._unprepared: set[str] = set()
        self._busy: set[str] = set()
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._current: Any = None
        self._written: set[str] = set()
        self._specs: dict[str, Json] = {}
        self._configs: dict[str, list[Json]] = {}
        self._work: set[asyncio.Task[None]] = set()
        self._unreadable: set[str] = set()
        self._hoard: list[bytes] = []
        self._preparations: Counter[str] = Counter()
        self._last_config: list[Json] = []
        self.last_state: dict[str, Json] | None = None
        self.streams = 0

    async def idle(self) -> None:
        await self._idle.wait()

    # --- prepare ---

    async def prepare(self, request: Any, messages: Any, context: Any) -> Any:
        has, claims = self._has, list(request.claims)
        await self._before(claims, context, "prepare")
        self._running += 1
        self._idle.clear()
        try:
            ignores = has("unprepare is ignored while it prepares")
            if ignores or has("GetInfo waits for calls", "it does not unprepare while it prepares"):
                await asyncio.sleep(1.2)
            results = {claim.uid: await self._prepare_or_say(claim, messages, context) for claim in claims}
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()
        if has("an error is told of the next claim") and len(results) > 1 and next(iter(results.values())).error:
            first, *rest = results.values()
            results = dict(zip(results, [*rest, first], strict=True))
        if has("it skips claims of a call"):
            results = dict(list(results.items())[:1])
        if has("it answers another uid"):
            results = {f"{uid}-x": result for uid, result in results.items()}
        return messages.NodePrepareResourcesResponse(claims=results)

    async def _before(self, claims: list[Any], context: Any, call: str) -> None:
        has = self._has
        if not claims and has(f"an empty {call} call fails"):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no claims")
        if has(f"{call} fails"):
            await context.abort(grpc.StatusCode.INTERNAL, "always")
        if call == "prepare" and len(claims) > 3 and has("it prepares at most 3 claims a call"):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many claims")
        if self.streams and has("calls wait for the end of the health stream"):
            await asyncio.sleep(5)
        if self._running and call == "unprepare" and has("it does not unprepare while it prepares"):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "busy")

    async def _prepare_or_say(self, claim: Any, messages: Any, context: Any) -> Any:
        has = self._has
        try:
            devices = await self._prepare(claim)
        except (Refused, Damaged, KubeError, OSError) as error:
            self._failed.add(claim.uid)
            if isinstance(error, ServerError | TooManyRequests):
                self._unreadable.add(claim.uid)
            if isinstance(error, OSError) and has("a failed call removes the files of its claim"):
                self._node.cdi_file(claim).unlink(missing_ok=True)
            if has("each failed prepare leaks a descriptor"):
                os.open(os.devnull, os.O_RDONLY)
            if "parameters" in str(error) and has("bad parameters give no device"):
                return messages.NodePrepareResourceResponse()
            if has("one bad claim fails the call"):
                await context.abort(grpc.StatusCode.INTERNAL, str(error))
            return messages.NodePrepareResourceResponse(error=str(error))
        if messages is v1beta1:
            devices = [{**device, "share_id": None} for device in devices]
            if has("v1beta1 answers without devices"):
                devices = []
        fields = [{key: value for key, value in device.items() if value is not None} for device in devices]
        return messages.NodePrepareResourceResponse(devices=[messages.Device(**each) for each in fields])

    async def _prepare(self, claim: Any) -> list[Json]:
        has = self._has
        if has("two calls for a claim collide"):
            return await self._exclusively(claim)
        if has("a given up call keeps the lock"):
            await self._leaky.acquire()
            await asyncio.sleep(0.3)
            devices = await self._prepare_now(claim)
            self._leaky.release()
            return devices
        if has("calls mix up their claims"):
            self._current = claim
            await asyncio.sleep(0.5)
            current = self._current
            return [*(await self._prepare_now(current))]
        return await self._prepare_now(claim)

    async def _exclusively(self, claim: Any) -> list[Json]:
        if claim.uid in self._busy:
            raise Refused("the claim is being prepared")
        self._busy.add(claim.uid)
        try:
            await asyncio.sleep(0.5)
            return await self._prepare_now(claim)
        finally:
            self._busy.discard(claim.uid)

    async def _prepare_now(self, claim: Any) -> list[Json]:
        self._check_name(claim)
        if known := self._remembered(claim):
            return known
        try:
            devices = await self._from_allocation(claim)
        except Refused:
            if self._has("it invents devices"):
                return []
            await self._fail_late(claim)
            raise
        devices = self._as_remembered(claim, devices)
        early = self._has("it writes files before its record")
        lock = self._lock if not self._has("it has no lock for its state") else nullcontext()
        async with lock:
            if early:
                await self._describe(claim, devices)
                await asyncio.sleep(0.2)
            await self._keep(claim, devices)
            answer = self._answer(claim, devices)
            if not early:
                await self._describe(claim, devices)
        self._answers[claim.uid] = answer
        self._preparations[claim.uid] += 1
        await self._mark(claim)
        self._by_name[claim.namespace, claim.name] = answer
        return answer

    def _is_known(self, result: Json) -> bool:
        return (result["pool"], result["device"]) in devices_of(self._node)

    def _as_remembered(self, claim: Any, devices: list[Json]) -> list[Json]:
        """What is left of a claim that another process of the driver prepared."""
        has = self._has
        if claim.uid in self._answers or claim.uid not in self._node.state():
            return devices
        if has("a restart loses all devices but the first") or (
            self._node.rebooted and has("a reboot loses all devices but the first")
        ):
            devices = devices[:1]
        if has("a restart loses the share"):
            devices = [{key: value for key, value in one.items() if key != "shareID"} for one in devices]
        if has("a restart loses parameters") or (self._node.rebooted and has("a reboot loses parameters")):
            self._configs[claim.uid] = []
        return devices

    async def _mark(self, claim: Any, done: bool = False) -> None:
        """What a driver has no right to write."""
        has = self._has
        for fault, field, value in (
            ("it leaves a label on claims", "labels", {"bad": "true"}),
            ("it leaves a finalizer on claims", "finalizers", [f"{self._node.driver}/prepared"]),
        ):
            if has(fault):
                await self._api.patch(RESOURCE_CLAIMS, claim.name, {"metadata": {field: value}}, claim.namespace)
        if done and has("it clears the status of devices"):
            await self._api.patch(
                RESOURCE_CLAIMS, claim.name, {"status": {"devices": None}}, claim.namespace, subresource="status"
            )

    async def _fail_late(self, claim: Any) -> None:
        """What a driver has done that looks at each device when it prepares it."""
        found = await self._api.get(RESOURCE_CLAIMS, claim.name, claim.namespace)
        allocation = (found.get("status") or {}).get("allocation") or {"devices": {"results": []}}
        begun = [result for result in allocation["devices"]["results"] if self._is_known(result)]
        if begun and self._has("a failed claim leaves its files"):
            await self._describe(claim, begun)
        if begun and self._has("a failed claim keeps its devices"):
            await self._node.save({**self._node.state(), f"{claim.uid}-failed": self._entry(claim, begun)})

    def _entry(self, claim: Any, results: list[Json]) -> Json:
        return {"namespace": claim.namespace, "name": claim.name, "devices": results}

    def _check_name(self, claim: Any) -> None:
        has = self._has
        if has("each prepare leaks a descriptor"):
            os.open(os.devnull, os.O_RDONLY)
        if "." in claim.name and has("names with dots are refused"):
            raise Refused("the name has dots")
        if claim.uid in self._unreadable and has("it gives up on a claim when the server fails"):
            raise Refused("failed before")
        if has("each claim leaks memory"):
            self._hoard.append(os.urandom(1 << 16))
        if has("each claim leaves a thread"):
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        if has("each claim leaves a file"):
            (self._node.folder / f"seen-{claim.uid}").touch()
        if len(claim.namespace) > 40 and has("long namespaces are refused"):
            raise Refused("the namespace is too long")
        if claim.uid in self._failed and has("it remembers failures"):
            raise Refused("failed before")
        if claim.uid in self._answers and has("the second prepare fails"):
            raise Refused("prepared already")
        if claim.uid in self._unprepared and has("an unprepared claim stays so"):
            raise Refused("unprepared already")

    def _remembered(self, claim: Any) -> list[Json] | None:
        has, state = self._has, self._node.state()
        if has("it trusts its memory") and claim.uid in self._answers:
            return self._answers[claim.uid]
        if has("it knows claims by name"):
            return self._by_name.get((claim.namespace, claim.name))
        if has("it ignores namespaces"):
            return next((known for (_, name), known in self._by_name.items() if name == claim.name), None)
        if claim.uid in state and has("it trusts its state"):
            return self._answer(claim, state[claim.uid]["devices"])
        return None

    async def _from_allocation(self, claim: Any) -> list[Json]:
        """The results for this driver. Raises Refused, KubeError."""
        has, driver = self._has, self._node.driver_name
        try:
            found = await self._api.get(RESOURCE_CLAIMS, claim.name, claim.namespace)
        except NotFound:
            if has("it needs no claim"):
                return []
            raise
        if found["metadata"]["uid"] != claim.uid and not has("it ignores the uid"):
            raise Refused("the claim was replaced")
        self._check_users(found)
        allocation = (found.get("status") or {}).get("allocation")
        if not allocation:
            raise Refused("the claim is not allocated")
        results = allocation["devices"]["results"]
        if has("results belong to requests by their order"):
            results = _in_order(found, results)
        if not has("it prepares devices of other drivers"):
            results = [result for result in results if result["driver"] == driver]
        for result in results:
            if not self._is_known(result) and not has("it takes any device", NETWORK) and result["driver"] == driver:
                raise Refused(f"there is no device {result['device']}")
            if len(result["request"]) > 40 and has("long requests are refused"):
                raise Refused("the request is too long")
        if has("a claim has one share of a device"):
            results = list({(result["pool"], result["device"]): result for result in results}.values())
        found_config = allocation["devices"].get("config") or []
        if has("parameters stay for the next claim"):
            found_config = self._last_config = found_config or self._last_config
        if has("parameters of a claim are read once") or has("parameters of a prepared claim stay"):
            found_config = self._configs.get(claim.uid, found_config)
        self._configs[claim.uid] = found_config
        self._check_config(self._configs[claim.uid], {result["request"].partition("/")[0] for result in results})
        return list(results)

    def _check_users(self, found: Json) -> None:
        has, users = self._has, (found.get("status") or {}).get("reservedFor") or []
        if not users and has("variant: it refuses claims that are not reserved"):
            raise Refused("the claim is reserved for nobody")
        if len(users) > 1 and has("a claim of two pods is refused"):
            raise Refused("the claim has several users")
        if any(user["resource"] != "pods" for user in users) and has("a claim of a PodGroup is refused"):
            raise Refused("the user of the claim is no pod")
        if found["metadata"].get("deletionTimestamp") and has("a claim that is being deleted is refused"):
            raise Refused("the claim is being deleted")

    def _check_config(self, configs: list[Json], requests: set[str]) -> None:
        has = self._has
        for config in configs:
            opaque = config["opaque"]
            named = {request.partition("/")[0] for request in config.get("requests") or requests}
            if opaque["driver"] != self._node.driver_name and not has("it reads parameters of other drivers"):
                continue
            if not named & requests and not has("it reads parameters of other requests"):
                continue
            known = opaque["parameters"].keys() <= {"color"}
            if has("it ignores unknown fields"):
                known = "color" in opaque["parameters"]
            if has("it refuses all parameters") or (
                config["source"] == "FromClass" and has("it refuses class parameters")
            ):
                known = False
            if config["source"] == "FromClass" and has("it ignores bad parameters of classes"):
                known = True
            if not known and not has("it ignores bad parameters"):
                raise Refused(f"unknown parameters {opaque['parameters']}")

    async def _keep(self, claim: Any, results: list[Json]) -> None:
        """Enter the claim into the state. Raises Refused for a device in use."""
        has, state = self._has, self._node.state()
        forgets = has("a restart loses adminAccess") and self._node.starts > 1
        administrators_count = forgets or has("an administrator keeps users out")
        taken = {
            (device["pool"], device["device"])
            for uid, known in state.items()
            for device in known["devices"]
            if uid != claim.uid and (uid in self._answers or not has("it forgets at its end what is in use"))
            if administrators_count or not device.get("adminAccess")
        }
        looking = {
            (device["pool"], device["device"])
            for uid, known in state.items()
            for device in known["devices"]
            if uid != claim.uid and device.get("adminAccess") and has("one administrator keeps others out")
        }
        for result in results:
            exclusive = not result.get("shareID") or has("shares are exclusive")
            exclusive = exclusive and (not result.get("adminAccess") or has("it refuses admin access"))
            if result.get("adminAccess") and (result["pool"], result["device"]) in looking:
                raise Refused(f"device {result['device']} is looked at")
            if exclusive and (result["pool"], result["device"]) in taken and not has("it lends a device twice"):
                if result is not results[0] and has("it keeps the first device when the second is in use"):
                    await self._node.save({**state, f"{claim.uid}-failed": self._entry(claim, results[:1])})
                raise Refused(f"device {result['device']} is in use")
        held = [one for uid, known in state.items() if uid != claim.uid for one in known["devices"]]
        forgets = has("a restart forgets counters in use") and self._node.starts > 1
        lends = forgets or has("it overdraws counters", "it lends a device twice")
        if drawn(self._node, [*held, *results]) and not lends:
            raise Refused("its devices draw more on counters than there is")
        if has("it has no lock for its state"):
            await asyncio.sleep(0.2)
        if claim.uid in state and has("a new allocation keeps the old device"):
            state[f"{claim.uid}-old"] = state[claim.uid]
        if claim.uid in state and has("a new allocation leaves the old file"):
            path = self._node.cdi_file(claim)
            path.rename(path.with_name(f"{self._node.driver}-old-{path.name}"))
        state[claim.uid] = self._entry(claim, results)
        self.last_state = state
        await self._node.save(state)

    # --- answers and CDI ---

    def _kind(self) -> str:
        return f"{self._node.driver}/device"

    def _id(self, claim: Any, result: Json) -> str:
        has, name = self._has, f"{self._node.salt}-{claim.uid}-{result['device']}"
        if has("its ids have no device and files are kept", "edits are kept when a claim is unprepared"):
            name = f"{self._node.salt}-{claim.uid}-{result['request'].partition('/')[0]}"
        if result["pool"] != self._node.place.node and has(TWO_POOLS) and not has("it ignores pools"):
            name += "-of-second"
        if has("all devices have one id"):
            name = "device"
        if has("it numbers its ids"):
            name = f"{name}-{len(self._answers) + len(self._unprepared)}"
        return name

    def _answer(self, claim: Any, results: list[Json]) -> list[Json]:
        has = self._has
        answer: list[Json] = []
        if has("it prepares one device per request"):
            results = list({result["request"]: result for result in results}.values())
        for result in results:
            full = has("it names the subrequest") or (
                self._node.starts > 1 and has("it names the subrequest after a restart")
            )
            request = result["request"] if full else result["request"].partition("/")[0]
            device = PLAIN[-1] if has("it prepares another device") else result["device"]
            ids = [f"{self._kind()}={self._id(claim, result)}"]
            if has("its ids change each time"):
                ids = [f"{self._kind()}={uuid.uuid4()}"]
            if has("its ids are not qualified"):
                ids = [result["device"]]
            answer.append(
                {
                    "request_names": self._request_names(request),
                    "pool_name": result["pool"],
                    "device_name": device,
                    "cdi_device_ids": [] if has("it gives no ids") or (answer and has("one device has ids")) else ids,
                    "share_id": None if has("it drops the share") else result.get("shareID"),
                }
            )
        if has("ids of two requests are swapped"):
            ids_of = [one["cdi_device_ids"] for one in answer]
            answer = [{**one, "cdi_device_ids": ids} for one, ids in zip(answer, ids_of[::-1], strict=True)]
        return answer

    def _request_names(self, request: str) -> list[str]:
        if self._has("it names no request"):
            return []
        return ["other"] if self._has("it names another request") else [request]

    async def _describe(self, claim: Any, results: list[Json]) -> None:
        has, path = self._has, self._node.cdi_file(claim)
        if has("it writes no files") or (claim.uid in self._written and has("it writes a file once")):
            return
        if path.exists() and has("its ids have no device and files are kept", "it keeps damaged files"):
            return
        if has("it works on after a given up call"):
            task = asyncio.create_task(self._write_late(claim, results))
            self._work.add(task)
            await asyncio.shield(task)
            return
        spec = self._spec(claim, results)
        if has("edits are kept when a claim is unprepared"):
            spec = self._specs.setdefault(claim.uid, spec)
        self._node.write_cdi(path, spec)
        if has("each claim changes the files of all"):
            for other in self._node.place.cdi.glob(f"{self._node.driver}-*.json"):
                self._node.write_cdi(other, edited(json.loads(other.read_text()), spec))
        self._written.add(claim.uid)

    async def _write_late(self, claim: Any, results: list[Json]) -> None:
        await asyncio.sleep(0.4)
        self._node.write_cdi(self._node.cdi_file(claim), self._spec(claim, results))

    def _spec(self, claim: Any, results: list[Json]) -> Json:
        has = self._has
        all_edits = edits_of(self._node, claim, results, self._configs.get(claim.uid, []))
        spec: Json = {
            "cdiVersion": "0.0.7" if has("the CDI version does not exist") else "0.6.0",
            "kind": self._node.driver if has("the kind has no class") else self._kind(),
            "devices": [
                {"name": self._id(claim, result), "containerEdits": edits}
                for result, edits in zip(results, all_edits, strict=True)
            ],
        }
        if has("its CDI version is too low"):
            spec["cdiVersion"] = "0.3.0"
        if has("a file has no devices"):
            spec["devices"] = []
        if has("the name of a device is odd"):
            spec["devices"] = [{"name": "a b", "containerEdits": all_edits[0]}]
        return spec

    # --- unprepare ---

    async def unprepare(self, request: Any, messages: Any, context: Any) -> Any:
        has, claims, results = self._has, list(request.claims), {}
        await self._before(claims, context, "unprepare")
        if messages is v1beta1 and has("v1beta1 unprepares nothing"):
            return messages.NodeUnprepareResourcesResponse(
                claims={claim.uid: messages.NodeUnprepareResourceResponse() for claim in claims}
            )
        if self._busy and has("it unprepares one claim at a time"):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "busy")
        self._busy.add("unprepare")
        stopped = False
        for index, claim in enumerate(claims):
            error = ""
            known = self._is_prepared(claim)
            stopped = stopped or (not known and has("it stops at an unknown claim"))
            ignored = self._running and has("unprepare is ignored while it prepares")
            if not stopped and not ignored and not (index >= 3 and has("it unprepares at most 3 claims a call")):
                error = await self._unprepare_or_say(claim, known)
            results[claim.uid] = messages.NodeUnprepareResourceResponse(error=error)
        self._busy.discard("unprepare")
        if has("it skips claims to unprepare"):
            results = dict(list(results.items())[:1])
        return messages.NodeUnprepareResourcesResponse(claims=results)

    def _is_prepared(self, claim: Any) -> bool:
        try:
            return claim.uid in self._node.state()
        except Damaged:
            return False

    async def _unprepare_or_say(self, claim: Any, known: bool) -> str:
        has = self._has
        if has("it unprepares one claim at a time"):
            await asyncio.sleep(0.5)
        try:
            self._preparations[claim.uid] -= 1
            if self._preparations[claim.uid] > 0 and has("it counts preparations"):
                return ""
            if claim.uid in self._failed and has("failed claims stay"):
                raise Refused("never prepared")
            if not known and has("unknown claims fail"):
                raise Refused("unknown claim")
            if claim.uid in self._unprepared and has("the second unprepare fails"):
                raise Refused("unprepared already")
            if has("unprepare reads the claim") or (
                claim.uid not in self._answers and has("it forgets what it prepared")
            ):
                await self._api.get(RESOURCE_CLAIMS, claim.name, claim.namespace)
            await self._unprepare(claim, known)
        except (Refused, KubeError, OSError) as error:
            return str(error)
        self._unprepared.add(claim.uid)
        self._answers.pop(claim.uid, None)
        if not self._has("parameters of a claim are read once"):
            self._configs.pop(claim.uid, None)
        return ""

    async def _unprepare(self, claim: Any, known: bool) -> None:
        has, path = self._has, self._node.cdi_file(claim)
        held = self._node.state().get(claim.uid, {"devices": []})["devices"] if known else []
        if has("each unprepare leaks a descriptor"):
            os.open(os.devnull, os.O_RDONLY)
        if known and not path.exists() and has("missing files fail"):
            raise Refused("there is no CDI file")
        if not known and has(*BY_RECORD):
            return
        lost = not path.exists() and has("a device without files stays taken")
        async with self._lock:
            if known and not has("it never gives a device back") and not lost:
                state = {uid: one for uid, one in self._node.state().items() if uid != claim.uid}
                if any(one.get("adminAccess") for one in held) and has(
                    "unprepare of an administrator frees the device"
                ):
                    names = {one["device"] for one in held}
                    state = {
                        uid: {**one, "devices": [it for it in one["devices"] if it["device"] not in names]}
                        for uid, one in state.items()
                    }
                if held[1:] and has("unprepare frees the first device"):
                    state[f"{claim.uid}-rest"] = self._entry(claim, held[1:])
                self.last_state = state
                await self._node.save(state)
        if has("unprepare goes in two steps"):
            await asyncio.sleep(0.1)
        if has("it unprepares only what it prepared itself") and claim.uid not in self._answers:
            return
        self._remove_files(claim)
        if not has("it leaves device metadata"):
            remove_metadata(self._node, claim)
        self._take_along(held)
        with suppress(NotFound):
            await self._mark(claim, done=True)
        if has("it removes the empty CDI folder") and path.parent.exists() and not any(path.parent.iterdir()):
            path.parent.rmdir()

    def _take_along(self, held: list[Json]) -> None:
        """Remove the files of other claims that have a part of a shared device, or that hold a watched one."""
        faults = {
            "shareID": self._has("unprepare of a share takes the others along"),
            "adminAccess": self._has("unprepare of an administrator takes the device along"),
        }
        taken = {(one["pool"], one["device"]) for one in held if any(one.get(key) for key in faults if faults[key])}
        for uid, known in self._node.state().items():
            if taken & {(one["pool"], one["device"]) for one in known["devices"]}:
                (self._node.place.cdi / f"{self._node.driver}-{uid}.json").unlink(missing_ok=True)

    def _remove_files(self, claim: Any) -> None:
        has, folder = self._has, self._node.place.cdi
        if has("it leaves its files") or (claim.uid in self._failed and has("a failed claim leaves its files")):
            return
        with suppress(OSError) if has("errors of removing a file are ignored") else nullcontext():
            self._node.cdi_file(claim).unlink(missing_ok=True)
        pattern = None
        if has("unprepare removes all its files"):
            pattern = f"{self._node.driver}-*.json"
        if has("it cleans the CDI folder"):
            pattern = "*.json"
        if has("it removes files that begin like its own"):
            pattern = f"{self._node.driver}*{claim.uid}*"
        if has("it removes all files of a claim"):
            pattern = f"*{claim.uid}*"
        for path in folder.glob(pattern) if pattern else ():
            path.unlink()
        if has("unprepare goes by the name"):
            for uid, known in self._node.state().items():
                if known["name"] == claim.name:
                    (folder / f"{self._node.driver}-{uid}.json").unlink(missing_ok=True)
