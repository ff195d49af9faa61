"""The credentials of requests, renewed before they end or when the server refuses them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from dra_kube.errors import ConnectionSettingsError

logger = logging.getLogger(__name__)

LOOK_UP_SECONDS = 1.0  # seconds
RELOAD_SECONDS = 10.0
"""Seconds until refused credentials are loaded once more: a plugin may take its time, and all requests wait for it."""


class Credentials:
    """The header ``Authorization``, as long as it is good.

    It is looked up at most once a second: the package runs its refresh hook each time, which costs as much as a
    request. The hook knows of tokens with a time at which they end. For all others (a ``tokenFile``, a plugin that says
    no time, a kubeconfig that was written anew) everything is loaded again after the server refused them, as client-go
    asks a plugin again. So it is shortly before ``until``, when a plugin said how long its client certificate is good.

    When any of this fails, the last answer counts: a token is renewed long before its end.
    """

    def __init__(
        self, look_up: Callable[[], str | None], load: Callable[[], datetime | None], until: datetime | None
    ) -> None:
        self._look_up, self._load, self._ends = look_up, load, until
        self._answer: str | None = None
        self._has_answered = False
        self._until = 0.0
        self._is_refused = False
        self._may_load_at = 0.0
        self._told: dict[str, str] = {}

    def authorization(self) -> str | None:
        """What to send now. Raises ConnectionSettingsError if it never could be read."""
        now = time.monotonic()
        if now < self._until:
            return self._answer
        if (self._is_refused or self._is_ending()) and now >= self._may_load_at:
            self._is_refused, self._may_load_at = False, now + RELOAD_SECONDS
            try:
                self._ends = self._load()
                self._tell("load")
            except Exception as error:  # the loader passes on errors of files, plugins and clouds
                self._tell("load", error)
        try:
            self._answer, self._has_answered = self._look_up(), True
            self._tell("look up")
        except Exception as error:
            if not self._has_answered:
                raise ConnectionSettingsError(
                    f"cannot read the credentials: {_words(error)}; check their file"
                ) from error
            self._tell("look up", error)
        self._until = now + LOOK_UP_SECONDS
        return self._answer

    def _tell(self, step: str, error: Exception | None = None) -> None:
        """Log what goes wrong, once while it stays the same."""
        words = _words(error) if error is not None else ""
        if words and words != self._told.get(step):
            logger.warning("cannot renew the credentials, keeping the previous ones: %s", words)
        self._told[step] = words

    def _is_ending(self) -> bool:
        return self._ends is not None and (self._ends - datetime.now(UTC)).total_seconds() < RELOAD_SECONDS

    def refused(self, answer: str | None) -> None:
        """The server said 401; unless the answer is outdated, the next look-up loads a new one."""
        self._is_refused = self._is_refused or answer == self._answer


def _words(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
