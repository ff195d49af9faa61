"""Leader election in fake time: candidates whose clocks, requests and scheduling go wrong in every way."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest
from dra_kube import AlreadyExists, Conflict, Forbidden, NotFound, Resource, Unreachable
from dra_kube.lease import DROP_EARLY_SECONDS, LONGEST_LEASE_SECONDS, Election, LeaseLock, LeaseLost, NotLeading, Timing
from hypothesis import given, settings
from hypothesis import strategies as st
from rounds import fewer

Object = dict[str, Any]
Fault = Literal["lost request", "lost answer", "late", "forbidden"]
TIMING = Timing(lease=10.0, renew=7.0, retry=1.5)


@dataclass
class Server:
    """One Lease with optimistic concurrency; ``fault`` hits the next write, "late" ones land with ``deliver``."""

    stored: Object | None = None
    fault: Fault | None = None
    writes: int = 0
    late: list[Callable[[], object]] = field(default_factory=list)
    revisions: itertools.count[int] = field(default_factory=itertools.count)

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        assert (resource.plural, name, namespace) == ("leases", "the-lease", "ns")
        if self.fault == "lost request":
            self.fault = None
            raise Unreachable("no answer")
        if self.stored is None:
            raise NotFound(404, "NotFound", "no such lease")
        return copy.deepcopy(self.stored)

    async def create(self, resource: Resource, body: Object, namespace: str | None = None) -> Object:
        return self._write(body, self._create)

    async def update(self, resource: Resource, body: Object) -> Object:
        return self._write(body, self._update)

    def deliver(self) -> None:
        """What was under way arrives now."""
        late, self.late = self.late, []
        for write in late:
            with contextlib.suppress(Conflict, NotFound):
                write()

    def _write(self, body: Object, store: Callable[[Object], Object]) -> Object:
        body = copy.deepcopy(body)
        fault, self.fault = self.fault, None
        if fault == "forbidden":
            raise Forbidden(403, "Forbidden", "not allowed")
        if fault == "late":
            self.late.append(lambda: store(body))
        elif fault == "lost answer":
            store(body)
        if fault is not None:
            raise Unreachable("no answer")
        return store(body)

    def _create(self, body: Object) -> Object:
        if self.stored is not None:
            raise AlreadyExists(409, "AlreadyExists", "it is there")
        assert body["metadata"]["name"] == "the-lease"
        return self._store(body)

    def _update(self, body: Object) -> Object:
        if self.stored is None:
            raise NotFound(404, "NotFound", "no such lease")
        if body["metadata"]["resourceVersion"] != self.stored["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", "changed")
        return self._store(body)

    def _store(self, body: Object) -> Object:
        self.writes += 1
        self.stored = {**body, "metadata": {**body["metadata"], "resourceVersion": str(next(self.revisions))}}
        return copy.deepcopy(self.stored)


class World:
    """A server, the true time, and candidates whose clocks are off by any amount."""

    def __init__(self) -> None:
        self.server, self.time = Server(), 1000.0
        self.locks: dict[str, LeaseLock] = {}

    def candidate(
        self, name: str, *, clock_off: float = 0.0, wall_off: float = 0.0, annotations: Mapping[str, str] | None = None
    ) -> LeaseLock:
        def now() -> datetime:
            return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.time + wall_off)

        election = Election(name, TIMING, clock=lambda: self.time + clock_off, now=now)
        self.locks[name] = LeaseLock(self.server, "ns", "the-lease", election, lambda: annotations or {})
        return self.locks[name]

    @property
    def writers(self) -> list[str]:
        """Who may send a write right now."""
        return [name for name, lock in self.locks.items() if allowance(lock) is not None]

    @property
    def annotations(self) -> Object:
        assert self.server.stored is not None
        annotations: Object = self.server.stored["metadata"]["annotations"]
        return annotations

    @property
    def spec(self) -> Object:
        assert self.server.stored is not None
        return dict(self.server.stored["spec"])


def allowance(lock: LeaseLock) -> float | None:
    try:
        return lock.election.allowance()
    except NotLeading:
        return None


@pytest.fixture
def world() -> World:
    return World()


async def test_a_leader_finds_what_the_one_before_has_left_and_may_say_something_else_later(world: World) -> None:
    said = {"of-all": "1"}
    a, b = world.candidate("a", annotations=said), world.candidate("b")
    assert await a.attempt()
    assert a.found == {"of-all": "1"}
    said["of-all"] = "2"
    assert await a.attempt()
    assert a.found == {"of-all": "1"}
    world.time += 100
    await b.attempt()
    world.time += 100
    assert await b.attempt()
    assert b.found == {"of-all": "2"}


async def test_the_lease_has_what_its_leader_says_of_itself_beside_the_annotations_of_others(world: World) -> None:
    a, b = world.candidate("a", annotations={"says": "a"}), world.candidate("b", annotations={"says": "b"})
    world.server.stored = {"metadata": {"resourceVersion": "0", "annotations": {"of-others": "stays"}}}
    assert await a.attempt()
    assert world.annotations == {"of-others": "stays", "says": "a"}
    await a.release()
    assert await b.attempt()
    assert world.annotations == {"of-others": "stays", "says": "b"}


async def test_the_first_candidate_leads_at_once_and_the_second_one_stands_by(world: World) -> None:
    a, b = world.candidate("a"), world.candidate("b")
    assert await a.attempt()
    assert not await b.attempt()
    assert b.election.holder == "a"
    assert world.writers == ["a"]
    assert world.spec["holderIdentity"] == "a"
    assert world.spec["leaseDurationSeconds"] == 10
    assert world.spec["leaseTransitions"] == 0


async def test_a_leader_that_renews_keeps_the_lease_and_when_it_got_it(world: World) -> None:
    a, b = world.candidate("a"), world.candidate("b")
    await a.attempt()
    since = world.spec["acquireTime"]
    for _ in range(20):
        world.time += TIMING.retry
        assert await a.attempt()
        assert not await b.attempt()
    assert (world.spec["acquireTime"], world.spec["leaseTransitions"]) == (since, 0)
    assert world.spec["renewTime"] > since


async def test_renewing_takes_one_request(world: World) -> None:
    a = world.candidate("a")
    await a.attempt()
    world.server.get = None  # type: ignore[assignment,method-assign]  # must not be called
    assert await a.attempt()


async def test_a_dead_leader_is_replaced_once_its_record_stood_still_for_its_duration(world: World) -> None:
    a, b = world.candidate("a"), world.candidate("b")
    await a.attempt()
    world.time += 3
    assert not await b.attempt(), "seen for the first time now"
    world.time += 9.9
    assert not await b.attempt()
    world.time += 0.1
    assert await b.attempt()
    assert world.spec["leaseTransitions"] == 1


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_record_of_68_years_keeps_candidates_for_an_hour(world: World, is_deleted: bool) -> None:
    """Whoever may write Leases may have written it; no operator may be given a longer duration than that."""
    most = 2**31 - 1
    spec = {"holderIdentity": "x", "leaseDurationSeconds": most, "leaseTransitions": most}
    world.server._store({"metadata": {"name": "the-lease"}, "spec": spec})
    b = world.candidate("b")
    assert not await b.attempt()
    world.server.stored = None if is_deleted else world.server.stored
    world.time += LONGEST_LEASE_SECONDS - 1
    assert not await b.attempt()
    world.time += 1
    assert await b.attempt()
    assert 0 <= world.spec["leaseTransitions"] <= most, "the API server takes an int32"


@pytest.mark.parametrize("clock_off", [0.0, 1e6, -900.0])
@pytest.mark.parametrize("wall_off", [0.0, 86400.0, -86400.0], ids=["same date", "a day ahead", "a day behind"])
async def test_clocks_that_show_other_times_change_nothing(world: World, clock_off: float, wall_off: float) -> None:
    a = world.candidate("a")
    b = world.candidate("b", clock_off=clock_off, wall_off=wall_off)
    await a.attempt()
    assert not await b.attempt()
    world.time += 9
    await a.attempt()
    assert not await b.attempt()
    world.time += 9
    assert not await b.attempt()
    world.time += 1
    assert await b.attempt()


async def test_a_date_that_steps_back_while_it_leads_does_not_end_a_leadership(world: World) -> None:
    a, b = world.candidate("a"), world.candidate("b")
    await a.attempt()
    await b.attempt()
    a.election._now = lambda: datetime(1970, 1, 1, tzinfo=UTC)
    world.time += 6
    assert await a.attempt()
    assert not await b.attempt()
    world.time += 6
    assert not await b.attempt()
    assert world.writers == ["a"]


async def test_a_release_lets_the_next_one_in_at_once_and_the_old_one_writes_no_more(world: World) -> None:
    a, b = world.candidate("a"), world.candidate("b")
    await a.attempt()
    await b.attempt()
    await a.release()
    assert world.writers == []
    assert await b.attempt()
    assert world.writers == ["b"]


async def test_a_candidate_that_never_led_releases_nothing(world: World) -> None:
    a, b = world.candidate("a"), world.candidate("b")
    await a.attempt()
    await b.attempt()
    await b.release()
    assert world.spec["holderIdentity"] == "a"


async def test_allowances_end_before_the_time_of_the_lease(world: World) -> None:
    a = world.candidate("a")
    await a.attempt()
    assert a.election.allowance() == TIMING.lease - DROP_EARLY_SECONDS
    world.time += 6.5
    assert a.election.allowance() == TIMING.lease - DROP_EARLY_SECONDS - 6.5
    world.time += 0.5
    with pytest.raises(NotLeading, match=r"last renewed 7\.0 s ago"):
        a.election.allowance()


async def test_the_leaders_time_counts_from_when_it_sent_the_renewal(world: World) -> None:
    a = world.candidate("a")
    update = world.server.update

    async def slow(resource: Resource, body: Object) -> Object:
        world.time += 5
        return await update(resource, body)

    await a.attempt()
    world.server.update = slow  # type: ignore[method-assign]
    await a.attempt()
    assert a.election.allowance() == TIMING.lease - DROP_EARLY_SECONDS - 5


async def test_a_leader_that_was_paused_while_another_took_over_writes_nothing_and_learns_that_it_lost(
    world: World,
) -> None:
    a, b = world.candidate("a"), world.candidate("b")
    await a.attempt()
    await b.attempt()
    world.time += 60
    assert await b.attempt()
    assert world.writers == ["b"], "a does not know yet, but its own clock tells"
    with pytest.raises(LeaseLost, match=r"b holds it now.*60\.0 s ago"):
        await a.attempt()
    assert world.writers == ["b"]
    assert not await a.attempt(), "from here on it is a candidate like any other"


async def test_a_leader_without_a_server_stops_writing_and_continues_if_no_other_led_in_between(world: World) -> None:
    a = world.candidate("a")
    await a.attempt()
    for _ in range(40):
        world.time += TIMING.retry
        world.server.fault = "lost request"
        with pytest.raises(Unreachable):
            await a.attempt()
    assert world.writers == []
    assert await a.attempt(), "its own last version is still the newest"
    assert world.writers == ["a"]
    assert world.spec["leaseTransitions"] == 0


@pytest.mark.parametrize("fault", ["lost answer", "late", "forbidden"])
async def test_a_renewal_without_an_answer_does_not_count_and_does_no_harm(world: World, fault: Fault) -> None:
    a = world.candidate("a")
    await a.attempt()
    world.time += 5
    world.server.fault = fault
    with pytest.raises((Unreachable, Forbidden)):
        await a.attempt()
    world.server.deliver()
    world.time += 2
    assert world.writers == [], "counted from the renewal before"
    assert await a.attempt()
    assert world.writers == ["a"]


async def test_getting_the_lease_without_an_answer_is_no_leadership_until_it_is_confirmed(world: World) -> None:
    a = world.candidate("a")
    world.server.fault = "lost answer"
    with pytest.raises(Unreachable):
        await a.attempt()
    assert world.writers == []
    assert await a.attempt()


async def test_of_two_that_take_over_at_once_one_wins(world: World) -> None:
    dead, b, c = (world.candidate(name) for name in ("dead", "b", "c"))
    await dead.attempt()
    await b.attempt()
    await c.attempt()
    world.time += 10
    world.server.fault = "late"
    with pytest.raises(Unreachable):
        await b.attempt()
    assert await c.attempt()
    world.server.deliver()
    assert not await b.attempt()
    assert world.spec["holderIdentity"] == "c"


async def test_a_deleted_lease_is_written_again_by_its_leader(world: World) -> None:
    a, b = world.candidate("a"), world.candidate("b")
    await a.attempt()
    await b.attempt()
    world.server.stored = None
    world.time += 2
    assert not await b.attempt(), "a may still write"
    assert await a.attempt()
    assert world.spec["holderIdentity"] == "a"


async def test_a_deleted_lease_of_a_dead_leader_is_taken_over_when_its_time_is_over(world: World) -> None:
    a, b = world.candidate("a"), world.candidate("b")
    await a.attempt()
    await b.attempt()
    world.server.stored = None
    world.time += 9.9
    assert not await b.attempt()
    world.time += 0.1
    assert await b.attempt()


async def test_a_leader_whose_lease_was_deleted_after_its_time_was_over_has_lost_it(world: World) -> None:
    a = world.candidate("a")
    await a.attempt()
    world.server.stored = None
    world.time += 60
    with pytest.raises(LeaseLost, match="deleted"):
        await a.attempt()


async def test_what_others_wrote_into_the_lease_survives(world: World) -> None:
    a = world.candidate("a")
    await a.attempt()
    assert world.server.stored is not None
    world.server.stored["metadata"] |= {"resourceVersion": "other", "labels": {"a": "b"}}
    world.server.stored["spec"]["strategy"] = "OldestEmulationVersion"
    assert await a.attempt()
    assert world.server.stored["metadata"]["labels"] == {"a": "b"}
    assert world.spec["strategy"] == "OldestEmulationVersion"


async def test_a_lease_without_content_is_free(world: World) -> None:
    a = world.candidate("a")
    world.server.stored = {"metadata": {"name": "the-lease", "namespace": "ns", "resourceVersion": "1"}}
    assert await a.attempt()
    assert world.spec["leaseTransitions"] == 0


async def test_a_lease_that_is_made_anew_without_content_is_still_its_leaders(world: World) -> None:
    """As when the manifests are deleted and applied again while operators run."""
    a, b = world.candidate("a"), world.candidate("b")
    await a.attempt()
    await b.attempt()
    world.server.stored = {"metadata": {"name": "the-lease", "namespace": "ns", "resourceVersion": "1"}}
    assert not await b.attempt(), "a may still write"
    assert await a.attempt()
    world.server.stored = {"metadata": {"name": "the-lease", "namespace": "ns", "resourceVersion": "2"}, "spec": {}}
    world.time += 10
    assert await b.attempt()


async def test_a_missing_namespace_is_an_error(world: World) -> None:
    async def nowhere(resource: Resource, body: Object, namespace: str | None = None) -> Object:
        raise NotFound(404, "NotFound", 'namespaces "ns" not found')

    world.server.create = nowhere  # type: ignore[method-assign]
    with pytest.raises(NotFound, match="namespaces"):
        await world.candidate("a").attempt()


Step = tuple[str, str, Fault | None]
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("attempt"),
            st.sampled_from("abc"),
            st.sampled_from([None, None, None, "lost request", "lost answer", "late"]),
        ),
        st.tuples(st.just("release"), st.sampled_from("abc"), st.sampled_from([None, "lost answer", "late"])),
        st.tuples(st.sampled_from(["0.7", "1.5", "3", "6.9", "10", "45"]), st.just(""), st.none()),
        st.tuples(st.just("deliver"), st.just(""), st.none()),
    ),
    max_size=60,
)


@settings(max_examples=fewer(400), deadline=None)
@given(STEPS, st.lists(st.floats(-1e5, 1e5), min_size=3, max_size=3))
async def test_whatever_happens_two_never_write_at_the_same_time(steps: list[Step], offsets: list[float]) -> None:
    """Neither may two send, nor may a write that one has sent take effect while another one sends."""
    world = World()
    for name, offset in zip("abc", offsets, strict=True):
        world.candidate(name, clock_off=offset, wall_off=-offset)
    sent: dict[str, float] = {}  # until when a write of the candidate may still take effect
    for step, name, fault in steps:
        if step == "deliver":
            world.server.deliver()
        elif step in ("attempt", "release"):
            world.server.fault = fault
            lock = world.locks[name]
            with contextlib.suppress(Unreachable, LeaseLost, Conflict, NotFound):
                await (lock.attempt() if step == "attempt" else lock.release())
            world.server.fault = None
            if step == "release":
                sent.pop(name, None)  # a candidate releases only when all its writes were answered
        else:
            world.time += float(step)
        writers = world.writers
        assert len(writers) <= 1
        for writer in writers:
            sent[writer] = world.time + world.locks[writer].election.allowance()
        assert [name for name, until in sent.items() if until > world.time and name not in writers and writers] == []
