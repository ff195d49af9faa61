"""What a change of one object costs on which very many objects of a tenant hang, for each kind that is watched.

    PYTHONPATH=tests/support:. python benchmarks/fan_out.py 2000 4000 --only nodes

A line has the population, its number, the keys that were queued, and milliseconds of processor time: of the change, and
of the longest step of the event loop before and after the workers begin.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import time
from collections.abc import Iterable
from typing import Any, Final

from tests.controllers.test_crowds import POPULATIONS, Population, Scene


def keys(scene: Scene) -> int:
    """How many keys are in line, or wait for the next round."""
    return sum(len(list(it.ready())) + len(list(it.next_round())) for it in scene.control.queues.all().values())


Handle: Final[Any] = asyncio.events.Handle


class Steps:
    """The processor time of each step of the event loop."""

    def __init__(self) -> None:
        self.longest, self.what = 0.0, ""

    def __enter__(self) -> Steps:
        self._real = real = Handle._run

        def timed(handle: Any) -> None:
            owner = getattr(handle._callback, "__self__", None)
            what = owner.get_name() if owner is not None and hasattr(owner, "get_name") else repr(handle._callback)
            began = time.thread_time()
            real(handle)
            if (spent := time.thread_time() - began) > self.longest:
                self.longest, self.what = spent, what

        Handle._run = timed
        return self

    def __exit__(self, *_: object) -> None:
        Handle._run = self._real


async def measured(population: Population, number: int, seconds: float) -> Any:
    task: Any = vars(asyncio.tasks)["_PyTask"]  # the compiled one does not tell whose step it is
    asyncio.get_running_loop().set_task_factory(lambda loop, work, **more: task(work, loop=loop, **more))
    scene = Scene(population, number)
    await scene.forget_keys()
    spent = []
    gc.collect()
    gc.freeze()
    for version in (1, 2, 3):
        began = time.thread_time()
        scene.change(version)
        spent.append(time.thread_time() - began)
        count = keys(scene)
        if version < 3:
            await scene.forget_keys()
    with Steps() as steps:
        await asyncio.sleep(0.1)
        idle = steps.longest
        async with scene.world.running():
            await asyncio.sleep(seconds)
    return max(spent), count, idle, steps.longest, steps.what


async def main(numbers: Iterable[int], only: str = "", seconds: float = 1.5) -> None:
    logging.disable()
    for name, population in POPULATIONS.items():
        if only and only not in name:
            continue
        for number in numbers:
            event, count, idle, step, what = await measured(population, number, seconds)
            figures = (f"{it * 1e3:.1f}" for it in (event, idle, step))
            print(" | ".join((name, str(number), str(count), *figures, what[:160])), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("numbers", type=int, nargs="*", default=[2000, 4000], help="of objects (2000 4000)")
    parser.add_argument("--only", metavar="TITLE", default="", help="populations whose name has this text")
    given = parser.parse_args()
    asyncio.run(main(given.numbers, given.only))
