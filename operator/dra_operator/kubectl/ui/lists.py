"""What the page lists in pages of lines: pods that wait, claims, and classes; each sorted, searched and cut here.

The browser asks for the lines that it shows, at most ``PAGE_LINES`` at once, so that 100,000 pods cost it no more than
ten. Lines are made of the objects alone and ask no allocator. What keeps a pod is first what its scheduler wrote into
the condition ``PodScheduled``; once the causes are worked out (``View.judge``), it is that.
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
"""Of a list, in one answer."""
OFFERED_REASONS: Final = 50
"""That the page offers to choose from; pods with other causes are in the list all the same."""
SAID_NOTHING: Final = "no scheduler has said anything yet"
NUMBERS_OF_CLASS: Final = ("devices", "used", "free", "trouble", "waiting")
AT_ONCE: Final = "is to be allocated at once, and has no devices yet"


class Listed(NamedTuple):
    """A line. ``keys`` are what it is sorted by, ``kind`` what it is filtered by, ``text`` what is searched."""

    cells: JSON
    kind: str
    text: str
    keys: Mapping[str, str | float]


class Wish(NamedTuple):
    """What a page asks of a list. ``sort`` begins with a minus for the other direction."""

    sort: str = "name"
    find: str = ""
    kind: str = ""


class Lines:
    """The lines of one list, which can be had in some ``orders``. ``kinds`` counts them by what filters them."""

    def __init__(self, orders: Iterable[str], lines: Iterable[Listed]) -> None:
        self._orders, self._lines = frozenset(orders), list(lines)
        self.kinds = Counter(line.kind for line in self._lines)
        self._answers: RecentAnswers[Wish, list[Listed]] = RecentAnswers()

    def page(self, wish: Wish, offset: int, limit: int) -> JSON:
        """Some lines, and how many there are. Raises KeyError for an order that the list does not have."""
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
    """Commands of kubectl dra about what the page shows.

    ``options`` say which cluster or file it is, in whose name it is read, and with which settings of the operator.

    A command is an empty text for a name that no object can have.
    """

    options: Sequence[tuple[str, str]]

    def why(self, kind: str, key: str) -> str:
        """What keeps a pod or a claim."""
        namespace, _, name = key.rpartition("/")
        return kubectl("dra", "why", options=self.options, namespace=namespace, names=[kind, name])

    def free(self, class_name: str) -> str:
        """The free devices of a class."""
        return kubectl("dra", "free", f"--class={class_name}", options=self.options, of_names=[class_name])

    def topology(self, node: str) -> str:
        """The tree of a node."""
        return kubectl("dra", "topology", options=self.options, names=[node])


def waiting_lines(
    seen: Observed, pods: Iterable[Pod], claims: Iterable[ResourceClaim], causes: Mapping[str, tuple[str, bool]]
) -> Lines:
    """Pods without a node, and claims to be allocated at once. ``causes`` has what was worked out, by pod."""

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
    """What the scheduler wrote last into the condition of the pod."""
    conditions = pod.status.conditions or ()
    return next((it.message or "" for it in conditions if it.type == "PodScheduled" and it.status != "True"), "")


def claim_lines(seen: Observed) -> Lines:
    """All claims."""

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
    """All classes, with devices by state and claims that wait; ``unjudged`` are those whose devices are not known."""
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
    """The selectors of a class."""
    return [it.cel.expression for it in class_.spec.selectors or () if it.cel is not None]


def classes_asked(claim: ResourceClaim) -> set[str]:
    """The classes that the requests of a claim name."""
    found = set()
    for request in claim.spec.devices.requests or ():
        for one in (request.exactly,) if request.exactly is not None else (request.first_available or ()):
            found.add(one.device_class_name)
    return found


def _seconds(since: str, now: datetime) -> float:
    """For which something has been there; none for a time that is not known, which so comes last of the old ones."""
    moment = parse_time(since)
    return (now - moment).total_seconds() if moment is not None else -1.0
