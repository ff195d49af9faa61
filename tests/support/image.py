"""What stands for the container image where a container is a process of this machine.

``build`` puts a program into a folder of a node's search path. It is called exactly as the pod says, writes down its
command line and environment, and becomes the real program, with flags appended for what a test tries.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_STAND_IN = """#!{python}
import json, os, sys
from pathlib import Path

here = Path(sys.argv[0]).resolve()
call = {{"command": [here.name, *sys.argv[1:]], "environment": dict(os.environ)}}
with (here.parent / f"{{here.name}}.calls").open("a") as calls:
    print(json.dumps(call), file=calls)
os.execv({program!r}, [{program!r}, *sys.argv[1:], *{flags!r}])
"""


def build(folder: Path, name: str, flags: Sequence[str] = ()) -> None:
    """Put the placeholder pod for one console script into the folder."""
    program = str(Path(sys.executable).parent / name)
    (folder / name).write_text(_STAND_IN.format(python=sys.executable, program=program, flags=list(flags)))
    (folder / name).chmod(0o755)


def calls(folder: Path, name: str) -> list[dict[str, Any]]:
    """The ``command`` and ``environment`` of every start so far."""
    file = folder / f"{name}.calls"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
