"""How many pods with devices a scheduler places per second, and what each pod costs in writes, processor time, memory.

    python benchmarks/throughput.py [--quick]                        # the operator on a development cluster
    python benchmarks/throughput.py --binaries FOLDER operator reference   # both on a real control plane, by turns
    python benchmarks/throughput.py --kubeconfig FILE NAME[=PID,...]       # any scheduler of any cluster

A round of one side: when its start is over, a steady state on the empty cluster, half of the devices given away in one
burst, the steady state once more, the rest given away, and once more. In a steady state a few clients have one pod
each: they create it, wait for its node, and delete it. Rounds of two sides alternate, each with processes of its own
that are started for it. Ctrl-C, or SIGTERM, ends the measurement with what the rounds so far gave, and all processes.

With --waiting the pods are there before the side starts, as after an outage. Latencies count from the start then, and
a second line has the tenth of the pods that is bound first: how many per second from the first one on, and, under p50
and p99, when the first and the last of them were bound.

Sides: "operator" is ours, with the controllers of claims, and "compiled" the same with the wheel that `make compiled`
builds of these sources; "tree=FOLDER" is that of another working tree, and "kopf" is `kopf run`, whose own watches feed
the same handlers. "reference" is kube-scheduler with the claim controller of kube-controller-manager. Neither they nor
the garbage collector of a control plane have a limit on requests per second: with that of 20, claims would pile up, and
no state be steady. Any other name is that of a scheduler that is at work already, with the ids of processes to look at.
The cluster needs no nodes or drivers: they are objects only.
Processor time *elsewhere* is that of benchmark, API server and etcd: what they take of the cores bounds any scheduler.
Writes are those of all clients together but the creation and deletion of pods, as the API server counts them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import sys
import time
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from dra_kube import Api, connection

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from throughput_load import REQUESTS, Load, Pods, clean, fill, for_each, furnish, steady, wait_for_all
from throughput_sides import Process, Side, all_seconds, control_plane, development_cluster, side_of, writes

IDLE = 0.05
"""Seconds of processor time in a second, below which a side has nothing to do."""
START_SECONDS = 30
"""That a side has for its start."""


@dataclass(frozen=True, slots=True)
class Result:
    """One phase of one round. Latencies from creation to binding and processor time per pod are milliseconds."""

    side: str
    round: int
    phase: str
    pods: int
    rate: float
    p50: float
    p99: float
    cpu: float | None
    elsewhere: float
    """Processor time of the benchmark, and of API server and etcd where it started them, per pod."""
    megabytes: float | None
    writes: float
    """Per pod."""
    conflicts: float
    """Writes per pod that were answered by 409."""
    by_verb: dict[str, float] = field(default_factory=dict)


class Round:
    """One round of one side; ``results`` has a line for each of its phases."""

    def __init__(self, api: Api, side: Side, number: int) -> None:
        self._api, self._side, self._number = api, side, number
        self._processes: list[Process] = []
        self.results: list[Result] = []

    async def run(self, load: Load) -> None:
        """All phases, on an empty cluster that is empty again afterwards."""
        async with Pods.watched(self._api, load, self._side.scheduler, f"r{self._number}-{self._side.name}") as pods:
            await for_each(pods.names(load.waiting), pods.create)
            async with self._side.at_work() as self._processes:
                await (self._start(pods) if load.waiting else self._phases(pods, load))
                await clean(self._api, load)

    async def _start(self, pods: Pods) -> None:
        pods.start_clocks()
        await self._phase("waiting at start", pods, wait_for_all(pods))
        early = sorted(pods.latencies)[: len(pods.latencies) // 10]
        first = replace(self.results[0], phase="the first tenth, from its first pod on", pods=len(early))
        rate = len(early) / (early[-1] - early[0])
        self.results.append(replace(first, rate=rate, p50=early[0] * 1e3, p99=early[-1] * 1e3, cpu=None, by_verb={}))

    async def _phases(self, pods: Pods, load: Load) -> None:
        await fill(pods, load, load.sharing)  # until the side is at work
        await self._started()
        full = load.capacity * load.sharing - load.clients - load.sharing
        if load.sharing > 1:
            await self._phase("fill", pods, fill(pods, load, full))
            return
        await self._phase("steady, empty", pods, steady(pods, load))
        await self._phase("fill to half", pods, fill(pods, load, full // 2))
        await self._phase("steady, half", pods, steady(pods, load))
        await self._phase("fill the rest", pods, fill(pods, load, full - full // 2))
        await self._phase("steady, full", pods, steady(pods, load))

    async def _phase(self, phase: str, pods: Pods, work: Awaitable[None]) -> None:
        pods.latencies.clear()
        before, spent, busy = await writes(self._api), self._seconds(), all_seconds()
        began = time.perf_counter()
        await work
        wall = time.perf_counter() - began
        spent, busy = self._seconds() - spent, all_seconds() - busy
        count, latencies = len(pods.latencies), sorted(pods.latencies)
        made = {what: number / count for what, number in (await writes(self._api) - before).items()}
        self.results.append(
            Result(
                self._side.name,
                self._number,
                phase,
                count,
                count / wall,
                statistics.median(latencies) * 1e3,
                latencies[int(count * 0.99)] * 1e3,
                spent / count * 1e3 if self._processes else None,
                (busy - spent) / count * 1e3,
                sum(process.megabytes() for process in self._processes) if self._processes else None,
                sum(made.values()),
                sum(number for what, number in made.items() if what.endswith(" 409")),
                made,
            )
        )

    async def _started(self) -> None:
        """Wait until the side is idle: what its start costs belongs to no pod."""
        for _ in range(START_SECONDS):
            before = self._seconds()
            await asyncio.sleep(1)
            if self._seconds() - before < IDLE:
                return

    def _seconds(self) -> float:
        return sum(process.seconds() for process in self._processes)


async def measure(kubeconfig: Path, sides: Sequence[Side], load: Load, rounds: int, results: list[Result]) -> None:
    """All rounds; each adds to ``results`` when it is over."""
    async with Api(connection(kubeconfig)) as api:
        await furnish(api, load)
        for number in range(1, rounds + 1):
            for side in sides:
                one = Round(api, side, number)
                await one.run(load)
                results += one.results
                print(f"round {number}, {side.name}: {one.results[-1].rate:.0f} pods/s at the end", file=sys.stderr)


def table(results: Sequence[Result]) -> Iterator[str]:
    """Medians over the rounds, and with two sides how the first compares to the second."""
    yield "| phase | side | pods/s | p50 ms | p99 ms | cpu ms/pod | elsewhere | MB | writes/pod | 409/pod |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    sides = list(dict.fromkeys(result.side for result in results))
    for phase in dict.fromkeys(result.phase for result in results):
        for side in sides:
            yield _line(phase, side, [result for result in results if (result.phase, result.side) == (phase, side)])
        if len(sides) == 2:
            pairs = list(zip(*([r for r in results if (r.phase, r.side) == (phase, s)] for s in sides), strict=False))
            rate = statistics.median(ours.rate / theirs.rate for ours, theirs in pairs)
            p50 = statistics.median(ours.p50 / theirs.p50 for ours, theirs in pairs)
            yield f"| {phase} | *{sides[0]} / {sides[1]}* | {rate:.2f} | {p50:.2f} | | | | | | |"


def _line(phase: str, side: str, results: Sequence[Result]) -> str:
    def median(name: str, digits: int) -> str:
        values = [value for result in results if (value := getattr(result, name)) is not None]
        return f"{statistics.median(values):.{digits}f}" if values else "-"

    names = (
        ("rate", 0),
        ("p50", 0),
        ("p99", 0),
        ("cpu", 2),
        ("elsewhere", 2),
        ("megabytes", 0),
        ("writes", 2),
        ("conflicts", 3),
    )
    return f"| {phase} | {side} | {' | '.join(median(*name) for name in names)} |"


def arguments() -> argparse.ArgumentParser:
    """What can be said on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sides", nargs="*", metavar="SIDE", help="one or two; default: operator")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--kubeconfig", type=Path, metavar="FILE", help="the cluster; none: a development cluster")
    where.add_argument("--binaries", type=Path, metavar="FOLDER", help="etcd, kube-apiserver, ...: a control plane")
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--devices", type=int, default=2, help="per node (2)")
    parser.add_argument("--pods", type=int, default=400, help="of each steady state (400)")
    parser.add_argument("--clients", type=int, default=8, help="pods at a time in a steady state (8)")
    parser.add_argument(
        "--request", choices=REQUESTS, default="plain", help="one device, by a CEL selector, or two alike"
    )
    parser.add_argument(
        "--sharing", type=int, default=1, metavar="N", help="pods with one claim; above 1: filling only"
    )
    parser.add_argument("--waiting", type=int, default=0, metavar="N", help="N pods before the start, and nothing else")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="30 nodes and 40 pods, for a look")
    parser.add_argument("--json", metavar="FILE", help="write the results there as well")
    return parser


