"""Write nodes.csv and pods.csv: a small cluster and its pods, made up, for `dra-operator simulate --trace`.

    python examples/trace/full.py /tmp

Most pods take a part of one GPU, some several GPUs, some none; a few name models. The mix is made up as well, so
figures of this trace say nothing of any real cluster.
"""

from __future__ import annotations

import argparse
import csv
import random
from collections.abc import Iterable
from pathlib import Path

SEED = 7
PODS = 1500
NODES = [  # how many, cores, GiB, GPUs, model
    (60, 96, 384, 8, "L"),
    (30, 64, 256, 4, "M"),
    (90, 48, 192, 2, "S"),
    (20, 16, 64, 1, "S"),
    (10, 128, 768, 8, "X"),
]
SHAPES = [  # weight, cores, GiB, GPUs, thousandths of a GPU
    (15, 4, 8, 0, 0),
    (3, 24, 64, 0, 0),
    (18, 4, 16, 1, 250),
    (14, 6, 24, 1, 400),
    (12, 8, 24, 1, 500),
    (8, 8, 32, 1, 650),
    (5, 3, 8, 1, 120),
    (14, 8, 32, 1, 1000),
    (4, 12, 64, 1, 1000),
    (3, 16, 64, 2, 1000),
    (2, 32, 128, 4, 1000),
    (2, 64, 256, 8, 1000),
]
MODELS = [(86, ""), (6, "L"), (4, "L|X"), (4, "M|S")]


def main(folder: Path) -> None:
    """Write both tables."""
    nodes = [row for row in NODES for _ in range(row[0])]
    write(
        folder / "nodes.csv",
        ["sn", "cpu_milli", "memory_mib", "gpu", "model"],
        ([f"node-{n:03}", cores * 1000, gib * 1024, gpus, m] for n, (_, cores, gib, gpus, m) in enumerate(nodes)),
    )
    drawn = random.Random(SEED)
    rows = []
    for number in range(PODS):
        _, cores, gib, gpus, milli = drawn.choices(SHAPES, [it[0] for it in SHAPES])[0]
        _, spec = drawn.choices(MODELS, [it[0] for it in MODELS])[0]
        named = spec if 0 < gpus <= 2 else ""  # every model that is named has nodes with two GPUs
        rows.append([f"pod-{number:04}", cores * 1000, gib * 1024, gpus, milli, named])
    write(folder / "pods.csv", ["name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec"], rows)


def write(path: Path, header: list[str], rows: Iterable[list[object]]) -> None:
    """Write one table."""
    with path.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(header)
        table.writerows(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parent, help="where to (this file's)")
    main(parser.parse_args().folder)
