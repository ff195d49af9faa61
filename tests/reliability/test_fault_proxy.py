"""The fault proxy does to requests and watches what its faults say, as often as they say, and nothing by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from dra_devcluster.apiserver import DevApiServer
from dra_kube import (
    CONFIG_MAPS,
    NAMESPACES,
    Api,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    Object,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    connection,
)
from faults import (
    BreakStream,
    CutAfter,
    CutBefore,
    Delay,
    DelayEvents,
    DeliverLate,
    DoubleEvents,
    DropEvents,
    Entry,
    ErrorEvent,
    EventFault,
    Fault,
    FaultProxy,
    Hang,
    Journal,
    Refuse,
    Target,
)
from faults.effects import api_call
from waiting import until

WRITES = Target(verbs=("patch",), resource="configmaps")
WATCHES = Target(verbs=("watch",), resource="configmaps")


@dataclass
class Ground:
    """A server with one ConfigMap, a client that goes there directly, and one that goes through the proxy."""

    proxy: FaultProxy
    direct: Api
    through: Api
    folder: Path

    async def write(self, value: str) -> Object:
        """Patch the ConfigMap through the proxy: HTTP clients never repeat a PATCH by themselves."""
        return await self.through.patch(CONFIG_MAPS, "map", {"data": {"value": value}}, "default")

    async def write_directly(self, value: str) -> None:
        """Patch it past the proxy."""
        await self.direct.patch(CONFIG_MAPS, "map", {"data": {"value": value}}, "default")

    async def value(self) -> str:
        """What the server has."""
        return str((await self.direct.get(CONFIG_MAPS, "map", "default"))["data"]["value"])

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[Callable[[], Any]]:
        """A watch through the proxy from the present on; gives a function that awaits the next event."""
        _, revision = await self.direct.list(CONFIG_MAPS, "default")
        events = self.through.watch(CONFIG_MAPS, "default", resource_version=revision)

        async def following() -> tuple[str, str]:
            event = await asyncio.wait_for(anext(events), 60)
            return event.type, event.object.get("data", {}).get("value", "")

        try:
            yield following
        finally:
            await events.aclose()  # type: ignore[attr-defined]  # declared as an iterator, is a generator


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    async with DevApiServer() as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "direct")
        async with FaultProxy(connection(kubeconfig), seed=1) as proxy, Api(connection(kubeconfig)) as direct:
            through = connection(proxy.write_kubeconfig(tmp_path / "through"))
            async with Api(through, timeout=5) as client:
                await direct.create(
                    CONFIG_MAPS, {"metadata": {"name": "map", "namespace": "default"}, "data": {"value": "old"}}
                )
                yield Ground(proxy, direct, client, tmp_path)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (403, Forbidden),
        (409, Conflict),
        (410, Gone),
        (422, Invalid),
        (429, TooManyRequests),
        (500, ServerError),
        (503, ServerError),
    ],
)
async def test_a_refusal_is_a_status_and_nothing_reaches_the_server(
    ground: Ground, code: int, error: type[ApiError]
) -> None:
    with ground.proxy.suffering(Refuse(WRITES, code=code, message="not today", retry_after=3)):
        with pytest.raises(error, match="not today") as caught:
            await ground.write("new")
    assert caught.value.code == code
    assert caught.value.retry_after == 3
    assert await ground.value() == "old"


@pytest.mark.parametrize(
    ("fault", "value"),
    [
        pytest.param(CutBefore(WRITES), "old", id="cut before effect"),
        pytest.param(CutAfter(WRITES), "new", id="cut after effect"),
        pytest.param(DeliverLate(WRITES, seconds=(60, 60)), "old", id="delivered late: not yet"),
        pytest.param(Hang(WRITES), "old", id="hanging"),
        pytest.param(Delay(WRITES, before=(60, 60)), "old", id="delayed beyond the timeout before effect"),
        pytest.param(Delay(WRITES, after=(60, 60)), "new", id="delayed beyond the timeout after effect"),
    ],
)
async def test_a_client_that_gets_no_answer_cannot_tell_what_the_server_has(
    ground: Ground, fault: Fault, value: str
) -> None:
    with ground.proxy.suffering(fault):
        with pytest.raises(Unreachable):
            await ground.write("new")
    assert await ground.value() == value


async def test_what_is_delivered_late_takes_effect_after_the_client_has_given_up(ground: Ground) -> None:
    with ground.proxy.suffering(DeliverLate(WRITES, seconds=(5, 5.1), count=1)):
        with pytest.raises(Unreachable):
            await ground.write("late")
    await ground.write("in between")
    assert await ground.value() == "in between"

    async def landed() -> bool:
        return await ground.value() == "late"

    await until("the late write", landed)
    late, punctual = ground.proxy.journal.find(WRITES)
    assert late.carried_out_at is not None
    assert punctual.carried_out_at is not None
    assert late.carried_out_at > punctual.carried_out_at


async def test_a_delay_only_takes_time(ground: Ground) -> None:
    loop = asyncio.get_running_loop()
    with ground.proxy.suffering(Delay(WRITES, before=(0.1, 0.2), after=(0.1, 0.2))):
        began = loop.time()
        await ground.write("new")
    assert loop.time() - began >= 0.2
    assert await ground.value() == "new"


@pytest.mark.parametrize("verb", ["get", "update", "delete", "create"])
async def test_the_proxy_never_repeats_a_request_by_itself(ground: Ground, verb: str) -> None:
    """Behind it stands another one that breaks every connection after the effect."""
    inner, body = ground.proxy, {"metadata": {"name": "map", "namespace": "default"}}
    calls: dict[str, Callable[[Api], Awaitable[Object]]] = {
        "get": lambda api: api.get(CONFIG_MAPS, "map", "default"),
        "update": lambda api: api.update(CONFIG_MAPS, body),
        "delete": lambda api: api.delete(CONFIG_MAPS, "map", "default"),
        "create": lambda api: api.create(CONFIG_MAPS, body),
    }
    async with FaultProxy(connection(ground.folder / "through")) as outer:
        async with Api(connection(outer.write_kubeconfig(ground.folder / "outer"))) as client:
            with inner.suffering(CutAfter(Target(resource="configmaps"))):
                with pytest.raises(ServerError, match="does not answer"):
                    await calls[verb](client)
    assert [entry.call.verb for entry in inner.journal.find(Target(resource="configmaps"))] == [verb]


async def test_requests_pass_unharmed_and_once(ground: Ground) -> None:
    """A second identical write would not be noticed by its outcome, so the server's resourceVersions are counted."""
    before = int((await ground.write("first"))["metadata"]["resourceVersion"])
    for number in range(20):
        await ground.write(f"value {number}")
    assert int((await ground.write("last"))["metadata"]["resourceVersion"]) == before + 21
    assert ground.proxy.journal.writes() == {"patch configmaps 200": 22}
    assert not ground.proxy.journal.faults()
    with pytest.raises(NotFound):
        await ground.through.get(CONFIG_MAPS, "no such map", "default")
    labelled = await ground.through.list(CONFIG_MAPS, "default", labelSelector="a in (b, c),d=e")
    assert labelled[0] == []


