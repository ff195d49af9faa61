"""The handlers: what happens in the cluster enters here, and nowhere else.

Each kind has one, and all do the same: the change is decoded and put into the cache, and the keys that it concerns are
queued (``Intake.take``, ``Control.apply``). None decides, and none waits. They return None, so Kopf writes nothing: no
annotation, no finalizer, no status.

``kopf run`` calls them with the events of Kopf's watches (``register``), ``dra-operator run`` with the changes of its
own (``watches``). After a 410 Kopf never reports deletions, a watch of Kopf's that ends between two events stays
dead, and each event costs it several times as much (docs/adr/0017-handlers-are-kopfs-the-watch-is-ours.md).
"""

from __future__ import annotations

import itertools
import logging
import re
import warnings
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, Final, Protocol, cast

import aiohttp
import kopf
from dra_kube import (
    ADMISSION_CHECKS,
    CSI_DRIVERS,
    CSI_NODES,
    CSI_STORAGE_CAPACITIES,
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    POD_DISRUPTION_BUDGETS,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_FLAVORS,
    RESOURCE_POOL_STATUS_REQUESTS,
    RESOURCE_SLICES,
    STORAGE_CLASSES,
    VOLUME_ATTACHMENTS,
    WORKLOADS,
    Change,
    Connection,
    ConnectionSettingsError,
    KubeError,
    Resource,
    connection,
)
from dra_kube.access.connection import proxy_and_credentials

Event = kopf.RawEvent | Change
"""An event as Kopf has it, or as a reflector has it: not decoded yet."""


class Operated(Protocol):
    """``app.operator.Operator`` is one: what handlers are given as ``param``."""

    @property
    def is_running(self) -> bool:
        """Whether the controllers are at work."""
        ...

    @property
    def served(self) -> Mapping[Resource, str]:
        """The kinds to watch, each with the version in which the server has it."""
        ...

    async def start(self, to: Connection, *, watches: bool) -> None:
        """Connect, list everything, start to work; ``watches``: follow all kinds from there. Raises KubeError."""
        ...

    async def stop(self) -> bool:
        """Stop to work and disconnect; return whether every write was answered."""
        ...

    def take(self, change: Change) -> None:
        """Put a change into the cache, and queue its keys."""
        ...


# --- one for each kind: what its changes mean for others ---


async def pods(event: Event, param: Operated, **_: Any) -> None:
    """Take in a pod: it may need claims or a place, hold devices, or be done with them."""
    _take(PODS, event, param)


async def resource_claims(event: Event, param: Operated, **_: Any) -> None:
    """Take in a claim: it may hold devices, wait for some, or have to be released."""
    _take(RESOURCE_CLAIMS, event, param)


async def resource_claim_templates(event: Event, param: Operated, **_: Any) -> None:
    """Take in a template: pods may wait for it."""
    _take(RESOURCE_CLAIM_TEMPLATES, event, param)


async def resource_slices(event: Event, param: Operated, **_: Any) -> None:
    """Take in a slice: devices come, change, or go."""
    _take(RESOURCE_SLICES, event, param)


async def device_classes(event: Event, param: Operated, **_: Any) -> None:
    """Take in a class: other devices fit the requests that name it."""
    _take(DEVICE_CLASSES, event, param)


async def device_taint_rules(event: Event, param: Operated, **_: Any) -> None:
    """Take in a rule: devices are tainted, or no longer."""
    _take(DEVICE_TAINT_RULES, event, param)


async def resource_pool_status_requests(event: Event, param: Operated, **_: Any) -> None:
    """Take in a question about pools. The answer goes into its status."""
    _take(RESOURCE_POOL_STATUS_REQUESTS, event, param)


async def nodes(event: Event, param: Operated, **_: Any) -> None:
    """Take in a node: room comes or goes, and pods may tolerate it or not."""
    _take(NODES, event, param)


async def namespaces(event: Event, param: Operated, **_: Any) -> None:
    """Take in a namespace: affinity between pods selects by its labels."""
    _take(NAMESPACES, event, param)


async def pod_groups(event: Event, param: Operated, **_: Any) -> None:
    """Take in a pod group: its pods are placed together."""
    _take(POD_GROUPS, event, param)


async def pod_disruption_budgets(event: Event, param: Operated, **_: Any) -> None:
    """Take in a budget: preemption avoids the pods that it protects."""
    _take(POD_DISRUPTION_BUDGETS, event, param)


async def storage_classes(event: Event, param: Operated, **_: Any) -> None:
    """Take in a storage class: it says when volumes are bound, and on which nodes they can be."""
    _take(STORAGE_CLASSES, event, param)