def main() -> int:
    """Measures, prints a table, and writes JSON if asked."""
    parser = arguments()
    options = parser.parse_args()
    nodes, pods = (30, 40) if options.quick else (options.nodes, options.pods)
    load = Load(nodes, options.devices, options.request, options.sharing, options.clients, pods, options.waiting)
    if load.capacity * load.sharing <= max(2 * (load.clients + load.sharing), load.waiting):
        parser.error(f"--nodes {nodes} --devices {options.devices}: room for {load.capacity} claims is too little")
    if load.waiting and load.sharing > 1:
        parser.error("--waiting: pods that wait have a claim each; leave out --sharing")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as stack:
        kubeconfig = options.kubeconfig
        if kubeconfig is None:
            cluster = development_cluster() if options.binaries is None else control_plane(options.binaries)
            kubeconfig = stack.enter_context(cluster)
        try:
            sides = [side_of(text, kubeconfig, options.binaries) for text in options.sides or ["operator"]]
        except ValueError as error:
            parser.error(str(error))
        results: list[Result] = []
        code = 0
        try:
            asyncio.run(measure(kubeconfig, sides, load, options.rounds, results))
        except KeyboardInterrupt:
            print("interrupted: this is what the rounds before gave", file=sys.stderr)
            code = 130
    print("\n".join(table(results)))
    for side in dict.fromkeys(result.side for result in results):
        last = next(result for result in reversed(results) if result.side == side)
        print(f"\n{side}, writes per pod, {last.phase}:")
        print("\n".join(f"  {number:6.2f}  {what}" for what, number in sorted(last.by_verb.items())))
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
