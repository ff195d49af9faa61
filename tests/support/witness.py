"""What really happened to claims and pods, seen at the API server and checked in every state that it went through.

::

    async with Witness(api) as witness:
        ...
        await witness.caught_up()
        assert witness.findings() == []
        assert await witness.leaks() == []

It records every version of every claim and pod from watches of its own, puts them in the order of their
resourceVersions, which one store counts for both kinds, and walks through the states. Nothing of the operator is used:
its memory may be what is wrong.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from dra_kube import PODS, RESOURCE_CLAIMS, Api, Resource, Unreachable
from objects import is_parked, results_of, users_of
from waiting import meanwhile, until

Object = dict[str, Any]
_ENTRY = "resource.kubernetes.io/pod-claim-name"


@dataclass(frozen=True, slots=True)
class SeenClaim:
    """``devices`` are held alone, ``shares`` together with others; administrators' access holds nothing."""

    uid: str
    key: str
    is_allocated: bool
    devices: frozenset[str]
    shares: frozenset[str]
    reserved_for: frozenset[str]
    """The uids of pods."""
    groups: frozenset[str]
    is_parked: bool
    """It lost a contest: it keeps its devices, and serves no pod."""
    """The names of the PodGroups that it is reserved for."""
    owner: str
    """The uid of the pod it was generated for, if it was."""
    entry: str
    has_finalizer: bool
    is_held: bool
    """An immediate claim keeps its devices without consumers, by a finalizer of its own."""
    is_deleted: bool


@dataclass(frozen=True, slots=True)
class SeenPod:
    """``claims`` leads from the entries of the pod to the claims recorded for them; None is not recorded yet.

    ``group`` is the name of its PodGroup, if it is in one.
    """

    uid: str
    key: str
    node: str
    is_finished: bool
    claims: dict[str, str | None]
    group: str

    @property
    def runs(self) -> bool:
        return bool(self.node) and not self.is_finished


def key_of(obj: Object) -> str:
    return f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"


def seen_claim(obj: Object) -> SeenClaim:
    meta, status = obj["metadata"], obj.get("status") or {}
    held = [result for result in results_of(obj) if not result.get("adminAccess")]
    consumers = users_of(obj)
    owners = [owner["uid"] for owner in meta.get("ownerReferences") or [] if owner["kind"] == "Pod"]
    return SeenClaim(
        uid=meta["uid"],
        key=key_of(obj),
        is_allocated=status.get("allocation") is not None,
        devices=frozenset(_device(result) for result in held if not result.get("shareID")),
        shares=frozenset(_device(result) for result in held if result.get("shareID")),
        reserved_for=frozenset(consumer["uid"] for consumer in consumers if consumer["resource"] == "pods"),
        groups=frozenset(consumer["name"] for consumer in consumers if consumer["resource"] == "podgroups"),
        is_parked=is_parked(obj),
        owner=owners[0] if owners else "",
        entry=(meta.get("annotations") or {}).get(_ENTRY, ""),
        is_held="dra.kopf.dev/immediate" in (meta.get("finalizers") or []),
        has_finalizer="resource.kubernetes.io/delete-protection" in (meta.get("finalizers") or []),
        is_deleted="deletionTimestamp" in meta,
    )


def seen_pod(obj: Object) -> SeenPod:
    meta, spec, status = obj["metadata"], obj["spec"], obj.get("status") or {}
    recorded = {entry["name"]: entry.get("resourceClaimName") for entry in status.get("resourceClaimStatuses") or []}
    claims: dict[str, str | None] = {}
    for entry in spec.get("resourceClaims") or []:
        if entry["name"] in recorded and recorded[entry["name"]] is None:
            continue  # the entry needs no claim
        claims[entry["name"]] = entry.get("resourceClaimName") or recorded.get(entry["name"])
    return SeenPod(
        uid=meta["uid"],
        key=key_of(obj),
        node=spec.get("nodeName") or "",
        is_finished=status.get("phase") in ("Succeeded", "Failed"),
        claims=claims,
        group=(spec.get("schedulingGroup") or {}).get("podGroupName") or "",
    )


