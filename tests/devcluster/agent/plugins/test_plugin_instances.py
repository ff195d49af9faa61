"""Which plugin is chosen, and the state of plugin sockets: both without any I/O."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from dra_api.releases import Release
from dra_devcluster.agent.errors import ClaimError, RegistrationError
from dra_devcluster.agent.plugins.plugin import PluginInstances, choose_health_service, choose_service
from dra_devcluster.agent.plugins.watcher import PluginSockets, Registered
from dra_devcluster.agent.settings import Backoff


@dataclass
class Instance:
    driver: str
    endpoint: str
    connected: bool = True


# --- the service (KM-06) ---

CHOICES = {
    "only v1": (["v1.DRAPlugin"], "v1.DRAPlugin"),
    "only v1beta1": (["v1beta1.DRAPlugin"], "v1beta1.DRAPlugin"),
    "the plugin's order counts": (["v1beta1.DRAPlugin", "v1.DRAPlugin"], "v1beta1.DRAPlugin"),
    "unknown ones are passed over": (["v9.DRAPlugin", "v1alpha1.DRAResourceHealth", "v1.DRAPlugin"], "v1.DRAPlugin"),
}


@pytest.mark.rule("KM-06")
@pytest.mark.parametrize("case", CHOICES)
def test_the_first_service_that_both_speak_is_chosen(case: str) -> None:
    offered, chosen = CHOICES[case]
    assert choose_service(offered) == chosen


@pytest.mark.rule("KM-06")
def test_a_plugin_without_a_known_service_is_refused() -> None:
    with pytest.raises(RegistrationError, match=r"empty list of supported gRPC services \(aka supported versions\)"):
        choose_service([])
    with pytest.raises(RegistrationError, match=r"1\.0\.0.*v1\.DRAPlugin, v1beta1\.DRAPlugin"):
        choose_service(["1.0.0"])


# --- the health service (KM-22) ---

ALPHA, V1 = "v1alpha1.DRAResourceHealth", "v1.DRAResourceHealth"


@pytest.mark.rule("K37-HEALTH-08")
@pytest.mark.parametrize(
    ("release", "offered", "chosen"),
    [
        (Release.V1_36, ["v1.DRAPlugin", V1, ALPHA], ALPHA),
        (Release.V1_36, [V1], ""),
        (Release.V1_37, ["v1.DRAPlugin", ALPHA, V1], V1),
        (Release.V1_37, [ALPHA], ALPHA),
        (Release.V1_37, ["v1.DRAPlugin"], ""),
    ],
)
def test_a_kubelet_watches_health_by_the_newest_version_that_it_knows(
    release: Release, offered: list[str], chosen: str
) -> None:
    assert choose_health_service(offered, release) == chosen


# --- the instance (KM-07 to KM-09) ---


def instances_of(*instances: Instance) -> PluginInstances[Instance]:
    plugins: PluginInstances[Instance] = PluginInstances()
    for instance in instances:
        plugins.add(instance)
    return plugins


PICKS: dict[str, tuple[list[Instance], str]] = {
    "the only one": ([Instance("d", "a")], "a"),
    "the only one, although not connected": ([Instance("d", "a", False)], "a"),
    "the latest": ([Instance("d", "a"), Instance("d", "b")], "b"),
    "the latest that is connected": ([Instance("d", "a"), Instance("d", "b", False)], "a"),
    "the latest when none is connected": ([Instance("d", "a", False), Instance("d", "b", False)], "b"),
    "not another driver's": ([Instance("d", "a", False), Instance("e", "b")], "a"),
}


@pytest.mark.rule("KM-09")
@pytest.mark.parametrize("case", PICKS)
def test_picks_the_instance_to_call(case: str) -> None:
    instances, endpoint = PICKS[case]
    assert instances_of(*instances).get("d").endpoint == endpoint


@pytest.mark.rule("KM-09")
def test_an_unknown_driver_is_an_error() -> None:
    with pytest.raises(ClaimError, match=r"^DRA driver d is not registered$"):
        instances_of(Instance("e", "a")).get("d")


@pytest.mark.rule("KM-07")
def test_an_endpoint_registers_once_per_driver() -> None:
    plugins = instances_of(Instance("d", "a"), Instance("e", "a"))
    with pytest.raises(RegistrationError, match=r"^endpoint a already registered for DRA driver plugin d$"):
        plugins.add(Instance("d", "a"))


@pytest.mark.rule("KM-08")
def test_exactly_one_instance_is_removed_and_an_unknown_one_is_no_error() -> None:
    plugins = instances_of(Instance("d", "a"), Instance("d", "b"))
    assert plugins.remove("d", "c") is None
    removed = plugins.remove("d", "b")
    assert removed is not None
    assert plugins.get("d").endpoint == "a"
    plugins.remove("d", "a")
    assert not plugins.is_usable("d")
    with pytest.raises(ClaimError):
        plugins.get("d")


# --- sockets (KM-02, KM-03) ---


def sockets() -> PluginSockets:
    return PluginSockets(Backoff(1.0, 4.0))


def register(known: PluginSockets, path: str) -> None:
    known.actual[path] = Registered(known.desired[path], "DRAPlugin", "d", path)


@pytest.mark.rule("KM-02")
def test_a_socket_that_was_made_anew_is_unregistered_first() -> None:
    known = sockets()
    known.created("/a")
    assert (known.to_unregister(0), known.to_register(0)) == ([], ["/a"])
    register(known, "/a")
    assert (known.to_unregister(0), known.to_register(0)) == ([], [])
    known.created("/a")
    assert (known.to_unregister(0), known.to_register(0)) == (["/a"], [])


@pytest.mark.rule("KM-02")
def test_a_removed_directory_removes_its_sockets_and_no_others() -> None:
    known = sockets()
    for path in ("/dir/a", "/dir/sub/b", "/dir2/c"):
        known.created(path)
    known.removed("/dir")
    assert known.to_register(0) == ["/dir2/c"]


@pytest.mark.rule("KM-03")
def test_one_operation_per_socket_and_growing_pauses_after_failures() -> None:
    known = sockets()
    known.created("/a")
    known.busy.add("/a")
    assert known.to_register(0) == []
    known.busy.discard("/a")
    waits = []
    for now in (0.0, 10.0, 20.0, 30.0):
        known.failed("/a", now)
        waits.append(next(wait for wait in (0.5, 1, 2, 4, 8) if known.to_register(now + wait)))
    assert waits == [1, 2, 4, 4]
    known.succeeded("/a")
    assert known.to_register(0) == ["/a"]
