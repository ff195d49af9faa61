"""What must never be seen in a log, an event, a condition, a metric or a message: what users keep secret.

Every log line of the suite is looked at (``tests/conftest.py``), and what commands print (``command.py``). Secrets are
the tokens that development clusters give out, whatever has the form of a service account's token, and ``MARK``, which
tests put where users put theirs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

from dra_devcluster.apiserver.identity import Tokens

MARK = "hunter2-9f1c3b7e"
_FORM = re.compile(r"\beyJ[\w-]{10,}\.[\w-]{10,}")
_given: set[str] = {MARK}


def secret_in(text: str) -> str | None:
    """The beginning of a secret that the text shows; None if there is none."""
    form = _FORM.search(text)
    found = form[0] if form else next((secret for secret in _given if secret in text), None)
    return None if found is None else f"{found[:6]}... in: {text[:300]}"


class Watch(logging.Handler):
    """Keeps the lines that show a secret."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Look at the line with its traceback."""
        if (shown := secret_in(self.format(record))) is not None:
            self.found.append(shown)


def note_tokens() -> None:
    """Remember, from now on, each token that a development cluster of this process gives out."""
    made, issued = Tokens.credential, Tokens.issue
    begun = Tokens.__init__

    def begin(self: Tokens, *arguments: Any, **named: Any) -> None:
        begun(self, *arguments, **named)
        _given.add(self.admin)

    def noted(give: Callable[..., Any]) -> Callable[..., Any]:
        def given(*arguments: Any, **named: Any) -> Any:
            answer = give(*arguments, **named)
            _given.add(answer if isinstance(answer, str) else answer[0])
            return answer

        return given

    Tokens.__init__ = begin  # type: ignore[method-assign]
    Tokens.credential = noted(made)  # type: ignore[method-assign]
    Tokens.issue = noted(issued)  # type: ignore[method-assign]
