"""What stands for the container image and its mounts where a container is a process of this machine.

``build`` makes a folder of programs for a node's search path. Each is called exactly as the pod says; it writes down
its command line and environment, puts host folders in the place of mount points, and becomes the real program with
flags appended for what the real one would find at fixed paths inside its container (the last of two equal flags wins).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_STAND_IN = f"""#!{sys.executable}
import json, os, sys
from pathlib import Path

here = Path(sys.argv[0]).resolve()
plan = json.loads((here.parent / f"{{here.name}}.json").read_text())
call = {{"command": [here.name, *sys.argv[1:]], "environment": dict(os.environ)}}
with (here.parent / f"{{here.name}}.calls").open("a") as calls:
    print(json.dumps(call), file=calls)
words = sys.argv[1:]
for inside, outside in plan["mounts"].items():
    words = [outside + word.removeprefix(inside) if word.startswith(inside + "/") else word for word in words]
words += [word.format_map(os.environ) for word in plan["appended"]]
os.environ["KUBECONFIG"] = plan["kubeconfig"].format_map(os.environ)
os.execv(plan["program"], [plan["program"], *words])
"""


@dataclass(frozen=True)
class Program:
    """One console script, with what stands around it; ``kubeconfig`` and ``appended`` may refer to variables, as in
    ``{NODE_NAME}``.
    """

    name: str
    kubeconfig: Path
    mounts: Mapping[str, Path] = field(default_factory=dict)
    appended: Sequence[str] = ()


def build(folder: Path, program: Program) -> None:
    """Put the program into the folder; it appears there complete."""
    plan = {
        "program": str(Path(sys.executable).parent / program.name),
        "kubeconfig": str(program.kubeconfig),
        "mounts": {inside: str(outside) for inside, outside in program.mounts.items()},
        "appended": list(program.appended),
    }
    (folder / f"{program.name}.json").write_text(json.dumps(plan))
    draft = folder / f".{program.name}"
    draft.write_text(_STAND_IN)
    draft.chmod(0o755)
    draft.rename(folder / program.name)


def calls(folder: Path, name: str) -> list[dict[str, Any]]:
    """The ``command`` and ``environment`` of every start so far."""
    file = folder / f"{name}.calls"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
