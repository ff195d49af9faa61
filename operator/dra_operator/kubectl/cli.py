"""``kubectl-dra``: kubectl runs it for ``kubectl dra``.

Exit codes: ``answer.ExitCode``, and those of ``dra_api.console``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Sequence
from typing import NoReturn

from dra_api.console import finish
from dra_api.version import VERSION

from .commands import COMMANDS

EXIT_CODES = "exit codes: 0 nothing is in the way, 3 something is, 1 no such object or no answer, 2 wrong usage"


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script; returns the exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    options = parser([word for word in words if word in COMMANDS][:1]).parse_args(words)
    return finish(lambda: COMMANDS[options.command].run(options))


def parser(loaded: Collection[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """Knows all commands by name, and the arguments of those that are loaded; ``completion`` completes it."""
    made = _Parser(
        prog="kubectl dra",
        description="Dynamic Resource Allocation, explained. Reads only, apart from doctor --fix and defrag --apply.",
        epilog=EXIT_CODES,
    )
    made.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    commands = made.add_subparsers(dest="command", required=True)
    for name, command in COMMANDS.items():
        added = commands.add_parser(name, help=command.help, epilog=EXIT_CODES)
        if name in loaded:
            command.add_arguments(added)
    return made


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as kubectl does; the usage is for who asks for it."""

    def error(self, message: str) -> NoReturn:
        """Exits with 2."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


if __name__ == "__main__":
    sys.exit(main())
