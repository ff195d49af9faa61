"""etcd restored from a backup: resourceVersions start again from a lower one, and the operator starts over."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from contextlib import nullcontext

import pytest
from dra_devcluster.apiserver import DevApiServer
from dra_operator.app import operator
from dra_operator.cache import Cluster
from dra_operator.sources import audit
from faults import FaultProxy, Refuse, Target
from supervised import LiveCluster, Supervising
from waiting import until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "AUDIT_GAP_SECONDS", 0.05)


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
    [(0, "the API server went back in time"), (3, "start failed, retrying in")],
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
    await cluster.furnish(template=True)
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
        assert site.metric("resourceclaim_controller_creates_total", status="success", admin_access="false") == 2


async def test_the_former_view_is_gone_when_the_memory_of_the_new_one_is_settled(
    server: DevApiServer,
    cluster: LiveCluster,
    proxy: FaultProxy,
    supervising: Supervising,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or it would count as what lives as long as the process, and take its memory for ever."""
    await cluster.furnish()
    views: list[weakref.ref[Cluster]] = []
    kept: list[Cluster | None] = []

    def settle() -> None:
        gc.collect()
        kept.extend(view() for view in views)

    monkeypatch.setattr(operator, "settle_memory", settle)
    async with supervising() as site:
        await site.ready()
        views.append(weakref.ref(site.operator.control.cluster))
        go_back(server)
        proxy.break_streams()

        async def has_started_over() -> bool:
            return bool(kept)

        await until("a new view", has_started_over)
    assert kept == [None]


SETTLED_TWICE = """
import gc, weakref
from dra_operator.app.operator import settle_memory
class View: pass
view = View()
view.itself, former = view, weakref.ref(view)
settle_memory()
del view
settle_memory()
print(former())
"""


def test_what_was_settled_and_is_not_used_any_more_is_collected_when_memory_is_settled_again() -> None:
    answer = subprocess.run([sys.executable, "-c", SETTLED_TWICE], capture_output=True, text=True, check=True)
    assert answer.stdout == "None\n"


def test_an_operator_in_the_process_of_the_tests_makes_no_collection_of_theirs_longer() -> None:
    """To look at all tests again and again was a third of their time."""
    operator.settle_memory()
    assert gc.get_freeze_count() > 100_000
