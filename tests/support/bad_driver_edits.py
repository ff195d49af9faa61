"""What the bad driver gives to containers: its devices by name, and the parameters of their requests.

Without a fault each device has a variable with its name and one with its claim, a folder of its own, and what
parameters say. Some of the ways in which drivers may differ are variants, not faults: the kit must not mind them.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

from bad_driver_node import FIRST, TWO_POOLS, BadNode, Json


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
    return [{**one, **_odd(node)} for one in edits]


def _called(node: BadNode, result: Json) -> str:
    """The device as a container knows it, with its pool if there are several."""
    return f"{result['pool']}-{result['device']}" if node.has(TWO_POOLS) else str(result["device"])


def remove_metadata(node: BadNode, claim: Any) -> None:
    """Remove the files that describe the claim's devices."""
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
    if not named or has("parameters are for all requests"):
        return True
    if has("parameters for a subrequest are for all"):
        return base in {name.partition("/")[0] for name in named}
    if has("parameters for a request miss its subrequests"):
        return request in named
    return base in named or (request in named and not has("parameters for a subrequest are lost"))


def _odd(node: BadNode) -> Json:
    has, edits = node.has, Json()
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
