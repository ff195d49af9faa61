"""Late work: keys for which nothing is decided or written for more than five seconds, although something is to be done.

What a decision finds out stands in the pod's condition. Four causes of a wait lie outside of decisions:

* *requests*: a key was taken, and the requests for it are not answered. No other decision about the pod is made
  meanwhile, and with all workers taken none about any other pod.
* *turn*: a key is ready, and others come first: workers are taken, decisions take long, or the namespace has had its
  share.
* *rest*: something may have changed for a pod whose last decision took long, and it rests.
* *round*: changes that may help any number of pods are looked at in rounds, and the last round took long.

They are the same for many pods at once, so the log has each of them, once a minute while it lasts, with the number of
late keys and the oldest one. Pods say so as well, the oldest first: ten begin to in each second, so that a slow API
server does not get a write more for each of ten thousand pods. A pod that waits for requests gets an event, since a
condition would make its own binding conflict. Only an old condition that is no longer true is replaced.

A pod that was told something keeps its words while it is looked at because of freed devices or in a round: nothing
says that they are false, and all pods of a cluster would change them with each node that comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Final

from dra_api.core import Pod

from dra_operator.cache import Cluster, Controller, Key
from dra_operator.controllers.queue import WorkQueue
from dra_operator.controllers.scheduling.cycle import SchedulingCycle
from dra_operator.controllers.scheduling.report import (
    LATE_SECONDS,
    NOT_ANSWERED,
    UNSAID_SECONDS,
    shown_reason,
    waits_for_turn,
)
from dra_operator.controllers.workers import tell
from dra_operator.kube import EventReason, EventRecorder
from dra_operator.scheduling.state import is_placeholder

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
WARN_SECONDS: Final = 60.0
"""Seconds between two warnings of the same kind while keys are late."""
PODS_TOLD_AT_ONCE: Final = 10
"""Pods that begin to say so in one look, or whose conditions are being written."""
MOST_TOLD_PODS: Final = 1000
"""Pods that say at the same time why they are late. The log counts all keys."""
MOST_LATE_OBJECTS: Final = 10_000
"""Late keys of a kind that are counted in one look."""
BINDING: Final[tuple[Controller, ...]] = ("templates", "pod-groups", "placement", "release")
"""Controllers without whose work no pod is bound, or none gets the devices of finished pods."""

REQUESTS: Final = "work on a key is not done, requests for it may be unanswered"
TURN: Final = "keys wait for their turn"
REST: Final = "keys rest after long decisions, and something may have changed for them"
ROUND: Final = "changes wait for the next round of looks at all pods"
"""What the log warns with."""

RESTS: Final = "waits for its next attempt: the last one took long, and a pod gets at most a twentieth of the time"
"""What pods say."""


class LateWork:
    """``run`` as a task, or ``look``."""

    def __init__(
        self,
        cluster: Cluster,
        queues: Mapping[Controller, WorkQueue],
        placer: SchedulingCycle,
        events: EventRecorder,
        clock: Callable[[], float],
    ) -> None:
        self._cluster, self._queues, self._placer, self._events = cluster, queues, placer, events
        self._clock = clock
        self._warned: dict[tuple[Controller, str], float] = {}
        self._said: set[tuple[str, str]] = set()
        """UIDs of pods that are late, and what they were told."""
        self._lacking: set[str] = set()
        """The keys of pods of which the claims are late."""
        self._telling: dict[str, asyncio.Task[None]] = {}
        """By UID of a pod: the write of its condition."""

    async def run(self) -> None:
        """Look until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                for pod, text in self.look():
                    task = group.create_task(self._placer.tell_late(pod, text), name=f"why {pod.key} waits")
                    self._telling[pod.metadata.uid] = task
                    task.add_done_callback(partial(self._is_told, pod.metadata.uid))

    def _is_told(self, uid: str, _: asyncio.Task[None]) -> None:
        del self._telling[uid]

    def look(self) -> list[tuple[Pod, str]]:
        """Warn of late keys, post events, and have pods looked at that wait for claims.

        Return the pods whose conditions are to be written, and how.
        """
        for controller in BINDING:
            queue = self._queues[controller]
            self._judge(controller, REQUESTS, queue.taken(), queue)
            ready = islice(queue.ready(), MOST_LATE_OBJECTS)
            self._judge(controller, TURN, (it for it in ready if not self._is_known(it[0], queue)), queue)
            self._judge(controller, REST, queue.resting(), queue)
            self._judge(controller, ROUND, queue.next_round(), queue)
        self._look_at_users()
        return self._untold()

    def _judge(self, controller: Controller, what: str, keys: Iterator[tuple[Key, float]], queue: WorkQueue) -> None:
        kind, now = (controller, what), self._clock()
        oldest = next(keys, None)
        # The oldest is the first: if it is not late, none is.
        if oldest is None or oldest[1] < LATE_SECONDS:
            self._warned.pop(kind, None)
            return
        # One line a minute: the cause is the same for all keys that wait.
        if now - self._warned.get(kind, now - WARN_SECONDS) < WARN_SECONDS:
            return
        self._warned[kind] = now
        key, seconds = oldest
        late = 1 + sum(it[1] >= LATE_SECONDS for it in islice(keys, MOST_LATE_OBJECTS))
        fields = {"controller": controller, "object": key.object, "late": late, "ready": queue.depth}
        why = {"why": queue.fairness.reason(key)} if what == TURN else {}
        tell(logger, logging.WARNING, what, **fields, seconds=f"{seconds:.3g}", **why)

    # --- what pods say ---

    def _look_at_users(self) -> None:
        """Have pods looked at of which the claims are late: nothing wakes them before they have some."""
        queue, before = self._queues["templates"], self._lacking
        keys = (*queue.taken(), *islice(queue.ready(), MOST_TOLD_PODS))
        found = ((key.object, self._pod(key.object), seconds) for key, seconds in keys)
        late = [key for key, pod, seconds in found if pod is not None and self._is_late(pod, seconds)]
        # Once, and few at a time: from then on the pod has itself looked at again.
        new = [key for key in late if key not in before][:PODS_TOLD_AT_ONCE]
        self._queues["placement"].add(*(Key("placement", key) for key in new))
        self._lacking = before.intersection(late) | set(new)

    def _is_late(self, pod: Pod, seconds: float) -> bool:
        """Return whether the pod is late, of which a key is where it is for so long.

        A pod that says nothing may have been put off for other reasons before, each of which was short.
        """
        is_mute = shown_reason(pod) is None and self._placer.report.age(pod) >= LATE_SECONDS
        return seconds >= (UNSAID_SECONDS if is_mute else LATE_SECONDS)

    def _untold(self) -> list[tuple[Pod, str]]:
        late = {(pod.metadata.uid, text): pod for pod, text in islice(self._late_pods(), MOST_TOLD_PODS)}
        # What is over is forgotten: should it come again, it is news.
        self._said &= late.keys()
        shown = {uid: shown_reason(pod) for (uid, _), pod in late.items()}
        # What was said and is not shown was put off, or could not be written. It must not keep the others from theirs.
        news = sorted((it for it in late if shown[it[0]] != it[1]), key=lambda it: it in self._said)
        found, telling = [], set(self._telling)
        for uid, text in news[: max(0, PODS_TOLD_AT_ONCE - len(self._telling))]:
            # A condition would make the binding that is under way conflict, so it is written only over an old one.
            is_event = text == NOT_ANSWERED and shown[uid] is None and not is_placeholder(late[uid, text])
            if is_event and (uid, text) not in self._said:
                self._events.post(late[uid, text], EventReason.FAILED_SCHEDULING, text)
            elif not is_event and uid not in telling:
                telling.add(uid)  # a pod may wait for two things at once, and says one at a time
                found.append((late[uid, text], text))
            self._said.add((uid, text))
        return found

    def _late_pods(self) -> Iterator[tuple[Pod, str]]:
        """Yield the pods that are late, and what they are to say, the oldest of each kind first."""
        queue = self._queues["placement"]
        for key, seconds in queue.taken():
            for it in (key.object, *(it for it in self._placer.written_with(key.object) if it != key.object)):
                yield from self._waiting(it, NOT_ANSWERED, seconds)
        for number, (key, seconds) in enumerate(islice(queue.ready(), MOST_LATE_OBJECTS)):
            # What is not late itself may have been put off before.
            if seconds < LATE_SECONDS and number > MOST_TOLD_PODS:
                break
            if not self._is_known(key, queue):
                yield from self._waiting(key.object, waits_for_turn(queue, key), seconds)
        for key, seconds in islice(queue.resting(), MOST_LATE_OBJECTS):
            yield from self._waiting(key.object, RESTS, seconds)

    def _is_known(self, key: Key, queue: WorkQueue) -> bool:
        """Return whether the pod of a key that is ready says why it waits, and nothing says that this is false."""
        if key.controller != "placement" or not queue.is_doubtful(key):
            return False
        pod = self._cluster.applicant(key.object)
        return pod is None or shown_reason(pod) is not None

    def _waiting(self, key: str, text: str, seconds: float) -> Iterator[tuple[Pod, str]]:
        pod = self._pod(key)
        if pod is not None and self._is_late(pod, seconds):
            yield pod, text

    def _pod(self, key: str) -> Pod | None:
        """Return the pod, if we have to bind it."""
        pod = self._cluster.applicant(key)
        return pod if pod is not None and self._cluster.waits_for_us(pod) and not self._cluster.is_bound(pod) else None
