"""What the instances of the bad driver on one node have in common: names, devices, files, and what containers get."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from dra_driver_test.kit import Place
from dra_kube import RESOURCE_CLAIMS, Api, NotFound

Json = dict[str, Any]
SHARED_ONLY, PARTITIONS, NETWORK, TWO_POOLS = (
    "kind: shared only",
    "kind: partitions",
    "kind: network-attached",
    "kind: two pools",
)
KINDS = (SHARED_ONLY, PARTITIONS, NETWORK, TWO_POOLS)
"""What a sound driver may be beside a plain one."""
FIRST = "gpu-0"
"""A device that every kind has."""


class Damaged(Exception):
    """The state cannot be read: nothing is prepared until it is mended."""


class BadNode:
    """The driver's files on a node, and its faults."""

    def __init__(self, place: Place, driver: str, faults: frozenset[str]) -> None:
        self.place, self.driver, self.faults = place, driver, faults
        self.starts = 0
        self.uid = ""
        self.rebooted = False
        self._known: set[str] = set()

    def has(self, *faults: str) -> bool:
        self._known.update(faults)
        return not self.faults.isdisjoint(faults)

    @property
    def driver_name(self) -> str:
        """The name that it registers and publishes."""
        if self.has("its name is in upper case"):
            return self.driver.upper()
        if self.has("its name changes at each start"):
            return f"{self.starts}-{self.driver}"
        return self.driver

    @property
    def folder(self) -> Path:
        return self.place.plugins / self.driver

    @property
    def salt(self) -> str:
        """What CDI ids begin with; it should never change."""
        if self.has("its ids change at each start"):
            return f"s{self.starts}"
        if self.has("its ids change after a kill"):
            kept = self.folder / "salt"
            return kept.read_text() if kept.exists() else f"s{self.starts}"
        return "claim"

    def _remove(self, pattern: str) -> None:
        for path in self.place.cdi.glob(pattern):
            path.unlink()

    def remember(self) -> None:
        """What happens at a clean stop only."""
        if self.has("it removes its files when it stops"):
            self._remove(f"{self.driver}-*.json")
        if self.has("its ids change after a kill"):
            (self.folder / "salt").write_text(self.salt)

    # --- state: claim uid to namespace, name and [pool, device, may be taken twice] ---

    @property
    def _file(self) -> Path:
        return self.folder / "state.json"

    def state(self) -> dict[str, Json]:
        """What is prepared."""
        try:
            loaded: dict[str, Json] = json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            if self.has("it forgets a damaged state"):
                return {}
            raise Damaged(f"the state is damaged: {error}") from error
        return loaded

    async def save(self, state: dict[str, Json]) -> None:
        """In one step."""
        if self.has("it remembers three claims"):
            state = dict(list(state.items())[-3:])
        if self.has("its state is written in place"):
            await self.write_in_place(state)
        hidden = self.folder / ".state"
        hidden.write_text(json.dumps(state))
        if self.has("every user can write its state"):
            hidden.chmod(0o666)
        hidden.replace(self._file)

    async def write_in_place(self, state: dict[str, Json], seconds: float = 0.3) -> None:
        """With some seconds in which the file is not whole."""
        self._file.write_text("{")
        await asyncio.sleep(seconds)
        self._file.write_text(json.dumps(state))

    # --- CDI files ---

    def cdi_file(self, claim: Any) -> Path:
        if self.has("its files are named by claims"):
            return self.place.cdi / f"{self.driver}-{claim.namespace}-{claim.name}-{claim.uid}.json"
        return self.place.cdi / f"{self.driver}-{claim.uid}.json"

    def write_cdi(self, path: Path, spec: Json) -> None:
        """Write a file, complete when it appears."""
        text = json.dumps(spec)
        if not self.has("it needs the CDI folder"):
            path.parent.mkdir(exist_ok=True)
        if self.has("a file is not JSON"):
            text = text[:-1]
        if self.has("it writes files in place"):
            path.write_text(text)
        else:
            hidden = path.parent / f".{uuid.uuid4()}"
            hidden.write_text(text)
            hidden.replace(path)
        if self.has("every user can write its files"):
            path.chmod(0o666)
        if self.has("it leaves temporary files"):
            (path.parent / f"{path.name}.tmp").touch()
        if self.has("two files describe a device"):
            (path.parent / f"again-{path.name}").write_text(text)

    # --- start ---

    def check_start(self) -> None:
        """Raises what ends a bad driver at its start."""
        try:
            state = self.state()
        except Damaged:
            if self.has("it does not start with a damaged state"):
                raise
            state = {}
        emptied = bool(state and not list(self.place.cdi.glob("*.json")))
        self.rebooted = self.rebooted or emptied
        if self.starts > 1 and self.has("it removes its files when it starts"):
            self._remove(f"{self.driver}-*.json")
        if self.starts > 1 and self.has("it removes files that contain its name when it starts"):
            self._remove(f"*{self.driver}-2*")
        if emptied and self.has("it does not start after a reboot"):
            raise RuntimeError("the state does not fit the CDI folder")

    async def check_claims(self, api: Api) -> None:
        if self.has("it waits for ever when its start fails"):
            await api.list(RESOURCE_CLAIMS)
        if not self.has("it reads prepared claims when it starts"):
            return
        for known in self.state().values():
            try:
                await api.get(RESOURCE_CLAIMS, known["name"], known["namespace"])
            except NotFound as error:
                raise RuntimeError(f"a prepared claim is missing: {error}") from error


