"""Where a history takes place: the server, the operator, the streams between them, and the neighbours."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from dra_kube import DEVICE_CLASSES, NODES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_SLICES, STORAGE_CLASSES, Resource
from objects import Make, Obj
from volume_controller import OURS
from volume_lab import HOST, storage_class

from .incarnation import KINDS, Incarnation
from .judge import Judge
from .neighbours import Neighbours
from .node_rules import ZONE
from .rival import Rival
from .script import EXTENDED, TOLERANT
from .server import Server
from .watches import Watches
from .weather import Weather

START = datetime(2026, 1, 1, tzinfo=UTC)


class Stage:
    """Server, operator, and all others. A script has its steps happen here."""

    def __init__(self, nodes: tuple[int, ...], weather: Weather, *, traced: bool = False) -> None:
        self._nodes, self._weather = nodes, weather
        self.judge = Judge()
        self.neighbours = Neighbours(weather)
        self.watches = Watches(weather, lambda: self.server)
        self.server = Server(weather, self._changed)
        self.rival = Rival(weather)
        self.judge.server = self.neighbours.server = self.rival.server = self.server
        self.server.trace = [] if traced else None
        self._skew = 0.0
        self._backup = self.server.snapshot()
        self.operator: Incarnation | None = None
        self._starting: asyncio.Task[None] | None = None

    def now(self) -> datetime:
        """What the operator's clock says."""
        return START + timedelta(seconds=asyncio.get_running_loop().time() + self._skew)

    def is_busy(self) -> bool:
        """Something is on its way, or the operator does not work."""
        others = self.neighbours.busy + self.rival.busy
        return self.operator is None or bool(self.server.busy + self.watches.busy + others)

    def is_quiet(self) -> bool:
        """Nothing is being done, and nothing is to be done later."""
        return not self.is_busy() and self.operator is not None and self.operator.is_at_rest

    def tell(self, line: str) -> None:
        """A line for the trace."""
        if self.server.trace is not None:
            self.server.trace.append(f"---- {line}")

    # --- the operator ---

    def start_operator(self, seconds: float) -> None:
        """After so many seconds."""
        self._starting = asyncio.create_task(self._start(seconds))

    async def _start(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        operator = self.operator = Incarnation(self.server, self.now, self._start_over, checks=True)
        await operator.start()
        if operator is self.operator and operator.is_working:
            self.tell("the operator works")
            self.watches.begin(operator)

    def _start_over(self) -> None:
        """The server went back in time: the same process lists everything again, with the lease that it has."""
        self.tell("the operator starts over")
        self.kill(restart_after=0.0)

    def kill(self, restart_after: float) -> None:
        """The process is gone; another one starts when the lease is over."""
        if self._starting is not None:
            self._starting.cancel()
        if self.operator is not None:
            self.operator.kill()
        self.operator = None
        self.watches.end()
        self.start_operator(restart_after)

    # --- the server ---

    def _changed(self, event: str, resource: Resource, obj: Obj) -> None:
        self.judge.changed(event, resource, obj)
        self.watches.changed(event, resource, obj)
        self.neighbours.changed(event, resource, obj)
        self.rival.changed(event, resource, obj)

    def furnish(self) -> None:
        """What there is at the beginning."""
        self.add_class()
        self.add_template()
        self.server.add(STORAGE_CLASSES, storage_class(provisioner=OURS))
        tolerant = Make.template(TOLERANT)
        toleration = {"key": "bad", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
        tolerant["spec"]["spec"]["devices"]["requests"][0]["exactly"]["tolerations"] = [toleration]
        self.server.add(RESOURCE_CLAIM_TEMPLATES, tolerant)
        for number in range(len(self._nodes)):
            self.add_node(f"node-{number}")
            self.add_slice(f"node-{number}")

    def clear_up(self) -> None:
        """Nothing fails any more."""
        self._weather.is_over = True
        self.server.is_away, self.server.unserved = False, frozenset()

    def add_class(self) -> None:
        """The class that all ask for."""
        self.server.add(DEVICE_CLASSES, Make.device_class() | {"spec": {"extendedResourceName": EXTENDED}})

    def add_template(self) -> None:
        """The template of most claims."""
        self.server.add(RESOURCE_CLAIM_TEMPLATES, Make.template())

    def add_node(self, name: str) -> None:
        """A node without devices; those with odd numbers are in another zone."""
        zone = "ab"[int(name.removeprefix("node-")) % 2]
        self.server.add(NODES, {**Make.node(name, **{HOST: name, ZONE: zone}), "spec": {}})

    def add_slice(self, node: str) -> None:
        """The devices of a node."""
        devices = self._nodes[int(node.removeprefix("node-"))]
        self.server.add(RESOURCE_SLICES, Make.slice(node, devices))

    def has(self, resource: Resource, key: str) -> bool:
        """Whether the server has the object."""
        namespace, _, name = key.rpartition("/")
        return (resource, namespace, name) in self.server.objects

    def back_up(self) -> None:
        """For ``restore``."""
        self._backup = self.server.snapshot()

    def restore(self) -> None:
        """The data of the backup; all connections are broken, and the garbage collector looks at everything.

        What the operator does until it notices is pardoned, unless it was stopped before, as Kubernetes advises: no
        client can know at once that its server went back.
        """
        self.server.restore(self._backup)
        self.judge.pardons |= self.operator is not None
        self.judge.begin_again((kind, obj) for (kind, _, _), obj in self.server.objects.items())
        for resource in KINDS:
            self.watches.gap(resource, 0.0)
        self.neighbours.look_at_everything()
        self.rival.look_at_everything()

    def set_clock(self, seconds: float) -> None:
        """The operator's clock jumps."""
        self._skew += seconds
