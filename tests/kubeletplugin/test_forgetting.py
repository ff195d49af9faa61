"""What is gone is forgotten: a plugin that runs for months must not grow with each pool and claim."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from dra_kube import Conflict
from dra_kubeletplugin import Pool, Recoverable, Slice, SlicePublisher, device
from dra_kubeletplugin.testing.api import PluginApi
from remembered import by_attribute, kept_by_classes
from waiting import NotObserved, becomes

ROOT = Path(__file__).parents[2]
ROOMS = ("claims", "files", "slices")
"""Of the library: what lives as long as the plugin, and has an entry for what comes and goes."""
BOUNDED = {
    "ClaimRecords._changed": "claims that were written or removed since a claim was given devices last",
    "ClaimRecords._known": "records in the folder, which is read anew",
    "ClaimRecords._unwritten": "records that a full disk kept from being written, until their claim is unprepared",
    **{
        f"Holders.{name}": "records in the folder, by what they say; ``test_many_claims.py`` empties them"
        for name in ("_drawn", "_entries", "_had", "_held", "_owned", "_places", "_undrawn", "_unknown")
    },
    "HostParts._elsewhere": "files of other drivers, as their folders have them; ``test_host_parts.py`` removes some",
    "KeptFiles._paths": "files of prepared claims, until they are unprepared",
    "NextPublish._moments": "one for each of a pool's reasons to look at it again, a minute at most after the pool",
    "NodeCalls._recording": "calls that were answered within the last moment",
    "PreparedClaims._arrived": "claims that were answered, until that is recorded or they are unprepared",
    "PreparedClaims._given_up": "claims whose call was given up, until they are answered or unprepared",
    "PreparedClaims._new": "claims that were never answered, until they are answered or unprepared",
    "SlicePublisher._changes": "pools that were published again with other devices, until they are withdrawn",
    "SlicePublisher._contested": "pools that another writer changes, until they are withdrawn",
    "SlicePublisher._ever_wanted": "names of pools, by which a device of a withdrawn pool is refused",
    "SlicePublisher._tasks": "two",
    "Turns._locks": "weak: claims with a call under way",
    "Turns._running": "calls under way",
}
"""Memories that the story below does not fill, or that outlast a pool, by their bound."""


async def test_each_memory_of_the_library_is_released_with_its_pool(api: PluginApi) -> None:
    """A new memory fails until it is in the story, or in the table with its bound."""
    listed = set().union(*(kept_by_classes(ROOT / "kubeletplugin/dra_kubeletplugin" / room) for room in ROOMS))
    most: dict[str, int] = {}
    errors: list[Recoverable] = []

    def note(publisher: SlicePublisher) -> dict[str, int]:
        found = by_attribute(publisher, (PluginApi, type(api.client)))
        most.update({name: max(size, most.get(name, 0)) for name, size in found.items()})
        return found

    def pools(number: int) -> dict[str, Pool]:
        good = {f"p{number}-{it}": Pool(slices=(Slice(devices=(device("a"), device("b"))),)) for it in range(5)}
        return {**good, f"bad-{number}": Pool(slices=(Slice(devices=(device("a"), device("a"))),))}

    api.store = lambda _: bool(note(publishers[0]))  # type: ignore[assignment]  # while a create is under way
    publishers: list[SlicePublisher] = []
    report = lambda error, message: errors.append(error)  # noqa: E731
    arguments = {"sync_delay": 0.02, "overlay_seconds": 0.5, "on_error": report}
    async with SlicePublisher(api.client, "gpu.example.com", **arguments) as publisher:  # type: ignore[arg-type]
        publishers.append(publisher)
        for number in range(4):
            if number == 1:
                api.faults["create"] = [Conflict(409, "Conflict", "the object has been modified")]
            publisher.publish(pools(number))
            note(publisher)
            await publisher.settled()
            note(publisher)
        assert errors
        publisher.publish({})
        await publisher.settled()
        await becomes(lambda: not api.slices())
        left: dict[str, int] = {}

        def is_forgotten() -> bool:
            left.clear()
            left.update(
                {name: size for name, size in note(publisher).items() if size and name in listed - BOUNDED.keys()}
            )
            return not left

        with suppress(NotObserved):
            await becomes(is_forgotten, 10)
        assert left == {}
    filled = {name for name in listed if most.get(name)}
    assert listed - filled - BOUNDED.keys() == set(), "never filled"
    assert BOUNDED.keys() - listed == set(), "gone"
