"""Makes the kit's generated problems; their answers come from the exhaustive search of the tests.

    python conformance/make_cases.py            # writes allocator/generated.jsonl.gz and allocator/hard.jsonl.gz

The search (tests/support/allocator_oracle) tries everything in the documented order and shares no code with the
allocator. Problems that take it too long are left out. The same program always makes the same cases.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "support"))
sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))

from allocator_families import HARD, UNSOLVABLE, case
from allocator_lab import claim, device, pool, request
from allocator_oracle.pools import OutOfSteps, Problem
from allocator_oracle.search import answer
from allocator_problems import CrowdedMaker, LocalMaker, Maker, make_case
from dra_api.codec import to_dict
from kit_cases import FOLDER, Json, write

SHARE = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"
SEARCHED = "exhaustive search in the documented order"
PROVED = "counting: there are too few devices, values or counters"
FORCED = "induction: request i accepts devices 0 to i only, so each gets the last of them"
FAMILIES = {"mixed": (Maker, 900), "several-nodes": (LocalMaker, 500), "crowded": (CrowdedMaker, 1000)}
"""Who makes the problems of a family, and how many there are."""
SIZES = (4, 6, 8, 10, 12, 16, 24, 32, 48, 64)
NESTED = "nested candidates, one solution"
LARGEST = {NESTED: 32}
"""Sizes beyond which a family has no problem: a claim gets at most 32 devices."""
STEPS = 4_000
MOST_ERRORS = 8
"""One in so many problems of a family may have nothing but faulty input to offer."""


def generated(family: str, count: int) -> Iterator[Json]:
    """So many random problems of a family."""
    maker, _ = FAMILIES[family]
    made = faulty = seed = 0
    while made < count:
        problem = tidy(make_case(Random(f"conformance/{family}/{seed}"), maker))
        seed += 1
        answers = searched(problem, STEPS)
        if answers is None:
            continue
        if all(found["outcome"] == "error" for found in answers):
            if faulty * MOST_ERRORS >= count:
                continue
            faulty += 1
        made += 1
        about = {"name": f"generated/{family}-{made:04}", "family": family}
        yield {**about, **problem, "mode": "all", "expect": [documented(SEARCHED, answers)]}


def hard() -> Iterator[Json]:
    """Problems on which a plain search explodes, in several sizes; the large ones with answers that need no search."""
    for what, family in {**HARD, NESTED: nested}.items():
        for size in SIZES:
            problem = tidy(family(size))
            if size > LARGEST.get(what, size) or not any(s["spec"].get("devices") for s in problem["slices"]):
                continue
            answers, origin = searched(problem, STEPS), SEARCHED
            if answers is None and what in UNSOLVABLE:
                answers, origin = [{"node": "n1", "outcome": "none"}], PROVED
            if answers is None and what == NESTED:
                answers, origin = [nested_answer(size)], FORCED
            if answers is not None:
                about = {"name": f"hard/{what}, {size}", "family": what}
                yield {**about, **problem, "mode": "all", "expect": [documented(origin, answers)]}


def nested(size: int) -> Json:
    """Request i accepts the devices 0 to i; the one that accepts all comes first. There is one solution."""
    devices = [device(f"d{i:02}", k=i) for i in range(size)]
    wanted = [request(f"r{i}", f'device.attributes["drv"].k <= {i}') for i in reversed(range(size))]
    return case(pool(*devices), claim(*wanted))


def nested_answer(size: int) -> Json:
    """The solution of ``nested``."""
    about = {"driver": "drv", "pool": "p"}
    devices = [{"request": f"r{i}", **about, "device": f"d{i:02}"} for i in reversed(range(size))]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    result = {"devices": {"results": devices}, "nodeSelector": {"nodeSelectorTerms": [term]}}
    return {"node": "n1", "outcome": "allocated", "results": [result]}


def documented(origin: str, answers: list[Json]) -> Json:
    """An expectation for the documented semantics."""
    return {"semantics": ["documented"], "origin": origin, "answers": answers}


def searched(problem: Json, limit: int, **mistakes: bool) -> list[Json] | None:
    """The answer of the exhaustive search on each node that is tried; None when one takes too many steps."""
    answers: list[Json] = []
    for node in problem["nodes"]:
        try:
            found = answer(Problem.from_case(problem, node, **mistakes), limit=limit)
        except OutOfSteps:
            return None
        told: Json = {"node": node["metadata"]["name"], "outcome": found.outcome}
        if found.outcome == "allocated":
            told["results"] = [with_share_ids(to_dict(result)) for result in found.results]
        if found.error:
            told["error"] = found.error
        answers.append(told)
        if problem.get("mode") == "first" and found.outcome in ("allocated", "error"):
            break
    return answers


def with_share_ids(result: Json) -> Json:
    """The placeholder of a share id has the form of one."""
    for granted in result.get("devices", {}).get("results", []):
        if "shareID" in granted:
            granted["shareID"] = SHARE
    return result


def tidy(problem: Json) -> Json:
    """Whole Kubernetes objects; slices in the order of their names, in which the documented search takes them."""
    kinds = {
        "classes": ("resource.k8s.io/v1", "DeviceClass"),
        "slices": ("resource.k8s.io/v1", "ResourceSlice"),
        "claims": ("resource.k8s.io/v1", "ResourceClaim"),
        "rules": ("resource.k8s.io/v1beta2", "DeviceTaintRule"),
        "nodes": ("v1", "Node"),
    }
    made: Json = {"features": sorted(problem["features"])}
    for name, (version, kind) in kinds.items():
        if name == "rules" and not problem.get("rules"):
            continue
        objects = problem[name]
        if name == "slices":
            objects = sorted(objects, key=lambda slice_: str(slice_["metadata"]["name"]))
        made[name] = [{"apiVersion": version, "kind": kind, **item} for item in objects]
    state = {name: entries for name, entries in (problem.get("allocatedState") or {}).items() if entries}
    return made | {"allocatedState": state}


def main() -> None:
    """Write both files."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sources: dict[str, Callable[[], Iterator[Json]]] = {
        "generated": lambda: (made for name, (_, count) in FAMILIES.items() for made in generated(name, count)),
        "hard": hard,
    }
    for name, cases in sources.items():
        made: list[Any] = list(cases())
        write(FOLDER / "allocator" / f"{name}.jsonl.gz", made)
        print(f"{name}: {len(made)} problems")


if __name__ == "__main__":
    main()
