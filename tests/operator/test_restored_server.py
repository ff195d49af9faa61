"""etcd restored from a backup: resourceVersions start again from a lower one, and the operator starts over."""

from __future__ import annotations

import pytest
from dra_devcluster.apiserver import DevApiServer
from dra_operator.app import audit
from faults import FaultProxy, Refuse, Target
from live_cluster import LiveCluster
from supervised import Supervising
from waiting import until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "GAP", 0.05)


def go_back(server: DevApiServer) -> None:
    """As if the data of a backup were loaded: everything is there, but the next revision is a low one."""
    store = server.registry.store
    store.revision = 3
    for collection in store.collections():
        for stored in list(collection.all()):
            collection.restore(stored.at(2))
        collection._log.clear()


async def test_the_operator_starts_over_when_the_server_went_back_in_time(
    server: DevApiServer,
    cluster: LiveCluster,
    proxy: FaultProxy,
    supervising: Supervising,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await cluster.furnish()
    await cluster.add_template()
    async with supervising() as site:
        await site.ready()
        before = site.operator.control.cluster
        go_back(server)
        proxy.break_streams()

        async def has_new_view() -> bool:
            return site.operator.is_running and site.operator.control.cluster is not before

        await until("new view", has_new_view)
        await cluster.add_pod("pod")
        await cluster.bound("pod")
        await site.ready()
        assert "the API server went back in time" in caplog.text
        await cluster.add_pod("other")  # the new view is kept up to date
        await cluster.bound("other")
        assert site.metric("dra_operator_kopf_restarts_total", reason="failure") <= 1
        assert site.metric("resourceclaim_controller_creates_total", status="success", admin_access="false") == 2


async def test_starting_over_is_repeated_until_the_server_lets_it(
    server: DevApiServer,
    cluster: LiveCluster,
    proxy: FaultProxy,
    supervising: Supervising,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await cluster.furnish()
    await cluster.add_template()
    async with supervising() as site:
        await site.ready()
        go_back(server)
        lists = Target(client="own", verbs=("list",), resource="deviceclasses")
        with proxy.suffering(Refuse(lists, code=503, count=3)):
            proxy.break_streams()

            async def refused() -> bool:
                return [entry.code for entry in proxy.journal.entries].count(503) == 3

            await until("refused", refused)
            await cluster.add_pod("pod")
            await cluster.bound("pod")
        assert "cannot start, tried again" in caplog.text
        assert site.is_live()
