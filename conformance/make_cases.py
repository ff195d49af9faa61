"""Makes the kit's generated problems; their answers come from the exhaustive search of the tests.

    python conformance/make_cases.py            # writes allocator/generated.jsonl.gz and allocator/hard.jsonl.gz

The search (tests/support/allocator_oracle) tries everything in the documented order and shares no code with the
allocator. Problems that take it too long are left out. The same program always writes the same bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "support"))
sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))

from allocator_families import HARD, UNSOLVABLE
from allocator_oracle import OutOfSteps, Problem, answer
from allocator_problems import CrowdedMaker, LocalMaker, Maker, make_case
from dra_api.codec import to_dict
from kit_cases import FOLDER, Json, write

SHARE = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"
SEARCHED = "exhaustive search in the documented order"
PROVED = "counting: there are too few devices, values, counters or capacity"
FAMILIES = {"mixed": (Maker, 900), "several-nodes": (LocalMaker, 500), "crowded": (CrowdedMaker, 1000)}
"""Who makes the problems of a family, and how many there are."""
SIZES = (4, 6, 8, 10, 12, 16, 24, 32, 48, 64)
STEPS = 4_000
MOST_ERRORS = 8
"""One in so many problems of a family may have nothing but faulty input to offer."""


def generated(family: str, count: int) -> Iterator[Json]:
    """So many random problems of a family."""
    maker, _ = FAMILIES[family]
    made = faulty = seed = 0
    while made < count:
        case = tidy(make_case(Random(f"conformance/{family}/{seed}"), maker))
        seed += 1
        answers = searched(case, STEPS)
        if answers is None:
            continue
        if all(found["outcome"] == "error" for found in answers):
            if faulty * MOST_ERRORS >= count:
                continue
            faulty += 1
        made += 1
        about = {"name": f"generated/{family}-{made:04}", "family": family}
        yield {**about, **case, "mode": "all", "expect": [documented(SEARCHED, answers)]}


def hard() -> Iterator[Json]:
    """Problems on which a plain search explodes, in several sizes; the large ones with answers that need no search."""
    for what, family in HARD.items():
        for size in SIZES:
            case = tidy(family(size))
            if not any(slice_["spec"].get("devices") for slice_ in case["slices"]):
                continue
            answers, origin = searched(case, STEPS), SEARCHED
            if answers is None and what in UNSOLVABLE:
                answers, origin = [{"node": "n1", "outcome": "none"}], PROVED
            if answers is not None:
                about = {"name": f"hard/{what}, {size}", "family": what}
                yield {**about, **case, "mode": "all", "expect": [documented(origin, answers)]}


def documented(origin: str, answers: list[Json]) -> Json:
    """An expectation for the documented semantics."""
    return {"semantics": ["documented"], "origin": origin, "answers": answers}


def searched(case: Json, limit: int, **mistakes: bool) -> list[Json] | None:
    """The answer of the exhaustive search on each node that is tried; None when one takes too many steps."""
    answers: list[Json] = []
    for node in case["nodes"]:
        try:
            found = answer(Problem.from_case(case, node, **mistakes), limit=limit)
        except OutOfSteps:
            return None
        told: Json = {"node": node["metadata"]["name"], "outcome": found.outcome}
        if found.outcome == "allocated":
            told["results"] = [with_share_ids(to_dict(result)) for result in found.results]
        if found.error:
            told["error"] = found.error
        answers.append(told)
        if case.get("mode") == "first" and found.outcome in ("allocated", "error"):
            break
    return answers


def with_share_ids(result: Json) -> Json:
    """The placeholder of a share id has the form of one."""
    for device in result.get("devices", {}).get("results", []):
        if "shareID" in device:
            device["shareID"] = SHARE
    return result


def tidy(case: Json) -> Json:
    """Whole Kubernetes objects; slices in the order of their names, in which the documented search takes them."""
    kinds = {
        "classes": ("resource.k8s.io/v1", "DeviceClass"),
        "slices": ("resource.k8s.io/v1", "ResourceSlice"),
        "claims": ("resource.k8s.io/v1", "ResourceClaim"),
        "rules": ("resource.k8s.io/v1beta2", "DeviceTaintRule"),
        "nodes": ("v1", "Node"),
    }
    made: Json = {"features": sorted(case["features"])}
    for name, (version, kind) in kinds.items():
        if name == "rules" and not case.get("rules"):
            continue
        objects = case[name]
        if name == "slices":
            objects = sorted(objects, key=lambda slice_: str(slice_["metadata"]["name"]))
        made[name] = [{"apiVersion": version, "kind": kind, **item} for item in objects]
    state = {name: entries for name, entries in (case.get("allocatedState") or {}).items() if entries}
    return made | {"allocatedState": state}


def main() -> None:
    """Write both files."""
    sources: dict[str, Callable[[], Iterator[Json]]] = {
        "generated": lambda: (case for name, (_, count) in FAMILIES.items() for case in generated(name, count)),
        "hard": hard,
    }
    for name, cases in sources.items():
        made: list[Any] = list(cases())
        write(FOLDER / "allocator" / f"{name}.jsonl.gz", made)
        print(f"{name}: {len(made)} problems")


if __name__ == "__main__":
    main()
