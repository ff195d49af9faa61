"""What pods usually ask for, as text: requests with weights, in a file that people write, and on the operator's Lease.

A list, in YAML or JSON. ``exactly`` is that of a claim's request; ``cpu`` is what such pods ask for in the mean, if it
counts::

    - weight: 6
      exactly: {deviceClassName: gpu}
      cpu: 500m
    - weight: 1
      exactly: {deviceClassName: gpu, count: 8}
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import yaml
from dra_api import yaml_text
from dra_api.codec import DecodeError, convert, to_dict
from dra_api.defaults import set_defaults
from dra_api.resource import ResourceClaim
from dra_api.validation import summary, validate_resource_claim
from dra_api.values.quantity import parse_quantity
from dra_cel.selector_verdict import selector_check

from dra_operator.allocator import MixClass
from dra_operator.scheduling.state import MILLI_BILLIONTHS

LARGEST_WEIGHT: Final = 1_000_000
LISTED_ENTRIES: Final = 256
LARGEST_MILLI_CPU: Final = 1_000_000
WRITTEN_BYTES: Final = 32 << 10
"""Of a text that is written. The commonest requests are in it, as many as fit."""
_NO_TIME: Final = "2000-01-01T00:00:00Z"
"""No default of a claim depends on the time."""
_CHECK: Final = selector_check(list_attributes=True)


class Asked(NamedTuple):
    """A claim with the one request; how often it comes, compared with the others, and with how much cpu."""

    claim: ResourceClaim
    weight: int
    milli_cpu: int = 0


class MixError(ValueError):
    """The text is no mix. The message names the entry and the field."""


def read_mix(text: str) -> tuple[Asked, ...]:
    """The requests of a text. Raises MixError."""
    try:
        entries = yaml_text.load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise MixError(f"not YAML: {error or type(error).__name__}") from error
    if not isinstance(entries, list) or not 0 < len(entries) <= LISTED_ENTRIES:
        raise MixError(f"expected a list of 1 to {LISTED_ENTRIES} entries, each with weight, exactly and perhaps cpu")
    return tuple([_asked(number, entry) for number, entry in enumerate(entries, 1)])


def _asked(number: int, entry: object) -> Asked:
    if not isinstance(entry, dict) or entry.keys() - {"cpu"} != {"weight", "exactly"}:
        raise MixError(f"entry {number}: expected the fields weight, exactly and perhaps cpu, and no others")
    weight = entry["weight"]
    if not isinstance(weight, int) or isinstance(weight, bool) or not 1 <= weight <= LARGEST_WEIGHT:
        raise MixError(f"entry {number}, weight: expected a whole number from 1 to {LARGEST_WEIGHT}, got {weight!r}")
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"mix-{number}", "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "request", "exactly": entry["exactly"]}]}},
    }
    set_defaults(claim, now=_NO_TIME)
    try:
        made = convert(ResourceClaim, claim)
    except DecodeError as error:
        raise MixError(f"entry {number}: {error}") from error
    if errors := validate_resource_claim(made, check_selector=_CHECK):
        raise MixError(f"entry {number}: {summary(errors)}")
    return Asked(made, weight, _milli_cpu(number, entry.get("cpu", 0)))


def _milli_cpu(number: int, given: object) -> int:
    try:
        milli = parse_quantity(str(given)).nanos // MILLI_BILLIONTHS
    except ValueError as error:
        raise MixError(f"entry {number}, cpu: {error}") from error
    if not 0 <= milli <= LARGEST_MILLI_CPU:
        raise MixError(f"entry {number}, cpu: expected a quantity from 0 to {LARGEST_MILLI_CPU // 1000}, got {given}")
    return milli


def written(counted: Sequence[MixClass]) -> str:
    """The text of what was counted, the commonest first; empty if there is nothing.

    A request that does not fit, or that ``read_mix`` would refuse, is left out alone: a tenant whose claims are such
    costs others nothing.
    """
    entries: list[str] = []
    size = 2
    for it in counted:
        entry = {"weight": min(max(1, it.weight), LARGEST_WEIGHT), "exactly": _request(it)}
        if it.milli_cpu:
            entry["cpu"] = f"{min(it.milli_cpu, LARGEST_MILLI_CPU)}m"
        text = json.dumps(entry)
        if size + len(text) + 2 <= WRITTEN_BYTES and _is_readable(text):
            size += len(text) + 2
            entries.append(text)
    return f"[{', '.join(entries)}]" if entries else ""


def _is_readable(entry: str) -> bool:
    """YAML lacks some of what JSON has, such as characters beyond 16 bits in two halves."""
    try:
        read_mix(f"[{entry}]")
    except MixError:
        return False
    return True


def _request(counted: MixClass) -> dict[str, Any]:
    wanted = counted.alternative
    request: dict[str, Any] = {"deviceClassName": wanted.class_.metadata.name, "count": wanted.count}
    if own := [it.expression for it in wanted.selectors if not it.class_]:
        request["selectors"] = [{"cel": {"expression": it}} for it in own]
    if wanted.tolerations:
        request["tolerations"] = to_dict(wanted.tolerations)
    if wanted.capacity:
        request["capacity"] = {"requests": {name: to_dict(amount) for name, amount in wanted.capacity}}
    return request
