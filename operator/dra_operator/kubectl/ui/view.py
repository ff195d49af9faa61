"""One read of the cluster, as the page shows it.

The reading thread makes the sources of all facts with the view: devices, classes, pending pods. ``why`` and ``judge``
try changes on the pipeline and undo them, so only one of them runs at a time. Facts do not look at the pipeline and
need no lock. Tenants and drivers write the lists and texts in an answer, so each has a limit.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

import msgspec
from dra_api.codec import to_dict
from dra_api.core import Node, Pod
from dra_api.resource import DeviceClass, ResourceClaim
from dra_api.values import format_time
from dra_ledger import Ledger

from dra_operator.kubectl.facts import DeviceFact, age, devices_of
from dra_operator.kubectl.observed import Observed, notes_on
from dra_operator.kubectl.pipeline import Pausing, pipeline
from dra_operator.kubectl.settings import Settings
from dra_operator.kubectl.topology import Branch, Topology
from dra_operator.kubectl.ui.lines import (
    JSON,
    Commands,
    Fleet,
    Lines,
    NodeQuestion,
    Wish,
    claim_lines,
    class_lines,
    said_of,
    shortened,
    waiting_lines,
)
from dra_operator.kubectl.why.answer import hidden, is_waiting, waiting_groups, why_within_limits
from dra_operator.kubectl.why.pods import why_claim, why_pod
from dra_operator.kubectl.why.request_changes import every_request
from dra_operator.kubectl.why.selector_changes import expressions_of
from dra_operator.scheduling.state import is_immediate
from dra_operator.wording import listed

CLASSES_SECONDS: Final = 3.0
"""Seconds per read for matching devices to classes. The remaining classes have no numbers."""
MOST_NOTE_LINES: Final = 20
TREE_ENTRIES: Final = 300
"""Entries in the tree of a node."""
PAGE_HOLDERS: Final = 50
"""Holders of a device, and pods of a holder."""
MOST_WHY_LINES: Final = 300
PAGE_FIXES: Final = 50


class View:
    """``commands`` are shown beside what they are about. The causes of the view ``before`` count until ``judge``."""

    def __init__(
        self, seen: Observed, settings: Settings, commands: Commands, *, live: bool, before: View | None = None
    ) -> None:
        self._seen, self._commands = seen, commands
        self._made = pipeline(seen, settings)
        ledger = self._made.ledger()
        self._facts = devices_of(seen, ledger)
        self._topology, self._lock = Topology(ledger, self._facts), threading.Lock()
        classes, self._unjudged = _classes(ledger)
        self._fleet = Fleet(self._facts, seen.every(Node), classes)
        self._pods = list(self._waiting_pods())
        self._claims = list(self._immediate_claims())
        self._causes: Mapping[str, tuple[str, bool]] = before._causes if before is not None else {}
        self._is_judged = False
        self._notes = _few(notes_on(seen))
        self.revision = self._shown()
        """Equal for reads that show the same."""
        self.taken = seen.taken
        self.about: JSON = {"revision": self.revision, "taken": format_time(seen.taken), "live": live}

    @property
    def pausing(self) -> Pausing:
        """Called while ``why`` and ``judge`` work."""
        return self._made.pausing

    def overview(self, question: NodeQuestion) -> JSON:
        """Totals, and the nodes that a question means."""
        few = {"waiting": len(self._pods) + len(self._claims), "notes": self._notes}
        return {**self.about, **few, **self._fleet.shown(question)}

    def totals(self) -> Mapping[str, int]:
        """Devices by state, and ``all``."""
        return self._fleet.arranged(NodeQuestion()).totals

    @property
    def waiting_count(self) -> int:
        return len(self._pods) + len(self._claims)

    def tiles(self, question: NodeQuestion, offset: int, limit: int) -> JSON:
        """The devices of some of the nodes that a question means."""
        return {"revision": self.revision, "lines": self._fleet.tiles(question, offset, limit)}

    def device(self, id_: str) -> JSON | None:
        """All facts of a device, but for holders beyond ``PAGE_HOLDERS``."""
        fact = self._by_id.get(id_)
        if fact is None:
            return None
        holders = [
            {
                **to_dict(one),
                "age": age(one.since, self._seen.taken),
                "pods": one.pods[:PAGE_HOLDERS],
                "more_pods": max(0, len(one.pods) - PAGE_HOLDERS),
            }
            for one in fact.holders[:PAGE_HOLDERS]
        ]
        more = max(0, len(fact.holders) - PAGE_HOLDERS)
        return {**to_dict(fact), "id": fact.id, "holders": holders, "more_holders": more}

    @cached_property
    def _by_id(self) -> Mapping[str, DeviceFact]:
        return {fact.id: fact for fact in self._facts}

    @cached_property
    def _by_node(self) -> Mapping[str, list[DeviceFact]]:
        found: dict[str, list[DeviceFact]] = defaultdict(list)
        for fact in self._facts:
            found[fact.node].append(fact)
        return found

    def topology(self, node: str) -> JSON | None:
        """The tree of a node with at most ``TREE_ENTRIES``, its condition, and its labels."""
        here = self._by_node.get(node)
        if not here:
            return None
        with self._lock:  # the topology works on one node at a time
            tree = self._topology.of(node)
        left = [TREE_ENTRIES]
        labels = (found.metadata.labels or {}) if (found := self._seen.one(Node, node)) is not None else {}
        return {
            **_branch(tree, left),
            "left_out": max(0, -left[0]),
            "condition": self._fleet.conditions.get(node, ""),
            "labels": dict(sorted(labels.items())[:PAGE_HOLDERS]),
            "command": self._commands.topology(node),
        }

    def waiting(self, wish: Wish, offset: int, limit: int) -> JSON:
        """Who waits. ``judged`` says whether the causes are worked out. Raises KeyError for an unknown order."""
        is_judged = self._is_judged
        lines = self._judged if is_judged else self._unjudged_lines
        page = lines.page(wish, offset, limit)
        rows = [{**row, "command": self._commands.why(row["kind"], row["key"])} for row in page["rows"]]
        return {"revision": self.revision, "judged": is_judged, **page, "rows": rows}

    @cached_property
    def _unjudged_lines(self) -> Lines:
        return waiting_lines(self._seen, self._pods, self._claims, self._causes)

    @cached_property
    def _judged(self) -> Lines:
        return waiting_lines(self._seen, self._pods, self._claims, self._causes)

    def judge(self) -> JSON:
        """Work out the cause of each pending pod. Viewers without full access keep the messages of conditions.

        The answer says how long that took.
        """
        began = time.monotonic()
        if not self._is_judged:
            groups = [] if hidden(self._seen) else waiting_groups(self._made, self._pods)
            self._causes = {pod: (group.reason, group.is_clear) for group in groups for pod in group.pods}
            self._is_judged = True
        return {"revision": self.revision, "seconds": round(time.monotonic() - began, 3)}

    def claims(self, wish: Wish, offset: int, limit: int) -> JSON:
        """All claims. Raises KeyError for an unknown order."""
        return {"revision": self.revision, **self._claim_lines.page(wish, offset, limit)}

    @cached_property
    def _claim_lines(self) -> Lines:
        return claim_lines(self._seen)

    def classes(self, wish: Wish, offset: int, limit: int) -> JSON:
        """All classes. Raises KeyError for an unknown order."""
        return {"revision": self.revision, **self._class_lines.page(wish, offset, limit)}

    @cached_property
    def _class_lines(self) -> Lines:
        return class_lines(self._seen, self._fleet, self._unjudged, self._commands)

    def device_class(self, name: str) -> JSON | None:
        """A class with its selectors and the claims that wait for it."""
        found = self._seen.one(DeviceClass, name)
        if found is None:
            return None
        waiting = [
            claim.key
            for claim in self._seen.every(ResourceClaim)
            if claim.status.allocation is None
            and any(wanted.device_class_name == name for _, wanted in every_request(claim))
        ]
        return {
            "name": name,
            "resource": found.spec.extended_resource_name or "",
            "selectors": expressions_of(found.spec.selectors),
            "waiting": waiting[:PAGE_HOLDERS],
            "more_waiting": max(0, len(waiting) - PAGE_HOLDERS),
            "command": self._commands.free(name),
        }

    def why(self, kind: str, key: str) -> JSON | None:
        """Lines and proven fixes, as ``kubectl dra why`` has them."""
        found = self._seen.one(Pod, key) if kind == "pod" else self._seen.one(ResourceClaim, key)
        if found is None:
            return None
        if hidden(self._seen):
            report = why_within_limits(self._seen, found)
        else:
            report = why_pod(self._made, found) if isinstance(found, Pod) else why_claim(self._made, found)
        devices = [] if isinstance(found, Pod) else [f"{it.driver}/{it.pool}/{it.device}" for it in found.results]
        return {
            "kind": kind,
            "key": key,
            "clear": report.is_clear,
            "lines": report.lines[:MOST_WHY_LINES],
            "more_lines": max(0, len(report.lines) - MOST_WHY_LINES),
            "fixes": [{"node": fix.node, "text": fix.text} for fix in report.fixes[:PAGE_FIXES]],
            "devices": devices,
            "command": self._commands.why(kind, key),
        }

    def _waiting_pods(self) -> Iterator[Pod]:
        for pod in self._seen.every(Pod):
            if is_waiting(pod) and (pod.spec.resource_claims or self._made.cluster.classes_serving(pod)):
                yield pod

    def _immediate_claims(self) -> Iterator[ResourceClaim]:
        """Claims that are to be allocated at once, without a pod."""
        for claim in self._seen.every(ResourceClaim):
            if is_immediate(claim) and claim.status.allocation is None and not list(self._made.cluster.awaiting(claim)):
                yield claim

    def _shown(self) -> str:
        """Return a hash of everything on the page except ages."""
        classes = self._seen.every(DeviceClass)
        shown: list[object] = [
            [(row.id, row.state, row.claims, row.facets) for row in self._fleet.rows],
            sorted(self._fleet.conditions.items()),
            [(pod.key, said_of(pod)) for pod in self._pods],
            [_shown_of(claim) for claim in self._seen.every(ResourceClaim)],
            [(it.key, it.spec.extended_resource_name, expressions_of(it.spec.selectors)) for it in classes],
            self._notes,
        ]
        return hashlib.sha256(msgspec.json.encode(shown)).hexdigest()[:16]


def _shown_of(claim: ResourceClaim) -> object:
    """Return the fields of a claim that lists and details show, without its age and constant fields."""
    meta, users = claim.metadata, claim.status.reserved_for or ()
    devices = [str(one.device) for one in claim.results]
    return claim.key, meta.uid, meta.deletion_timestamp is None, devices, len(users), [it.uid for it in users[:3]]


def _classes(ledger: Ledger) -> tuple[Mapping[str, tuple[str, ...]], frozenset[str]]:
    """Return the classes that match each device, by its id, and the classes left when time was up.

    A class whose selector does not compile, or fails on a device, does not match the device.
    """
    until = time.monotonic() + CLASSES_SECONDS
    found: dict[str, tuple[str, ...]] = {}
    names = ledger.classes
    for at, name in enumerate(names):
        if time.monotonic() > until:
            return found, frozenset(names[at:])
        for entry in ledger.devices(device_class=name):
            found[entry.id] = (*found.get(entry.id, ()), name)
    return found, frozenset()


def _branch(branch: Branch, left: list[int]) -> JSON:
    """Return the branch with at most ``left[0]`` entries below it. A negative ``left[0]`` counts omitted entries."""
    fact, children = branch.device, []
    for child in branch.children:
        left[0] -= 1
        is_shown = left[0] >= 0
        made = _branch(child, left)
        if is_shown:
            children.append(made)
    return {
        "kind": branch.kind,
        "name": branch.name,
        "detail": branch.detail,
        "id": fact.id if fact is not None else "",
        "state": fact.state if fact is not None else "",
        "claims": listed(holder.claim for holder in fact.holders) if fact is not None else "",
        "children": children,
    }


def _few(notes: Sequence[str]) -> list[str]:
    more = len(notes) - MOST_NOTE_LINES
    return [*map(shortened, notes[:MOST_NOTE_LINES]), *([f"and {more} more notes"] if more > 0 else [])]


class History:
    """Use since the server started, one point for each read: time, devices, those in use, and who waits.

    At ``MOST_POINTS`` points every second one is dropped. ``gap`` marks a point before which nobody looked: the page
    draws no line to it.
    """

    MOST_POINTS: Final = 120
    GAP_SECONDS: Final = 60.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._last = clock, 0.0
        self.points: list[tuple[str, int, int, int, bool]] = []

    def add(self, view: View) -> None:
        """A point for a read."""
        totals, now = view.totals(), self._clock()
        gap = bool(self.points) and now - self._last > self.GAP_SECONDS
        self._last = now
        used = totals.get("taken", 0) + totals.get("shared", 0)
        self.points.append((format_time(view.taken), totals["all"], used, view.waiting_count, gap))
        if len(self.points) > self.MOST_POINTS:
            before = [False, *(point[4] for point in self.points)]
            self.points = [(*point[:4], point[4] or before[at]) for at, point in enumerate(self.points)][::2]
