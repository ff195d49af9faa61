"""``kubectl_complete-dra``: the words that may come next after ``kubectl dra``, for completion in a shell.

kubectl looks for a program of this name and runs it each time TAB is pressed. It gets the words after ``kubectl dra``
and completes the last one, even if that is empty. It prints one choice per line, and at the end a directive for
the shell: ``:4`` keeps file names out, ``:0`` lets the shell offer them when there is no choice.

Names of pods, claims and namespaces come from the cluster. Without an answer in time there are no names and no
message, because a message would end up in the middle of the line that a person is typing. ``dra_kube`` is imported only
then: a person waits for each TAB.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dra_api.console import finish
from dra_api.meta import DEVICE_CLASSES, NAMESPACES, NODES, PODS, RESOURCE_CLAIMS, Resource

from .answer import kind_of
from .cli import parser

COMPLETION_SECONDS: Final = 3.0  # seconds for an answer of the API server
FILES, NO_FILES = ":0", ":4"
OF_FILES: Final = ("kubeconfig", "source", "file", "add_nodes")
"""Arguments that name files."""

Values = Mapping[str, str]
KINDS: Final = {"claim": RESOURCE_CLAIMS, "pod": PODS}
"""What ``why`` explains."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script; kubectl finds it by its name."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    return finish(lambda: _print(*(words or [""])))


def _print(*words: str) -> int:
    *before, last = words
    place = Place(parser(words))
    for word in before:
        place.pass_by(word)
    print(*place.choices(last), place.directive(last), sep="\n")
    return 0


@dataclass
class Place:
    """Where in the command line the next word stands, and what the words before it said."""

    parser: argparse.ArgumentParser
    values: dict[str, str] = field(default_factory=dict)
    flag: argparse.Action | None = None
    """The flag that still needs its value."""
    passed: int = 0
    """Positional words of this parser."""

    def pass_by(self, word: str) -> None:
        """Take in a complete word. Words that the command does not know change nothing."""
        if self.flag is not None:
            self.values[self.flag.dest] = word
            self.flag = None
        elif word.startswith("-"):
            self.flag, value = self._flag(word)
            if self.flag is not None and (value or self.flag.nargs == 0):
                self.values[self.flag.dest] = value
                self.flag = None
        elif (action := self._positional()) is not None:
            self.values.setdefault(action.dest, word)
            self.passed += 1
            if isinstance(action, argparse._SubParsersAction) and word in action.choices:
                self.parser, self.passed = action.choices[word], 0

    def choices(self, start: str) -> Iterable[str]:
        """The words with this start that may stand here."""
        action, start = self._wanted(start)
        if action is not None:
            offered = action.choices or _offered(action.dest, self.values, start)
        else:
            offered = self.parser._option_string_actions if start.startswith("-") else ()
        return sorted(word for word in offered if word.startswith(start))

    def directive(self, start: str) -> str:
        """What the shell does beyond the choices."""
        action, _ = self._wanted(start)
        return FILES if action is not None and action.dest in OF_FILES else NO_FILES

    def _wanted(self, start: str) -> tuple[argparse.Action | None, str]:
        """The argument that the word belongs to, and the start of its value."""
        if self.flag is not None:
            return self.flag, start
        if start.startswith("--") and "=" in start:
            return self._flag(start)
        return (None if start.startswith("-") else self._positional()), start

    def _flag(self, word: str) -> tuple[argparse.Action | None, str]:
        """The flag, if there is one, and the value if the same word has it: ``--name=value``, ``-nvalue``."""
        name, _, value = word.partition("=") if word.startswith("--") else (word[:2], "", word[2:])
        return self.parser._option_string_actions.get(name), value

    def _positional(self) -> argparse.Action | None:
        actions = [action for action in self.parser._actions if not action.option_strings]
        if self.passed < len(actions):
            return actions[self.passed]
        is_second_word = len(actions) == 1 and actions[0].dest == "target" and self.passed == 1
        return actions[0] if is_second_word and "/" not in self.values["target"] else None


def _targets(values: Values, start: str) -> list[str]:
    """``pod``, ``pod/NAME`` or, after ``pod``, ``NAME``."""
    before = values.get("target", "")
    word, slash, _ = start.partition("/")
    kind = KINDS.get(kind_of(before or word))
    if not before and not slash:
        return list(KINDS)
    if kind is None:
        return []
    from dra_kube import namespace_of

    namespace = values.get("namespace") or namespace_of(values.get("kubeconfig"), values.get("context"))
    return [f"{'' if before else word + '/'}{name}" for name in _listed(values, kind, namespace)]


def _listed(values: Values, resource: Resource, namespace: str | None = None) -> list[str]:
    """The names of the objects of a kind; none if the server does not answer in time, or says no."""
    from dra_kube import Api, KubeError, connection

    async def ask() -> list[str]:
        async with (
            asyncio.timeout(COMPLETION_SECONDS),
            Api(connection(values.get("kubeconfig"), values.get("context"))) as api,
        ):
            return [version.name for version in (await api.list_versions(resource, namespace))[0]]

    try:
        return asyncio.run(ask())
    except (KubeError, TimeoutError):
        return []


OFFERED: Final = {
    "namespace": NAMESPACES,
    **dict.fromkeys(("node", "what", "drain", "without"), NODES),
    "device_class": DEVICE_CLASSES,
}
"""Arguments whose values are names of objects, with their kind."""


def _offered(argument: str, values: Values, start: str) -> list[str]:
    """The values of an argument that are listed when they are needed."""
    if argument in OFFERED:
        return _listed(values, OFFERED[argument])
    if argument == "target":
        return _targets(values, start)
    if argument == "wanted":  # --for: pod/NAME
        return _targets(values, start if "/" in start else "pod/")
    if argument != "context":
        return []
    from dra_kube import KubeError, contexts

    try:
        return contexts(values.get("kubeconfig"))
    except KubeError:
        return []


if __name__ == "__main__":
    sys.exit(main())