def _device(result: Object) -> str:
    return f"{result['driver']}/{result['pool']}/{result['device']}"


# --- What must hold in every state of the cluster ---


@dataclass(slots=True)
class State:
    """Everything that exists at one revision, by uid."""

    claims: dict[str, SeenClaim] = field(default_factory=dict)
    pods: dict[str, SeenPod] = field(default_factory=dict)
    parked: set[str] = field(default_factory=set)
    """Claims that lost a contest at any time: another claim has taken their place."""

    def running(self) -> list[SeenPod]:
        return [pod for pod in self.pods.values() if pod.runs]


def violations(state: State) -> Iterator[str]:
    """One line for each thing that is wrong; the same line as long as it is."""
    state.parked.update(claim.uid for claim in state.claims.values() if claim.is_parked)
    yield from _held_twice(state)
    yield from _bound_without_claims(state)
    yield from _generated_twice(state)
    for claim in state.claims.values():
        if claim.is_allocated and not (claim.has_finalizer or claim.is_held):
            yield f"claim {claim.key} is allocated without finalizer"


def _held_twice(state: State) -> Iterator[str]:
    running = {pod.uid for pod in state.running()}
    holders: dict[str, list[SeenClaim]] = defaultdict(list)
    for claim in state.claims.values():
        for device in claim.devices | claim.shares:
            holders[device].append(claim)
    for device, claims in holders.items():
        if len(claims) < 2 or all(device in claim.shares for claim in claims):
            continue
        used = sum(bool(claim.reserved_for & running) for claim in claims)
        names = " and ".join(sorted(claim.key for claim in claims))
        yield f"device {device} is held by {names}{', of running pods' if used > 1 else ''}"


def _bound_without_claims(state: State) -> Iterator[str]:
    by_key = {claim.key: claim for claim in state.claims.values()}
    for pod in state.running():
        namespace = pod.key.partition("/")[0]
        for entry, name in pod.claims.items():
            claim = by_key.get(f"{namespace}/{name}")
            if claim is None:
                yield f"pod {pod.key} is bound without a claim for {entry}"
            elif not claim.is_allocated:
                yield f"pod {pod.key} is bound, its claim {claim.key} not allocated"
            elif pod.uid not in claim.reserved_for and pod.group not in claim.groups:
                yield f"pod {pod.key} is bound, its claim {claim.key} not reserved for it"


def _generated_twice(state: State) -> Iterator[str]:
    """Of pods that are there: a creation that was under way when its pod went is the garbage collector's to undo."""
    generated: dict[tuple[str, str], list[str]] = defaultdict(list)
    for claim in state.claims.values():
        if claim.owner in state.pods and claim.entry and not claim.is_deleted and claim.uid not in state.parked:
            generated[claim.owner, claim.entry].append(claim.key)
    for (owner, entry), keys in generated.items():
        if len(keys) > 1:
            yield f"pod {state.pods[owner].key} has more than one claim for {entry}: {', '.join(sorted(keys))}"


def leaks(state: State) -> Iterator[str]:
    """What is left over in a cluster that has come to rest."""
    needed = {pod.uid for pod in state.pods.values() if not pod.is_finished}
    for claim in state.claims.values():
        if claim.owner and claim.owner not in needed:
            yield f"claim {claim.key} was generated for a pod that is gone"
        if stale := claim.reserved_for - needed:
            yield f"claim {claim.key} is reserved for pods that are gone: {', '.join(sorted(stale))}"
        if claim.is_allocated and not claim.reserved_for and not claim.groups and not claim.is_held:
            yield f"claim {claim.key} is allocated for no pod"
        if claim.has_finalizer and not claim.is_allocated:
            yield f"claim {claim.key} has the finalizer, but no devices"


