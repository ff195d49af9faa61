"""The week as it was, by the times of the pods; devices are counted by what their claims ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from dra_api.meta import Object
from dra_api.resource import ResourceClaim, ResourceClaimTemplate

from dra_operator.commands.device_shares import DeviceShares
from dra_operator.commands.object_files import of_kind

from .course import Course, Step, Wait
from .history import History, Life

AS_IT_WAS: Final = "as it was"


class _Change(NamedTuple):
    seconds: float
    number: int
    """Of pods that hold the claims, more or fewer."""
    claims: tuple[tuple[str, int], ...]
    """Keys, with thousandths of devices."""
    waiting: int


def as_it_was(history: History, objects: Sequence[Object], shares: DeviceShares) -> Course:
    """The week that the pods tell of."""
    asked = {it.key: shares.asked(it.spec) for it in of_kind(ResourceClaim, objects)}
    templates = {it.key: shares.asked(it.spec.spec) for it in of_kind(ResourceClaimTemplate, objects)}
    changes = [change for life in history.lives for change in _changes(life, asked, templates)]
    users: Counter[str] = Counter()
    used = waiting = 0
    steps: list[Step] = []
    for change in sorted(changes):
        waiting += change.waiting
        for key, amount in change.claims:
            before = users[key]
            users[key] += change.number
            used += amount * ((users[key] > 0) - (before > 0))
        steps.append(Step(change.seconds, used, waiting))
    waits = [_wait(life, history) for life in history.lives if life.is_of_window]
    return Course(AS_IT_WAS, history.seconds, shares.all, [it for it in steps if it.seconds <= history.seconds], waits)


def _wait(life: Life, history: History) -> Wait:
    until = history.seconds if life.scheduled is None else life.scheduled
    return Wait(max(0.0, until - life.created), is_over=life.scheduled is not None)


def _changes(life: Life, asked: dict[str, int], templates: dict[str, int]) -> Iterator[_Change]:
    claims = tuple(_claims(life, asked, templates))
    yield _Change(max(0.0, life.created), 0, (), 1)
    if life.scheduled is not None:
        yield _Change(max(0.0, life.scheduled), 1, claims, -1)
    if life.ended is not None:
        yield _Change(life.ended, -1, claims, 0)


def _claims(life: Life, asked: dict[str, int], templates: dict[str, int]) -> Iterator[tuple[str, int]]:
    namespace = life.pod.metadata.namespace
    for entry in life.pod.spec.resource_claims or ():
        if entry.resource_claim_name is not None:
            key = f"{namespace}/{entry.resource_claim_name}"
            yield key, asked.get(key, 0)
        else:
            key = f"{namespace}/{entry.resource_claim_template_name}"
            yield f"{life.pod.key} {entry.name}", templates.get(key, 0)
