"""``kubectl dra fit``: reads the manifests, has their pods placed in what was observed, and tells where they are."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Final

from dra_operator.kubectl.answer import Answer, Column, ExitCode, Problem, Table
from dra_operator.kubectl.observed.observed import Observed
from dra_operator.kubectl.observed.pipeline import Settings
from dra_operator.kubectl.tables.notes import joined, notes_on, require
from dra_operator.kubectl.whatif.fitting import MOST_PLACED_PODS, Assumption, Fitting, fitted, overlay_of
from dra_operator.kubectl.whatif.outcome import PodFact
from dra_operator.kubectl.whatif.wanted import Wanted
from dra_operator.wording import counted, listed

from .wanted_pods import read_wanted

OUT_OF_TIME: Final = "the time limit was reached; kubectl dra fit --time-limit gives more"


def answer(seen: Observed, options: argparse.Namespace) -> Answer:
    """Where the pods would be, and what would be left. Raises Problem."""
    require(seen, "resourceslices.resource.k8s.io", "resourceclaims.resource.k8s.io", "nodes")
    if not options.file:
        raise Problem("name the manifests by -f FILE, a directory, or - for standard input", ExitCode.USAGE)
    wanted = read_wanted(options.file, options.add_nodes, seen.namespace)
    copies = None if options.max else options.count
    if not wanted.size or wanted.size * (copies or 1) > MOST_PLACED_PODS:
        number = wanted.size * (copies or 1)
        raise Problem(
            f"the manifests ask for {counted(number, 'pod')}: expected 1 to {MOST_PLACED_PODS}", ExitCode.USAGE
        )
    overlay = overlay_of(seen, Settings.of(options), wanted)
    assumption = Assumption(options.drain, options.without)
    found = fitted(overlay, wanted, assumption, copies, seconds=options.time_limit)
    code = ExitCode.CLEAR if found.fits and not found.is_cut else ExitCode.IN_THE_WAY
    columns: list[Column[PodFact]] = [
        Column("POD", lambda it: it.pod),
        Column("NODE", lambda it: it.node or "<none>", colour=lambda it: "green" if it.node else "red"),
        Column("DEVICES", lambda it: joined(it.devices)),
    ]
    table = Table(columns, found.pods, lambda it: f"pod/{it.pod.partition('/')[2]}", "No copy fits")
    notes = [*wanted.notes, *notes_on(seen)]
    return Answer(table, list(_lines(found, wanted, copies)), found, notes=notes, code=code)


def _lines(found: Fitting, wanted: Wanted, copies: int | None) -> Iterator[str]:
    if found.drained is not None:
        going = [one for one in found.drained.pods if one.fate in ("moves", "waits")]
        waiting = [PodFact(pod=one.pod, reason=one.reason) for one in going if one.fate == "waits"]
        moved = len(going) - len(waiting)
        yield f"{moved} of {counted(len(going), 'pod')} of node {found.drained.name} would move first"
        yield from _reasons(waiting)
    if found.is_cut:
        size, placed = counted(wanted.size, "pod"), sum(bool(one.node) for one in found.pods)
        if copies is None:
            yield f"at least {counted(found.copies, 'copy', 'copies')} of {size} would fit; {OUT_OF_TIME}"
        else:
            number = counted(wanted.size * copies, "pod")
            yield f"{placed} of {number} would fit, {len(found.pods)} of them tried; {OUT_OF_TIME}"
        yield from _reasons(found.pods)
    elif found.next is not None:
        number = counted(found.copies, "copy", "copies")
        yield f"{number} of {counted(wanted.size, 'pod')} would fit; the next would not:"
        yield from _reasons([found.next])
    elif wanted.size * found.copies == len(found.pods):
        yield f"{'all ' if len(found.pods) > 1 else ''}{counted(len(found.pods), 'pod')} would fit"
    else:
        placed = sum(bool(one.node) for one in found.pods)
        yield f"{placed} of {counted(len(found.pods), 'pod')} would fit"
        yield from _reasons(found.pods)
    if found.left:
        yield f"largest request of a class that would fit then: {', '.join(left.text for left in found.left)}"


def _reasons(pods: Sequence[PodFact]) -> Iterator[str]:
    """Pods without a node, by what is in the way."""
    groups: dict[str, list[str]] = {}
    for one in pods:
        if not one.node:
            groups.setdefault(one.reason, []).append(one.pod)
    for reason, names in groups.items():
        yield f"  {listed(names)}: {reason}"
