"""An API server that fails, and objects that cannot be read: nothing is lost, no other pod is affected."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from dra_devcluster.agent import agent
from dra_devcluster.agent.pods import Pods
from dra_kube import Api, Change, Gone, KubeError, Resource, ServerError, Unreachable
from fake_plugin import FakePlugin
from one_node import OneNode
from waiting import becomes

Json = dict[str, Any]


class Faults:
    """Makes a method of the client fail for the next few calls."""

    def __init__(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        self._api = api
        self._monkeypatch = monkeypatch
        self.left = 0

    def next_calls(self, method: str, count: int, error: Exception) -> None:
        original = getattr(self._api, method)
        self.left = count

        async def call(*arguments: Any, **options: Any) -> Any:
            if self.left:
                self.left -= 1
                raise error
            return await original(*arguments, **options)

        self._monkeypatch.setattr(self._api, method, call)

    def next_pages(self, count: int, error: Exception) -> None:
        self._next("listed", count, error)

    def next_watches(self, count: int, error: Exception) -> None:
        self._next("changes", count, error)

    def _next(self, method: str, count: int, error: Exception) -> None:
        """The generator of that name fails so many times before it brings anything."""
        original = getattr(self._api, method)
        self.left = count

        async def failing(*arguments: Any, **options: Any) -> AsyncIterator[Any]:
            if self.left:
                self.left -= 1
                raise error
            async for batch in original(*arguments, **options):
                yield batch

        self._monkeypatch.setattr(self._api, method, failing)


@pytest.fixture
def faults(node: OneNode, monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(node.api, monkeypatch)


async def test_a_node_is_registered_as_soon_as_the_server_answers(node: OneNode, faults: Faults) -> None:
    await node.stop()
    faults.next_calls("create", 2, Unreachable("injected"))
    await node.start()
    assert faults.left == 0


async def test_a_task_that_crashes_is_started_again(
    node: OneNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await node.stop()
    monkeypatch.setattr(agent, "_REVIVAL_SECONDS", 0.01)
    run, crashes = Pods.run, iter([RuntimeError("injected")])

    async def crash_first(pods: Pods) -> None:
        if error := next(crashes, None):
            raise error
        await run(pods)

    monkeypatch.setattr(Pods, "run", crash_first)
    await node.start()
    await node.pod("pod-a", "exit 0")
    await node.phase("pod-a", "Succeeded")
    assert "node node-1: the task for pods has crashed and is restarted" in caplog.text


async def test_a_status_that_cannot_be_written_is_written_later(node: OneNode, faults: Faults) -> None:
    faults.next_calls("patch", 5, ServerError(500, "InternalError", "injected"))
    await node.pod("pod-a", "exit 0")
    await node.phase("pod-a", "Succeeded")
    assert faults.left == 0


async def test_a_deletion_that_fails_is_repeated(node: OneNode, faults: Faults) -> None:
    await node.pod("pod-a")
    await node.phase("pod-a", "Running")
    await node.delete("pod-a")
    faults.next_calls("delete", 3, Unreachable("injected"))
    await node.gone("pod-a")


@pytest.mark.parametrize("error", [Gone(410, "Expired", "injected"), Unreachable("injected")])
async def test_pods_are_followed_again_after_a_watch_has_failed(
    error: KubeError, node: OneNode, faults: Faults
) -> None:
    await node.stop()
    faults.next_watches(2, error)
    await node.start()
    await becomes(lambda: faults.left == 0)
    await node.pod("pod-a", "exit 0")
    await node.phase("pod-a", "Succeeded")


async def test_an_answer_that_is_not_expected_ends_no_loop(node: OneNode, faults: Faults) -> None:
    await node.stop()
    faults.next_pages(1, ValueError("injected"))
    await node.start()
    await node.pod("pod-a", "exit 0")
    await node.phase("pod-a", "Succeeded")
    assert faults.left == 0


async def test_a_claim_that_cannot_be_read_is_read_again(node: OneNode, plugin: FakePlugin, faults: Faults) -> None:
    await node.pod("pod-a", "exit 0", claims=("gpu",))
    await node.claim("gpu", "pod-a")
    faults.next_calls("get", 2, ServerError(503, "ServiceUnavailable", "injected"))
    await becomes(lambda: plugin.unprepared == [["gpu"]])
    assert faults.left == 0
    await node.phase("pod-a", "Succeeded")


async def test_events_are_dropped_rather_than_hold_anything_up(node: OneNode, faults: Faults) -> None:
    await node.pod("pod-a", "exit 0")
    faults.next_calls("create", 1000, Unreachable("injected"))
    await node.phase("pod-a", "Succeeded")


async def test_a_pod_that_cannot_be_read_costs_only_itself(
    node: OneNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await node.stop()
    original = node.api.listed
    bad = {"metadata": {"name": "bad", "namespace": "default", "uid": "bad"}, "spec": {"containers": 5}}

    async def listing(
        resource: Resource, *arguments: Any, **options: Any
    ) -> AsyncIterator[tuple[Sequence[Change], str]]:
        yield [Change.of("LISTED", bad, resource)], "0"
        async for page in original(resource, *arguments, **options):
            yield page

    monkeypatch.setattr(node.api, "listed", listing)
    await node.start()
    await node.pod("pod-a", "exit 0")
    await node.phase("pod-a", "Succeeded")
    assert "pod default/bad cannot be read and is ignored" in caplog.text
