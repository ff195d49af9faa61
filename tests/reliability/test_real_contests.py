"""Contests for the devices of one driver between kube-scheduler and the operator, on a real control plane.

``KOPF_DRA_ROUNDS=30 pytest tests/reliability/test_real_contests.py -k leaders`` tries it with thirty new leaders, and
``KOPF_DRA_ROUNDS=200 ... -k restarts`` with two hundred contests.

A device is given *twice* if a pod of the operator and another one are bound with it, at any moment. It is
*lost to the other's record* if two pods of kube-scheduler are: its record of the devices in use lacked a device that a
claim of its own had. Both are read from every version of every claim and pod, which a witness records.

*Leaders*: pods of the operator wait, a new leader comes (the operator starts, takes over after a kill, or is upgraded),
and pods of kube-scheduler come as soon as it is in sync. Then as many pods of kube-scheduler come as there are devices
left, and two more for each node: a device that its record has lost is given again.

*Contests*: pods of both come in the same second for fewer devices. Those that get one go, and those that waited follow.
In every third contest the operator is killed, in every fourth kube-scheduler is started again.

After each round all that was seen of it is judged. The first one in which something was wrong is the last one, and what
explains it is kept in the folder that is printed: the logs of the operators and of all servers, and ``history.jsonl``,
every version of every claim and pod with the moment in which a watch brought it.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import envtest
import pytest
from command import OperatorProcess
from dra_kube import Api, Object, connection
from envtest import needs_stock_control_plane
from faults import FaultProxy
from objects import devices_of, is_parked
from proving_ground import PATIENCE, ProvingGround, node_stub
from rounds import rounds
from waiting import until
from witness import Witness

OURS, THEIRS = "dra-scheduler", "default-scheduler"
LEASE: Final = ("--leader-elect-lease-duration", "6")
WAYS: Final = ("start", "take-over", "upgrade")
"""How a new leader comes."""
NODES, DEVICES, PODS_EACH = 4, 8, 10
SETTLED_SECONDS = 1.5
"""Seconds after the last pod is decided in which a device may still turn out to be given twice."""


MOST_VERSIONS = 20_000
"""Versions of claims and pods that are kept, the latest ones: some fifty rounds."""


class Chronicle:
    """What the watches of claims and pods brought, and when."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=MOST_VERSIONS)
        self._since: dict[str, dict[str, float]] = defaultdict(dict)
        """By device: the claims of ours that have it and are not parked, by name, and since when."""
        self._theirs: dict[str, set[str]] = {}
        self.delays: list[float] = []
        """Seconds from our allocation of a device to one by theirs, which had decided before it saw ours."""

    def add(self, event: str, obj: Object) -> None:
        """Take in an event of a watch."""
        meta = {name: value for name, value in obj["metadata"].items() if name != "managedFields"}
        seen = datetime.now(UTC).isoformat(timespec="milliseconds")
        entry = {"seen": seen, "revision": meta["resourceVersion"], "event": event, "kind": obj["kind"]}
        spec = {name: obj["spec"].get(name) for name in ("schedulerName", "nodeName") if name in obj["spec"]}
        about = {"metadata": meta, "spec": spec, "status": obj.get("status")}
        self._lines.append(json.dumps(entry | about, separators=(",", ":")))
        if obj["kind"] == "ResourceClaim":
            self._time(obj, is_gone=event == "DELETED")

    def _time(self, claim: Object, *, is_gone: bool) -> None:
        name = claim["metadata"]["name"]
        devices = set() if is_gone else set(devices_of(claim))
        if name.startswith("theirs"):
            for device in devices - self._theirs.get(name, set()):
                self.delays += [time.monotonic() - since for since in self._since[device].values()]
            self._theirs[name] = devices
            return
        for device, since in self._since.items():
            if device not in devices or is_parked(claim):
                since.pop(name, None)
        for device in devices if not is_parked(claim) else ():
            self._since[device].setdefault(name, time.monotonic())

    def write(self, path: Path) -> None:
        """One version a line, in the order in which they came."""
        path.write_text("".join(f"{line}\n" for line in self._lines))


