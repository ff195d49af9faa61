"""Every place at which a key is put off, and where people see why once that has lasted for five seconds.

``PLACES`` has a line for each call that puts a key off, or the news of an object on its way to the queues: the module
and function, the call, and where it is seen. A new place fails the test until it has a line. What a line says is
played: on a loop whose time is a number, for six seconds.
"""

from __future__ import annotations

import ast
import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Final

import pytest
from controllers_world import FEW, World
from dra_api.resource import FINALIZER
from dra_api.values import format_time
from dra_kube import (
    EVENTS,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Forbidden,
    TooManyRequests,
    Unreachable,
    reflector,
)
from dra_operator import controllers, sources
from dra_operator.allocator import Features
from dra_operator.controllers import OwnControllers, TimeSettings
from dra_operator.controllers.claims import delayed_deletion
from dra_operator.controllers.context import GrowingPauses
from dra_operator.controllers.scheduling import binding, gangs, report
from dra_operator.controllers.scheduling.cycle import SchedulingCycle
from dra_operator.controllers.scheduling.report import NOT_ANSWERED
from dra_operator.scheduling import CycleState, Pause, Planning
from dra_operator.scheduling.state import Gang
from fake_api import Call, Effect, FakeApi
from history_kit.clock import VirtualLoop
from objects import Make, Obj
from rounds import fewer
from volume_lab import storage_class, store, uses, volume_claim

ROOT: Final = Path(controllers.__file__).parent
SOURCES: Final = Path(sources.__file__).parent
REFLECTOR: Final = Path(reflector.__file__)
SECONDS: Final = 6.0
VERBS: Final = frozenset(
    {
        *("look_again", "_look_again", "add_after", "puts_off", "_later", "later", "call_later"),
        *("retry", "postpone", "sleep", "wait", "_hold", "hold", "acquire", "_stand_aside", "has_time", "may_try"),
        *("Decided", "Postponed"),
    }
)
"""Calls by which a key, or a worker that has one, is made to wait; ``Decided`` if it has nothing to carry out."""

