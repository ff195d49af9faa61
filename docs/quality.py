"""Plays the published study again, and prints the tables of which docs/quality.md has the chief rows.

The data is not part of the project. Its folder has ``csv/openb_node_list_gpu_node.csv``,
``csv/openb_pod_list_<trace>.csv`` and the published tables ``published/analysis_allo_discrete.csv`` and
``published/analysis_frag_ratio_discrete.csv``. Runs are kept in ``results.jsonl`` there, so that the script can be
stopped and called again::

    python docs/quality.py FOLDER --seeds 42-51          # play what is missing, then print the tables
    python docs/quality.py FOLDER --tables               # only print the tables
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from dra_operator.quality.study import Mean, StudiedCluster, result
from dra_operator.quality.trace import read_nodes, read_pods, read_seeds

PUBLISHED: Final = {
    "random": "01-Random",
    "dot-product": "02-DotProd",
    "gpu-clustering": "03-GpuClustering",
    "gpu-packing": "04-GpuPacking",
    "best-fit": "05-BestFit",
    "fgd": "06-FGD",
}
OURS: Final = ("emptiest", "first-fit", "frag")
INFLATE: Final = 1.3
ENDS: Final = (100, 130)
"""Percent of demand at which the tables tell."""

Key = tuple[str, str, int]
"""Trace, policy, seed."""


class Figures(NamedTuple):
    """The curves of one run."""

    allocated: list[float]
    lost: list[float]


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default=os.environ.get("OPENB_DATA"), help="default: $OPENB_DATA")
    parser.add_argument("--traces", help="comma-separated; default: the 17 of the published tables")
    parser.add_argument("--policies", default=",".join([*PUBLISHED, *OURS]))
    parser.add_argument("--seeds", default="42-51")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--tables", action="store_true", help="play nothing")
    options = parser.parse_args()
    if not options.folder:
        parser.error("give the folder of the data, or set OPENB_DATA")
    folder = Path(options.folder)
    published = read_published(folder)
    if not options.tables:
        traces = options.traces.split(",") if options.traces else sorted({trace for trace, _, _ in published})
        wanted = ((t, p, s) for s in read_seeds(options.seeds) for p in options.policies.split(",") for t in traces)
        play(folder, list(wanted), options.jobs)
    print(*tables(published, read_results(folder)), sep="\n")


def read_published(folder: Path) -> dict[Key, Figures]:
    """The published runs."""
    names = {name: policy for policy, name in PUBLISHED.items()}

    def rows(name: str, first: int) -> dict[Key, list[float]]:
        with (folder / "published" / name).open() as file:
            lines = list(csv.reader(file))[1:]
        return {
            (line[0].removeprefix("openb_pod_list_"), names[line[1]], int(line[3])): [
                float(it or "nan") for it in line[first:]
            ]
            for line in lines
        }

    allocated, lost = rows("analysis_allo_discrete.csv", 5), rows("analysis_frag_ratio_discrete.csv", 4)
    return {key: Figures(its, lost[key]) for key, its in allocated.items()}


def read_results(folder: Path) -> dict[Key, Figures]:
    """The runs that were played."""
    file = folder / "results.jsonl"
    lines = map(json.loads, file.read_text().splitlines()) if file.exists() else ()
    return {(it["trace"], it["policy"], it["seed"]): Figures(it["allocated"], it["lost"]) for it in lines}


def play(folder: Path, wanted: Sequence[Key], jobs: int) -> None:
    """Play what is missing."""
    known = read_results(folder)
    missing = [key for key in wanted if key not in known]
    with multiprocessing.Pool(jobs) as pool, (folder / "results.jsonl").open("a") as file:
        for number, (key, figures) in enumerate(pool.imap_unordered(partial(played, folder), missing), start=1):
            trace, policy, seed = key
            file.write(json.dumps({"trace": trace, "policy": policy, "seed": seed, **figures._asdict()}) + "\n")
            file.flush()
            print(f"{number} of {len(missing)}: {trace} {policy} {seed}", flush=True)


def played(folder: Path, key: Key) -> tuple[Key, Figures]:
    """One run."""
    trace, policy, seed = key
    with (folder / "csv/openb_node_list_gpu_node.csv").open() as nodes:
        with (folder / f"csv/openb_pod_list_{trace}.csv").open() as pods:
            cluster = StudiedCluster(read_pods(pods), read_nodes(nodes), INFLATE)
    curve = result(cluster, policy, seed).curve
    return key, Figures(curve.allocated.tolist(), curve.lost.tolist())


def tables(published: dict[Key, Figures], played: dict[Key, Figures]) -> Iterator[str]:
    """The tables, as Markdown."""
    yield from _agreement(published, played)
    yield from _means(published, played)
    yield from _pairs(played)


def _agreement(published: dict[Key, Figures], played: dict[Key, Figures]) -> Iterator[str]:
    yield "### Agreement with the published runs\n"
    yield "`equal`: runs of which both curves are within 0.01 of the published ones at every percent of demand.\n"
    yield "| policy | runs played | equal | largest difference, allocation | fragmentation |"
    yield "|---|---|---|---|---|"
    for policy in PUBLISHED:
        keys = [key for key in played if key[1] == policy and key in published]
        differences = [[_difference(a, b) for a, b in zip(played[k], published[k], strict=True)] for k in keys]
        agree = sum(max(it) < 0.0101 for it in differences)
        allocated, lost = (max((it[i] for it in differences), default=0.0) for i in (0, 1))
        yield f"| {policy} | {len(keys)} | {agree} | {allocated:.2f} | {lost:.2f} |"
    gaps = _random_gaps(published, played)
    if gaps:
        yield f"\nMean of `random` over the seeds played, at 100 and 130 %: at most {max(gaps):.2f} points apart."
    yield ""


def _difference(one: Sequence[float], other: Sequence[float]) -> float:
    return float(np.nanmax(np.abs(np.round(one, 2) - np.array(other))))


def _random_gaps(published: dict[Key, Figures], played: dict[Key, Figures]) -> list[float]:
    by_trace: defaultdict[str, list[Key]] = defaultdict(list)
    for key in played:
        if key[1] == "random" and key in published:
            by_trace[key[0]].append(key)
    return [
        abs(float(np.mean([played[k].allocated[end] - published[k].allocated[end] for k in keys])))
        for keys in by_trace.values()
        for end in ENDS
    ]


def _means(published: dict[Key, Figures], played: dict[Key, Figures]) -> Iterator[str]:
    policies = [*OURS[:2], *PUBLISHED, OURS[2]]
    yield "### GPUs allocated at 100 % / 130 % of demand, in % of the cluster\n"
    yield "The mean of the seeds played, their number in brackets; below it the mean of the ten published seeds.\n"
    yield f"| trace | {' | '.join(policies)} |"
    yield "|---" * (len(policies) + 1) + "|"
    for trace in _traces(played):
        cells = [_cell(played, trace, policy) for policy in policies]
        yield f"| {trace} | {' | '.join(cells)} |"
        if any(key[0] == trace for key in published):
            cells = [_cell(published, trace, policy) for policy in policies]
            yield f"| published | {' | '.join(cells)} |"
    yield ""


def _cell(figures: dict[Key, Figures], trace: str, policy: str) -> str:
    its = [it.allocated for key, it in sorted(figures.items()) if key[:2] == (trace, policy)]
    if not its:
        return ""
    return " / ".join(f"{np.mean([it[end] for it in its]):.2f}" for end in ENDS) + f" ({len(its)})"


def _pairs(played: dict[Key, Figures]) -> Iterator[str]:
    yield "### `frag` less `fgd`, the same seeds compared pairwise\n"
    yield "Points of allocation, with confidence intervals of 95 % (Student's t).\n"
    yield "| trace | pairs | at 100 % | at 130 % |"
    yield "|---|---|---|---|"
    for trace in _traces(played):
        seeds = [key[2] for key in played if key[:2] == (trace, "frag") and (trace, "fgd", key[2]) in played]
        if seeds:
            yield f"| {trace} | {len(seeds)} | {' | '.join(_gain(played, trace, sorted(seeds), it) for it in ENDS)} |"
    yield ""


def _gain(played: dict[Key, Figures], trace: str, seeds: Sequence[int], end: int) -> str:
    pairs = [(played[trace, "frag", seed], played[trace, "fgd", seed]) for seed in seeds]
    mean = Mean.of([ours.allocated[end] - its.allocated[end] for ours, its in pairs])
    return f"{mean.value:+.2f}" + (f" ± {mean.half_width:.2f}" if len(seeds) > 1 else "")


def _traces(played: Iterable[Key]) -> list[str]:
    return sorted({trace for trace, _, _ in played})


if __name__ == "__main__":
    main()
