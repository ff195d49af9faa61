"""Which configuration goes with a choice of alternatives, whatever the devices (allocator.md section 12).

One entry per class configuration with the requests that use the class, in the order in which the classes are met; then
the claim's entries, each once. The reference repeats a claim entry for every request it names, which section 15 calls a
mistake.
"""

from __future__ import annotations

from collections.abc import Sequence

from dra_api.resource import DeviceAllocationConfiguration, ResourceClaim

from .claim_program import Alternative, ClaimProgram

Configuration = tuple[DeviceAllocationConfiguration, ...]


def configured(program: ClaimProgram, picks: tuple[int, ...]) -> tuple[Configuration, ...]:
    """The configuration of each claim, ``picks`` being the chosen alternative of each stage."""
    known = program.configurations.get(picks)
    return known if known is not None else program.configurations.put(picks, _worked_out(program, picks))


def _worked_out(program: ClaimProgram, picks: tuple[int, ...]) -> tuple[Configuration, ...]:
    used: list[list[tuple[str, Alternative]]] = [[] for _ in program.claims]
    for stage, pick in zip(program.stages, picks, strict=True):
        used[stage.claim].append((stage.request, stage.alternatives[pick]))
    return tuple(
        (*_from_classes([alternative for _, alternative in own]), *_from_claim(claim, own))
        for claim, own in zip(program.claims, used, strict=True)
    )


def _from_classes(used: Sequence[Alternative]) -> list[DeviceAllocationConfiguration]:
    requests: dict[str, list[str]] = {}
    classes = {}
    for alternative in used:
        name = alternative.class_.metadata.name
        classes[name] = alternative.class_
        requests.setdefault(name, []).append(alternative.request)
    return [
        DeviceAllocationConfiguration(source="FromClass", requests=tuple(requests[name]), opaque=config.opaque)
        for name, class_ in classes.items()
        for config in class_.spec.config or ()
    ]


def _from_claim(claim: ResourceClaim, used: Sequence[tuple[str, Alternative]]) -> list[DeviceAllocationConfiguration]:
    names = {name for request, alternative in used for name in (request, alternative.request)}
    return [
        DeviceAllocationConfiguration(source="FromClaim", requests=config.requests or None, opaque=config.opaque)
        for config in claim.spec.devices.config or ()
        if not config.requests or names.intersection(config.requests)
    ]
