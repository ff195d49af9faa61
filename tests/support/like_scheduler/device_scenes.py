"""Random scenes about devices: the allocator's random problems without what the reference is known to do wrong.

Left out (allocator.md section 15): admin access, older generations, counters together with taints, constraints or
shares, ``distinctAttribute`` over many devices. What an API server refuses is left out as well, and so are binding
conditions, because the pod would wait for them.
"""

from __future__ import annotations

import json
from random import Random

from allocator_problems import SELECTORS, LocalMaker, Maker

from .scene import Json, Probe, Scene

_WAITING = ("bindingConditions", "bindingFailureConditions", "bindsToNode")
_PROBES = 4


class _Undisputed(Maker):
    """``kind`` decides which features a scene has, apart from those of all scenes."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.devices_left = random.randint(6, 18)
        self.kind = random.choice(("counters", "shares", "constraints"))

    def selectors(self) -> list[Json]:
        return [{"cel": {"expression": text}} for text in self.some(SELECTORS, 1)]

    def selector(self, terms: int) -> Json:
        return super().selector(1)

    def place(self, *, per_device: bool) -> Json:
        place = super().place(per_device=per_device)
        return {"allNodes": True} if '"Is"' in json.dumps(place) else place

    def attributes(self, driver: str) -> Json:
        return {name: value for name, value in super().attributes(driver).items() if value != {"strings": []}}

    def device(self, name: str, driver: str, counters: Json | None, *, per_device: bool) -> Json:
        made = super().device(name, driver, counters, per_device=per_device)
        left_out = {"counters": ("taints", "allowMultipleAllocations"), "shares": ("consumesCounters",)}
        others = ("consumesCounters", "allowMultipleAllocations")
        for field in (*_WAITING, *left_out.get(self.kind, others)):
            made.pop(field, None)
        for capacity in made.get("capacity", {}).values():
            capacity.pop("requestPolicy", None)
            if made.get("allowMultipleAllocations") and self.chance(50):
                capacity["requestPolicy"] = {"default": "1", "validRange": {"min": "1", "max": capacity["value"]}}
        return made

    def pool(self, driver: str, name: str) -> list[Json]:
        slices = super().pool(driver, f"{driver}-{name}")  # pools of two drivers have different names
        return [each for each in slices if each["spec"]["pool"]["generation"] == 2]

    def wanted(self, *, sub: bool) -> Json:
        made = super().wanted(sub=sub)
        made.pop("adminAccess", None)
        if made["allocationMode"] == "ExactCount":
            made["count"] = self.pick((1, 1, 1, 2))
        return made

    def claim(self, number: int) -> Json:
        made = super().claim(number)
        devices = made["spec"]["devices"]
        devices["requests"] = devices["requests"][: self.pick((1, 1, 2))]
        names = {request["name"] for request in devices["requests"]}
        constraints = [] if self.kind == "counters" else devices["constraints"]
        devices["constraints"] = [it for it in constraints if "matchAttribute" in it]
        for part in (*devices["constraints"], *devices["config"]):
            part["requests"] = [name for name in part.get("requests", []) if name.split("/")[0] in names]
        del made["metadata"]["uid"]
        return made


class _UndisputedLocal(_Undisputed, LocalMaker):
    """The same, with most devices of one node each."""


def device_scene(seed: int) -> Scene:
    """Pods with claims; some stay, and some use a claim of one that stays."""
    random = Random(seed)
    maker = random.choice((_Undisputed, _UndisputedLocal))(random)
    case = maker.case()
    for node in case["nodes"]:
        node["status"] = {"allocatable": {"cpu": random.choice(("2", "4")), "memory": "4Gi", "pods": "110"}}
    probes: list[Probe] = []
    shared: list[str] = []
    for number in range(_PROBES):
        claims = [maker.claim(10 * number + place) for place in range(random.choice((1, 1, 2)))]
        names = [claim["metadata"]["name"] for claim in claims]
        stays = random.random() < 0.5
        used = [*names, random.choice(shared)] if shared and random.random() < 0.3 else names
        probes.append(Probe(_pod(f"p{number}", used, random.choice(("100m", "1"))), claims, stays))
        shared += names if stays else []
    return Scene({"ns": None}, case["nodes"], [], probes, case["classes"], case["slices"])


def _pod(name: str, claims: list[str], cpu: str) -> Json:
    spec = {
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "c", "image": "none", "resources": {"requests": {"cpu": cpu}}}],
        "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in claims],
    }
    return {"metadata": {"name": name, "namespace": "ns"}, "spec": spec}
