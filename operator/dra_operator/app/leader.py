"""Leader election around the operator: one works, the others stand by.

All operators that place the pods of one scheduler name share one Lease (the rules are in
``dra_kube.lease``). A ``Leader`` first waits until the lease is its own; the operator starts then, so that
it lists the cluster as the last leader left it. From then on a task renews the lease, and ``allowance`` guards each
write of the operator.

When another process holds the lease, ``lost`` returns, the process ends, and a new one stands by. A leader that cannot
reach the API server writes nothing, keeps its cache, and continues when its renewal is answered.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import math
import os
import random
import socket
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from dra_kube import (
    LEASES,
    Api,
    Connection,
    Election,
    Forbidden,
    KubeError,
    LeaseLock,
    LeaseLost,
    NotFound,
    Observe,
    ServerError,
    Timing,
    TooManyRequests,
    Unreachable,
    unobserved,
)

logger = logging.getLogger(__name__)

NAMESPACE = "kube-system"
"""Where the Lease is unless an option says otherwise: the same for operators inside and outside of the cluster."""
JITTER_SHARE = 0.2  # of the time between two attempts, so that candidates do not come all at once


class CannotElect(KubeError):
    """The lease cannot be used; the message says what to do about it."""


def lease_name(scheduler_name: str) -> str:
    """The Lease of all operators that place the pods of this scheduler name."""
    return f"dra-operator-{scheduler_name}"


class Seat:
    """The one seat for a leader among the processes of a pod, and what the name of who sits there says.

    All containers of a pod share one network namespace, which outlives each of them. The first process binds a name in
    it (an abstract Unix socket), and the kernel frees that name when the process ends, however it ends. Only a process
    that has the seat puts the mark of its pod into its identity: the pod's UID, the boot of the kernel and the network
    namespace. So whoever has the seat knows that all others with this mark have ended. A second process in the pod gets
    no seat, carries no mark, and waits for the Lease as anybody does; so does a process without ``POD_UID``, such as
    one on a laptop.
    """

    def __init__(self, lease: str) -> None:
        self._lease, self._mark = lease, _mark_of_pod()
        self._bound: socket.socket | None = None
        self._unique = uuid.uuid4()

    def identity(self) -> str:
        """Return a unique name for this process, which begins with that of its pod or host; take the seat first."""
        self._sit_down()
        name = f"{os.environ.get('POD_NAME') or socket.gethostname()}_{self._unique}"
        return f"{name}_{self._mark}" if self._bound is not None else name

    def has_ended(self, holder: str) -> bool:
        """Return whether the holder was another process of this pod, which had the seat before."""
        is_marked = self._bound is not None and holder.endswith(f"_{self._mark}")
        return is_marked and str(self._unique) not in holder

    def close(self) -> None:
        """Free the seat: this process writes no more."""
        if self._bound is not None:
            self._bound.close()
            self._bound = None

    def _sit_down(self) -> None:
        if not self._mark or self._bound is not None:
            return
        name = hashlib.sha256(f"{self._mark}/{self._lease}".encode()).hexdigest()
        seat = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            seat.bind(f"\0dra-operator-{name}")
        except OSError as error:
            seat.close()
            level = logging.DEBUG if error.errno == errno.EADDRINUSE else logging.WARNING
            logger.log(level, "a Lease that this pod held will not be taken over at once: %s", error)
        else:
            self._bound = seat


def _mark_of_pod() -> str:
    """Return the UID of the pod with a digest of the kernel's boot and the network namespace.

    Empty outside of a pod, and where the kernel is not Linux. The environment alone is no proof, since it can be copied
    to another machine.
    """
    uid = os.environ.get("POD_UID", "")
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        network = os.readlink("/proc/self/ns/net")
    except OSError:
        return ""
    return f"{uid}-{hashlib.sha256(f'{boot}/{network}'.encode()).hexdigest()[:8]}" if uid else ""


class Leader:
    """One candidate on one API server: ``acquire``, work, and ``release`` when no write is left; then ``close``.

    ``annotations`` is asked for what the leader says of itself on the Lease; it is called in the thread of the Lease.
    """

    def __init__(
        self,
        connection: Connection,
        name: str,
        namespace: str = NAMESPACE,
        timing: Timing | None = None,
        observe: Observe = unobserved,
        annotations: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._seat = Seat(f"{namespace}/{name}")
        self._election = Election(self._seat.identity(), timing, has_ended=self._seat.has_ended)
        self._timing = self._election.timing
        # Its own client: not guarded. One request without an answer must not cost the lease; as with client-go, it is
        # given half of the time in which the leader has to renew.
        self._patience = self._timing.request
        self._api = Api(connection, timeout=self._patience, observe=observe)
        self._lock = LeaseLock(self._api, namespace, name, self._election, annotations)
        self._where = f"Lease {namespace}/{name}"
        self._namespace = namespace
        self._task: asyncio.Task[None] | None = None
        self._trouble = ""
        self._error: type[KubeError] | None = None
        self._stands_by = ""
        self._asked_at = -math.inf
        self._settled_at = -math.inf
        self._is_lost = asyncio.Event()

    async def acquire(self) -> None:
        """Stand by until this process leads; from then on the lease is renewed. Raises CannotElect, KubeError."""
        await self._api.__aenter__()
        leads = await self._attempt(is_first=True)
        while not leads:
            await asyncio.sleep(self._timing.retry * random.uniform(1 - JITTER_SHARE, 1))
            self._election.identity = self._seat.identity()  # another process of the pod may have left the seat
            leads = await self._attempt()
        if self._seat.has_ended(self._election.former):
            self._settled_at = self._election.clock() + self._timing.lease
            logger.info("%s was held by a process of this pod that has ended: %s", self._where, self._election.former)
        logger.info("leading: %s is held by %s", self._where, self._election.identity)
        self._task = asyncio.create_task(self._keep(), name="lease")

    @property
    def found(self) -> Mapping[str, str]:
        """The annotations of the Lease when it was won."""
        return self._lock.found

    def allowance(self) -> float:
        """The guard of the operator's writes. Raises NotLeading."""
        return self._election.allowance()

    @property
    def is_settled(self) -> bool:
        """Whether no write of the leader before may still take effect.

        It may where its Lease was taken over before its time: what a process has sent may outlive it on the way.
        """
        return self._election.clock() >= self._settled_at

    @property
    def leads(self) -> bool:
        """Whether the lease is this process's, and its renewals are answered."""
        return self._election.leads and not self._trouble

    def obstacles(self) -> list[str]:
        """Why this process neither leads nor stands by, for the readiness probe."""
        if self._trouble:
            return [self._trouble]
        return [] if self._election.leads or self._stands_by else [f"asking for the {self._where}"]

    def standing_by(self) -> list[str]:
        """Who leads instead of this process, which would take over: idle, but in order."""
        return [self._stands_by] if self._stands_by else []

    async def lost(self) -> None:
        """Wait until another process leads, or may have led. The cache may be outdated then."""
        await self._is_lost.wait()

    @property
    def loss(self) -> str:
        """How the lease was lost; empty if it was not."""
        return self._trouble if self._is_lost.is_set() else ""

    async def release(self) -> None:
        """Give the lease up, so that the next one starts at once. Only when no write of ours may still take effect."""
        await self._end_renewals()
        try:
            await self._lock.release()
        except KubeError as error:
            logger.warning("cannot release the %s, which expires by itself: %s", self._where, error)

    async def close(self) -> None:
        """Disconnect. A lease that is not released is free after its time."""
        await self._end_renewals()
        await self._api.__aexit__(None, None, None)
        self._seat.close()

    async def _attempt(self, *, is_first: bool = False) -> bool:
        """Whether the lease is ours now. Raises the error of the first attempt, unless it may pass by itself."""
        try:
            leads = await self._ask()
        except KubeError as error:
            if is_first and not isinstance(error, Unreachable | ServerError | TooManyRequests):
                raise self._explained(error) from error
            self._is_in_trouble(error, f"standing by, cannot use the {self._where}: {error}")
            return False
        self._is_answered("answered")
        was, self._stands_by = self._stands_by, ""
        if not leads:
            self._stands_by = f"standing by, the leader is {self._election.holder or 'not known yet'}"
            if self._stands_by != was:
                logger.info(self._stands_by)
        return leads

    async def _ask(self) -> bool:
        self._asked_at = self._election.clock()
        return await self._lock.attempt()

    async def _keep(self) -> None:
        try:
            while True:
                since = self._election.clock() - self._asked_at
                await asyncio.sleep(max(0.0, self._timing.retry - since))  # a slow answer leaves no gap behind it
                try:
                    await self._ask()
                except LeaseLost:
                    raise
                except KubeError as error:
                    why = f"cannot renew the {self._where}, writes wait once it is overdue: {error}"
                    self._is_in_trouble(error, why)
                else:
                    self._is_answered("renewed")
        except Exception as error:
            self._trouble = str(error) or repr(error)
            self._is_lost.set()

    async def _end_renewals(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            self._task = None

    def _is_in_trouble(self, error: KubeError, why: str) -> None:
        """Log it when it begins, and when another kind of error comes; the probe has the words of the last one."""
        if isinstance(error.__cause__, TimeoutError):
            why += (
                f"; a request for the lease may take {self._patience:g} s: if the API server stays slower than that, "
                f"set --leader-elect-lease-duration above {self._timing.lease:g}"
            )
        is_new = type(error) is not self._error
        self._error, self._trouble = type(error), why  # before the log says so: another thread answers probes
        if is_new:
            logger.warning(why)

    def _is_answered(self, how: str) -> None:
        was_in_trouble = self._trouble
        self._error, self._trouble = None, ""
        if was_in_trouble:
            logger.info("the %s is %s again", self._where, how)

    def _explained(self, error: KubeError) -> KubeError:
        if isinstance(error, Forbidden):
            return CannotElect(
                f"no leader election without the {self._where}: {error}; allow get, create and update on "
                f"{LEASES} of that name in namespace {self._namespace} (Role dra-operator-leader-election of "
                "manifests/operator/rbac.yaml or the chart, its resourceNames), or run a single operator with "
                "--no-leader-elect"
            )
        if isinstance(error, NotFound):
            return CannotElect(f"no leader election: {error}; name another one with --leader-elect-namespace")
        return error
