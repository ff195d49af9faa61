"""The lists of the page: pending pods, claims, and classes. They are sorted, searched and cut here.

The browser asks for the lines that it shows, at most ``PAGE_LINES`` at once, so that 100,000 pods cost it no more than
ten. Lines are made of the objects alone and ask no allocator. A pending pod's cause is the message of its condition
``PodScheduled`` until ``View.judge`` has worked out a better one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from dra_api.command_line import kubectl
from dra_api.core import Pod
from dra_api.resource import DeviceClass, ResourceClaim
from dra_api.values import parse_time

from dra_operator.kubectl.claims import claims_of
from dra_operator.kubectl.facts import age
from dra_operator.kubectl.observed import Observed, joined
from dra_operator.kubectl.ui.fleet import FACETS, JSON, Fleet, RecentAnswers, shortened, words_of
from dra_operator.kubectl.why.answer import NOT_LOOKED_AT

PAGE_LINES: Final = 200
"""Lines in one answer."""
OFFERED_REASONS: Final = 50
"""Causes that the page offers to choose from. The list also has pods with other causes."""
SAID_NOTHING: Final = "no scheduler has said anything yet"
NUMBERS_OF_CLASS: Final = ("devices", "used", "free", "trouble", "waiting")
AT_ONCE: Final = "is to be allocated at once, and has no devices yet"


class Listed(NamedTuple):
    """A line. Lists sort by ``keys``, filter by ``kind`` and search in ``text``."""

    cells: JSON
    kind: str
    text: str
    keys: Mapping[str, str | float]


class Wish(NamedTuple):
    """A question to a list. A minus before ``sort`` reverses the order."""

    sort: str = "name"
    find: str = ""
    kind: str = ""


class Lines:
    """The lines of one list. It can be sorted by any of ``orders``. ``kinds`` counts lines by kind."""

    def __init__(self, orders: Iterable[str], lines: Iterable[Listed]) -> None:
        self._orders, self._lines = frozenset(orders), list(lines)
        self.kinds = Counter(line.kind for line in self._lines)
        self._answers: RecentAnswers[Wish, list[Listed]] = RecentAnswers()

    def page(self, wish: Wish, offset: int, limit: int) -> JSON:
        """Return some lines and their number. Raises KeyError for an order that the list does not have."""
        if wish.sort.removeprefix("-") not in self._orders:
            raise KeyError(wish.sort)
        found = self._answers.get(wish, self._found)
        return {
            "all": len(self._lines),
            "total": len(found),
            "rows": [line.cells for line in found[offset : offset + limit]],
            "kinds": self.kinds.most_common(OFFERED_REASONS),
            "more_kinds": max(0, len(self.kinds) - OFFERED_REASONS),
        }

    def _found(self, wish: Wish) -> list[Listed]:
        words, key = words_of(wish.find), wish.sort.removeprefix("-")
        found = [
            line for line in self._lines if wish.kind in ("", line.kind) and all(word in line.text for word in words)
        ]
        return sorted(found, key=lambda line: line.keys[key], reverse=wish.sort.startswith("-"))


@dataclass(frozen=True, slots=True)
class Commands:
    """Commands of kubectl dra for objects on the page.

    ``options`` say which cluster or file it is, in whose name it is read, and with which settings of the operator.

    A command is an empty text for a name that no object can have.
    """

    options: Sequence[tuple[str, str]]

    def why(self, kind: str, key: str) -> str:
        """Return the command that explains a pending pod or claim."""
        namespace, _, name = key.rpartition("/")
        return kubectl("dra", "why", options=self.options, namespace=namespace, names=[kind, name])

    def free(self, class_name: str) -> str:
        """Return the command that lists free devices of a class."""
        return kubectl("dra", "free", f"--class={class_name}", options=self.options, of_names=[class_name])

    def topology(self, node: str) -> str:
        """Return the command that shows the tree of a node."""
        return kubectl("dra", "topology", options=self.options, names=[node])


def waiting_lines(
    seen: Observed, pods: Iterable[Pod], claims: Iterable[ResourceClaim], causes: Mapping[str, tuple[str, bool]]
) -> Lines:
    """Return pods without a node, and claims to be allocated at once. ``causes`` maps pods to causes from ``judge``."""

    def line(kind: str, it: Pod | ResourceClaim, cause: str, clear: bool) -> Listed:
        since = it.metadata.creation_timestamp or ""
        cells: JSON = {
            "kind": kind,
            "key": it.key,
            "age": age(since, seen.taken),
            "cause": shortened(cause),
            "clear": clear,
        }
        keys: dict[str, str | float] = {"name": it.key, "age": _seconds(since, seen.taken), "cause": cells["cause"]}
        return Listed(cells, cells["cause"], f"{it.key}\n{cells['cause']}".lower(), keys)

    def of_pod(pod: Pod) -> Listed:
        cause, clear = causes.get(pod.key, (NOT_LOOKED_AT, False))
        if cause == NOT_LOOKED_AT:
            cause, clear = said_of(pod) or SAID_NOTHING, False
        return line("pod", pod, cause, clear)

    lines = [*map(of_pod, pods), *(line("claim", claim, AT_ONCE, False) for claim in claims)]
    return Lines(("name", "age", "cause"), lines)


def said_of(pod: Pod) -> str:
    """Return the message of the pod's condition ``PodScheduled``, or an empty text."""
    conditions = pod.status.conditions or ()
    return next((it.message or "" for it in conditions if it.type == "PodScheduled" and it.status != "True"), "")


