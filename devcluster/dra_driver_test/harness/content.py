"""The part of a device that reaches a container, in a form in which two devices can be compared.

The kit does not know the right edits of a device. It lets claims hold two devices alone, in both orders. The *marks* of
a device are the things that its container gets each time and the other's never. Things that differ from claim to claim
(a uid, a port that is assigned in turn) and things that all devices have in common are no marks. A later container with
the first device is wrong if it has marks of the second and none of the first.

    gpu-0 alone: DEVICE=gpu-0 CLAIM=7f3a LIBRARY=/lib      marks: DEVICE=gpu-0
    gpu-1 alone: DEVICE=gpu-1 CLAIM=91c0 LIBRARY=/lib      marks: DEVICE=gpu-1
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from dra_cdi import ContainerEdits
from dra_devcluster.agent.plugins.plugin import PreparedDevice

from dra_driver_test.errors import Finding, Skipped

from .bench import Bench
from .devices import Device

Statement = tuple[str, ...]
"""One thing that a container gets; the first word says what kind of thing."""
Content = frozenset[Statement]
"""Everything that a container gets."""
SHORTEST_TEXT_CHARACTERS = 3
"""Characters of a text that can tell devices apart: a digit alone may mean anything."""


def texts_in(value: str) -> list[str]:
    """The texts in the value of a variable, which may be a list, that are long enough to tell devices apart."""
    return [text for text in re.split(r"[,;\s]+", value) if len(text) >= SHORTEST_TEXT_CHARACTERS]


def content_of(edits: ContainerEdits) -> Content:
    """What the edits give.

    Of a variable's value each text in a list counts for itself, whatever the variable is called: a name such as
    ``DEVICE_0`` may number the devices of a claim.
    """
    return frozenset(
        {
            *(("env", entry) for entry in edits.env),
            *(("text", text) for entry in edits.env for text in texts_in(entry.partition("=")[2])),
            *(("device node", one.path, one.source, f"{one.major}:{one.minor}") for one in edits.device_nodes),
            *(("network interface", one.host_interface_name) for one in edits.net_devices),
            *(("mount", one.host_path, one.container_path) for one in edits.mounts),
            *(("hook", one.path, *one.args, *one.env) for one in edits.hooks),
        }
    )


def shown(content: Content) -> str:
    """In words, for a finding."""
    known = {entry.partition("=")[2] for kind, entry, *_ in content if kind == "env"}
    parts = sorted(one for one in content if one[0] != "text" or one[1] not in known)
    return ", ".join(part[1] if part[0] in ("env", "text") else " ".join(part[:3]) for part in parts) or "nothing"


def given(bench: Bench, prepared: Sequence[PreparedDevice], request: str = "req") -> Content:
    """What a container gets that uses a request. Raises Finding for ids that a runtime cannot resolve."""
    ids = [id_ for one in prepared if not one.requests or request in one.requests for id_ in one.cdi_ids]
    return content_of(bench.cdi.edits(ids))


@dataclass(frozen=True, slots=True)
class Known:
    """A device, what its container gets each time, and its marks."""

    device: Device
    constant: Content
    marks: Content

    def check(self, content: Content, other: Known, where: str) -> None:
        """Raises Finding for a container that got the other device instead of this one."""
        if (foreign := content & other.marks) and not content & self.marks:
            raise Finding(
                f"{where} holds {self.device.name}, and its container gets {shown(foreign)} of {other.device.name}"
            )


async def _nothing() -> None: ...


async def seen_alone(
    bench: Bench, between: Callable[[], Awaitable[object]] = _nothing, devices: Sequence[Device] = ()
) -> tuple[Known, Known]:
    """Two devices, these or any, as claims of their own see them; ``between`` happens after each of two rounds."""
    devices = devices or await bench.devices(2)
    seen: list[list[Content]] = [[], []]
    for order in ((0, 1), (1, 0)):
        claims = {number: await bench.claim(devices[number]) for number in order}
        for number, claim in claims.items():
            seen[number].append(given(bench, await bench.prepared(claim)))
        await bench.unprepare(*claims.values())
        await between()
    constant = [contents[0] & contents[1] for contents in seen]
    ever = [contents[0] | contents[1] for contents in seen]
    return (
        Known(devices[0], constant[0], constant[0] - ever[1]),
        Known(devices[1], constant[1], constant[1] - ever[0]),
    )


async def told_apart(bench: Bench, between: Callable[[], Awaitable[object]] = _nothing) -> tuple[Known, Known]:
    """The same, if both have marks. Raises Skipped."""
    one, other = await seen_alone(bench, between)
    if not (one.marks and other.marks):
        raise Skipped(
            f"the CDI edits of {one.device.name} and {other.device.name} do not tell the devices apart: nothing in "
            "them is the same for each claim and differs between the two"
        )
    return one, other
