"""Registration over real sockets, and the wiping of stale slices (KM-01 to KM-10)."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, cast

import pytest
from dra_devcluster.agent import AgentSettings
from dra_devcluster.agent.errors import RegistrationError
from dra_devcluster.agent.plugins import registration
from dra_devcluster.agent.plugins import watcher as watching
from dra_devcluster.agent.plugins.registration import Registrar, SliceWiper
from dra_devcluster.agent.settings import HostPaths
from dra_kube import Api, KubeError, NotFound, Resource, ServerError, Unauthorized, Unreachable
from fake_plugin import FakePlugin, MakePlugin
from one_node import OneNode
from waiting import becomes


class Handler:
    """Writes down what it is asked to do, and refuses on request."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.invalid = ""
        self.broken = ""

    def validate(self, name: str, endpoint: str, versions: Sequence[str]) -> None:
        self.calls.append(("validate", endpoint))
        if self.invalid:
            raise RegistrationError(self.invalid)

    async def register(self, name: str, endpoint: str, versions: Sequence[str]) -> None:
        self.calls.append(("register", endpoint))
        if self.broken:
            raise RegistrationError(self.broken)

    async def deregister(self, name: str, endpoint: str) -> None:
        self.calls.append(("deregister", endpoint))


@pytest.fixture
def handler() -> Handler:
    return Handler()


@pytest.fixture(params=["inotify", "no inotify"])
async def registrar(
    request: pytest.FixtureRequest,
    short_path: Path,
    handler: Handler,
    fast: AgentSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Registrar]:
    if request.param == "no inotify":
        monkeypatch.setattr(watching, "inotify_simple", None)
    registrar = registrar_at(short_path, handler, fast)
    task = asyncio.create_task(registrar.run())
    yield registrar
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def registrar_at(root: Path, handler: Handler, settings: AgentSettings, **options: Any) -> Registrar:
    paths = HostPaths(root, root / "cdi")
    return Registrar(root / "plugins_registry", {"DRAPlugin": handler}, settings, paths, **options)


@pytest.fixture
def plugin(make_plugin: MakePlugin) -> FakePlugin:
    return make_plugin()


@pytest.mark.rule("KM-04")
async def test_a_plugin_is_registered_when_its_socket_appears_and_deregistered_when_it_goes(
    registrar: Registrar, handler: Handler, plugin: FakePlugin
) -> None:
    endpoint = str(plugin.service_socket)
    await plugin.register()
    await becomes(lambda: plugin.statuses == [(True, "")])
    await plugin.unregister()
    await becomes(lambda: handler.calls == [(call, endpoint) for call in ("validate", "register", "deregister")])


@pytest.mark.rule("KM-01")
async def test_sockets_that_lie_there_at_the_start_are_registered(
    plugin: FakePlugin, short_path: Path, handler: Handler, fast: AgentSettings
) -> None:
    await plugin.register()
    task = asyncio.create_task(registrar_at(short_path, handler, fast).run())
    await becomes(lambda: plugin.statuses == [(True, "")])
    task.cancel()


async def test_a_plugin_is_left_to_the_kubelet_that_has_the_same_directory(
    plugin: FakePlugin, short_path: Path, handler: Handler, fast: AgentSettings
) -> None:
    await plugin.register()
    registrar = registrar_at(short_path, handler, fast, is_for_kubelet=lambda info: info.name == plugin.driver)
    task = asyncio.create_task(registrar.run())
    await becomes(lambda: plugin.infos > 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (handler.calls, plugin.statuses) == ([], [])


async def test_a_plugin_is_registered_at_once_not_after_a_period(
    plugin: FakePlugin, short_path: Path, handler: Handler, fast: AgentSettings
) -> None:
    """A person who brings up a cluster waits for it."""
    settings = replace(fast, plugin_period=3600.0)
    task = asyncio.create_task(registrar_at(short_path, handler, settings).run())
    await becomes(lambda: open_inotify() == 1)
    await plugin.register()
    await becomes(lambda: plugin.statuses == [(True, "")])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def open_inotify() -> int:
    """Instances of this process."""
    fds = Path("/proc/self/fd")
    return sum(os.readlink(fds / name) == "anon_inode:inotify" for name in os.listdir(fds) if (fds / name).exists())


async def test_all_nodes_of_a_process_share_one_instance_of_inotify(
    short_path: Path, handler: Handler, fast: AgentSettings
) -> None:
    """A user may have 128 of them, as systems come."""
    others = open_inotify()  # nodes of tests before this one may live as long as the process
    registrars = [registrar_at(short_path / f"node-{number}", handler, fast) for number in range(5)]
    tasks = [asyncio.create_task(registrar.run()) for registrar in registrars]
    for number in range(5):
        folder = short_path / f"node-{number}" / "plugins_registry"
        await becomes(folder.exists)
        (folder / "sub").mkdir()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "sub" / "it.sock"))
        await becomes(lambda number=number: registrars[number].sockets.desired)  # type: ignore[misc]
    assert open_inotify() == others + 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert open_inotify() == others


