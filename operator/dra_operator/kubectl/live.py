"""Reads the cluster: each kind by one LIST, of all namespaces or, if the viewer may not, of one.

Little is held of large objects of which there are many (``room``). They are read again one by one when a decision needs
them (``_Rereader``).

A kind that the viewer may not read is no error here: the answer says that it is missing. Reads that take longer than a
second are counted on a terminal, in one line on standard error that is removed when they are over.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TextIO, TypeVar

import msgspec
from dra_api.codec import DecodeError, convert
from dra_api.core import Event, Node, Pod
from dra_api.gates import defaults_of
from dra_api.leases import Lease
from dra_api.meta import EVENTS, LEASES, RESOURCE_CLAIMS, RESOURCE_QUOTAS, Object, ObjectMeta, Resource
from dra_api.quota import ResourceQuota
from dra_api.releases import release_of
from dra_api.resource import (
    AllocationResult,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimStatus,
    ResourceSlice,
)
from dra_api.scheduling import PodGroup
from dra_kube import (
    Api,
    Connection,
    ConnectionSettingsError,
    Forbidden,
    Headers,
    KubeError,
    NoAnswerInTime,
    NotFound,
    NotServed,
    Overrides,
    connection,
    for_people,
    namespace_of,
)

from dra_operator.kubectl.answer import ExitCode, Problem
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.room import ObjectRoom, is_brief, room_of, without_bulk
from dra_operator.sources.kind_table import OF_KUEUE, TABLE, Kinds
from dra_operator.wording import counted

T = TypeVar("T", bound=Object)

QUIET_SECONDS: Final = 1.0
"""Reads that take less are not told of."""
_CLEARED: Final = "\r\x1b[K"


class Progress:
    """``kinds``: how many are read in all."""

    def __init__(self, kinds: int, stream: TextIO) -> None:
        self._kinds, self._stream = kinds, stream
        self._begun = time.monotonic()
        self._read = 0
        self._objects = 0

    def add(self, objects: int) -> None:
        """One more kind is read, of which there are so many objects."""
        self._read += 1
        self._objects += objects
        if time.monotonic() - self._begun >= QUIET_SECONDS:
            what = f"{self._read} of {self._kinds} kinds, {counted(self._objects, 'object')}"
            self._stream.write(f"{_CLEARED}reading the cluster: {what}")
            self._stream.flush()

    def end(self) -> None:
        """Take the line away."""
        self._stream.write(_CLEARED)
        self._stream.flush()


@contextmanager
def progress(kinds: int, stream: TextIO | None = None) -> Iterator[Progress | None]:
    """None where standard error is no terminal."""
    to = sys.stderr if stream is None else stream
    if not to.isatty():
        yield None
        return
    told = Progress(kinds, to)
    try:
        yield told
    finally:
        told.end()


KINDS: Final[Kinds] = {
    **TABLE,
    RESOURCE_QUOTAS: ResourceQuota,
    EVENTS: Event,
    LEASES: Lease,
}
TOLD_BY_EVENTS: Final = (
    "type=Warning,reason!=FailedScheduling,reason!=Unhealthy,reason!=BackOff",
    "reason=FailedBinding",
)
"""Which events are read: what warns of an object that no condition tells of. Schedulers say in conditions what they say
in events, and what a kubelet repeats has a first event of another reason."""
VERSION_SECONDS: Final = 30.0
LEASE_NAMESPACE: Final = "kube-system"


OF_DEVICES: Final = frozenset({ResourceSlice, DeviceTaintRule, ResourceClaim, DeviceClass, Pod, PodGroup, Node, Lease})
"""Kinds that say which devices there are and who has them."""


async def observe(
    where: Connection, timeout: float, namespace: str, kinds: Kinds = KINDS, room: ObjectRoom | None = None
) -> Observed:
    """Return all objects of these kinds that the viewer may read, in brief where there is no room.

    Raises KubeError if the server cannot be used.
    """
    room = room or ObjectRoom()
    async with Api(where, timeout=timeout) as api:
        version = await _version(api, timeout)
        with progress(len(kinds)) as told:
            reader = _Reader(api, namespace, room, told)
            lists = await asyncio.gather(*(reader.read(resource, kind) for resource, kind in kinds.items()))
    objects = [obj for found in lists for obj in found]
    release, gates = release_of(version)[0], defaults_of(version)
    return Observed(
        objects,
        datetime.now(UTC),
        release,
        namespace,
        reader.unseen,
        reader.malformed,
        gates,
        KINDS.keys() <= kinds.keys(),
        _Rereader(where, timeout) if room.has_brief else None,
        room.pods_cut,
    )


async def _version(api: Api, timeout: float) -> Mapping[str, Any]:
    """A server that answers nothing would be waited for without end if the person set no limit, and nothing said why.

    Lists of a large cluster take long; this question does not.
    """
    seconds = min(timeout, VERSION_SECONDS)
    try:
        async with asyncio.timeout(seconds):
            version: Mapping[str, Any] = await api.raw_get("/version")
            return version
    except TimeoutError as error:
        raise NoAnswerInTime(f"GET /version: no answer within {seconds:g} s") from error


@dataclass
class _Reader:
    api: Api
    namespace: str
    room: ObjectRoom
    progress: Progress | None = None
    unseen: dict[str, str] = field(default_factory=dict)
    malformed: dict[str, str] = field(default_factory=dict)

    async def read(self, resource: Resource, kind: type[Object]) -> list[Object]:
        """The objects of one kind that the viewer may see."""
        found = await self._seen(resource, kind)
        if self.progress is not None:
            self.progress.add(len(found))
        return found

    async def _seen(self, resource: Resource, kind: type[Object]) -> list[Object]:
        scope = LEASE_NAMESPACE if resource is LEASES else None
        try:
            return await self._listed(resource, kind, scope)
        except NotServed as error:
            self.unseen[str(resource)] = str(error)
            return []
        except Forbidden as error:
            if not resource.namespaced or scope is not None:
                self.unseen[str(resource)] = str(error)
                return []
        try:
            found = await self._listed(resource, kind, self.namespace)
        except Forbidden as error:
            self.unseen[str(resource)] = str(error)
            return []
        self.unseen[str(resource)] = f"read only in namespace {self.namespace}"
        return found

    async def _listed(self, resource: Resource, kind: type[Object], namespace: str | None) -> list[Object]:
        if resource is not EVENTS:
            return await self._page(resource, kind, namespace)
        pages = [await self._page(resource, kind, namespace, fieldSelector=selector) for selector in TOLD_BY_EVENTS]
        return [event for page in pages for event in page]

    async def _page(
        self, resource: Resource, kind: type[Object], namespace: str | None, **selectors: str
    ) -> list[Object]:
        listed = await self.api.list_as(resource, kind, namespace, keep=self.room.kept, **selectors)
        partially_decoded: list[Object] = []
        for raw, fault in listed.malformed:
            meta = _metadata(raw)
            self.malformed[f"{resource.kind} {meta.namespace}/{meta.name}".replace(" /", " ")] = str(fault)
            if resource is RESOURCE_CLAIMS:
                from dra_operator.sources.malformed import MalformedObjects  # seldom needed, and long to load

                MalformedObjects(partial(_keep, partially_decoded, meta)).take(resource, raw, fault)
        return [*listed.items, *map(self.room.kept, partially_decoded)]


def _metadata(raw: bytes) -> ObjectMeta:
    try:
        found: Mapping[str, Any] = msgspec.json.decode(raw)
        meta = found["metadata"]
        return ObjectMeta(
            name=str(meta.get("name", "")), namespace=str(meta.get("namespace", "")), uid=str(meta.get("uid", ""))
        )
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return ObjectMeta(name="(without a name)")


def _keep(into: list[Object], meta: ObjectMeta, _: str, allocation: AllocationResult | None) -> None:
    """What is known of a malformed claim: its devices stay in use."""
    if allocation is not None:
        into.append(ResourceClaim(metadata=meta, status=ResourceClaimStatus(allocation=allocation)))


REREAD_OBJECTS: Final = 4
"""Objects that are read again beside each other; each may have 1.4 MB."""


class _Rereader:
    """Reads objects again of which only the brief form is held (``observed.Reread``). No event loop runs meanwhile."""

    def __init__(self, where: Connection, timeout: float) -> None:
        self._where, self._timeout = where, timeout

    def __call__(self, objects: Sequence[T]) -> Sequence[T]:
        found = list(objects)
        places = [place for place, obj in enumerate(found) if is_brief(obj)]
        if places:
            try:
                whole = asyncio.run(self._read([found[place] for place in places]))
            except KubeError as error:
                raise Problem(for_people(error), ExitCode.FAILED) from error
            for place, obj in zip(places, whole, strict=True):
                found[place] = obj
        return found

    async def _read(self, objects: Sequence[T]) -> Sequence[T]:
        turns = asyncio.Semaphore(REREAD_OBJECTS)
        async with Api(self._where, timeout=self._timeout) as api:

            async def read(obj: T) -> T:
                async with turns:
                    try:
                        raw = await api.get(_RESOURCES[type(obj)], obj.metadata.name, obj.metadata.namespace or None)
                        whole = without_bulk(convert(type(obj), raw))
                    except (NotFound, Forbidden, DecodeError):
                        return obj
                return whole if whole.metadata.uid == obj.metadata.uid else obj

            return await asyncio.gather(*map(read, objects))


_RESOURCES: Final[Mapping[type[Object], Resource]] = {kind: it for it, kind in {**KINDS, **OF_KUEUE}.items()}
NO_LIMIT_SECONDS: Final = 1e8


def read_server(options: argparse.Namespace) -> Observed:
    """What there is now. Raises Problem."""
    namespace = getattr(options, "namespace", None) or namespace_of(options.kubeconfig, options.context)
    try:
        with _without_warnings():
            seconds = options.request_timeout or NO_LIMIT_SECONDS
            return asyncio.run(observe(where(options), seconds, namespace, _kinds(options), room_of(options)))
    except KubeError as error:
        code = ExitCode.USAGE if isinstance(error, ConnectionSettingsError) else ExitCode.FAILED
        raise Problem(for_people(error), code) from error


def _kinds(options: argparse.Namespace) -> Kinds:
    """Commands that ask no allocator read the kinds of devices alone: a cluster has more pods' volumes than devices."""
    is_about_devices = getattr(options, "of_devices", False) and getattr(options, "by", "") != "classes"
    if is_about_devices:
        return {resource: kind for resource, kind in KINDS.items() if kind in OF_DEVICES}
    return {**KINDS, **OF_KUEUE} if getattr(options, "of_kueue", False) else KINDS


@contextmanager
def _without_warnings() -> Iterator[None]:
    """The answer says what is malformed."""
    logger = logging.getLogger("dra_operator")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def where(options: argparse.Namespace) -> Connection:
    """The server, and in whose name it is asked. Raises KubeError."""
    said = (getattr(options, name, None) or "" for name in ("cluster", "user", "server", "token"))
    found = connection(options.kubeconfig, options.context, Overrides(*said))
    if options.as_user is None:
        return found
    groups: Headers = tuple(("Impersonate-Group", group) for group in options.as_group)
    return replace(found, impersonation=(("Impersonate-User", options.as_user), *groups))
