"""``kubectl dra why pod NAME`` and ``kubectl dra why claim NAME``: what holds it back, asked of the live cluster.

Reads only. Exit codes: 0, 1 when there is no such object or the server cannot be used, 2 for wrong usage; see also
``console``.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import uuid
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from dra_api.meta import Object
from dra_kube import Api, Connection, KubeError, connection

from dra_operator.allocator import Allocator, Features, Inventory
from dra_operator.cluster import SCHEDULER_NAME, Cluster

from .console import finish
from .language import CelSelectors
from .loading import Loader
from .malformed import Quarantine
from .watched import watched_kinds
from .why import why_claim, why_pod


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script ``kubectl-dra``; kubectl finds it by its name."""
    options = _parser().parse_args(arguments)
    return finish(lambda: _tell(options))


def _tell(options: argparse.Namespace) -> int:
    try:
        for line in asyncio.run(_ask(options, connection(options.kubeconfig, options.context))):
            print(line)
    except KubeError as error:
        print(f"kubectl dra: {error}", file=sys.stderr)
        return 1
    except LookupError as error:
        print(f"kubectl dra: {error.args[0]}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kubectl dra", description="Dynamic Resource Allocation, explained.")
    commands = parser.add_subparsers(dest="command", required=True)
    why = commands.add_parser("why", help="why a pod or claim is pending, or what it holds")
    why.add_argument("kind", choices=("pod", "claim"))
    why.add_argument("name")
    why.add_argument("-n", "--namespace", default="default")
    why.add_argument("--kubeconfig", help="file that says where the API server is")
    why.add_argument("--context", help="context of the kubeconfig")
    why.add_argument("--scheduler-name", default=SCHEDULER_NAME, help="as given to the operator (%(default)s)")
    return parser


async def _ask(options: argparse.Namespace, where: Connection) -> Iterator[str]:
    features = Features()
    cluster = Cluster(Inventory(features, language=CelSelectors(features)), scheduler_name=options.scheduler_name)

    def load(objects: Iterable[Object]) -> None:
        for obj in objects:
            cluster.put(obj)

    async with Api(where) as api:
        await Loader(api, watched_kinds(features), load, Quarantine(cluster.ledger.stored)).load_all()
    allocator = Allocator(cluster.inventory, new_share_id=lambda: str(uuid.uuid4()))
    key, now = f"{options.namespace}/{options.name}", datetime.now(UTC)
    if options.kind == "pod" and (pod := cluster.pods.get(key)) is not None:
        return why_pod(cluster, allocator, pod, now)
    if options.kind == "claim" and (claim := cluster.claims.get(key)) is not None:
        return why_claim(cluster, allocator, claim, now)
    raise LookupError(f"there is no {options.kind} {options.name} in namespace {options.namespace}")


if __name__ == "__main__":
    sys.exit(main())