EVENT_FAULTS: list[Any] = [
    pytest.param((), ["one", "two", "three"], id="none"),
    pytest.param((DoubleEvents(WATCHES, count=1),), ["one", "one", "two", "three"], id="one doubled"),
    pytest.param((DropEvents(WATCHES, skip=1, count=1),), ["one", "three"], id="the second dropped"),
    pytest.param((DelayEvents(WATCHES, seconds=(0.2, 0.2), count=1),), ["one", "two", "three"], id="kept in order"),
    pytest.param((BreakStream(WATCHES, skip=2),), ["one", "two", Unreachable], id="broken"),
    pytest.param((ErrorEvent(WATCHES, skip=1, code=410),), ["one", Gone], id="ERROR 410"),
    pytest.param((ErrorEvent(WATCHES, code=500),), [ServerError], id="ERROR 500"),
    pytest.param((DropEvents(Target(resource="pods")),), ["one", "two", "three"], id="another kind's"),
    pytest.param((DropEvents(Target(name="other")),), ["one", "two", "three"], id="another object's"),
    pytest.param(
        (DoubleEvents(WATCHES, count=1), BreakStream(WATCHES, skip=1)), ["one", "one", Unreachable], id="two together"
    ),
]


@pytest.mark.parametrize(("faults", "seen"), EVENT_FAULTS)
async def test_a_watch_brings_what_its_faults_leave_of_it(
    ground: Ground, faults: tuple[EventFault, ...], seen: list[Any]
) -> None:
    with ground.proxy.suffering(*faults):
        async with ground.watched() as following:
            for value in ("one", "two", "three"):
                await ground.write_directly(value)
            for value in seen:
                if isinstance(value, str):
                    assert await following() == ("MODIFIED", value)
                else:
                    with pytest.raises(value):
                        await following()


@pytest.mark.parametrize(
    ("fault", "error"),
    [(Refuse(WATCHES, code=410), Gone), (Refuse(WATCHES, code=403), Forbidden), (CutBefore(WATCHES), Unreachable)],
    ids=lambda value: value.__name__ if isinstance(value, type) else type(value).__name__,
)
async def test_a_watch_may_not_even_begin(ground: Ground, fault: Fault, error: type[Exception]) -> None:
    with ground.proxy.suffering(fault):
        async with ground.watched() as following:
            with pytest.raises(error):
                await following()


async def test_all_streams_can_be_broken_at_once(ground: Ground) -> None:
    async with ground.watched() as following:
        await ground.write_directly("seen")
        assert await following() == ("MODIFIED", "seen")
        ground.proxy.break_streams("pods")
        ground.proxy.break_streams("configmaps")
        with pytest.raises(Unreachable):
            await following()


