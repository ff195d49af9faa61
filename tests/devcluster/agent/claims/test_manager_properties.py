"""Whatever pods, failures and restarts come in whatever order: claims are prepared while used, and given back once.

Drivers are plain objects here, so that thousands of histories can be played without sockets.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import Any

from dra_api.codec import convert
from dra_api.core import Pod
from dra_devcluster.agent import AgentSettings
from dra_devcluster.agent.claims import DraManager
from dra_devcluster.agent.errors import ClaimError
from dra_devcluster.agent.plugins.plugin import ClaimRef, PreparedDevice
from hypothesis import example, given, settings
from hypothesis import strategies as st
from objects import user
from rounds import fewer

PODS = ("a", "b", "c")
History = list[tuple[str, str, AbstractSet[str]]]
CLAIMS = {"x": ("d1",), "y": ("d1", "d2"), "z": ("d2",)}

steps: st.SearchStrategy[History] = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.sampled_from(PODS), st.sets(st.sampled_from(sorted(CLAIMS)), min_size=1)),
        st.tuples(st.just("end"), st.sampled_from(PODS), st.just(frozenset())),
        st.tuples(st.just("reallocate"), st.just(""), st.sets(st.sampled_from(sorted(CLAIMS)), min_size=1, max_size=1)),
        st.tuples(st.sampled_from(["break d1", "break d2", "repair", "restart"]), st.just(""), st.just(frozenset())),
    ),
    max_size=25,
)


class Driver:
    """Remembers which allocation of a claim it has prepared, and fails on request."""

    connected = True
    endpoint = "nowhere"

    def __init__(self, driver: str, claims: Claims) -> None:
        self.driver = driver
        self.broken = False
        self.prepared: dict[str, int] = {}
        self._claims = claims

    async def prepare(self, claims: Iterable[ClaimRef], timeout: float) -> dict[str, tuple[PreparedDevice, ...]]:
        if self.broken:
            raise ClaimError("injected")
        names = [claim.name for claim in claims]
        for name in names:
            self.prepared.setdefault(name, self._claims.allocations[name])
        return {f"uid-{name}": (PreparedDevice("p", name, cdi_ids=(f"v/{self.driver}={name}",)),) for name in names}

    async def unprepare(self, claims: Iterable[ClaimRef], timeout: float) -> None:
        if self.broken:
            raise ClaimError("injected")
        for claim in claims:
            self.prepared.pop(claim.name, None)


class Claims:
    """All claims, allocated and reserved for all pods; ``allocations`` counts how often each was allocated."""

    def __init__(self) -> None:
        self.allocations = dict.fromkeys(CLAIMS, 1)

    async def get(self, resource: Any, name: str, namespace: str | None = None) -> dict[str, Any]:
        device = f"{name}-{self.allocations[name]}"
        results = [{"request": "r", "driver": driver, "pool": "p", "device": device} for driver in CLAIMS[name]]
        consumers = [user(pod) for pod in PODS]
        return {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
            "status": {"allocation": {"devices": {"results": results}}, "reservedFor": consumers},
        }


def pod_of(name: str, claims: Iterable[str]) -> Pod:
    entries = [{"name": claim, "resourceClaimName": claim} for claim in sorted(claims)]
    references = [{"name": claim} for claim in sorted(claims)]
    return convert(
        Pod,
        {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
            "spec": {"resourceClaims": entries, "containers": [{"name": "c", "resources": {"claims": references}}]},
        },
    )


def manager_at(root: Path, claims: Claims, drivers: Iterable[Driver]) -> DraManager:
    manager = DraManager(claims, "node", root, AgentSettings())  # type: ignore[arg-type]  # reads claims only
    for driver in drivers:
        manager.plugins.add(driver)  # type: ignore[arg-type]  # a driver without a socket
    return manager


async def play(history: History, root: Path) -> None:
    claims = Claims()
    drivers = {name: Driver(name, claims) for name in ("d1", "d2")}
    manager = manager_at(root, claims, drivers.values())
    running: dict[str, dict[str, int]] = {}
    for action, pod, names in history:
        if action == "start" and pod not in running:
            with suppress(ClaimError):
                await manager.prepare(pod_of(pod, names))
                running[pod] = {name: claims.allocations[name] for name in names}
        elif action == "end":
            running.pop(pod, None)
            with suppress(ClaimError):
                await manager.unprepare(f"uid-{pod}")
        elif action == "restart":
            manager = manager_at(root, claims, drivers.values())
        elif action == "reallocate":
            for name in names:
                claims.allocations[name] += 1
        elif action == "repair":
            for driver in drivers.values():
                driver.broken = False
        elif action.startswith("break"):
            drivers[action[-2:]].broken = True
        check(manager, drivers, running)
    for driver in drivers.values():
        driver.broken = False
    await manager.reconcile(set)
    assert list(manager.cache) == []
    assert not any(driver.prepared for driver in drivers.values())


def check(manager: DraManager, drivers: dict[str, Driver], running: dict[str, dict[str, int]]) -> None:
    """All drivers have prepared the claims of a running pod as they were allocated when the pod started, and each
    device's id is given once.
    """
    for name, claims in running.items():
        for claim, allocation in claims.items():
            assert [drivers[driver].prepared.get(claim) for driver in CLAIMS[claim]] == [allocation] * len(
                CLAIMS[claim]
            )
        pod = pod_of(name, claims)
        assert pod.spec.containers is not None
        ids = manager.cdi_devices(pod, pod.spec.containers[0])
        assert sorted(ids) == sorted(f"v/{driver}={claim}" for claim in claims for driver in CLAIMS[claim])


@settings(max_examples=fewer(60))
@given(steps)
@example([("start", "a", {"x"}), ("reallocate", "", {"x"}), ("start", "b", {"x"})])
def test_claims_are_prepared_while_they_are_used_and_all_given_back_at_the_end(history: History) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(history, Path(folder)))
