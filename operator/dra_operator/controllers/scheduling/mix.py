"""What pods usually ask for, so that the allocator can keep devices whole for what comes (``allocator.ordering.mix``).

Each pod is told to the allocator once, when it is tried first; one that asks for more cpu than any node has in all,
when there is such a node. A process that begins continues with what the last one counted, which stands on the Lease. If
nothing stands there, it looks at the pods that have devices, which are what was asked for before, the youngest last.
With a mix that is given, nothing is learned.

As text the mix is a list of requests with weights, in YAML or JSON, in a file that people write and on the operator's
Lease. ``exactly`` is that of a claim's request; ``cpu`` is what such pods ask for in the mean, if it counts::

    - weight: 6
      exactly: {deviceClassName: gpu}
      cpu: 500m
    - weight: 1
      exactly: {deviceClassName: gpu, count: 8}
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from math import inf
from typing import Any, Final, NamedTuple

import yaml
from dra_api import yaml_text
from dra_api.codec import DecodeError, convert, to_dict
from dra_api.conversion import set_defaults
from dra_api.core import Pod
from dra_api.resource import ResourceClaim
from dra_api.validation import summary, validate_resource_claim
from dra_api.values import parse_quantity
from dra_cel.selector import selector_check

from dra_operator.allocator import Allocator, MixClass
from dra_operator.cache import Cluster
from dra_operator.scheduling.state import MILLI_BILLIONTHS, milli_cpu_of

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
    """Return the requests of a text. Raises MixError."""
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
    # True and False are whole numbers to Python, and to nobody else.
    if not isinstance(weight, int) or isinstance(weight, bool) or not 1 <= weight <= LARGEST_WEIGHT:
        raise MixError(f"entry {number}, weight: expected a whole number from 1 to {LARGEST_WEIGHT}, got {weight!r}")
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"mix-{number}", "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "request", "exactly": entry["exactly"]}]}},
    }
    # As the API server would, so that a request in the file reads as it does in a claim.
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
    """Return the text of what was counted, the commonest first; empty if there is nothing.

    A request that does not fit, or that ``read_mix`` would refuse, is left out alone: a tenant whose claims are such
    costs others nothing.
    """
    entries: list[str] = []
    size = 2
    for it in counted:
        entry = {"weight": min(max(1, it.weight), LARGEST_WEIGHT), "exactly": _request(it)}
        if it.milli_cpu:
            entry["cpu"] = f"{min(it.milli_cpu, LARGEST_MILLI_CPU)}m"
        # Text of tenants, such as selectors: JSON quotes what YAML would take for structure.
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


logger = logging.getLogger(__name__)

REMEMBERED_PODS: Final = 10_000
"""Pods that are not told twice."""
EXISTING_PODS: Final = 1_000
"""Pods with devices that are looked at in the beginning."""


class MixMemory:
    """What of the mix does not end with the process. ``given``: it is this, and is not learned.

    ``before`` is what the last process has left. ``text`` is what the next one will find; empty while nothing is known.
    """

    def __init__(self, given: Sequence[Asked] = ()) -> None:
        self.given = given
        self.before: Sequence[Asked] = ()
        self.text = ""

    def recall(self, text: str) -> None:
        """Note that the last process left this. What cannot be read, as from another version, is forgotten."""
        try:
            self.before = read_mix(text) if text else ()
        except MixError as error:
            logger.warning("the mix on the Lease is forgotten: %s", error)


class MixLearner:
    """What the allocator was told."""

    def __init__(self, cluster: Cluster, allocator: Allocator, memory: MixMemory | None = None) -> None:
        self._cluster, self._allocator, self._memory = cluster, allocator, memory or MixMemory()
        self._told: dict[str, None] = {}
        self._has_begun = False
        self._given_at = -1
        """The version of the classes for which the given mix was compiled."""

    def see(self, pod: Pod, claims: Sequence[ResourceClaim]) -> None:
        """Note that the pod is tried with these claims."""
        if self._memory.given:
            self._give()
            return
        if not self._has_begun:
            self._has_begun = True
            self._begin()
        self._tell(pod, claims)

    def known(self) -> Sequence[Asked]:
        """Return the commonest requests, as the last process has left them, or else by the pods with devices."""
        if not self._has_begun:
            self._has_begun = True
            self._begin()
        text = written(self._allocator.learned.counted)
        return read_mix(text) if text else ()

    def _give(self) -> None:
        version = self._allocator.inventory.class_version
        if version != self._given_at:
            self._given_at = version
            self._take(self._memory.given)

    def _begin(self) -> None:
        if self._memory.before:
            self._take(self._memory.before)
            return
        # What runs was asked for: a better guess than nothing, until pods come.
        placed = [pod for pod in self._cluster.pods if pod.spec.node_name and pod.spec.resource_claims]
        # The youngest last, since later lessons count more.
        placed.sort(key=lambda pod: (pod.metadata.creation_timestamp or "", pod.key))
        for pod in placed[-EXISTING_PODS:]:
            self._tell(pod, self._cluster.known_claims(pod))

    def _take(self, asked: Sequence[Asked]) -> None:
        """Classes that are gone are left out."""
        learned = self._allocator.learned
        learned.take([(self._allocator.compile([it.claim]), it.weight, it.milli_cpu) for it in asked])
        self._memory.text = written(learned.counted)

    def _tell(self, pod: Pod, claims: Sequence[ResourceClaim]) -> None:
        if not claims or pod.metadata.uid in self._told:
            return
        milli_cpu = milli_cpu_of(pod)
        # A pod that fits on no node is no demand, however often it is tried.
        if milli_cpu * MILLI_BILLIONTHS > (self._cluster.loaded_nodes().largest_cpu or inf):
            return
        # A pod that is told twice counts twice. Memory that grows with the pods would do more harm.
        if len(self._told) >= REMEMBERED_PODS:
            del self._told[next(iter(self._told))]
        self._told[pod.metadata.uid] = None
        learned = self._allocator.learned
        if learned.learn(self._allocator.compile(claims), milli_cpu):
            self._memory.text = written(learned.counted)