@pytest.mark.parametrize("limit", ["max_user_instances", "max_user_watches"])
async def test_a_limit_of_inotify_is_said_once_with_the_remedy_and_sockets_are_looked_for(
    limit: str,
    short_path: Path,
    handler: Handler,
    fast: AgentSettings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    make_plugin: MakePlugin,
) -> None:
    def exhausted(*_: object, **__: object) -> None:
        number = errno.EMFILE if limit == "max_user_instances" else errno.ENOSPC
        raise OSError(number, os.strerror(number))

    what = "__init__" if limit == "max_user_instances" else "add_watch"
    monkeypatch.setattr(f"inotify_simple.INotify.{what}", exhausted)
    roots = [short_path, short_path / "other"]
    tasks = [asyncio.create_task(registrar_at(root, handler, fast).run()) for root in roots]
    await becomes((roots[-1] / "plugins_registry").exists)
    plugin = make_plugin()
    await plugin.register()
    await becomes(lambda: plugin.statuses == [(True, "")])
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    (said,) = [record.getMessage() for record in caplog.records if "inotify" in record.getMessage()]
    assert f"sudo sysctl fs.inotify.{limit}=" in said


async def test_a_plugin_in_a_container_may_give_its_endpoint_as_the_node_sees_it(
    registrar: Registrar, handler: Handler, plugin: FakePlugin, short_path: Path
) -> None:
    plugin.endpoint = "/var/lib/kubelet/plugins/gpu/dra.sock"
    await plugin.register()
    await becomes(lambda: plugin.statuses == [(True, "")])
    assert handler.calls[-1] == ("register", str(short_path / "plugins" / "gpu" / "dra.sock"))


