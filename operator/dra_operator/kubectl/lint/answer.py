"""``kubectl dra lint``: what is wrong with manifests before they are applied, for people and for CI."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from dra_api.core import Pod
from dra_api.releases.gates import FeatureGates
from dra_api.resource import DeviceClass, ResourceSlice

from dra_operator.gates import OPERATOR
from dra_operator.kubectl.answer import Answer, ExitCode, Problem
from dra_operator.kubectl.lint.fields import (
    CLAIMS,
    CLASSES,
    TEMPLATES,
    dead_references,
    faulty_selectors,
    invalid_fields,
)
from dra_operator.kubectl.lint.manifest import Finding, Manifest, Severity, Surroundings, read_manifests
from dra_operator.kubectl.lint.meaning import apart, doubtful
from dra_operator.kubectl.lint.supply import Supply, lacking_devices, unusable_pools
from dra_operator.kubectl.observed import Observed, notes_on
from dra_operator.kubectl.pipeline import pipeline
from dra_operator.kubectl.pod_templates import not_read
from dra_operator.kubectl.settings import Settings
from dra_operator.kubectl.why.published import Published
from dra_operator.wording import counted


def findings(seen: Observed, manifests: Sequence[Manifest], settings: Settings, *, has_cluster: bool) -> list[Finding]:
    """What is wrong with the manifests in this cluster, and what each request would find there."""
    own = {(type(one.obj), one.obj.key): one.obj for one in manifests if not isinstance(one.obj, Pod)}
    others = [obj for obj in seen.objects if (type(obj), obj.key) not in own]
    made = pipeline(replace(seen, objects=[*others, *own.values()]), settings)
    gates = FeatureGates.of(made.settings.changed_gates(seen), made.settings.release or seen.release, OPERATOR)
    around = Surroundings(made, manifests, has_cluster)
    slices = made.seen.every(ResourceSlice)
    found = [
        *invalid_fields(manifests, gates),
        *faulty_selectors(around, Published(slices)),
        *dead_references(around),
        *doubtful(around, Published(slices)),
    ]
    if slices:
        refused = frozenset(one.object for one in found if one.severity is Severity.ERROR)
        supply = Supply(made)
        rest = replace(around, refused=refused)
        found += lacking_devices(rest, supply)
        found += unusable_pools(rest)
        found += apart(around, supply)
    return found


DEPENDS: Final = (CLASSES, TEMPLATES, CLAIMS, "resourceslices.resource.k8s.io", "nodes")


def answer(seen: Observed, options: argparse.Namespace) -> Answer:
    """What is wrong, file by file. Raises Problem."""
    if not options.file:
        raise Problem("name the manifests by -f FILE, a directory, or - for standard input", ExitCode.USAGE)
    has_cluster, settings = options.live or options.source is not None, Settings.of(options)
    release = settings.release or (seen.release if has_cluster and seen.is_whole else None)
    manifests, faults, others = read_manifests(options.file, seen.namespace, release)
    found = [*faults, *findings(seen, manifests, settings, has_cluster=has_cluster)]
    found.sort(key=_place)
    counts = Counter(one.severity for one in found)
    value = {"findings": found, "errors": counts[Severity.ERROR], "warnings": counts[Severity.WARNING]}
    names = list(dict.fromkeys(one.object for one in found if one.severity is not Severity.NOTE))
    code = ExitCode.IN_THE_WAY if counts[Severity.ERROR] else ExitCode.CLEAR
    notes = [
        *not_read(others),
        *_unchecked(seen, has_cluster=has_cluster),
        *(notes_on(seen, DEPENDS) if has_cluster else ()),
    ]
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
    elif not seen.every(DeviceClass) and CLASSES not in seen.unseen:
        yield "the cluster has no DeviceClass"
