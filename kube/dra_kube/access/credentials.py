"""In whose name requests are made: what a kubeconfig's user says under ``as``, as the headers that client-go sends.

``as`` names the user, ``as-uid``, ``as-groups`` and ``as-user-extra`` what else is taken over. The API server asks
whether the user of the credentials may do so.

The credentials of requests, renewed before they end or when the server refuses them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from dra_kube.errors import ConnectionSettingsError

Headers = tuple[tuple[str, str], ...]
"""Names and values; a name may come several times."""

_LEGAL: Final = "!#$&'*+-.^_`|~"
"""What the name of a header may have beside letters and digits; % announces what it may not have."""


def impersonation_of(user: Mapping[str, Any]) -> Headers:
    """The headers for a user of a kubeconfig. Raises ConnectionSettingsError."""
    name, groups = user.get("as") or "", user.get("as-groups") or []
    uid, extra = user.get("as-uid") or "", user.get("as-user-extra") or {}
    lists = [groups, *extra.values()] if isinstance(extra, dict) else [None]
    if not isinstance(name, str) or not isinstance(uid, str) or not all(_is_texts(each) for each in lists):
        raise ConnectionSettingsError(
            "the kubeconfig's user cannot be impersonated: as and as-uid are texts, as-groups is a list of texts, and "
            "as-user-extra has a list of texts for each key; correct them"
        )
    if not name and (groups or uid or extra):
        raise ConnectionSettingsError(
            "the kubeconfig's user has as-uid, as-groups or as-user-extra without as: name the user to impersonate"
        )
    found = tuple(_headers(name, uid, groups, extra)) if name else ()
    if any(ord(letter) < 32 or ord(letter) == 127 for _, value in found for letter in value):
        raise ConnectionSettingsError("the kubeconfig's user impersonates a name with a control character: remove it")
    return found


def _headers(name: str, uid: str, groups: list[str], extra: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    yield "Impersonate-User", name
    if uid:
        yield "Impersonate-Uid", uid
    for group in groups:
        yield "Impersonate-Group", group
    for key, values in extra.items():
        for value in values:
            yield f"Impersonate-Extra-{quote(str(key), safe=_LEGAL)}", value


def _is_texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


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
