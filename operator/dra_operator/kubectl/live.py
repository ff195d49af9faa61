"""Reads the cluster: each kind by one LIST, of all namespaces or, if the viewer may not, of one.

Little is held of large objects of which there are many (``room``). They are read again one by one when a decision needs
them (``_Rereader``).

A kind that the viewer may not read, or that the server does not know, is no error here: the answer says that it is
missing. Reads that take longer than a second are counted on a terminal, in one line on standard error that is removed
when they are over.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TextIO, TypeVar

import msgspec
from dra_api.codec import DecodeError, convert
from dra_api.console import printable
from dra_api.core import Event, Node, Pod
from dra_api.gates import defaults_of
from dra_api.leases import LEASE_NAMESPACE, Lease
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


@dataclass
class Progress:
    """``kinds``: how many are read in all. ``read``: how many of them are; ``objects``: how many objects have come."""

    kinds: int
    read: int = 0
    objects: int = 0

    def came(self, obj: T) -> T:
        self.objects += 1
        return obj

    def __str__(self) -> str:
        return f"reading the cluster: {self.read} of {self.kinds} kinds, {counted(self.objects, 'object')}"


@asynccontextmanager
async def telling(progress: Progress, stream: TextIO | None = None) -> AsyncIterator[None]:
    """Show the progress each second, also while nothing comes, if the stream (standard error) is a terminal."""
    to = sys.stderr if stream is None else stream
    if not to.isatty():
        yield
        return

    async def tell() -> None:
        while True:
            await asyncio.sleep(QUIET_SECONDS)
            to.write(f"{_CLEARED}{progress}")
            to.flush()

    telling = asyncio.create_task(tell())
    try:
        yield
    finally:
        telling.cancel()
        to.write(_CLEARED)
        to.flush()


KINDS: Final[Kinds] = {**TABLE, RESOURCE_QUOTAS: ResourceQuota, EVENTS: Event, LEASES: Lease}
TOLD_BY_EVENTS: Final = (
    "type=Warning,reason!=FailedScheduling,reason!=Unhealthy,reason!=BackOff",
    "reason=FailedBinding",
)
"""Which events are read: what warns of an object that no condition tells of. Schedulers say in conditions what they say
in events, and what a kubelet repeats has a first event of another reason."""
VERSION_SECONDS: Final = 30.0


OF_DEVICES: Final = frozenset({ResourceSlice, DeviceTaintRule, ResourceClaim, DeviceClass, Pod, PodGroup, Node, Lease})
"""Kinds that say which devices there are and who has them."""


async def observe(
    where: Connection, timeout: float, namespace: str, kinds: Kinds = KINDS, room: ObjectRoom | None = None
) -> Observed:
    """Return all objects of these kinds that the viewer may read, in brief where there is no room.

    Raises KubeError if the server cannot be used.
    """
    room = room or ObjectRoom()
    async with Api(where, timeout=timeout, is_patient=True) as api:
        reader = _Reader(api, namespace, room, Progress(len(kinds)))
        async with telling(reader.progress):
            version = await _version(where, timeout)
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


async def _version(where: Connection, timeout: float) -> Mapping[str, Any]:
    """A server that answers nothing would be waited for without end if the person set no limit, and nothing said why.

    Lists of a large cluster take long; this question does not.
    """
    async with Api(where, timeout=min(timeout, VERSION_SECONDS), is_patient=True) as api:
        return await api.raw_get("/version")


@dataclass
class _Reader:
    api: Api
    namespace: str
    room: ObjectRoom
    progress: Progress
    unseen: dict[str, str] = field(default_factory=dict)
    malformed: dict[str, str] = field(default_factory=dict)

    async def read(self, resource: Resource, kind: type[Object]) -> list[Object]:
        """The objects of a kind in all namespaces or, if the viewer may not list these, in one."""
        name, found = str(resource), list[Object]()
        everywhere = LEASE_NAMESPACE if resource is LEASES else None
        is_narrowed = resource.namespaced and everywhere is None
        for namespace in (everywhere, self.namespace) if is_narrowed else (everywhere,):
            try:
                found = await self._listed(resource, kind, namespace)
            except Forbidden as error:
                self.unseen[name] = str(error)
                continue
            except (NotServed, NotFound) as error:
                self.unseen[name] = str(error)
                break
            if name in self.unseen:
                self.unseen[name] = f"read only in namespace {self.namespace}"
            break
        self.progress.read += 1
        return found

    async def _listed(self, resource: Resource, kind: type[Object], namespace: str | None) -> list[Object]:
        if resource is not EVENTS:
            return await self._page(resource, kind, namespace)
        pages = [await self._page(resource, kind, namespace, fieldSelector=selector) for selector in TOLD_BY_EVENTS]
        return [event for page in pages for event in page]

    async def _page(
        self, resource: Resource, kind: type[Object], namespace: str | None, **selectors: str
    ) -> list[Object]:
        listed = await self.api.list_as(resource, kind, namespace, keep=self._kept, **selectors)
        partially_decoded: list[Object] = []
        for raw, fault in listed.malformed:
            meta = _metadata(raw)
            self.malformed[f"{resource.kind} {meta.namespace}/{meta.name}".replace(" /", " ")] = str(fault)
            if resource is RESOURCE_CLAIMS:
                from dra_operator.sources.malformed import MalformedObjects  # seldom needed, and long to load

                MalformedObjects(partial(_keep, partially_decoded, meta)).take(resource, raw, fault)
        return [*listed.items, *map(self.room.kept, partially_decoded)]

    def _kept(self, obj: T) -> T:
        return self.room.kept(self.progress.came(obj))


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
        async with Api(self._where, timeout=self._timeout, is_patient=True) as api:

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
            return asyncio.run(observe(where(options), _seconds(options), namespace, _kinds(options), room_of(options)))
    except KubeError as error:
        code = ExitCode.USAGE if isinstance(error, ConnectionSettingsError) else ExitCode.FAILED
        raise Problem(for_people(error), code) from error


def client(options: argparse.Namespace) -> Api:
    """Return what a command asks the server by. Raises KubeError."""
    return Api(where(options), timeout=_seconds(options), is_patient=True)


def is_confirmed(*question: str) -> bool:
    """Ask before something is changed, in these lines. Only a y means yes; without an answer nothing is changed."""
    print(*map(printable, question), sep="\n", end=" [y/N] ", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _seconds(options: argparse.Namespace) -> float:
    return options.request_timeout or NO_LIMIT_SECONDS


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