async def test_a_plugin_is_reached_at_paths_that_are_longer_than_an_address_may_be(
    node: OneNode, make_plugin: MakePlugin
) -> None:
    """As in a container: the plugin has a shorter path to the folder in which it listens."""
    await node.stop()
    node.root = node.root / ("n" * (78 - len(str(node.root))))
    node.root.mkdir()
    folder = os.open(node.root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        await node.start()
        plugin = make_plugin(root=Path(f"/proc/self/fd/{folder}"))
        plugin.endpoint = str(node.root / plugin.service_socket.relative_to(f"/proc/self/fd/{folder}"))
        plugin.cdi_root = node.cdi_root
        assert len(plugin.endpoint) > 107
        async with plugin:
            await becomes(lambda: plugin.statuses == [(True, "")])
            await node.pod("pod-a", "exit 0", claims=("claim",))
            await node.claim("claim", "pod-a")
            await node.phase("pod-a", "Succeeded")
            assert plugin.prepared == [["claim"]]
    finally:
        os.close(folder)


@pytest.mark.rule("KM-01")
async def test_sockets_in_new_sub_directories_count_and_other_files_do_not(
    registrar: Registrar, plugin: FakePlugin, short_path: Path
) -> None:
    folder = short_path / "plugins_registry"
    await becomes(folder.is_dir)
    (folder / "file.sock").write_text("no socket")
    hidden = socket.socket(socket.AF_UNIX)
    hidden.bind(str(folder / ".hidden.sock"))
    plugin.registration_socket = folder / "deep" / "er" / "reg.sock"
    await plugin.register()
    await becomes(lambda: plugin.statuses == [(True, "")])
    assert list(registrar.sockets.desired) == [str(plugin.registration_socket)]
    hidden.close()


@pytest.mark.rule("KM-02")
async def test_a_socket_made_anew_registers_again(registrar: Registrar, handler: Handler, plugin: FakePlugin) -> None:
    await plugin.register()
    await becomes(lambda: plugin.statuses == [(True, "")])
    await plugin.unregister()
    await plugin.register()
    await becomes(lambda: plugin.statuses == [(True, "")] * 2)
    calls = [call for call, _ in handler.calls]
    assert calls == ["validate", "register", "deregister", "validate", "register"]


@pytest.mark.rule("KM-04")
async def test_without_an_endpoint_the_registration_socket_serves(
    registrar: Registrar, handler: Handler, plugin: FakePlugin
) -> None:
    plugin.endpoint = ""
    await plugin.register()
    await becomes(lambda: ("register", str(plugin.registration_socket)) in handler.calls)


REFUSALS: dict[str, tuple[Callable[[Handler, FakePlugin], object], str]] = {
    "the type is unknown": (lambda handler, plugin: setattr(plugin, "type", "CSIPlugin"), "CSIPlugin"),
    "validation fails": (lambda handler, plugin: setattr(handler, "invalid", "no such version"), "no such version"),
    "registration fails": (lambda handler, plugin: setattr(handler, "broken", "taken"), "taken"),
}


@pytest.mark.rule("KM-04")
@pytest.mark.parametrize("case", REFUSALS)
async def test_a_refused_plugin_is_told_why_and_tried_again(
    case: str, registrar: Registrar, handler: Handler, plugin: FakePlugin
) -> None:
    arrange, text = REFUSALS[case]
    arrange(handler, plugin)
    await plugin.register()
    await becomes(lambda: len(plugin.statuses) >= 2)
    registered, error = plugin.statuses[0]
    assert not registered
    assert error.startswith("RegisterPlugin error -- plugin registration failed with err: ")
    assert text in error
    assert registrar.sockets.actual == {}
    handler.invalid = handler.broken = ""
    plugin.type = "DRAPlugin"
    await becomes(lambda: plugin.statuses[-1] == (True, ""))


@pytest.mark.rule("KM-04")
async def test_a_plugin_that_cannot_be_notified_is_deregistered(
    registrar: Registrar, handler: Handler, plugin: FakePlugin
) -> None:
    plugin.notify_failures = 1
    await plugin.register()
    await becomes(lambda: plugin.statuses == [(True, "")])
    calls = [call for call, _ in handler.calls]
    assert calls == ["validate", "register", "deregister", "validate", "register"]


@pytest.mark.rule("KM-03")
async def test_a_socket_on_which_no_process_listens_does_not_hold_up_others(
    registrar: Registrar, plugin: FakePlugin, short_path: Path
) -> None:
    await becomes((short_path / "plugins_registry").is_dir)
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(short_path / "plugins_registry" / "dead.sock"))
    await plugin.register()
    await becomes(lambda: plugin.statuses == [(True, "")])
    dead.close()


# --- slices (KM-10) ---


async def test_nod040_at_the_start_the_slices_of_this_node_go_and_no_others(node: OneNode) -> None:
    await node.shows_slices()
    await node.stop()
    await node.publish("own")
    await node.publish("other-driver", driver="nic.example.com")
    await node.publish("other-node", node_name="node-2")
    await node.publish("network", node_name="")
    await node.start()
    await node.shows_slices("other-node", "network")


class UnwillingServer:
    """Answers each request with the next error; without more of them, it does what it is asked to."""

    def __init__(self, *errors: KubeError) -> None:
        self.errors = list(errors)
        self.wiped: list[str] = []

    async def get(self, resource: Resource, name: str) -> dict[str, Any]:
        self._answer()
        return {}

    async def delete_collection(self, resource: Resource, fieldSelector: str) -> None:  # noqa: N803  # the API's name
        self._answer()
        self.wiped.append(fieldSelector)

    def _answer(self) -> None:
        if self.errors:
            raise self.errors.pop(0)