PLACES: Final = """
claims/delayed_deletion.py DelayedDeletion.has_time add_after  below 5 s: the garbage collector has 0.8 s
claims/generate.py ClaimGenerator.handle add_after  said: claim-refused
claims/generate.py ClaimMaker.create_in_time puts_off  said: claim-not-made
claims/generate.py NamesBeingWritten.over wait  said: names-unanswered
claims/release.py ParkedClaims.handle _later  said: parked-claim
claims/release.py ParkedClaims._give_back sleep  below 5 s: the grace
claims/release.py ClaimReleaser._protect puts_off  no pod: its claim is in use, by a pod with a node
claims/release.py ClaimReleaser._release has_time  below 5 s: see DelayedDeletion.has_time
control.py Control.look_at_everything sleep  below 5 s: one turn of the loop
control.py Control._look_at_users add_after  said: unseen-allocation
control.py Control._look_at_users call_later  said: unseen-allocation
control.py Control.hold hold  no pod: the controller admission counts these devices too
control.py Control.hold look_again  below 5 s: at once
control.py Control.started wait  no pod: the process starts, which readiness says
control.py Control._after call_later  no pod: invariants are checked
pools.py PoolReporter.handle add_after  no pod: a question about pools is answered
pools.py PoolReporter._answer add_after  no pod: a question about pools is answered
scheduling/planning.py SchedulingContext.look_again add_after  below 5 s: those who call it have lines
scheduling/gang.py GangBinding.write _look_again  said: gang-unseen-allocation
scheduling/gang.py GangBinding._come_back look_again  said: gang-refused
scheduling/gang.py GangBinding._look_again wait  below 5 s: arithmetic of the conflict check
scheduling/gang.py GangBinding._look_again look_again  said: gang-unseen-allocation
scheduling/gangs.py Gangs.not_tried look_again  below 5 s: at once
scheduling/gangs.py Gangs._look_at look_again  below 5 s: at once
scheduling/gangs.py Gangs._replace look_again  below 5 s: MATE_LOOK_SECONDS
scheduling/gangs.py Gangs.begin Decided  said: gang-pauses
scheduling/gangs.py Gangs.begin puts_off  said: gang-pauses
scheduling/gangs.py Gangs.begin look_again  said: gang-joins
scheduling/gangs.py Gangs._ask_later Decided  said: gang-unanswered, gang-joins
scheduling/gangs.py Gangs._await_claims look_again  said: gang-lacks-claims
scheduling/gangs.py Gangs._await_claims Decided  said: gang-lacks-claims
scheduling/gangs.py Gangs._is_recorded_in Decided  said: gang-records
scheduling/gangs.py Gangs._is_unsure look_again  below 5 s: at once
scheduling/gangs.py Gangs.lacks_pods Decided  said: gang-unanswered
scheduling/gangs.py Gangs._go_on Postponed  said: slow-plan
scheduling/gangs.py Gangs._wait Decided  said: gang-unanswered
scheduling/gangs.py Gangs._wait look_again  below 5 s: at once
scheduling/gangs.py Gangs._wait_for_mate look_again  said: gang-unanswered
scheduling/gangs.py Gangs._wait_for_mate Decided  said: gang-unanswered
scheduling/gangs.py Gangs._held puts_off  said: gang-unanswered
scheduling/gangs.py Gangs._look_at_asked look_again  below 5 s: at once
claims/group.py GroupConditions.waits puts_off  said: refused
scheduling/binding.py Permit.write _look_again  said: unseen-allocation
scheduling/binding.py Permit.write wait  below 5 s: arithmetic of the conflict check
scheduling/binding.py Permit.may_bind wait  below 5 s: arithmetic of the conflict check
scheduling/binding.py Permit._look_again wait  below 5 s: arithmetic of the conflict check
scheduling/binding.py Permit._look_again look_again  said: unseen-allocation
scheduling/binding.py Permit.await_volumes wait  said: volumes
scheduling/planning.py InProgress.advance sleep  below 5 s: one turn of the loop
scheduling/preemption.py Preemption.post_filter _look_again  said: refused
scheduling/preemption.py Preemption.for_gang _look_again  said: refused
scheduling/preemption.py Preemption._may_begin _look_again  said: refused
scheduling/preemption.py Preemption._may_begin may_try  said: refused
scheduling/preemption.py Preemption._find_none _look_again  said: refused
scheduling/preemption.py Preemption._nominate _look_again  said: refused
scheduling/victims.py PreemptionTurns.may_try _later  said: refused
scheduling/victims.py PreemptionTurns._call _later  said: refused
scheduling/victims.py PreemptionTurns._later _look_again  said: refused
scheduling/report.py WaitingReport.goes_on_waiting _later  said: unseen-allocation
scheduling/report.py WaitingReport._has_to_pause puts_off  said: other-reason
scheduling/report.py WaitingReport._has_to_pause _later  said: other-reason
scheduling/report.py WaitingReport._look_when_settled _later  said: refused
scheduling/cycle.py SchedulingCycle.decide look_again  said: deferring
scheduling/cycle.py SchedulingCycle._fail sleep  below 5 s: TELL_AGAIN_SECONDS
scheduling/cycle.py SchedulingCycle._taken_up puts_off  said: gang-unanswered
scheduling/cycle.py SchedulingCycle._taken_up Decided  no pod: it has its node, or is not ours
scheduling/cycle.py SchedulingCycle._begin look_again  said: deferring
scheduling/cycle.py SchedulingCycle._begin Decided  said: deferring, another-write, volumes
scheduling/cycle.py SchedulingCycle._await_claims look_again  said: claim-not-made
scheduling/cycle.py SchedulingCycle._await_claims Decided  said: claim-not-made
scheduling/cycle.py SchedulingCycle._go_on look_again  below 5 s: SILENT_SECONDS of patience
scheduling/cycle.py SchedulingCycle._go_on Decided  below 5 s: SILENT_SECONDS of patience
scheduling/cycle.py SchedulingCycle._read_whole look_again  below 5 s: at once
scheduling/cycle.py SchedulingCycle._go_on Postponed  said: slow-plan
scheduling/unreserve.py Unreserve._park look_again  below 5 s: at once
scheduling/unreserve.py Unreserve.confirm look_again  said: allocation-unanswered
scheduling/unreserve.py Unreserve.confirm_bind_step look_again  said: binding-unanswered
scheduling/unreserve.py Unreserve.let_go look_again  below 5 s: at once
scheduling/unreserve.py Unreserve.give_up_held look_again  said: gang-refused
taints.py PodEvictor.handle add_after  no pod: it has its node, and is evicted
taints.py PodEvictor._evict add_after  no pod: it has its node, and is evicted
taints.py RuleReporter.look_later add_after  no pod: a rule reports
taints.py RuleReporter.handle sleep  no pod: a rule reports
taints.py RuleReporter._news add_after  no pod: a rule reports
taints.py _in_parts sleep  no pod: a rule reports
workers.py module Decided  no pod: a constant
workers.py _turns_of_others sleep  below 5 s: 5 ms
workers.py Dispatcher.run acquire  said: no-slot
workers.py Dispatcher.run postpone  said: slow-plan
workers.py Dispatcher._pause sleep  below 5 s: one turn
workers.py Failures.report retry  said: binding-refused-for-now, bug, asked-to-wait
context.py GrowingPauses.puts_off _later  below 5 s: those who call it have lines
late_work.py LateWork.run sleep  below 5 s: a look each second
queue.py WorkQueue.add_after call_later  below 5 s: those who call it have lines
fairness.py Fairness.pop _stand_aside  said: no-share, large-line, templates-line
queue.py WorkQueue.done _hold  said: long-decision, rest
queue.py WorkQueue.retry _hold  said: binding-refused-for-now
queue.py WorkQueue._hold call_later  said: binding-refused-for-now
queue.py WorkQueues.add_after add_after  below 5 s: those who call it have lines
fairness.py Fairness._plan_round call_later  said: refused
fairness.py Fairness._start_round call_later  below 5 s: MOST_GATHERING_SECONDS
fairness.py Fairness._go_on call_later  below 5 s: 200 keys in each millisecond or two
queue.py Crowds.add call_later  below 5 s: at once
queue.py Crowds._go_on call_later  below 5 s: 200 keys in each millisecond or two
workers.py Workers._work sleep  below 5 s: one turn of the loop
sources/audit.py Audit._called_within wait  no pod: an audit is repeated
sources/audit.py Audit._keep sleep  no pod: an audit is repeated
sources/audit.py Audit._keep wait  no pod: an audit is asked for
sources/audit.py Audit._sweep look_again  below 5 s: at once
sources/audit.py Audit._sweep sleep  no pod: an audit is asked for
sources/audit.py Audit.ended_unseen call_later  no pod: a line of the log
sources/audit.py LastLook._is_blind sleep  said: unseen-allocation
sources/audit.py LastLook.run sleep  said: unseen-allocation
sources/audit.py LastLook.run wait  no pod: none waits for a look
sources/malformed.py MalformedObjects._decode_partially _hold  no pod: the devices of a malformed claim count
sources/malformed.py MalformedObjects.corrected _hold  no pod: they count no more
sources/malformed.py MalformedObjects.deleted _hold  no pod: they count no more
sources/watches.py Watches._keep_log sleep  no pod: the log of watches
sources/watches.py Intake._correct look_again  below 5 s: at once
sources/watches.py Loader.look_for_missing sleep  readiness: kinds names what is not served
reflector.py Reflector._hand_on sleep  below 5 s: one turn of the loop
reflector.py Reflector._watch sleep  below 5 s: an answer may make the change known
reflector.py Reflector.run sleep  readiness: watch-KIND, within its gap
"""
SEEN: Final = ("said", "readiness", "below 5 s", "no pod")