# --- What the bad driver publishes: pools with their counters and devices, by the kind of driver that it is ---

PLAIN = [f"gpu-{number}" for number in range(4)]
SHARED, PART, TAINTED, WHOLE = "shared-0", "part-0", "tainted-0", "whole-0"
_ROOT, _NUMA = "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"


class Offer(NamedTuple):
    """A pool."""

    counters: list[Json]
    devices: list[Json]


def pools_of(node: BadNode) -> dict[str, Offer]:
    here = node.place.node
    if node.has(SHARED_ONLY):
        return {here: Offer([], [_shared(name) for name in PLAIN])}
    if node.has(PARTITIONS):
        boards = [_board(number) for number in range(2)]
        return {here: Offer([one for counters, _ in boards for one in counters], [d for _, ds in boards for d in ds])}
    if node.has(NETWORK):
        return {f"fabric-{here}": Offer([], _plain(node))}
    if node.has(TWO_POOLS):
        return {here: Offer([], _plain(node)[:2]), f"second-{here}": Offer([], _plain(node, "SN-8")[:2])}
    return {here: Offer(_counters(node), _mixed(node))}


def devices_of(node: BadNode) -> dict[tuple[str, str], Json]:
    return {(pool, one["name"]): one for pool, offer in pools_of(node).items() for one in offer.devices}


def drawn(node: BadNode, held: list[Json]) -> bool:
    """Whether the devices draw more on a counter than there is."""
    known, total = devices_of(node), dict[Any, int]()
    for device in {(one["pool"], one["device"]) for one in held}:
        for use in known.get(device, {}).get("consumesCounters", []):
            for name, amount in use["counters"].items():
                key = (device[0], use["counterSet"], name)
                total[key] = total.get(key, 0) + int(amount["value"].removesuffix("Gi"))
    there = {
        (pool, one["name"], name): int(amount["value"].removesuffix("Gi"))
        for pool, offer in pools_of(node).items()
        for one in offer.counters
        for name, amount in one["counters"].items()
    }
    return any(amount > there.get(key, 0) for key, amount in total.items())


def _shared(name: str) -> Json:
    policy = {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}
    memory = {"value": "8Gi", "requestPolicy": policy}
    return {"name": name, "allowMultipleAllocations": True, "capacity": {"memory": memory}}


def _board(number: int) -> tuple[list[Json], list[Json]]:
    name = f"board-{number}"
    parts = {f"gpu-{number}": 40}
    parts |= {f"gpu-{number}-half-{part}": 20 for part in range(2)}
    parts |= {f"gpu-{number}-quarter-{part}": 10 for part in range(4)}
    devices: list[Json] = [
        {"name": part, "consumesCounters": [{"counterSet": name, "counters": {"memory": {"value": f"{size}Gi"}}}]}
        for part, size in parts.items()
    ]
    return [{"name": name, "counters": {"memory": {"value": "40Gi"}}}], devices


