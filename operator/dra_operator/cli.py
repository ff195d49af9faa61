"""``dra-operator``: run the operator, or try out what it would do.

The module of a command is loaded only when it is asked for: help and the commands that work on files do not pay for
Kopf. Each module lists its exit codes; see also ``commands.console``.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from dra_api.version import VERSION

from dra_operator.commands.console import finish

RUN = "dra_operator.app.run_command"
"""Has ``main``, which reads the rest of the command line itself: settings come from elsewhere, too."""
COMMANDS = {
    "cel": ("dra_operator.commands.cel_command", "try out CEL device selectors"),
    "simulate": ("dra_operator.commands.simulate_command", "allocate claims from files, without a cluster"),
}
"""Name: module with ``add_arguments`` and ``run``, help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script; returns the exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words[:1] == ["run"]:
        return int(importlib.import_module(RUN).main(words[1:]))
    options = _parser(next((word for word in words if word in COMMANDS), None)).parse_args(words)
    return finish(lambda: int(importlib.import_module(COMMANDS[options.command][0]).run(options)))


def _parser(chosen: str | None) -> argparse.ArgumentParser:
    """Knows all commands by name, and the arguments of the chosen one."""
    parser = argparse.ArgumentParser(prog="dra-operator", description="Run the operator, or try out what it would do.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run", help="run the operator until SIGINT or SIGTERM", add_help=False)
    for name, (module, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text)
        if name == chosen:
            importlib.import_module(module).add_arguments(command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
