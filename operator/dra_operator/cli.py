"""``dra-operator``: run the operator, or try out what it would do.

The module of a command is loaded only when it is asked for: help and the commands that work on files do not pay for
Kopf. Each module lists its exit codes; see also ``dra_api.console``.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Collection, Sequence

from dra_api import VERSION
from dra_api.console import finish, needing, sentence

RUN = "dra_operator.app.run"
"""Has ``main``, which takes the settings."""
SETTINGS = "dra_operator.app.settings"
"""Has ``CommandLine``, which reads the rest of the command line, and settings from elsewhere."""
COMMANDS = {
    "cel": ("dra_operator.commands.cel_command", "try out CEL device selectors"),
    "simulate": ("dra_simulator.command", "allocate claims from files, without a cluster"),
}
"""Name: module with ``add_arguments`` and ``run``, help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script; returns the exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    return needing("operator", "dra-operator", lambda: _main(words))


def _main(words: list[str]) -> int:
    if words[:1] == ["run"]:
        line = importlib.import_module(SETTINGS).CommandLine()
        settings = line.settings(words[1:])  # help and wrong usage end here
        return int(importlib.import_module(RUN).main(settings, line.warnings))
    options = parser([word for word in words if word in COMMANDS][:1]).parse_args(words)
    return finish(lambda: int(importlib.import_module(COMMANDS[options.command][0]).run(options)))


def parser(loaded: Collection[str] = ("run", *COMMANDS)) -> argparse.ArgumentParser:
    """Knows all commands by name, and the arguments of those that are loaded."""
    made = argparse.ArgumentParser(
        prog="dra-operator",
        description="Run the operator, or try out what it would do.",
        epilog="Example: %(prog)s simulate -f cluster.yaml",
    )
    made.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    commands = made.add_subparsers(dest="command", required=True)
    settings = [importlib.import_module(SETTINGS).CommandLine()] if "run" in loaded else []
    text = "run the operator until SIGINT or SIGTERM"
    commands.add_parser("run", help=text, description=sentence(text), parents=settings, add_help=False)
    for name, (module, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=sentence(text))
        if name in loaded:
            importlib.import_module(module).add_arguments(command)
    return made


if __name__ == "__main__":
    sys.exit(main())
