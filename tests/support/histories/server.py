"""The fake API server behind a network (``history_kit.game``).

``unserved`` kinds answer 404, as does a server that has them no more.

``Weather`` says what befalls requests and events, and ``Odds`` how likely each fault is (``history_kit.game``).
``Sender`` is a process as the server meets it: whose writes these are, and until when they may take effect. Its guard
is the real ``Leader``'s. How a process ends the sending of writes is as in ``dra_kube.http.sending``.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Collection
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from typing import Any, NamedTuple, Self, cast
from unittest import mock

from dra_api.values import format_time
from dra_kube import (
    EVENTS,
    LEASES,
    NODES,
    PODS,
    Connection,
    Election,
    NotSent,
    NotServed,
    Resource,
    Unreachable,
)
from dra_operator.app import leader
from fake_api import Call, Effect, FakeApi, copied, key_of
from history_kit import game
from history_kit.clock import OWNER
from history_kit.game import LATE, Fate, Network
from objects import Obj, devices_of, users_of


class Odds(NamedTuple):
    """How likely each fault is in one history."""

    lost: float
    unanswered: float
    late: float
    refused: float
    slow: float
    doubled: float
    skipped: float
    last: float


class Weather(game.Weather):
    """One history's."""

    def __init__(self, seed: int, *, only: Collection[str] | None = None) -> None:
        super().__init__(seed, only=only)
        most = (0.08, 0.12, 0.08, 0.15, 0.15, 0.2, 0.2, 0.1)
        calm = self.chance("calm") < 0.1
        self.odds = Odds(*(0.0 if calm else limit * self.chance("odds", n) for n, limit in enumerate(most)))
        self.slow = self.odds.slow

    def of_request(self, name: str, *, is_write: bool) -> Fate:
        odds = self.odds
        kinds = (("lost", odds.lost), ("refused", odds.refused))
        of_writes = (("unanswered", odds.unanswered), ("late", odds.late))
        return self.fate(name, (*kinds, *of_writes) if is_write else kinds)

    def of_event(self, name: str) -> Fate:
        """What happens to an event on its way; ``before`` are its seconds."""
        return self.fate(
            name, (("doubled", self.odds.doubled), ("skipped", self.odds.skipped), ("last", self.odds.last))
        )


NAMESPACE = "kube-system"
LEASE = "dra-operator"
SETTLE = 2.0  # seconds that writes in flight have to be answered when a process ends


class Sender:
    """One life of a process that is a candidate for the lease."""

    def __init__(self, name: str, server: FakeApi) -> None:
        self.name = name
        self.leader = _candidate(name, server)
        self._assumed = 0
        self._open_until = -math.inf  # from then on no write without an answer can take effect
        self._answered = asyncio.Event()
        self._ends = False

    @classmethod
    def current(cls) -> Self | None:
        """Whose code runs now; None if it is no candidate's."""
        return cast(Self | None, OWNER.get())

    def may_write(self) -> bool:
        try:
            self.leader.allowance()
        except NotSent:
            return False
        return True

    async def send(self, ask: Callable[[float], Awaitable[Obj]]) -> Obj:
        """The answer to a write; ``ask`` is given the seconds within which it must take effect. Raises NotSent."""
        if self._ends:
            await asyncio.get_running_loop().create_future()
        seconds = self.leader.allowance()
        self._assumed += 1
        try:
            return await ask(seconds)
        except (Unreachable, asyncio.CancelledError):
            self._open_until = asyncio.get_running_loop().time() + LATE
            raise
        finally:
            self._assumed -= 1
            self._answered.set()

    async def settle(self) -> bool:
        """Send no more writes; whether none is left that may still take effect."""
        self._ends = True
        try:
            async with asyncio.timeout(SETTLE):
                while self._assumed:
                    self._answered.clear()
                    await self._answered.wait()
        except TimeoutError:
            return False
        return asyncio.get_running_loop().time() >= self._open_until


def _candidate(name: str, server: FakeApi) -> leader.Leader:
    """The real one, on the server of a history and on its clock."""
    here: dict[str, Any] = {
        "Api": lambda connection, **_: _LeaseApi(connection),
        "Election": partial(Election, clock=asyncio.get_running_loop().time),
        "Seat": lambda _lease: _Seat(name),
    }
    with mock.patch.multiple(leader, **here):
        return leader.Leader(cast(Connection, server), LEASE, NAMESPACE)


