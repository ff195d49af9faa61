"""How long nothing else runs while a pod with the most rules that are admitted is planned.

    python benchmarks/many_rules.py 1500

Its hundred rules are about all pods of the cluster, and no label leads to these. Times are processor time.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from dra_api.core import Pod
from dra_operator.scheduling import Nodes, counted
from neighbour_lab import HOST, away, near, pod, term, with_residents

NODES, NAMESPACES, RULES = 100, 20, 100


def terms(labels: int) -> list[dict[str, Any]]:
    """Terms of affinity that ask for so many labels each, about pods of all namespaces."""
    listed = [[{"key": f"k{rule}-{it}", "operator": "DoesNotExist"} for it in range(labels)] for rule in range(RULES)]
    return [term({"matchExpressions": expressions}, HOST, namespaceSelector={}) for expressions in listed]


def cluster(pods: int) -> Nodes:
    """Nodes with pods of several namespaces."""
    labels = {"app": "web", "tier": "front", "pod-template-hash": "5d4f8c7b9"}
    pods_by_node = [pod(f"r{it}", labels, on=f"n{it % NODES}", namespace=f"ns{it % NAMESPACES}") for it in range(pods)]
    return with_residents([(f"n{it}", {HOST: f"n{it}"}) for it in range(NODES)], pods_by_node)


def pieces(comes: Pod, nodes: Nodes) -> Iterator[float]:
    """Milliseconds of each piece: those in which pods are counted, and the last one, which makes the rules."""
    counting, is_over = counted(comes, nodes), False
    while not is_over:
        began = time.thread_time()
        is_over = next(counting, None) is None
        yield (time.thread_time() - began) * 1000
    began = time.thread_time()
    nodes.rules_between(comes)
    nodes.rules_of(comes)
    nodes.scores_of(comes)
    yield (time.thread_time() - began) * 1000


def main() -> None:
    """Print a line for each kind of rules."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pods", type=int, nargs="?", default=1500, help="on nodes (%(default)s)")
    pods = parser.parse_args().pods
    for kind, of in (("anti-affinity", away), ("affinity", near)):
        for labels in (1, 5):
            found = list(pieces(pod("p", affinity=of(*terms(labels))), cluster(pods)))
            print(f"{kind}, labels in each rule: {labels}: {sum(found):.0f} ms, longest piece {max(found):.1f} ms")


if __name__ == "__main__":
    main()
