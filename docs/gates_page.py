"""Prints docs/feature-gates.md from the table of gates and from what each component looks at; see ``make settings``."""

from __future__ import annotations

from typing import Final

from dra_api.gates import TABLE, Gate
from dra_api.releases import NEWEST, Release
from dra_devcluster.agent.settings import NODE_GATES
from dra_devcluster.apiserver.registry import API_SERVER
from dra_operator.gates import OPERATOR

HEAD: Final = f"""# Feature gates

This page is made from `proto/dra_api/gates.py` by `make settings`; a test compares the two.

What each release of Kubernetes made of the feature gates that concern devices: stage, default, and a lock where the
default cannot be changed. The release is that of the API server (`--kubernetes-version auto`), or the one that
`--kubernetes-version` names. A server that emulates another release counts as that one. One that is newer than {NEWEST}
is treated as {NEWEST}, one that is older than {min(Release)} as {min(Release)}; the operator says so once in its log,
and in `/readyz?verbose`. `DRAFractionalCapacityRange` is on by default beside an API server whose minimum compatibility
version is 1.37 or newer; that of a plain 1.37 is 1.36.

A gate is refused where the component does not look at it, where the release does not have it, where it is locked to the
other value, and where a gate that it needs is off; the message names gate, release and remedy. A need counts if the
same component looks at both gates. `operator` stands for the operator and the commands that decide as it does,
`API server` and `nodes` for those of the development cluster.

"""
_LOOKS: Final = {"operator": OPERATOR.gates, "API server": API_SERVER.gates, "nodes": NODE_GATES}


def page() -> str:
    """The whole page."""
    columns = ("Gate", *map(str, Release), "Needs", "Looked at by")
    rows = (_row(f"`{name}`", *_history(gate), *_about(name, gate)) for name, gate in TABLE.items())
    return HEAD + _row(*columns) + _row(*["---"] * len(columns)).replace(" ", "") + "".join(rows)


def _history(gate: Gate) -> list[str]:
    steps = [gate.at(release) for release in Release]
    words = {True: "on", False: "off"}
    return ["" if step is None else f"{step.stage}, {words[step.default]}{', locked' * step.locked}" for step in steps]


def _about(name: str, gate: Gate) -> tuple[str, str]:
    lookers = [who for who, gates in _LOOKS.items() if name in gates]
    return ", ".join(f"`{needed}`" for needed in gate.needs), ", ".join(lookers)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |\n"


if __name__ == "__main__":
    print(page(), end="")
