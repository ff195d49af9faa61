"""How long the commands for people take to start, as multiples of an empty Python program.

    python benchmarks/startup.py [--runs N] [--kubeconfig FILE]

Each round runs every command once, so that a busy machine slows all of them alike; the figures are medians of the
processor time of a process. Modules are compiled before the first round, as they are in an installation. With a
kubeconfig, answers about that cluster are measured as well, beside kubectl's list of its nodes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median

SLICE = """
{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": {
  "driver": "gpu.example.com", "nodeName": "n1",
  "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "gpu-0"}]}}
"""
OBJECTS = f"""
{{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {{"name": "c", "namespace": "default"}},
 "spec": {{"devices": {{"requests": [{{"name": "req", "exactly": {{"deviceClassName": "gpu"}}}}]}}}}}}
---
{{"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {{"name": "gpu"}}, "spec": {{}}}}
---
{{"apiVersion": "v1", "kind": "Node", "metadata": {{"name": "n1"}}}}
---
{SLICE}
"""
LIVE = ", of a cluster"
ASKED = ("top", "claims -A", "why -A")
LIMIT = 25.0  # times an empty program


def main() -> int:
    """Print the table; 1 when a command for people takes longer than the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=21, help="rounds (%(default)s)")
    parser.add_argument("--kubeconfig", metavar="FILE", help="a cluster to ask, such as that of dra-devcluster up")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        commands = _commands(Path(folder))
        if options.kubeconfig:
            commands |= _live_commands(options.kubeconfig)
        times = _measure(commands, options.runs, _environment(folder))
    empty = times.pop("python -c pass")
    print(f"python -c pass: {empty * 1e3:.1f} ms of processor time\n\n| Command | ms | times |\n|---|---|---|")
    for name, seconds in times.items():
        print(f"| `{name}` | {seconds * 1e3:.0f} | {seconds / empty:.1f} |")
    return int(any(seconds > LIMIT * empty for name, seconds in times.items() if not name.endswith(LIVE)))


def _commands(folder: Path) -> dict[str, list[str]]:
    slices, objects = folder / "slices.json", folder / "objects.yaml"
    slices.write_text(SLICE)
    objects.write_text(OBJECTS)
    operator, kubectl = ["-m", "dra_operator.cli"], ["-m", "dra_operator.kubectl.cli"]
    return {
        "python -c pass": ["-c", "pass"],
        "dra-operator --help": [*operator, "--help"],
        "kubectl dra --help": [*kubectl, "--help"],
        "dra-operator cel --help": [*operator, "cel", "--help"],
        "dra-operator cel -e true -f FILE": [*operator, "cel", "-e", "true", "-f", str(slices)],
        "dra-operator simulate --help": [*operator, "simulate", "--help"],
        "dra-operator simulate -f FILE": [*operator, "simulate", "-f", str(objects)],
        "dra-operator run --help": [*operator, "run", "--help"],
    }


def _live_commands(kubeconfig: str) -> dict[str, list[str]]:
    kubectl = ["-m", "dra_operator.kubectl.cli"]
    found = {f"kubectl dra {words}{LIVE}": [*kubectl, *words.split(), "--kubeconfig", kubeconfig] for words in ASKED}
    if binary := shutil.which("kubectl"):
        found[f"kubectl get nodes{LIVE}"] = [binary, "get", "nodes", "--kubeconfig", kubeconfig]
    return found


def _environment(folder: str) -> dict[str, str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return environment | {"PYTHONPYCACHEPREFIX": f"{folder}/cache"}


def _measure(commands: dict[str, list[str]], runs: int, environment: dict[str, str]) -> dict[str, float]:
    for words in commands.values():
        _processor_time(words, environment)
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(runs):
        for name, words in commands.items():
            times[name].append(_processor_time(words, environment))
    return {name: median(values) for name, values in times.items()}


def _processor_time(words: list[str], environment: dict[str, str]) -> float:
    command = words if Path(words[0]).is_absolute() else [sys.executable, *words]
    quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    process = os.posix_spawn(command[0], command, environment, file_actions=quiet)
    _, status, usage = os.wait4(process, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 3):  # 3: pods wait
        raise SystemExit(f"{' '.join(command)} failed")
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    sys.exit(main())
