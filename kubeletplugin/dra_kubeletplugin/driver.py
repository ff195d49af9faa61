"""What a driver author implements: one class with ``prepare``, and ``unprepare`` if there is something to undo.

The library remembers what is prepared (``prepared.py``), so a driver needs no memory of its own. Its answer is checked
against the claim before anything is written (``prepared_by``).

A driver's own code may raise anything, and only what ends the task itself ends more than the call. ``SystemExit`` of a
library for command lines, or an exception that is no ``Exception``, costs the claim that it is about, and neither the
process nor the answer. ``CancelledError`` is not always a cancellation of ours: a driver that awaits a task of its own
which was cancelled raises it as well, and so does a library that closes a generator with ``GeneratorExit``. Taken for a
cancellation it would end the call without an answer, and the kubelet would wait until its deadline.

Spec: plugin-helper.md section 2.1.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Final, Self, TypeVar

import msgspec
from dra_api.references import base_request
from dra_api.resource import DeviceAttribute, DeviceRequestAllocationResult, NetworkDeviceData, ResourceClaim
from dra_cdi import CdiError, ContainerEdits, check_device_name, check_kind

from dra_kubeletplugin.errors import ClaimError, PluginError, Recoverable
from dra_kubeletplugin.slices.model import AttributeValue, attribute

log = logging.getLogger(__name__)


T = TypeVar("T")
ENDINGS: Final = (asyncio.CancelledError, GeneratorExit)


_LONGEST_TEXT_CHARACTERS: Final = 8_000
"""Characters of an error. The kubelet takes an answer of at most 4 MiB, and shows 1,024 characters in an event."""


def is_ending() -> bool:
    """Whether the running task is being cancelled or closed from outside."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop any more: the coroutine is being closed
        return True
    return task is None or task.cancelling() > 0


async def answer_of(call: Awaitable[T]) -> T:
    """What the driver answers. Raises what it raises, and ClaimError for an ending that is its own."""
    with own_code():
        return await call


@contextmanager
def own_code() -> Iterator[None]:
    """Run code of the driver. A BaseException of it that is no ``Exception`` becomes a ClaimError."""
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except ENDINGS as error:
        if is_ending():
            raise
        raise ClaimError(
            f"the driver raised {type(error).__name__}, although nothing cancelled the call: await tasks of its own "
            "with asyncio.wait, or catch it"
        ) from error
    except BaseException as error:
        raise ClaimError(
            f"the driver raised {type(error).__name__}, which is no Exception: {text_of(error)}; catch it, and raise "
            "what failed"
        ) from error


def text_of(error: BaseException) -> str:
    """Return an error in words for the kubelet. An error of the driver may have none, too many, or fail to say it."""
    try:
        text = readable(str(error))
        if isinstance(error, KeyError):  # whose text is the key alone
            text = f"{type(error).__name__}: {text}"
        elif isinstance(error, BaseExceptionGroup):  # whose text is only how many there are, as of a TaskGroup
            text = f"{text}: {'; '.join(map(text_of, error.exceptions))}"
    except Exception:
        text = ""
    if len(text) > _LONGEST_TEXT_CHARACTERS:
        text = f"{text[:_LONGEST_TEXT_CHARACTERS]}... ({len(text):,} characters)"
    return text or type(error).__name__  # an empty text would mean success


