"""Tries what ``kubectl dra why`` prints as a fix: in a random cluster, the change made from outside, a fresh pipeline.

``PYTHONPATH=tests/support python -m fix_campaign --seeds 0:10000`` prints each fix that does not hold, and counts.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Final

from allocator_problems import CrowdedMaker, LocalMaker, Maker
from dra_api.core import Pod
from dra_api.resource import ResourceSlice
from dra_operator.allocator import AllocationError
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.pipeline import pipeline
from dra_operator.kubectl.why.changes import Fix, Trial, applied
from dra_operator.kubectl.why.published import Published
from dra_operator.kubectl.why.search import FixSearch
from dra_operator.scheduling import NoPlace, decided, plan
from waiting_pods import POD, waiting_pod

MAKERS: Final = (Maker, LocalMaker, CrowdedMaker)


def cluster_of(seed: int) -> Observed:
    """The cluster of a number."""
    return waiting_pod(Random(seed), MAKERS[seed % len(MAKERS)])


def fits(seen: Observed) -> bool | None:
    """Whether the pod would get a node; None if it is not even tried."""
    node = node_of(seen)
    return None if node is None else bool(node)


def node_of(seen: Observed) -> str | None:
    """Which node the pod would get; empty if it fits none, None if it is not even tried."""
    pod = seen.one(Pod, POD)
    assert pod is not None
    trial = Trial(pipeline(seen), pod)
    return None if trial.cycle_state() is None else trial.node()


def fixes_of(seen: Observed) -> tuple[list[Fix], bool]:
    """What would be printed, and whether the view is afterwards as it was."""
    pod = seen.one(Pod, POD)
    assert pod is not None
    trial = Trial(pipeline(seen), pod)
    cycle_state = trial.cycle_state()
    assert cycle_state is not None
    nodes = [state.name for state in cycle_state.nodes]
    before = _refusal(trial)
    fixes = FixSearch(trial, nodes, Published(seen.every(ResourceSlice))).fixes()
    return fixes, _refusal(trial) == before


def _refusal(trial: Trial) -> str:
    """Why the pod does not fit, in all words."""
    cycle_state = trial.cycle_state()
    assert cycle_state is not None
    outcome = decided(plan(cycle_state))
    assert isinstance(outcome, NoPlace)
    return outcome.message


def failures(seen: Observed, fixes: list[Fix]) -> Iterator[Fix]:
    """The fixes with which the pod does not get the node that they name."""
    for fix in fixes:
        if node_of(replace(seen, objects=applied(seen.objects, fix.edits))) != fix.node:
            yield fix


def main() -> int:
    """Many clusters."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="0:100", metavar="FIRST:END")
    first, _, end = parser.parse_args().seeds.partition(":")
    counts: Counter[str] = Counter()
    for seed in range(int(first), int(end)):
        seen = cluster_of(seed)
        try:
            outcome = fits(seen)
        except AllocationError:
            outcome = None
        if outcome is not False:
            counts["fits" if outcome else "not tried"] += 1
            continue
        fixes, is_restored = fixes_of(seen)
        counts["with a fix" if fixes else "without a fix"] += 1
        counts["fixes"] += len(fixes)
        counts["not restored"] += not is_restored
        for fix in failures(seen, fixes):
            counts["false"] += 1
            print(f"seed {seed}: on {fix.node}: {fix.text}")
    print(dict(counts))
    return int(bool(counts["false"] or counts["not restored"]))


if __name__ == "__main__":
    raise SystemExit(main())
