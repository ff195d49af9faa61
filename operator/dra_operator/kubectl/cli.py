"""``kubectl-dra``: kubectl runs it for ``kubectl dra``.

Exit codes: ``answer.ExitCode``, and the codes of ``dra_api.console``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import NoReturn

from dra_api import VERSION
from dra_api.console import finish, needing, sentence

from .commands import COMMANDS

EXIT_CODES = "exit codes: 0 nothing is in the way, 3 something is, 1 no such object or no answer, 2 wrong usage"


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script; returns the exit code."""
    words = _command_first(sys.argv[1:] if arguments is None else list(arguments))
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if not words:
        parser(()).print_help()
        return 0
    named = [word for word in words if word in COMMANDS][:1]
    # A line that begins with its command needs no other parsers: they take 2 ms to make.
    options = parser(named, among=named if words[:1] == named else COMMANDS).parse_args(words)
    return finish(lambda: needing("operator", "kubectl-dra", lambda: COMMANDS[options.command].run(options)))


def _command_first(words: list[str]) -> list[str]:
    """Put the command before options like ``-n ml``: kubectl takes them in any place."""
    place = 0
    while place < len(words) and words[place].startswith("-"):
        place += 2 if words[place] in _WITH_VALUE else 1
    is_moved = 0 < place < len(words) and words[place] in COMMANDS
    return [words[place], *words[:place], *words[place + 1 :]] if is_moved else words


_WITH_VALUE = frozenset(
    (
        *("-n", "--namespace", "--context", "--kubeconfig", "--cluster", "--user", "-s", "--server", "--token"),
        *("--as", "--as-group", "--request-timeout", "-o", "--output", "-l", "--selector", "--from"),
    )
)
"""Options that many commands have, and whose value is the next word."""


def parser(
    loaded: Collection[str] = tuple(COMMANDS), *, among: Collection[str] = tuple(COMMANDS)
) -> argparse.ArgumentParser:
    """Return one that knows some commands by name, and the arguments of those that are loaded.

    ``completion`` completes it.
    """
    made = _Parser(
        prog="kubectl dra",
        description="Dynamic Resource Allocation, explained. Reads only, apart from doctor --fix and defrag --apply.",
        epilog=f"example: kubectl dra why pod/train; {EXIT_CODES}",
    )
    made.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in among:
        command = COMMANDS[name]
        examples = "".join(f"  {made.prog} {words}\n" for words in command.examples)
        added = commands.add_parser(
            name,
            help=command.help,
            description=sentence(command.help),
            epilog=f"examples:\n{examples}\n{EXIT_CODES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name in loaded:
            command.add_arguments(added)
    return made


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as kubectl does, with the similar word that may be meant."""

    def error(self, message: str) -> NoReturn:
        """Exit with 2."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")

    def parse_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """As in the base, but an option that is not known may be a misspelt one."""
        options, left = self.parse_known_args(args, namespace)
        if left:
            word = left[0].partition("=")[0]
            command = COMMANDS.get(getattr(options, "command", None) or "")
            known = argparse.ArgumentParser(add_help=False)
            if command is not None:
                command.add_arguments(known)
            kind = "option" if word.startswith("-") else "argument"
            self.error(
                f"unknown {kind} {word}{_similar(word, known._option_string_actions if kind == 'option' else ())}"
            )
        return options

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Raises ArgumentError."""
        if action.choices is None or value in action.choices:
            return
        known = [word.removesuffix("=") for word in action.choices]
        what = "unknown command" if action.dest == "command" else "not one of the choices:"
        hint = f" (choose from {', '.join(known)}){_similar(str(value), known)}"
        raise argparse.ArgumentError(None if action.dest == "command" else action, f"{what} {value!r}{hint}")


def _similar(word: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    dashes = "-" * (len(word) - len(word.lstrip("-")))  # they make every option similar to every other
    bare, names = word[len(dashes) :], [it.lstrip("-") for it in known]
    begins = [it for it in names if it[:1] == bare[:1]]  # few people mistype the first letter
    found = get_close_matches(bare, begins, 1, 0.65) or get_close_matches(bare, names, 1, 0.75)
    return f"; did you mean {dashes}{found[0]}?" if found else ""


if __name__ == "__main__":
    sys.exit(main())
