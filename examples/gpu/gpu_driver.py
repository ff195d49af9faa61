"""Whole GPUs and their partitions (MIG), with sharing configuration and health, by NVML.

    FAKE_GPUS=2 python examples/gpu/gpu_driver.py --node-name NODE     # without GPUs
    pip install '.[nvml]' && python examples/gpu/gpu_driver.py  # with GPUs

A GPU with MIG enabled offers a device for each profile at each placement. They draw from the counters of its memory and
compute slices, so that claims get what fits side by side; an instance is made when its claim is prepared, and destroyed
when it is unprepared. A GPU without MIG is one device. A claim says how its containers share it, beside its requests:

    config:
      - opaque: {driver: gpu.example.com, parameters: {sharing: exclusiveProcess}}

A GPU that reports a critical error is unhealthy, and its devices have a taint, until the driver starts again.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import dra_kubeletplugin as dra
from dra_api.resource import Device, DeviceRequestAllocationResult, DeviceTaint, ResourceClaim

NAME = "gpu.example.com"
EVENT_MILLISECONDS = 1000
MOST_INSTANCES = 16
APPLICATION_ERRORS = {13, 31, 43, 45, 68, 109}
"""Errors (XID) of programs on a GPU. They say nothing against the GPU."""
UNHEALTHY = (DeviceTaint(key=f"{NAME}/unhealthy", effect="NoSchedule"),)


@dataclass
class Parameters:
    """What a claim or its class may say."""

    sharing: Literal["shared", "exclusiveProcess"] = "shared"


@dataclass(frozen=True)
class Partition:
    """A profile at a placement."""

    profile: int
    name: str
    slices: int
    mebibytes: int
    start: int
    size: int


@dataclass(eq=False)
class Gpu:
    """A GPU; ``error`` is the last critical one."""

    index: int
    handle: Any
    uuid: str
    product: str
    mebibytes: int
    partitions: dict[str, Partition] = field(default_factory=dict)
    error: int = 0

    @property
    def name(self) -> str:
        """The device that is the whole GPU, and the counter set of its partitions."""
        return f"gpu-{self.index}"


class GpuDriver(dra.Driver):
    """``load`` returns the module pynvml, or one with the same functions; it is called before the first GPU is read."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load
        self._failed = asyncio.Condition()

    @cached_property
    def nvml(self) -> Any:
        nvml = self._load()
        nvml.nvmlInit()
        return nvml

    @cached_property
    def gpus(self) -> list[Gpu]:
        return [self._gpu(index) for index in range(self.nvml.nvmlDeviceGetCount())]

    def _gpu(self, index: int) -> Gpu:
        nvml = self.nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        gpu = Gpu(
            index,
            handle,
            text(nvml.nvmlDeviceGetUUID(handle)),
            text(nvml.nvmlDeviceGetName(handle)),
            nvml.nvmlDeviceGetMemoryInfo(handle).total >> 20,
        )
        try:
            current, _ = nvml.nvmlDeviceGetMigMode(handle)
        except nvml.NVMLError_NotSupported:
            current = None
        if current == nvml.NVML_DEVICE_MIG_ENABLE:
            for part in self._partitions(handle):
                gpu.partitions[f"{gpu.name}-{part.name.replace('.', '-')}-{part.start}"] = part
        return gpu

    def _partitions(self, handle: Any) -> Iterator[Partition]:
        nvml = self.nvml
        for profile in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            try:
                info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, profile)
            except nvml.NVMLError:
                continue  # a profile of other GPUs
            name = text(info.name).removeprefix("MIG ")
            if "+" in name:
                continue  # the same slices with media engines
            places, count = (nvml.c_nvmlGpuInstancePlacement_t * MOST_INSTANCES)(), ctypes.c_uint()
            nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, info.id, places, ctypes.byref(count))
            for place in places[: count.value]:
                yield Partition(info.id, name, info.sliceCount, info.memorySizeMB, place.start, place.size)

    # --- published devices ---

    def pool(self) -> dra.Pool:
        """All devices, with the counters that partitions draw from."""
        devices: list[Device] = []
        sets = []
        for gpu in self.gpus:
            taints = UNHEALTHY if gpu.error else None
            about = {"uuid": gpu.uuid, "product": gpu.product}
            if not gpu.partitions:
                capacity = {"memory": f"{gpu.mebibytes}Mi"}
                devices.append(dra.device(gpu.name, attributes=about, capacity=capacity, taints=taints))
                continue
            memory = max(part.start + part.size for part in gpu.partitions.values())
            compute = max(part.slices for part in gpu.partitions.values())
            slices = {f"memory-{number}": 1 for number in range(memory)}
            sets.append(dra.counter_set(gpu.name, {"compute": compute, **slices}))
            for name, part in gpu.partitions.items():
                drawn = {f"memory-{number}": 1 for number in range(part.start, part.start + part.size)}
                devices.append(
                    dra.device(
                        name,
                        attributes={**about, "profile": part.name},
                        capacity={"memory": f"{part.mebibytes}Mi"},
                        consumes={gpu.name: {"compute": part.slices, **drawn}},
                        taints=taints,
                    )
                )
        return dra.Pool.of(devices, shared_counters=sets)

    async def pools(self) -> AsyncIterator[dra.Pool]:
        """Yield the pool, and again when a GPU has failed."""
        async for _ in self._states():
            yield self.pool()

    async def health(self) -> AsyncIterator[list[dra.DeviceHealth]]:
        """Yield the health of all devices at each change."""
        async for _ in self._states():
            yield [
                dra.DeviceHealth(
                    device=name, healthy=not gpu.error, message=f"XID {gpu.error}" if gpu.error else "no errors"
                )
                for gpu in self.gpus
                for name in gpu.partitions or [gpu.name]
            ]

    async def _states(self) -> AsyncIterator[None]:
        while True:
            errors = [gpu.error for gpu in self.gpus]
            yield
            async with self._failed:
                while errors == [gpu.error for gpu in self.gpus]:
                    await self._failed.wait()

    @asynccontextmanager
    async def listening(self, plugin: dra.KubeletPlugin) -> AsyncIterator[None]:
        """Listen to the GPUs while the plugin runs."""
        task = asyncio.create_task(self._listen())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _listen(self) -> None:
        nvml = self.nvml
        events = nvml.nvmlEventSetCreate()
        for gpu in self.gpus:
            nvml.nvmlDeviceRegisterEvents(gpu.handle, nvml.nvmlEventTypeXidCriticalError, events)
        while True:
            try:
                event = await asyncio.to_thread(nvml.nvmlEventSetWait, events, EVENT_MILLISECONDS)
            except nvml.NVMLError_Timeout:
                continue
            if event.eventData not in APPLICATION_ERRORS:
                uuid = text(nvml.nvmlDeviceGetUUID(event.device))
                async with self._failed:
                    for gpu in self.gpus:
                        gpu.error = event.eventData if gpu.uuid == uuid else gpu.error
                    self._failed.notify_all()

    # --- what containers get ---

    async def started(self, plugin: dra.KubeletPlugin) -> None:
        """Destroy what no claim has: a process that was killed while it prepared may have left it."""
        held = {device.device for claim in plugin.prepared_claims for device in claim.devices}
        for gpu in self.gpus:
            for name in gpu.partitions.keys() - held:
                await asyncio.to_thread(self._release, name)

    async def prepare(self, claim: ResourceClaim) -> dra.Prepared:
        return await asyncio.to_thread(self._prepare_each, claim)

    def _prepare_each(self, claim: ResourceClaim) -> dra.Prepared:
        prepared: list[dra.PreparedDevice] = []
        try:
            for result in dra.results_for(NAME, claim):
                prepared.append(self._prepared(claim, result))  # noqa: PERF401  # known one by one
        except BaseException:
            for device in prepared:  # the claim is not prepared, and nothing else would
                self._release(device.device)
            raise
        return prepared

    def _prepared(self, claim: ResourceClaim, result: DeviceRequestAllocationResult) -> dra.PreparedDevice:
        gpu, part = self._find(result.device)
        parameters = Parameters()
        for config in dra.configs_for(NAME, claim, result, Parameters):
            parameters = config.parameters
        if part is None:
            self._share(gpu, parameters.sharing)
            visible = gpu.uuid
        elif parameters.sharing != "shared":
            raise dra.ClaimError(f"request {result.request}: sharing {parameters.sharing} is for whole GPUs only")
        else:
            visible = self._make(gpu, part)
        edits = dra.ContainerEdits(env=(f"NVIDIA_VISIBLE_DEVICES={visible}",))
        return dra.PreparedDevice.of(result, edits=edits, attributes={"uuid": visible})

    async def unprepare(self, claim: dra.ClaimRef) -> None:
        for device in claim.devices:
            await asyncio.to_thread(self._release, device.device)

    def _release(self, device: str) -> None:
        gpu, part = self._find(device)
        if part is None:
            self._share(gpu, "shared")
            return
        for instance in self._instances(gpu, part):
            self._destroy(instance)

    def _share(self, gpu: Gpu, sharing: str) -> None:
        nvml = self.nvml
        modes = {"shared": nvml.NVML_COMPUTEMODE_DEFAULT, "exclusiveProcess": nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS}
        if nvml.nvmlDeviceGetComputeMode(gpu.handle) != modes[sharing]:
            nvml.nvmlDeviceSetComputeMode(gpu.handle, modes[sharing])

    def _find(self, device: str) -> tuple[Gpu, Partition | None]:
        for gpu in self.gpus:
            if device in gpu.partitions or (device == gpu.name and not gpu.partitions):
                return gpu, gpu.partitions.get(device)
        raise dra.ClaimError(f"there is no device {device} on this node any more: was the MIG mode of its GPU changed?")

    def _make(self, gpu: Gpu, part: Partition) -> str:
        """Return the UUID of the partition. What a killed process made of it is taken, half or whole."""
        nvml = self.nvml
        instance = next(self._instances(gpu, part), None)
        if instance is None:
            place = nvml.c_nvmlGpuInstancePlacement_t(part.start, part.size)
            instance = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu.handle, part.profile, ctypes.byref(place))
        number = nvml.nvmlGpuInstanceGetInfo(instance).id
        if (made := self._mig_device(gpu, number)) is None:
            nvml.nvmlGpuInstanceCreateComputeInstance(instance, self._compute_profile(instance, part.slices))
            made = self._mig_device(gpu, number)
        return text(nvml.nvmlDeviceGetUUID(made))

    def _instances(self, gpu: Gpu, part: Partition) -> Iterator[Any]:
        nvml = self.nvml
        found, count = (nvml.c_nvmlGpuInstance_t * MOST_INSTANCES)(), ctypes.c_uint()
        nvml.nvmlDeviceGetGpuInstances(gpu.handle, part.profile, found, ctypes.byref(count))
        for instance in found[: count.value]:
            if nvml.nvmlGpuInstanceGetInfo(instance).placement.start == part.start:
                yield instance

    def _compute_profile(self, instance: Any, slices: int) -> int:
        nvml = self.nvml
        for profile in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            try:
                info = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                    instance, profile, nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
                )
            except nvml.NVMLError:
                continue
            if info.sliceCount == slices:
                return int(info.id)
        raise dra.ClaimError(f"the GPU instance has no compute profile of {slices} slices")

    def _mig_device(self, gpu: Gpu, instance: int) -> Any:
        nvml = self.nvml
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu.handle)):
            try:
                device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu.handle, index)
            except nvml.NVMLError:
                continue
            if nvml.nvmlDeviceGetGpuInstanceId(device) == instance:
                return device
        return None

    def _destroy(self, instance: Any) -> None:
        nvml = self.nvml
        with suppress(nvml.NVMLError_NotFound):  # a process was killed in between
            nvml.nvmlComputeInstanceDestroy(nvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0))
        nvml.nvmlGpuInstanceDestroy(instance)


def text(given: str | bytes) -> str:
    """Older versions of pynvml answer with bytes."""
    return given.decode() if isinstance(given, bytes) else given


def nvml_here() -> Any:
    if os.environ.get("FAKE_GPUS"):
        import fake_nvml as nvml  # type: ignore[import-not-found]  # beside this file
    else:
        import pynvml as nvml  # type: ignore[import-not-found]  # the extra nvml
    return nvml


def main() -> None:
    driver = GpuDriver(nvml_here)
    dra.run(driver, NAME, driver.pools(), beside=driver.listening, device_metadata=True)


if __name__ == "__main__":
    main()
