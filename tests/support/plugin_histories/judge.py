"""Knows what must never be, from the files, the answers and the hardware; nothing of the plugin's code is used.

- An answer names the claim's own devices, and each has a CDI device in a file that is there.
- A CDI file is about a claim that the kubelet has asked to prepare since it was unprepared last. It names devices of
  that claim, and nodes that these devices have had.
- A claim that is prepared for the first time gets no node that a container of another claim has open, and no device.
- A claim that is prepared was set up by the driver. One that is unprepared has neither that, nor CDI file, nor record.
- Files of other drivers stay as they are.
- For longer than some seconds no CDI file gives a node that the device has no more, and no device is published that is
  gone, unless something keeps the plugin from its work.

What has to be when all is quiet: claims that are wanted are prepared, and slices are as the hardware.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dra_kube import RESOURCE_SLICES

from .drivers import NAME, NODE, Hardware
from .kubelet import Claim, Pod

OTHERS = {
    f"{NAME}-nic-uid-1-req-0.json": f'{{"cdiVersion":"0.6.0","kind":"{NAME}-nic/claim","devices":[]}}',
    f".{NAME}-nic=uid-1-x.tmp": "half of a fi",
    "vendor.json": "{",
}
"""Files of other drivers in the CDI folder."""


MOMENT_SECONDS = 6.0
"""A look each second finds what is gone, and writes that at once; files follow the hardware as quickly."""


class Given(NamedTuple):
    """What the CDI files of a claim give to a container, by the id of a CDI device."""

    devices: frozenset[str]
    nodes: frozenset[str]
    mounts: frozenset[str] = frozenset()


class Judge:
    """``findings`` is what went wrong."""

    def __init__(self, folder: Path, hardware: Hardware, now: Callable[[], float]) -> None:
        self._cdi, self._records = folder / "cdi", folder / "data" / "claims"
        self._metadata = folder / "data" / "dra-device-metadata"
        self._hardware, self._now = hardware, now
        self.findings: list[str] = []
        self.damaged: dict[str, float] = {}
        """By uid, when its CDI files were last damaged from outside."""
        self._asked: dict[str, str] = {}  # by uid the last call
        self._asked_at: dict[str, float] = {}
        self._claims: dict[str, Claim] = {}
        self._open: dict[str, Given] = {}  # by uid, what its container has open
        self._anew: set[str] = set()  # claims whose files are still those of the former allocation
        self._torn: dict[str, Claim] = {}  # by uid, the claims in records that were damaged, as they were prepared
        self._first: set[str] = set()  # claims that were never prepared
        self._others: dict[str, tuple[int, int, int]] = {}
        self._stale: dict[str, float] = {}
        self._gone: dict[str, float] = {}
        self._paths: dict[str, Path] = {}
        self._contents: dict[str, tuple[tuple[int, int, int], list[tuple[str, Given]]]] = {}
        """By name of a CDI file, what it gave when it was read last; most looks find it unchanged."""
        self.plugin_is_well: Callable[[], bool] = lambda: False
        """Whether nothing keeps the plugin from following the hardware."""
        self.server_is_well: Callable[[], bool] = lambda: False
        """The same for what it publishes."""
        self.published: Callable[[], Iterable[str]] = tuple
        """The devices that a scheduler may give."""

    def find(self, what: str) -> None:
        line = f"{self._now():.3f} {what}"
        if what not in {known.partition(" ")[2] for known in self.findings}:
            self.findings.append(line)

    # --- what the kubelet does ---

    def asks(self, method: str, pod: Pod) -> None:
        for claim in pod.claims:
            if claim.uid not in self._claims:
                self._claims[claim.uid] = claim
                self._first.add(claim.uid)
            self._asked[claim.uid] = method
            self._asked_at[claim.uid] = self._now()

    def allocated_anew(self, claim: Claim) -> None:
        """Another pod has the claim, with other devices; containers of the former one are ended."""
        if claim.uid in self._claims:
            if self._claims[claim.uid].devices != claim.devices:
                self._first.add(claim.uid)
            self._claims[claim.uid] = claim
        self._open.pop(claim.uid, None)
        self._anew.add(claim.uid)

    def answered(self, pod: Pod, answer: Any) -> None:
        """The plugin answers a call to prepare; some claims may have an error."""
        uids = {claim.uid for claim in pod.claims}
        for uid in answer.claims.keys() - uids:
            self.find(f"an answer about {uid}, which nothing asked for")
        for claim in pod.claims:
            if claim.uid in answer.claims and not answer.claims[claim.uid].error:
                self._check_answer(claim, answer.claims[claim.uid].devices)

    def _check_answer(self, claim: Claim, devices: Any) -> None:
        found = {(device.pool_name, device.device_name) for device in devices}
        if found != {(NODE, device) for device in claim.devices}:
            self.find(f"claim {claim.uid} has {claim.devices}, the answer {sorted(found)}")
        self._anew.discard(claim.uid)
        given = dict(self._given(claim.uid))
        for device in devices:
            for cdi_id in device.cdi_device_ids:
                if cdi_id not in given and self.damaged.get(claim.uid, -1) < self._asked_at[claim.uid]:
                    self.find(f"the answer for {claim.uid} names {cdi_id}, which no file has")
                elif cdi_id in given and given[cdi_id].devices - {device.device_name}:
                    self.find(f"{cdi_id} of {claim.uid} gives {sorted(given[cdi_id].devices)}")
            if not device.cdi_device_ids:
                self.find(f"device {device.device_name} of {claim.uid} has no CDI id")
        for path in {path for each in given.values() for path in each.mounts}:
            self._check_metadata(claim, path)
        if claim.uid not in self._hardware.set_up:
            self.find(f"the answer says that {claim.uid} is prepared, the driver has not set it up")
        if claim.uid in self._first:
            self._first.discard(claim.uid)
            self._check_new(claim, given.values())

    def _check_metadata(self, claim: Claim, path: str) -> None:
        """A container cannot start without what it mounts."""
        if not os.path.exists(path):
            self.find(f"a container with {claim.uid} mounts {os.path.basename(path)}, which is not there")
            return
        content = json.loads(Path(path).read_text())
        devices = {device["name"] for request in content["requests"] for device in request["devices"]}
        if devices != set(claim.devices):
            self.find(f"the metadata of {claim.uid} tell of {sorted(devices)}, it has {claim.devices}")

    def _check_new(self, claim: Claim, given: Iterable[Given]) -> None:
        """Whether containers of other claims use what it gets."""
        for uid, used in self._open.items():
            other = self._claims[uid]
            if other is claim or claim.is_admin or other.is_admin:
                continue
            nodes = {node for each in given for node in each.nodes if not (each.devices <= used.devices)}
            nodes |= {node for each in given for node in each.nodes if claim.excludes(other)}
            if both := nodes & used.nodes:
                self.find(f"the new claim {claim.uid} gets {sorted(both)}, which the container of {uid} has open")
            if claim.excludes(other):
                self.find(f"the new claim {claim.uid} has {claim.devices}, and the container of {uid} {other.devices}")

    def prepared(self, pod: Pod, answer: Any) -> None:
        """All claims of a pod are."""
        self.look()

    def starts(self, pod: Pod) -> None:
        """A container of the pod starts, with what the files say now."""
        for claim in pod.claims:
            for given in dict(self._given(claim.uid)).values():
                used = self._open.get(claim.uid, Given(frozenset(), frozenset()))
                self._open[claim.uid] = Given(used.devices | given.devices, used.nodes | given.nodes)

    def ends(self, pod: Pod) -> None:
        """The container of the pod has ended."""
        for claim in pod.claims:
            self._open.pop(claim.uid, None)

    def unprepared(self, pod: Pod) -> None:
        """All claims of a pod are."""
        for claim in pod.claims:
            self._asked[claim.uid] = "unprepared"
            if os.path.lexists(self._records / f"{claim.uid}.json"):
                self.find(f"claim {claim.uid} was unprepared, its record is left")
            if claim.uid in self._hardware.set_up:
                self.find(f"claim {claim.uid} was unprepared, the driver still has it set up")
        self.look()

    def reboot(self) -> None:
        self._open.clear()

    # --- the files ---

    def furnish(self) -> None:
        """Other drivers have files in the same folder."""
        for name, text in OTHERS.items():
            (self._cdi / name).write_text(text)
            self._others[name] = _identity(self._cdi / name)

    def look(self) -> None:
        """At all files, at any moment."""
        for name, identity in self._others.items():
            if _identity(self._cdi / name) != identity:
                self.find(f"the file {name} of another driver was changed")
        stale = set()
        for path in self.files():
            uid = self.uid_of(path)
            claim = self._claims.get(uid)
            if claim is None or self._asked[uid] == "unprepared":
                self.find(f"a CDI file of {uid}, which is {'unprepared' if claim else 'unknown'}: {path.name}")
                continue
            if uid in self._anew:
                continue
            for given in dict(self._content(path)).values():
                if given.devices - set(claim.devices):
                    self.find(f"the CDI files of {uid} give {sorted(given.devices)}, it has {claim.devices}")
                had = {node for device in given.devices for node in self._hardware.had.get(device, ())}
                if given.nodes - had:
                    self.find(
                        f"the CDI files of {uid} give {sorted(given.nodes)}: {sorted(given.devices)} never had that"
                    )
                if uid in self._first:
                    self._check_new(claim, [given])
                there = {self._hardware.node_of(device) for device in given.devices}
                if given.nodes - there and not self._asked[uid].startswith("NodeUnprepare"):
                    stale.add(f"the CDI files of {uid} still give {sorted(given.nodes)}")
        gone = set(self.published()) - set(self._hardware.devices())
        self._must_pass(stale if self.plugin_is_well() else set(), self._stale)
        shown = {f"published is still {name}" for name in gone}
        self._must_pass(shown if self.server_is_well() else set(), self._gone)

    def _must_pass(self, states: set[str], since: dict[str, float]) -> None:
        """States that may last for a moment."""
        for state in since.keys() - states:
            del since[state]
        for state in states:
            if self._now() - since.setdefault(state, self._now()) > MOMENT_SECONDS:
                self.find(f"for {MOMENT_SECONDS:g} s {state}")

    def left_over(self) -> Iterator[str]:
        """What should have gone with the claims."""
        for path in self.files():
            yield f"{path.name} is left"
        for path in self._cdi.iterdir():
            if path.name.startswith(f".{NAME}="):
                yield f"{path.name} is left"
        for path in self._records.glob("[!.]*"):  # the next start removes what a killed process was writing
            yield f"the record {path.name} is left"
        for path in self._metadata.glob("*"):
            yield f"the metadata {path.name} are left"

    def nodes_given(self, uid: str) -> set[str]:
        """What a container that starts now would get."""
        return {node for given in dict(self._given(uid)).values() for node in given.nodes}

    def tear(self, path: Path, how: str) -> None:
        """A record loses its end, or a link to itself, a pipe or a folder is in its place."""
        if not path.is_file():
            return  # it was torn before
        with suppress(ValueError):
            self._torn[path.stem] = _claim_in(path)
        if how == "end":
            path.write_bytes(path.read_bytes()[:-7])
            return
        path.unlink()
        if how == "link":
            path.symlink_to(path)
        elif how == "folder":
            path.mkdir()
        else:
            os.mkfifo(path)

    def is_torn(self, uid: str) -> bool:
        return uid in self._torn

    def torn(self) -> Iterator[Claim]:
        """The claims in damaged records: their devices stay theirs, also if they are allocated others by now."""
        return (claim for uid, claim in self._torn.items() if os.path.lexists(self._records / f"{uid}.json"))

    def files(self) -> list[Path]:
        names = (name for name in os.listdir(self._cdi) if name.startswith(f"{NAME}-") and name not in OTHERS)
        return [self._paths.setdefault(name, self._cdi / name) for name in sorted(names)]

    def uid_of(self, path: Path) -> str:
        """The claim that a file is about: uids are between the driver's name and the request."""
        return path.name.removeprefix(f"{NAME}-").split("-req", 1)[0]

    def _given(self, uid: str) -> Iterator[tuple[str, Given]]:
        for path in self.files():
            if self.uid_of(path) == uid:
                yield from self._content(path)

    def _content(self, path: Path) -> list[tuple[str, Given]]:
        """What a file gives, which is read again if it has changed."""
        identity = _identity(path)
        if path.name not in self._contents or self._contents[path.name][0] != identity:
            self._contents[path.name] = identity, list(_read(path))
        return self._contents[path.name][1]


