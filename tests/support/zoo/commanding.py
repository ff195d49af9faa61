"""Every command of ``kubectl dra`` beside very many objects of tenants: how much memory it takes, and how long.

``PYTHONPATH=tests/support python -m zoo.commanding --objects 10000 --kinds "claims of 60 KB"`` prints a line for each
command, with the development server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple, cast

from dra_devcluster.apiserver import DevApiServer
from dra_kube import NODES, RESOURCE_CLAIM_TEMPLATES, Api, Object
from zoo.asking import Tenant, request, spec
from zoo.hoarding import CROWDS, HOARDER, Stock, store, tolerated
from zoo.neighbour import publish

PEOPLE: Final = "people"
"""The namespace of the pods that are asked about."""
SIZE: Final = 58_000
ONE: Final = request("req", kind="visitor", allocationMode="ExactCount", count=1)
"""As the server would default it; it is not asked."""
MANIFEST: Final = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "wanted", "namespace": PEOPLE},
    "spec": {
        "schedulerName": "dra-scheduler",
        "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "device"}]}}],
        "resourceClaims": [{"name": "device", "resourceClaimTemplateName": "one"}],
    },
}
COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "why": ("pod/waiting", "-n", PEOPLE),
    "why -A": (),
    "top": (),
    "top classes": (),
    "devices": (),
    "claims": ("-A",),
    "pools": (),
    "who": ("node-0",),
    "free": (),
    "lint": ("--live", "-f", "pod.json"),
    "doctor": (),
    "taint": ("visitor.example.com", "--dry-run"),
    "territory": (),
    "topology": ("node-0",),
    "fit": ("-f", "pod.json"),
    "drain": ("node-0",),
    "defrag": ("--for", "pod/waiting", "-n", PEOPLE),
    "snapshot": ("snapshot.json",),
}
"""Each command that reads the cluster once, with its arguments; ``ui`` reads it in the same way, again and again."""
_RUN: Final = """
import sys
from pathlib import Path
from dra_operator.kubectl.cli import main
code = main(sys.argv[1:])
lines = Path("/proc/self/status").read_text().splitlines()
print(next(line.split()[1] for line in lines if line.startswith("VmHWM")), file=sys.stderr)
sys.exit(code)
"""


class Run(NamedTuple):
    """What a command said. ``memory``: the most bytes that it took."""

    code: int
    text: str
    memory: int
    seconds: float


async def run(command: str, kubeconfig: Path) -> Run:
    """Run a command of ``COMMANDS`` in the folder of the kubeconfig."""
    words = [*command.split(), *COMMANDS[command], "--kubeconfig", str(kubeconfig)]
    pipe, began = asyncio.subprocess.PIPE, time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _RUN, *words), stdout=pipe, stderr=pipe, cwd=kubeconfig.parent, env=os.environ
    )
    out, error = (part.decode() for part in await process.communicate())
    *said, memory = error.splitlines()
    assert memory.isdigit(), error
    return Run(process.returncode or 0, "\n".join([out, *said]), int(memory) << 10, time.monotonic() - began)


@asynccontextmanager
async def crowded(folder: Path, kinds: Mapping[str, int], namespaces: int = 3) -> AsyncIterator[Path]:
    """Yield the kubeconfig of a server with this number of objects of each kind, nodes with devices, and two pods."""
    server = DevApiServer()
    stock = cast(Api, Stock(server))
    nodes = [f"node-{number}" for number in range(4)]
    room = {"cpu": "8", "memory": "16Gi", "pods": "110"}
    for name in nodes:
        meta = {"name": name, "labels": {"kubernetes.io/hostname": name}}
        await stock.create(NODES, {"metadata": meta, "status": {"allocatable": room, "capacity": room}})
    await publish(stock, nodes)
    await _people(stock)
    for kind, number in kinds.items():
        await store(server, kind, number, namespaces)
    (folder / "pod.json").write_text(json.dumps(MANIFEST))
    async with server:
        server.write_kubeconfig(folder / "kubeconfig")
        yield folder / "kubeconfig"


async def _people(stock: Api) -> None:
    """A pod that waits with a claim of 60 kB, one that runs, and a template."""
    people = Tenant(stock, PEOPLE)
    await people.claim("waiting", tolerated(SIZE))
    await people.pod("waiting", ["waiting"])
    await people.claim("running", spec(ONE))
    await people.pod("running", ["running"], nodeName="node-0")
    body: Object = {"metadata": {"name": "one", "namespace": PEOPLE}}
    await stock.create(RESOURCE_CLAIM_TEMPLATES, {**body, "spec": {"spec": spec(ONE)}})


async def _print(kind: str, objects: int, namespaces: int) -> None:
    with tempfile.TemporaryDirectory(prefix="commands-") as folder:
        async with crowded(Path(folder), {kind: objects}, namespaces) as kubeconfig:
            for command in COMMANDS:
                found = await run(command, kubeconfig)
                cells = (f"{objects} {kind}", command, f"{found.seconds:.1f}", f"{found.memory >> 20}", f"{found.code}")
                print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print a line for each command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=CROWDS, default=CROWDS[:1], help="what tenants store")
    parser.add_argument("--objects", type=int, default=10_000, help="of a kind (default: %(default)s)")
    parser.add_argument("--namespaces", type=int, default=3, help=f"{HOARDER} and others (default: %(default)s)")
    given = parser.parse_args()
    print("| stored | command | s | MiB | exit code |")
    for kind in given.kinds:
        asyncio.run(_print(kind, given.objects, given.namespaces))


if __name__ == "__main__":
    main()
