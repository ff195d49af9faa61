"""In whose name requests are made: what a kubeconfig's user says under ``as``, as the headers that client-go sends.

``as`` names the user, ``as-uid``, ``as-groups`` and ``as-user-extra`` what else is taken over. The API server asks
whether the user of the credentials may do so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
