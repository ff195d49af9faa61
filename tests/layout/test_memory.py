"""What the operator's process remembers of what users write is bounded by bytes, and the bounds add up to a known sum.

Each use of a cache in the packages of the operator stands in a table here, with the bytes that it may hold. What is not
bounded by bytes has entries of a fixed size, or grows with objects that administrators and drivers write, and says so.
"""

from __future__ import annotations

import ast
from pathlib import Path

from dra_api import cache
from dra_cel import selector
from dra_cel.libraries import regexes
from dra_ledger import basics, node_selectors
from dra_operator.allocator import claim_program
from dra_operator.allocator.pruning import aggregate_bounds
from dra_operator.app import telemetry
from dra_operator.controllers import context
from dra_operator.kube import client, writers

ROOT = Path(__file__).parents[2]
TOTAL = 160 << 20
"""What docs/reliability.md promises."""
SHORT_ENTRY = 1024
VERDICT = 300
"""Bytes of the verdicts of a request's selectors on a slice: two sets of 128 bits, a tuple, a place and a reference."""
ANSWER = 2 * 76 + 2 * 4 * 128 + 400  # two texts of 128 characters, a tuple and the dictionary's entry

BYTES = {
    "cel/dra_cel/selector.py": selector.KEPT_SELECTOR_BYTES,
    "cel/dra_cel/libraries/regexes.py": regexes.KEPT_PATTERN_BYTES
    + (4096 + 1024) * ANSWER
    + 1024 * 4 * 128
    + 1024 * SHORT_ENTRY,
    "cel/dra_cel/libraries/scalars.py": 2 * 2048 * SHORT_ENTRY,
    "cel/dra_cel/libraries/addresses.py": (2048 + 512) * SHORT_ENTRY,
    "proto/dra_api/values.py": 4096 * SHORT_ENTRY,
    "operator/dra_operator/allocator/claim_program.py": claim_program.KEPT_PROGRAM_BYTES,
    "ledger/dra_ledger/node_selectors.py": node_selectors.KEPT_SELECTOR_BYTES,
    "operator/dra_operator/allocator/pruning/aggregate_bounds.py": aggregate_bounds.KEPT_SUM_BYTES,
    "operator/dra_operator/kube/client.py": 2 * client.KEPT_OBJECT_BYTES,  # pods and claims
    "operator/dra_operator/app/telemetry.py": telemetry.KEPT_ACCOUNT_BYTES,
    "operator/dra_operator/kube/writers.py": writers.KEPT_MESSAGE_BYTES,
    "operator/dra_operator/controllers/context.py": context.KEPT_EVENT_BYTES,  # and 20,000 UIDs
}
OTHERWISE = {
    "proto/dra_api/cache.py": "the concept itself",
    "proto/dra_api/codec.py": "a decoder for each type of this project",
    "cel/dra_cel/basics/types.py": "weak: a type lives as long as its users",
    "ledger/dra_ledger/inventory.py": "a view for each node, with 64 sets of each kind; keys are shared",
    "ledger/dra_ledger/pools.py": "64 sets for each pool; keys are shared",
    "ledger/dra_ledger/slices.py": "a set of each kind for 64 requests, for each slice",
    "operator/dra_operator/allocator/problem/node_state.py": "64 domains for each of 16,384 nodes",
    "operator/dra_operator/scheduling/state/pods_by_node.py": "512 selections; 64 sums for the label keys of nodes",
    "operator/dra_operator/scheduling/state/topology.py": "64 topologies of the nodes",
    "operator/dra_operator/kube/claims.py": "UIDs and resourceVersions: of a fixed size",
    "operator/dra_operator/kube/pods.py": "writes of this process without an answer",
    "operator/dra_operator/allocator/ordering/supply.py": "for one mix: 256 of each of 16,384 nodes; 1,024 a kind; "
    "4,096 states for each of 64 kinds of units",
    "operator/dra_operator/cache/store.py": "UIDs: of a fixed size",
    "operator/dra_operator/cache/bulk.py": "sizes of objects that the cache has, and digests of their parts",
    "operator/dra_operator/kubectl/pipeline.py": "commands alone: objects of 4 MiB, or of one decision",
    "ledger/dra_ledger/cel_language.py": "256 devices, which drivers publish",
    "operator/dra_operator/cache/loads.py": "nodes that the view has",
    "ledger/dra_ledger/usage.py": "10,000 ids of devices: of a fixed size",
    "operator/dra_operator/controllers/scheduling/victims.py": "1,000 keys of pods for each namespace",
    "operator/dra_operator/controllers/claims/delayed_deletion.py": "claims that the view has; 1,000 namespaces",
    "operator/dra_operator/controllers/queue.py": "workers of this process",
    "operator/dra_operator/kubectl/lint/manifest.py": "commands alone: the types of this project",
    "operator/dra_operator/kubectl/ui/lines.py": "kubectl dra ui alone: 8 answers of a list, 65,536 short names",
}
COMMANDS_ONLY = {"commands", "quality"}
"""Rooms that the operator's process does not load."""
MAKERS = {
    "Cache",
    "Memo",
    "OrderedDict",
    "WeakKeyDictionary",
    "WeakValueDictionary",
    "cache",
    "lru_cache",
    "remember_short",
}


def remembers(path: Path) -> bool:
    """The file makes a cache, or decorates a function with one."""
    text = path.read_text()
    if not any(name in text for name in MAKERS):
        return False
    names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    return bool(names & MAKERS)


def test_every_cache_of_the_operators_process_stands_in_the_tables() -> None:
    packages = ("proto/dra_api", "cel/dra_cel", "kube/dra_kube", "ledger/dra_ledger", "operator/dra_operator")
    found = {
        str(path.relative_to(ROOT))
        for package in packages
        for path in (ROOT / package).rglob("*.py")
        if not COMMANDS_ONLY.intersection(path.parts) and remembers(path)
    }
    assert found == {*BYTES, *OTHERWISE}


def test_the_bounds_of_all_caches_add_up_to_what_is_promised() -> None:
    verdicts = basics.KEPT_VERDICT_PAIRS * VERDICT
    assert sum(BYTES.values()) + verdicts <= TOTAL
    assert "160 MiB" in (ROOT / "docs/reliability.md").read_text()


def test_an_entry_of_a_short_text_is_counted_in_full() -> None:
    assert 4 * cache.SHORT_CHARACTERS + 512 < SHORT_ENTRY
