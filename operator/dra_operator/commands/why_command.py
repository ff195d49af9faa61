"""``kubectl dra why``: what the cluster says about one pod or claim."""

from __future__ import annotations

import argparse
import asyncio
import sys
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from dra_api.gates import UnknownGate
from dra_api.meta import Object
from dra_kube import Api, Connection, ConnectionSettingsError, Forbidden, KubeError, connection, namespace_of

from dra_operator.allocator import Allocator, Features, Inventory
from dra_operator.cluster import Cluster
from dra_operator.intake.cel_language import CelSelectors
from dra_operator.intake.gates import REMEDY, features_of
from dra_operator.intake.initial_list import Loader
from dra_operator.intake.kinds import watched_kinds
from dra_operator.intake.malformed import Quarantine
from dra_operator.reconcile import Concerns, UnknownConcern, concerns_of

from .why import why_claim, why_pod


class AsTheOperator(NamedTuple):
    """What the answer takes over from the operator's settings."""

    scheduler_name: str
    features: Features
    concerns: Concerns
    scoring_strategy: str


def run(options: argparse.Namespace) -> int:
    """Print the answer; 1 when there is no such object, or the server cannot be used, 2 for wrong settings."""
    try:
        features, concerns = features_of(options.feature_gates), concerns_of(options.concerns)
        ours = Concerns() if concerns is None else Concerns.of(concerns)
        operator = AsTheOperator(options.scheduler_name, features, ours, options.scoring_strategy)
        for line in asyncio.run(_ask(options, operator, connection(options.kubeconfig, options.context))):
            print(line)
    except UnknownGate as error:
        print(f"kubectl dra: --feature-gates: {error}; {REMEDY}", file=sys.stderr)
        return 2
    except UnknownConcern as error:
        print(f"kubectl dra: --concerns: {error}; name some of these, separated by commas, or auto", file=sys.stderr)
        return 2
    except Forbidden as error:
        remedy = "the ClusterRole dra-viewer in manifests/operator/viewer.yaml allows it: have it bound to you"
        print(f"kubectl dra: {error}; {remedy}", file=sys.stderr)
        return 1
    except KubeError as error:
        print(f"kubectl dra: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConnectionSettingsError) else 1
    except LookupError as error:
        print(f"kubectl dra: {error.args[0]}", file=sys.stderr)
        return 1
    return 0


async def _ask(options: argparse.Namespace, operator: AsTheOperator, where: Connection) -> Iterator[str]:
    features = operator.features
    inventory, strategy = Inventory(features, language=CelSelectors(features)), operator.scoring_strategy
    cluster = Cluster(inventory, scheduler_name=operator.scheduler_name, scoring_strategy=strategy)

    def load(objects: Iterable[Object]) -> None:
        for obj in objects:
            cluster.put(obj)

    async with Api(where) as api:
        loader = Loader(api, watched_kinds(features), load, Quarantine(cluster.holdings.stored))
        await loader.load_all()
    cluster.storage.unseen = loader.unseen_storage()
    allocator = Allocator(cluster.inventory, new_share_id=lambda: str(uuid.uuid4()))
    namespace = options.namespace or namespace_of(options.kubeconfig, options.context)
    key, now = f"{namespace}/{options.name}", datetime.now(UTC)
    if options.kind == "pod" and (pod := cluster.pods.get(key)) is not None:
        return why_pod(cluster, allocator, pod, now, operator.concerns)
    if options.kind == "claim" and (claim := cluster.claims.get(key)) is not None:
        return why_claim(cluster, allocator, claim, now, operator.concerns)
    raise LookupError(f"there is no {options.kind} {options.name} in namespace {namespace}")
