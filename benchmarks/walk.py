"""Count the files and functions that a plain pod walks through, from its event to its binding.

    python benchmarks/walk.py            # files, functions, and the depth of the deepest call
    python benchmarks/walk.py --list     # the functions, by file

The pod has one claim from a template; there is one node, and no option is in use. The interpreter tells of each call
(``sys.setprofile``). The API server is the tests' fake, so that no HTTP is part of the walk; a pod before this one has
loaded and compiled everything that is made once. Only calls of functions of this project count, without generated code
and class bodies.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any, Final

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from controllers_world import World
from dra_kube import PODS, RESOURCE_CLAIM_TEMPLATES
from dra_operator.allocator import Features
from objects import Make

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGES: Final = tuple(f"{ROOT / folder}/" for folder in ("proto/dra_api", "kube", "cel", "ledger", "operator"))


class Walk:
    """Records calls while it is entered: ``functions`` by file, and the ``depth`` of the deepest call."""

    def __init__(self) -> None:
        self.functions: defaultdict[str, set[str]] = defaultdict(set)
        self.depth = 0

    def __enter__(self) -> Walk:
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(PACKAGES):
            return
        self.functions[frame.f_code.co_filename.removeprefix(f"{ROOT}/")].add(frame.f_code.co_qualname)
        depth, outer = 0, frame
        while outer is not None:
            depth += outer.f_code.co_filename.startswith(PACKAGES)
            outer = outer.f_back  # type: ignore[assignment]  # None ends it
        self.depth = max(self.depth, depth)


async def walk() -> Walk:
    """Place two pods, one after the other, and record the walk of the second one."""
    world, found = World(Features()), Walk()
    world.furnish(1, 2)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    world.start()
    async with world.running():
        await world.quiet()
        for name in ("first", "second"):
            world.api.add(PODS, Make.pod(name, claims=[{"name": "gpu", "resourceClaimTemplateName": "tmpl"}]))
            if name == "first":
                await world.quiet()
        with found:
            async with asyncio.timeout(30):
                while world.node_of("second") is None:
                    world.bring_events()
                    await world.tick()
    return found


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the functions as well")
    options = parser.parse_args()
    found = asyncio.run(walk())
    if options.list:
        for file, functions in sorted(found.functions.items()):
            print(file, *sorted(functions), sep="\n    ")
    count = sum(map(len, found.functions.values()))
    print(f"{len(found.functions)} files, {count} functions, {found.depth} calls deep")


if __name__ == "__main__":
    main()
