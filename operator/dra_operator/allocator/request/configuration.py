"""Which configuration goes with a choice of alternatives, whatever the devices (allocator.md section 12).

One entry per class configuration with the requests that use the class, in the order in which the classes are met; then
the claim's entries, each once. Up to 1.36 the reference repeats a claim entry for every request it names, which section
15 calls a mistake. From 1.37 on an entry that covers all requests of the claim names none (section 16).
"""

from __future__ import annotations

from collections.abc import Sequence

from dra_api.releases.release import Release
from dra_api.resource import DeviceAllocationConfiguration, ResourceClaim
from msgspec.structs import replace

from .claim_program import Alternative, CompiledRequests

Configuration = tuple[DeviceAllocationConfiguration, ...]


def configured(
    claim: ResourceClaim, compiled: CompiledRequests, picks: tuple[int, ...], release: Release
) -> Configuration:
    """The configuration of a claim, ``picks`` being the chosen alternative of each of its stages."""
    made = compiled.configurations.get(picks)
    if made is None:
        made = compiled.configurations.put(picks, _from_classes(_picked(compiled, picks)))
    if claim.spec.devices.config:
        names = {
            name
            for stage, pick in zip(compiled.stages, picks, strict=True)
            for name in (stage.request, stage.alternatives[pick].request)
        }
        made += _from_claim(claim, names)  # each entry with all requests that it names
    if release < Release.V1_37 or not made:
        return made
    all_names = [
        {stage.request, stage.alternatives[pick].request} for stage, pick in zip(compiled.stages, picks, strict=True)
    ]
    return tuple([replace(entry, requests=None) if _covers(entry, all_names) else entry for entry in made])


def _covers(entry: DeviceAllocationConfiguration, all_names: Sequence[set[str]]) -> bool:
    """Whether the entry names each request, or the subrequest that was chosen for it."""
    return all(names.intersection(entry.requests or ()) for names in all_names)


def _picked(compiled: CompiledRequests, picks: tuple[int, ...]) -> list[Alternative]:
    return [stage.alternatives[pick] for stage, pick in zip(compiled.stages, picks, strict=True)]


def _from_classes(used: Sequence[Alternative]) -> Configuration:
    requests: dict[str, list[str]] = {}
    classes = {}
    for alternative in used:
        name = alternative.class_.metadata.name
        classes[name] = alternative.class_
        requests.setdefault(name, []).append(alternative.request)
    return tuple(
        [
            DeviceAllocationConfiguration(source="FromClass", requests=tuple(requests[name]), opaque=config.opaque)
            for name, class_ in classes.items()
            for config in class_.spec.config or ()
        ]
    )


def _from_claim(claim: ResourceClaim, names: set[str]) -> Configuration:
    """``names`` are those of the requests and of the subrequests that were chosen."""
    return tuple(
        [
            DeviceAllocationConfiguration(source="FromClaim", requests=config.requests or None, opaque=config.opaque)
            for config in claim.spec.devices.config or ()
            if not config.requests or names.intersection(config.requests)
        ]
    )
