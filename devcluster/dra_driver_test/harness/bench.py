"""The bench: one driver on one node that does not exist, with a kubelet's and an API server's seat.

A check gets the bench, and speaks to the driver through it only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from dra_api.releases import NEWEST, Release
from dra_devcluster.agent.plugins.plugin import PreparedDevice
from dra_kube import KubeError

from dra_driver_test.errors import BenchError, CheckEnd, Finding, NotJudged, Skipped
from dra_driver_test.harness.driver import Place, ProcessView, process_behind
from dra_driver_test.harness.waiting import Limits

from .cdi import CdiView
from .devices import Device, devices_of, incomplete, side_by_side
from .driver import DriverSeat
from .kubelet import Answer, KubeletSeat, Registration
from .server import Claim, ServerSeat, Use
from .waiting import eventually

T = TypeVar("T")
MOST_NAMED_DEVICES: Final = 3
USER_AGENT: Final = "dra-driver-test"
REGISTRATION: Final = "registration"
COMPLETE: Final = "complete pools"
LEAVE: Final = "drain the node, and leave it cordoned while the checks run"


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters of opaque configuration that the driver accepts, and some that it refuses; None is not known.

    ``more`` are others that it accepts.
    """

    good: dict[str, Any] | None = None
    bad: dict[str, Any] | None = None
    more: tuple[dict[str, Any], ...] = ()


class Watches(Protocol):
    """The watches at an API server that is the bench's own."""

    def end_watches(self) -> None:
        """End them in order, as a server does after some minutes."""

    def expire_watches(self) -> None:
        """End them with 410, and forget the changes so far."""

    def fail_requests(self, token: str, *, but: str) -> None:
        """Refuse the requests with a bearer token, unless their user agent begins so."""

    def answer_again(self, token: str) -> None:
        """Refuse them no longer."""


