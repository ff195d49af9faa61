"""etcd restored from a backup: resourceVersions start again from a lower one, and the operator starts over."""

from __future__ import annotations

from contextlib import nullcontext

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


@pytest.mark.parametrize(
    ("refusals", "said"),
    [(0, "the API server went back in time"), (3, "cannot start, tried again")],
    ids=["at once", "when the server lets it"],
)
async def test_the_operator_starts_over_when_the_server_went_back_in_time(
    refusals: int,
    said: str,
    server: DevApiServer,
    cluster: LiveCluster,
    proxy: FaultProxy,
    supervising: Supervising,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await cluster.furnish()
    await cluster.add_template()
    lists = Target(client="own", verbs=("list",), resource="deviceclasses")
    async with supervising() as site:
        await site.ready()
        before = site.operator.control.cluster
        go_back(server)
        with proxy.suffering(Refuse(lists, code=503, count=refusals)) if refusals else nullcontext():
            proxy.break_streams()

            async def has_new_view() -> bool:
                return site.operator.is_running and site.operator.control.cluster is not before

            await until("new view", has_new_view)
        assert [entry.code for entry in proxy.journal.entries].count(503) == refusals
        await cluster.place("pod")
        await site.ready()
        assert said in caplog.text
        await cluster.add_pod("other")  # the new view is kept up to date
        await cluster.bound("other")
        assert site.is_live()
        assert site.metric("dra_operator_kopf_restarts_total", reason="failure") <= 1
        assert site.metric("resourceclaim_controller_creates_total", status="success", admin_access="false") == 2
