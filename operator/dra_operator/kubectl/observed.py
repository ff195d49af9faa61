"""The cluster as one read found it: every command starts from this value, whether live or from a snapshot.

The value includes the kinds that the viewer may not see, since a table without them looks complete. Every command loads
this module, so it stays light.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import islice
from typing import Any, Final, Protocol, TypeVar

from dra_api.core import Event, Node, Pod
from dra_api.meta import Object
from dra_api.references import claims_of_pod, group_name, pod_is_done
from dra_api.releases import NEWEST, Release
from dra_api.resource import ResourceClaimTemplate
from dra_api.selectors import Selector

from dra_operator.kubectl.answer import ExitCode, Problem
from dra_operator.wording import counted, listed

T = TypeVar("T", bound=Object)


class Reread(Protocol):
    """Read objects again. Raises Problem."""

    def __call__(self, objects: Sequence[T]) -> Sequence[T]:
        """Return each as the server has it, or as it was if it is whole, gone, or not for us."""


@dataclass(frozen=True, repr=False)
class Observed:
    """``objects`` of all kinds that were read; ``namespace`` is the one that people mean if they name none.

    Its repr has none of them: up to Python 3.12, ``asyncio.run`` makes the repr of what it returns, when it gives the
    handler of SIGINT back. That took a second in a large cluster.
    """

    objects: Sequence[Object]
    taken: datetime
    release: Release = NEWEST
    """That of the API server."""
    namespace: str = "default"
    unseen: Mapping[str, str] = field(default_factory=dict)
    """Kinds that could not be read, or only in one namespace, and why; by plural name."""
    malformed: Mapping[str, str] = field(default_factory=dict)
    """Objects that could not be read, as ``KIND namespace/name``, and what is wrong with them."""
    gates: Mapping[str, bool] = field(default_factory=dict)
    """Defaults of feature gates that differ beside this API server from those of its release."""
    is_whole: bool = False
    """All kinds were asked for: of a kind that is not ``unseen``, all objects are here."""
    reread: Reread | None = None
    """Reads objects again of which only the brief form is held; None if all are held whole."""
    pods_cut: int = 0
    """Pods that name more claims than are held."""

    def whole(self, objects: Sequence[T]) -> Sequence[T]:
        """Return the objects as the server has them, or as they are here if they are whole, gone, or not for us.

        The caller asks for a few at a time, and keeps them no longer than it needs them. Raises Problem.
        """
        return self.reread(objects) if self.reread is not None else objects

    @cached_property
    def templates(self) -> Mapping[str, ResourceClaimTemplate]:
        """By ``namespace/name``, each whole."""
        return _Templates(self)

    @cached_property
    def _by_kind(self) -> dict[type[Object], dict[str, Any]]:
        found: dict[type[Object], dict[str, Any]] = {}
        for obj in self.objects:
            found.setdefault(type(obj), {})[obj.key] = obj
        return found

    @cached_property
    def pods_by_group(self) -> Mapping[str, Sequence[Pod]]:
        """The pods of each PodGroup, by ``namespace/name`` of the group."""
        found: dict[str, list[Pod]] = {}
        for pod in self.every(Pod):
            if (name := group_name(pod)) is not None:
                found.setdefault(f"{pod.metadata.namespace}/{name}", []).append(pod)
        return found

    @cached_property
    def pods_by_claim(self) -> Mapping[str, Sequence[Pod]]:
        """The pods that name a claim and have not finished, reserved for them or not, by ``namespace/name`` of it."""
        found: dict[str, list[Pod]] = {}
        for pod in self.every(Pod):
            for use in claims_of_pod(pod) if not pod_is_done(pod) else ():
                found.setdefault(f"{pod.metadata.namespace}/{use.name}", []).append(pod)
        return found

    @cached_property
    def _events(self) -> Mapping[str, Sequence[Event]]:
        found: dict[str, list[Event]] = {}
        for event in self.every(Event):
            found.setdefault(event.involved_object.uid, []).append(event)
        return found

    def events_about(self, uid: str) -> Sequence[Event]:
        """The events about an object. A look at all events for each of 10,000 pods would take minutes."""
        return self._events.get(uid, ())

    def every(self, kind: type[T]) -> Sequence[T]:
        """All objects of a kind."""
        return tuple(self._by_kind.get(kind, {}).values())

    def one(self, kind: type[T], key: str) -> T | None:
        """By ``namespace/name``, or by name for kinds without namespaces."""
        found: T | None = self._by_kind.get(kind, {}).get(key)
        return found


class _Templates(Mapping[str, ResourceClaimTemplate]):
    """The pods of a workload ask for the same one, so the last one is remembered."""

    def __init__(self, seen: Observed) -> None:
        self._seen = seen
        self._known = {it.key: it for it in seen.every(ResourceClaimTemplate)}
        self._last: tuple[str, ResourceClaimTemplate] | None = None

    def __getitem__(self, key: str) -> ResourceClaimTemplate:
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        [found] = self._seen.whole([self._known[key]])
        self._last = key, found
        return found

    def __contains__(self, key: object) -> bool:
        return key in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


Matches = Callable[[Mapping[str, str] | None], bool]


def selecting(text: str | None) -> Matches:
    """Whether labels meet all requirements. Raises Problem."""
    try:
        selector = Selector.parse(text or "")
    except ValueError as error:
        raise Problem(f"--selector: {error}", ExitCode.USAGE) from error
    return lambda labels: selector.matches(labels or {})


def nodes_with(seen: Observed, labels: str | None) -> set[str]:
    """Return the names of the nodes with labels that meet all requirements. Raises Problem."""
    matches = selecting(labels)
    return {node.metadata.name for node in seen.every(Node) if matches(node.metadata.labels)}


SHOWN: Final = ("nodes", "pods", "resourceclaims.resource.k8s.io", "resourceslices.resource.k8s.io")


def notes_on(seen: Observed, kinds: Iterable[str] = SHOWN) -> list[str]:
    """A note for each of these kinds of which something is missing, one for other forbidden kinds, and one for each of
    the first malformed objects."""
    shown = list(kinds)
    notes = [f"incomplete: {kind}: {seen.unseen[kind]}" for kind in shown if kind in seen.unseen]
    notes += forbidden_note(seen, shown)
    if seen.pods_cut:
        who = counted(seen.pods_cut, "waiting pod names", "waiting pods name")
        notes.append(f"incomplete: {who} more claims than are held: some of these claims are shown without them")
    return notes + malformed_notes(seen)


MOST_MALFORMED_OBJECTS: Final = 20
"""Objects that are named: a tenant may have ten thousand of them."""


def malformed_notes(seen: Observed) -> list[str]:
    """A note for each of the first malformed objects, and one for the others."""
    notes = [
        f"left out, malformed: {what}: {why}" for what, why in islice(seen.malformed.items(), MOST_MALFORMED_OBJECTS)
    ]
    left = len(seen.malformed) - len(notes)
    return [*notes, f"left out, malformed: {counted(left, 'more object')}"] if left else notes


def forbidden_note(seen: Observed, told: Iterable[str] = ()) -> list[str]:
    """What the answer does not count because the viewer may not list it: rules of taints, volumes, budgets, ..."""
    names = sorted(kind for kind, why in seen.unseen.items() if "forbidden" in why and kind not in set(told))
    return [f"incomplete: you may not list {listed(names)}"] if names else []


def require(seen: Observed, *kinds: str) -> None:
    """Without these kinds an empty table would be wrong. Raises Problem."""
    whys = [seen.unseen[kind] for kind in kinds if kind in seen.unseen]
    if whys := [why for why in dict.fromkeys(whys) if not why.startswith("read only in")]:
        role = "the ClusterRole dra-viewer in manifests/operator/viewer.yaml allows it: have it bound to you"
        is_forbidden = any("forbidden" in why for why in whys)
        raise Problem("; ".join([*whys, *([role] if is_forbidden else [])]))


def no_node(name: str, known: Iterable[str]) -> Problem:
    """Return the error about a node that does not exist, with similar names, or else some of the names there are."""
    from difflib import get_close_matches  # seldom needed

    names = sorted(filter(None, known))  # a device of several nodes names none
    if similar := get_close_matches(name, names, 3):
        return Problem(f"there is no node {name}; similar: {', '.join(similar)}")
    return Problem(f"there is no node {name}; there are: {listed(names, MOST_NAMES) or 'none'}")


MOST_NAMES: Final = 8


def joined(words: Iterable[str]) -> str:
    """A cell with several values, or kubectl's word for none."""
    return ",".join(words) or "<none>"