def lines() -> Iterator[tuple[str, str, str]]:
    """The place, where it is seen, and by which plays or why not."""
    for line in PLACES.strip().splitlines():
        place, _, rest = line.partition("  ")
        seen, _, why = rest.partition(": ")
        yield place, seen, why


def places() -> Iterator[str]:
    """All calls of ``VERBS`` between an event and a worker, as in ``PLACES``."""

    def within(node: ast.AST, names: tuple[str, ...]) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            is_scope = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if isinstance(child, ast.Call) and (verb := called(child)) in VERBS and puts_off(child, verb):
                yield f"{file} {'.'.join(names) or 'module'} {verb}"
            yield from within(child, (*names, child.name) if is_scope else names)  # type: ignore[attr-defined]

    for path in (*ROOT.rglob("*.py"), *SOURCES.rglob("*.py"), REFLECTOR):
        rooms = {ROOT: ROOT, SOURCES: SOURCES.parent}
        room = next((start for it, start in rooms.items() if path.is_relative_to(it)), REFLECTOR.parent)
        file = path.relative_to(room).as_posix()
        yield from within(ast.parse(path.read_text()), ())


def called(call: ast.Call) -> str:
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def puts_off(call: ast.Call, verb: str) -> bool:
    """Whether it is no decision that has something to carry out."""
    if verb != "Decided":
        return True
    return not call.args or (isinstance(call.args[0], ast.Constant) and call.args[0].value is None)