@dataclass
class Arena:
    """A control plane of its own; ``ground`` has the nodes and what can be seen."""

    scheduler: envtest.StockScheduler
    ground: ProvingGround
    random: Random
    chronicle: Chronicle
    log: list[str] = field(default_factory=list)

    async def pods_of(self, scheduler: str, names: Sequence[str], within: float = 0.0) -> None:
        """Pods with a device each come at random moments of so many seconds."""

        async def come(name: str) -> None:
            await asyncio.sleep(self.random.uniform(0.0, within))
            await self.ground.add_pod(name, schedulerName=scheduler)

        await asyncio.gather(*map(come, names))

    async def all_bound(self, names: Sequence[str]) -> None:
        """Wait for their nodes."""

        async def bound() -> bool:
            return set(names) <= set(await self.ground.bound_names())

        await self.ground.until(f"{', '.join(names)} are bound", bound, 2 * PATIENCE)

    async def all_decided(self, names: Sequence[str]) -> None:
        """Wait until each has a node or a condition that says why not."""

        async def decided() -> bool:
            return set(names) <= {pod["metadata"]["name"] for pod in await self.ground.pods() if _is_decided(pod)}

        await self.ground.until(f"{', '.join(names)} are decided", decided, 2 * PATIENCE)

    async def cleared(self) -> None:
        """All pods go; wait until no claim has a device."""
        await self.ground.delete_pods([pod["metadata"]["name"] for pod in await self.ground.pods()])

        async def nothing_left() -> bool:
            return not await self.ground.pods() and not await self.ground.claims()

        await self.ground.until("pods and claims are gone", nothing_left, 2 * PATIENCE)

    async def outcome(self) -> Outcome:
        """All that was wrong so far."""
        await self.ground.witness.caught_up()
        twice = {found.what for found in self.ground.witness.findings() if found.what.endswith("of running pods")}
        ours = sorted(what for what in twice if "ours-" in what)
        gave_way = sum(it.text.count(" was also allocated to ") for it in self.ground.operators)
        kept = str(self._keep()) if twice else ""
        return Outcome(ours, sorted(twice - set(ours)), gave_way, self.log, self.chronicle.delays, kept)

    async def is_sound(self) -> bool:
        """Return whether no device was given twice so far."""
        await self.ground.witness.caught_up()
        return not any(found.what.endswith("of running pods") for found in self.ground.witness.findings())

    def _keep(self) -> Path:
        """Copy what explains a finding to a folder that stays."""
        folder = Path(tempfile.mkdtemp(prefix="contests-kept-"))
        for log in (*self.ground.folder.glob("*.log"), *(self.ground.folder / "servers").glob("*.log")):
            shutil.copy(log, folder)
        self.chronicle.write(folder / "history.jsonl")
        found = [f"{it.what} (revision {it.since} to {it.until})" for it in self.ground.witness.findings()]
        (folder / "findings.txt").write_text("\n".join(found) + "\n")
        return folder


@dataclass(frozen=True)
class Outcome:
    """``clashes``: how often the operator found a device of a claim of ours in another claim, too.

    ``delays``: how many seconds after ours they allocated a device that ours had by then, as a watch brought both.
    ``kept``: the folder with logs and versions, if something was wrong.
    """

    twice: Sequence[str]
    lost: Sequence[str]
    clashes: int
    log: Sequence[str]
    delays: Sequence[float]
    kept: str = ""

    def __str__(self) -> str:
        lines = [f"twice: {len(self.twice)}; lost to the other's record: {len(self.lost)}; clashes: {self.clashes}"]
        latest = ", ".join(f"{delay:.2f}" for delay in sorted(self.delays)[-5:])
        lines += [f"theirs allocated a device that ours had {len(self.delays)} times, so many s later: {latest}"]
        lines += [f"logs and all versions of claims and pods: {self.kept}"] if self.kept else []
        return "\n".join([*self.log, *self.twice, *self.lost, *lines])


@asynccontextmanager
async def arena(folder: Path, *, nodes: int = NODES, devices: int = DEVICES, seed: int = 0) -> AsyncIterator[Arena]:
    """An arena with kube-scheduler and so many devices on each node, and without an operator."""
    binaries = envtest.assets()
    assert binaries is not None, "set KUBEBUILDER_ASSETS"
    (folder / "servers").mkdir()
    with envtest.stock_with_scheduler(binaries, folder / "servers") as scheduler:
        to = connection(scheduler.kubeconfig)
        async with Api(to, timeout=PATIENCE) as api, FaultProxy(to, seed=seed) as proxy:
            chronicle = Chronicle()
            async with Witness(api, chronicle.add) as witness, node_stub(api):
                ground = ProvingGround(api, proxy, witness, folder)
                async with aclosing(ground):
                    await ground.furnish(nodes=nodes, devices=devices)
                    yield Arena(scheduler, ground, Random(seed), chronicle)