def readable(text: str) -> str:
    """The text as UTF-8 can have it: a lone surrogate, as of a file name that is no UTF-8, becomes an escape."""
    return text.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDevice:
    """One device that is ready for containers.

    ``requests`` are the requests of the claim that it serves (``request`` or ``request/subrequest``), ``share_id``
    the share of the allocation result, if that has one. ``edits`` is what containers with the device get; the library
    writes them to a CDI file. ``cdi_ids`` names further CDI devices, of files that the driver or its installer wrote.
    ``attributes`` and ``network`` go into the metadata file of the container, if the settings turn that on. ``owns``
    names parts of the host, such as the path and the number of a device node, that belong to this device alone: a claim
    whose device owns what another claim was given is refused (administrators' access excepted).
    """

    pool: str
    device: str
    requests: tuple[str, ...] = ()
    edits: ContainerEdits | None = None
    cdi_ids: tuple[str, ...] = ()
    share_id: str | None = None
    attributes: Mapping[str, DeviceAttribute] = field(default_factory=dict)
    network: NetworkDeviceData | None = None
    owns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("requests", "cdi_ids", "owns"):
            if (given := getattr(self, name)) != ():
                object.__setattr__(self, name, _texts(self, name, given))
        for cdi_id in self.cdi_ids:
            kind, _, name = cdi_id.rpartition("=")
            try:
                check_kind(kind)
                check_device_name(name)
            except CdiError as error:
                raise CdiError(
                    f"device {self.device}: {cdi_id!r} is not a CDI id such as v.com/gpu=0: {error}"
                ) from error

    @classmethod
    def of(
        cls,
        result: DeviceRequestAllocationResult,
        *,
        edits: ContainerEdits | None = None,
        cdi_ids: Sequence[str] = (),
        attributes: Mapping[str, AttributeValue] | None = None,
        network: NetworkDeviceData | None = None,
        owns: Sequence[str] = (),
    ) -> Self:
        """The device of an allocation result."""
        return cls(
            pool=result.pool,
            device=result.device,
            requests=(result.request,),
            edits=edits,
            cdi_ids=cdi_ids,  # type: ignore[arg-type]  # any sequence becomes a tuple
            share_id=result.share_id,
            attributes={name: attribute(value) for name, value in (attributes or {}).items()},
            network=network,
            owns=owns,  # type: ignore[arg-type]  # as above
        )


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """Which claim to unprepare; the ResourceClaim object may no longer exist. ``devices`` is what ``prepare`` returned.

    ``devices`` is empty when ``prepare`` has not returned, or when its record is lost.
    """

    namespace: str
    name: str
    uid: str
    devices: tuple[PreparedDevice, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHealth:
    """How a device does: ``healthy`` None is unknown. ``message`` goes into the status of the pods that use it.

    Without ``pool`` it is a device of the pool that is named like the node.

    Not reported for ``timeout_seconds`` (0: 30 s, the kubelet's default), the device becomes unknown; the library
    repeats a report in time.
    """

    device: str
    healthy: bool | None
    pool: str = ""
    message: str = ""
    timeout_seconds: int = 0


Prepared = Sequence[PreparedDevice]
PrepareResults = Mapping[str, Prepared | Exception]
UnprepareResults = Mapping[str, Exception | None]


class Driver(ABC):
    """A DRA driver on one node.

    The kubelet gives up on a call after 45 s, and calls again. What the driver has begun continues; its result is
    kept, and answers the next call. Run blocking work in ``asyncio.to_thread``.
    """

    @abstractmethod
    async def prepare(self, claim: ResourceClaim) -> Prepared:
        """Make the devices of a claim usable, and return them. What this raises is the claim's error.

        The claim is allocated and was just read from the API server; some of its results may belong to other drivers.
        A claim whose work was interrupted, or which was prepared before a reboot, is prepared again.
        """

    async def prepare_all(self, claims: Sequence[ResourceClaim]) -> PrepareResults:
        """Prepare the claims of one call together; optional. Return the devices of each, or its error, by uid.

        For drivers that set up devices of several claims of a pod at once. Claims that are prepared are not among them.
        What this raises is the error of each claim. ``prepare`` is still called for claims whose devices changed.
        """
        raise NotImplementedError

    async def started(self, plugin: Any) -> None:  # noqa: B027  # optional
        """Get to know the ``KubeletPlugin`` that serves this driver; called once, before the kubelet's first call.

        ``plugin.prepared_claims`` is what earlier processes have prepared. What this raises ends the start.
        """

    async def unprepare(self, claim: ClaimRef) -> None:  # noqa: B027  # many drivers have nothing to undo
        """Undo ``prepare``; the library removes the CDI files. Must succeed for unknown claims.

        What this raises is the claim's error, and the kubelet calls again.
        """

    def health(self) -> AsyncIterator[Sequence[DeviceHealth]]:
        """Yield the health of all devices at each change: ``async def health(self)`` with ``yield``.

        At most 100 reports a second are taken. A driver that has no such method reports none. When it raises, devices
        become unknown, and it is called again.
        """
        raise NotImplementedError

    def handle_error(self, error: PluginError, message: str) -> None:
        """Handle a background error, ``Recoverable`` or ``Fatal``. The default logs it."""
        log.log(logging.WARNING if isinstance(error, Recoverable) else logging.CRITICAL, "%s: %s", message, error)

    def __init_subclass__(cls, **others: Any) -> None:
        """Raise TypeError for methods that nothing could wait for."""
        super().__init_subclass__(**others)
        if inspect.iscoroutinefunction(cls.__dict__.get("health")):
            raise TypeError(f"{cls.__name__}.health must yield reports: write 'yield [...]' in it instead of 'return'")
        if inspect.iscoroutinefunction(cls.__dict__.get("handle_error")):
            raise TypeError(f"{cls.__name__}.handle_error is not waited for: write 'def handle_error'")
        check_awaitable(cls, "prepare", "prepare_all", "started", "unprepare")


def check_awaitable(cls: type, *names: str) -> None:
    """Raise TypeError for methods of a driver's class that cannot be waited for."""
    for name in names:
        method = cls.__dict__.get(name)
        if inspect.isasyncgenfunction(method):
            raise TypeError(f"{cls.__name__}.{name} must return: write 'return' in it instead of 'yield'")
        if isinstance(method, FunctionType) and not _is_asynchronous(method):
            raise TypeError(f"{cls.__name__}.{name} must be asynchronous: write 'async def {name}'")


def results_for(driver: str, claim: ResourceClaim) -> list[DeviceRequestAllocationResult]:
    """The devices of this driver that a claim holds; a claim may hold devices of several drivers."""
    allocation = claim.status.allocation
    return [result for result in (allocation.devices.results if allocation else None) or () if result.driver == driver]


def _texts(owner: PreparedDevice, name: str, given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not all(isinstance(item, str) for item in given):
        raise TypeError(f"device {owner.device}: {name} is {given!r}: give a list of strings, such as {name}=['x']")
    return tuple(given)


def _is_asynchronous(function: FunctionType) -> bool:
    return inspect.iscoroutinefunction(inspect.unwrap(function))


async def prepared_by(driver: Driver, name: str, claim: ResourceClaim) -> tuple[PreparedDevice, ...]:
    """What the driver ``name`` prepares. Raises what it raises, and ClaimError for an answer that cannot be."""
    answer = await answer_of(driver.prepare(claim))
    with own_code():  # it may be a generator
        return _checked(answer, claim, name)


async def all_prepared_by(
    driver: Driver, name: str, claims: Sequence[ResourceClaim]
) -> dict[str, tuple[PreparedDevice, ...] | Exception]:
    """What the driver ``name`` prepares for the claims of a call, or the error of each, by uid."""
    try:
        answers: Any = await answer_of(driver.prepare_all(claims))
        if not isinstance(answers, Mapping):
            raise ClaimError(
                f"the driver's prepare_all returned {answers!r}: return a dict of the devices of each claim by its uid"
            )
    except Exception as error:
        return {claim.metadata.uid: error for claim in claims}
    return {claim.metadata.uid: _one_of(answers, claim, name) for claim in claims}


def _one_of(answers: Mapping[str, Any], claim: ResourceClaim, driver: str) -> tuple[PreparedDevice, ...] | Exception:
    try:
        answer = answers[claim.metadata.uid]
        with own_code():
            return answer if isinstance(answer, Exception) else _checked(answer, claim, driver)
    except KeyError:
        return ClaimError(f"the driver's prepare_all returned nothing for claim {claim.key}, uid {claim.metadata.uid}")
    except Exception as error:
        return error


def _checked(devices: Any, claim: ResourceClaim, driver: str) -> tuple[PreparedDevice, ...]:
    """What the driver returned. Raises ClaimError, which names the device and what would be right."""
    is_promise = inspect.isawaitable(devices)  # a Future is Iterable
    if is_promise or not isinstance(devices, Iterable) or isinstance(devices, str | Mapping):
        remedy = "await it" if is_promise else "return a list of PreparedDevice"
        raise ClaimError(f"the driver's prepare returned {devices!r}: {remedy}")
    allocated: dict[tuple[str, str], set[str]] = {}
    for result in results_for(driver, claim):
        allocated.setdefault((result.pool, result.device), set()).add(base_request(result.request))
    found = []
    for device in devices:
        if not isinstance(device, PreparedDevice):
            raise ClaimError(f"the driver's prepare returned {device!r} as a device: use PreparedDevice.of(result)")
        requests = allocated.get((device.pool, device.device))
        if requests is None:
            raise ClaimError(
                f"the driver's prepare returned the device {device.device} of pool {device.pool}, which is not "
                "allocated to the claim: return those of results_for(...)"
            )
        if unknown := {base_request(name) for name in device.requests} - requests:
            raise ClaimError(
                f"the driver's prepare returned the device {device.device} for the request {min(unknown)}, which it "
                "was not allocated for: use PreparedDevice.of(result)"
            )
        found.append(_as_recorded(device))
    if lacking := allocated.keys() - {(device.pool, device.device) for device in found}:
        log.warning(
            "the driver's prepare returned nothing for %s of claim %s: containers get nothing of it; return a "
            "PreparedDevice for each of results_for(%r, claim)",
            ", ".join(sorted(name for _, name in lacking)),
            claim.key,
            driver,
        )
    return tuple(found)


def _as_recorded(device: PreparedDevice) -> PreparedDevice:
    """The device as the record of its claim has it. Raises ClaimError for a value of another type than its field.

    The record with such a value could not be read any more: the claim would count as damaged.
    """
    try:
        return msgspec.json.decode(msgspec.json.encode(device, enc_hook=_no_json), type=PreparedDevice)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        why = readable(str(error)).replace("$.", "")
        if isinstance(error, UnicodeEncodeError):
            why = f"{error.object!r} is no UTF-8"
        raise ClaimError(
            f"the driver's prepare returned the device {device.device} of pool {device.pool} with a value that its "
            f"field cannot have: {why}"
        ) from error


def _no_json(value: object) -> object:
    raise TypeError(f"{value!r} is no text or number: write str(...), or the class that the field has")