def _plain(node: BadNode, serial: str = "SN-7") -> list[Json]:
    root = "0000:00" if node.has("a standard attribute has an odd form") else "pci0000:00"
    if node.has("instances fight over slices"):
        root = f"pci0000:0{node.starts}"
    if node.has("a restart changes attributes") and node.starts > 1:
        root = "pci0000:99"
    numa = {"int": -1 if node.has("a NUMA node is -1") else 0}
    if node.has("variant: nothing tells devices apart"):
        return [{"name": name} for name in PLAIN]
    more = {}
    if node.has("an attribute changes every ten seconds"):
        more["temperature"] = {"int": int(time.time() // 10)}
    names = PLAIN
    if node.has("its devices are in another order at each start"):
        names = [*PLAIN[node.starts % 4 :], *PLAIN[: node.starts % 4]]
    return [
        {
            "name": name,
            "attributes": {_ROOT: {"string": root}, _NUMA: numa, "serial": {"string": f"{serial}{name}"}, **more},
        }
        for name in names
    ]


def _counters(node: BadNode) -> list[Json]:
    name = "others" if node.has("a counter is not defined") else "slices"
    return [{"name": "board", "counters": {name: {"value": "2"}}}]


def _mixed(node: BadNode) -> list[Json]:
    has = node.has
    devices = _plain(node)
    if has("it shares all devices"):
        devices = [{**device, "allowMultipleAllocations": True} for device in devices]
    taint = {"key": "bad.example.com/flaky", "effect": "NoSchedule"}
    if has("taints are new at each start"):
        taint["timeAdded"] = f"2026-01-0{node.starts}T00:00:00Z"
    uses = [
        [{"counterSet": "board", "counters": {"slices": {"value": str(amount)}}}] for amount in (1, 2)
    ]  # a part, the whole
    if has("it has no devices"):
        return []
    if has("all its devices exclude each other"):
        return [{"name": name, "consumesCounters": uses[1]} for name in PLAIN]
    if has("it has one device"):
        return devices[:1]
    return [
        *devices,
        _shared(SHARED),
        {"name": PART, "consumesCounters": uses[0]},
        {"name": WHOLE, "consumesCounters": uses[1]},
        {"name": TAINTED, "taints": [taint]},
    ]


# --- What the bad driver gives to containers: its devices by name, and the parameters of their requests ---


def edits_of(node: BadNode, claim: Any, results: list[Json], configs: list[Json]) -> list[Json]:
    """The edits of each device of a claim."""
    has = node.has
    held = [_called(node, result) for result in results]
    if has("edits of two requests are swapped"):
        held = held[::-1]
    told = [[name] for name in held]
    if has("each request gets all devices", "variant: one CDI device for the whole claim"):
        told = [held for _ in held]
    if has("a request gets its first device"):
        told = [held[:1] for _ in held]
    token = uuid.uuid4()
    edits = [
        _device(node, held.index(names[0]), names, _parameters(node, result, configs))
        for names, result in zip(told, results, strict=True)
    ]
    if has("variant: something new each time"):
        for one in edits:
            one["env"] += [f"CLAIM={claim.name}", f"UID={claim.uid}", f"TOKEN={token}"]
    if has("its edits are empty"):
        return [{} for _ in edits]
    for result, one in zip(results, edits, strict=True):
        one.setdefault("mounts", []).append(_metadata(node, claim, result["request"], results))
    return [{**one, **_odd(node, one)} for one in edits]


def _called(node: BadNode, result: Json) -> str:
    """The device as a container knows it, with its pool if there are several."""
    if node.has(TWO_POOLS) and not node.has("containers get a device by its name alone"):
        return f"{result['pool']}-{result['device']}"
    return str(result["device"])


def remove_metadata(node: BadNode, claim: Any) -> None:
    for file in node.folder.glob(f"{claim.uid}-*-metadata.json"):
        file.unlink()


def _metadata(node: BadNode, claim: Any, name: str, results: list[Json]) -> Json:
    """The mount of a file that describes the devices of a request."""
    request = name.partition("/")[0]
    devices = [
        {"driver": node.driver_name, "pool": one["pool"], "name": one["device"]}
        for one in results
        if one["request"] == name
    ]
    if node.has("its device metadata name no device"):
        devices = [{**one, "name": ""} for one in devices]
    content = {"kind": "DeviceMetadata", "requests": [{"name": name, "devices": devices}]}
    versions = ["v1alpha1"] if node.has("its device metadata are v1alpha1 only") else ["v1beta1", "v1alpha1"]
    objects = [{"apiVersion": f"metadata.resource.k8s.io/{version}", **content} for version in versions]
    file = node.folder / f"{claim.uid}-{request}-metadata.json"
    file.write_text("".join(map(json.dumps, objects)) if not node.has("its device metadata are empty") else "{}")
    folder = "/var/run/kubernetes.io/dra-device-attributes/resourceclaims"
    path = f"{folder}/{claim.name}/{request}/{node.driver_name}-metadata.json"
    return {"hostPath": str(file), "containerPath": path, "options": ["ro", "bind"]}


def _device(node: BadNode, index: int, names: list[str], parameters: list[str]) -> Json:
    has = node.has
    if has("every container gets the first device"):
        names = [FIRST]
    if has("a restart gives all claims the first device") and node.starts > 3:
        names = [FIRST]
    variables = [f"DEVICE_{index + number}={name}" for number, name in enumerate(names)]
    if has("two devices have one variable"):
        variables = [f"DEVICE={names[0]}"]
    if has("variant: a number on top"):
        variables = [f"DEVICE={names[0]}", *variables]
    if has("variant: one variable for all"):
        variables = [f"DEVICES={','.join(names)}"]
    lost = has("a reboot takes the edits") and node.rebooted
    if lost or has("every container gets the same", "variant: nothing tells devices apart"):
        variables = ["BOARD=/dev/board0"]
    edits: Json = {"env": [*variables, *parameters]}
    if has("two devices are mounted at one path"):
        (node.folder / names[0]).mkdir(exist_ok=True)
        edits["mounts"] = [{"hostPath": str(node.folder / names[0]), "containerPath": "/device"}]
    return edits


def _parameters(node: BadNode, result: Json, configs: list[Json]) -> list[str]:
    """What counts for the device: of several values the last one, and those of classes come first."""
    has, request = node.has, result["request"]
    found: Json = {}
    if has("parameters of the claim hide the class"):
        configs = [it for it in configs if it["source"] == "FromClaim"] or configs
    for config in configs[::-1] if has("the first parameters win") else configs:
        if config["opaque"]["driver"] != node.driver_name or not _is_for(node, config.get("requests"), request):
            continue
        given = config["opaque"]["parameters"]
        if config["source"] == "FromClaim" and has("parameters of the class win"):
            given = {key: value for key, value in given.items() if key not in found}
        found |= given
    return [f"user_{key}={value}" for key, value in found.items()]


def _is_for(node: BadNode, named: list[str] | None, request: str) -> bool:
    has, base = node.has, request.partition("/")[0]
    if named and has("parameters for several requests reach the first"):
        named = named[:1]
    if not named or has("parameters are for all requests"):
        return True
    if has("parameters for a subrequest are for all"):
        return base in {name.partition("/")[0] for name in named}
    if has("parameters for a request miss its subrequests"):
        return request in named
    return base in named or (request in named and not has("parameters for a subrequest are lost"))


def _odd(node: BadNode, before: Json) -> Json:
    has, edits = node.has, Json()
    if has("it sets PATH"):
        edits["env"] = [*before["env"], "PATH=/opt/vendor/bin"]
    if has("a variable has no value"):
        edits["env"] = ["DEVICE"]
    if has("a device node has odd permissions"):
        edits["deviceNodes"] = [{"path": "/dev/null", "permissions": "xyz"}]
    if has("a device node has no path"):
        edits["deviceNodes"] = [{"path": ""}]
    if has("a host path is missing"):
        edits["deviceNodes"] = [{"path": "/dev/no-such-device"}]
    if has("its CDI version is too low"):
        edits["deviceNodes"] = [{"path": "/dev/zero", "hostPath": "/dev/null"}]
    if has("a field is misspelt"):
        edits["enviroment"] = ["A=b"]
    return edits


def edited(spec: Json, like: Json) -> Json:
    """The file with the edits of another one."""
    edits = like["devices"][0]["containerEdits"]
    return {**spec, "devices": [{**one, "containerEdits": edits} for one in spec["devices"]]}
