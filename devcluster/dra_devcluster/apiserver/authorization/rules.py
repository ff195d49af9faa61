"""Rules of roles: what one allows, and whether some rules allow all that others do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import orjson

from .attributes import Attributes

Json = dict[str, Any]
Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a Role or ClusterRole, about resources or about paths (``urls``)."""

    verbs: Words = ()
    groups: Words = ()
    resources: Words = ()
    names: Words = ()
    urls: Words = ()

    @classmethod
    def of(cls, rule: Json) -> Rule:
        """From the rule of an object; absent lists are empty."""
        keys = ("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs")
        return cls(*(tuple(rule.get(key) or ()) for key in keys))

    def allows(self, asked: Attributes) -> bool:
        """Whether the rule answers the question with yes."""
        if not _has(self.verbs, asked.verb):
            return False
        if asked.path:
            return any(_url_covers(url, asked.path) for url in self.urls)
        return (
            _has(self.groups, asked.group)
            and _covers_resource(self.resources, asked.full_resource)
            and (not self.names or asked.name in self.names)
        )

    def covers(self, part: Rule) -> bool:
        """Whether the rule allows all that ``part``, one of `parts`, allows."""
        return (
            _has_all(self.verbs, part.verbs)
            and _has_all(self.groups, part.groups)
            and all(_covers_resource(self.resources, resource) for resource in part.resources)
            and all(any(_url_covers(own, url) for own in self.urls) for url in part.urls)
            and (not self.names or (bool(part.names) and set(part.names) <= set(self.names)))
        )

    def parts(self) -> Iterator[Rule]:
        """The same permissions in rules of one verb, one group, one resource and at most one name each."""
        for verb in self.verbs:
            for group in self.groups:
                for resource in self.resources:
                    whole = Rule((verb,), (group,), (resource,))
                    yield from (replace(whole, names=(name,)) for name in self.names) if self.names else (whole,)
            yield from (Rule((verb,), urls=(url,)) for url in self.urls)

    def __str__(self) -> str:
        words = {
            "APIGroups": self.groups,
            "Resources": self.resources,
            "NonResourceURLs": self.urls,
            "ResourceNames": self.names,
            "Verbs": self.verbs,
        }
        return "{" + ", ".join(f"{key}:[{_quoted(value)}]" for key, value in words.items() if value) + "}"


def missing(wanted: Iterable[Rule], held: Iterable[Rule]) -> list[Rule]:
    """What ``wanted`` allows and ``held`` does not, with the verbs of one resource in one rule."""
    owned = list(held)
    lacking = [part for rule in wanted for part in rule.parts() if not any(own.covers(part) for own in owned)]
    verbs: dict[Rule, Words] = {}
    for part in lacking:
        place = replace(part, verbs=())
        verbs[place] = (*verbs.get(place, ()), *part.verbs)
    return [replace(place, verbs=tuple(dict.fromkeys(found))) for place, found in verbs.items()]


def _has(words: Words, word: str) -> bool:
    return "*" in words or word in words


def _has_all(words: Words, wanted: Words) -> bool:
    return "*" in words or set(wanted) <= set(words)


def _covers_resource(resources: Words, wanted: str) -> bool:
    _, slash, subresource = wanted.partition("/")
    return _has(resources, wanted) or bool(slash and f"*/{subresource}" in resources)


def _url_covers(url: str, path: str) -> bool:
    return url == path or (url.endswith("*") and path.startswith(url.rstrip("*")))


def _quoted(words: Words) -> str:
    """As Go writes a list of strings."""
    return " ".join(orjson.dumps(word).decode() for word in words)
