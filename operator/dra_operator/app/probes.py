"""The port for probes and metrics: the checks, and how they are answered while the operator decides.

Ready: the cache is complete and up to date, and the operator may do its work. Every kind was listed, is watched, and
its watch gives signs of life; no right is missing. A late look at the claims is a warning: it holds up only pods whose
devices another scheduler allocates as well, and a tenant with many large claims may bring it about. Live: only faults
that a new process can mend count. An API server that is away or refuses us makes the operator unready, but not dead.

The port has a thread of its own. The operator's state may only be read on its own loop, so a probe asks there and
waits ``PROBE_SECONDS`` for the answer. If the loop is busy, the last answer counts, and the loop itself is a check: one
that has not turned for ``STUCK_SECONDS`` will not turn by itself, so the liveness probe fails and names the object
of the loop's decision. Figures are rendered at most once a second, for all who scrape.

A probe answers ``ok``, or one obstacle per line. As with Kubernetes' own components, ``?verbose`` lists every check by
its name, and ``?exclude=NAME``, which may be repeated, leaves the obstacles of one out. ``dra_kube.door`` keeps those
out who would take all its connections.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from aiohttp import web
from dra_api import VERSION
from dra_kube import Resource
from dra_kube.door import open_door, request_log
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from dra_operator.app.leader import Leader
from dra_operator.app.operator import Operator
from dra_operator.sources.handlers import running
from dra_operator.sources.kind_table import OF_KUEUE


class Check(NamedTuple):
    """A check, and the obstacles that it found, as lines for people.

    ``note`` is shown beside a check that passed, and ``warning`` also to those who do not ask for each check.
    """

    name: str
    obstacles: list[str]
    note: str = ""
    warning: str = ""


def obstacles(checks: Iterable[Check]) -> list[str]:
    """One line per obstacle; empty if all checks pass."""
    return [line for check in checks for line in check.obstacles]


class Health:
    """The checks of liveness and readiness. A check that another one makes pointless is left out."""

    def __init__(self, operator: Operator, leader: Leader | None = None) -> None:
        self._operator, self._leader = operator, leader

    def readiness(self) -> list[Check]:
        """Return whether the operator decides, on a cache that is up to date."""
        checks: list[Check] = []
        if self._leader is not None:
            checks = [Check("lease", self._leader.obstacles()), Check("leading", self._leader.standing_by())]
        if obstacles(checks):
            return checks
        (work,) = self.liveness()
        if not running(self._operator):
            return [*checks, work, Check("listing", [] if work.obstacles else ["the cluster is being listed"])]
        missing = [f"{resource}: not served by the API server" for resource in self._operator.missing()]
        watches = [_watch(resource, problem) for resource, problem in self._operator.watches.states()]
        release = Check("kubernetes", [], self._operator.in_force.note)
        rights = Check("rights", self._operator.lacks_rights())
        look = Check("last-look", [], warning=self._operator.late_look)
        return [*checks, work, Check("listing", []), release, Check("kinds", missing), rights, look, *watches]

    def liveness(self) -> list[Check]:
        """Return whether only a new process helps."""
        return [Check("controllers", ["the controllers ended"] if self._operator.has_failed else [])]


def _watch(resource: Resource, problem: str) -> Check:
    """Return the check of one kind. Those of Kueue may be removed: nobody else waits for them."""
    name, text = f"watch-{resource.plural}", f"{resource}: {problem}" if problem else ""
    return Check(name, [], warning=text) if resource in OF_KUEUE else Check(name, [text] if text else [])


T = TypeVar("T")
PROBE_SECONDS: Final = 0.5
"""Seconds that a probe waits for the loop; a kubelet gives it one by default."""
SLOW_SECONDS: Final = 10.0
"""Seconds without a turn after which the operator is not ready."""
STUCK_SECONDS: Final = 60.0
"""Seconds without a turn after which it is not alive."""

logger = logging.getLogger(__name__)


class _Asked(NamedTuple):
    since: float
    answer: concurrent.futures.Future[Any]


class MainLoop:
    """Made on the loop that it watches. ``doing`` says what is being decided, in words; it is read by other threads."""

    def __init__(self, doing: Callable[[], str], clock: Callable[[], float] = time.monotonic) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._doing, self._clock = doing, clock
        self._asked: dict[str, _Asked] = {}
        self._is_told = False

    async def ask(self, name: str, question: Callable[[], T], last: T, patience: float = PROBE_SECONDS) -> T:
        """The answer of the loop; ``last`` if it has none in time. Askers of one name share an answer.

        ``patience`` in seconds since the question was asked first: while the loop is busy, those who ask later do not
        wait as long again, and many of them hold no connections.
        """
        asked = self._asked.get(name)
        if asked is None or (asked.answer.done() and self._clock() - asked.since >= patience):
            answer = asyncio.run_coroutine_threadsafe(_answered(question), self._loop)
            asked = self._asked[name] = _Asked(self._clock(), answer)
        try:
            async with asyncio.timeout(max(0.0, patience - (self._clock() - asked.since))):
                answered: T = await asyncio.shield(asyncio.wrap_future(asked.answer))
                return answered
        except TimeoutError:
            return last
        finally:
            if asked.answer.done() and self._asked.get(name) is asked:
                del self._asked[name]

    @property
    def busy(self) -> float:
        """Seconds since the oldest question that has no answer."""
        self._asked = {name: asked for name, asked in self._asked.items() if not asked.answer.done()}
        return max((self._clock() - asked.since for asked in self._asked.values()), default=0.0)

    def trouble(self, limit: float) -> list[str]:
        """That the loop has not turned for longer than the limit, if so."""
        seconds = self.busy
        if seconds < STUCK_SECONDS:
            self._is_told = False
        if seconds < limit:
            return []
        what = f", deciding about {doing}" if (doing := self._doing()) else ""
        text = f"the event loop has been blocked for {seconds:.0f} s{what}"
        if seconds >= STUCK_SECONDS and not self._is_told:
            self._is_told = True
            frame = sys._current_frames().get(self._thread)
            logger.critical("%s; stack:\n%s", text, "".join(traceback.format_stack(frame)))
        return [text]


async def _answered(question: Callable[[], T]) -> T:
    return question()


RENDERING_SECONDS: Final = 1.0
"""Seconds for which all get the same figures."""
SCRAPE_SECONDS: Final = 5.0
"""Seconds that a scrape waits for new ones; Prometheus gives it 10 by default."""
LOOP: Final = "event-loop"


class Answers:
    """``main`` is the loop on which ``health`` and the collectors of ``registry`` live."""

    def __init__(self, main: MainLoop, health: Health, registry: CollectorRegistry) -> None:
        self._main, self._health, self._registry = main, health, registry
        self._live: Sequence[Check] = ()
        self._ready: Sequence[Check] = (Check("answer", ["the operator has not answered yet"]),)
        self._figures: bytes | None = None
        self._rendered_at = -RENDERING_SECONDS

    async def liveness(self) -> Sequence[Check]:
        """Whether only a new process helps."""
        self._live = await self._main.ask("live", self._health.liveness, self._live)
        return [*self._live, Check(LOOP, self._main.trouble(STUCK_SECONDS))]

    async def readiness(self) -> Sequence[Check]:
        """Whether the operator decides, on a cache that is up to date."""
        self._ready = await self._main.ask("ready", self._health.readiness, self._ready)
        return [*self._ready, Check(LOOP, self._main.trouble(SLOW_SECONDS))]

    async def metrics(self) -> bytes | None:
        """The figures; None if there are none yet."""
        if time.monotonic() - self._rendered_at >= RENDERING_SECONDS:
            rendered = await self._main.ask("figures", self._render, None, SCRAPE_SECONDS)
            if rendered is not None and rendered is not self._figures:
                self._figures, self._rendered_at = rendered, time.monotonic()
        return self._figures

    def _render(self) -> bytes:
        return generate_latest(self._registry)


LAST_ANSWER_SECONDS = 1.0  # seconds that an answer may still take at the end: a client may have stopped reading
Probe = Callable[[], Awaitable[Sequence[Check]]]
_Answer = Callable[[web.Request], Awaitable[web.Response]]

_PAGES = {
    "/metrics": "metrics for Prometheus",
    "/readyz?verbose": "whether the cache is complete and up to date, check by check",
    "/livez?verbose": "whether only a new process would help, check by check",
    "/healthz?verbose": "the same as /livez",
}


class Answering(Protocol):
    """What is asked for each request."""

    async def liveness(self) -> Sequence[Check]:
        """Whether only a new process helps."""

    async def readiness(self) -> Sequence[Check]:
        """Whether the process does its work."""

    async def metrics(self) -> bytes | None:
        """The figures as Prometheus reads them; None if there are none yet."""


class CannotServe(Exception):
    """The port is taken or not allowed; the message names it."""


@asynccontextmanager
async def serve(host: str, port: int, answers: Answering) -> AsyncIterator[int]:
    """Serve while the block runs; gives the port, which matters when 0 was asked for. Raises CannotServe."""

    async def figures(_: web.Request) -> web.Response:
        body = await answers.metrics()
        if body is None:
            return web.Response(status=503, text="the operator is too busy to render its metrics: ask again\n")
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/", _front_page)
    app.router.add_get("/metrics", figures)
    probes = {"/livez": answers.liveness, "/healthz": answers.liveness, "/readyz": answers.readiness}
    for path, probe in probes.items():
        app.router.add_get(path, _answer(path.removeprefix("/"), probe))
    runner = web.AppRunner(
        app, access_log=None, logger=request_log(), shutdown_timeout=LAST_ANSWER_SECONDS, lingering_time=0
    )
    await runner.setup()
    try:
        async with AsyncExitStack() as stack:
            try:
                _, taken = await stack.enter_async_context(open_door(runner, host, port))
            except OSError as error:
                raise CannotServe(f"cannot serve metrics on port {port}: {error}") from error
            yield taken
    finally:
        await runner.cleanup()


def _answer(name: str, probe: Probe) -> _Answer:
    async def answer(request: web.Request) -> web.Response:
        excluded = request.query.getall("exclude", [])
        checks = await probe()
        found = obstacles(check for check in checks if check.name not in excluded)
        lines = [_line(check, check.name in excluded) for check in checks]
        lines.append(f"{name} check {'failed' if found else 'passed'}")
        if "verbose" not in request.query:
            warnings = [f"{it.name}: {it.warning}" for it in checks if it.warning and it.name not in excluded]
            lines = [*(found or ["ok"]), *warnings]
        return web.Response(text="\n".join(lines) + "\n", status=503 if found else 200)

    return answer


def _line(check: Check, is_excluded: bool) -> str:
    if is_excluded:
        return f"[+]{check.name} excluded"
    if check.obstacles:
        return f"[-]{check.name} failed: {'; '.join(check.obstacles)}"
    note = check.warning or check.note
    return f"[+]{check.name} ok: {note}" if note else f"[+]{check.name} ok"


async def _front_page(_: web.Request) -> web.Response:
    links = "".join(f'<li><a href="{path}">{path}</a>: {meaning}</li>' for path, meaning in _PAGES.items())
    title = f"dra-operator {VERSION}"
    page = f"<!doctype html><html lang=en><title>{title}</title><h1>{title}</h1><ul>{links}</ul></html>\n"
    return web.Response(text=page, content_type="text/html")
