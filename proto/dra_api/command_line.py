"""Builds the commands that programs print for people to paste into a shell.

Names come from objects that others wrote, and some of them are no names: an API server admits a consumer of a claim
that is called ``--all``. So a word of a command is quoted, a name stands behind ``--``, where nothing is an option, and
a text that no object can be called is in no command at all: messages show it as data.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from .validation.formats import dns_subdomain, label_key, label_value


def is_name(text: str) -> bool:
    """Return whether an object can be called so: a DNS subdomain, as all names are that commands here take."""
    return not any(dns_subdomain(text))


def kubectl(
    *words: str,
    names: Iterable[str] = (),
    namespace: str = "",
    of_names: Iterable[str] = (),
    labels: Mapping[str, str] | None = None,
    options: Iterable[tuple[str, str]] = (),
    then: Iterable[str] = (),
) -> str:
    """Return a command of kubectl, or an empty text if one of the names or labels cannot be one.

    ``words`` are the verb and options, and ``then`` what follows the names: this project writes both. ``of_names`` are
    names that are part of such a word. ``options`` are long options whose values may be any text: each is one word
    with its value, and may be repeated. ``names``, ``labels`` as ``key=value``, and ``then`` stand behind ``--``.
    """
    named, pairs = list(names), dict(labels or {})
    checked = [*named, *of_names, *([namespace] if namespace else [])]
    if not all(map(is_name, checked)):
        return ""
    if any([*label_key(key), *label_value(value)] for key, value in pairs.items()):
        return ""
    data = [*named, *(f"{key}={value}" for key, value in pairs.items()), *then]
    given = [f"{option}={value}" for option, value in options]
    place = ["-n", namespace] if namespace else []
    return shell("kubectl", *words, *given, *place, *(["--", *data] if data else []))


def shell(*words: str) -> str:
    """Return words as a line that a shell splits into the same words, or an empty text if a word cannot be printed."""
    return shlex.join(words) if all(map(str.isprintable, words)) else ""


def path_word(path: Path | str) -> str:
    """Return a path as a word of a command that cannot be taken for an option."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def with_command(text: str, command: str) -> str:
    """Return the text with the command in parentheses, or alone if there is none."""
    return f"{text} ({command})" if command else text