async def csi_drivers(event: Event, param: Operated, **_: Any) -> None:
    """Take in a CSI driver: it says whether the capacity of storage counts."""
    _take(CSI_DRIVERS, event, param)


async def csi_nodes(event: Event, param: Operated, **_: Any) -> None:
    """Take in a CSI node: how many volumes may be attached there."""
    _take(CSI_NODES, event, param)


async def csi_storage_capacities(event: Event, param: Operated, **_: Any) -> None:
    """Take in the capacity of storage in a part of the cluster."""
    _take(CSI_STORAGE_CAPACITIES, event, param)


async def volume_attachments(event: Event, param: Operated, **_: Any) -> None:
    """Take in an attachment: it counts against the limit of its node."""
    _take(VOLUME_ATTACHMENTS, event, param)


async def persistent_volumes(event: Event, param: Operated, **_: Any) -> None:
    """Take in a volume: nodes may reach it or not."""
    _take(PERSISTENT_VOLUMES, event, param)


async def persistent_volume_claims(event: Event, param: Operated, **_: Any) -> None:
    """Take in a claim of a volume: pods wait until it exists, and with it for its volume."""
    _take(PERSISTENT_VOLUME_CLAIMS, event, param)


async def workloads(event: Event, param: Operated, **_: Any) -> None:
    """Take in a Workload of Kueue: it may wait for an admission check, or have got a promise."""
    _take(WORKLOADS, event, param)


async def resource_flavors(event: Event, param: Operated, **_: Any) -> None:
    """Take in a ResourceFlavor of Kueue: it says which nodes a Workload with its quota may use."""
    _take(RESOURCE_FLAVORS, event, param)


async def admission_checks(event: Event, param: Operated, **_: Any) -> None:
    """Take in an AdmissionCheck of Kueue: the operator may be its controller."""
    _take(ADMISSION_CHECKS, event, param)


def _take(resource: Resource, event: Event, operator: Operated) -> None:
    if not isinstance(event, Change):  # Kopf has no type for the items of a list
        event = Change.of(event["type"] or "LISTED", dict(event["object"]), resource)
    operator.take(event)


Handler = Callable[..., Coroutine[Any, Any, None]]
HANDLERS: Final[dict[Resource, Handler]] = {
    PODS: pods,
    RESOURCE_CLAIMS: resource_claims,
    RESOURCE_CLAIM_TEMPLATES: resource_claim_templates,
    RESOURCE_SLICES: resource_slices,
    DEVICE_CLASSES: device_classes,
    DEVICE_TAINT_RULES: device_taint_rules,
    RESOURCE_POOL_STATUS_REQUESTS: resource_pool_status_requests,
    NODES: nodes,
    NAMESPACES: namespaces,
    POD_GROUPS: pod_groups,
    POD_DISRUPTION_BUDGETS: pod_disruption_budgets,
    STORAGE_CLASSES: storage_classes,
    CSI_DRIVERS: csi_drivers,
    CSI_NODES: csi_nodes,
    CSI_STORAGE_CAPACITIES: csi_storage_capacities,
    VOLUME_ATTACHMENTS: volume_attachments,
    PERSISTENT_VOLUMES: persistent_volumes,
    PERSISTENT_VOLUME_CLAIMS: persistent_volume_claims,
    WORKLOADS: workloads,
    RESOURCE_FLAVORS: resource_flavors,
    ADMISSION_CHECKS: admission_checks,
}


# --- the process ---


class CannotStart(kopf.PermanentError):
    """The API server cannot be used; ``error`` says why."""

    def __init__(self, error: KubeError) -> None:
        super().__init__(f"cannot start: {error}")
        self.error = error


async def start(param: Operated, to: Connection | None = None, *, watches: bool = False, **_: Any) -> None:
    """Connect, list everything, and begin to work. Raises CannotStart.

    ``to``: the API server, of the kubeconfig if it is left out. ``watches``: with watches of the operator's own.
    """
    try:
        await param.start(to or connection(), watches=watches)
    except KubeError as error:
        raise CannotStart(error) from None  # Kopf prints the whole chain


async def stop(param: Operated, **_: Any) -> bool:
    """Stop to work and disconnect; return whether every write was answered, so that none may still take effect."""
    return await param.stop()


def running(param: Operated, **_: Any) -> bool:
    """Return whether the controllers are at work."""
    return param.is_running


async def login(**_: Any) -> kopf.AiohttpSession:
    """Give Kopf a connection with the address and the credentials of ours; asked again when the server says 401.

    ``dra-operator run`` has no use for it: its own client renews its credentials.
    """
    try:
        return session_for(connection())
    except ConnectionSettingsError as error:
        raise kopf.PermanentError(str(error)) from error