async def new_leader(arena: Arena, number: int, way: str) -> None:
    """One round of *leaders*."""
    ground, began = arena.ground, time.monotonic()
    ours, theirs = ([f"{who}-{number}-{index}" for index in range(PODS_EACH)] for who in ("ours", "theirs"))
    async with AsyncExitStack() as stack:

        async def start() -> OperatorProcess:
            return await stack.enter_async_context(ground.operator(*LEASE))

        first = await start() if way != "start" else None
        if first is not None:
            await first.becomes_ready()
            leader = await start()
            await until("the second operator stands by", lambda: _says(leader, "standing by"))
        end = {"upgrade": first.stop, "take-over": first.kill}[way] if first is not None else _nothing
        ending = asyncio.create_task(end())
        await arena.pods_of(OURS, ours)
        if first is None:
            leader = await start()
        await until("the new leader is in sync", lambda: _says(leader, "in sync"), PATIENCE)
        await arena.pods_of(THEIRS, theirs, within=1.0)
        await arena.all_bound([*ours, *theirs])
        await ending
        fill = [f"theirs-fill-{number}-{index}" for index in range((DEVICES + 2) * NODES - 2 * PODS_EACH)]
        await arena.pods_of(THEIRS, fill)
        await arena.all_decided(fill)
        await asyncio.sleep(SETTLED_SECONDS)
        await arena.cleared()
    arena.log.append(f"leader {number} ({way}): {time.monotonic() - began:.0f} s")


async def contest(arena: Arena, number: int) -> None:
    """One contest; an operator is kept running meanwhile."""
    ground, began = arena.ground, time.monotonic()
    ours, theirs = ([f"{who}-{number}-{index}" for index in range(PODS_EACH)] for who in ("ours", "theirs"))
    coming = asyncio.gather(arena.pods_of(OURS, ours, 1.0), arena.pods_of(THEIRS, theirs, 1.0))
    await asyncio.sleep(arena.random.uniform(0.0, 1.5))
    if number % 3 == 2:
        await ground.operators[-1].kill()
    if number % 4 == 3:
        await asyncio.to_thread(arena.scheduler.end)
        await asyncio.sleep(arena.random.uniform(0.0, 1.0))
        arena.scheduler.start()
    await coming
    left = {*ours, *theirs}
    while left:
        bound = await ground.until("some get a device", partial(_bound_of, arena, left), 2 * PATIENCE)
        await asyncio.sleep(arena.random.uniform(0.0, SETTLED_SECONDS))
        await ground.delete_pods(bound)
        left -= set(bound)
    await asyncio.sleep(SETTLED_SECONDS / 2)
    await arena.cleared()
    arena.log.append(f"contest {number}: {time.monotonic() - began:.0f} s")


async def play_leaders(folder: Path, count: int) -> Outcome:
    """Play ``count`` new leaders, in turn by start, take-over and upgrade."""
    async with arena(folder) as made:
        for number in range(count):
            if not await made.is_sound():
                break
            await new_leader(made, number, WAYS[number % len(WAYS)])
        return await made.outcome()


async def play_contests(folder: Path, count: int) -> Outcome:
    """Play ``count`` contests of one leader."""
    async with arena(folder, nodes=2, devices=4) as made, made.ground.kept_running(*LEASE):
        await made.ground.leader()
        for number in range(count):
            if not await made.is_sound():
                break
            await contest(made, number)
        return await made.outcome()


async def _bound_of(arena: Arena, names: set[str]) -> list[str] | None:
    return [name for name in await arena.ground.bound_names() if name in names] or None


async def _says(operator: OperatorProcess, words: str) -> bool:
    return words in operator.text


async def _nothing() -> None:
    """An operator starts where none was."""


def _is_decided(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions") or []
    return bool(pod["spec"].get("nodeName")) or any(entry["type"] == "PodScheduled" for entry in conditions)


@needs_stock_control_plane
@pytest.mark.timeout(3600)
async def test_new_leaders_beside_kube_scheduler(tmp_path: Path) -> None:
    """One starts, one takes over after a kill, and one follows in an upgrade."""
    _nothing_wrong(await play_leaders(tmp_path, len(rounds(3))))


@needs_stock_control_plane
@pytest.mark.timeout(7200)
async def test_contests_with_restarts_of_both(tmp_path: Path) -> None:
    """The operator is killed in every third one, and kube-scheduler started again in every fourth."""
    _nothing_wrong(await play_contests(tmp_path, len(rounds(4))))


def _nothing_wrong(outcome: Outcome) -> None:
    print(outcome)
    assert not outcome.twice, outcome
    assert not outcome.lost, outcome
