"""Causes of the bench that lie in selectors, drivers, devices and what a claim asks of them."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Final

from bench_scene import GPUS, Break, Scene, World, breaks
from scheduling_causes import DRIVER, asks, cel, claim, pod
from told import Json

MODEL: Final = f'device.attributes["{DRIVER}"].model'
NUMA: Final = f'device.attributes["{DRIVER}"].numa'
VERSION: Final = f'device.attributes["{DRIVER}"].driverVersion'
ECC: Final = f'device.attributes["{DRIVER}"].ecc'
MEMORY: Final = f'device.capacity["{DRIVER}"].memory'


# --- selectors ---


@breaks
def _value(scene: Scene, /, wrong: str) -> str:
    scene.select(f'{MODEL} == "{wrong}"')
    return re.escape(f'"{wrong}"')


@breaks
def _selector(scene: Scene, /, expression: str, named: str = "") -> str:
    scene.select(expression)
    return named or re.escape(expression[:40])


@breaks
def _published(scene: Scene, /, expression: str, named: str, **attributes: Json) -> str:
    """A selector beside attributes that all devices have."""
    for it in scene.devices():
        it["attributes"].update(attributes)
    scene.select(expression)
    return named


def _two_terms(scene: Scene) -> str:
    for number, it in enumerate(scene.devices()):
        it["attributes"]["model"]["string"] = "h100" if number < 2 else "a100"
        it["capacity"]["memory"]["value"] = "40Gi" if number < 2 else "80Gi"
    scene.select(f'{MODEL} == "h100" && {MEMORY}.compareTo(quantity("80Gi")) >= 0')
    return "h100"


def _other_driver(scene: Scene) -> str:
    other = scene.random.choice(("nic.example.com", "fpga.example.com"))
    scene.select(f'device.driver == "{other}"')
    return f"devices of ({DRIVER}, )?{other}(, {DRIVER})? at once"


def _alternatives(scene: Scene) -> str:
    for spec in scene.specs:
        many = {"name": "many", "deviceClassName": "gpu", "count": 4}
        large = {"name": "large", "deviceClassName": "gpu", "selectors": [cel(f'{MODEL} == "h200"')]}
        spec["requests"][0] = {"name": "gpu", "firstAvailable": [large, many]}
    return "closest of 2 alternatives"


def _class_driver(scene: Scene) -> str:
    scene.world["DeviceClass", "gpu"]["spec"]["selectors"] = [cel('device.driver == "gpu.exmaple.com"')]
    return "driver gpu.exmaple.com publishes nothing"


def _no_driver(scene: Scene) -> str:
    gone = [scene.world.take("ResourceSlice", f"{name}-gpu") for name in GPUS]
    scene.mends.append(lambda world: world.add(*gone))
    return f"driver {DRIVER} publishes nothing: start it"


def _half_a_pool(scene: Scene) -> str:
    for name in GPUS:
        scene.world["ResourceSlice", f"{name}-gpu"]["spec"]["pool"]["resourceSliceCount"] = 2

    def publish(world: World) -> None:
        for name in GPUS:
            world["ResourceSlice", f"{name}-gpu"]["spec"]["pool"]["resourceSliceCount"] = 1

    scene.mends.append(publish)
    return "wait for driver gpu.example.com to publish the others"


@breaks
def _invalid(scene: Scene, /, spoil: Callable[[Json], object], named: str) -> str:
    """Slices that contradict themselves: their driver has to publish others."""
    slices = [scene.world["ResourceSlice", f"{name}-gpu"] for name in GPUS]
    right = copy.deepcopy([it["spec"]["devices"] for it in slices])
    for it in slices:
        for device in it["spec"]["devices"]:
            spoil(device)

    def publish(world: World) -> None:
        for name, devices in zip(GPUS, right, strict=True):
            world["ResourceSlice", f"{name}-gpu"]["spec"]["devices"] = devices

    scene.mends.append(publish)
    return f"{named}(?s:.*)driver {DRIVER} has to publish it otherwise"


def _draws_from_nowhere(device: Json) -> None:
    device["consumesCounters"] = [{"counterSet": "slots", "counters": {"memory": {"value": "40Gi"}}}]


# --- devices ---


def _too_many(scene: Scene) -> str:
    for request in scene.requests():
        request["count"] = scene.random.randint(3, 6)
    return "needs [3-6] devices|instead of [3-6]"


@breaks
def _held(scene: Scene, /, state: str) -> str:
    for name in GPUS:
        for number in range(2):
            user = f"train-{name}-{number}"
            users = [] if state == "unreserved" else [user]
            held = claim(asks(), name=f"{user}-c", held=[f"{name}/gpu-{number}"], node_name=name, users=users)
            scene.world.add(held)
            if state == "unreserved":
                continue
            it = pod(user, nodeName=name)
            it["metadata"]["uid"] = f"uid-{user}"
            it["status"] = {"phase": "Succeeded" if state == "finished" else "Running"}
            if state == "lost":
                it["metadata"] |= {"deletionTimestamp": "2030-01-01T11:30:00Z", "finalizers": ["example.com/x"]}
            if state == "service":
                it["spec"]["priority"] = 100
                owner = {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": "web",
                    "uid": "rs",
                    "controller": True,
                }
                it["metadata"]["ownerReferences"] = [owner]
            scene.world.add(it)
    return "ns/train-gpu-[12]-[01]"


def _some_held(scene: Scene) -> str:
    for request in scene.requests():
        request.pop("count", None)
        request["allocationMode"] = "All"
    for name in GPUS:
        scene.world.add(claim(asks(), name=f"other-{name}", held=[f"{name}/gpu-0"], node_name=name))
    return "1 in use|instead of all"


@breaks
def device_taint(scene: Scene, /, key: str, effect: str) -> str:
    for it in scene.devices():
        it["taints"] = [{"key": key, "value": "x", "effect": effect}]
    return re.escape(key)


def _rule(scene: Scene) -> str:
    spec = {"deviceSelector": {"driver": DRIVER}, "taint": {"key": "maintenance", "effect": "NoSchedule"}}
    meta = {"name": "maintenance"}
    scene.world.add(
        {"apiVersion": "resource.k8s.io/v1beta2", "kind": "DeviceTaintRule", "metadata": meta, "spec": spec}
    )
    return "DeviceTaintRule maintenance|key: maintenance"


def _wrong_toleration(scene: Scene) -> str:
    for request in scene.requests():
        request["tolerations"] = [{"key": "flakey", "operator": "Exists"}]
    return device_taint("flaky", "NoSchedule")(scene)


@breaks
def _constraint(scene: Scene, /, kind: str, attribute: str) -> str:
    for spec in scene.specs:
        spec["requests"].append(asks("second"))
        spec["constraints"] = [{kind: f"{DRIVER}/{attribute}", "requests": ["gpu", "second"]}]
    return re.escape(f"{DRIVER}/{attribute}")


@breaks
def _capacity(scene: Scene, /, name: str, amount: str, named: str, *, policy: Json | None = None) -> str:
    for it in scene.devices():
        it["allowMultipleAllocations"] = True
        if policy is not None:
            it["capacity"]["memory"]["requestPolicy"] = policy
    for request in scene.requests():
        request["capacity"] = {"requests": {name: amount}}
    return named


def _counters_drawn(scene: Scene) -> str:
    for name in GPUS:
        devices = scene.world["ResourceSlice", f"{name}-gpu"]
        devices["spec"]["pool"]["resourceSliceCount"] = 2
        counters = copy.deepcopy(devices)
        counters["metadata"]["name"] = f"{name}-counters"
        del counters["spec"]["devices"]
        counters["spec"]["sharedCounters"] = [{"name": "slots", "counters": {"memory": {"value": "40Gi"}}}]
        for it in devices["spec"]["devices"]:
            _draws_from_nowhere(it)
        scene.world.add(counters, claim(asks(), name=f"half-{name}", held=[f"{name}/gpu-0"], node_name=name))
    return "counter memory in set slots|delete claim ns/half-gpu-"


def _too_much_memory(scene: Scene) -> str:
    for it in scene.devices():
        it["allowMultipleAllocations"] = True
    for request in scene.requests():
        request["capacity"] = {"requests": {"memory": "60Gi"}}
    return "60Gi"


SELECTORS: Final[dict[str, Break]] = {
    "a value in capitals": _value("A100"),
    "a value with two letters swapped": _value("a010"),
    "a value with a letter missing": _value("a10"),
    "a value with a letter doubled": _value("aa100"),
    "a value that is cut short": _value("a1"),
    "a domain of another vendor": _selector('device.attributes["nvidia.com"].?model.orValue("") == "a100"'),
    "a mistyped domain": _selector('device.attributes["gpu.example.co"].?model.orValue("") == "a100"'),
    "a mistyped name": _selector(f'device.attributes["{DRIVER}"].modle == "a100"', "modle"),
    "a number that no device has": _selector(f"{NUMA} == 5"),
    "a number at the limit": _selector(f"{NUMA} > 1"),
    "a number as a text": _selector(f'{NUMA} == "1"'),
    "a quantity at the limit": _selector(f'{MEMORY}.isGreaterThan(quantity("40Gi"))'),
    "a quantity beyond the devices": _selector(f'{MEMORY}.compareTo(quantity("80Gi")) >= 0'),
    "a version beyond the devices": _selector(f'{VERSION}.isGreaterThan(semver("550.0.0"))'),
    "a version as a text": _selector(f'{VERSION} == "535.104.5"', "no such overload|no device|matches 0|0 match"),
    "a boolean as a text": _published(f'{ECC} == "true"', "ecc: true", ecc={"bool": True}),
    "the other boolean": _published(f"{ECC} == false", "ecc: true", ecc={"bool": True}),
    "what all devices are": _selector(f'!({MODEL} == "a100")'),
    "values in capitals": _selector(f'{MODEL} in ["A100", "H100"]', '"A100"'),
    "the beginning of a value in capitals": _selector(f'{MODEL}.startsWith("A1")', '"A1"'),
    "a pattern in capitals": _selector(f'{MODEL}.matches("^A100$")', "A100"),
    "a value in front of the name": _selector(f'"A100" == {MODEL}', '"A100"'),
    "two models that there are not": _selector(f'{MODEL} == "b200" || {MODEL} == "gb200"', "b200"),
    "a capacity as an attribute": _selector(
        f'device.attributes["{DRIVER}"].memory == "40Gi"', 'device.capacity\\["gpu.example.com"\\].memory is there'
    ),
    "a version by an operator": _selector(f'{VERSION} >= semver("535.0.0")', "overload|compareTo"),
    "a quantity by an operator": _selector(f'{MEMORY} >= quantity("40Gi")', "overload|compareTo"),
    "less than the least": _selector(f'{MEMORY}.isLessThan(quantity("40Gi"))'),
    "devices that can be shared": _selector("device.allowMultipleAllocations"),
    "another driver than that of the class": _other_driver,
    "alternatives of which none is there": _alternatives,
    "a model that there is not": _selector(f'{MODEL} == "b200"'),
    "one wrong condition of two": _selector(f'{MODEL} == "a100" && {NUMA} == 7'),
    "two conditions on two nodes": _two_terms,
    "a mistyped driver in the class": _class_driver,
    "a driver that is not there": _no_driver,
    "a pool that is published in part": _half_a_pool,
    "a counter set that no slice has": _invalid(_draws_from_nowhere, "counter set slots, which no slice of the pool"),
    "devices of one name": _invalid(lambda device: device.update(name="gpu"), "two devices are named gpu"),
}
DEVICES: Final[dict[str, Break]] = {
    "too many devices": _too_many,
    "devices in use": _held("running"),
    "devices in use by a service of higher priority": _held("service"),
    "devices held for finished pods": _held("finished"),
    "devices held for no pod": _held("unreserved"),
    "all devices, some in use": _some_held,
    "a device taint": device_taint("flaky", "NoSchedule"),
    "a device taint that evicts": device_taint("drain", "NoExecute"),
    "broken devices": device_taint("gpu.example.com/xid-errors", "NoExecute"),
    "a device taint rule": _rule,
    "a toleration of another taint": _wrong_toleration,
    "devices on two roots": _constraint("matchAttribute", "root"),
    "a constraint on an attribute that there is not": _constraint("matchAttribute", "switch"),
    "a mistyped attribute of a constraint": _constraint("matchAttribute", "modle"),
    "devices of one model": _constraint("distinctAttribute", "model"),
    "more memory than a device has": _too_much_memory,
    "a mistyped capacity": _capacity("memroy", "10Gi", "memroy"),
    "an amount that no policy allows": _capacity(
        "memory",
        "30Gi",
        "allows 10Gi, 20Gi|instead of 30Gi",
        policy={"default": "10Gi", "validValues": ["10Gi", "20Gi"]},
    ),
    "counters that others drew": _counters_drawn,
}