# --- All versions of all claims and pods in the order of their revisions, and the states between them ---


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was wrong from one revision on, and until which; None if it still is."""

    what: str
    since: int
    until: int | None


class Version(NamedTuple):
    """An object as it was from this revision on; its last state when it is gone."""

    revision: int
    is_gone: bool
    seen: SeenClaim | SeenPod


class History:
    """Versions may be added in any order, and more than once."""

    def __init__(self) -> None:
        self._versions: dict[tuple[int, str], Version] = {}
        self._last: dict[str, Version] = {}

    def add(self, kind: str, event: str, obj: Object) -> None:
        """An event of a watch, or an item of a list (``ADDED``)."""
        seen = seen_pod(obj) if kind == "Pod" else seen_claim(obj)
        version = Version(int(obj["metadata"]["resourceVersion"]), event == "DELETED", seen)
        self._versions[version.revision, seen.uid] = version
        if seen.uid not in self._last or self._last[seen.uid].revision <= version.revision:
            self._last[seen.uid] = version

    def revisions(self) -> dict[str, int]:
        """The objects that exist after all that was added: the last revisions by uid."""
        return {uid: version.revision for uid, version in self._last.items() if not version.is_gone}

    def states(self) -> Iterator[tuple[int, State]]:
        """Every state with its revision; one object, changed from state to state."""
        state = State()
        for version in sorted(self._versions.values(), key=lambda version: version.revision):
            _enter(state, version)
            yield version.revision, state

    def findings(self) -> list[Finding]:
        """Everything that was wrong at any moment."""
        found: list[Finding] = []
        open_since: dict[str, int] = {}
        for revision, state in self.states():
            wrong = set(violations(state))
            for what in [what for what in open_since if what not in wrong]:
                found.append(Finding(what, open_since.pop(what), revision))
            for what in wrong:
                open_since.setdefault(what, revision)
        return found + [Finding(what, since, None) for what, since in open_since.items()]

    def most(self, count: Callable[[State], int]) -> int:
        return max((count(state) for _, state in self.states()), default=0)

    def leaks(self) -> list[str]:
        state = State()
        for version in self._last.values():
            _enter(state, version)
        return list(leaks(state))


def _enter(state: State, version: Version) -> None:
    seen = version.seen
    if version.is_gone:
        state.pods.pop(seen.uid, None)
        state.claims.pop(seen.uid, None)
    elif isinstance(seen, SeenPod):
        state.pods[seen.uid] = seen
    else:
        state.claims[seen.uid] = seen


# --- Recording: one watch per kind, directly at the API server ---

KINDS = (PODS, RESOURCE_CLAIMS)


class Witness:
    """An async context manager; it sees everything from then on that ``api`` may see. ``told`` hears of each event."""

    def __init__(self, api: Api, told: Callable[[str, Object], None] = lambda event, obj: None) -> None:
        self.history = History()
        self._api, self._told = api, told
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for kind in KINDS:
                items, revision = await self._api.list(kind)
                for item in items:
                    self.history.add(kind.kind, "ADDED", item)
                # One that went blind would see nothing wrong for the wrong reason: its error comes out at the end.
                await stack.enter_async_context(meanwhile(self._follow(kind, revision)))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _follow(self, kind: Resource, revision: str) -> None:
        while True:
            with suppress(Unreachable):  # a busy machine; the next watch brings what was missed
                async for event in self._api.watch(kind, resource_version=revision):
                    revision = event.object["metadata"]["resourceVersion"]
                    if event.type != "BOOKMARK":
                        self.history.add(kind.kind, event.type, event.object)
                        self._told(event.type, event.object)
            await asyncio.sleep(0.05)

    async def caught_up(self) -> None:
        """Wait until the watches have brought everything that the server has now; for a cluster at rest."""

        async def sees_all() -> bool:
            items = [item["metadata"] for kind in KINDS for item in (await self._api.list(kind))[0]]
            return {meta["uid"]: int(meta["resourceVersion"]) for meta in items} == self.history.revisions()

        await until("the witness sees what the server has", sees_all)

    def findings(self) -> list[Finding]:
        return self.history.findings()

    async def leaks(self) -> list[str]:
        """What is left over; for a cluster that has come to rest."""
        await self.caught_up()
        return self.history.leaks()
