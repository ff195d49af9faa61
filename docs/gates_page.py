"""Prints docs/feature-gates.md from the table of gates and from what each component looks at; see ``make settings``.

python docs/gates_page.py > docs/feature-gates.md
"""

from __future__ import annotations

import argparse
from typing import Final

from dra_api.gates import TABLE, Gate
from dra_api.releases import NEWEST, Release
from dra_devcluster.agent.settings import NODE_GATES
from dra_devcluster.apiserver.registry import API_SERVER
from dra_operator.gates import OPERATOR

HEAD: Final = f"""# Feature gates

Stage and default of the feature gates that concern devices, in each release of Kubernetes; a locked default cannot be
changed. The operator decides as the release of its API server, or as `--kubernetes-version` says: newer ones count as
{NEWEST}, older ones than {min(Release)} as {min(Release)}. `DRAFractionalCapacityRange` is on by default beside an API
server whose minimum compatibility version is 1.37 or newer.

A gate is refused if the component does not look at it, if the release lacks it or locks it to the other value, or if a
gate that it needs is off. `operator` stands for the operator and the commands that decide as it does, `API server` and
`nodes` for the development cluster's.

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
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(page(), end="")
