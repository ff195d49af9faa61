"""All versions of all claims and pods in the order of their revisions, and the states between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .objects import Object, seen_claim, seen_pod
from .rules import State, leaks, violations


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was wrong from one revision on, and until which; None if it still is."""

    what: str
    since: int
    until: int | None


class Version(NamedTuple):
    """An object as it was from this revision on; ``obj`` is its last state when it is ``gone``."""

    revision: int
    kind: str
    is_gone: bool
    obj: Object


class History:
    """Versions may be added in any order, and more than once."""

    def __init__(self) -> None:
        self._versions: dict[tuple[int, str, str], Version] = {}

    def add(self, kind: str, event: str, obj: Object) -> None:
        """An event of a watch, or an item of a list (``ADDED``)."""
        meta = obj["metadata"]
        version = Version(int(meta["resourceVersion"]), kind, event == "DELETED", obj)
        self._versions[version.revision, kind, meta["uid"]] = version

    def present(self, kind: str) -> dict[str, int]:
        """The objects that exist after all that was added: revisions by uid."""
        last: dict[str, Version] = {}
        for version in self._in_order():
            last[version.obj["metadata"]["uid"]] = version
        return {uid: last[uid].revision for uid in last if last[uid].kind == kind and not last[uid].is_gone}

    def states(self) -> Iterator[tuple[int, State]]:
        """Every state with its revision; one object, changed from state to state."""
        state = State()
        for version in self._in_order():
            uid = version.obj["metadata"]["uid"]
            if version.is_gone:
                state.pods.pop(uid, None)
                state.claims.pop(uid, None)
            elif version.kind == "Pod":
                state.pods[uid] = seen_pod(version.obj)
            else:
                state.claims[uid] = seen_claim(version.obj)
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
        for _, state in self.states():  # noqa: B007 - the last one is wanted
            pass
        return list(leaks(state))

    def _in_order(self) -> list[Version]:
        return sorted(self._versions.values(), key=lambda version: version.revision)
