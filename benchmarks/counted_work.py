"""Count the bytecode instructions of about 40 fixed pieces of work, and compare them with recorded counts.

    python benchmarks/counted_work.py            # a table beside the recorded counts
    python benchmarks/counted_work.py --check    # exit code 1 if a piece needs 3 % more than recorded
    python benchmarks/counted_work.py --write    # record the counts of this checkout
    python benchmarks/counted_work.py --only 'allocator/*' --top 20    # the functions that take most of it

A time depends on what else the machine does; the number of instructions that the interpreter executes does not. Event
loops run on a clock of their own, so that no pause depends on the machine. Only this project's own code counts: a slow
library is not seen, nor a larger argument to a function in C. So the guard finds code that was added to a hot path, and
does not replace a benchmark. Counts differ between versions of Python: the file has the counts of one.

Each piece runs in a process of its own, since caches that one fills would spare another one work.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import io
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
RECORDED: Final = Path(__file__).with_suffix(".json")
PYTHON: Final = "3.11"
"""The version whose counts are recorded."""
ALLOWED_PERCENT: Final = 3.0
_PACKAGES: Final = tuple(
    f"{ROOT / folder}/"
    for folder in ("proto", "kube", "cel", "ledger", "operator", "simulator", "kubeletplugin", "devcluster")
)
_PATHS: Final = ("tests/support", "conformance")
_FAMILIES: Final = """
    admin allmode basic binding config constraints consumable distinct firstavailable listattrs mixed multinode network
    partition-admin partition-constraints partition-multi partition-samepool partition-taints partitionable
    partitionable-samepool poolstate taints
"""
_COMMANDS: Final = {
    "dra-operator": "dra_operator.cli",
    "kubectl-dra": "dra_operator.kubectl.cli",
    "dra-kubelet-plugin": "dra_kubeletplugin.cli",
    "dra-devcluster": "dra_devcluster.cli",
    "dra-driver-test": "dra_driver_test.cli",
}
_POLLED: Final = frozenset({"is_quiet", "is_idle"})
"""Functions that the tests' worlds ask again and again while they wait."""
_LIBRARIES: Final = (
    *("dra_kubeletplugin", "dra_operator.app.run", "dra_operator.controllers"),
    *("dra_operator.kubectl.live", "dra_operator.kubectl.devices"),
)
_QUESTIONS: Final = {
    "why a pod waits": "why pod/constraint --from causes.yaml",
    "top": "top --from cluster.yaml",
    "fit": "fit -f pod.yaml --count 3 --from fleet.yaml",
    "lint": "lint -f manifests.yaml --snapshot cluster.yaml",
}


