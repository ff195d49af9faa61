"""Where a history takes place: the server, the operator, the streams between them, and the neighbours."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from datetime import datetime, timedelta

from dra_kube import DEVICE_CLASSES, NODES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_SLICES, STORAGE_CLASSES, Resource
from histories.judge import Urgency
from histories.script import ZONE
from objects import Make, Obj
from volume_lab import HOST, OURS, storage_class

from .judge import Judge
from .neighbours import Attacher, Others, Rival
from .replica import KINDS, LEASE_OVER, RESTART, Incarnation, Replica
from .script import (
    ATTACHED,
    BROKEN,
    CAPACITY,
    CONSUMED,
    EXTENDED,
    HALF,
    PARTITIONED,
    STEADFAST,
    TAINTED,
    TOLERANT,
    UNITS,
    USUAL,
)
from .server import START, Server, Weather

ROLL_OUT = 1.0  # seconds from the start of a replica to the end of the one that it follows


def _card(number: int) -> Iterator[Obj]:
    """The whole card, and its halves."""
    for name, amount in ((f"dev-{number}", CAPACITY), (f"{HALF}-{number}-a", USUAL), (f"{HALF}-{number}-b", USUAL)):
        counters = {"memory": {"value": str(amount)}}
        yield {"name": name, "consumesCounters": [{"counterSet": f"card-{number}", "counters": counters}]}


class Stage:
    """Server, operator, and all others. A script has its steps happen here."""

    def __init__(
        self,
        nodes: tuple[int, ...],
        weather: Weather,
        *,
        replicas: int = 1,
        preempts: bool = False,
        traits: frozenset[str] = frozenset(),
        traced: bool = False,
    ) -> None:
        self._nodes, self._weather, self.traits = nodes, weather, traits
        self.judge = Judge()
        self.server = Server(weather, self._changed)
        self.server.written = self.judge.written
        self.judge.server = self.server
        self.attacher = Attacher(weather, self.server)
        self.neighbours = (Others(weather, self.server), Rival(weather, self.server), self.attacher)
        self.urgency = Urgency(self.server)
        self.watching: asyncio.Task[None] | None = None
        self.server.trace = [] if traced else None
        self._skew = 0.0
        self._backup = self.server.snapshot()
        self._elects, self.preempts, self._revision = replicas > 1, preempts, 0
        self.replicas: list[Replica] = []
        for _ in range(replicas):
            self._add_replica()

    def now(self) -> datetime:
        return START + timedelta(seconds=asyncio.get_running_loop().time() + self._skew)

    def grace_of(self, pod: str) -> int:
        """The grace period of a pod in seconds; some take far longer than a victim is waited for."""
        return (0, 0, 0, 20, 3600)[int(5 * self._weather.chance("grace period", pod))]

    def is_busy(self) -> bool:
        """Something is on its way, or the operator does not work."""
        watches = [replica.watches.busy for replica in self.replicas]
        busy = [self.server.busy, *watches, *(each.busy for each in self.neighbours)]
        return self.operator is None or any(busy)

    def refuses_deletions(self) -> bool:
        """Whether the server has refused to end a pod: the operator leaves that one alone for ten minutes."""
        refused = tuple(f"refused: {what} " for what in ("get pods", "patch pods/status", "delete pods"))
        return any(strike.startswith(refused) for strike in self._weather.strikes)

    def is_quiet(self) -> bool:
        """Nothing is being done, and nothing is to be done later."""
        return not self.is_busy() and self.operator is not None and self.operator.is_at_rest

    def tell(self, line: str) -> None:
        if self.server.trace is not None:
            self.server.trace.append(f"---- {line}")

    # --- the operator ---

    @property
    def operator(self) -> Incarnation | None:
        """The one that works; None if there is none, or if another one has not noticed yet that it must not."""
        working = [replica.operator for replica in self.replicas if replica.operator is not None]
        return working[0] if len(working) == 1 else None

    def _add_replica(self) -> Replica:
        self._revision += 1
        name = f"replica-{self._revision}"
        replica = Replica(
            name,
            self.server,
            self._weather,
            self.now,
            self.tell,
            elects=self._elects,
            preempts=self.preempts,
            traits=self.traits,
        )
        self.replicas.append(replica)
        return replica

    def start_operator(self) -> None:
        for replica in self.replicas:
            replica.start()

    def _leader(self) -> Replica:
        return next((replica for replica in self.replicas if replica.operator is not None), self.replicas[0])

    def kill(self, restart_after: float | None = None) -> None:
        """The process that works is gone; one follows after so many seconds, or when the lease is over."""
        usual = RESTART if self._elects else LEASE_OVER
        self._leader().kill(usual if restart_after is None else restart_after)

    def stop_operator(self) -> None:
        self._leader().stop()

    def pause_operator(self, seconds: float) -> None:
        """The process that works is stopped for so long."""
        self._leader().pause(seconds)

    def roll_out(self) -> None:
        """Another version: each replica gets a successor, which stands by when the replica is told to end."""
        loop = asyncio.get_running_loop()
        for number, replica in enumerate(list(self.replicas)):
            self._add_replica().start(number)
            loop.call_later(number + ROLL_OUT, self._retire, replica)

    def _retire(self, replica: Replica) -> None:
        replica.stop(for_good=True)

    # --- the server ---

    def _changed(self, event: str, resource: Resource, obj: Obj) -> None:
        self.judge.changed(event, resource, obj)
        for replica in self.replicas:
            replica.watches.changed(event, resource, obj)
        for neighbour in self.neighbours:
            neighbour.changed(event, resource, obj)

    def furnish(self) -> None:
        """What there is at the beginning."""
        self.add_class()
        self.add_template()
        self.server.add(STORAGE_CLASSES, storage_class(provisioner=OURS))
        self._add_tolerant(TOLERANT, effect="NoExecute", tolerationSeconds=5)
        if TAINTED in self.traits:
            self._add_tolerant(STEADFAST)
        for number in range(len(self._nodes)):
            self.add_node(f"node-{number}")
            self.add_slice(f"node-{number}")

    def _add_tolerant(self, name: str, **toleration: object) -> None:
        made = Make.template(name)
        exactly = made["spec"]["spec"]["devices"]["requests"][0]["exactly"]
        exactly["tolerations"] = [{"key": "bad", "operator": "Exists", **toleration}]
        self.let_share(name, made["spec"]["spec"])
        self.server.add(RESOURCE_CLAIM_TEMPLATES, made)

    def let_share(self, name: str, spec: Obj) -> None:
        """Have the claims of this name, or of this template, say how much they consume, where devices are shared."""
        if CONSUMED in self.traits and name in UNITS:
            spec["devices"]["requests"][0]["exactly"]["capacity"] = {"requests": {"memory": str(UNITS[name])}}

    def clear_up(self) -> None:
        """Nothing fails any more."""
        self._weather.is_over = True
        self.server.is_away, self.server.unserved = False, frozenset()
        self.attacher.look_at_everything()

    def calm(self) -> None:
        """Nothing fails any more, and the most urgent pod must not wait for long."""
        self.clear_up()
        self.watching = asyncio.create_task(self.urgency.watch())

    async def too_long(self) -> list[str]:
        """Whether the most urgent pod waited for too long."""
        if self.watching is not None:
            self.watching.cancel()
            await asyncio.wait((self.watching,))
        return [self.urgency.finding] if self.urgency.finding else []

    def add_class(self) -> None:
        self.server.add(DEVICE_CLASSES, Make.device_class() | {"spec": {"extendedResourceName": EXTENDED}})

    def add_template(self) -> None:
        self.server.add(RESOURCE_CLAIM_TEMPLATES, Make.template())

    def add_node(self, name: str) -> None:
        """A node without devices; those with odd numbers are in another zone."""
        zone = "ab"[int(name.removeprefix("node-")) % 2]
        self.server.add(NODES, {**Make.node(name, **{HOST: name, ZONE: zone}), "spec": {}})

    def add_slice(self, node: str) -> None:
        devices = self._nodes[int(node.removeprefix("node-"))]
        published = Make.slice(node, devices)
        if ATTACHED in self.traits:
            for device in published["spec"]["devices"]:
                device.update(bindingConditions=[ATTACHED], bindingFailureConditions=[BROKEN])
        if PARTITIONED in self.traits:
            self._add_counters(node, devices)
            published["spec"]["pool"]["resourceSliceCount"] = 2
            published["spec"]["devices"] = [it for number in range(devices) for it in _card(number)]
        if CONSUMED in self.traits:
            policy = {"default": str(USUAL), "validValues": [str(units) for units in range(1, CAPACITY + 1)]}
            for device in published["spec"]["devices"]:
                memory = {"value": str(CAPACITY), "requestPolicy": policy}
                device.update(allowMultipleAllocations=True, capacity={"memory": memory})
        self.server.add(RESOURCE_SLICES, published)

    def _add_counters(self, node: str, cards: int) -> None:
        """What the devices of a node consume; it stays when these go."""
        name = f"{node}-counters"
        if not self.has(RESOURCE_SLICES, name):
            made = Make.slice(node, 0)
            made["metadata"]["name"], made["spec"]["pool"]["resourceSliceCount"] = name, 2
            counters = {"memory": {"value": str(CAPACITY)}}
            made["spec"]["sharedCounters"] = [{"name": f"card-{it}", "counters": counters} for it in range(cards)]
            del made["spec"]["devices"]
            self.server.add(RESOURCE_SLICES, made)

    def has(self, resource: Resource, key: str) -> bool:
        namespace, _, name = key.rpartition("/")
        return (resource, namespace, name) in self.server.objects

    def break_watches(self, seconds: float, kinds: Collection[Resource] = tuple(KINDS)) -> None:
        """Streams of these kinds end, and after so many seconds the kinds are listed again."""
        for replica in self.replicas:
            for resource in kinds:
                replica.watches.gap(resource, seconds)

    def back_up(self) -> None:
        self._backup = self.server.snapshot()

    def restore(self) -> None:
        """The data of the backup; all connections are broken, and the garbage collector looks at everything.

        What the operator does until it notices is pardoned, unless it was stopped before, as Kubernetes advises: no
        client can know at once that its server went back, nor that its lease is gone.
        """
        self.server.restore(self._backup)
        self.judge.pardons |= self._elects or self.operator is not None
        self.judge.begin_again((kind, obj) for (kind, _, _), obj in self.server.objects.items())
        self.break_watches(0.0)
        for neighbour in self.neighbours:
            neighbour.look_at_everything()

    def set_clock(self, seconds: float) -> None:
        self._skew += seconds
