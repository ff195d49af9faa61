"""GPUs that exist only in memory, behind the functions of ``pynvml`` (nvidia-ml-py) that gpu_driver.py uses.

Arguments and results are as in ``pynvml``, ctypes included, so that the driver is the same with either. The GPUs are
like an H100: seven compute and eight memory slices, cut by the profiles and placements of MIG. The state of the GPUs is
kept in a file if there is one, as real GPUs keep their instances while the driver restarts.
"""

# ruff: noqa: N801, N802, N803, N816  # names of pynvml

from __future__ import annotations

import ctypes
import json
import os
import queue
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NVML_GPU_INSTANCE_PROFILE_COUNT = 18
NVML_COMPUTE_INSTANCE_PROFILE_COUNT = 9
NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED = 0
NVML_DEVICE_MIG_ENABLE = 1
NVML_COMPUTEMODE_DEFAULT, NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 0, 3
nvmlEventTypeXidCriticalError = 8
c_nvmlGpuInstance_t = ctypes.c_uint


class c_nvmlGpuInstancePlacement_t(ctypes.Structure):
    _fields_ = (("start", ctypes.c_uint), ("size", ctypes.c_uint))


class NVMLError(Exception):
    """The root of pynvml's errors."""


class NVMLError_NotSupported(NVMLError): ...


class NVMLError_NotFound(NVMLError): ...


class NVMLError_Timeout(NVMLError): ...


class NVMLError_InsufficientResources(NVMLError): ...


# profile: id, name, compute slices, memory slices, MiB, starts
PROFILES = {
    0: (19, "1g.10gb", 1, 1, 9984, (0, 1, 2, 3, 4, 5, 6)),
    1: (14, "2g.20gb", 2, 2, 20096, (0, 2, 4)),
    2: (9, "3g.40gb", 3, 4, 40448, (0, 4)),
    3: (5, "4g.40gb", 4, 4, 40448, (0,)),
    4: (0, "7g.80gb", 7, 8, 81152, (0,)),
}
_BY_ID = {profile[0]: profile for profile in PROFILES.values()}

_file = Path(os.environ.get("FAKE_NVML_STATE") or os.devnull)
_state: dict[str, Any] = {"gpus": 0, "mig": 0, "modes": {}, "instances": {}, "next": 1}
_events: queue.Queue[tuple[int, int]] = queue.Queue()


def reset(gpus: int = 2, mig: int = 1) -> None:
    """Begin anew with this many GPUs. The first ``mig`` of them have MIG enabled."""
    _state.update(gpus=gpus, mig=mig, modes={}, instances={}, next=1)
    while not _events.empty():
        _events.get()


def fail(gpu: int, xid: int) -> None:
    """Let a GPU report an error."""
    _events.put((gpu, xid))


def instances() -> list[tuple[int, int, int, bool]]:
    """The GPU instances: GPU, profile, start, and whether each has a compute instance."""
    return sorted(tuple(each) for each in _state["instances"].values())


def _save() -> None:
    if _file != Path(os.devnull):
        _file.write_text(json.dumps(_state))


def nvmlInit() -> None:
    if _file != Path(os.devnull) and _file.exists():
        _state.update(json.loads(_file.read_text()))
    elif not _state["gpus"]:
        reset(int(os.environ.get("FAKE_GPUS") or 2))


def nvmlShutdown() -> None: ...


def nvmlDeviceGetCount() -> int:
    return int(_state["gpus"])


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


def nvmlDeviceGetUUID(handle: int | str) -> str:
    return handle if isinstance(handle, str) else f"GPU-{handle:08x}-0000-4000-8000-000000000000"


def nvmlDeviceGetName(handle: int) -> str:
    return "FAKE H100 80GB HBM3"


def nvmlDeviceGetMinorNumber(handle: int) -> int:
    return handle


def nvmlDeviceGetMemoryInfo(handle: int, version: int | None = None) -> Any:
    return SimpleNamespace(total=80 * 2**30)


def nvmlDeviceGetMigMode(device: int) -> list[int]:
    return [int(device < _state["mig"])] * 2


def nvmlDeviceSetComputeMode(handle: int, mode: int) -> None:
    _state["modes"][str(handle)] = mode
    _save()


def nvmlDeviceGetComputeMode(handle: int) -> int:
    return int(_state["modes"].get(str(handle), NVML_COMPUTEMODE_DEFAULT))


