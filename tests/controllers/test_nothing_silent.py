"""However requests are delayed or fail, a pod that is not bound says why within five seconds, and what it says is so.

More clusters are played by:

    PYTHONPATH=tests/support python tests/controllers/test_nothing_silent.py 0:1000

Clusters at random in which requests are slow, unanswered or refused, and a judge who reads what a pod says.

``course`` plays one for some time on a loop whose time is a number. The judge looks at every pod without a node twice
a second. What holds the pod is seen from inside: its key is in a line, with a worker, in back-off or nowhere. What the
pod says is seen from outside: its condition, its last event, and the warnings in the log. They have to agree once the
pod has been held for ``LONG_SECONDS``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final, NamedTuple
from unittest import mock

import pytest
from controllers_world import FEW, World
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
)
from dra_operator.allocator import Features
from dra_operator.cache import Controller, Key
from dra_operator.controllers import OwnControllers, PreemptionSettings, TimeSettings, workers
from dra_operator.controllers.scheduling import cycle, planning, preemption
from dra_operator.scheduling import CycleState, NotTried, Pause, Plan, Planning, decided, plan, pre_filter
from fake_api import Call, Effect
from history_kit.clock import VirtualLoop
from objects import Make, Obj
from rounds import fewer

LONG_SECONDS: Final = 6.0
"""A pod has to say why within five seconds; one more for the look, and for the write of it."""
STEP_SECONDS: Final = 0.5
COURSE_SECONDS: Final = 40.0
ANSWER_SECONDS: Final = 30.0
"""After so long a client gives a request up."""
NAMESPACES: Final = ("ns", "a", "b")
BULK: Final = {f"{'x' * 60}{number}": "" for number in range(1200)}
"""Labels that make a claim a large one."""


class Slow(NamedTuple):
    """What a kind of request meets from one time to another: a delay, or an error."""

    verb: str
    plural: str
    sub: str | None
    names: str
    begins: float
    ends: float
    seconds: float
    error: str

    def meets(self, call: Call, now: float) -> bool:
        """Whether the request is one of them."""
        is_it = (call.verb, call.plural, call.sub) == (self.verb, self.plural, self.sub)
        return is_it and self.begins <= now < self.ends and self.names in call.name


KINDS_OF_REQUESTS: Final = (
    *(("create", "pods", "binding"), ("update", "resourceclaims", "status"), ("create", "resourceclaims", None)) * 2,
    ("patch", "resourceclaims", "status"),
    ("update", "resourceclaims", None),
    ("patch", "resourceclaims", None),
    ("delete", "resourceclaims", None),
    ("get", "resourceclaims", None),
    ("get", "pods", None),
    ("update", "pods", "status"),
    ("update", "pods", None),
)
"""Those on the way of a pod to its node. Conditions and events fail nowhere, since something has to be read."""


class Words(logging.Handler):
    """The warnings of the operator, each with its time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(logging.WARNING)
        self._clock = clock
        self.said: list[tuple[float, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append((self._clock(), record.getMessage()))


class Work:
    """The time of searches, which a course decides: a module's ``time``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self.spent = loop, 0.0

    def thread_time(self) -> float:
        return self.spent

    def perf_counter(self) -> float:
        return self._loop.time()

    monotonic = perf_counter


def furnished(dice: Random) -> World:
    """A cluster in which some pods fit."""
    world = World(Features())
    few: dict[Controller, int] = {name: dice.choice((1, 2, 4)) for name in FEW}
    few["placement"] = dice.choice((2, 3, 8, 20))
    world.times = TimeSettings(workers=few)
    world.furnish(nodes=dice.randint(1, 3), devices=dice.randint(1, 6))
    if dice.random() < 0.2:
        world.controllers = OwnControllers(templates=False, release=False, eviction=False)
    if dice.random() < 0.3:
        world.preemption = PreemptionSettings()
    for namespace in NAMESPACES:
        template = Make.template()
        template["metadata"]["namespace"] = namespace
        world.api.add(RESOURCE_CLAIM_TEMPLATES, template)
    kinds = KINDS_OF_PODS if dice.random() < 0.7 else ("large", *KINDS_OF_PODS[:3])
    for number in range(dice.randint(2, 14)):
        add_pod(world, dice, number, kinds)
    if dice.random() < 0.25:
        add_gang(world, dice)
    if dice.random() < 0.2:
        world.api.add(RESOURCE_CLAIMS, Make.claim("theirs"))
        world.api.add(PODS, created(Make.pod("theirs", [Make.use("theirs")], schedulerName="other"), world))
    return world


def created(pod: Obj, world: World) -> Obj:
    pod["metadata"]["creationTimestamp"] = world.now
    return pod


KINDS_OF_PODS: Final = ("large", "template", "named", "template", "named", "shared", "none")


def add_pod(world: World, dice: Random, number: int, kinds: Sequence[str] = KINDS_OF_PODS) -> None:
    """A pod with a claim of one of these kinds."""
    namespace, kind = dice.choice(NAMESPACES), dice.choice(kinds)
    name, claim = f"pod-{number}", f"claim-{number}"
    uses: list[Obj] = []
    if kind == "template":
        uses = [Make.FROM_TEMPLATE]
    elif kind != "none":
        claim = "shared" if kind == "shared" else claim
        uses = [Make.use(claim)]
        made = Make.claim(claim)
        made["metadata"] |= {"namespace": namespace, "labels": BULK if kind == "large" else {}}
        if (RESOURCE_CLAIMS, namespace, claim) not in world.api.objects and dice.random() < 0.95:
            world.api.add(RESOURCE_CLAIMS, made)
    spec: Obj = {}
    if dice.random() < 0.15:
        spec["nodeSelector"] = {"nowhere": "yes"}
    if dice.random() < 0.2:
        spec["priority"] = dice.randint(1, 3)
    pod = created(Make.pod(name, uses, **spec), world)
    pod["metadata"]["namespace"] = namespace
    world.api.add(PODS, pod)


def add_gang(world: World, dice: Random) -> None:
    """A gang of which all pods may be there."""
    size = dice.randint(2, 4)
    for number in range(size - (dice.random() < 0.2)):
        world.api.add(RESOURCE_CLAIMS, Make.claim(f"of-gang-{number}"))
        uses = [Make.FROM_TEMPLATE] if dice.random() < 0.3 else [Make.use(f"of-gang-{number}")]
        member = created(Make.pod(f"member-{number}", uses), world)
        member["metadata"]["annotations"] = {"dra.kopf.dev/gang": "gang", "dra.kopf.dev/gang-size": str(size)}
        world.api.add(PODS, member)


def troubles(dice: Random) -> list[Slow]:
    """What requests meet."""
    found = []
    for _ in range(dice.choice((0, 1, 1, 2, 3, 4))):
        verb, plural, sub = dice.choice(KINDS_OF_REQUESTS)
        begins = dice.choice((0.0, dice.uniform(0, 10)))
        names = dice.choice(("", "", "1", "shared", "member"))
        error = dice.choice(("", "", "", "busy", "no answer", "forbidden", "wait"))
        seconds = dice.choice((0.5, 3.0, 8.0, 20.0, 100.0)) if not error or dice.random() < 0.3 else 0.0
        found.append(Slow(verb, plural, sub, names, begins, begins + dice.choice((5, 15, 100)), seconds, error))
    return found


ERRORS: Final[dict[str, Callable[[], Exception]]] = {
    "busy": lambda: TooManyRequests(429, "TooManyRequests", "the server is busy"),
    "wait": lambda: TooManyRequests(429, "TooManyRequests", "the server is busy", retry_after=20),
    "no answer": lambda: Unreachable("no answer"),
    "forbidden": lambda: Forbidden(403, "Forbidden", "a webhook says no"),
}


def troubled(world: World, slow: list[Slow], clock: Callable[[], float]) -> None:
    """Have requests meet what is in store for them."""
    request = world.api.request

    async def slowly(call: Call, effect: Effect) -> Obj:
        for it in slow:
            if it.meets(call, clock()):
                await asyncio.sleep(min(it.seconds, ANSWER_SECONDS))
                if it.seconds > ANSWER_SECONDS:
                    raise Unreachable("no answer in time")
                if it.error:
                    raise ERRORS[it.error]()
        return await request(call, effect)

    world.api.request = slowly  # type: ignore[method-assign]


def changes(world: World, dice: Random, number: int) -> None:
    """What others do meanwhile."""
    pods = [it for it in world.api.of(PODS) if it["metadata"]["name"] != "theirs"]
    match dice.choice(("node", "pod", "gone", "label", "uncordoned", "none", "none")):
        case "node":
            name = f"new-{number}"
            world.api.add(NODES, Make.node(name))
            world.api.add(RESOURCE_SLICES, Make.slice(name, dice.randint(1, 3)))
        case "pod":
            add_pod(world, dice, 100 + number)
        case "gone" if pods:
            gone = dice.choice(pods)
            world.api.drop(PODS, f"{gone['metadata']['namespace']}/{gone['metadata']['name']}")
        case "label" if pods:
            changed = dice.choice(pods)["metadata"]
            key = f"{changed['namespace']}/{changed['name']}"
            world.api.change(PODS, key, lambda it: it["metadata"].update(labels={"n": str(number)}))
        case "uncordoned":
            world.api.change(NODES, "node-0", lambda it: it.update(spec={}))


def make_hard(world: World, dice: Random, work: Work) -> None:
    """Have the plans of some pods take long."""
    placer, hard = world.control.placer, dice.choice((0.0, 0.0, 0.2))
    planned = placer._planning

    def slowly(state: CycleState) -> Planning:
        if dice.random() < hard:
            for _ in range(dice.choice((1, 10, 100))):
                work.spent += 0.02
                yield Pause.SEARCHING
        answer = yield from planned(state)
        return answer

    placer._planning = slowly  # type: ignore[assignment, method-assign]


class Judge:
    """``look`` at all pods; ``wrong`` is what they said that is not so, or did not say."""

    def __init__(self, world: World, words: Words) -> None:
        self._world, self._words = world, words
        self._since: dict[tuple[str, str], float] = {}
        self.wrong: dict[str, str] = {}
        self.held = Counter[str]()
        """How often a pod had to say something, by what held it."""

    def look(self, now: float) -> None:
        """Compare what holds each pod with what it says."""
        world, states = self._world, set()
        for pod in world.api.of(PODS):
            meta, spec = pod["metadata"], pod["spec"]
            if spec.get("nodeName") or meta.get("deletionTimestamp") or spec["schedulerName"] == "other":
                continue
            key = f"{meta['namespace']}/{meta['name']}"
            state = self._state(key)
            for it in (state, "waits"):
                states.add((meta["uid"], it))
                self._since.setdefault((meta["uid"], it), now)
            seconds = now - self._since[meta["uid"], state]
            if state in ("written", "in line"):  # perhaps once more, between two looks
                seconds = min(seconds, world.control.queues.of("placement").seconds(Key("placement", key)))
            if now - self._since[meta["uid"], "waits"] < LONG_SECONDS:
                continue
            self.held[state] += seconds >= LONG_SECONDS
            if (problem := self._problem(pod, key, state, seconds, now)) is not None:
                about = (meta["uid"], problem.split(":")[0])
                states.add(about)
                # What the pod says may be out of date for as long as it may say nothing.
                if "stale" in about[1] and now - self._since.setdefault(about, now) < LONG_SECONDS:
                    continue
                text = f"at {now:.1f} s {key}, {state} for {seconds:.1f} s: {problem}"
                self.wrong.setdefault(problem.split(":")[0], text)
        self._since = {it: since for it, since in self._since.items() if it in states}

    def _state(self, key: str) -> str:
        """Where the key of the pod is."""
        placement, templates = (self._world.control.queues.of(it) for it in ("placement", "templates"))
        mine, making = Key("placement", key), Key("templates", key)
        pod = self._world.cluster.pods.get(key)
        lacks_claims = pod is not None and self._world.cluster.lacks_generated_claim(pod)
        if mine in placement._working:
            return "written"
        if lacks_claims and making in templates._working:
            return "claims written"
        if mine in placement._postponed:
            return "planned"
        if mine in placement._ready:
            return "looked for" if mine in placement._weak or mine in placement.fairness._left else "in line"
        if lacks_claims and making in templates._ready:
            return "claims in line"
        if mine in placement._held:
            return "held, wanted" if mine in getattr(placement, "_resting", placement._wanted) else "held"
        if making in templates._held:
            return "claims held"
        if mine in placement.fairness._next:
            return "for the next round"
        return "nowhere"

    def _problem(self, pod: Obj, key: str, state: str, seconds: float, now: float) -> str | None:
        """What is wrong with what the pod says, if anything."""
        conditions = (pod.get("status") or {}).get("conditions") or []
        said = next((str(it["message"]) for it in conditions if it["status"] == "False"), "")
        uid, is_long = pod["metadata"]["uid"], seconds >= LONG_SECONDS
        events = [
            it["message"]
            for it in self._world.api.of(EVENTS)
            if it["involvedObject"]["uid"] == uid and it["type"] == "Warning"
        ]
        warned = [text for at, text in self._words.said if now - at <= 61]
        if not said and not events and not any(f"={key} " in f"{it} " for it in warned):
            return "mute: no condition, event or warning is about the pod"
        if not is_long:
            return None
        match state:
            case "written" | "claims written":
                # An event does where no condition says anything else.
                shown = said or "".join(events[-1:])
                if "turn" in shown and Key("placement", key) in self._world.control.queues.of("placement")._ready:
                    return None  # it waits for both
                if "answers of the API server" not in shown and "retrying" not in shown:
                    return f"untold write: the pod says {shown!r}"
            case "in line" | "claims in line" if not any(
                it in said for it in ("turn", "still looking", "cannot be made")
            ):
                if self._world.control.placer.written_with(key) and "answers of the API server" in said:
                    return None  # it waits for both
                return f"untold line: the pod says {said!r}"
            case "held, wanted" if (
                "retrying" not in said and "next attempt" not in said and "still looking" not in said
            ):
                return f"untold rest: the pod says {said!r}"
            case "nowhere":
                return self._stale(key, said)
        return None

    def _stale(self, key: str, said: str) -> str | None:
        """Nothing is done for the pod: what it says must be what a decision would find out."""
        if "turn" in said or "answers of the API server" in said or "next attempt" in said:
            return f"stale turn: the pod says {said!r}"
        placer, applicant = self._world.control.placer, self._world.cluster.applicant(key)
        if applicant is None or not said.startswith(("0/", "waits for a claim", "node")):
            return None
        found = pre_filter(applicant, placer._snapshot())
        if isinstance(found, NotTried) and not said.startswith(found.obstacle.text[:20]):
            return f"stale refusal: the pod says {said!r}, and {found.obstacle.text}"
        if isinstance(found, CycleState) and self._world.cluster.gang_of(applicant) is None:
            with self._world.cluster.without_load_of(applicant):
                self._world.cluster.loaded_nodes()
                if isinstance(decided(plan(found)), Plan):
                    return f"stale refusal: the pod says {said!r}, and has a place"
        return None


HOLDS: Final = frozenset(
    {
        *("written", "claims written", "planned", "looked for", "in line", "claims in line"),
        *("held", "held, wanted", "claims held", "for the next round", "nowhere"),
    }
)
"""What may hold a pod."""


async def course(seed: int, slow: list[Slow] | None = None) -> tuple[dict[str, str], Counter[str]]:
    """What was wrong in one cluster, by kind, and how often something had held a pod for long.

    ``slow``: what requests meet; at random otherwise.
    """
    dice, loop, seconds = Random(seed), asyncio.get_running_loop(), COURSE_SECONDS
    began = datetime(2026, 1, 1, tzinfo=UTC)
    world, work, words = furnished(dice), Work(loop), Words(loop.time)
    troubled(world, troubles(dice) if slow is None else slow, loop.time)
    others = sorted(dice.uniform(1, seconds * 0.8) for _ in range(dice.randint(0, 6)))
    logger = logging.getLogger("dra_operator")
    with ExitStack() as patches:
        for module in (cycle, planning, preemption, workers):
            patches.enter_context(mock.patch.object(module, "time", work))
        logger.addHandler(words)
        patches.callback(logger.removeHandler, words)
        world.start()
        make_hard(world, dice, work)
        judge = Judge(world, words)
        async with world.running():
            number, looked = 0, 0.0
            while (now := loop.time()) < seconds:
                world.now = format_time(began + timedelta(seconds=int(now)))
                while others and others[0] <= now:
                    others.pop(0)
                    changes(world, dice, number := number + 1)
                world.bring_events()
                if now - looked >= STEP_SECONDS:
                    looked = now
                    judge.look(now)
                await asyncio.sleep(0.1)
    return judge.wrong, judge.held


def played(seed: int, slow: list[Slow] | None = None) -> tuple[dict[str, str], Counter[str]]:
    """The same on a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(course(seed, slow))


# --- tests ---

ALWAYS = 1000.0


@pytest.mark.parametrize("seed", range(fewer(18)))
def test_a_pod_says_what_holds_it_and_nothing_that_is_over(seed: int) -> None:
    wrong, _ = played(seed)
    assert wrong == {}


@pytest.mark.parametrize(
    ("verb", "plural", "sub", "holds"),
    [
        ("create", "pods", "binding", {"in line", "written"}),
        ("update", "resourceclaims", "status", {"in line", "written"}),
        ("create", "resourceclaims", None, {"claims in line", "claims written"}),
        ("update", "pods", "status", {"claims written"}),
    ],
)
def test_a_slow_request_is_said_by_all_that_it_holds(verb: str, plural: str, sub: str | None, holds: set[str]) -> None:
    held = Counter[str]()
    for seed in (8, 10, 12, 15):
        wrong, found = played(seed, [Slow(verb, plural, sub, "", 0.0, ALWAYS, 20.0, "")])
        assert wrong == {}
        held += found
    assert holds <= set(held) <= HOLDS


if __name__ == "__main__":
    import argparse
    import time

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", metavar="FIRST:END")
    start, end = map(int, parser.parse_args().seeds.split(":"))
    kinds, held, at = Counter[str](), Counter[str](), time.perf_counter()
    for seed in range(start, end):
        wrong, looks = played(seed)
        held += looks
        for kind, text in wrong.items():
            kinds[kind] += 1
            if kinds[kind] <= 4:
                print(seed, text, flush=True)
    print(f"wrong: {dict(kinds)}; looks: {dict(held)}; {time.perf_counter() - at:.0f} s")