class Count:
    """Counts instructions while it is entered, by function."""

    def __init__(self) -> None:
        self.functions: Counter[str] = Counter()

    @property
    def instructions(self) -> int:
        """Return the number of instructions."""
        return sum(self.functions.values())

    def __enter__(self) -> Count:
        gc.disable()  # collected objects depend on the objects made before
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        gc.enable()

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        if not code.co_filename.startswith(_PACKAGES) or code.co_name in _POLLED:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        name, functions = f"{code.co_filename.removeprefix(f'{ROOT}/')}:{code.co_qualname}", self.functions

        def follow(frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
            if event == "opcode":
                functions[name] += 1
            return follow

        return follow


# --- the pieces of work: each is given the count, and enters it around what counts ---


def _allocator(family: str, count: Count) -> None:
    """Decide about each fourth of a family's random problems: about claims as before, and about new ones."""
    from allocator_problems import laboratory
    from dra_api.codec import convert
    from dra_api.core import Node
    from dra_api.resource import ResourceClaim
    from dra_operator.allocator import Semantics
    from kit_cases import FOLDER, read

    problems = [case for case in read(FOLDER / "allocator/random.jsonl.gz") if case["family"] == family]
    for case in problems[::4]:
        lab = laboratory(case, Semantics.reference())
        for node in (convert(Node, node) for node in case["nodes"]):
            for _ in range(3):
                lab.allocator.allocate(node, lab.claims, lab.usage)
            claims = [convert(ResourceClaim, claim) for claim in case["claims"]]
            with count:
                lab.allocator.allocate(node, lab.claims, lab.usage)
                lab.allocator.allocate(node, claims, lab.usage)


async def _place(count: Count) -> None:
    """Place a pod with a claim from a template, from its event to its binding, on one of four nodes."""
    from dra_kube import PODS, RESOURCE_CLAIM_TEMPLATES
    from objects import Make

    world = _world(nodes=4, devices=4)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    world.start()
    async with world.running():
        for number in range(4):
            claims = [{"name": "gpu", "resourceClaimTemplateName": "tmpl"}]
            world.api.add(PODS, Make.pod(f"pod-{number}", claims=claims))
            if number < 2:  # modules and expressions that are loaded and compiled once do not count
                await world.quiet()
        with count:
            await world.quiet()
    assert len(world.bound()) == 4, world.bound()


async def _release(count: Count) -> None:
    """Release, deallocate and delete the claims of two finished pods."""
    from dra_kube import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
    from objects import Make

    world = _world(nodes=1, devices=4)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    for number in range(3):
        claims = [{"name": "gpu", "resourceClaimTemplateName": "tmpl"}]
        world.api.add(PODS, Make.pod(f"pod-{number}", claims=claims))
    world.start()
    async with world.running():
        await world.quiet()
        world.api.drop(PODS, "ns/pod-0")
        await world.quiet()
        for number in (1, 2):
            world.api.drop(PODS, f"ns/pod-{number}")
        with count:
            await world.quiet()
    assert not world.api.of(RESOURCE_CLAIMS)


async def _wait(count: Count) -> None:
    """Find out that a pod fits on none of 20 nodes whose devices are in use, and say so."""
    from dra_kube import PODS, RESOURCE_CLAIMS
    from objects import Make

    world = _world(nodes=20, devices=1)
    for number in range(22):
        world.api.add(RESOURCE_CLAIMS, Make.claim(f"claim-{number}"))
    for number in range(21):
        world.api.add(PODS, Make.pod(f"pod-{number}", claims=[Make.use(f"claim-{number}")]))
    world.start()
    async with world.running():
        await world.quiet()
        world.api.add(PODS, Make.pod("late", claims=[Make.use("claim-21")]))
        with count:
            await world.quiet()
    assert len(world.bound()) == 20, world.bound()


def _world(*, nodes: int, devices: int) -> Any:
    from controllers_world import World
    from dra_operator.allocator import Features

    world = World(Features())
    world.furnish(nodes, devices)
    return world


async def _prepare(count: Count) -> None:
    """Prepare a claim of two devices on a node, answer for it again, and unprepare it."""
    from node_world import NodeWorld, allocated, ref

    with TemporaryDirectory() as folder:
        node = NodeWorld(Path(folder))
        for name in ("first", "second"):
            claim = allocated(name, "p/gpu-0", "p/gpu-1")
            with count if name == "second" else contextlib.nullcontext():
                for _ in range(2):
                    assert not isinstance(await node.prepared.prepare(claim), Exception)
                assert await node.prepared.unprepare(ref(name)) is None


def _publish(count: Count) -> None:
    """Plan the slices of 1,000 new devices, and of the same with one taint more."""
    from dra_kubeletplugin import Owner, Pool, device
    from dra_kubeletplugin.slices.plan import Publication, body, plan_pool
    from dra_kubeletplugin.slices.writer import stored

    publication = Publication("gpu.example.com", "pool", Owner.node("worker-1", "uid"), "worker-1")
    devices = [device(f"gpu-{number}", attributes={"model": "a", "index": number}) for number in range(1000)]
    with count:
        pool = Pool.of(devices)
        plan = plan_pool(publication, pool, [])
        written = [body(publication, pool, write) for write in plan.create]
    for number, item in enumerate(written):
        item["metadata"]["name"] = f"{item['metadata'].pop('generateName')}{number:05}"
    with count:
        again = plan_pool(publication, pool, [stored(item) for item in written])
    assert (again.create, again.update, again.delete) == ((), (), ())


def _ask(question: str, count: Count) -> None:
    """Answer a question of ``kubectl dra`` about the tests' cluster."""
    from dra_operator.kubectl.cli import main

    os.chdir(ROOT / "tests/kubectl")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        main(question.split())  # modules that are loaded once do not count
        with count:
            main(question.split())


def _load(module: str, count: Count) -> None:
    """Import a module."""
    with count:
        __import__(module)


def _help(module: str, count: Count) -> None:
    """Import a command and print its help."""
    with count, contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        __import__(module)
        sys.modules[module].main(["--help"])


def pieces() -> dict[str, Callable[[Count], Awaitable[None] | None]]:
    """Return the pieces of work by name."""
    from functools import partial

    return {
        **{f"allocator/{family}": partial(_allocator, family) for family in _FAMILIES.split()},
        "pod placed": _place,
        "claims released": _release,
        "pod waits": _wait,
        "claim prepared": _prepare,
        "devices published": _publish,
        **{f"kubectl dra {name}": partial(_ask, question) for name, question in _QUESTIONS.items()},
        **{f"help of {name}": partial(_help, module) for name, module in _COMMANDS.items()},
        **{f"import of {module}": partial(_load, module) for module in _LIBRARIES},
    }


# --- counting, and the recorded counts ---


def counted(name: str) -> dict[str, int]:
    """Return the instructions of a piece by function, counted in a process of its own. Raises RuntimeError."""
    path = os.pathsep.join([*(str(ROOT / folder) for folder in _PATHS), *(folder.rstrip("/") for folder in _PACKAGES)])
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": path, "COLUMNS": "100", "TZ": "UTC"}
    words = [sys.executable, str(Path(__file__).resolve()), "--count", name]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr.strip()}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _count(name: str) -> None:
    from history_kit.clock import VirtualLoop

    count = Count()
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:  # real time would decide how often something is looked at
        loop = runner.get_loop()
        time.perf_counter = time.monotonic = time.thread_time = loop.time
        work = pieces()[name](count)
        if work is not None:
            runner.run(work)  # type: ignore[arg-type]  # it is a coroutine
    print(json.dumps(count.functions))