class _Seat(leader.Seat):
    """That of a pod of its own, whose name is known."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._name = name

    def identity(self) -> str:
        """The name by which the server knows who writes."""
        return self._name

    def has_ended(self, holder: str) -> bool:
        """The others are other pods."""
        return False


class _LeaseApi:
    def __init__(self, server: FakeApi) -> None:
        self.get, self.create, self.update = server.get, server.create, server.update

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """There is nothing to close."""


START = datetime(2026, 1, 1, tzinfo=UTC)
Listener = Callable[[str, Resource, Obj], None]


class Server(Network, FakeApi):
    """``changed`` is told of every change at once; ``calls`` has the requests that arrived."""

    def __init__(self, weather: Weather, changed: Listener) -> None:
        super().__init__()
        self._weather, self._changed = weather, changed
        self._steps = random.Random(1)
        self.life = 0
        """How often it was restored."""
        self.unserved: frozenset[str] = frozenset()
        self.share_numbers = count(1)
        """One for each share of a device, whichever process gives it away."""
        self.trace: list[str] | None = None
        self.carried_out: Callable[[Call], None] = lambda call: None
        """Told of each request that took effect, before the answer is on its way."""
        self.answered: Callable[[Call], None] = lambda call: None
        """The same, once the client has taken the answer in."""
        self.written: Callable[[Call, str], None] = lambda call, sender: None
        """Told of each write of a candidate for the lease before it takes effect."""

    async def request(self, call: Call, effect: Effect) -> Obj:
        """A request of the operator. Raises NotSent for a write that its sender must not send."""
        sender = Sender.current()
        if sender is None or call.verb == "get" or call.plural == LEASES.plural:
            return await self._ask(call, effect)
        return await sender.send(lambda seconds: self._ask(call, effect, sender, seconds))

    async def _ask(self, call: Call, effect: Effect, sender: Sender | None = None, seconds: float = math.inf) -> Obj:
        """Take a request to the server, where it must take effect within so many ``seconds``, and bring the answer."""
        name = f"{call.verb} {call.plural}{'/' + call.sub if call.sub else ''} {call.name.partition('.')[0]}"
        fate = self._weather.of_request(name, is_write=call.verb != "get")
        life, until = self.life, self._loop.time() + seconds

        def take_effect() -> Obj:
            if life != self.life or self._loop.time() > until:
                raise Unreachable("connection refused")
            if call.plural in self.unserved:
                raise NotServed(f"the API server does not serve {call.plural}")
            if call.plural != LEASES.plural:
                self.calls.append(call)
            if sender is not None:
                self.written(call, sender.name)
            return effect()

        def arrived(outcome: Obj | Exception) -> None:
            if self.trace is not None and call.plural != LEASES.plural:
                said = f"{type(outcome).__name__}: {outcome}" if isinstance(outcome, Exception) else "done"
                line = " ".join(filter(None, (*call, f"by {sender.name}" if sender else "")))
                self.trace.append(f"{self._loop.time():9.3f}  {line}: {said} {fate.strike}".rstrip())
            if fate.strike != "unanswered" and not isinstance(outcome, Exception):
                self.carried_out(call)

        return await self.ask(fate, take_effect, arrived, lambda: self.answered(call))

    async def version_of(self, resource: Resource) -> str:
        """The version in which the server has the kind. Raises NotServed."""
        call = Call("get", resource.plural, None, "(discovery)")
        await self.request(call, dict)
        return resource.versions[0]

    # --- a longer life ---

    def snapshot(self) -> tuple[dict[tuple[Resource, str, str], Obj], int]:
        return dict(self.objects), self.revision

    def restore(self, backup: tuple[dict[tuple[Resource, str, str], Obj], int]) -> None:
        """The data of a backup, and its revision. What was under way does not arrive any more."""
        objects, self.revision = backup
        self.objects = dict(objects)
        self.managed = {}
        self.life += 1

    def deleted(self, resource: Resource, name: str, namespace: str | None = None, **conditions: str | None) -> Obj:
        """As the fake's; a pod that has its node is only marked, and removed by its kubelet."""
        if resource == PODS and self.find(resource, namespace, name)["spec"].get("nodeName"):
            pod = copied(self.find(resource, namespace, name))
            if conditions.get("uid") in (None, pod["metadata"]["uid"]):
                if "deletionTimestamp" in pod["metadata"]:
                    return pod
                grace = pod["spec"].get("terminationGracePeriodSeconds", 0)
                ends = START + timedelta(seconds=asyncio.get_running_loop().time() + grace)
                pod["metadata"] |= {"deletionTimestamp": format_time(ends), "deletionGracePeriodSeconds": grace}
                return self.store("MODIFIED", resource, pod)
        return super().deleted(resource, name, namespace, **conditions)

    def store(self, event: str, resource: Resource, obj: Obj) -> Obj:
        """Revisions have gaps, as in a cluster that has other objects as well."""
        self.revision += self._steps.randrange(1000)
        return super().store(event, resource, obj)

    def drop(self, resource: Resource, key: str) -> None:
        """The deletion has a revision as well."""
        self.revision += 1
        super().drop(resource, key)

    def _tell(self, event: str, resource: Resource, obj: Obj) -> None:
        if resource in (EVENTS, LEASES):
            return
        if self.trace is not None and resource != NODES:
            self.trace.append(f"{self._loop.time():9.3f}      {event} {resource.plural} {key_of(obj)} {_gist(obj)}")
        self._changed(event, resource, obj)


def _gist(obj: Obj) -> str:
    meta, spec, status = obj["metadata"], obj.get("spec", {}), obj.get("status") or {}
    parts = {
        "at": meta["resourceVersion"],
        "uid": meta["uid"],
        "node": spec.get("nodeName"),
        "phase": status.get("phase"),
        "devices": ",".join(devices_of(obj)),
        "for": ",".join(entry["name"] for entry in users_of(obj)),
        "finalizers": len(meta.get("finalizers") or ()),
        "deleted": "deletionTimestamp" in meta,
        "reported": ",".join(it["type"] for device in status.get("devices") or () for it in device["conditions"]),
        "says": next((c.get("message") for c in status.get("conditions") or () if c["type"] == "PodScheduled"), None),
    }
    return " ".join(f"{name}={value}" for name, value in parts.items() if value)