class Bench:
    """Everything that a check may use. ``release`` is that of the kubelet and the API server whose seats it has.

    ``name`` is that of a driver which runs already, if it is known beforehand.
    """

    def __init__(  # noqa: PLR0913  # one caller, which has them all
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
        self._is_fresh = True  # until a driver is registered on the node
        self._is_known = False  # once the driver has published all that it has
        self._is_settled = False  # the same for the instances that run

    # --- the driver's life ---

    @property
    def registration(self) -> Registration:
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
        return self.registration.driver

    async def started(self) -> None:
        if not self.driver.runs:
            await self.driver.start()

    async def ready(self) -> None:
        """Start the driver if it does not run, and wait until it is registered. Raises Finding."""
        if not self.driver.runs:
            await self.start()
        elif self._registration is None or self._registration not in self.kubelet.registrations():
            if self.driver.can_restart:
                await self.arrived([])
            else:
                self._registration = await self.kubelet.registered(driver=self._own)

    async def start(self) -> Registration:
        """Start an instance and wait for its registration."""
        return await self.arrived(await self.launch())

    async def launch(self) -> list[Registration]:
        """Start an instance; returns what was registered before."""
        before = self.kubelet.registrations()
        self._is_settled = False
        await self.driver.start()
        return before

    async def arrived(self, before: list[Registration]) -> Registration:
        """Wait for the registration of the instance that was started last.

        A driver that did not register on a fresh node is not waited for again. Raises Finding, and NotJudged then.
        """
        if REGISTRATION in self._missed:
            raise NotJudged("the driver does not register, as other checks tell")
        try:
            self._registration = await self.kubelet.registered(before, self.driver.why_ended)
        except Finding:
            if self._is_fresh:
                self._missed.add(REGISTRATION)
            raise
        self._is_fresh = False
        return self._registration

    async def restart(self, *, kill: bool = False) -> None:
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
            drivers = [self._registration.driver] if self._registration and self._watches is not None else []
            self._registration = None
            self._is_known, self._is_fresh = False, True
            self._missed.discard(COMPLETE)
            await self.driver.end()
            self.place.empty()
            await self.server.delete_slices(*drivers)

    async def tidy(self) -> bool:
        """Unprepare and delete the claims of a check, and leave one instance; whether nothing is left of them.

        Faults of that are not the check's, and what is left must not be the next one's.
        """
        claims, done = self.server.made(), True
        if claims and self._registration and self.driver.runs:
            for claim in claims:
                try:
                    plugin = self.kubelet.plugin(self._registration)
                    await self.kubelet.unprepare(plugin, [claim.ref], self.limits.answer)
                except CheckEnd:
                    done = False
        if await self.driver.retire() and self._registration not in self.kubelet.registrations():
            done = False
        with suppress(KubeError):
            await self.server.forget(self.limits.settle)
        return done

    # --- devices and claims ---

    async def devices(self, count: int = 1) -> list[Device]:
        """So many devices that different claims can hold at the same time. Raises NotJudged for fewer."""
        devices = await self.independent()
        if len(devices) < count:
            every = len(await self.published())
            rest = f" of {every}, since the others have taints or draw on the same counters" * (every > len(devices))
            raise NotJudged(
                f"the check needs {count} device{'s' * (count > 1)} for claims side by side, and the driver published "
                f"{len(devices)}{rest}: test it where it has more devices"
            )
        return devices[:count]

    async def independent(self) -> list[Device]:
        """All devices that different claims can hold at the same time; shared ones last."""
        published, free = await self._published_and_free()
        return side_by_side(free, [device for device in published if device not in free])

    async def device(self) -> Device:
        return (await self.devices())[0]

    async def shared(self) -> Device:
        """A device of which two claims can have a part at the same time. Raises Skipped."""
        shared = next((device for device in await self.independent() if device.shares > 1), None)
        if shared is None:
            raise Skipped("the driver published no device with allowMultipleAllocations for two claims or more")
        return shared

    async def all_kinds(self) -> list[Use]:
        """What one claim can have at most: two devices for two requests, and a part of a shared one, if there are such.

        A driver that keeps less of a claim than it gave is found out by that.
        """
        devices = await self.independent()
        if not devices:
            await self.device()
        plain = devices[:2]
        shares = [device for device in devices if device.is_shared and device not in plain][:1]
        return [*self.uses(*plain), *(Use(device, "shared") for device in shares)]

    @staticmethod
    def uses(*devices: Device) -> list[Use]:
        """A request of its own for each device."""
        return [Use(device, f"req-{index}" if index else "req") for index, device in enumerate(devices)]

    async def published(self) -> list[Device]:
        """All devices of the driver on this node that no claim of others holds, once it published all its pools.

        Others may have devices of an API server that is not the bench's own: a scheduler gives them to pods meanwhile.
        Raises NotJudged.
        """
        return (await self._published_and_free())[1]

    async def _published_and_free(self) -> tuple[list[Device], list[Device]]:
        if not self._is_known or incomplete(await self.slices()):
            self._is_settled = False
            await self.settled()

        async def look() -> list[Device]:
            return devices_of(await self.slices(), await self.server.node())

        found = await self.appeared("device", look)
        if self._watches is not None:
            return found, found
        held = await self.server.held(self.name)
        free = [device for device in found if (device.pool, device.name) not in held]
        if not free:
            raise NotJudged(f"claims hold all devices of the driver: {listed_devices(held)}; {LEAVE}")
        return found, free

    async def settled(self) -> None:
        """Wait until all pools are complete and no slice has come for a moment.

        It gives up when the time is over, and does not wait again then: a check of its own judges that.
        """
        loop = asyncio.get_running_loop()
        deadline, seen, since = loop.time() + self.limits.published, [""], 0.0
        await self.published_slices()
        while not self._is_settled and COMPLETE not in self._missed:
            if loop.time() > deadline:
                self._missed.add(COMPLETE)
            slices = await self.slices()
            found = [one["metadata"]["uid"] for one in slices]
            pause = max(self.limits.tick, self.limits.settle / 4)
            if incomplete(slices) or found != seen:
                seen, since, pause = found, loop.time(), self.limits.tick
            elif loop.time() - since > self.limits.settle:
                self._is_settled = True
                break
            await asyncio.sleep(pause)
        self._is_known = True

    async def is_published_here(self) -> bool:
        """Return whether the driver publishes slices of this node. Network-attached devices have no single node."""
        return any(one["spec"].get("nodeName") for one in await self.published_slices())

    async def needs_own_slices(self) -> None:
        """Raises Skipped for a driver whose devices are attached by network: a controller may publish them."""
        if not await self.is_published_here():
            raise Skipped("its slices name no node, as those of a controller that publishes for all nodes")

    async def check_unused(self, driver: str) -> None:
        """Raise BenchError if claims hold devices that the driver publishes on this node.

        The checks would give them to a second claim, and delete slices and CDI files that running pods depend on.
        """
        slices = await self.server.slices_here(driver)
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
        return await self.server.slices_here(self.name)

    @asynccontextmanager
    async def failing_server(self) -> AsyncIterator[None]:
        """Let the API server refuse the driver's requests, and end its watches, in the block. Raises Skipped."""
        watches, token = self.watches, self.server.token
        watches.fail_requests(token, but=USER_AGENT)
        watches.end_watches()
        try:
            yield
        finally:
            watches.answer_again(token)

    async def claim(self, *devices: Device, **options: Any) -> Claim:
        """A claim that holds these devices, or any if none is named; each has a request of its own."""
        return await self.use(*self.uses(*(devices or await self.devices())), **options)

    async def held(self, *devices: Device, **options: Any) -> Claim:
        """Such a claim that is prepared."""
        claim = await self.claim(*devices, **options)
        await self.prepare(claim)
        return claim

    async def prepare_beside(self, claim: Claim) -> None:
        """Prepare a claim on a device of another. Raises Skipped if the driver does not: other checks judge that."""
        try:
            await self.prepare(claim)
        except Finding as finding:
            raise Skipped(f"the driver does not prepare both claims: {finding}") from None

    async def full(self) -> tuple[Claim, tuple[PreparedDevice, ...]]:
        """A claim of all kinds that is prepared, with the answer."""
        claim = await self.use(*await self.all_kinds())
        return claim, await self.prepared(claim)

    async def use(self, *uses: Use, **options: Any) -> Claim:
        """A claim with these results, once what its devices have to wait for is there."""
        claim = await self.server.claim(*uses, **options)
        if wanted := {name for use in uses for name in use.device.spec.get("bindingConditions") or ()}:
            await self._bound(claim, wanted)
        return claim

    async def _bound(self, claim: Claim, wanted: set[str]) -> None:
        """Wait for the conditions that a scheduler waits for. Raises NotJudged."""

        async def look() -> bool:
            devices = (await self.server.read(claim)).get("status", {}).get("devices") or ()
            met = {one["type"] for each in devices for one in each.get("conditions") or () if one["status"] == "True"}
            return wanted <= met

        try:
            await eventually("its conditions", look, self.limits.published, self.limits)
        except Finding:
            raise NotJudged(
                f"nothing set the binding conditions {', '.join(sorted(wanted))} of a claim within "
                f"{self.limits.published:g} s: let the command start the driver's controller as well"
            ) from None

    async def claims(self, count: int) -> list[Claim]:
        """So many claims, each with one device."""
        return [await self.claim(device) for device in await self.devices(count)]

    async def refuses_devices_in_use(self, *devices: Device) -> None:
        """Raises Skipped for a driver that prepares devices which another claim holds, or that are shared."""
        if any(device.is_shared for device in devices):
            raise Skipped("the driver published shared devices only")
        holders = [await self.claim(device) for device in devices]
        await self.prepare(*holders)
        for device in devices:
            second = await self.claim(device)
            try:
                await self.prepare(second)
            except Finding:
                await self.unprepare(second)
            else:
                raise Skipped("the driver prepares devices in use; another check judges that")
        await self.unprepare(*holders)

    # --- calls ---

    async def prepare(self, *claims: Claim) -> Answer:
        """Devices by claim uid. Raises Finding for what a kubelet would report."""
        plugin = self.kubelet.plugin(self.registration)
        return await self.kubelet.prepare(plugin, [claim.ref for claim in claims])

    async def prepared(self, claim: Claim) -> tuple[PreparedDevice, ...]:
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

    async def interrupted(self, claim: Claim, seconds: float) -> None:
        """A call to prepare the claim that the kubelet gives up after so many seconds."""
        with suppress(Finding):
            await self.kubelet.prepare(self.kubelet.plugin(self.registration), [claim.ref], seconds)

    def process(self) -> ProcessView:
        """The process of the driver. Raises Skipped where it cannot be known."""
        return process_behind(self.registration.socket)

    @contextmanager
    def process_without_files(self) -> Iterator[None]:
        """Let the driver open no file and no socket while the block runs. Raises Skipped."""
        with self.process().without_descriptors():
            yield

    async def quiet(self) -> None:
        """Let some time pass in which nothing should happen."""
        await asyncio.sleep(self.limits.quiet)


def listed_devices(held: Mapping[tuple[str, str], str]) -> str:
    """Return the first devices with their claims, and the number of the others."""
    first = [f"{pool}/{device} by {claim}" for (pool, device), claim in sorted(held.items())[:MOST_NAMED_DEVICES]]
    more = len(held) - len(first)
    return ", ".join(first) + (f" and {more} more" if more else "")


def expect(prepared: Sequence[PreparedDevice], device: Device, whose: str, who: str = "and the driver") -> None:
    """Raises Finding unless this device was prepared alone; ``whose`` is the claim."""
    if [(one.pool, one.device) for one in prepared] != [(device.pool, device.name)]:
        raise Finding(f"{whose} holds {device.name}, {who} prepared {[one.device for one in prepared]}")


def ids_of(devices: Sequence[PreparedDevice]) -> list[str]:
    return [id_ for device in devices for id_ in device.cdi_ids]


__all__ = ["Answer", "Bench", "BenchError", "Parameters", "Watches", "expect", "ids_of"]