def nvmlDeviceGetGpuInstanceProfileInfo(device: int, profile: int, version: int = 2) -> Any:
    if profile not in PROFILES:
        raise NVMLError_NotSupported(profile)
    number, name, slices, _, mebibytes, starts = PROFILES[profile]
    return SimpleNamespace(
        id=number, name=f"MIG {name}".encode(), sliceCount=slices, memorySizeMB=mebibytes, instanceCount=len(starts)
    )


def nvmlDeviceGetGpuInstancePossiblePlacements(
    device: int,
    profileId: int,
    placementsRef: Any,
    countRef: Any,
) -> None:
    _, _, _, size, _, starts = _BY_ID[profileId]
    for index, start in enumerate(starts):
        placementsRef[index] = c_nvmlGpuInstancePlacement_t(start, size)
    countRef._obj.value = len(starts)


def nvmlDeviceCreateGpuInstanceWithPlacement(device: int, profileId: int, placement: Any) -> int:
    given = placement._obj if hasattr(placement, "_obj") else placement
    wanted = set(range(given.start, given.start + given.size))
    for gpu, profile, start, _ in _state["instances"].values():
        if gpu == device and wanted & set(range(start, start + _BY_ID[profile][3])):
            raise NVMLError_InsufficientResources(start)
    number = _state["next"]
    _state["next"] += 1
    _state["instances"][str(number)] = [device, profileId, given.start, False]
    _save()
    return int(number)


def nvmlDeviceGetGpuInstances(device: int, profileId: int, gpuInstancesRef: Any, countRef: Any) -> None:
    found = [number for number, each in _state["instances"].items() if each[:2] == [device, profileId]]
    for index, number in enumerate(found):
        gpuInstancesRef[index] = int(number)
    countRef._obj.value = len(found)


def nvmlGpuInstanceGetInfo(gpuInstance: int) -> Any:
    gpu, profile, start, _ = _state["instances"][str(gpuInstance)]
    placement = c_nvmlGpuInstancePlacement_t(start, _BY_ID[profile][3])
    return SimpleNamespace(device=gpu, id=gpuInstance, profileId=profile, placement=placement)


def nvmlGpuInstanceGetComputeInstanceProfileInfo(
    device: int,
    profile: int,
    engProfile: int,
    version: int = 2,
) -> Any:
    slices = (1, 2, 3, 4, 7)
    if profile >= len(slices):
        raise NVMLError_NotSupported(profile)
    return SimpleNamespace(id=profile, sliceCount=slices[profile])


def nvmlGpuInstanceCreateComputeInstance(gpuInstance: int, profileId: int) -> int:
    _state["instances"][str(gpuInstance)][3] = True
    _save()
    return gpuInstance


def nvmlDeviceGetMaxMigDeviceCount(device: int) -> int:
    return 7


def nvmlDeviceGetMigDeviceHandleByIndex(device: int, index: int) -> str:
    found = [number for number, each in _state["instances"].items() if each[0] == device and each[3]]
    if index >= len(found):
        raise NVMLError_NotFound(index)
    return f"MIG-{int(found[index]):08x}-0000-4000-8000-000000000000"


def nvmlDeviceGetGpuInstanceId(device: str) -> int:
    return int(device[4:12], 16)


def nvmlDeviceGetComputeInstanceId(device: str) -> int:
    return 0


def nvmlGpuInstanceGetComputeInstanceById(gpuInstance: int, computeInstanceId: int) -> int:
    if not _state["instances"][str(gpuInstance)][3]:
        raise NVMLError_NotFound(gpuInstance)
    return gpuInstance


def nvmlComputeInstanceDestroy(computeInstance: int) -> None:
    _state["instances"][str(computeInstance)][3] = False
    _save()


def nvmlGpuInstanceDestroy(gpuInstance: int) -> None:
    del _state["instances"][str(gpuInstance)]
    _save()


def nvmlEventSetCreate() -> object:
    return _events


def nvmlDeviceRegisterEvents(handle: int, eventTypes: int, eventSet: object) -> None: ...


def nvmlEventSetWait(eventSet: object, timeoutms: int) -> Any:
    try:
        gpu, xid = _events.get(timeout=timeoutms / 1000)
    except queue.Empty:
        raise NVMLError_Timeout from None
    return SimpleNamespace(device=gpu, eventType=nvmlEventTypeXidCriticalError, eventData=xid)