def test_every_place_at_which_a_key_is_put_off_has_a_line() -> None:
    found, listed = set(places()), [place for place, _, _ in lines()]
    assert sorted(found - set(listed)) == [], "say in PLACES where people see it, and play it"
    assert sorted(set(listed) - found) == [], "there is no such place any more"
    assert len(listed) == len(set(listed))


def test_every_line_names_a_play_or_a_reason() -> None:
    for place, seen, why in lines():
        assert seen in SEEN, place
        assert why, place
        if seen == "said":
            assert set(why.split(", ")) <= {name for name, *_ in PLAYS}, place


def test_a_decision_without_a_follow_up_says_for_what_the_pod_waits() -> None:
    """Where it has no words the pod is silent: only these may be, each for less than five seconds, or for a reason."""
    mute = set()
    for path in sorted((ROOT / "scheduling").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or called(node) != "Decided" or not puts_off(node, "Decided"):
                continue
            if not any(word.arg == "waits_for" for word in node.keywords):
                mute.add(f"{path.name} {ast.unparse(node)}")
    assert mute == {
        "gangs.py Decided()",  # of _await_claims and _is_recorded_in, for which another pod speaks, within its time
        "cycle.py Decided()",  # of _await_claims as well, and for a pod that has its node or is not ours
        "cycle.py Decided(None, attempt.spent)",  # patience
    }


def test_what_counts_as_short_is_short() -> None:
    assert report.SILENT_SECONDS < 5
    assert delayed_deletion.COLLECTOR_SECONDS + delayed_deletion.MOST_EXTRA_SECONDS < 5
    assert binding.UNSEEN_LOOK_SECONDS <= 5
    assert gangs.MATE_LOOK_SECONDS < 5
    times = TimeSettings()
    assert max(times.silence, times.faulty_templates) < 5 >= times.unmade_gang_claims


# --- plays ---


def base() -> World:
    """A node with a device, a claim that is free, and a pod that wants it."""
    world = World(Features())
    world.times = TimeSettings(workers=FEW)
    world.furnish(devices=2)
    world.api.add(RESOURCE_CLAIMS, Make.claim("claim"))
    world.api.add(PODS, pod("pod", [Make.use("claim")]))
    return world


def pod(name: str, claims: list[Obj]) -> Obj:
    made = Make.pod(name, claims=claims)
    made["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    return made


def with_template(world: World) -> World:
    world.api.drop(PODS, "ns/pod")
    world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    world.api.add(PODS, pod("pod", [Make.FROM_TEMPLATE]))
    return world


def gang(world: World, size: int = 2) -> World:
    world.api.drop(PODS, "ns/pod")
    for number in range(size):
        world.api.add(RESOURCE_CLAIMS, Make.claim(f"claim-{number}"))
        member = pod(f"pod-{number}", [Make.use(f"claim-{number}")])
        member["metadata"]["annotations"] = {"dra.kopf.dev/gang": "gang", "dra.kopf.dev/gang-size": "2"}
        world.api.add(PODS, member)
    return world


def failing(world: World, error: Callable[[], Exception], is_hit: Callable[[Call], bool]) -> World:
    world.api.before = lambda call: error() if is_hit(call) else None
    return world


def unanswered(world: World, is_hit: Callable[[Call], bool]) -> World:
    """The requests go out and have no answer, as long as the play lasts."""
    request = world.api.request

    async def held(call: Call, effect: Effect) -> Obj:
        if is_hit(call):
            await asyncio.Event().wait()
        return await request(call, effect)

    world.api.request = held  # type: ignore[method-assign]
    return world


def is_binding(call: Call) -> bool:
    return call.sub == "binding"


def is_of_claims(call: Call) -> bool:
    return call.plural == "resourceclaims" and call.verb in ("patch", "update")


def is_record(call: Call) -> bool:
    return call.plural == "pods" and call.verb == "update" and call.sub == "status"


def busy(retry_after: float | None = None) -> Callable[[], Exception]:
    return lambda: TooManyRequests(429, "TooManyRequests", "the server is busy", retry_after=retry_after)


def refused() -> World:
    world = base()
    world.api.drop(NODES, "node-0")
    return world


def deferring() -> World:
    world = base()
    world.times = TimeSettings(workers=FEW, grace=60.0)
    for number in range(2):
        world.api.add(RESOURCE_CLAIMS, Make.claim(f"theirs-{number}"))
        world.api.add(PODS, Make.pod(f"theirs-{number}", claims=[Make.use(f"theirs-{number}")], schedulerName="other"))
    return world


def unseen(world: World) -> World:
    """Another scheduler may be at work, and a list of the claims is never answered."""
    world.sees_others = False

    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    world.api.list_as = never  # type: ignore[assignment, method-assign]
    return world


def parked() -> World:
    """Our claim has a device that a claim of another scheduler has, too."""
    world = base()
    taken = {"request": "req", "driver": "gpu.example.com", "pool": "node-0", "device": "dev-0"}
    allocation = {"devices": {"results": [taken]}}
    ours = {"resource": "pods", "name": "pod", "uid": world.api[PODS, "ns/pod"]["metadata"]["uid"]}
    world.api.change(
        RESOURCE_CLAIMS, "ns/claim", lambda it: it.update(status={"allocation": allocation, "reservedFor": [ours]})
    )
    world.api.change(RESOURCE_CLAIMS, "ns/claim", lambda it: it["metadata"].update(finalizers=[FINALIZER]))
    world.api.add(RESOURCE_CLAIMS, Make.claim("theirs"))
    theirs = world.api.add(PODS, Make.pod("theirs", [Make.use("theirs")], "node-0", schedulerName="default-scheduler"))
    other = {"resource": "pods", "name": "theirs", "uid": theirs["metadata"]["uid"]}
    world.api.change(
        RESOURCE_CLAIMS, "ns/theirs", lambda it: it.update(status={"allocation": allocation, "reservedFor": [other]})
    )
    world.api.change(RESOURCE_CLAIMS, "ns/theirs", lambda it: it["metadata"].update(finalizers=[FINALIZER]))
    return world


def another_write() -> World:
    world = base()
    world.api.add(PODS, pod("pod-2", [Make.use("claim")]))
    return unanswered(world, is_of_claims)


def devices_not_ready() -> World:
    world = base()
    world.features = Features(binding_conditions=True)
    (published,) = world.api.of(RESOURCE_SLICES)
    for device in published["spec"]["devices"]:
        device |= {"bindingConditions": ["attached"], "bindingFailureConditions": ["broken"]}
    return world


def volumes() -> World:
    world = base()
    store(world.api, storage_class("fast", "csi.example.com"), volume_claim("scratch", class_name="fast"))
    world.api.change(PODS, "ns/pod", lambda it: it["spec"].update(volumes=uses("scratch")))
    return world


def nobody_makes_claims() -> World:
    world = with_template(base())
    world.controllers = OwnControllers(templates=False, release=False, eviction=False)
    return world


def claims_of_others_are_made() -> World:
    world = nobody_makes_claims()
    # Times of creation are whole seconds, rounded down; those of the play's clock are as well.
    a_second_ago = {"creationTimestamp": "2025-12-31T23:59:59Z"}
    world.api.change(PODS, "ns/pod", lambda it: it["metadata"].update(a_second_ago))
    world.others.append(lambda _: world.control.placer.claim_came())
    return world


def claim_refused() -> World:
    return failing(
        with_template(base()),
        lambda: Forbidden(403, "Forbidden", "exceeded quota: devices"),
        lambda call: call.plural == "resourceclaims" and call.verb == "create",
    )


def bug() -> World:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    return at_the_start(base(), lambda placer, _: setattr(placer, "_snapshot", broken))


def at_the_start(world: World, change: Callable[[SchedulingCycle, str], object]) -> World:
    """Change the operator before it decides; the second argument is the UID of the pod."""
    done: list[bool] = []

    def once(api: FakeApi) -> None:
        if not done:
            done.append(True)
            uid = str(next(iter(api.of(PODS)))["metadata"]["uid"])
            change(world.control.placer, uid)

    world.others.append(once)
    return world


def gang_key(placer: SchedulingCycle) -> str:
    found = placer._cluster.gang_of(next(iter(placer._cluster.pods)))
    assert isinstance(found, Gang)
    return found.key


def often(pauses: GrowingPauses, what: str) -> None:
    """It was done so often that it has to pause for a minute."""
    for _ in range(20):
        pauses.did(what)


def slow_plan() -> World:
    def endless(*_: object) -> Iterator[Pause]:
        while True:
            until = time.thread_time() + 0.01  # only work counts, not what others take of the machine
            while time.thread_time() < until:
                pass
            yield Pause.SEARCHING

    return at_the_start(base(), lambda placer, _: setattr(placer, "_planning", endless))


def many(world: World, pods: int, namespace: str = "ns") -> World:
    """So many more pods, whose claims are allocated at once and bound without an answer."""
    for number in range(pods):
        world.api.add(RESOURCE_CLAIMS, Make.claim(f"more-{number}"))
        world.api.add(PODS, pod(f"more-{number}", [Make.use(f"more-{number}")]))
    return world


def no_slot(workers: int = 2) -> World:
    world = World(Features())
    world.times = TimeSettings(workers=FEW | {"placement": workers})
    world.furnish(devices=20)
    return unanswered(many(world, 10), is_binding)


def large_line() -> World:
    """Claims of a hundred kilobytes, requests about which are not answered."""
    world = World(Features())
    world.times = TimeSettings(workers=FEW)
    world.furnish(devices=20)
    bulk = {f"{'x' * 60}{number}": "" for number in range(1200)}
    for number in range(6):
        world.api.add(RESOURCE_CLAIMS, Make.claim(f"claim-{number}", labels=bulk))
        world.api.add(PODS, pod(f"pod-{number}", [Make.use(f"claim-{number}")]))
    return unanswered(world, is_of_claims)


def templates_line() -> World:
    world = with_template(base())
    world.times = TimeSettings(workers=FEW | {"templates": 1})
    world.api.add(PODS, pod("second", [Make.FROM_TEMPLATE]))
    return unanswered(world, lambda call: call.plural == "resourceclaims" and call.verb == "create")


def long_decision(world: World, seconds: float) -> World:
    """The first plan takes so long that its pod rests for longer than it may be silent."""

    def slowly(placer: SchedulingCycle, _: str) -> None:
        planned = placer._planning

        def once(state: CycleState) -> Planning:
            placer._planning = planned  # type: ignore[method-assign]
            until = time.thread_time() + seconds
            while time.thread_time() < until:
                pass
            answer = yield from planned(state)
            return answer

        placer._planning = once  # type: ignore[assignment, method-assign]

    return at_the_start(world, slowly)


def changed_at_rest() -> World:
    """A pod rests because its plan took long, and meanwhile it gets a label."""
    world = long_decision(refused(), 0.3)

    def label(api: FakeApi) -> None:
        it = api[PODS, "ns/pod"]
        if "conditions" in it.get("status", {}) and "labels" not in it["metadata"]:
            api.change(PODS, "ns/pod", lambda it: it["metadata"].update(labels={"new": "yes"}))

    world.others.append(label)
    return world


def gang_lacks_claims() -> World:
    world = gang(base())
    world.controllers = OwnControllers(templates=False, release=False, eviction=False)
    world.api.change(PODS, "ns/pod-1", lambda it: it["spec"].update(resourceClaims=[{"name": "x", **_from_template()}]))
    world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    return world


def gang_records() -> World:
    """Claims of a gang are made, and to record their names in the pods is not answered."""
    world = gang(base())
    world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    for name in ("pod-0", "pod-1"):
        world.api.change(PODS, f"ns/{name}", lambda it: it["spec"].update(resourceClaims=[Make.FROM_TEMPLATE]))
    # Where devices are abundant a pod is planned with the names that are being recorded.
    return at_the_start(
        unanswered(world, is_record), lambda placer, _: placer._context.delayed_deletion.abundance.placed()
    )


def _from_template() -> Obj:
    return {"resourceClaimTemplateName": "tmpl"}


PLAYS: Final[tuple[tuple[str, Callable[[], World], str], ...]] = (
    ("refused", refused, "0/0 nodes"),
    ("deferring", deferring, "lets other schedulers decide first"),
    ("unseen-allocation", lambda: unseen(base()), "waits for a list of all claims"),
    ("another-write", another_write, "to which another write is under way"),
    ("devices-not-ready", devices_not_ready, "waits for binding conditions"),
    ("volumes", volumes, "to be bound on node node-0"),
    ("claim-not-made", nobody_makes_claims, "resourceclaim-controller does not run"),
    ("claim-refused", claim_refused, "exceeded quota: devices"),
    ("names-unanswered", lambda: unanswered(with_template(base()), is_record), NOT_ANSWERED),
    ("binding-refused-for-now", lambda: failing(base(), busy(), is_binding), "cannot bind the pod to node node-0"),
    ("allocation-refused-for-now", lambda: failing(base(), busy(), is_of_claims), "cannot allocate claim ns/claim"),
    ("asked-to-wait", lambda: failing(base(), busy(30), is_of_claims), "cannot allocate claim ns/claim"),
    (
        "allocation-unanswered",
        lambda: failing(base(), lambda: Unreachable("no answer"), is_of_claims),
        "no answer",
    ),
    ("binding-unanswered", lambda: failing(base(), lambda: Unreachable("no answer"), is_binding), "cannot bind"),
    ("bug", bug, "the operator failed unexpectedly"),
    ("no-slot", no_slot, "waits for its turn: requests for other objects of namespace ns are under way"),
    ("no-share", lambda: no_slot(8), "of namespace ns are under way, and have its share of workers"),
    ("large-line", large_line, "waits for its turn: requests about other large claims are under way"),
    ("templates-line", templates_line, "ResourceClaim not created yet: it waits for its turn"),
    ("long-decision", lambda: long_decision(failing(base(), busy(), is_binding), 0.35), "cannot bind the pod"),
    ("rest", changed_at_rest, "waits for its next attempt: the last one took long"),
    ("gang-unanswered", lambda: unanswered(gang(base()), is_of_claims), NOT_ANSWERED),
    ("gang-refused", lambda: failing(gang(base()), busy(), is_of_claims), "cannot allocate claim"),
    ("parked-claim", parked, "claim ns/claim keeps gpu.example.com/node-0/dev-0, which another scheduler gave"),
    ("gang-unseen-allocation", lambda: unseen(gang(base())), "waits for a list of all claims"),
    ("gang-joins", lambda: unseen(gang(base(), 3)), "waits until the pods of gang gang that have devices are bound"),
    (
        "gang-pauses",
        lambda: at_the_start(gang(base()), lambda placer, _: often(placer._context.pauses, gang_key(placer))),
        "gave devices back again and again",
    ),
    (
        "other-reason",
        lambda: at_the_start(refused(), lambda placer, uid: often(placer.report._pauses, uid)),
        "0/0 nodes",
    ),
    ("slow-plan", slow_plan, "still looking for a node"),
    ("gang-lacks-claims", gang_lacks_claims, "waits for pod pod-1 of its gang"),
    ("gang-records", gang_records, "waits until its claims are recorded"),
)
"""Name, the cluster, and the words that the condition of a pod says, or an event about it."""


def said(world: World) -> str:
    conditions = [
        str(it["message"])
        for one in world.api.of(PODS)
        for it in (one.get("status") or {}).get("conditions") or []
        if it["type"] == "PodScheduled" and it["status"] == "False"
    ]
    events = [it["message"] for it in world.api.of(EVENTS) if it["involvedObject"]["kind"] == "Pod"]
    return "\n".join((*conditions, *events))


async def played(world: World, words: str) -> None:
    """Up to six seconds of the operator's life, until a pod says this, with watches that bring everything at once."""
    began = datetime(2026, 1, 1, tzinfo=UTC)
    world.start()
    async with world.running():
        while (now := asyncio.get_running_loop().time()) < SECONDS:
            world.now = format_time(began + timedelta(seconds=int(now)))
            world.bring_events()
            if words in said(world):
                return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(("name", "furnished", "words"), PLAYS, ids=[name for name, *_ in PLAYS])
def test_what_lasts_is_seen(name: str, furnished: Callable[[], World], words: str) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        world = furnished()
        runner.run(played(world, words))
    assert words in said(world)
    assert not world.node_of("pod") if (PODS, "ns", "pod") in world.api.objects else True


@pytest.mark.parametrize("hours", [0, 1])
def test_a_pod_that_comes_waits_for_its_turn_as_long_in_silence_whatever_the_clock_was_set_to(hours: int) -> None:
    """The machine's clock is ahead of the API server's, so that each pod seems to be old when it comes."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(_first_words(large_line(), timedelta(hours=hours)))


async def _first_words(world: World, ahead: timedelta) -> None:
    began, loop = datetime(2026, 1, 1, tzinfo=UTC), asyncio.get_running_loop()
    pods = world.api.of(PODS)
    for made in pods:
        world.api.drop(PODS, f"ns/{made['metadata']['name']}")
    world.start()
    for made in pods:
        made["metadata"]["creationTimestamp"] = format_time(began)
        world.api.add(PODS, made)
    async with world.running():
        while "waits for its turn: requests about other large claims" not in said(world):
            world.now = format_time(began + ahead + timedelta(seconds=int(loop.time())))
            world.bring_events()
            await asyncio.sleep(0.05)
    assert 4 <= loop.time() <= 6


@pytest.mark.parametrize(
    ("furnished", "warning"),
    [
        (lambda: unanswered(base(), is_binding), "work on a key is not done"),
        (no_slot, "keys wait for their turn"),
        (changed_at_rest, "keys rest after long decisions"),
        (claims_of_others_are_made, "pods wait for claims, others get theirs meanwhile"),
    ],
)
def test_the_log_warns_of_what_holds_many_pods(
    furnished: Callable[[], World], warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "dra_operator")
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(played(furnished(), "never said"))
    assert len([it for it in caplog.records if warning in it.getMessage()]) == 1, "once a minute"


def test_each_pod_of_a_gang_says_that_the_requests_for_it_are_not_answered() -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        world = unanswered(gang(base()), is_of_claims)
        runner.run(played(world, "never said"))
    told = {it["involvedObject"]["name"] for it in world.api.of(EVENTS) if it["message"] == NOT_ANSWERED}
    assert told == {"pod-0", "pod-1"}


async def test_a_pod_that_waits_for_two_things_says_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two writes of its condition at once would end in any order, and the end of the second one in an error."""
    world = refused()
    control = world.start()
    late, waiting = control._late_work, world.cluster.pods.get("ns/pod")
    monkeypatch.setattr(late, "_late_pods", lambda: iter([(waiting, "waits for one"), (waiting, "waits for another")]))
    assert [text for _, text in late.look()] == ["waits for one"]


def test_pods_that_are_late_are_told_a_few_at_a_time() -> None:
    """A server that is slow must not get a write more for each of many pods."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        world = World(Features())
        world.times = TimeSettings(workers=FEW | {"placement": 2})
        world.furnish(devices=60)
        runner.run(played(unanswered(many(world, 50), is_binding), "never said"))
    told = [it for it in world.api.of(PODS) if (it.get("status") or {}).get("conditions")]
    assert 10 <= len(told) <= 30, "ten in each of three looks"


async def courses(seed: int) -> list[str]:
    """What was wrong in half a minute in which 30 % of all writes fail: pods that waited without a word."""
    chance, wrong = Random(seed), []
    world = World(Features())
    world.times = TimeSettings(workers=FEW)
    world.furnish(devices=20)

    def fault(call: Call) -> Exception | None:
        is_write = call.verb in ("create", "update", "patch") and call.plural != "events"
        number = chance.random() if is_write else 1.0
        if number < 0.2:
            return TooManyRequests(429, "TooManyRequests", "the server is busy")
        return Unreachable("no answer") if number < 0.3 else None

    world.api.before = fault
    many(world, 10)
    queue = world.start().queues.of("placement")
    async with world.running():
        while (now := asyncio.get_running_loop().time()) < 30:
            world.bring_events()
            await asyncio.sleep(0.1)
            longest = max((timer.when() - now for timer in queue._held.values()), default=0.0)
            if longest > 10.1:
                wrong.append(f"at {now:.1f} s a pod pauses for {longest:.1f} s")
            for one in world.api.of(PODS):
                is_told = bool((one.get("status") or {}).get("conditions"))
                if now > 10 and not one["spec"].get("nodeName") and not is_told:
                    wrong.append(f"at {now:.1f} s pod {one['metadata']['name']} waits without a word")
    return wrong


@pytest.mark.parametrize("seed", range(10, 10 + fewer(30)))
def test_however_writes_fail_no_pod_pauses_long_or_in_silence(seed: int) -> None:
    """A condition may fail to be written as well, so that a pod has ten seconds for it."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(courses(seed)) == []
