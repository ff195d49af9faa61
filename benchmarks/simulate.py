"""Where the time of ``dra-operator simulate -f`` goes, on a cluster in one file.

    python benchmarks/simulate.py [--nodes N] [--json FILE]

The same objects as YAML and as JSON: parsed by PyYAML in Python (how it was), by libyaml and by msgspec (how it is),
then decoded, and answered for one claim. Seconds of processor time, each the best of three; start-up not included.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from dra_api.meta import Object
from dra_operator.allocator import Features, Semantics
from dra_operator.commands.file_items import documents
from dra_operator.commands.object_files import read_objects
from dra_operator.commands.simulated import simulated
from dra_simulator.report import attempts, report

DRIVER = "gpu.example.com"
DEVICES = 8
ROUNDS = 3


@dataclass(frozen=True)
class Result:
    """One line of the table; ``ratio`` says how many times faster than the parser in Python."""

    what: str
    seconds: float
    ratio: float | None = None


def cluster(nodes: int) -> list[dict[str, Any]]:
    """A class, nodes with eight devices each, and a claim for one device."""
    objects: list[dict[str, Any]] = [_object("DeviceClass", "gpu", {"selectors": [_selector()]})]
    for number in range(nodes):
        name = f"node-{number:04}"
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        objects += [node, _object("ResourceSlice", f"{name}-gpu", _slice(name))]
    request = {"name": "r", "exactly": {"deviceClassName": "gpu"}}
    return [*objects, _object("ResourceClaim", "c", {"devices": {"requests": [request]}})]


def _object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def _selector() -> dict[str, Any]:
    return {"cel": {"expression": f'device.driver == "{DRIVER}"'}}


def _slice(node: str) -> dict[str, Any]:
    devices = [
        {
            "name": f"gpu-{number}",
            "attributes": {"model": {"string": "A"}, "index": {"int": number}, "uuid": {"string": f"{node}-{number}"}},
            "capacity": {"memory": {"value": "40Gi"}},
        }
        for number in range(DEVICES)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}


def seconds(work: Callable[[], object]) -> float:
    """Processor time of the quickest round."""
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def measure(nodes: int) -> list[Result]:
    """All lines of the table."""
    objects = cluster(nodes)
    as_yaml = yaml.dump_all(objects, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper))
    as_json = json.dumps({"kind": "List", "items": objects})
    pure = seconds(lambda: list(yaml.safe_load_all(as_yaml)))
    pure_json = seconds(lambda: list(yaml.safe_load_all(as_json)))
    by_c, by_json = seconds(lambda: documents(as_yaml)), seconds(lambda: documents(as_json))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cluster.json"
        path.write_text(as_json)
        read = seconds(lambda: read_objects([str(path)]))
        found = read_objects([str(path)])
    return [
        Result("YAML, parsed in Python", pure),
        Result("YAML, parsed now", by_c, pure / by_c),
        Result("JSON, parsed in Python as YAML", pure_json),
        Result("JSON, parsed now", by_json, pure_json / by_json),
        Result("objects decoded, with defaults", read - by_json),
        Result("answers of all nodes, in words", seconds(lambda: _answer(found))),
    ]


def _answer(objects: list[Object]) -> None:
    made = simulated(objects, (), features=Features(), semantics=Semantics())
    for _ in report(attempts(made), made.allocator.inventory, sequential=False):
        pass


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here as well")
    options = parser.parse_args()
    results = measure(options.nodes)
    for result in results:
        ratio = f"  {result.ratio:5.0f} times faster" if result.ratio is not None else ""
        print(f"{result.what:34} {result.seconds:7.3f} s{ratio}")
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