def _claim_in(path: Path) -> Claim:
    """The claim that a record is about; a ValueError if it is damaged."""
    record = json.loads(path.read_bytes())["record"]
    held = record.get("holds", ())
    return Claim(
        record["name"],
        record["uid"],
        tuple(each["device"] for each in held),
        is_admin=any(each.get("adminAccess") for each in held),
        shares=frozenset(each["device"] for each in held if each.get("shareId")),
    )


def _identity(path: Path) -> tuple[int, int, int]:
    """Of a file's content; zeros if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_mtime_ns, found.st_size


def _read(path: Path) -> Iterator[tuple[str, Given]]:
    """What a file gives, literally; nothing if it is damaged."""
    try:
        spec = json.loads(path.read_text())
    except ValueError:
        return
    for device in spec["devices"]:
        edits = device["containerEdits"]
        variables = dict(text.split("=", 1) for text in edits.get("env", ()))
        devices = {
            value.rpartition("/")[2]
            for name, value in variables.items()
            if name.lower().startswith("device") and not name.startswith("devices_")
        }
        nodes = {node.get("hostPath") or node["path"] for node in edits.get("deviceNodes", ())}
        mounts = {mount["hostPath"] for mount in edits.get("mounts", ())}
        yield f"{spec['kind']}={device['name']}", Given(frozenset(devices), frozenset(nodes), frozenset(mounts))


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
    slices = stage.server.of(RESOURCE_SLICES)
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
