"""All versions of all claims and pods in the order of their revisions, and the states between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .objects import Object, SeenClaim, SeenPod, seen_claim, seen_pod
from .rules import State, leaks, violations


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was wrong from one revision on, and until which; None if it still is."""

    what: str
    since: int
    until: int | None


class Version(NamedTuple):
    """An object as it was from this revision on; its last state when it is gone."""

    revision: int
    is_gone: bool
    seen: SeenClaim | SeenPod


class History:
    """Versions may be added in any order, and more than once."""

    def __init__(self) -> None:
        self._versions: dict[tuple[int, str], Version] = {}
        self._last: dict[str, Version] = {}

    def add(self, kind: str, event: str, obj: Object) -> None:
        """An event of a watch, or an item of a list (``ADDED``)."""
        seen = seen_pod(obj) if kind == "Pod" else seen_claim(obj)
        version = Version(int(obj["metadata"]["resourceVersion"]), event == "DELETED", seen)
        self._versions[version.revision, seen.uid] = version
        if seen.uid not in self._last or self._last[seen.uid].revision <= version.revision:
            self._last[seen.uid] = version

    def revisions(self) -> dict[str, int]:
        """The objects that exist after all that was added: the last revisions by uid."""
        return {uid: version.revision for uid, version in self._last.items() if not version.is_gone}

    def states(self) -> Iterator[tuple[int, State]]:
        """Every state with its revision; one object, changed from state to state."""
        state = State()
        for version in sorted(self._versions.values(), key=lambda version: version.revision):
            _enter(state, version)
            yield version.revision, state

    def findings(self) -> list[Finding]:
        """Everything that was wrong at any moment."""
        found: list[Finding] = []
        open_since: dict[str, int] = {}
        for revision, state in self.states():
            wrong = set(violations(state))
            for what in [what for what in open_since if what not in wrong]:
                found.append(Finding(what, open_since.pop(what), revision))
            for what in wrong:
                open_since.setdefault(what, revision)
        return found + [Finding(what, since, None) for what, since in open_since.items()]

    def most(self, count: Callable[[State], int]) -> int:
        """The highest number in any state."""
        return max((count(state) for _, state in self.states()), default=0)

    def leaks(self) -> list[str]:
        """What is left over in the last state."""
        state = State()
        for version in self._last.values():
            _enter(state, version)
        return list(leaks(state))


def _enter(state: State, version: Version) -> None:
    seen = version.seen
    if version.is_gone:
        state.pods.pop(seen.uid, None)
        state.claims.pop(seen.uid, None)
    elif isinstance(seen, SeenPod):
        state.pods[seen.uid] = seen
    else:
        state.claims[seen.uid] = seen
