"""What has to be when all is quiet: claims that are wanted are prepared, and slices are as the hardware."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .drivers import NODE

if TYPE_CHECKING:
    from .kubelet import Claim, Pod
    from .stage import Stage


def faults_of(stage: Stage) -> Iterator[str]:
    """One line for each thing that is not as it should be."""
    yield from _of_slices(stage)
    for pod in stage.kubelet.pods:
        if not pod.is_wanted:
            yield f"pod {pod.name} is not unprepared: {pod.error}"
            continue
        yield from _of_files(stage, pod)
        if not pod.is_prepared and not any(why_not(stage, claim) for claim in pod.claims):
            yield f"pod {pod.name} is not prepared: {pod.error}"


def why_not(stage: Stage, claim: Claim) -> str:
    """Why a claim may not be prepared; empty if it should be."""
    if stage.judge.is_torn(claim.uid):
        return "its record is damaged"
    wanted = [other for pod in stage.kubelet.pods for other in pod.claims if other is not claim]
    torn = list(stage.judge.torn())
    for device in claim.devices:
        node = stage.node_of(device)
        if node is None:
            return f"{device} is gone"
        for other in (*wanted, *torn):
            if claim.excludes(other):
                return f"{other.uid} has {device}"
            if other.name == claim.name:
                return f"{other.uid} has the name"
            others = set() if claim.is_admin or other.is_admin else set(other.devices) - {device}
            if not stage.hardware.is_fixed and any(node in stage.hardware.had[each] for each in others):
                return f"{other.uid} may have had {node}"
        for other in torn:  # it does not follow a device that moves, perhaps to where the claim had another one before
            moved = len(stage.hardware.had[device]) > 1
            if moved and device in other.devices and not (claim.is_admin or other.is_admin):
                return f"the damaged record of {other.uid} has a share of {device}, which has moved"
    return ""


def _of_files(stage: Stage, pod: Pod) -> Iterator[str]:
    for claim in pod.claims:
        there = {stage.node_of(device) for device in claim.devices}
        given = stage.judge.nodes_given(claim.uid)
        if None in there:
            if given and not stage.hardware.is_fixed:
                yield f"a device of {claim.uid} is gone, and its CDI files give {sorted(given)}"
        elif not given and why_not(stage, claim):
            pass  # withdrawn
        elif pod.is_prepared and not stage.hardware.is_fixed and given != there:
            yield f"the CDI files of {claim.uid} give {sorted(given)} instead of {sorted(filter(None, there))}"


def _of_slices(stage: Stage) -> Iterator[str]:
    slices = stage.server.of("resourceslices")
    if len({item["spec"]["pool"]["generation"] for item in slices}) > 1:
        yield f"slices of several generations: {[item['metadata']['name'] for item in slices]}"
    for item in slices:
        if item["spec"]["pool"]["resourceSliceCount"] != len(slices) or item["spec"]["pool"]["name"] != NODE:
            yield f"{len(slices)} slices, of which one says {item['spec']['pool']}"
    devices = [device for item in slices for device in item["spec"].get("devices", ())]
    for name, count in Counter(device["name"] for device in devices).items():
        if count > 1:
            yield f"device {name} is published {count} times"
    published = sorted(device["name"] for device in devices if not device.get("taints"))
    there = [name for name in stage.hardware.devices() if stage.node_of(name)]
    if published != there:
        yield f"published are {published}, the host has {there}"
