"""Lease and probes do not wait for the operator's loop, and a loop that is stuck for good is noticed."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from dra_kube import LEASES, Api, Timing, connection
from dra_operator.app.leader import Leader
from dra_operator.app.probes import Answers, Check, MainLoop, serve
from dra_operator.app.run import Aside
from prometheus_client import CollectorRegistry, Counter
from waiting import becomes

FINE = [Check("controllers", [])]


class Health:
    """Checks that know how often they were looked at."""

    def __init__(self) -> None:
        self.looks = 0

    def liveness(self) -> Sequence[Check]:
        self.looks += 1
        return FINE

    def readiness(self) -> Sequence[Check]:
        self.looks += 1
        return FINE


def compute(is_enough: Callable[[], bool]) -> None:
    """Hold the interpreter as a decision does, until it is enough, or for a minute: the loop does not turn."""
    end = time.perf_counter() + 60
    while not is_enough() and time.perf_counter() < end:
        sum(range(100))


@asynccontextmanager
async def answering(aside: Aside, answers: Answers) -> AsyncIterator[int]:
    """The port, while the answers are served beside this loop."""
    ended, begun, ports = asyncio.Event(), threading.Event(), []

    async def run() -> None:
        async with serve("127.0.0.1", 0, answers) as port:
            ports.append(port)
            begun.set()
            await ended.wait()

    serving = asyncio.create_task(aside.call(run()))
    await becomes(begun.is_set)
    try:
        yield ports[0]
    finally:
        serving.cancel()
        await asyncio.wait((serving,))


def ask(port: int, path: str, heard: list[int]) -> None:
    there = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    there.request("GET", path)
    answer = there.getresponse()
    answer.read()
    heard.append(answer.status)
    there.close()


async def test_probes_answer_while_a_decision_takes_seconds() -> None:
    async with Aside() as aside:
        answers = Answers(MainLoop(lambda: "pod ns/pod"), Health(), CollectorRegistry())  # type: ignore[arg-type]
        async with answering(aside, answers) as port:
            heard: list[int] = []
            await asyncio.to_thread(ask, port, "/readyz", heard)
            threads = [threading.Thread(target=ask, args=(port, path, heard)) for path in ("/livez", "/readyz")]
            for thread in threads:
                thread.start()
            compute(lambda: len(heard) == 3)
            assert heard == [200, 200, 200], "they answered before the decision was over"
            for thread in threads:
                thread.join()


async def test_the_lease_is_renewed_again_and_again_while_a_decision_holds_the_loop(kubeconfig: Path) -> None:
    to = connection(kubeconfig)
    writes = itertools.count()
    written = 0

    def noted() -> dict[str, str]:
        """The leader asks before each write of the Lease what it says of itself."""
        nonlocal written
        written = next(writes)
        return {}

    async with Api(to) as api, Aside() as aside:
        leader = Leader(to, "lease", "default", Timing(lease=60.0, renew=40.0, retry=0.2), annotations=noted)
        await aside.call(leader.acquire())
        before = await api.get(LEASES, "lease", "default")
        enough = written + 4
        compute(lambda: written >= enough)
        assert written >= enough
        assert leader.allowance() > 0, "a write may be sent at once"
        after = await api.get(LEASES, "lease", "default")
        assert not leader.loss
        assert after["spec"]["renewTime"] > before["spec"]["renewTime"]
        await aside.call(leader.release())
        await aside.call(leader.close())


async def test_a_loop_that_is_stuck_is_not_alive_and_says_what_it_was_doing(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    async with Aside() as aside:
        main = MainLoop(lambda: "pod ns/pod", clock=lambda: now)
        answers = Answers(main, Health(), CollectorRegistry())  # type: ignore[arg-type]
        asked = asyncio.ensure_future(aside.call(answers.liveness()))
        await asyncio.sleep(0)
        compute(lambda: bool(main._asked))
        now = 61.0 * bool(main._asked)
        with caplog.at_level(logging.CRITICAL):
            (trouble,) = main.trouble(60.0)
        assert trouble == "the event loop has been blocked for 61 s, deciding about pod ns/pod"
        assert "stack:" in caplog.text
        await asked
        assert main.trouble(60.0) == []


async def test_figures_are_rendered_once_a_second_for_all_who_scrape() -> None:
    registry, renderings = CollectorRegistry(), 0
    counter = Counter("things", "Things.", registry=registry)

    class Collector:
        def collect(self) -> list[object]:
            nonlocal renderings
            renderings += 1
            return []

    registry.register(Collector())  # type: ignore[arg-type]
    before = renderings
    async with Aside() as aside:
        answers = Answers(MainLoop(str), Health(), registry)  # type: ignore[arg-type]
        counter.inc()
        texts = await asyncio.gather(*(aside.call(answers.metrics()) for _ in range(100)))
    assert all(text is not None and b"things_total 1.0" in text for text in texts)
    assert renderings - before <= 2


async def test_a_failure_of_a_check_reaches_the_asker() -> None:
    def broken() -> Sequence[Check]:
        raise LookupError("gone")

    async with Aside() as aside:
        main = MainLoop(str)
        nothing: Sequence[Check] = ()
        with pytest.raises(LookupError, match="gone"):
            await aside.call(main.ask("live", broken, nothing))
        assert await aside.call(main.ask("live", lambda: FINE, nothing)) == FINE


async def test_who_asks_while_the_loop_is_busy_does_not_wait_as_long_again_as_the_one_before() -> None:
    """Many who ask would hold all connections of the port meanwhile."""
    main, waited, last = MainLoop(lambda: ""), list[float](), list[str]()

    async def ask_twice() -> None:
        for _ in range(2):
            began = time.monotonic()
            last.append(await main.ask("live", lambda: "new", "last", 2.0))
            waited.append(time.monotonic() - began)

    async with Aside() as aside:
        asking = asyncio.create_task(aside.call(ask_twice()))
        await asyncio.sleep(0)
        compute(lambda: len(waited) == 2)
        await asking
        assert last == ["last", "last"]
        assert waited[1] < waited[0] / 2
        assert await aside.call(main.ask("live", lambda: "newer", "last")) == "newer", "not what was asked before"
