"""What the metrics port answers: probes with and without ``?verbose``, and a page that leads to everything."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import aiohttp
import pytest
from dra_operator.app.probes import Check, serve
from prometheus_client import CollectorRegistry, Gauge
from rude_clients import Fixed
from supervised import LiveCluster, Supervising

FINE = (Check("controllers", []),)
BROKEN = (Check("lease", [], "ours"), Check("watch-pods", ["pods: not watched yet"]), Check("kinds", ["a", "b"]))


@asynccontextmanager
async def served(live: Sequence[Check], ready: Sequence[Check]) -> AsyncIterator[aiohttp.ClientSession]:
    async with (
        serve("127.0.0.1", 0, Fixed(live, ready)) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http,
    ):
        yield http


@pytest.mark.parametrize(
    ("path", "code", "text"),
    [
        ("/livez", 200, "ok\n"),
        ("/healthz", 200, "ok\n"),
        ("/livez?verbose", 200, "[+]controllers ok\nlivez check passed\n"),
        ("/healthz?verbose=1", 200, "[+]controllers ok\nhealthz check passed\n"),
        ("/readyz", 503, "pods: not watched yet\na\nb\n"),
        (
            "/readyz?verbose",
            503,
            "[+]lease ok: ours\n[-]watch-pods failed: pods: not watched yet\n[-]kinds failed: a; b\n"
            "readyz check failed\n",
        ),
        ("/readyz?exclude=kinds", 503, "pods: not watched yet\n"),
        ("/readyz?exclude=kinds&exclude=watch-pods", 200, "ok\n"),
        (
            "/readyz?verbose&exclude=kinds&exclude=watch-pods",
            200,
            "[+]lease ok: ours\n[+]watch-pods excluded\n[+]kinds excluded\nreadyz check passed\n",
        ),
    ],
)
async def test_a_probe_says_what_is_wrong_and_verbosely_what_is_not(path: str, code: int, text: str) -> None:
    async with served(FINE, BROKEN) as http, http.get(path) as answer:
        assert (answer.status, await answer.text()) == (code, text)


@pytest.mark.parametrize(
    ("path", "code", "text"),
    [
        ("/readyz", 200, "ok\nlast-look: late: away\n"),
        ("/readyz?exclude=last-look", 200, "ok\n"),
        ("/readyz?verbose", 200, "[+]controllers ok\n[+]last-look ok: late: away\nreadyz check passed\n"),
        ("/livez", 503, "a\nlast-look: late: away\n"),
    ],
)
async def test_a_warning_is_told_to_all_and_fails_nothing(path: str, code: int, text: str) -> None:
    late = Check("last-look", [], warning="late: away")
    async with (
        served((Check("kinds", ["a"]), late), (Check("controllers", []), late)) as http,
        http.get(path) as answer,
    ):
        assert (answer.status, await answer.text()) == (code, text)


async def test_a_late_look_at_the_claims_is_told_by_the_operator(
    cluster: LiveCluster, supervising: Supervising
) -> None:
    await cluster.furnish()
    async with supervising() as site:
        await site.ready()
        control = site.supervisor.operator._running.control
        for why in ("the API server does not say which claims are allocated", ""):
            control.conflict_check.obstacle = why
            (check,) = (it for it in site.supervisor.health.readiness() if it.name == "last-look")
            assert (check.warning, check.obstacles) == (why, [])


async def test_a_client_that_stopped_reading_does_not_hold_up_the_end() -> None:
    registry = CollectorRegistry()
    Gauge("large", "x" * 2**24, registry=registry)  # more than sockets take in
    async with asyncio.timeout(30):
        async with serve("127.0.0.1", 0, Fixed((), (), registry)) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")
            assert b"200" in await reader.readline()
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def test_every_link_of_the_front_page_leads_somewhere() -> None:
    async with served(FINE, FINE) as http:
        async with http.get("/") as answer:
            assert answer.content_type == "text/html"
            links = re.findall(r'href="([^"]+)"', await answer.text())
        assert {link.partition("?")[0] for link in links} == {"/metrics", "/livez", "/readyz", "/healthz"}
        for link in links:
            async with http.get(link) as answer:
                assert answer.status == 200
        async with http.get("/nowhere") as answer:
            assert answer.status == 404


async def test_a_running_operator_names_a_check_for_each_kind_that_it_watches(
    cluster: LiveCluster, supervising: Supervising
) -> None:
    await cluster.furnish()
    async with supervising() as site:
        await site.ready()
        names = [check.name for check in site.supervisor.health.readiness()]
        assert names[:4] == ["controllers", "listing", "kubernetes", "kinds"]
        assert {"watch-pods", "watch-nodes", "watch-resourceclaims", "watch-resourceslices"} <= set(names)
