"""The bench: one driver on one node that does not exist, with a kubelet's and an API server's seat.

A check gets the bench, and speaks to the driver through it only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from dra_api.releases.release import NEWEST, Release
from dra_devcluster.agent.plugins.plugin import PreparedDevice
from dra_kube import KubeError

from dra_driver_test.errors import BenchError, CheckEnd, Finding, NotJudged, Skipped

from .cdi import CdiView
from .descriptors import descriptors_of
from .driver import DriverSeat
from .kubelet import Answer, KubeletSeat, Registration
from .limits import Limits
from .place import Place
from .server import Claim, Device, ServerSeat, Use, devices_of
from .waiting import eventually

T = TypeVar("T")
MOST_NAMED_DEVICES: Final = 3
LEAVE: Final = "drain the node, and leave it cordoned while the checks run"


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters of opaque configuration that the driver accepts, and some that it refuses; None is not known."""

    good: dict[str, Any] | None = None
    bad: dict[str, Any] | None = None


class Watches(Protocol):
    """The watches at an API server that is the bench's own."""

    def end_watches(self) -> None:
        """End them in order, as a server does after some minutes."""

    def expire_watches(self) -> None:
        """End them with 410, and forget the changes so far."""


class Bench:
    """Everything that a check may use. ``release`` is that of the kubelet and the API server whose seats it has.

    ``name`` is that of a driver which runs already, if it is known beforehand.
    """

    def __init__(
        self,
        place: Place,
        driver: DriverSeat,
        kubelet: KubeletSeat,
        server: ServerSeat,
        limits: Limits,
        parameters: Parameters,
        watches: Watches | None,
        release: Release = NEWEST,
        name: str = "",
    ) -> None:
        self.place = place
        self.driver = driver
        self.kubelet = kubelet
        self.server = server
        self.limits = limits
        self.parameters = parameters
        self.release = release
        self._watches = watches
        self._known_name = name
        self.cdi = CdiView(place.cdi)
        self._registration: Registration | None = None
        self._missed: set[str] = set()

    # --- the driver's life ---

    @property
    def registration(self) -> Registration:
        """The latest registration."""
        if self._registration is None:
            raise Finding("the driver is not registered")
        return self._registration

    async def socket(self) -> Path | None:
        """The driver's registration socket, if it is there. On a real node, those of other plugins lie beside it."""
        sockets, known = self.kubelet.sockets(), self._registration
        if known and known.socket in sockets:
            return known.socket
        if len(sockets) > 1 or not self.driver.can_restart:
            found = [socket for socket, name in await self.kubelet.drivers() if not self._own or name == self._own]
            sockets = found or (sockets if self.driver.can_restart else [])
        return sockets[0] if sockets else None

    @property
    def _own(self) -> str:
        """The name by which the driver is known among those of a real node."""
        if self.driver.can_restart:
            return ""
        return self._registration.driver if self._registration else self._known_name

    @property
    def name(self) -> str:
        """Name of the driver."""
        return self.registration.driver

    async def started(self) -> None:
        """Start the driver if it does not run."""
        if not self.driver.runs:
            await self.driver.start()

    async def ready(self) -> None:
        """Start the driver if it does not run, and wait until it is registered. Raises Finding."""
        if not self.driver.runs:
            await self.start()
        elif self._registration is None or self._registration not in self.kubelet.registrations():
            self._registration = await self.kubelet.registered(ended=self.driver.why_ended, driver=self._own)

    async def start(self) -> Registration:
        """Start an instance and wait for its registration."""
        before = self.kubelet.registrations()
        await self.driver.start()
        self._registration = await self.kubelet.registered(before, self.driver.why_ended)
        return self._registration

    async def restart(self, *, kill: bool = False) -> None:
        """Stop or kill the driver, and start it again."""
        await (self.driver.kill() if kill else self.driver.stop())
        await self.start()

    async def reboot(self) -> None:
        """What happens to a driver when the node restarts: ``/run`` with the CDI folder starts empty."""
        await self.driver.kill()
        self.place.empty_run()
        await self.start()

    async def reset(self) -> None:
        """A fresh node for the next check, as far as the bench can make one: a check went wrong."""
        self.place.create()  # the driver may have removed a folder
        if self.driver.can_restart:
            self._registration = None
            await self.driver.end()
            self.place.empty()
            for one in await self.server.all_slices():
                if one["spec"].get("nodeName") == self.place.node:
                    await self.server.delete_slice(one["metadata"]["name"])

    async def tidy(self) -> bool:
        """Unprepare and delete the claims of a check; whether nothing is left of them.

        Faults of that are not the check's, and what is left must not be the next one's.
        """
        claims, done = self.server.made(), True
        if claims and self._registration and self.driver.runs:
            for claim in claims:
                try:
                    await self.kubelet.unprepare(
                        self.kubelet.plugin(self._registration), [claim.ref], self.limits.answer
                    )
                except CheckEnd:
                    done = False
        with suppress(KubeError):
            await self.server.forget()
        return done

    # --- devices and claims ---

    async def devices(self, count: int = 1) -> list[Device]:
        """So many devices that different claims can hold at the same time. Raises NotJudged for fewer."""
        devices = await self.independent()
        if len(devices) < count:
            every = len(await self.published())
            rest = f" and {every - len(devices)} with counters or taints, which may exclude each other"
            raise NotJudged(
                f"the check needs {count} device{'s' * (count > 1)} for claims side by side, and the driver published "
                f"{len(devices)}{rest if every > len(devices) else ''}: test it where it has more devices without "
                "consumesCounters and taints"
            )
        return devices[:count]

    async def independent(self) -> list[Device]:
        """All devices that different claims can hold at the same time; shared ones if the driver has no others."""
        plain = [device for device in await self.published() if device.is_plain]
        return [device for device in plain if not device.is_shared] or plain

    async def device(self) -> Device:
        """A device."""
        return (await self.devices())[0]

    async def published(self) -> list[Device]:
        """All devices of the driver on this node that no claim of others holds, as soon as there are any.

        Others may have devices of an API server that is not the bench's own: a scheduler gives them to pods meanwhile.
        Raises NotJudged.
        """

        async def look() -> list[Device]:
            return devices_of(await self.slices())

        found = await self.appeared("device", look)
        if self._watches is not None:
            return found
        held = await self.server.held(self.name)
        free = [device for device in found if (device.pool, device.name) not in held]
        if not free:
            raise NotJudged(f"claims hold all devices of the driver: {listed_devices(held)}; {LEAVE}")
        return free

    async def check_unused(self, driver: str) -> None:
        """Raise BenchError if claims hold devices that the driver publishes on this node.

        The checks would give them to a second claim, and delete slices and CDI files that running pods depend on.
        """
        slices = [
            one
            for one in await self.server.slices(driver)
            if one["spec"].get("nodeName", self.place.node) == self.place.node
        ]
        pools = {self.place.node, *(one["spec"]["pool"]["name"] for one in slices)}
        held = {key: claim for key, claim in (await self.server.held(driver)).items() if key[0] in pools}
        if held:
            raise BenchError(
                f"claims hold devices of driver {driver} on node {self.place.node}: {listed_devices(held)}. The checks "
                f"would give them to others, and delete slices and CDI files of the driver: {LEAVE}"
            )

    async def published_slices(self) -> list[dict[str, Any]]:
        """The driver's slices on this node, as soon as there are any. Raises NotJudged."""
        return await self.appeared("ResourceSlice", self.slices)

    async def appeared(self, what: str, look: Callable[[], Awaitable[list[T]]]) -> list[T]:
        """What the driver publishes, as soon as it is there; what was awaited once in vain is not awaited again.

        Raises NotJudged.
        """

        async def some() -> list[T] | None:
            return await look() or None

        try:
            found = await eventually(what, some, 0 if what in self._missed else self.limits.published, self.limits)
        except Finding:
            self._missed.add(what)
            raise NotJudged(
                f"the driver published no {what} within {self.limits.published:g} s: test it where it finds devices, "
                "real or simulated, and let it publish them for the node of the test"
            ) from None
        self._missed.discard(what)
        return found

    @property
    def watches(self) -> Watches:
        """The watches at the API server. Raises Skipped for one that also serves others."""
        if self._watches is None:
            raise Skipped("the check breaks watches of the API server, and does so only with that of the kit")
        return self._watches

    async def slices(self) -> list[dict[str, Any]]:
        """The driver's slices that are not those of other nodes."""
        return [
            one
            for one in await self.server.slices(self.name)
            if one["spec"].get("nodeName", self.place.node) == self.place.node
        ]

    async def claim(self, *devices: Device, **options: Any) -> Claim:
        """A claim that holds these devices; each has a request of its own."""
        uses = [Use(device, f"req-{index}" if index else "req") for index, device in enumerate(devices)]
        return await self.server.claim(*uses, **options)

    async def claims(self, count: int) -> list[Claim]:
        """So many claims, each with one device."""
        return [await self.claim(device) for device in await self.devices(count)]

    # --- calls ---

    async def prepare(self, *claims: Claim) -> Answer:
        """Devices by claim uid. Raises Finding for what a kubelet would report."""
        plugin = self.kubelet.plugin(self.registration)
        return await self.kubelet.prepare(plugin, [claim.ref for claim in claims])

    async def prepared(self, claim: Claim) -> tuple[PreparedDevice, ...]:
        """The devices of one claim."""
        return (await self.prepare(claim))[claim.uid]

    async def check_same_again(self, claim: Claim, first: Sequence[PreparedDevice], then: str) -> None:
        """Prepare a prepared claim once more. Raises Finding for another answer, or when the CDI files of it are gone.

        Pods that started before keep the first answer; pods that share the claim get the second. ``then`` says what
        happened between them.
        """
        second = await self.prepared(claim)
        if first != second:
            raise Finding(f"the answer was {first}, and {then} it is {second}")
        self.cdi.edits(ids_of(second))

    async def refused(self, claim: Claim, why: str) -> str:
        """What the driver says against preparing the claim. Raises Finding when it prepares it."""
        try:
            await self.prepare(claim)
        except Finding as finding:
            return str(finding)
        raise Finding(f"the driver prepared a claim {why}")

    async def unprepare(self, *claims: Claim) -> None:
        """Raises Finding for what a kubelet would report."""
        plugin = self.kubelet.plugin(self.registration)
        await self.kubelet.unprepare(plugin, [claim.ref for claim in claims])

    async def interrupted(self, claim: Claim, seconds: float, *, unprepare: bool = False) -> None:
        """A call that the kubelet gives up after so many seconds."""
        plugin = self.kubelet.plugin(self.registration)
        call = self.kubelet.unprepare if unprepare else self.kubelet.prepare
        with suppress(Finding):
            await call(plugin, [claim.ref], seconds)

    def descriptors(self) -> int:
        """How many files and sockets the driver has open. Raises Skipped where that cannot be known."""
        return descriptors_of(self.registration.socket)

    async def quiet(self) -> None:
        """Let some time pass in which nothing should happen."""
        await asyncio.sleep(self.limits.quiet)


def listed_devices(held: Mapping[tuple[str, str], str]) -> str:
    """Return the first devices with their claims, and the number of the others."""
    first = [f"{pool}/{device} by {claim}" for (pool, device), claim in sorted(held.items())[:MOST_NAMED_DEVICES]]
    more = len(held) - len(first)
    return ", ".join(first) + (f" and {more} more" if more else "")


def ids_of(devices: Sequence[PreparedDevice]) -> list[str]:
    """The CDI ids of devices."""
    return [id_ for device in devices for id_ in device.cdi_ids]


__all__ = ["Answer", "Bench", "BenchError", "Parameters", "Watches", "ids_of"]
