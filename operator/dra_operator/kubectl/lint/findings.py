"""All checks, one after the other: what an error already tells is not told again by the checks that follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dra_api.core import Pod
from dra_api.releases.gates import FeatureGates
from dra_api.resource import ResourceSlice

from dra_operator.gates import OPERATOR
from dra_operator.kubectl.observed.observed import Observed
from dra_operator.kubectl.observed.pipeline import Settings, pipeline
from dra_operator.kubectl.why.published import Published

from .manifest import Finding, Manifest, Severity, Surroundings
from .references import dead_references
from .selectors import faulty_selectors
from .supply import Supply, lacking_devices
from .validity import invalid_fields


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
    ]
    if slices:
        refused = frozenset(one.object for one in found if one.severity is Severity.ERROR)
        found += lacking_devices(replace(around, refused=refused), Supply(made))
    return found
