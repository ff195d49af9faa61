"""Whom a change concerns, where they may be very many: keys if they are few, otherwise a ``Crowd``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from dra_api.core import Pod

from dra_operator.cache.index import Index
from dra_operator.cache.key import HINTS_AT_ONCE, Crowd, Key, Keys, WakeConditions, Weak, Wide, place_users
from dra_operator.cache.state import ClusterState

T = TypeVar("T")


def spread(crowd: Crowd) -> Keys:
    """Return the hints of the objects if they are few, otherwise the crowd."""
    few = list(islice(crowd.objects(), HINTS_AT_ONCE + 1))
    if len(few) > HINTS_AT_ONCE:
        return (crowd,)
    return tuple(hint for obj in few for hint in crowd.hints(obj))


def parts(things: Iterable[T], most: int | None = None) -> Iterator[list[T]]:
    """Yield the things in lists, each of which is little work: of ``most`` things, or of ``HINTS_AT_ONCE``."""
    rest = iter(things)
    while part := list(islice(rest, HINTS_AT_ONCE if most is None else most)):
        yield part


def by_urgency(lists: Iterable[Iterable[T]], urgency: Callable[[T], tuple[Any, ...]]) -> Iterator[list[T]]:
    """Yield the things in parts, the most urgent first. Before that, yield nothing in an empty part for each list."""
    found: defaultdict[tuple[Any, ...], list[T]] = defaultdict(list)
    for things in lists:
        for thing in things:
            found[urgency(thing)].append(thing)
        yield []
    for _, equals in sorted(found.items()):
        yield from parts(equals)


def pods_to_serve(
    cluster: ClusterState, what: str, index: Index[str], value: str, has_work: Callable[[ClusterState, Pod], bool]
) -> Keys:
    """Those of the pods in an index for which claims may have to be made, recorded or reserved."""

    def hints(key: str) -> tuple[Key, ...]:
        pod = cluster.pods.get(key)
        return (Key("templates", key),) if pod is not None and has_work(cluster, pod) else ()

    # Asked first, here and below: nearly always they are few, and each event comes here.
    if index.count(value) <= HINTS_AT_ONCE:
        return tuple([hint for key in index.keys(value) for hint in hints(key)])
    return (Crowd(("templates", what, value), namespace_of(value), partial(index.keys, value), hints),)


def waiting_users(cluster: ClusterState, what: str, index: Index[str], value: str) -> Keys:
    """Those of the pods in an index that wait."""
    if index.count(value) <= HINTS_AT_ONCE:
        return place_users([pod for pod in index.keys(value) if pod in cluster.waiting])
    return (crowd_of_users(cluster, (what, value), namespace_of(value), partial(index.keys, value)),)


def crowd_of_users(
    cluster: ClusterState, about: tuple[str, ...], namespace: str, pods: Callable[[], Iterable[str]]
) -> Crowd:
    def hints(key: str) -> tuple[Wide, ...]:
        return (Wide(Key("placement", key)),) if key in cluster.waiting else ()

    return Crowd(("placement", *about), namespace, pods, hints)


def waiting_pods(
    cluster: ClusterState,
    about: tuple[object, ...],
    waits: Callable[[str, WakeConditions], bool],
    urgency: Callable[[Key], Key | Weak | Wide],
) -> Keys:
    """Those of all waiting pods that wait for this."""
    waiting = cluster.to_wake
    if len(waiting) <= HINTS_AT_ONCE:
        return tuple([urgency(Key("placement", key)) for key, wake_on in waiting.items() if waits(key, wake_on)])

    def hints(key: str) -> tuple[Key | Weak | Wide, ...]:
        wake_on = waiting.get(key)
        return (urgency(Key("placement", key)),) if wake_on is not None and waits(key, wake_on) else ()

    # A copy: others run between the parts, and pods come and go.
    return (Crowd(about, "", lambda: list(waiting), hints, are_waiting=True),)


def namespace_of(key: str) -> str:
    """Return the namespace of an object; empty if it is in none."""
    namespace, slash, _ = key.partition("/")
    return namespace if slash else ""
