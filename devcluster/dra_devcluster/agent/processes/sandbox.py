"""How a container gets its mounts and its network: the command line that starts its program in namespaces.

It needs no rights, but the machine may forbid it: some distributions and most containers allow namespaces to root only.
``why_impossible`` finds out about mounts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from . import sandbox_entry

_PROBE_SECONDS = 10.0


class Mount(NamedTuple):
    """A folder or file of this machine, and where a container sees it."""

    source: Path
    target: str
    read_only: bool = False


def enter(
    cwd: Path,
    argv: Sequence[str],
    *,
    root: Path | None = None,
    mounts: Sequence[Mount] = (),
    network: int | None = None,
    terminal: bool = False,
) -> list[str]:
    """The command line that runs a program with these mounts, and in the network that the process ``network`` has.

    ``root`` is an empty folder for the mounts of this program alone. With ``terminal``, its standard input is one.
    """
    plan: dict[str, object] = {"cwd": str(cwd), "terminal": terminal}
    if mounts:
        plan |= {"root": str(root), "mounts": [(str(one.source), one.target, one.read_only) for one in mounts]}
    if network is not None:
        plan["network"] = network
    return _command(plan, argv)


def join(pid: int, cwd: Path, argv: Sequence[str], *, terminal: bool = False) -> list[str]:
    """The command line that runs a program beside one that was started by ``enter``."""
    return _command({"join": pid, "cwd": str(cwd), "terminal": terminal}, argv)


def own_network(control: int) -> list[str]:
    """The command line of a process that keeps a new network, and gives away sockets of it through a unix socket."""
    return _command({"own_network": control, "cwd": "/"}, ())


@cache
def why_impossible() -> str:
    """Why this machine lets no process have mounts of its own; empty if it does. Takes a moment when asked first."""
    with tempfile.TemporaryDirectory() as folder:
        root, source = Path(folder) / "root", Path(folder) / "source"
        root.mkdir()
        source.mkdir()
        command = enter(Path("/"), ["true"], root=root, mounts=[Mount(source, "/devcluster/probe", read_only=True)])
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        return "" if done.returncode == 0 else done.stderr.strip().rpartition("\n")[2]


def _command(plan: dict[str, object], argv: Sequence[str]) -> list[str]:
    # -I and -S: nothing of the environment or the installed packages can disturb the start, or slow it down.
    return [sys.executable, "-I", "-S", str(sandbox_entry.__file__), json.dumps(plan), *argv]