@pytest.mark.rule("KM-10")
async def test_a_wipe_is_repeated_until_it_succeeds(fast: AgentSettings) -> None:
    """The Node is not there yet, then the credentials are not, then the server fails."""
    errors = [
        NotFound(404, "NotFound", ""),
        Unauthorized(401, "Unauthorized", ""),
        ServerError(500, "InternalError", ""),
    ]
    server = UnwillingServer(*errors, Unreachable("refused"))
    wiper = SliceWiper(cast(Api, server), "node-1", fast)
    wiper.start()
    await becomes(lambda: server.wiped == ["spec.nodeName=node-1"])
    assert server.errors == []
    await wiper.close()


LOSSES: dict[str, Callable[[FakePlugin], Awaitable[None]]] = {
    "nod041 the plugin unregisters": lambda plugin: plugin.unregister(),
    "nod042 the service stops": lambda plugin: plugin.stop_serving(),
    "nod043 the service stops, common directory": lambda plugin: plugin.stop_serving(),
}


@pytest.mark.rule("KM-10")
@pytest.mark.parametrize("case", LOSSES)
async def test_slices_of_a_driver_go_when_its_last_instance_is_lost(
    case: str, node: OneNode, make_plugin: MakePlugin
) -> None:
    plugin = make_plugin(root=node.root)
    in_directory(plugin, common=case.endswith("common directory"))
    async with plugin:
        await becomes(lambda: plugin.statuses)
        await node.publish("gpu")
        await node.publish("nic", driver="nic.example.com")
        await LOSSES[case](plugin)
        await node.shows_slices("nic")


def in_directory(plugin: FakePlugin, *, common: bool) -> None:
    """Put the service socket beside the registration socket, where the node sees it as a plugin as well."""
    if common:
        plugin.service_socket = plugin.registration_socket.with_name("service.sock")


async def test_nod044_slices_of_a_driver_that_is_never_reachable_go(node: OneNode, make_plugin: MakePlugin) -> None:
    plugin = make_plugin(root=node.root)
    await plugin.register()
    await becomes(lambda: plugin.statuses)
    await node.publish("gpu")
    await node.shows_slices()


@pytest.mark.parametrize("wipe_delay", [3.0])  # a busy machine may need some time for the service to come back
@pytest.mark.parametrize("common", [False, True], ids=["nod045 separate directories", "nod046 common directory"])
async def test_nod045_nod046_slices_stay_when_the_service_comes_back_in_time(
    common: bool, node: OneNode, make_plugin: MakePlugin
) -> None:
    plugin = make_plugin(root=node.root)
    in_directory(plugin, common=common)
    async with plugin:
        other = make_plugin("nic.example.com", root=node.root)
        async with other:
            await becomes(lambda: plugin.statuses and other.statuses)
            await node.publish("gpu")
            await plugin.stop_serving()
            await plugin.serve()
            # The other driver's loss starts later: when its slices are gone, the first one's time is over as well.
            await node.publish("nic", driver="nic.example.com")
            await other.unregister()
            await node.shows_slices("gpu")


async def test_e2e031_a_rolling_update_wipes_nothing(node: OneNode, make_plugin: MakePlugin) -> None:
    async with make_plugin(root=node.root) as old:
        await becomes(lambda: old.statuses)
        await node.publish("gpu")
        async with make_plugin(root=node.root, instance="-new") as new:
            await becomes(lambda: new.statuses)
            await old.unregister()
            await old.stop_serving()
            await node.publish("nic", driver="nic.example.com")
            marker = make_plugin("nic.example.com", root=node.root)
            await marker.register()  # never served: its slices mark the time of a wipe
            await node.shows_slices("gpu")


class Watcher:
    """In place of the one of sockets: brings news when the test does."""

    def __init__(self) -> None:
        self.news = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """There is nothing to close."""

    def rescan(self) -> None:
        """There are no sockets."""


@pytest.mark.parametrize("later", range(5))
async def test_it_ends_when_it_is_told_to_while_news_come(
    later: int, short_path: Path, handler: Handler, fast: AgentSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``asyncio.wait_for`` lost the cancellation, and what waited for the end waited for ever."""
    watcher = Watcher()
    monkeypatch.setattr(registration, "SocketWatcher", lambda *_: watcher)
    task = asyncio.create_task(registrar_at(short_path, handler, replace(fast, plugin_period=3600.0)).run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    watcher.news.set()
    for _ in range(later):
        await asyncio.sleep(0)
    task.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert task.done()