def claim_lines(seen: Observed) -> Lines:
    """Return all claims."""

    def lines() -> Iterable[Listed]:
        for claim in claims_of(seen):
            key, since = f"{claim.namespace}/{claim.name}", claim.created
            cells: JSON = {
                "key": key,
                "state": claim.state,
                "requests": shortened(joined(claim.requests)),
                "devices": len(claim.devices),
                "first": claim.devices[0] if claim.devices else "",
                "pods": shortened(", ".join(claim.pods[:3])),
                "more_pods": max(0, len(claim.pods) - 3),
                "node": claim.node,
                "age": age(since, seen.taken),
            }
            keys: dict[str, str | float] = {
                "name": key,
                "state": claim.state,
                "devices": float(len(claim.devices)),
                "node": claim.node,
                "age": _seconds(since, seen.taken),
            }
            text = "\n".join((key, cells["requests"], *claim.devices[:32], *claim.pods[:32], claim.node))
            yield Listed(cells, claim.state, text.lower(), keys)

    return Lines(("name", "state", "devices", "node", "age"), lines())


def class_lines(seen: Observed, fleet: Fleet, unjudged: frozenset[str], commands: Commands) -> Lines:
    """Return all classes with devices by state and pending claims. Devices of ``unjudged`` classes are not known."""
    at = FACETS.index("class")
    states: dict[str, Counter[str]] = {}
    for row in fleet.rows:
        for name in row.facets[at]:
            states.setdefault(name, Counter())[row.state] += 1
    waiting: Counter[str] = Counter()
    for claim in seen.every(ResourceClaim):
        if claim.status.allocation is None:
            waiting.update(classes_asked(claim))

    def line(class_: DeviceClass) -> Listed:
        name, counts = class_.metadata.name, states.get(class_.metadata.name, Counter())
        used = counts["taken"] + counts["shared"]
        cells: JSON = {
            "name": name,
            "known": name not in unjudged,
            "devices": counts.total(),
            "used": used,
            "free": counts["free"],
            "trouble": counts["tainted"] + counts["unusable"],
            "waiting": waiting[name],
            "resource": class_.spec.extended_resource_name or "",
            "selectors": shortened(" && ".join(expressions_of(class_))),
            "command": commands.free(name),
        }
        numbers = {key: float(cells[key]) for key in ("devices", "used", "free", "trouble", "waiting")}
        return Listed(
            cells, "", f"{name}\n{cells['resource']}\n{cells['selectors']}".lower(), {"name": name, **numbers}
        )

    return Lines(("name", *NUMBERS_OF_CLASS), map(line, seen.every(DeviceClass)))


def expressions_of(class_: DeviceClass) -> list[str]:
    """Return the selectors of a class."""
    return [it.cel.expression for it in class_.spec.selectors or () if it.cel is not None]


def classes_asked(claim: ResourceClaim) -> set[str]:
    """Return the classes that the requests of a claim name."""
    found = set()
    for request in claim.spec.devices.requests or ():
        for one in (request.exactly,) if request.exactly is not None else (request.first_available or ()):
            found.add(one.device_class_name)
    return found


def _seconds(since: str, now: datetime) -> float:
    """Return the age in seconds, or -1 for an unknown time, which sorts after all ages."""
    moment = parse_time(since)
    return (now - moment).total_seconds() if moment is not None else -1.0