def session_for(settings: Connection) -> kopf.AiohttpSession:
    authorization = settings.authorization()
    proxy, credentials = proxy_and_credentials(settings.proxy)
    with warnings.catch_warnings():
        # aiohttp shows the address of a proxy in its errors. Its new way to keep a password out of the address is an
        # option of each request, and these requests are Kopf's.
        warnings.filterwarnings("ignore", "The 'proxy_auth' parameter", DeprecationWarning)
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=settings.tls or False, limit=0),
            headers=[*([("Authorization", authorization)] if authorization else []), *settings.impersonation],
            proxy=proxy,
            proxy_auth=aiohttp.BasicAuth.decode(credentials, "utf-8") if credentials else None,
        )
    return kopf.AiohttpSession(server=settings.host, aiohttp_session=session)


def register(operator: Operated, registry: kopf.OperatorRegistry | None = None) -> None:
    """Attach the handlers to a registry of Kopf, the default one if none is given, with the operator as ``param``."""
    registry = registry or kopf.get_default_registry()
    kopf.on.startup(id="start", registry=registry, param=operator)(cast(Any, start))  # its type says: without param
    kopf.on.login(id="login", registry=registry)(login)
    kopf.on.probe(id="running", registry=registry, param=operator)(cast(Any, running))
    kopf.on.cleanup(id="stop", registry=registry, param=operator)(cast(Any, stop))

    @kopf.on.startup(id="watch", registry=registry)  # after ``start``: that asks for the kinds of the server
    async def watch(settings: kopf.OperatorSettings, **_: Any) -> None:
        # The version is the one that the server has and we speak, which need not be the one that its group prefers. It
        # is named here, because Kopf asks a selector that is a function about all that the server has, and would wait
        # for every API of the cluster, also for those whose own server is down.
        configure(settings)
        if not operator.is_running:
            return  # Kopf calls all of these before it ends because one has failed
        for resource, version in operator.served.items():
            group, plural = resource.group, resource.plural
            attach = kopf.on.event(
                group=group, version=version, plural=plural, id=plural, registry=registry, param=operator
            )
            attach(HANDLERS[resource])


# --- Kopf's own settings, for ``kopf run`` ---


class Patience:
    """Waits between retries, in seconds: growing, then constant, without end.

    Kopf's own list ends after a minute, and with it the operator: an API server may be away for longer.
    """

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((0.2, 0.5, 1, 2, 3, 5, 8), itertools.repeat(10.0))


class NoProgress(kopf.ProgressStorage):
    """Raw event handlers have no progress; nothing is ever stored on objects."""

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None

    def purge(self, **_: Any) -> None:
        return None

    def touch(self, **_: Any) -> None:
        return None

    def clear(self, *, essence: Any) -> Any:
        return essence


class NoDiffBase(kopf.DiffBaseStorage):
    """No last-seen state. Building one would copy every object twice, at a higher cost than all else together."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None


class _UnservedKinds(logging.Filter):
    """Says of kinds that are not served what Kopf means: its advice, to create CRDs, is for kinds of one's own."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Translate the record, if it is that one; keep it in any case."""
        said = record.getMessage()
        if said.startswith("Unresolved resources"):
            kinds = ", ".join(re.findall(r"plural='(\w+)'", said))
            record.msg, record.args = "the API server does not serve %s: they are watched once it does", (kinds,)
        return True


_UNSERVED_KINDS = _UnservedKinds()


def configure(settings: kopf.OperatorSettings) -> None:
    """Set up Kopf as a pure source of events, which writes nothing by itself and does not log each event."""
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)
    logging.getLogger("kopf._core.reactor.observation").addFilter(_UNSERVED_KINDS)
    settings.process.ultimate_exiting_timeout = None  # or a Kopf that failed kills the process ten minutes later
    settings.networking.connect_timeout = 10.0
    settings.networking.request_timeout = 60.0  # as long as a server takes at most to answer
    settings.persistence.progress_storage = NoProgress()
    settings.persistence.diffbase_storage = NoDiffBase()
    settings.posting.enabled = False
    settings.peering.standalone = True  # two equal replicas would pause each other; leader election is ours
    settings.scanning.disabled = True  # our kinds are built in: the server neither adds nor removes them while it runs
    settings.networking.error_backoffs = Patience()
    settings.queueing.error_delays = Patience()
    settings.queueing.idle_timeout = 0.2  # an idle worker per object, kept for seconds, wastes memory
    settings.queueing.exit_timeout = 0.5
    settings.queueing.worker_limit = None  # a slot is held through the idle time: a limit would stall all kinds
    settings.watching.chunk_size = 500
    settings.watching.reconnect_backoff = 0.1
