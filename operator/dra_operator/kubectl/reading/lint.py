"""``kubectl dra lint``: reads the manifests, and has them checked against what was observed."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from dra_api.resource import DeviceClass, ResourceSlice

from dra_operator.kubectl.answer import Answer, ExitCode, Problem
from dra_operator.kubectl.lint.findings import findings
from dra_operator.kubectl.lint.manifest import Finding, Severity
from dra_operator.kubectl.observed.observed import Observed
from dra_operator.kubectl.observed.pipeline import Settings
from dra_operator.kubectl.tables.notes import notes_on
from dra_operator.wording import counted

from .manifests import read_manifests

DEPENDS: Final = ("deviceclasses.resource.k8s.io", "resourceslices.resource.k8s.io", "nodes")


def answer(seen: Observed, options: argparse.Namespace) -> Answer:
    """What is wrong, file by file. Raises Problem."""
    if not options.file:
        raise Problem("name the manifests by -f FILE, a directory, or - for standard input", ExitCode.USAGE)
    manifests, faults = read_manifests(options.file, seen.namespace)
    has_cluster = options.live or options.source is not None
    found = [*faults, *findings(seen, manifests, Settings.of(options), has_cluster=has_cluster)]
    found.sort(key=_place)
    counts = Counter(one.severity for one in found)
    value = {"findings": found, "errors": counts[Severity.ERROR], "warnings": counts[Severity.WARNING]}
    names = list(dict.fromkeys(one.object for one in found if one.severity is not Severity.NOTE))
    code = ExitCode.IN_THE_WAY if counts[Severity.ERROR] else ExitCode.CLEAR
    notes = [*_unchecked(seen, has_cluster=has_cluster), *(notes_on(seen, DEPENDS) if has_cluster else ())]
    checked = counted(len({one.title for one in manifests}), "object")
    total = f"{checked}, {counted(counts[Severity.ERROR], 'error')}, {counted(counts[Severity.WARNING], 'warning')}"
    return Answer(lines=[*_lines(found), total], value=value, names=names, notes=notes, code=code)


def _place(one: Finding) -> tuple[str, list[int], str]:
    """In the order of the file."""
    file, _, inside = one.where.partition(": document ")
    return file, [int(number) for number in re.findall(r"\d+", inside)], one.object


def _lines(found: list[Finding]) -> Iterator[str]:
    """The findings of an object below its title."""
    title = None
    for one in found:
        if title != (one.where, one.object):
            title = (one.where, one.object)
            yield f"{one.where}: {one.object}"
        place = f"{one.field}: " if one.field else ""
        yield f"  {one.severity}: {place}{one.message}"


def _unchecked(seen: Observed, *, has_cluster: bool) -> Iterator[str]:
    """A check that was not made looks like one that found nothing."""
    if not has_cluster:
        yield (
            "not checked, for want of a cluster (--live) or a snapshot of one (--from FILE): which devices match, "
            "attributes that no device publishes, classes, claims and templates that do not exist"
        )
    elif not seen.every(ResourceSlice):
        yield "not checked: which devices match, since no ResourceSlice is published, or none may be read"
    elif not seen.every(DeviceClass):
        yield "the cluster has no DeviceClass"