async def test_lists_can_be_forbidden_and_everything_else_passes(ground: Ground) -> None:
    with ground.proxy.suffering(Refuse(Target(verbs=("list",), resource="configmaps"), code=403)):
        with pytest.raises(Forbidden):
            await ground.through.list(CONFIG_MAPS, "default")
        assert await ground.through.get(CONFIG_MAPS, "map", "default")
        assert await ground.through.list(NAMESPACES)


async def test_faults_tell_clients_apart_and_strangers_are_not_served(ground: Ground) -> None:
    other = connection(ground.proxy.write_kubeconfig(ground.folder / "other", client="other"))
    with ground.proxy.suffering(Refuse(Target(client="other"), code=403)):
        async with Api(other) as client:
            with pytest.raises(Forbidden):
                await client.get(CONFIG_MAPS, "map", "default")
        assert await ground.through.get(CONFIG_MAPS, "map", "default")
    assert [entry.client for entry in ground.proxy.journal.find(Target(client="oth*"))] == ["other"]
    ground.proxy.write_kubeconfig(ground.folder / "other", client="other")
    stranger = connection(ground.folder / "other")
    async with FaultProxy(ground.direct.connection) as another:
        async with Api(stranger.__class__(another.url, None, stranger.authorization)) as client:
            with pytest.raises(Unauthorized):
                await client.get(CONFIG_MAPS, "map", "default")


async def struck(ground: Ground, fault: Fault, names: list[str]) -> set[str]:
    """The maps whose creation was refused."""
    refused = set()
    with ground.proxy.suffering(fault):
        for name in names:
            try:
                await ground.through.get(CONFIG_MAPS, name, "default")
            except NotFound:
                continue
            except ServerError:
                refused.add(name)
    return refused


async def test_a_fault_strikes_in_proportion(ground: Ground) -> None:
    names = [f"map-{number}" for number in range(300)]
    refused = await struck(ground, Refuse(Target(name="map-*"), probability=0.3, code=500), names)
    assert 60 <= len(refused) <= 120
    assert ground.proxy.journal.faults() == {"Refuse": len(refused)}


async def test_the_same_seed_strikes_the_same_requests_in_whatever_order_they_come(ground: Ground) -> None:
    names = [f"map-{number}" for number in range(100)]
    fault = Refuse(Target(name="map-*"), probability=0.5, code=500)
    first = await struck(ground, fault, names)
    async with (
        FaultProxy(ground.direct.connection, seed=1) as same,
        FaultProxy(ground.direct.connection, seed=2) as other,
    ):
        outcomes = []
        for number, proxy in enumerate((same, other)):
            async with Api(connection(proxy.write_kubeconfig(ground.folder / f"again-{number}"))) as client:
                again = Ground(proxy, ground.direct, client, ground.folder)
                outcomes.append(await struck(again, fault, names[::-1]))
    assert outcomes[0] == first
    assert outcomes[1] != first


async def test_a_fault_can_spare_the_first_and_strike_a_few(ground: Ground) -> None:
    with ground.proxy.suffering(Refuse(WRITES, code=403, skip=2, count=3)):
        for number in range(7):
            with suppress(Forbidden):
                await ground.write(str(number))
    codes = [entry.code for entry in ground.proxy.journal.find(WRITES)]
    assert codes == [200, 200, 403, 403, 403, 200, 200]


async def test_writes_that_are_on_their_way_end_with_the_proxy(ground: Ground) -> None:
    async with FaultProxy(ground.direct.connection) as proxy:
        async with Api(connection(proxy.write_kubeconfig(ground.folder / "ending"))) as client:
            with proxy.suffering(DeliverLate(WRITES, seconds=(0.05, 0.05))):
                with pytest.raises(Unreachable):
                    await client.patch(CONFIG_MAPS, "map", {"data": {"value": "late"}}, "default")
    assert [entry.carried_out for entry in proxy.journal.find(WRITES)] == [None]


def test_a_process_that_was_paused_has_one_write_free_whatever_overtakes_it() -> None:
    """The thread of its lease may ask first when the process is woken; a question is no write."""
    journal, pods = Journal(), "/api/v1/namespaces/default/pods"
    leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
    sent = [("POST", f"{pods}/early/binding"), ("GET", f"{leases}/lease"), ("PUT", f"{leases}/lease")]
    sent += [("GET", f"{pods}/one"), ("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews")]
    sent += [("POST", f"{pods}/one/binding"), ("PUT", f"{pods}/one/status")]
    journal.entries += [Entry(float(at), "one", api_call(*request)) for at, request in enumerate(sent)]
    journal.entries.append(Entry(9.0, "other", api_call("POST", pods)))
    assert [str(entry.call) for entry in journal.begun_since(1.0, "one")] == ["update pods/status default/one"]