def recorded() -> dict[str, int]:
    """Return the recorded counts by piece of work."""
    return dict(json.loads(RECORDED.read_text())) if RECORDED.exists() else {}


def rows(found: dict[str, dict[str, int]], before: dict[str, int]) -> Iterator[str]:
    """Yield a line per piece: its instructions, the recorded ones, and the ratio."""
    yield f"{'piece of work':32}{'instructions':>14}{'recorded':>12}{'ratio':>8}"
    for name, functions in found.items():
        now, then = sum(functions.values()), before.get(name)
        beside = f"{then:12,}{now / then:8.3f}" if then else f"{'-':>12}{'-':>8}"
        yield f"{name:32}{now:14,}{beside}"


def faults(found: dict[str, int], before: dict[str, int]) -> list[str]:
    """Return the pieces that need more than allowed, or are not recorded."""
    new = [f"{name}: not recorded" for name in found if name not in before]
    more = [
        f"{name}: {now:,} instructions instead of {before[name]:,}, {100 * (now / before[name] - 1):.1f} % more"
        for name, now in found.items()
        if name in before and 100 * now > before[name] * (100 + ALLOWED_PERCENT)
    ]
    return new + more


def main() -> int:
    """Count, print a table, and check or record if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="PATTERN", default="*", help="pieces of work, with * and ?")
    parser.add_argument("--check", action="store_true", help=f"fail if a piece needs {ALLOWED_PERCENT:g} %% more")
    parser.add_argument("--write", action="store_true", help="record the counts")
    parser.add_argument("--top", type=int, metavar="N", default=0, help="print the N functions that take most")
    parser.add_argument("--count", metavar="PIECE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for folder in _PATHS:
        sys.path.append(str(ROOT / folder))
    if options.count:
        _count(options.count)
        return 0
    if not sys.version.startswith(f"{PYTHON}."):
        print(f"counts are recorded for Python {PYTHON}, and this is {sys.version.split()[0]}", file=sys.stderr)
        return 2 if options.check or options.write else 0
    names = [name for name in pieces() if fnmatch(name, options.only)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip(names, pool.map(counted, names), strict=True))
    before = recorded()
    print(*rows(found, before), sep="\n")
    if options.top:
        total = Counter[str]()
        for functions in found.values():
            total.update(functions)
        print(*(f"{number:12,}  {name}" for name, number in total.most_common(options.top)), sep="\n")
    totals = {name: sum(functions.values()) for name, functions in found.items()}
    if options.write:
        RECORDED.write_text(json.dumps({**before, **totals}, indent=1, sort_keys=True) + "\n")
    if options.check and (wrong := faults(totals, before)):
        print(*wrong, sep="\n", file=sys.stderr)
        print("Make it cheaper, or record the counts with --write in a commit that says why.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
